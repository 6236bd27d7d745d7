"""Every planted change of what a second process decides fails a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.tuners.changed_module import noticing
from tuners import retiming as true_module
from tuners.decide import DecisionRule, Judgement, decide
from tuners.options import RaceOptions

Module = Any
FINAL = {"base": [1.0] * 20, "a": [0.5] * 20, "b": [0.6] * 20}
VERDICT = decide(FINAL, "base", "the default", DecisionRule(), targets={"own": {"a"}, "other": {"b"}})


def confirmed(module: Module, times: dict[str, list[float]], **more: Any) -> Any:
    plan = module.RetimingPlan("base", DecisionRule(), RaceOptions(), 0.15, 1.0)
    return module.confirmed(VERDICT, module.Retimed(times, **more), plan)


def check_what_stands(module: Module) -> None:
    """The verdict and each target by their own candidates."""
    both = confirmed(module, {"base": [1.0] * 12, "a": [0.5] * 12, "b": [0.6] * 12})
    assert (both.judgement, both.winner, both.confirmation.agrees) == ("WIN", "a", True)
    assert [both.targets[name].judgement for name in ("own", "other")] == ["WIN", "WIN"]
    one = confirmed(module, {"base": [1.0] * 12, "a": [1.0] * 12, "b": [0.6] * 12})
    judgements = one.judgement, one.targets["own"].judgement, one.targets["other"].judgement
    assert judgements == ("TIE", "TIE", "WIN")


def check_the_rule(module: Module) -> None:
    """The interval and the rounds are the final's, the margin is half of it."""
    for ratios, judgement in (
        ([0.99] * 12, "WIN"), ([0.9905] * 12, "TIE"), ([0.5] * 9 + [1.5] * 3, "TIE"), ([0.5] * 7, "TIE"),
    ):  # fmt: skip
        times = {"base": [1.0] * len(ratios), "a": ratios}
        assert confirmed(module, times, failed={"b": "refused"}).judgement == judgement


def check_a_silent_process(module: Module) -> None:
    """No times, no WIN: an error, a failed candidate, a failed default."""
    good = {"base": [1.0] * 12, "a": [0.5] * 12, "b": [0.6] * 12}
    silent: list[tuple[dict[str, list[float]], dict[str, Any]]] = [
        ({}, {}),
        ({}, {"error": "it died"}),
        (good, {"error": "it died"}),
        (good, {"failed": {"a": "refused"}}),
        ({"a": [0.5] * 12}, {}),
    ]
    for times, more in silent:
        found = confirmed(module, times, **more)
        assert (found.judgement, found.winner, found.confirmation.agrees) == ("TIE", "base", False)


def check_the_default_stays(module: Module) -> None:
    found = confirmed(module, {"base": [1.0] * 12, "a": [1.0] * 12, "b": [1.0] * 12})
    assert (found.winner, found.fastest, found.tied) == ("base", "base", 1)
    assert (found.seconds, found.speedup.low, found.speedup.mid, found.speedup.high) == (1.0, 1.0, 1.0, 1.0)
    assert found.tie_set == ("a", "base")


def check_who_is_asked(module: Module) -> None:
    assert module.winners_of(VERDICT) == ["a", "b"]
    tie = replace(VERDICT, judgement=Judgement.TIE, winner="base")
    assert module.winners_of(tie) == ["a", "b"], "of the targets"
    assert module.winners_of(replace(tie, targets={})) == []


CHECKS = (
    check_what_stands, check_the_rule, check_a_silent_process, check_the_default_stays, check_who_is_asked,
)  # fmt: skip

#: (what it is, the true text, the changed text)
CHANGES = [
    ("whatever it shows, it agrees", "agrees, gain = final.wins(name)", "agrees, gain = True"),
    ("the whole margin must be shown", "SHOWN_SHARE = 0.5", "SHOWN_SHARE = 1.0"),
    ("no margin must be shown", "SHOWN_SHARE = 0.5", "SHOWN_SHARE = 0.0"),
    ("the median is enough", "final.wins(name), f", "final.against_base[name].mid < 1, f"),
    ("no WIN is taken back", "    if own.agrees:", "    if True:"),
    ("no target's WIN is taken back", "found is None or found.agrees", "found is None or True"),
    ("an error is no matter", "if again.error or name in", "if name in"),
    ("a failed candidate is no matter", " or name in again.failed", ""),
    ("a missing default is no matter", " or plan.baseline not in again.times", " and False"),
    ("the winner stays", "        winner=verdict.baseline,\n", ""),
    ("the winner's seconds stay", "        seconds=verdict.baseline_seconds,\n", ""),
    ("the default is not in the tie set", "{*verdict.tie_set, verdict.baseline}", "{*verdict.tie_set}"),
    ("targets are not asked", "judged += [", "judged[:0] + ["),
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_rule_passes_every_check(check: Callable[[Module], None]) -> None:
    check(true_module)


@pytest.mark.parametrize(("what", "old", "new"), CHANGES, ids=[change[0] for change in CHANGES])
def test_a_changed_rule_fails_a_check(what: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noticing(true_module, old, new, CHECKS, monkeypatch), f"no check notices {what}"
