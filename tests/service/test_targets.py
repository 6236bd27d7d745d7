"""Export targets from a session to a file: judged, stored and exported, or derived from an older final."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, delete, select, update

from backends.environment import Environment
from backends.export_targets import targets_of
from backends.problem import GemmProblem, from_linear
from backends.protocol import Baseline
from backends.solution import Solution
from db import exported, models
from db.best import rebuild_best
from db.engine import reading, writing
from db.values import table
from service import exports
from service.store import DirectStore
from service.targets import derive_targets
from tests.service.formats.made import ATTRIBUTES, H200
from tests.tuners.recorded import RecordedRunner
from tuners.budget import Budget
from tuners.decide import Verdict
from tuners.session import Session
from tuners.session_store import Result, SessionSpec
from tuners.space import Space
from tuners.tuning_settings import TuningSettings

CPU = Environment("cpu", "x86_64", "Recorded", 2, 2**34, "CPU-1", libraries={"blas": "openblas 0.3.31"})
#: Per device: the baseline, a kernel of ours, and two solutions of a library. The names are the runner's.
TORCH = Solution("torch", 1, {"name": "base"}, "2.15.0+cu132")
KERNEL = Solution("tile-wgmma", 1, {"name": "ours"})
ALGORITHMS = tuple(
    Solution("cublaslt", 1, {**ATTRIBUTES, "algo_id": 60 + i}, "130200", workspace_bytes=2**19)
    for i in (0, 1)
)
NUMPY = Solution("openblas", 1, {"name": "base", "threads": 2}, "openblas 0.3.31")
PACKED = Solution("packed", 1, {"name": "ours", "threads": 2})
THREADS = tuple(
    Solution("openblas", 1, {"name": f"lib{i}", "threads": 1, "routine": f"r{i}"}, "openblas 0.3.31")
    for i in (0, 1)
)


class Recorded(RecordedRunner):
    """A recorded runner of a device. Solutions whose parameters are a library's own go by their number."""

    def __init__(self, environment: Environment, speed: Mapping[str, float]) -> None:
        rng = random.Random(4)
        super().__init__([1e-3 * rng.gauss(1.0, 0.004) for _ in range(5000)], speed=speed)
        self.environment = environment

    def name_of(self, candidate: Solution) -> str:
        name = candidate.parameters.get("name") or f"lib{int(candidate.parameters['algo_id'] or 0) - 60}"
        return str(name)


def tuned(
    engine: Engine,
    environment: Environment,
    problem: GemmProblem,
    solutions: Sequence[Solution],
    speed: Mapping[str, float],
    judged: bool = True,
) -> Verdict:
    """A session in the database, as a command stores it. Not `judged`: as one stored it before targets."""
    base, *others = solutions
    runner, settings = Recorded(environment, speed), TuningSettings(budget=Budget(20))
    session = Session(
        runner, problem, settings, clock=runner.clock,
        space=Space((Baseline("the default", base),), tuple(others), ()),
        targets=targets_of(environment.vendor) if judged else (),
    )  # fmt: skip
    store = DirectStore(engine)
    store.start(SessionSpec(problem, environment, settings))
    for outcome in session.run():
        store.add(outcome)
    assert session.verdict is not None
    store.finish(Result(problem, session.verdict))
    if not judged:
        as_before_targets(engine, problem)
    return session.verdict


def as_before_targets(engine: Engine, problem: GemmProblem) -> None:
    """Takes from the problem's verdicts what older versions did not store."""
    verdict = table(models.Verdict)
    with writing(engine) as connection:
        rows = connection.execute(select(verdict.c.number, verdict.c.content, verdict.c.problem_id)).all()
        for number, content, problem_id in rows:
            if problem_id == problem.id:
                plain = {name: value for name, value in content.items() if name != "targets"}
                connection.execute(update(verdict).where(verdict.c.number == number).values(content=plain))
                target = table(models.TargetVerdict)
                connection.execute(delete(target).where(target.c.verdict_number == number))


def file_of(
    engine: Engine, name: str, environment: Environment, target: str | None = None, **validators: str
) -> tuple[str, exports.Export]:
    """An export's text, and the export."""
    policy = TuningSettings().policy.id
    chosen = exports.Selection(environment.device_class, policy, target=target, validators=validators)
    made = exports.open_export(engine, name, chosen)
    return "".join(made.pieces), made


def targets_in(engine: Engine, problem: GemmProblem) -> dict[str, Mapping[str, Any]]:
    """The stored target verdicts that the problem's best row shows."""
    best = table(models.Best)
    with reading(engine) as connection:
        query = select(best.c.targets_verdict_number).where(best.c.problem_id == problem.id)
        number = connection.execute(query).scalar_one()
        rows = exported.target_rows(connection, [] if number is None else [number])
    return {row["target"]: row for found in rows.values() for row in found}


def test_a_library_row_is_exported_where_a_kernel_of_ours_won_on_a_gpu(engine: Engine) -> None:
    problem = from_linear(16, 4096, 4096, "bf16")
    speed = {"ours": 0.5, "lib0": 0.8, "lib1": 0.9}
    verdict = tuned(engine, H200, problem, (TORCH, KERNEL, *ALGORITHMS), speed)
    assert verdict.winner == KERNEL.id
    text, made = file_of(engine, "tunableop", H200, "torch-2.15+cuda")
    (line,) = [line for line in text.splitlines() if line.startswith("Gemm")]
    assert "Gemm_Cublaslt_id_60_" in line
    target = verdict.targets["cublaslt-1mib"]
    assert float(line.rpartition(",")[2]) == pytest.approx(target.seconds * 1e3, rel=1e-5)
    gain = made.report.gain()
    assert gain is not None
    assert target.speedup.mid == pytest.approx(1.25, rel=0.01)
    assert gain["geometric_mean"] == pytest.approx(target.speedup.mid)
    assert gain["with_bundle"] == pytest.approx(verdict.speedup.mid)
    assert made.report.one_seed == 0


def test_a_library_row_is_exported_where_a_kernel_of_ours_won_on_a_cpu(engine: Engine) -> None:
    problem = from_linear(16, 256, 256, "fp32")
    speed = {"ours": 0.5, "lib0": 0.9, "lib1": 0.8}
    verdict = tuned(engine, CPU, problem, (NUMPY, PACKED, *THREADS), speed)
    assert verdict.winner == PACKED.id
    for target, solution, other in (
        ("openblas", THREADS[1], PACKED),
        ("bundle", PACKED, THREADS[1]),
        (None, PACKED, THREADS[1]),
    ):
        text, made = file_of(engine, "c-header", CPU, target)
        assert made.report.written == 1
        assert solution.id in text
        assert other.id not in text


def test_a_target_that_ties_is_left_out_and_said(engine: Engine) -> None:
    problem = from_linear(16, 4096, 4096, "bf16")
    tuned(engine, H200, problem, (TORCH, KERNEL, *ALGORITHMS), {"ours": 0.5, "lib0": 1.0, "lib1": 1.01})
    _, made = file_of(engine, "tunableop", H200, "torch-2.15+cuda")
    ((reason, count),) = made.report.omitted.items()
    assert (made.report.written, count, made.report.tune_again) == (0, 1, 0)
    assert reason.startswith("its winner has no name there; of the best that has one: TIE")


def test_an_older_session_is_tuned_again_or_derived_from_its_final(engine: Engine) -> None:
    """The library's algorithms were finalists of the first problem, and far from the final of the second."""
    first, second = (from_linear(m, 4096, 4096, "bf16") for m in (16, 32))
    everybody = (TORCH, KERNEL, *ALGORITHMS)
    tuned(engine, H200, first, everybody, {"ours": 0.85, "lib0": 0.862, "lib1": 0.866}, judged=False)
    tuned(engine, H200, second, everybody, {"ours": 0.4, "lib0": 0.8, "lib1": 0.9}, judged=False)
    with writing(engine) as connection:
        rebuild_best(connection)
    text, made = file_of(engine, "tunableop", H200, "torch-2.15+cuda")
    assert (made.report.written, made.report.tune_again) == (0, 2)
    with writing(engine) as connection:
        assert rebuild_best(connection, derive_targets) == 2
    text, made = file_of(engine, "tunableop", H200, "torch-2.15+cuda")
    (line,) = [line for line in text.splitlines() if line.startswith("Gemm")]
    assert "tn_4096_16_4096" in line
    assert "Gemm_Cublaslt_id_60_" in line
    report = made.report
    assert (report.written, report.tune_again, report.one_seed) == (1, 1, 1)
    derived = targets_in(engine, first)
    assert set(derived) == {"cublaslt", "cublaslt-1mib", "bundle"}
    assert (derived["cublaslt"]["solution_id"], derived["cublaslt"]["proven"]) == (ALGORITHMS[0].id, False)
    assert (derived["bundle"]["solution_id"], derived["bundle"]["proven"]) == (KERNEL.id, True)
    assert set(targets_in(engine, second)) == {"bundle"}


def test_candidates_that_left_a_final_too_early_to_decide_are_tuned_again(engine: Engine) -> None:
    problem, everybody = from_linear(16, 4096, 4096, "bf16"), (TORCH, KERNEL, *ALGORITHMS)
    tuned(engine, H200, problem, everybody, {"ours": 0.8, "lib0": 0.85, "lib1": 0.9}, judged=False)
    measurement = table(models.Measurement)
    with writing(engine) as connection:
        query = select(measurement.c.samples).where(
            measurement.c.phase == "final", measurement.c.status == "pruned"
        )
        assert {len(samples) for samples in connection.scalars(query)} == {8}, "both algorithms"
        rebuild_best(connection, derive_targets)
    assert set(targets_in(engine, problem)) == {"bundle"}
    _, made = file_of(engine, "tunableop", H200, "torch-2.15+cuda")
    assert (made.report.written, made.report.tune_again) == (0, 1)


def test_what_is_derived_is_what_a_session_decides(engine: Engine) -> None:
    """Where every candidate of the targets is a finalist, but for the proof."""
    problem, everybody = from_linear(16, 4096, 4096, "bf16"), (TORCH, KERNEL, *ALGORITHMS)
    speed = {"ours": 0.85, "lib0": 0.862, "lib1": 0.866}
    decided = tuned(engine, H200, problem, everybody, speed)
    stored = {name: dict(row) for name, row in targets_in(engine, problem).items()}
    assert stored["cublaslt"]["mid"] == decided.targets["cublaslt"].speedup.mid
    with writing(engine) as connection:
        rebuild_best(connection, derive_targets)
    assert {name: dict(row) for name, row in targets_in(engine, problem).items()} == stored
    as_before_targets(engine, problem)
    with writing(engine) as connection:
        rebuild_best(connection, derive_targets)
    derived = {name: dict(row) for name, row in targets_in(engine, problem).items()}
    for row in (*stored.values(), *derived.values()):
        row.pop("proven")
    assert derived == stored


def test_a_rule_that_cannot_be_read_decides_nothing(engine: Engine) -> None:
    problem = from_linear(16, 4096, 4096, "bf16")
    everybody = (TORCH, KERNEL, *ALGORITHMS)
    tuned(engine, H200, problem, everybody, {"ours": 0.85, "lib0": 0.862, "lib1": 0.866}, judged=False)
    session = table(models.Session)
    for rule in ({"margin": "wide"}, {"margin": 5}):
        with writing(engine) as connection:
            connection.execute(update(session).values(request={"rule": rule}))
            rebuild_best(connection, derive_targets)
        assert targets_in(engine, problem) == {}
    with writing(engine) as connection:
        connection.execute(update(session).values(request={"rule": {"margin": 0.9, "unknown": 1}}))
        rebuild_best(connection, derive_targets)
    assert {row["judgement"] for row in targets_in(engine, problem).values()} == {"TIE"}, (
        "the session's margin"
    )
