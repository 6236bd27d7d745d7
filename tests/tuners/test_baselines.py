"""The default stays what the user runs: a twin problem that it gets wrong is told, and no other default takes
its place unseen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from backends.errors import ContextLost, LaunchError
from backends.outcome import Outcome, Phase, Status
from backends.problem import from_mm
from backends.protocol import AbsentBaseline, Baseline
from backends.solution import Solution
from backends.traits import HOST_TRAITS
from tests.tuners.recorded import RecordedRunner, recorded_noise, solution
from tuners import evaluate
from tuners.baselines import TWIN, Fate, TriedBaseline, judged, tried, twin_text
from tuners.budget import Budget
from tuners.decide import Judgement, Verdict
from tuners.device_process import Task
from tuners.inputs import Case
from tuners.policy import MeasurementPolicy
from tuners.session import Session, SessionFailed
from tuners.space import Space
from tuners.tuning_settings import TuningSettings
from tuners.verify import Finding

PROBLEM = from_mm(64, 64, 64)
TORCH = Baseline("torch 2.13", solution("torch"), framework=True)
NUMPY = Baseline("numpy upcast", solution("numpy"))
TWIN_EVIDENCE = {"problem": "nn_131x37x259_bf16", "case": "ragged", "wrong": "NaN in the output"}
TOLD = "wrong on a twin problem: nn_131x37x259_bf16 (ragged): NaN in the output"


class Twins(RecordedRunner):
    """The named solutions get a twin problem wrong, in the phases named."""

    wrong: Mapping[str, Sequence[Phase]] = {}

    def _answer(self, candidate: Solution, phase: Phase, samples: int) -> Outcome:
        outcome = super()._answer(candidate, phase, samples)
        if phase in self.wrong.get(str(candidate.parameters["name"]), ()):
            return replace(outcome, evidence={**outcome.evidence, TWIN: TWIN_EVIDENCE})
        return outcome


def run_of(
    runner: RecordedRunner,
    baselines: Sequence[Baseline] = (TORCH, NUMPY),
    absent: Sequence[AbsentBaseline] = (),
) -> Session:
    space = Space(tuple(baselines), (solution("ours"),), (), absent=tuple(absent))
    settings = TuningSettings(budget=Budget(10))
    return Session(runner, PROBLEM, settings, clock=runner.clock, space=space)


def twins(speed: Mapping[str, float], **wrong: Sequence[Phase]) -> Twins:
    runner = Twins([1e-3], speed=speed)
    runner.wrong = wrong
    return runner


def verdict_of(run: Session) -> Verdict:
    list(run.run())
    assert run.verdict is not None
    return run.verdict


def test_a_default_that_gets_a_twin_wrong_stays_the_baseline_and_the_verdict_tells_it() -> None:
    """A kernel twice as fast as the other default, and no faster than torch, is no WIN."""
    speed = {"torch": 1.0, "numpy": 2.0, "ours": 1.01}
    verdict = verdict_of(run_of(twins(speed, torch=[Phase.SCREEN])))
    assert verdict.judgement is not Judgement.WIN
    assert verdict.baseline_name == "torch 2.13"
    first, second = verdict.baselines
    assert (first.name, first.fate, first.reason) == ("torch 2.13", Fate.BASELINE, TOLD)
    assert first.seconds == verdict.baseline_seconds
    assert (second.name, second.fate, second.reason) == ("numpy upcast", Fate.SLOWER, "")
    assert second.seconds == pytest.approx(2e-3)


def test_a_twin_that_only_the_proof_shows_is_told_too() -> None:
    verdict = verdict_of(run_of(twins({"ours": 1.5}, torch=[Phase.PROOF]), [TORCH]))
    assert verdict.winner == TORCH.solution.id, "the default stays, whatever it does on a twin"
    assert verdict.baselines[0].reason == TOLD


def test_a_default_that_is_faster_than_the_baseline_says_so() -> None:
    verdict = verdict_of(run_of(twins({"numpy": 0.5, "ours": 0.9})))
    assert (verdict.judgement, verdict.winner) == (Judgement.WIN, NUMPY.solution.id)
    assert [one.fate for one in verdict.baselines] == [Fate.BASELINE, Fate.FASTER]


def test_a_later_default_that_gets_a_twin_wrong_is_a_wrong_candidate() -> None:
    for phase in (Phase.SCREEN, Phase.PROOF):
        verdict = verdict_of(run_of(twins({"numpy": 0.5, "ours": 0.9}, numpy=[phase])))
        assert verdict.winner == solution("ours").id
        failed = verdict.baselines[1]
        assert failed.fate is Fate.FAILED
        assert "wrong" in failed.reason
        assert NUMPY.solution.id not in verdict.tie_set


@pytest.mark.parametrize("status", [Status.WRONG_RESULT, Status.CRASH, Status.OUT_OF_MEMORY, Status.ILLEGAL])
def test_a_framework_s_call_that_cannot_be_judged_leaves_no_win_over_another(status: Status) -> None:
    fails = {("torch", Phase.SCREEN): status}
    runner = RecordedRunner([1e-3], speed={"ours": 0.1}, fails=fails)
    run = run_of(runner)
    with pytest.raises(SessionFailed) as failure:
        list(run.run())
    assert run.verdict is None
    text = str(failure.value)
    assert text.startswith(f"no default to compare with for {PROBLEM.slug}: torch 2.13: {status}: planted")
    assert "numpy upcast is not what the framework runs" in text
    assert ("screen", "ours") not in runner.calls, "no time is spent on a search without a verdict"


def test_a_library_s_default_that_fails_is_told_and_the_next_one_named() -> None:
    one, other = Baseline("hipBLASLt", solution("torch")), Baseline("rocBLAS", solution("numpy"))
    runner = RecordedRunner([1e-3], speed={"ours": 0.5}, fails={("torch", Phase.SCREEN): Status.LAUNCH_ERROR})
    verdict = verdict_of(run_of(runner, [one, other]))
    assert (verdict.judgement, verdict.baseline_name) == (Judgement.WIN, "rocBLAS")
    assert [(tried.name, tried.fate) for tried in verdict.baselines] == [
        ("hipBLASLt", Fate.FAILED), ("rocBLAS", Fate.BASELINE),
    ]  # fmt: skip
    assert verdict.baselines[0].reason == "launch_error: planted"


def test_defaults_that_are_not_installed_are_listed() -> None:
    absent = [AbsentBaseline("torch", "torch is not installed")]
    verdict = verdict_of(run_of(RecordedRunner([1e-3], speed={"ours": 0.5}), [NUMPY], absent))
    assert verdict.baseline_name == "numpy upcast"
    assert verdict.baselines[1] == TriedBaseline(
        "torch", "", None, Fate.UNAVAILABLE, "torch is not installed"
    )
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict


def test_a_default_that_fails_in_the_final_is_told() -> None:
    fails = {("numpy", Phase.FINAL): Status.CRASH}
    verdict = verdict_of(run_of(RecordedRunner([1e-3], speed={"ours": 0.5}, fails=fails)))
    assert (verdict.baselines[1].fate, verdict.baselines[1].reason) == (Fate.FAILED, "failed in the final")


def test_an_unstable_default_is_judged() -> None:
    outcomes = {one.solution.id: Outcome(one.solution, Phase.SCREEN, Status.UNSTABLE, (1.0,))
                for one in (TORCH, NUMPY)}  # fmt: skip
    assert judged([TORCH, NUMPY], outcomes) == ([TORCH, NUMPY], {})


def test_records_come_in_the_order_of_the_defaults() -> None:
    records = tried(
        [TORCH, NUMPY], [AbsentBaseline("MKL", "absent")], {},
        {NUMPY.solution.id: (Fate.TIED, 2.0), TORCH.solution.id: (Fate.BASELINE, 1.0)}, {},
    )  # fmt: skip
    assert [one.name for one in records] == ["torch 2.13", "numpy upcast", "MKL"]


# ---- verifying a default -----------------------------------------------------------------------

RIGHT = Finding("", 0.1, 0.1, 1.0, True)
NAN = Finding("NaN in the output", float("nan"), float("inf"), 1.0, True)


class Process:
    """A device process whose verifier finds what `found` says of a case: a finding, or an error."""

    def __init__(self, found: Mapping[str, Finding | Exception], defaults: Sequence[Solution]) -> None:
        self._found = found
        names = frozenset(one.id for one in defaults)
        self.task = Task(PROBLEM, MeasurementPolicy(), 0, defaults=names)
        self.families = {"recorded": SimpleNamespace(supports=lambda _: True, illegal=lambda *_: None)}
        self.device = SimpleNamespace(traits=HOST_TRAITS, environment=None, condition=dict)
        self.verifier = SimpleNamespace(check=self._check)

    def load(self, *_: object) -> Any:
        return SimpleNamespace(partial_sums=1)

    def _check(self, kernel: object, case: Case, *_: object, **__: object) -> Finding:
        finding = self._found.get(case.name.split(",")[0], RIGHT)
        if isinstance(finding, Exception):
            raise finding
        return finding


CASES = [Case(PROBLEM, 0, "normal", name) for name in ("ragged", "exact")]


def evidence_of(found: Mapping[str, Finding | Exception], default: bool = True) -> dict[str, Any]:
    process: Any = Process(found, [TORCH.solution] if default else [])
    return evaluate.verify(process, TORCH.solution, {}, CASES)


@pytest.mark.parametrize("fault", [NAN, LaunchError("status 7"), RuntimeError("no such stride")])
def test_a_default_is_verified_on_the_exact_problem_after_a_twin_failed(fault: Finding | Exception) -> None:
    evidence = evidence_of({"ragged": fault})
    assert "wrong" not in evidence
    assert (evidence["checks"], evidence["exact_checks"], evidence["cases"]) == (1, 1, ["exact"])
    text = twin_text(evidence)
    assert text.startswith(f"wrong on a twin problem: {PROBLEM.slug} (ragged): ")
    assert (fault.wrong if isinstance(fault, Finding) else str(fault)) in text
    json.dumps(evidence, allow_nan=False)


def test_a_default_that_is_wrong_on_the_exact_problem_is_wrong() -> None:
    evidence = evidence_of({"exact": NAN})
    assert (evidence["wrong"], evidence["case"]) == ("NaN in the output", "exact")
    with pytest.raises(LaunchError, match="status 7"):
        evidence_of({"exact": LaunchError("status 7")})


def test_any_other_candidate_that_fails_a_twin_is_wrong() -> None:
    assert evidence_of({"ragged": NAN}, default=False)["wrong"] == "NaN in the output"
    with pytest.raises(RuntimeError):
        evidence_of({"ragged": RuntimeError("no such stride")}, default=False)


def test_a_lost_context_is_no_twin_s_failure() -> None:
    with pytest.raises(ContextLost):
        evidence_of({"ragged": ContextLost("gone")})


def test_the_recorded_noise_gives_no_false_win_over_a_default_that_gets_a_twin_wrong() -> None:
    series = next(iter(recorded_noise().values()))
    wins = 0
    for start in range(40):
        runner = Twins(series, start * 37, speed={"numpy": 2.0})
        runner.wrong = {"torch": [Phase.SCREEN]}
        wins += verdict_of(run_of(runner)).judgement is Judgement.WIN
    assert wins <= 1
