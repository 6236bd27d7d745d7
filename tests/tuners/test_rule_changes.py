"""Every planted change of the decision rule fails a check: margin, pairing, confidence, tie-break.

A change replaces one expression in the source of a module. The checks run on the changed module; each must
pass on the true source, and at least one must fail on each change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tuners import decide as true_decide
from tuners import intervals as true_intervals

ROUNDS = 20
#: 1% of noise in an order of its own.
NOISE = [1 + 0.01 * (2 * ((i * 7) % ROUNDS) / (ROUNDS - 1) - 1) for i in range(ROUNDS)]

Module = Any


def steady(seconds: float, rounds: int = ROUNDS) -> list[float]:
    return [seconds] * rounds


def judged(module: Module, times: dict[str, list[float]], **options: Any) -> Any:
    return module.decide(times, "base", "the default", module.DecisionRule(), **options)


# ---- the checks ----------------------------------------------------------------------------------


def check_margin(module: Module) -> None:
    """A gain below the margin is a TIE, one of the margin a WIN; a loss likewise."""
    for ratio, judgement in ((0.98, "WIN"), (0.985, "TIE"), (1.0, "TIE"), (1.015, "TIE"), (1.03, "LOSS")):
        assert judged(module, {"base": steady(1.0), "a": steady(ratio)}).judgement == judgement


def check_interval(module: Module) -> None:
    """A median beyond the margin is no WIN and no LOSS if the interval holds 1."""
    for most, few, judgement in ((0.9, 1.1, "TIE"), (1.1, 0.9, "TIE")):
        times = {"base": steady(1.0), "a": [most] * 13 + [few] * 7}
        assert judged(module, times).judgement == judgement


def check_pairing(module: Module) -> None:
    """A drift larger than the gain cancels within rounds."""
    drift = [1 + 0.05 * i for i in range(ROUNDS)]
    times = {"base": drift, "a": [0.96 * value for value in drift]}
    assert judged(module, times).judgement == "WIN"
    reserved = {"a": {i: 0.96 * drift[i] for i in range(0, ROUNDS, 2)}}
    assert judged(module, {"base": drift}, reserved=reserved).judgement == "WIN"


def check_confidence(module: Module) -> None:
    """11 of 12 rounds faster are enough for one comparison and too few for forty; 7 rounds decide nothing."""
    times = {"base": steady(1.0, 12), "a": [0.5] * 11 + [1.5]}
    assert judged(module, times).judgement == "WIN"
    many = {f"s{i}": steady(3.0, 12) for i in range(39)}
    assert judged(module, {**times, **many}).judgement == "TIE"
    assert judged(module, times, slower=list(many)).judgement == "TIE"
    late = {name: {0: 3.0} for name in many}
    assert judged(module, times, reserved=late).judgement == "TIE"
    assert judged(module, {"base": steady(1.0, 7), "a": steady(0.5, 7)}).judgement == "TIE"
    assert judged(module, {"base": steady(1.0, 8), "a": steady(0.5, 8)}).judgement == "WIN"
    two = {"base": steady(1.0, 12), "a": [0.5] * 10 + [1.5] * 2}
    assert judged(module, two).judgement == "TIE"
    for faster, judgement in ((16, "TIE"), (17, "WIN")):
        times = {"base": steady(1.0), "a": [0.5] * faster + [1.5] * (ROUNDS - faster)}
        assert judged(module, times).judgement == judgement
    rule = module.DecisionRule(min_rounds=12)
    times = {"base": steady(1.0, 11), "a": steady(0.5, 11)}
    assert module.decide(times, "base", "the default", rule).judgement == "TIE"


def check_tie_break(module: Module) -> None:
    """Fewest bytes, determinism, libraries, the id; whatever the order of the candidates."""
    kinds = {
        "a": (4, True, "cublaslt"), "b": (0, None, "cublaslt"), "c": (0, True, "naive"),
        "d": (0, True, "cublaslt"), "e": (0, True, "cublaslt"),
    }  # fmt: skip
    order = {name: module.tie_order(*kind) for name, kind in kinds.items()}
    left, chosen = list(kinds), []
    while left:
        times = {name: steady(1.0) for name in reversed(left)} | {"base": steady(2.0)}
        chosen.append(judged(module, times, preference=order).winner)
        left.remove(chosen[-1])
    assert chosen == ["d", "e", "c", "b", "a"]
    times = {"base": steady(2.0), "ours": steady(0.5), "x": steady(1.0), "y": steady(1.004)}
    options = {"preference": {"x": (1,), "y": (0,)}, "targets": {"t": {"x", "y"}}}
    assert judged(module, times, **options).targets["t"].solution == "y"


def check_limits_of_a_tie(module: Module) -> None:
    """A candidate is chosen within a quarter of the margin of the fastest, with a WIN of its own, and nowhere
    else."""
    order = {"small": (0,), "fast": (1,)}
    wide = [0.9] * 7 + [1.1] * 13
    for base, fast, small, winner, in_set in (
        (2.0, 1.0, steady(1.0049), "small", True),
        (2.0, 1.0, steady(1.0051), "fast", False),
        (2.0, 1.0, wide, "fast", True),
        (1.0, 0.9775, steady(0.981), "fast", True),
    ):
        times = {"base": steady(base), "fast": steady(fast), "small": small}
        found = judged(module, times, preference=order, targets={"t": {"fast", "small"}})
        assert (found.winner, found.fastest, found.tied) == (winner, "fast", 1 + (winner == "small"))
        assert ("small" in found.tie_set) is in_set
        assert (found.targets["t"].solution, found.targets["t"].tied) == (winner, found.tied)
    bumpy = [0.5 * value for value in NOISE]
    found = judged(module, {"base": steady(1.0), "fast": bumpy, "small": steady(0.7)}, preference=order)
    assert (found.winner, found.tie_set) == ("fast", ("fast",))


def check_incumbent(module: Module) -> None:
    """The winner of the verdict before keeps its WIN with half of the margin, shown; nothing else does."""
    for ratio, kept in ((0.985, True), (0.9901, False), (0.9899, True), (1.0, False)):
        times = {"base": steady(1.0), "a": steady(ratio), "b": steady(1.2)}
        for incumbent, wins in (("a", kept), ("b", False), (None, False)):
            found = judged(module, times, incumbent=incumbent, targets={"t": {"a"}})
            assert (found.judgement == "WIN", found.targets["t"].judgement == "WIN") == (wins, wins)
    unsure = {"base": steady(1.0), "a": [0.98] * 13 + [1.01] * 7}
    assert judged(module, unsure, incumbent="a").judgement == "TIE"
    found = judged(module, {"base": steady(1.0), "a": steady(0.985), "b": steady(0.9)}, incumbent="a")
    assert found.winner == "b", "a candidate that is shown to be faster takes its place"
    # The default keeps its place in the same way, ...
    for ratio, incumbent, wins in ((0.975, "base", False), (0.965, "base", True), (0.975, None, True)):
        times = {"base": steady(1.0), "a": steady(ratio)}
        assert (judged(module, times, incumbent=incumbent).judgement == "WIN") == wins
    # ... and the incumbent its own up to one and a half margins; others only by a tie.
    for behind, incumbent, winner in (
        (1.0299, "a", "a"), (1.0301, "a", "b"), (1.0049, None, "a"), (1.0051, None, "b"), (1.0051, "b", "b"),
    ):  # fmt: skip
        for noise in (0.0, 0.01):  # however exactly it is known
            rounds = [0.5 * behind * (1 + noise * (-1) ** at) for at in range(ROUNDS)]
            times = {"base": steady(1.0), "a": rounds, "b": [0.5] * ROUNDS}
            found = judged(module, times, preference={"a": (0,), "b": (1,)}, incumbent=incumbent)
            assert found.winner == winner, (behind, incumbent, noise)
            assert winner in found.tie_set, "also where its place alone keeps it"


CHECKS = (
    check_margin, check_interval, check_pairing, check_confidence, check_tie_break, check_limits_of_a_tie,
    check_incumbent,
)  # fmt: skip

# ---- the changes ---------------------------------------------------------------------------------

#: (module, what it is, the true text, the changed text)
CHANGES = [
    (true_decide, "a WIN without a margin", "and ratio.mid <= 1 - self.least_gain(name)", ""),
    (
        true_decide,
        "half of the margin",
        "ratio.mid <= 1 - self.least_gain(name)",
        "ratio.mid <= 1 - self.least_gain(name) / 2",
    ),
    (
        true_decide,
        "a margin that is not enough",
        "ratio.mid <= 1 - self.least_gain(name)",
        "ratio.mid < 1 - self.least_gain(name)",
    ),
    (true_decide, "a WIN by the median alone", "and ratio.high < 1.0 and", "and"),
    (true_decide, "a WIN by the best end of the interval", "ratio.high < 1.0 and", "ratio.low < 1.0 and"),
    (true_decide, "a LOSS by the median alone", "ratio.low > 1.0 and ratio.mid", "ratio.mid"),
    (true_decide, "a LOSS without a margin", " and ratio.mid >= 1 + self.rule.margin", ""),
    (true_decide, "a WIN with too few rounds", "return self.enough(name) and ratio.high", "return ratio.mid"),
    (
        true_decide,
        "a confidence that is not shared",
        "1 - (1 - self.confidence) / max(1, comparisons)",
        "self.confidence",
    ),
    (
        true_decide,
        "eliminated finalists are no comparisons",
        "self._samples.keys() | self.slower",
        "self._samples.keys()",
    ),
    (
        true_decide,
        "reserved candidates are no comparisons",
        "len(self._samples.keys() | self.slower) - 1",
        "len(times.keys() | self.slower) - 1",
    ),
    (true_decide, "no least number of rounds", "count = self.min_rounds", "count = 2"),
    (true_decide, "a lower confidence", "confidence: float = 0.99", "confidence: float = 0.95"),
    (
        true_intervals,
        "no pairing",
        "[x / y for x, y in zip(a, b, strict=True)]",
        "[x / median(b) for x in a]",
    ),
    (
        true_intervals,
        "pairs of sorted samples",
        "zip(a, b, strict=True)",
        "zip(sorted(a), sorted(b)[::-1], strict=True)",
    ),
    (true_intervals, "one side of the interval only", "1 - 2 * tail < confidence", "1 - tail < confidence"),
    (true_intervals, "an interval that is too narrow", "ordered[-r])", "ordered[len(ordered) // 2])"),
    (
        true_decide,
        "no tie-break",
        "key=lambda name: (self._order.get(name, ()), name)",
        "key=lambda name: self.against_base[name].mid",
    ),
    (
        true_decide,
        "the reverse id",
        "return min(self.tied(winners), key",
        "return max(self.tied(winners), key",
    ),
    (
        true_decide,
        "workspace is no matter",
        "return workspace_bytes, deterministic",
        "return 0, deterministic",
    ),
    (true_decide, "determinism is no matter", "deterministic is not True, family", "False, family"),
    (
        true_decide,
        "unknown determinism counts as known",
        "deterministic is not True, family",
        "deterministic is False, family",
    ),
    (
        true_decide,
        "our kernels before libraries",
        "family not in LIBRARY_FAMILIES",
        "family in LIBRARY_FAMILIES",
    ),
    (true_decide, "ties beyond the margin", "if name == incumbent else TIE_SHARE)\n", "* 4)\n"),
    (true_decide, "ties within the whole margin", "TIE_SHARE = 0.25", "TIE_SHARE = 1.0"),
    (true_decide, "ties within half of the margin", "TIE_SHARE = 0.25", "TIE_SHARE = 0.5"),
    (true_decide, "only equals tie", "TIE_SHARE = 0.25", "TIE_SHARE = 0.0"),
    (
        true_decide,
        "an incumbent that loses its place to any lead that is shown",
        "or r.mid <= most[n]]",
        "or (r.low <= 1 + TIE_SHARE * self.rule.margin and r.mid <= most[n])]",
    ),
    (
        true_decide,
        "a place kept by the margin alone",
        "CHALLENGE_SHARE = 0.5, 1.5",
        "CHALLENGE_SHARE = 0.5, 1.0",
    ),
    (true_decide, "a place kept by two margins", "CHALLENGE_SHARE = 0.5, 1.5", "CHALLENGE_SHARE = 0.5, 2.0"),
    (true_decide, "a tie set of the whole margin", "most = 1 + TIE_SHARE * rule", "most = 1 + 1.0 * rule"),
    (true_decide, "a tie set without the incumbent", "{*ties, *level, *not_slower}", "{*ties, *not_slower}"),
    (true_decide, "ties within noise only", "or r.mid <= most[n]]", "or r.low <= 1.0]"),
    (true_decide, "a tie of any median", "or r.mid <= most[n]]", "or r.low <= most[n]]"),
    (
        true_decide,
        "a tie without a WIN of its own",
        "= final.preferred(winners), final",
        "= final.preferred([n for n in final.finalists if n != baseline]), final",
    ),
    (
        true_decide,
        "the tie set of the winner",
        "final.ratio(name, fastest) for name in (*final",
        "final.ratio(name, baseline) for name in (*final",
    ),
    (
        true_decide,
        "half of the margin for all",
        "(INCUMBENT_SHARE if name == self.incumbent else others)",
        "0.5",
    ),
    (
        true_decide,
        "an incumbent like the others",
        "if name == self.incumbent else others",
        "if False else others",
    ),
    (true_decide, "an incumbent without a margin", "CHALLENGE_SHARE = 0.5", "CHALLENGE_SHARE = 0.0"),
    (
        true_decide,
        "a default that keeps no place",
        "if self.incumbent == self.baseline else 1.0",
        "if False else 1.0",
    ),
    (
        true_decide,
        "a default that all must beat twice",
        "if self.incumbent == self.baseline else 1.0",
        "if True else 1",
    ),
    (
        true_decide,
        "an incumbent that ties like the others",
        "rule.margin * (CHALLENGE_SHARE if name",
        "rule.margin * (1 if name",
    ),
    (
        true_decide,
        "all tie like an incumbent",
        "(CHALLENGE_SHARE if name == incumbent else TIE_SHARE)",
        "CHALLENGE_SHARE",
    ),
    (
        true_decide,
        "an incumbent that is never replaced",
        "or r.mid <= most[n]]",
        "or n == self.incumbent or r.mid <= most[n]]",
    ),
    (
        true_decide,
        "a target's fastest, not its tie-break",
        "else final.preferred(winners)\n        level",
        "else final.fastest(winners)\n        level",
    ),
]


@pytest.fixture
def module_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Makes tuners.decide from changed source."""

    def made(module: ModuleType, old: str, new: str) -> ModuleType:
        source = Path(str(module.__file__)).read_text()
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {module.__name__}"
        changed = _executed(module.__name__, source.replace(old, new), monkeypatch)
        if module is true_decide:
            return changed
        return _executed(true_decide.__name__, Path(str(true_decide.__file__)).read_text(), monkeypatch)

    return made


def _executed(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, name, "exec"), vars(module))
    return module


@pytest.mark.parametrize("check", CHECKS)
def test_the_rule_passes_every_check(check: Callable[[Module], None]) -> None:
    check(true_decide)


@pytest.mark.parametrize(("module", "what", "old", "new"), CHANGES, ids=[change[1] for change in CHANGES])
def test_a_changed_rule_fails_a_check(
    module_of: Callable[..., ModuleType], module: ModuleType, what: str, old: str, new: str
) -> None:
    changed = module_of(module, old, new)
    failed = []
    for check in CHECKS:
        try:
            check(changed)
        except (AssertionError, ValueError):
            failed.append(check.__name__)
    assert failed, f"no check notices {what}"
