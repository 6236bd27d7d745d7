"""Fills a database as a fleet leaves it after months, for the benchmark of the pages.

Three device classes, one of them measured again after an update of its driver; several families, number
formats and lists with call counts; WIN, TIE and LOSS; verdicts with the tie sets, and measurements with the
samples and the evidence, of tunings on an H200.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update

from backends.environment import Environment
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from db import models, sessions
from db.best import best_row
from db.engine import now, writing
from db.values import insert_new, put_problems, put_solutions, table
from tests.service.formats.contract_inputs import CUBLASLT, H200, HIPBLASLT, MI300X, TORCH
from tuners.policy import MeasurementPolicy

#: Rows of one transaction.
PART = 2000
LATER = replace(H200, driver="590.11", uuid="GPU-7")
H100 = replace(H200, product="NVIDIA H100", memory_bytes=85_000_000_000, uuid="GPU-3")
#: Number formats with their shares of the problems.
FORMATS = {"bf16": 0.5, "fp16": 0.2, "fp8_e4m3": 0.15, "fp32": 0.1, "int8": 0.05}
LISTS = ("llama-3-70b.jsonl", "qwen-3-32b.jsonl", "mixtral-8x22b.csv", "gpt-oss-120b.jsonl", "train.csv")
#: Families of winners, with how often they win; torch stays where nothing is faster.
FAMILIES = {
    "tile-wgmma": 6, "skinny-ring": 4, "stream-k": 2, "gemv-persistent": 2, "triton-persistent": 1, "split-k": 1,
}  # fmt: skip
VARIANTS = 40


def problems(count: int, seed: int = 0) -> list[GemmProblem]:
    """Distinct linear layers of the formats' shares."""
    choose = random.Random(seed)
    found: dict[str, GemmProblem] = {}
    while len(found) < count:
        m = choose.choice((*range(1, 257), *range(272, 8193, 16)))
        n, k = 128 * choose.randint(4, 224), 128 * choose.randint(4, 112)
        made = from_linear(m, n, k, choose.choices(list(FORMATS), list(FORMATS.values()))[0])
        found[made.id] = made
    return list(found.values())


def candidates() -> list[Solution]:
    """Those that win or are measured, the winners' families as often as they win."""
    made = []
    for family, weight in FAMILIES.items():
        for number in range(VARIANTS * weight):
            parameters = {
                "tile_m": 64, "tile_n": 128, "stages": 4, "swap_ab": True, "cluster_m": 1, "variant": number,
            }  # fmt: skip
            made.append(Solution(family, 4, parameters))
    return [*made, CUBLASLT]


@dataclass(frozen=True)
class _Class:
    """A device's best rows. `known`: how many measurements each of its sessions has."""

    environment: Environment
    default: Solution
    policy: MeasurementPolicy
    known: int


def fill(engine: Engine, rows: int, measurements: int, policy: MeasurementPolicy) -> None:
    """Best rows of an H200 (`rows`; a quarter of them measured again with a later driver), of an H100 and an
    MI300X (a quarter as many each), and all measurements, most of them of the H200."""
    asked = problems(rows + rows // 2)
    tuned, part = asked[:rows], rows // 4
    each = max(1, measurements * 4 // (rows * 7))
    rest = max(1, (measurements - each * (rows + 3 * part)) // max(1, rows) + each)
    gpu, amd = candidates(), [HIPBLASLT]
    with writing(engine) as connection:
        put_problems(connection, asked)
        put_solutions(connection, [*gpu, *amd, TORCH])
    before = _Class(H200, TORCH, policy, rest)
    _store(engine, before, tuned, gpu, seed=1, replaced=part)
    _store(engine, replace(before, environment=LATER, known=each), tuned[:part], gpu, seed=2)
    _store(engine, replace(before, environment=H100, known=each), tuned[-part:], gpu, seed=3)
    amd_policy = MeasurementPolicy.of("hip")
    _store(engine, _Class(MI300X, TORCH, amd_policy, each), asked[-part:], [*amd, *gpu[:50]], seed=4)
    _lists(engine, asked)


def _store(
    engine: Engine, of: _Class, asked: Sequence[GemmProblem], solutions: Sequence[Solution], seed: int,
    replaced: int = 0,
) -> None:  # fmt: skip
    """Sessions, verdicts, measurements and best rows. The first `replaced` problems get no best row: a later
    environment's verdict has it."""
    choose = random.Random(seed)
    start = sessions.SessionStart(
        asked[0], of.environment, of.policy.id, of.policy.to_dict(), {}, origin="boards"
    )
    with writing(engine) as connection:
        sessions.begin_session(connection, start)
        first = (connection.scalar(select(table(models.Verdict).c.number).order_by(
            table(models.Verdict).c.number.desc()).limit(1)) or 0) + 1  # fmt: skip
    for place in range(0, len(asked), PART):
        part = list(asked[place : place + PART])
        verdicts = [
            _verdict(of, one, solutions, first + place + number, seed, choose)
            for number, one in enumerate(part)
        ]
        with writing(engine) as connection:
            _put(connection, of, verdicts, max(0, replaced - place), solutions, choose)


def _verdict(
    of: _Class, problem: GemmProblem, solutions: Sequence[Solution], number: int, seed: int,
    choose: random.Random,
) -> dict[str, Any]:  # fmt: skip
    """A verdict's row with its problem and its winner."""
    judgement = choose.choices(("WIN", "TIE", "LOSS"), (60, 35, 5))[0]
    share, at = choose.betavariate(6, 2), now()
    rates = (4e12, 8e14) if problem.compute != "fp32" or problem.input_type != "fp32" else (4e12, 5e13)
    memory = (problem.bytes_read + problem.bytes_written) / rates[0]
    compute = problem.flops / rates[1]
    best = max(memory, compute) / share
    mid = choose.lognormvariate(0.2, 0.25) + 0.02 if judgement == "WIN" else choose.uniform(0.8, 1.02)
    winner = choose.choice(solutions) if judgement == "WIN" else of.default
    ties = choose.sample(solutions, min(len(solutions), choose.randint(1, 20)))
    content = {
        "judgement": judgement, "baseline": of.default.id, "baseline_name": "torch 2.15.0+cu132",
        "winner": winner.id, "seconds": best, "baseline_seconds": best * max(mid, 1.0),
        "speedup": {"low": mid * 0.98, "mid": mid, "high": mid * 1.03},
        "tie_set": [winner.id, *(one.id for one in ties)], "tied": len(ties) + 1, "rounds": 35,
        "reason": "faster in the paired test, by more than the margin of 2%",
        "targets": {
            target: {"solution": winner.id, "judgement": judgement, "seconds": best,
                     "baseline_seconds": best * max(mid, 1.0),
                     "speedup": {"low": mid * 0.98, "mid": mid, "high": mid * 1.03}, "rounds": 35, "proven": True}
            for target in ("torch-2.15+cuda", "vllm", "kernels")
        },
    }  # fmt: skip
    return {
        "number": number, "session_id": f"{problem.slug}-{seed:04x}{number:012x}", "problem_id": problem.id,
        "device_class_id": str(of.environment.device_class), "policy_id": of.policy.id, "judgement": judgement,
        "baseline_id": of.default.id, "baseline_name": content["baseline_name"], "winner_id": winner.id,
        "seconds": best, "baseline_seconds": content["baseline_seconds"], "content": content,
        "speedup": mid, "roofline_share": share, "binds": "memory" if memory > compute else "compute",
        "restricted": False, "budget_seconds": 2.0, "created_at": at, "problem": problem, "winner": winner,
    }  # fmt: skip


def _put(
    connection: Connection, of: _Class, verdicts: Sequence[dict[str, Any]], replaced: int,
    solutions: Sequence[Solution], choose: random.Random,
) -> None:  # fmt: skip
    at = now()
    insert_new(connection, models.Session, [
        {"id": one["session_id"], "problem_id": one["problem_id"], "environment_id": of.environment.id,
         "device_class_id": one["device_class_id"], "policy_id": one["policy_id"], "request": {},
         "status": "succeeded", "created_at": at, "ended_at": at}
        for one in verdicts
    ])  # fmt: skip
    kept = [{k: v for k, v in one.items() if k not in ("problem", "winner")} for one in verdicts]
    insert_new(connection, models.Verdict, kept)
    joined = [
        {**one, **one["winner"].to_dict(), "problem": one["problem"].to_dict(),
         "environment_id": of.environment.id, "provenance_kind": None, "provenance_source": None,
         "provenance_number": None}
        for one in verdicts[replaced:]
    ]  # fmt: skip
    insert_new(connection, models.Best, [best_row(one) for one in joined])
    outcomes = (
        _measurement(one, take, solutions, choose, at) for one in verdicts for take in range(of.known)
    )
    while part := list(islice(outcomes, 10 * PART)):
        insert_new(connection, models.Measurement, part)


def _measurement(
    of: dict[str, Any], take: int, solutions: Sequence[Solution], choose: random.Random, at: str
) -> dict[str, Any]:
    seconds = of["seconds"] * choose.uniform(1.0, 3.0)
    return {
        "session_id": of["session_id"], "solution_id": of["winner_id"] if not take else choose.choice(solutions).id,
        "phase": "screen", "take": take, "status": "ok" if take % 3 else "pruned", "seconds": seconds,
        "samples": [seconds * choose.uniform(0.98, 1.1) for _ in range(3 if take % 10 else 20)],
        "evidence": {
            "checks": 2, "exact_checks": 1, "beta_checks": 0, "error_over_bound": choose.random(),
            "repeatable": True, "relative_error": choose.random() / 1000, "coverage": 1.0,
            "cases": ["exact", "ragged, own scalars"], "disturbed": 0,
        },
        "workspace_bytes": 0, "created_at": at,
    }  # fmt: skip


def _lists(engine: Engine, asked: Sequence[GemmProblem]) -> None:
    """Imported files with call counts: a problem is in none to three of them."""
    choose, at = random.Random(5), now()
    provenance = table(models.Provenance)
    with writing(engine) as connection:
        for place, source in enumerate(LISTS):
            kind = source.rpartition(".")[2]
            values = {"kind": "imported", "format": kind, "source": source, "sha256": str(place),
                      "device_class_id": "", "header": {}, "created_at": at}  # fmt: skip
            number = connection.execute(
                insert(provenance).values(values).returning(provenance.c.number)
            ).scalar_one()
            keys = [
                {"problem_id": one.id, "format": kind, "key": f"{source}:{one.id}", "provenance_number": number,
                 "count": choose.randint(0, 1000)}
                for one in choose.sample(asked, len(asked) // 4)
            ]  # fmt: skip
            for part in _parts(keys):
                insert_new(connection, models.ProblemKey, part)


def _parts(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    rest = iter(rows)
    while part := list(islice(rest, PART)):
        yield part


def touch_class(engine: Engine, device_class_id: str) -> None:
    """Raises a class's revision, as a new best row does: what is kept of its leaderboard is made anew."""
    device_class = table(models.DeviceClass)
    with writing(engine) as connection:
        connection.execute(
            update(device_class)
            .where(device_class.c.id == device_class_id)
            .values(revision=device_class.c.revision + 1)
        )
