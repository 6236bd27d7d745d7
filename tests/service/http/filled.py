"""A database with plausible contents: sessions as a worker stores them, without measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

from backends.environment import Environment
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.registry import backend
from backends.solution import Solution
from backends.wire import problem_from_wire
from db import sessions, workers
from db.engine import open_engine, writing
from service.requests import request_content
from service.settings import Settings
from service.startup import upgrade
from tuners.budget import Budget, Search
from tuners.decide import DecisionRule, decide
from tuners.policy import MeasurementPolicy

ENVIRONMENT = Environment(
    vendor="cpu", arch="x86_64", product="AMD EPYC 9B14", units=2, memory_bytes=1 << 34, uuid="CPU-1",
    partition="x86-64-v4+avx512_bf16+avx512_vnni", driver="Linux 6", runtime="Python 3.11",
    libraries={"blas": "openblas 0.3.31", "compiler": "c++ 12"},
)  # fmt: skip
CLASS = str(ENVIRONMENT.device_class)
GPU = Environment(
    vendor="cuda", arch="sm_90", product="NVIDIA H200", units=132, memory_bytes=1 << 37, uuid="GPU-1",
    driver="570.1", runtime="12.8", libraries={"cublaslt": "12.8.4"},
)  # fmt: skip
OTHER_CPU = Environment(
    vendor="cpu", arch="aarch64", product="Neoverse V2", units=4, memory_bytes=1 << 34, uuid="CPU-2"
)
POLICY = MeasurementPolicy()
BASELINE = Solution("openblas", 1, {"threads": 2}, "openblas 0.3.31", 0, None)
HUNGRY = 1 << 20  # bytes of workspace of the fastest candidate


def problem(m: int = 16, n: int = 256, k: int = 512, **fields: Any) -> GemmProblem:
    """A problem as people write it; fp32 unless told."""
    return problem_from_wire({"m": m, "n": n, "k": k, **fields})


def new_database(folder: Path, **settings: Any) -> Settings:
    """Settings of a new SQLite database with the current schema."""
    made = Settings(
        database_url=f"sqlite:///{folder / 'gemmtune.sqlite'}", cache_dir=folder / "cache", **settings
    )
    upgrade(made)
    return made


def register(engine: Engine, *environments: Environment) -> None:
    """A worker of each environment's device."""
    with writing(engine) as connection:
        for number, environment in enumerate(environments):
            workers.register(connection, f"worker-{environment.uuid}", "host", 100 + number, environment)


def candidates(asked: GemmProblem, environment: Environment = ENVIRONMENT) -> list[Solution]:
    """Three real candidates; the first needs a workspace and is not known to be deterministic, the second is
    of another family than the third."""
    families = backend("cpu").families()
    packed = [s for s, _ in zip(families["packed"].solutions(asked, environment), range(3), strict=False)]
    stream = next(iter(families["stream"].solutions(asked, environment)), packed[2])
    return [replace(packed[0], workspace_bytes=HUNGRY, deterministic=None), stream, packed[1]]


def outcomes_of(
    asked: GemmProblem, environment: Environment, scale: float, failing: bool = True
) -> list[Outcome]:
    """Screenings, a final of three, one wrong result, and the winner's proof."""
    solutions = [BASELINE, *candidates(asked, environment)]
    seconds = [scale * factor for factor in (1.0, 0.5, 0.6, 0.8)]
    screens = [
        Outcome(s, Phase.SCREEN, Status.OK, tuple(t * (1 + 0.001 * i) for i in range(3)))
        for s, t in zip(solutions, seconds, strict=True)
    ]
    if failing:
        wrong = Solution("packed", 1, {"threads": 99, "kind": "wrong"}, None, 0, True)
        screens.append(Outcome(wrong, Phase.SCREEN, Status.WRONG_RESULT, (), {"element": [0, 1]}))
    finals = [
        Outcome(s, Phase.FINAL, Status.OK, tuple(t * (1 + 0.001 * i) for i in range(20)))
        for s, t in zip(solutions, seconds, strict=True)
    ]
    proof = Outcome(solutions[1], Phase.PROOF, Status.OK, (), {"seeds": 5})
    return [*screens, *finals, proof]


def result_of(asked: GemmProblem, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """As a campaign makes it."""
    times = {o.solution.id: list(o.samples) for o in outcomes if o.phase is Phase.FINAL}
    ours = {"bundle": times.keys() - {BASELINE.id}}
    verdict = decide(times, BASELINE.id, "numpy", DecisionRule(), targets=ours)
    return {
        "problem": asked.to_dict(),
        "problem_id": asked.id,
        "verdict": verdict.to_dict(),
        "error": None,
        "roofline_share": 0.5,
        "binds": "memory",
        "counts": {"space": 5},
        "notes": ["a note"],
    }


def measured(
    connection: Connection,
    asked: GemmProblem,
    environment: Environment = ENVIRONMENT,
    policy: MeasurementPolicy = POLICY,
    scale: float = 1e-3,
    job_id: str | None = None,
    like: GemmProblem | None = None,
) -> str:
    """Stores a whole session with a WIN; its id. Its candidates are those of the problem, or of one `like`
    it."""
    start = sessions.SessionStart(
        asked, environment, policy.id, policy.to_dict(),
        request_content(Budget(), Search(), DecisionRule()), job_id=job_id, origin="filled",
    )  # fmt: skip
    session_id = sessions.begin_session(connection, start)
    outcomes = outcomes_of(like or asked, environment, scale)
    sessions.append_outcomes(connection, session_id, outcomes, 1, Counter())
    sessions.end_session(connection, start, result_of(asked, outcomes))
    return session_id


def fill(engine: Engine, problems: Sequence[GemmProblem], **options: Any) -> None:
    """A worker, and a session a problem."""
    register(engine, ENVIRONMENT)
    with writing(engine) as connection:
        for asked in problems:
            measured(connection, asked, **options)


def filled_database(folder: Path, problems: Sequence[GemmProblem], **settings: Any) -> Settings:
    """A new database with these problems measured."""
    made = new_database(folder, **settings)
    engine = open_engine(made.database_url)
    try:
        fill(engine, problems)
    finally:
        engine.dispose()
    return made
