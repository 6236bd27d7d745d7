"""Reads: pages that never shift under their reader, and each list's filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert

from backends.problem import from_bmm, from_linear
from db import fleet, gauges, models, queries, sessions, tunings, workers
from db.classes import Classes, classes
from db.engine import reading, writing
from db.values import put_environment, put_problems, table
from tests.db.samples import (
    BASELINE,
    CLASS,
    HERE,
    POLICY,
    UPDATED,
    candidate,
    lost,
    problem,
    request,
    screened,
    start,
    store_session,
    submit,
)

PROBLEM = problem()


# ---- pages -------------------------------------------------------------------------------------


def _problems(connection: Connection, number: int) -> None:
    put_problems(connection, [problem(number)])


def _environments(connection: Connection, number: int) -> None:
    put_environment(connection, replace(HERE, uuid=f"CPU-{number}"))


def _measurements(connection: Connection, number: int) -> None:
    sessions.begin_session(connection, start(PROBLEM))
    sessions.append_outcomes(connection, start(PROBLEM).id, [screened(candidate(number))], 1, Counter())


def _events(connection: Connection, number: int) -> None:
    if number == 0:
        row = {"id": CLASS, "vendor": "cpu", "arch": "a", "product": "p", "units": 1, "revision": 0}
        connection.execute(insert(table(models.DeviceClass)).values(row))
        tunings.create_tuning(connection, request(), [(PROBLEM, 1)])
    tunings.emit(connection, 1, "measured", {"number": number})


Page = Callable[[Connection, int, int], list[dict[str, Any]]]
LISTS: dict[str, tuple[Callable[[Connection, int], None], Page]] = {
    "problems": (_problems, queries.problems),
    "environments": (_environments, queries.environments),
    "measurements": (
        _measurements,
        lambda c, after, limit: queries.measurements(c, PROBLEM.id, after, limit),
    ),
    "events": (_events, lambda c, *page: queries.events(c, 1, *page)),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_page_never_shifts_while_rows_are_added(engine: Engine, name: str) -> None:
    add, page = LISTS[name]
    with writing(engine) as connection:
        for number in range(1 if name == "problems" else 0, 10):
            add(connection, number)
    seen: list[int] = []
    added = 10
    while True:
        with reading(engine) as connection:
            rows = page(connection, seen[-1] if seen else 0, 4)
        seen += [row["number"] for row in rows]
        if len(rows) < 4:
            break
        if added < 14:
            with writing(engine) as connection:
                add(connection, added)
            added += 1
    assert seen == sorted(set(seen))
    with reading(engine) as connection:
        assert seen == [row["number"] for row in page(connection, 0, 100)], "none twice, none left out"


def test_pages_of_tunings_go_back_in_time_and_new_ones_change_nothing(engine: Engine) -> None:
    made = [submit(engine, [problem(m)]).id for m in range(1, 10)]
    seen: list[str] = []
    before = None
    while True:
        with reading(engine) as connection:
            rows = queries.tunings(connection, before, 4)
        if not rows:
            break
        seen += [row["id"] for row in rows]
        before = rows[-1]["number"]
        submit(engine, [problem(100 + before)])
    assert seen == list(reversed(made))


def test_tunings_by_status(engine: Engine) -> None:
    first, second = submit(engine, [problem(1)]), submit(engine, [problem(2)])
    with writing(engine) as connection:
        tunings.cancel_tuning(connection, first.id)
        assert [row["id"] for row in queries.tunings(connection, None, 9, "cancelled")] == [first.id]
        assert [row["id"] for row in queries.tunings(connection, None, 9, "queued")] == [second.id]
        assert queries.tunings(connection, second.number, 9, "queued") == []
        assert queries.tuning(connection, "tuning-unknown") is None
        assert gauges.gauges(connection)["jobs"] == {"cancelled": 1, "queued": 1}


def test_a_tunings_jobs_are_paged_by_position(engine: Engine) -> None:
    created = submit(engine, [problem(m) for m in range(1, 8)])
    seen: list[int] = []
    with reading(engine) as connection:
        while rows := queries.tuning_jobs(connection, created.number, seen[-1] if seen else -1, 3):
            seen += [row["position"] for row in rows]
            assert [row["id"] for row in rows] == created.new_jobs[rows[0]["position"] : seen[-1] + 1]
    assert seen == list(range(7))


# ---- problems, sessions, solutions -------------------------------------------------------------


def test_problems_by_their_sizes_and_type(engine: Engine) -> None:
    made = [
        from_linear(16, 64, 128, "bf16"),
        from_linear(16, 64, 256, "fp16"),
        from_bmm(3, 16, 64, 128, "bf16"),
    ]
    with writing(engine) as connection:
        put_problems(connection, made)
        for filters, wanted in (
            ({}, made),
            ({"k": 256}, made[1:2]),
            ({"dtype": "bf16"}, [made[0], made[2]]),
            ({"dtype": "bf16", "batch": 3}, made[2:]),
            ({"m": None, "batch": 1}, made[:2]),
            ({"n": 65}, []),
        ):
            found = queries.problems(connection, 0, 10, **filters)
            assert {row["id"] for row in found} == {each.id for each in wanted}


def test_a_problem_with_its_verdicts_latest_first(engine: Engine) -> None:
    with writing(engine) as connection:
        assert queries.problem(connection, PROBLEM.id) is None
        for number in range(3):
            store_session(connection, start(PROBLEM, f"job-{number}"), candidate(number + 1))
        found = queries.problem(connection, PROBLEM.id)
        assert found is not None
        assert [row["winner_id"] for row in found["verdicts"]] == [candidate(n).id for n in (3, 2, 1)]
        assert found["keys"] == []
        assert (found["m"], found["slug"], found["content"]) == (PROBLEM.m, PROBLEM.slug, PROBLEM.to_dict())


def test_measurements_name_their_solution_session_and_workspace(engine: Engine) -> None:
    big = candidate(8, workspace_bytes=4096)
    with writing(engine) as connection:
        store_session(connection, start(PROBLEM), big)
        store_session(connection, start(PROBLEM, environment=UPDATED))
        store_session(connection, start(problem(17)))
        rows = queries.measurements(connection, PROBLEM.id, 0, 100)
        assert len(rows) == 5 + 4
        first = next(row for row in rows if row["solution_id"] == big.id)
        assert first["solution"] == big.to_dict()
        assert (first["environment_id"], first["policy_id"]) == (HERE.id, POLICY.id)
        one = start(PROBLEM, environment=UPDATED).id
        assert len(queries.measurements(connection, PROBLEM.id, 0, 100, session_id=one)) == 4
        assert queries.measurements(connection, PROBLEM.id, 0, 100, device_class_id="another") == []


def test_the_latest_session_is_the_newest_with_a_verdict(engine: Engine) -> None:
    def latest(device: str | None = None) -> str | None:
        row = queries.latest_session(connection, PROBLEM.id, device, None)
        return None if row is None else str(row["id"])

    with writing(engine) as connection:
        assert latest() is None
        failed = start(PROBLEM, "job-1")
        sessions.begin_session(connection, failed)
        sessions.end_session(connection, failed, lost(PROBLEM))
        assert latest() == failed.id
        for name in ("job-2", "job-3"):
            store_session(connection, start(PROBLEM, name))
        sessions.begin_session(connection, start(PROBLEM, "job-4"))
        assert latest() == latest(CLASS) == start(PROBLEM, "job-3").id
        assert latest("another") is None


def test_a_solution_with_what_it_won(engine: Engine) -> None:
    with writing(engine) as connection:
        store_session(connection, start(PROBLEM), candidate(8))
        store_session(connection, start(problem(17)), candidate(8))
        found = queries.solution(connection, candidate(8).id)
        assert found is not None
        assert (found["verdicts_won"], found["measurements"], found["family"]) == (2, 6, "packed")
        baseline = queries.solution(connection, BASELINE.id)
        assert baseline is not None
        assert (baseline["verdicts_won"], baseline["measurements"]) == (0, 4)
        assert found["workspace_bytes"] == 0
        store_session(connection, start(problem(18)), candidate(8, workspace_bytes=4096))
        store_session(connection, start(problem(19)), candidate(8, workspace_bytes=512))
        largest = queries.solution(connection, candidate(8).id)
        assert largest is not None
        assert largest["workspace_bytes"] == 4096
        assert queries.solution(connection, "unknown") is None


# ---- devices, imports --------------------------------------------------------------------------


def test_device_classes_with_their_workers(engine: Engine) -> None:
    other = replace(HERE, product="Another CPU", uuid="CPU-9")
    with writing(engine) as connection:
        assert queries.device_classes(connection) == []
        assert classes(connection) == Classes()
        assert queries.revision(connection, CLASS) == 0
        workers.register(connection, "one", "host", 1, HERE)
        workers.register(connection, "two", "host", 2, replace(HERE, uuid="CPU-2"))
        put_environment(connection, other)
        workers.mark(connection, ["two"], "dead")
        found = {
            row["id"]: (row["workers"], row["environments"]) for row in queries.device_classes(connection)
        }
        assert found == {CLASS: (1, 2), str(other.device_class): (0, 1)}
        known = classes(connection)
        assert (known.registered, known.others) == ((HERE.device_class,), (other.device_class,))
        assert (known.live, known.measured) == ((HERE.device_class,), ())
        rows = queries.environments(connection, 0, 10, str(other.device_class))
        assert [row["content"] for row in rows] == [other.to_dict()]
        assert [row["id"] for row in fleet.workers(connection, None, 1)] == ["two"]
