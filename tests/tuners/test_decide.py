"""The verdict of a final, on constructed and on simulated rounds."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import permutations
from math import comb, inf
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuners.decide import DecisionRule, Judgement, Verdict, decide, tie_order
from tuners.intervals import Interval, median_interval, paired

RULE = DecisionRule()
ROUNDS = 20
#: A noise that has no pattern in common with another candidate's: a prime step round the rounds.
WOBBLE = 0.01


def steady(seconds: float, rounds: int = ROUNDS) -> list[float]:
    return [seconds] * rounds


def noisy(seconds: float, step: int, rounds: int = ROUNDS, wobble: float = WOBBLE) -> list[float]:
    """Values spread evenly within +-wobble of `seconds`, in an order that `step` shuffles."""
    return [seconds * (1 + wobble * (2 * ((i * step) % rounds) / (rounds - 1) - 1)) for i in range(rounds)]


def judge(times: Mapping[str, Sequence[float]], rule: DecisionRule = RULE, **options: Any) -> Verdict:
    return decide(times, "base", "the default", rule, **options)


def tail(count: int, below: int) -> float:
    """P(fewer than `below` heads of `count` fair coins)."""
    return float(sum(comb(count, i) for i in range(below)) / 2**count)


# ---- the interval of a median ------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.6, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 12, 13, 31, 60, 200])
def test_interval_is_the_narrowest_that_the_binomial_allows(count: int, confidence: float) -> None:
    values = [float(i) for i in range(1, count + 1)]
    random.Random(count).shuffle(values)
    found = median_interval(values, confidence)
    assert found.mid == (count + 1) / 2
    ranks = [r for r in range(1, count // 2 + 1) if 1 - 2 * tail(count, r) >= confidence]
    if not ranks:
        assert (found.low, found.high) == (-inf, inf)
    else:
        assert (found.low, found.high) == (max(ranks), count + 1 - max(ranks))


@pytest.mark.parametrize(("count", "bounded"), [(7, False), (8, True)])
def test_eight_values_are_the_fewest_that_bound_a_median_at_99_percent(count: int, bounded: bool) -> None:
    found = median_interval([float(i) for i in range(count)], 0.99)
    assert (found.low > -inf) == (found.high < inf) == bounded


@pytest.mark.parametrize("count", [12, 25, 60])
def test_interval_covers_the_median_of_skewed_noise_as_often_as_the_binomial_says(count: int) -> None:
    draws, rng = 3000, random.Random(count)
    true_median = 1.0  # of a log-normal distribution
    covered = 0
    for _ in range(draws):
        found = median_interval([rng.lognormvariate(0, 0.7) for _ in range(count)], 0.9)
        covered += found.low <= true_median <= found.high
    rank = max(r for r in range(1, count // 2 + 1) if 1 - 2 * tail(count, r) >= 0.9)
    exact = 1 - 2 * tail(count, rank)
    assert abs(covered / draws - exact) < 5 * (exact * (1 - exact) / draws) ** 0.5


def test_paired_is_the_ratio_of_each_round_and_refuses_unequal_rounds() -> None:
    assert paired([2.0, 6.0, 8.0], [1.0, 2.0, 1.0], 0.6) == Interval(2.0, 3.0, 8.0)
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0], 0.9)


# ---- verdicts ----------------------------------------------------------------------------------


def test_a_clear_gain_wins() -> None:
    verdict = judge({"base": noisy(2.0, 3), "fast": noisy(1.0, 7), "slow": noisy(3.0, 11)})
    assert verdict.judgement is Judgement.WIN
    assert (verdict.winner, verdict.baseline, verdict.baseline_name) == ("fast", "base", "the default")
    assert verdict.speedup.low < verdict.speedup.mid < verdict.speedup.high
    assert verdict.speedup.low > 1.9
    assert verdict.speedup.high < 2.1
    assert verdict.seconds == pytest.approx(1.0, rel=WOBBLE)
    assert verdict.baseline_seconds == pytest.approx(2.0, rel=WOBBLE)
    assert verdict.rounds == ROUNDS
    assert verdict.tie_set == ("fast",)
    assert "2%" in verdict.reason


def test_noise_is_a_tie_and_the_default_stays() -> None:
    verdict = judge({"base": noisy(1.0, 3), "same": noisy(0.999, 7)})
    assert verdict.judgement is Judgement.TIE
    assert verdict.winner == "base"
    assert verdict.speedup == Interval(1.0, 1.0, 1.0)
    assert verdict.tie_set == ("base", "same")
    assert "within the noise" in verdict.reason


def test_a_large_gain_in_too_few_of_the_rounds_is_a_tie() -> None:
    bimodal = [0.5] * 13 + [1.5] * 7
    verdict = judge({"base": steady(1.0), "moody": bimodal})
    assert verdict.judgement is Judgement.TIE
    assert "within the noise" in verdict.reason


def test_every_candidate_slower_is_a_loss() -> None:
    verdict = judge({"base": noisy(1.0, 3), "slow": noisy(1.5, 7), "slower": noisy(2.0, 11)})
    assert verdict.judgement is Judgement.LOSS
    assert verdict.winner == "base"
    assert verdict.tie_set == ("base",)


def test_one_candidate_not_shown_slower_makes_a_tie_of_a_loss() -> None:
    verdict = judge({"base": noisy(1.0, 3), "slow": noisy(1.5, 7), "level": noisy(1.001, 11)})
    assert verdict.judgement is Judgement.TIE


@pytest.mark.parametrize(
    ("ratio", "judgement"),
    [
        (0.97, Judgement.WIN),
        (0.98, Judgement.WIN),  # the margin itself is enough
        (0.9801, Judgement.TIE),
        (0.99, Judgement.TIE),
        (1.0, Judgement.TIE),
        (1.019, Judgement.TIE),
        (1.02, Judgement.LOSS),
        (1.03, Judgement.LOSS),
    ],
)
def test_margin(ratio: float, judgement: Judgement) -> None:
    verdict = judge({"base": steady(1.0), "other": steady(ratio)})
    assert verdict.judgement is judgement
    assert verdict.winner == ("other" if judgement is Judgement.WIN else "base")
    if ratio in (0.9801, 0.99):
        assert verdict.reason == "faster, but by less than the margin of 2%"


def test_a_margin_of_zero_still_asks_for_evidence() -> None:
    rule = DecisionRule(margin=0.0)
    assert judge({"base": steady(1.0), "other": steady(0.9999)}, rule).judgement is Judgement.WIN
    assert judge({"base": noisy(1.0, 3), "other": noisy(0.9999, 7)}, rule).judgement is Judgement.TIE


@pytest.mark.parametrize(("rounds", "judgement"), [(11, Judgement.TIE), (12, Judgement.WIN)])
def test_fewer_rounds_than_the_rule_asks_for_decide_nothing(rounds: int, judgement: Judgement) -> None:
    rule = DecisionRule(min_rounds=12)
    verdict = judge({"base": steady(2.0, rounds), "fast": steady(1.0, rounds)}, rule)
    assert verdict.judgement is judgement
    if judgement is Judgement.TIE:
        assert verdict.winner == "base"
        assert "too few rounds" in verdict.reason


@pytest.mark.parametrize("least", [2, 8, 20])
@pytest.mark.parametrize("comparisons", [0, 1, 2, 5, 40])
def test_rounds_needed_are_the_fewest_that_close_an_interval(comparisons: int, least: int) -> None:
    rule = DecisionRule(confidence=0.95, min_rounds=least)
    shared = 1 - 0.05 / max(1, comparisons)
    assert rule.shared(comparisons) == pytest.approx(shared)
    needed = rule.rounds_needed(comparisons)
    assert needed >= least
    assert 1 - 2 / 2**needed >= shared  # the least and the greatest value bound the median this surely
    assert needed == least or 1 - 2 / 2 ** (needed - 1) < shared


@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_a_final_just_short_of_the_rounds_needed_is_a_tie(ratio: float) -> None:
    needed = RULE.rounds_needed(1)
    for rounds, judgement in (
        (needed - 1, Judgement.TIE),
        (needed, Judgement.WIN if ratio < 1 else Judgement.LOSS),
    ):
        verdict = judge({"base": steady(1.0, rounds), "other": steady(ratio, rounds)})
        assert verdict.judgement is judgement
        assert (f": {rounds} of {needed}" in verdict.reason) == (judgement is Judgement.TIE)


def test_finalists_that_left_as_slower_count_as_comparisons_and_are_no_ties() -> None:
    almost = [0.5] * 11 + [1.5]
    times = {"base": steady(1.0, 12), "almost": almost}
    assert judge(times).judgement is Judgement.WIN
    verdict = judge(times, slower=[f"slow{i}" for i in range(39)])
    assert verdict.judgement is Judgement.TIE
    assert verdict.tie_set == ("almost", "base")


def test_every_finalist_left_as_slower_is_a_loss() -> None:
    verdict = judge({"base": noisy(1.0, 3)}, slower=["a", "b"])
    assert (verdict.judgement, verdict.winner, verdict.tie_set) == (Judgement.LOSS, "base", ("base",))


def test_the_baseline_alone_is_a_tie() -> None:
    verdict = judge({"base": noisy(1.0, 3)})
    assert (verdict.judgement, verdict.winner, verdict.tie_set) == (Judgement.TIE, "base", ("base",))
    assert "no candidate" in verdict.reason


def test_confidence_is_divided_among_the_finalists() -> None:
    # 11 of 12 rounds faster: 99% of one comparison (rank 2 of 12 covers 99.4%), not of one of forty.
    almost = [0.5] * 11 + [1.5]
    few = {"base": steady(1.0, 12), "almost": almost}
    many = {**few, **{f"slow{i}": steady(3.0, 12) for i in range(39)}}
    assert judge(few).judgement is Judgement.WIN
    assert judge(many).judgement is Judgement.TIE


@pytest.mark.parametrize(
    "times",
    [
        {"other": steady(1.0)},
        {"base": steady(1.0), "other": steady(1.0, ROUNDS - 1)},
        {"base": [], "other": []},
        {"base": steady(1.0), "other": []},
        {},
    ],
)
def test_missing_or_unequal_rounds_are_refused(times: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="equal rounds"):
        judge(times)


@pytest.mark.parametrize(
    "values",
    [
        {"margin": -0.01},
        {"margin": 1.0},
        {"margin": float("nan")},
        {"confidence": 0.5},
        {"confidence": 1.0},
        {"min_rounds": 1},
        {"min_rounds": 13, "max_rounds": 12},
    ],
)
def test_a_rule_that_cannot_decide_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|need"):
        DecisionRule(**values)


# ---- which of several winners ------------------------------------------------------------------

LEVEL = {
    "base": steady(2.0),
    "x": noisy(1.0, 3),
    "y": noisy(1.0005, 7),
    "z": noisy(1.001, 9),
}


@pytest.mark.parametrize(
    ("preference", "winner"),
    [
        ({"x": (2,), "y": (1,), "z": (3,)}, "y"),
        ({"x": (2,), "y": (2,), "z": (1,)}, "z"),
        ({"x": (1, "b"), "y": (1, "a"), "z": (1, "c")}, "y"),
        ({"x": (1,), "y": (1,), "z": (1,)}, "x"),  # then the id
        (None, "x"),
    ],
)
def test_preference_picks_among_level_winners_whatever_the_order(
    preference: dict[str, tuple[Any, ...]] | None, winner: str
) -> None:
    seen = {
        (verdict.winner, verdict.judgement, verdict.tie_set, verdict.seconds)
        for names in permutations(LEVEL)
        for verdict in [judge({name: LEVEL[name] for name in names}, preference=preference)]
    }
    assert len(seen) == 1
    (found,) = seen
    assert found[:3] == (winner, Judgement.WIN, ("x", "y", "z"))


def test_preference_does_not_pick_what_was_shown_slower() -> None:
    times = {**LEVEL, "liked": noisy(1.2, 11)}
    verdict = judge(times, preference={"liked": (0,), "x": (1,), "y": (2,), "z": (3,)})
    assert verdict.winner == "x"
    assert "liked" not in verdict.tie_set


def test_preference_does_not_pick_the_default_over_a_win() -> None:
    order = {"base": (0,), "x": (1,), "y": (1,), "z": (1,)}
    assert judge(LEVEL, preference=order).winner == "x"


def test_a_preferred_candidate_that_is_level_but_no_win_never_blocks_one() -> None:
    # Level with the leader (13 rounds of 20 faster), but not shown faster than the baseline.
    moody = [0.8] * 13 + [2.5] * 7
    times = {"base": steady(2.0), "sure": steady(1.0), "moody": moody}
    verdict = judge(times, preference={"moody": (0,), "sure": (1,)})
    assert (verdict.judgement, verdict.winner) == (Judgement.WIN, "sure")
    assert verdict.tie_set == ("moody", "sure")


def test_a_leader_that_is_no_win_never_blocks_one() -> None:
    # The leader has the least median but loses 20 rounds of 60 to the baseline; `sure` is shown slower
    # than the leader and faster than the baseline.
    leader = [0.85] * 40 + [1.05] * 20
    sure = [0.9] * 40 + [1.06] * 5 + [0.9] * 15
    times = {"base": steady(1.0, 60), "leader": leader, "sure": sure}
    assert paired(sure, leader, 0.995).low > 1
    verdict = judge(times)
    assert (verdict.judgement, verdict.winner) == (Judgement.WIN, "sure")
    assert verdict.tie_set == ("leader", "sure")


def test_the_order_of_a_tie() -> None:
    """Fewest bytes, then determinism, then a library's call, then the id."""
    order = {
        "x": tie_order(0, True, "tile-wgmma"),
        "y": tie_order(0, True, "cublaslt"),
        "z": tie_order(0, None, "cublaslt"),
    }
    names, winners = dict(order), []
    while names:
        times = {name: LEVEL[name] for name in ("base", *names)}
        winners.append(judge(times, preference=order).winner)
        del names[winners[-1]]
    assert winners == ["y", "x", "z"]
    assert tie_order(1, True, "cublaslt") > tie_order(0, False, "tile-wgmma")
    assert tie_order(0, False, "naive") == tie_order(0, None, "naive")


def test_a_chosen_tie_is_told_with_the_fastest_and_how_many_there_were() -> None:
    verdict = judge(LEVEL, preference={"x": (2,), "y": (1,), "z": (3,)}, targets={"all": {"x", "y", "z"}})
    assert (verdict.winner, verdict.fastest, verdict.tied) == ("y", "x", 3)
    assert verdict.reason.endswith("; chosen among 3 candidates that tie")
    assert (verdict.targets["all"].solution, verdict.targets["all"].tied) == ("y", 3)
    alone = judge({"base": LEVEL["base"], "x": LEVEL["x"]})
    assert (alone.fastest, alone.tied) == ("x", 1)
    assert "tie" not in alone.reason
    none = judge({"base": steady(1.0), "same": steady(1.0)})
    assert (none.fastest, none.tied) == ("base", 1)


@pytest.mark.parametrize(("ratio", "chosen"), [(1.004, True), (1.005, True), (1.0051, False)])
def test_a_choice_costs_no_more_than_a_quarter_of_the_margin(ratio: float, chosen: bool) -> None:
    times = {"base": steady(2.0), "fast": steady(1.0), "small": steady(ratio)}
    verdict = judge(times, preference={"small": (0,), "fast": (1,)})
    assert (verdict.winner == "small") is chosen
    assert verdict.fastest == "fast"


@pytest.mark.parametrize(("middle", "chosen"), [(1.005, True), (1.0051, False), (1.1, False)])
def test_a_tie_in_wide_intervals_is_chosen_up_to_a_median_of_a_quarter_of_the_margin(
    middle: float, chosen: bool
) -> None:
    wide = [0.9] * 7 + [middle] * 13
    times = {"base": steady(2.0), "fast": steady(1.0), "wide": wide}
    verdict = judge(times, preference={"wide": (0,), "fast": (1,)})
    assert "wide" in verdict.tie_set
    assert (verdict.winner, verdict.tied) == (("wide", 2) if chosen else ("fast", 1))


@pytest.mark.parametrize(
    ("incumbent", "behind", "chosen"),
    [
        ("old", 1.0299, True),
        ("old", 1.0301, False),
        ("new", 1.0051, False),
        ("base", 1.0051, False),
        (None, 1.0051, False),
    ],
)
def test_only_the_incumbent_keeps_its_place_up_to_one_and_a_half_margins(
    incumbent: str | None, behind: float, chosen: bool
) -> None:
    """However exactly it is known to be behind."""
    times = {"base": steady(2.0), "new": steady(1.0), "old": steady(behind)}
    verdict = judge(times, preference={"old": (0,), "new": (1,)}, incumbent=incumbent)
    assert verdict.judgement is Judgement.WIN
    assert (verdict.winner, verdict.fastest) == ("old" if chosen else "new", "new")
    kept = "; it won before and stays, as no other winner is faster by more than 3.0%"
    assert verdict.reason.endswith(kept) == chosen


def test_a_candidate_that_ties_with_the_fastest_is_not_chosen_without_a_win_of_its_own() -> None:
    """It is 0.4% behind the fastest, which is 2.2% faster than the baseline: less than the margin is left."""
    times = {"base": steady(1.0), "fast": steady(0.978), "small": steady(0.982)}
    verdict = judge(times, preference={"small": (0,), "fast": (1,)}, targets={"all": {"small", "fast"}})
    assert verdict.tie_set == ("fast", "small")
    assert (verdict.winner, verdict.tied, verdict.targets["all"].solution) == ("fast", 1, "fast")


def test_a_target_breaks_its_own_ties_by_the_same_order() -> None:
    times = {"base": steady(2.0), "ours": steady(0.5), "a": steady(1.0), "b": steady(1.004)}
    verdict = judge(times, preference={"ours": (9,), "a": (2,), "b": (1,)}, targets={"library": {"a", "b"}})
    assert (verdict.winner, verdict.tied) == ("ours", 1)
    assert (verdict.targets["library"].solution, verdict.targets["library"].tied) == ("b", 2)


# ---- the tie set -------------------------------------------------------------------------------


def test_tie_set_leaves_out_exactly_what_was_shown_slower_by_a_quarter_of_the_margin() -> None:
    times = {
        "base": steady(2.0),
        "won": steady(1.0),
        "inside": steady(1.005),  # shown slower, by no more than a quarter of the margin
        "outside": steady(1.006),
        "moody": [0.9] * 7 + [1.5] * 13,  # slower in the median, not shown to be
    }
    verdict = judge(times, preference={name: (name == "won",) for name in times})
    assert (verdict.winner, verdict.fastest) == ("inside", "won")
    assert verdict.tie_set == ("inside", "moody", "won")


def test_tie_set_takes_in_those_that_nothing_showed_slower() -> None:
    times = {"base": steady(2.0), "won": steady(1.0), "slow": steady(1.5)}
    verdict = judge(times, not_slower=["absent", "won", "another"])
    assert verdict.tie_set == ("absent", "another", "won")


def test_tie_set_of_a_tie_holds_the_baseline() -> None:
    verdict = judge({"base": noisy(1.0, 3), "level": noisy(1.0, 7), "slow": noisy(1.4, 9)})
    assert verdict.tie_set == ("base", "level")


@pytest.mark.parametrize(
    ("behind", "winner", "tie_set"),
    [
        (1.02, "old", ("fast", "old")),  # beyond a tie: it keeps its place, and is in the set
        (1.03, "old", ("fast", "old")),
        (1.0301, "fast", ("fast",)),
    ],
)
def test_tie_set_holds_an_incumbent_that_keeps_its_place(
    behind: float, winner: str, tie_set: tuple[str, ...]
) -> None:
    times = {"base": steady(2.0), "fast": steady(1.0), "old": steady(behind), "new": steady(behind)}
    order = {"old": (0,), "fast": (1,), "new": (2,)}
    verdict = judge(times, preference=order, incumbent="old")
    assert (verdict.winner, verdict.fastest, verdict.tied) == (winner, "fast", len(tie_set))
    assert verdict.tie_set == tie_set
    assert judge(times, preference=order).tie_set == ("fast",)


# ---- as JSON -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "times",
    [
        LEVEL,
        {"base": noisy(1.0, 3), "same": noisy(1.0, 7)},
        {"base": steady(1.0), "slow": steady(2.0)},
        {"base": [1.0, 2.0], "few": [0.5, 1.0]},  # too few rounds: open intervals
    ],
)
def test_a_verdict_survives_json(times: dict[str, list[float]]) -> None:
    verdict = judge(times, not_slower=["absent"])
    text = json.dumps(verdict.to_dict(), allow_nan=False)
    assert Verdict.from_dict(json.loads(text)) == verdict


@pytest.mark.parametrize(
    "interval", [Interval(-inf, 1.5, inf), Interval(0.0, 1.5, inf), Interval(1.0, 1.5, 2.0)]
)
def test_open_ends_survive_json(interval: Interval) -> None:
    verdict = Verdict(Judgement.TIE, "base", "its name", "base", 1.0, 1.0, interval, ("a", "base"), 3, "why")
    values = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert values["speedup"]["high"] == (None if interval.high == inf else interval.high)
    assert Verdict.from_dict(values) == verdict


def test_too_few_rounds_leave_the_speedup_open() -> None:
    speedup = judge({"base": [1.0, 2.0], "few": [0.5, 1.0]}).speedup
    assert (speedup.low, speedup.mid, speedup.high) == (0.0, 1.0, inf)


# ---- what must change nothing ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_drift_that_all_rounds_share_changes_no_verdict(seed: int) -> None:
    rng = random.Random(seed)
    true = {"base": 1.0, "a": rng.uniform(0.9, 1.1), "b": rng.uniform(0.9, 1.1)}
    times = {name: [t * rng.lognormvariate(0, 0.005) for _ in range(30)] for name, t in true.items()}
    drift = [2.0 ** rng.randint(-3, 3) for _ in range(30)]  # powers of two: no rounding
    drifted = {name: [t * d for t, d in zip(values, drift, strict=True)] for name, values in times.items()}
    calm, moved = judge(times), judge(drifted)
    for name in ("judgement", "winner", "speedup", "tie_set", "reason", "rounds"):
        assert getattr(moved, name) == getattr(calm, name)


def test_drift_larger_than_the_gain_does_not_hide_it() -> None:
    warming = [1 + 0.05 * i for i in range(ROUNDS)]
    times = {"base": warming, "fast": [0.96 * w for w in warming]}
    assert judge(times).judgement is Judgement.WIN
    # The same values with their rounds mixed up show nothing: it is the pairing that finds the gain.
    mixed = {"base": warming, "fast": [0.96 * warming[(i * 7) % ROUNDS] for i in range(ROUNDS)]}
    assert judge(mixed).judgement is Judgement.TIE


@given(
    values=st.lists(st.lists(st.integers(900, 1100), min_size=3, max_size=3), min_size=12, max_size=24),
    exponent=st.integers(-40, 40),
)
def test_the_unit_of_time_changes_nothing_but_seconds(values: list[list[int]], exponent: int) -> None:
    scale = 2.0**exponent
    columns = list(zip(*values, strict=True))
    times = {
        name: [float(v) for v in column] for name, column in zip(("base", "a", "b"), columns, strict=True)
    }
    scaled = {name: [v * scale for v in column] for name, column in times.items()}
    plain, other = judge(times).to_dict(), judge(scaled).to_dict()
    for name in ("seconds", "baseline_seconds"):
        assert other.pop(name) == plain.pop(name) * scale
    assert other == plain


@given(
    values=st.lists(st.lists(st.integers(900, 1100), min_size=4, max_size=4), min_size=8, max_size=30),
    preference=st.permutations(["a", "b", "c"]),
    names=st.permutations(["base", "a", "b", "c"]),
    incumbent=st.sampled_from([None, "base", "a"]),
)
@example(  # the default is slower by more than a tie, and by less than the margin
    [[905, 900, 900, 900]] * 5 + [[933, 900, 900, 900]] * 5, ["a", "b", "c"], ["base", "a", "b", "c"], None
)
@example(  # so is the incumbent
    [[1100, 910, 900, 900]] * 12, ["a", "b", "c"], ["base", "a", "b", "c"], "a"
)
def test_what_holds_of_every_verdict(
    values: list[list[int]], preference: list[str], names: list[str], incumbent: str | None
) -> None:
    columns = zip(*values, strict=True)
    times = {
        name: [float(v) for v in column]
        for name, column in zip(("base", "a", "b", "c"), columns, strict=True)
    }
    order = {name: (name != incumbent, place) for place, name in enumerate(preference)}
    verdict = judge(times, preference=order, incumbent=incumbent)
    assert verdict == judge({name: times[name] for name in names}, preference=order, incumbent=incumbent)
    assert verdict.winner in verdict.tie_set
    confidence = 1 - (1 - RULE.confidence) / 3
    won = paired(times[verdict.winner], times["base"], confidence)
    assert (verdict.winner == "base") == (verdict.judgement is not Judgement.WIN)
    told = "candidates that tie" in verdict.reason, "it won before and stays" in verdict.reason
    assert (verdict.tied > 1) == any(told)
    assert not all(told)
    assert verdict.tied <= len(verdict.tie_set)
    if verdict.judgement is Judgement.WIN:
        assert won.high < 1
        least = 0.5 if verdict.winner == incumbent else 1.5 if incumbent == "base" else 1.0
        assert won.mid <= 1 - least * RULE.margin
        most = 1.5 if verdict.winner == incumbent else 0.25
        behind = paired(times[verdict.winner], times[verdict.fastest], confidence)
        assert behind.mid <= 1 + most * RULE.margin
    for name, column in times.items():
        ratio = paired(column, times[verdict.fastest], confidence)
        slower = name != verdict.fastest and ratio.low > 1 + 0.25 * RULE.margin
        kept = name == verdict.winner == incumbent  # a place is kept beyond a tie
        assert (name in verdict.tie_set) == (kept or not slower)


def test_false_wins_are_rarer_than_the_confidence_allows() -> None:
    rng, wins, finals = random.Random(5), 0, 400
    rule = DecisionRule(margin=0.0, confidence=0.9)
    for _ in range(finals):
        times = {name: [rng.lognormvariate(0, 0.3) for _ in range(15)] for name in ("base", "a", "b", "c")}
        wins += judge(times, rule).judgement is Judgement.WIN
    # A win is one side of a 10% error: 5% expected at most, and 5 sigma of chance.
    assert wins / finals < 0.05 + 5 * (0.05 * 0.95 / finals) ** 0.5
    assert wins > 0  # the rule does take chances: the simulation is no empty one


# ---- export targets ----------------------------------------------------------------------------


def some(values: Sequence[float], rounds: Sequence[int]) -> dict[int, float]:
    """The values of some rounds."""
    return {number: values[number] for number in rounds}


EVEN = range(0, ROUNDS, 2)
TIMES = {"base": noisy(1.0, 3), "ours": noisy(0.5, 7), "lib": noisy(0.8, 11), "other": noisy(0.81, 13)}


def test_a_target_has_the_verdict_of_its_best_candidate_from_the_same_rounds() -> None:
    verdict = judge(TIMES, targets={"library": {"lib", "other"}, "any": {"ours", "lib"}, "none": {"gone"}})
    assert set(verdict.targets) == {"library", "any"}
    library, whole = verdict.targets["library"], verdict.targets["any"]
    assert (library.judgement, library.solution) == (Judgement.WIN, "lib")
    assert library.speedup.low < 1.25 < library.speedup.high
    assert (library.rounds, library.proven) == (ROUNDS, False)
    assert library.baseline_seconds == verdict.baseline_seconds
    assert (whole.judgement, whole.solution, whole.speedup) == (Judgement.WIN, "ours", verdict.speedup)


def test_a_target_adds_no_candidate_to_the_decision() -> None:
    plain, with_targets = judge(TIMES), judge(TIMES, targets={"library": {"lib"}})
    assert {**plain.to_dict(), "targets": None} == {**with_targets.to_dict(), "targets": None}
    assert plain.targets == {}


@pytest.mark.parametrize(
    ("ratio", "judgement", "reason"),
    [
        (0.9, Judgement.WIN, "more than the margin"),
        (0.985, Judgement.TIE, "less than the margin"),
        (1.0, Judgement.TIE, "within the noise"),
        (1.2, Judgement.LOSS, "shown slower than the baseline"),
    ],
)
def test_a_target_wins_ties_or_loses_whatever_the_winner_does(
    ratio: float, judgement: Judgement, reason: str
) -> None:
    times = {**TIMES, "lib": [value * ratio for value in TIMES["base"]]}
    verdict = judge(times, targets={"library": {"lib"}})
    assert (verdict.judgement, verdict.winner) == (Judgement.WIN, "ours")
    target = verdict.targets["library"]
    assert (target.judgement, target.solution) == (judgement, "lib")
    assert reason in target.reason


def test_a_target_loses_only_if_all_its_candidates_do() -> None:
    times = {"base": noisy(1.0, 3), "slow": noisy(1.5, 7), "level": noisy(1.001, 11)}
    both = judge(times, targets={"library": {"slow", "level"}}).targets["library"]
    assert (both.judgement, both.solution) == (Judgement.TIE, "level")
    one = judge(times, targets={"library": {"slow"}}).targets["library"]
    assert one.judgement is Judgement.LOSS


def test_a_reserved_candidate_is_compared_within_its_own_rounds() -> None:
    """A drift that makes the odd rounds twice as slow cancels out."""
    drift = [1.0 if number % 2 == 0 else 2.0 for number in range(ROUNDS)]
    base = [value * by for value, by in zip(TIMES["base"], drift, strict=True)]
    ours = [value * by for value, by in zip(TIMES["ours"], drift, strict=True)]
    reserved = {"lib": some(TIMES["lib"], EVEN)}
    verdict = judge({"base": base, "ours": ours}, reserved=reserved, targets={"library": {"lib"}})
    target = verdict.targets["library"]
    assert (target.judgement, target.rounds) == (Judgement.WIN, ROUNDS // 2)
    assert target.speedup.mid == pytest.approx(1.25, rel=3 * WOBBLE)
    assert target.baseline_seconds == pytest.approx(1.0, rel=WOBBLE)
    assert verdict.winner == "ours"


def test_reserved_candidates_share_the_confidence() -> None:
    times = {name: TIMES[name] for name in ("base", "ours")}
    reserved = {f"lib{i}": some(TIMES["lib"], EVEN) for i in range(7)}
    alone, among = judge(times), judge(times, reserved=reserved)
    expected = paired(TIMES["ours"], TIMES["base"], RULE.shared(8))
    assert (1 / among.speedup.high, 1 / among.speedup.low) == pytest.approx((expected.low, expected.high))
    assert among.speedup.low < alone.speedup.low
    assert judge(times, reserved={"unsampled": {}}) == alone, "one without a sample is no comparison"


def test_too_few_rounds_of_a_reserved_candidate_decide_nothing() -> None:
    reserved = {"lib": some(TIMES["lib"], range(5))}
    verdict = judge(
        {name: TIMES[name] for name in ("base", "ours")}, reserved=reserved, targets={"library": {"lib"}}
    )
    target = verdict.targets["library"]
    assert target.judgement is Judgement.TIE
    assert target.reason == "too few rounds fitted the budget to decide: 5 of 9"
    assert target.speedup.low == 0.0
    assert target.speedup.high == inf
    assert verdict.tie_set == ("ours",)


def test_a_reserved_candidate_wins_where_no_finalist_does() -> None:
    times = {"base": noisy(1.0, 3), "level": noisy(1.0, 7)}
    reserved = {"lib": some(TIMES["lib"], EVEN)}
    verdict = judge(times, reserved=reserved, targets={"library": {"lib"}})
    assert (verdict.judgement, verdict.winner, verdict.rounds) == (Judgement.WIN, "lib", ROUNDS // 2)
    assert verdict.targets["library"].speedup == verdict.speedup


def test_a_reserved_candidate_that_is_not_shown_slower_makes_a_tie_of_a_loss() -> None:
    times = {"base": noisy(1.0, 3), "slow": noisy(1.5, 7)}
    level = {"lib": some(noisy(1.001, 11), EVEN)}
    assert judge(times, reserved=level).judgement is Judgement.TIE
    slow = {"lib": some(noisy(1.4, 11), EVEN)}
    assert judge(times, reserved=slow).judgement is Judgement.LOSS
    unknown = {"lib": some(noisy(1.001, 11), range(3))}
    assert judge(times, reserved=unknown).judgement is Judgement.LOSS, "it was out of the final before"


def test_two_reserved_candidates_of_other_rounds_are_compared_through_the_baseline() -> None:
    half, rest = range(ROUNDS // 2), range(ROUNDS // 2, ROUNDS)
    reserved = {"lib": some(TIMES["lib"], half), "other": some(noisy(0.9, 13), rest)}
    verdict = judge({"base": TIMES["base"], "ours": TIMES["ours"]}, reserved=reserved,
                    targets={"library": {"lib", "other"}})  # fmt: skip
    assert verdict.targets["library"].solution == "lib"


def test_targets_survive_their_plain_form_and_old_verdicts_have_none() -> None:
    reserved = {"few": some(TIMES["lib"], range(3))}
    verdict = judge(TIMES, reserved=reserved, targets={"library": {"lib"}, "few": {"few"}})
    plain = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert plain["targets"]["few"]["speedup"]["high"] is None
    assert Verdict.from_dict(plain) == verdict
    del plain["targets"]
    assert Verdict.from_dict(plain) == Verdict(**{**vars(verdict), "targets": {}})


def test_a_final_without_a_gain_rarely_gives_a_target_a_win() -> None:
    """A clone of the baseline in its target, with others beside it, on noise: at most 1% are false."""
    rng, false = random.Random(5), 0
    for _ in range(1000):
        times = {name: [rng.lognormvariate(0, 0.05) for _ in range(40)] for name in ("base", "a", "b")}
        reserved = {"lib": {i: rng.lognormvariate(0, 0.05) for i in range(0, 40, 2)}}
        targets = judge(times, reserved=reserved, targets={"x": {"a"}, "y": {"lib"}}).targets
        false += any(target.judgement is Judgement.WIN for target in targets.values())
    assert false <= 10
