"""Sessions on recorded noise judge the best candidate of each export target beside the winner."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import pytest

from backends.export_targets import EXPORT_TARGETS, ExportTarget
from backends.outcome import Outcome, Phase, Status
from backends.problem import from_mm
from backends.protocol import Baseline
from backends.solution import Solution
from tests.tuners.recorded import RecordedRunner, recorded_noise
from tuners.budget import Budget
from tuners.decide import Judgement
from tuners.session import Session
from tuners.space import Space
from tuners.tuning_settings import TuningSettings

TARGETS = tuple(EXPORT_TARGETS[name] for name in ("cublaslt", "cublaslt-1mib", "inductor", "bundle"))
BASE = Solution("torch", 1, {"name": "base"})
OURS = tuple(Solution("tile-wgmma", 1, {"name": f"ours{i}"}) for i in range(12))
LIBRARY = tuple(Solution("cublaslt", 1, {"name": f"lib{i}"}, "13") for i in range(4))
FAST = {str(one.parameters["name"]): 0.5 + i / 1000 for i, one in enumerate(OURS)}


def quiet(seconds: float = 1e-3, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [seconds * rng.gauss(1.0, 0.004) for _ in range(5000)]


def session(
    runner: RecordedRunner,
    candidates: Sequence[Solution] = (*OURS, *LIBRARY),
    budget: float = 20.0,
    targets: Sequence[ExportTarget] = TARGETS,
) -> Session:
    space = Space((Baseline("recorded default", BASE),), tuple(candidates), ())
    settings = TuningSettings(budget=Budget(budget))
    return Session(runner, from_mm(64, 64, 64), settings, clock=runner.clock, space=space, targets=targets)


def finals(outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    return {str(o.solution.parameters["name"]): o for o in outcomes if o.phase is Phase.FINAL}


def test_a_library_far_behind_our_winner_has_its_own_verdict() -> None:
    """It is 60% slower than the winner, so it is not near enough for the race, and 20% faster than torch."""
    runner = RecordedRunner(quiet(), speed=FAST | {"lib0": 0.9, "lib1": 0.8, "lib2": 0.95, "lib3": 1.0})
    run = session(runner)
    outcomes = list(run.run())
    verdict = run.verdict
    assert verdict is not None
    assert (verdict.judgement, verdict.winner) == (Judgement.WIN, OURS[0].id)
    library, bundle = verdict.targets["cublaslt"], verdict.targets["bundle"]
    assert (library.judgement, library.solution) == (Judgement.WIN, LIBRARY[1].id)
    assert library.speedup.mid == pytest.approx(1.25, rel=0.01)
    assert library.proven
    assert verdict.targets["cublaslt-1mib"] == library
    assert (bundle.solution, bundle.speedup, bundle.proven) == (verdict.winner, verdict.speedup, True)
    assert "inductor" not in verdict.targets, "no candidate is of its families"
    assert verdict.tie_set, "the winner's"
    assert not {one.id for one in LIBRARY} & set(verdict.tie_set)
    proofs = [str(o.solution.parameters["name"]) for o in outcomes if o.phase is Phase.PROOF]
    assert proofs == ["ours0", "lib1"]
    lib = finals(outcomes)["lib1"]
    assert len(lib.evidence["in_rounds"]) == len(lib.samples) == library.rounds


def test_reserved_candidates_take_at_most_a_fifth_of_the_finals_time() -> None:
    for few in (1, 3, 12):
        runner = RecordedRunner(quiet(), speed=FAST | dict.fromkeys(("lib0", "lib1", "lib2", "lib3"), 0.9))
        run = session(runner, (*OURS[:few], *LIBRARY))
        taken = {"lib": 0.0, "all": 0.0}
        outcomes = list(run.run())
        for name, outcome in finals(outcomes).items():
            taken["all"] += sum(outcome.samples)
            taken["lib"] += sum(outcome.samples) if name.startswith("lib") else 0.0
        assert 0 < taken["lib"] <= 0.2 * taken["all"] * 1.0001, few
        assert run.verdict is not None
        assert run.verdict.targets["cublaslt"].judgement is Judgement.WIN, few


@pytest.mark.parametrize(
    ("speed", "judgement"), [(0.9, Judgement.WIN), (1.0, Judgement.TIE), (1.2, Judgement.LOSS)]
)
def test_a_target_wins_ties_or_loses(speed: float, judgement: Judgement) -> None:
    runner = RecordedRunner(quiet(), speed=FAST | {"lib0": speed})
    run = session(runner, (*OURS, LIBRARY[0]))
    outcomes = list(run.run())
    assert run.verdict is not None
    target = run.verdict.targets["cublaslt"]
    assert (target.judgement, target.solution) == (judgement, LIBRARY[0].id)
    proofs = [o.solution.id for o in outcomes if o.phase is Phase.PROOF]
    assert proofs == [OURS[0].id, *([LIBRARY[0].id] if judgement is Judgement.WIN else [])]
    assert target.proven == (judgement is Judgement.WIN)


def test_the_best_of_a_target_is_chosen_in_heats_and_not_by_one_screening() -> None:
    """lib0's screening is lucky; in the heats lib1 is 5% faster."""

    class Lucky(RecordedRunner):
        def screen(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome]:
            found = super().screen(solutions, best)
            return [
                replace(one, samples=tuple(s * 0.9 for s in one.samples))
                if one.solution == LIBRARY[0]
                else one
                for one in found
            ]

    run = session(Lucky(quiet(), speed=FAST | {"lib0": 0.9, "lib1": 0.85, "lib2": 0.95, "lib3": 1.0}))
    list(run.run())
    assert run.verdict is not None
    assert run.verdict.targets["cublaslt"].solution == LIBRARY[1].id


def test_a_workspace_limit_makes_another_candidate_the_best() -> None:
    large = replace(LIBRARY[0], workspace_bytes=2**21)
    runner = RecordedRunner(quiet(), speed=FAST | {"lib0": 0.8, "lib1": 0.9})
    run = session(runner, (*OURS, large, LIBRARY[1]))
    list(run.run())
    assert run.verdict is not None
    assert run.verdict.targets["cublaslt"].solution == large.id
    assert run.verdict.targets["cublaslt-1mib"].solution == LIBRARY[1].id


class Pruning(RecordedRunner):
    """Screens as a device does: a candidate far slower than the fastest is dropped after its first sample."""

    def screen(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome]:
        found = super().screen(solutions, best)
        return [
            replace(one, status=Status.PRUNED, samples=one.samples[:1])
            if best is not None and one.seconds is not None and one.seconds > 2 * best
            else one
            for one in found
        ]


@pytest.mark.parametrize(("speed", "judged"), [(0.9, True), (1.3, False)])
def test_a_candidate_that_screening_pruned_is_judged_if_it_may_beat_the_baseline(
    speed: float, judged: bool
) -> None:
    ours = {name: value / 2 for name, value in FAST.items()}
    run = session(Pruning(quiet(), speed=ours | {"lib0": speed}), (*OURS, LIBRARY[0]))
    outcomes = list(run.run())
    pruned = [o for o in outcomes if o.phase is Phase.SCREEN and o.status is Status.PRUNED]
    assert [o.solution.id for o in pruned] == [LIBRARY[0].id]
    assert run.verdict is not None
    assert ("cublaslt" in run.verdict.targets) == judged
    if judged:
        assert run.verdict.targets["cublaslt"].judgement is Judgement.WIN


def failing(**phases: Phase) -> Mapping[tuple[str, Phase], Status]:
    return dict.fromkeys(phases.items(), Status.WRONG_RESULT)


def test_a_target_winner_that_fails_its_proof_is_excluded_and_the_next_is_judged() -> None:
    """All are finalists: the library's tie with our kernel, which needs less workspace."""
    speed = {"ours0": 0.85, "lib0": 0.86, "lib1": 0.862}
    runner = RecordedRunner(quiet(), speed=speed, fails=failing(lib0=Phase.PROOF))
    run = session(runner, (OURS[0], *(replace(one, workspace_bytes=1) for one in LIBRARY[:2])))
    outcomes = list(run.run())
    proofs = [(str(o.solution.parameters["name"]), o.status) for o in outcomes if o.phase is Phase.PROOF]
    assert proofs == [("ours0", Status.OK), ("lib0", Status.WRONG_RESULT), ("lib1", Status.OK)]
    assert run.verdict is not None
    assert run.verdict.winner == OURS[0].id
    assert run.verdict.targets["cublaslt"].solution == LIBRARY[1].id
    assert run.verdict.targets["cublaslt"].proven
    assert run.counts.statuses["wrong_result"] == 1


def test_an_eliminated_candidate_is_judged_where_its_targets_winner_fails_its_proof() -> None:
    """lib1 left the final after 8 rounds, as slower than ours0: too few to decide among three."""
    speed = {"ours0": 0.8, "lib0": 0.85, "lib1": 0.9}
    runner = RecordedRunner(quiet(), speed=speed, fails=failing(lib0=Phase.PROOF))
    run = session(runner, (OURS[0], *LIBRARY[:2]))
    outcomes = list(run.run())
    assert finals(outcomes)["lib1"].status is Status.PRUNED
    assert run.verdict is not None
    target = run.verdict.targets["cublaslt"]
    assert (target.judgement, target.solution, target.rounds) == (Judgement.TIE, LIBRARY[1].id, 8)
    assert "too few rounds" in target.reason


def test_a_target_whose_only_candidate_fails_its_proof_has_no_verdict() -> None:
    runner = RecordedRunner(quiet(), speed=FAST | {"lib0": 0.9}, fails=failing(lib0=Phase.PROOF))
    run = session(runner, (*OURS, LIBRARY[0]))
    list(run.run())
    assert run.verdict is not None
    assert set(run.verdict.targets) == {"bundle"}
    assert "export target cublaslt: its candidates failed their proof" in run.notes


def test_a_target_whose_candidate_fails_in_the_final_has_no_verdict() -> None:
    runner = RecordedRunner(quiet(), speed=FAST | {"lib0": 0.9}, fails=failing(lib0=Phase.FINAL))
    run = session(runner, (*OURS, LIBRARY[0]))
    list(run.run())
    assert run.verdict is not None
    assert run.verdict.winner == OURS[0].id
    assert set(run.verdict.targets) == {"bundle"}


def test_after_a_failed_winner_the_targets_are_judged_in_the_next_race() -> None:
    speed = {"ours0": 0.4, "ours1": 0.5, "lib0": 0.9}
    runner = RecordedRunner(quiet(), speed=speed, fails=failing(ours0=Phase.PROOF))
    run = session(runner, (*OURS[:2], LIBRARY[0]))
    outcomes = list(run.run())
    assert [o.status for o in outcomes if o.phase is Phase.PROOF] == [
        Status.WRONG_RESULT, Status.OK, Status.OK
    ]  # fmt: skip
    assert run.verdict is not None
    assert run.verdict.winner == OURS[1].id
    assert run.verdict.targets["cublaslt"].judgement is Judgement.WIN


def test_stopped_between_the_proofs_there_is_no_verdict_and_the_replay_has_it() -> None:
    speed = FAST | {"lib0": 0.9}
    first = session(RecordedRunner(quiet(), speed=speed), (*OURS, LIBRARY[0]))
    kept = []
    for outcome in first.run():
        kept.append(outcome)
        if outcome.phase is Phase.PROOF:
            first.stop()
    assert first.stopped
    assert [o.phase for o in kept].count(Phase.PROOF) == 1, "no other proof is begun"
    assert first.verdict is None
    again = RecordedRunner(quiet(), speed=speed)
    space = Space((Baseline("recorded default", BASE),), (*OURS, LIBRARY[0]), ())
    second = Session(
        again, first.problem, first.settings, kept, clock=again.clock, space=space, targets=TARGETS
    )
    list(second.run())
    assert second.verdict is not None
    assert second.verdict.targets["cublaslt"].judgement is Judgement.WIN
    assert "screen" not in {phase for phase, _ in again.calls}


def test_targets_are_those_of_the_devices_vendor() -> None:
    run = Session(RecordedRunner(quiet()), from_mm(64, 64, 64))
    assert [target.name for target in run.targets] == ["openblas", "bundle"]


def test_a_clone_of_the_baseline_is_no_targets_win_on_recorded_noise() -> None:
    """The A/A test for a target: our winner is real, its library candidates are clones of the baseline."""
    noise = recorded_noise()
    rng = random.Random(22)
    sessions, false_wins = 200, 0
    for number in range(sessions):
        recorded = noise[sorted(noise)[number % len(noise)]]
        scale = 2e-3 / median(recorded)  # a sample of a real race takes milliseconds
        series = [value * scale for value in recorded]
        runner = RecordedRunner(series, start=rng.randrange(len(series)), speed={"ours0": 0.5})
        run = session(runner, (OURS[0], *LIBRARY[: 1 + number % 4]), targets=TARGETS[:1])
        list(run.run())
        assert run.verdict is not None
        assert run.verdict.winner == OURS[0].id
        false_wins += run.verdict.targets["cublaslt"].judgement is Judgement.WIN
    assert false_wins <= sessions * 0.01
