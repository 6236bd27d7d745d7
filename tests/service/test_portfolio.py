"""Portfolios built from a database, shown, and compiled for a worker."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from backends.cache import BinaryCache, CompiledOnly
from backends.errors import InvalidProblem, NotCompiled, ReadError
from backends.registry import backend
from db.engine import reading, writing
from service import portfolio as portfolios
from service.cli import app
from tests.db.samples import CLASS, HERE, candidate, problem, screened, start, store_session
from tuners.portfolio import file
from tuners.portfolio.cover import WITHIN
from tuners.portfolio.values import Group, Portfolio
from tuners.session_store import Result


def test_a_cover_of_what_the_sessions_stored(engine: Engine) -> None:
    common, lone = candidate(1), candidate(2)
    with writing(engine) as connection:
        for m in (1, 2, 3):
            store_session(connection, start(problem(m)), common, 1e-6)
        others = [screened(lone, 0.5e-6)]
        store_session(connection, start(problem(4)), common, 1e-6, others=others)
        (group,) = portfolios.from_database(connection, [CLASS])
    assert (group.vendor, group.target, group.observed) == ("cpu", HERE.partition, 4)
    assert {m.solution: len(m.problems) for m in group.members} == {common: 3, lone: 1}
    assert group.sources == (f"sessions of 4 problems on {CLASS}",)


def test_groups_that_were_not_built_anew_are_kept(engine: Engine) -> None:
    with writing(engine) as connection:
        store_session(connection, start(problem()), candidate(1), 1e-6)
    with reading(engine) as connection:
        made = portfolios.from_database(connection, [CLASS])
    there = [group for group in file.shipped().groups if group.vendor == "cuda"]
    assert portfolios.merged(there, made) == [*made, *there]
    assert portfolios.merged(made, made) == made


def test_architectures_are_checked() -> None:
    with pytest.raises(InvalidProblem, match="architecture 'sm_1' is unknown; known: cpu, sm_80"):
        portfolios.environments(["sm_1"])
    gpu, cpu = portfolios.environments(["sm_90", "x86-64-v3"])
    assert (gpu.vendor, gpu.arch) == ("cuda", "sm_90")
    assert (cpu.vendor, cpu.partition) == ("cpu", "x86-64-v3")


@pytest.mark.parametrize(
    ("groups", "has"),
    [
        ((), "it has none for cpu devices"),
        (
            (
                Group("cuda", "sm_90", "fp32", (), 1, WITHIN, ()),
                Group("cpu", "x86-64-v3", "fp32", (), 1, WITHIN, ()),
                Group("cpu", "x86-64-v3", "bf16", (), 1, WITHIN, ()),
            ),
            "its cpu members are for x86-64-v3, and what is fast on one target is not on another",
        ),
    ],
    ids=["none", "another level"],
)
def test_a_portfolio_without_the_devices_target_is_a_note_that_says_what_to_do(
    groups: tuple[Group, ...], has: str
) -> None:
    (cpu,) = portfolios.environments(["x86-64-v4"])
    items, (note,) = portfolios.items_for(Portfolio(groups, {}), [cpu])
    assert items == []
    assert note.startswith(f"the portfolio has no members for x86-64-v4; {has}")
    assert "make a portfolio of what was measured (gemmtune portfolio build --output FILE)" in note


def test_a_worker_goes_on_without_a_portfolio_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path | None) -> Portfolio:
        raise ReadError("it is cut short")

    monkeypatch.setattr(file, "chosen", refuse)
    warming = portfolios.Warming(HERE, BinaryCache(tmp_path), lambda: False)
    warming.start()
    warming.stop()
    warming._thread.join(30)
    assert not warming._thread.is_alive()
    assert "the portfolio is not compiled: it is cut short" in caplog.text
    with warming.job():
        pass


def test_candidates_that_tunings_ended_without_are_compiled_while_the_worker_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "chosen", lambda path: Portfolio((), {}))
    family, cache = backend("cpu").families()["packed"], BinaryCache(tmp_path)
    asked = problem(48, 64, 96)
    illegal = replace(next(iter(family.solutions(asked, HERE))), parameters={"tile_m": -1})
    (wanted,) = islice(family.solutions(asked, HERE), 1)
    idle, often = threading.Event(), threading.Semaphore(0)
    judged: list[bool] = []

    def busy() -> bool:
        often.release()
        return not idle.is_set()

    def legal(items: Any, *of: Any) -> Any:
        judged.append(idle.is_set())
        return made(items, *of)

    warming = portfolios.Warming(HERE, cache, busy)
    made = warming._legal
    monkeypatch.setattr(warming, "_legal", legal)
    warming.start()
    warming.add([(asked, replace(wanted, family="no-such-family"))])
    warming.add([(asked, illegal), (asked, wanted)])
    for _ in range(3):
        assert often.acquire(timeout=30)
    assert judged == [], "nothing is even looked up while the worker is busy"
    idle.set()
    for _ in range(600):
        with suppress(NotCompiled):
            family.compile(asked, wanted, HERE, CompiledOnly(tmp_path))
            break
        time.sleep(0.05)
    else:
        pytest.fail("it was not compiled")
    while len(judged) < 2:  # the older search's, which raises: the thread goes on
        time.sleep(0.05)
    assert warming._thread.is_alive()
    warming.stop()
    warming._thread.join(30)
    assert not warming._thread.is_alive()


@pytest.mark.parametrize(
    ("ended", "taken"),
    [("compilers too slow", True), ("budget spent", False), ("cancelled", False), (None, False)],
)
def test_only_searches_whose_compilers_were_too_slow_leave_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str | None, taken: bool
) -> None:
    warming = portfolios.Warming(HERE, BinaryCache(tmp_path), lambda: True)
    added: list[Any] = []
    monkeypatch.setattr(warming, "add", added.append)
    left = [(problem(), candidate(1))]
    result = None if ended is None else Result(problem(), None, counts={"search_ended": ended})
    warming.after(result, left)
    warming.after(result, [])
    assert added == [left] * taken


def run(*arguments: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    return done.exit_code, json.loads(done.stdout) if done.exit_code == 0 else done.exception


def test_the_shipped_portfolio_is_shown() -> None:
    code, found = run("portfolio", "show")
    assert code == 0
    groups = [g for g in found["groups"] if g["target"] == "sm_90"]
    assert {"bf16", "fp16", "fp32", "fp8_e4m3", "int8"} <= {g["types"].split()[0] for g in groups}
    assert all(g["problems"] and g["sources"] for g in groups)
