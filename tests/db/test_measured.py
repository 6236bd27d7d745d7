"""Stored measurements in bulk: filters, parts, what a largest number keeps out, and counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from db import measured, queries, tunings
from db.engine import reading, writing
from db.measured import Wanted
from tests.db.samples import (
    BASELINE,
    CLASS,
    POLICY,
    UPDATED,
    candidate,
    problem,
    request,
    start,
    store_session,
)


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """Two problems in one environment, one of them in a later environment too."""
    with writing(engine) as connection:
        for at in (start(problem(1)), start(problem(2)), start(problem(1), environment=UPDATED)):
            store_session(connection, at, candidate(4))
    return engine


def rows(engine: Engine, wanted: Wanted, limit: int = 1000) -> list[tuple[str, int]]:
    """(problem id, number) of every measurement, read in parts of `limit`."""
    found: list[tuple[str, int]] = []
    with reading(engine) as connection:
        after = 0
        while part := measured.session_part(connection, wanted, after):
            after = part[-1].number
            for session in part:
                last = 0
                while True:
                    some = measured.measurement_part(connection, wanted, [session.id], last, limit)
                    found += [(session.problem_id, row.number) for row in some]
                    if len(some) < limit:
                        break
                    last = some[-1].number
    return found


def everything(engine: Engine) -> Wanted:
    with reading(engine) as connection:
        return Wanted(measured.last_number(connection))


def test_every_measurement_is_read_once_however_large_the_parts(filled: Engine) -> None:
    wanted = everything(filled)
    found = rows(filled, wanted)
    assert sorted(number for _, number in found) == list(range(1, wanted.last + 1))
    assert rows(filled, wanted, limit=1) == found


def test_filters_leave_out(filled: Engine) -> None:
    wanted = everything(filled)
    whole = rows(filled, wanted)
    of_one = rows(filled, replace(wanted, problem_id=problem(1).id))
    assert {name for name, _ in of_one} == {problem(1).id}
    assert 0 < len(of_one) < len(whole)
    assert rows(filled, replace(wanted, device_class_id=CLASS, policy_id=POLICY.id, dtype="bf16")) == whole
    for nothing in (
        {"device_class_id": "cuda:a:b:1"}, {"policy_id": "another"}, {"dtype": "fp8_e4m3"},
        {"family": "nobody"}, {"problem_id": "nn_1x1x1_fp32-0"},
        {"since": "2999-01-01T00:00:00.000Z"}, {"last": 0},
    ):  # fmt: skip
        assert rows(filled, replace(wanted, **nothing)) == [], nothing
    assert rows(filled, replace(wanted, since="2020-01-01T00:00:00.000Z")) == whole
    ours = rows(filled, replace(wanted, family="packed"))
    baselines = rows(filled, replace(wanted, family=BASELINE.family))
    assert sorted(ours + baselines) == sorted(whole)


def test_a_file_and_its_counts_are_of_one_moment(filled: Engine) -> None:
    wanted = everything(filled)
    with writing(filled) as connection:
        store_session(connection, start(problem(3)), candidate(8))
    with reading(filled) as connection:
        counts = measured.measurement_counts(connection, wanted)
    found = rows(filled, wanted)
    assert counts["all"] == {
        "measurements": len(found), "sessions": 3, "problems": 2, "solutions": 2,
    }  # fmt: skip
    for name in ("device_class", "environment", "policy", "dtype", "provenance", "family", "phase", "status"):
        assert sum(counts[name].values()) == len(found), name
    assert set(counts["family"]) == {"packed", BASELINE.family}
    assert counts["provenance"] == {"measured": len(found)}


def test_a_tunings_measurements_are_those_of_its_jobs(filled: Engine) -> None:
    with writing(filled) as connection:
        made = tunings.create_tuning(connection, request(), [(problem(9), 1)])
        row = queries.tuning(connection, made.id)
        assert row is not None
        store_session(connection, start(problem(9), job_id=made.new_jobs[0]), candidate(4))
    wanted = replace(everything(filled), tuning_number=row["number"])
    assert {name for name, _ in rows(filled, wanted)} == {problem(9).id}
    assert rows(filled, replace(wanted, tuning_number=row["number"] + 1)) == []


def test_a_session_says_what_it_decided(filled: Engine) -> None:
    with reading(filled) as connection:
        part = measured.session_part(connection, everything(filled), 0)
        solutions = measured.solutions_of(connection, [BASELINE.id, candidate(4).id])
        environments, policies = measured.described(connection, [part[0].environment_id], [POLICY.id])
    assert {row.judgement for row in part} == {"WIN"}
    assert {(row.baseline_id, row.winner_id) for row in part} == {(BASELINE.id, candidate(4).id)}
    assert solutions[candidate(4).id].family == "packed"
    assert policies == {POLICY.id: POLICY.to_dict()}
    assert list(environments) == [part[0].environment_id]
