"""Tunings whose problems have seconds of their own: what their jobs ask, and with whom they are shared."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Engine

from db import tunings
from db.engine import writing
from tests.db.samples import request, submit
from tests.db.steps import A, B, C, begin, end, job, jobs_of, known_worker, tuning


def shared_out(seconds: dict[str, float], priority: int = 10) -> tunings.Request:
    """A campaign's request: each problem has its own seconds."""
    return replace(request(priority), seconds=seconds, campaign={"seconds": 9.0, "left_out": {"tuned": 1}})


def test_a_job_of_a_campaign_asks_for_its_own_seconds(engine: Engine) -> None:
    created = submit(engine, [B, A], shared_out({A.id: 0.8, B.id: 5.0}))
    content = request().content
    for name, seconds in zip(created.new_jobs, (5.0, 0.8), strict=True):
        assert begin(engine, name).request == {**content, "budget": {**content["budget"], "seconds": seconds}}
    told_of = tuning(engine, created)["request"]
    assert told_of["campaign"] == {"seconds": 9.0, "left_out": {"tuned": 1}}
    assert told_of["budget"] == {n: v for n, v in content["budget"].items() if n != "seconds"}
    assert (told_of["priority"], told_of["force"]) == (10, False)


def test_jobs_with_the_same_seconds_are_shared_whoever_asks_for_them(engine: Engine) -> None:
    usual = request().content["budget"]["seconds"]
    first = submit(engine, [A, B, C], shared_out({A.id: 0.8, B.id: 5.0, C.id: usual}))
    second = submit(engine, [A, B, C], shared_out({A.id: 0.8, B.id: 4.0, C.id: usual}))
    assert (second.shared, len(second.new_jobs)) == (2, 1)
    assert [row["id"] for row in jobs_of(engine, second)] == [
        first.new_jobs[0], second.new_jobs[0], first.new_jobs[2],
    ]  # fmt: skip
    assert submit(engine, [B, C]).shared == 1, "a tuning of two seconds a problem"
    known_worker(engine)
    end(engine, begin(engine, first.new_jobs[0]))
    again = submit(engine, [A, B], shared_out({A.id: 0.8, B.id: 5.0}))
    assert (again.known, again.shared) == (1, 1)


def test_a_campaign_that_is_staged_links_what_was_stored_ahead(engine: Engine) -> None:
    asked = shared_out({A.id: 0.8, B.id: 5.0, C.id: 0.8})
    submit(engine, [B], shared_out({B.id: 5.0}))
    staged: dict[str, tunings.Staged] = {}
    for part in ([C, B], [A]):
        with writing(engine) as connection:
            staged |= tunings.stage_jobs(connection, asked, part)
    with writing(engine) as connection:
        created = tunings.create_tuning(connection, asked, [(C, 9), (B, 4), (A, 1)], staged)
    assert (created.total, created.shared) == (3, 1)
    assert created.new_jobs == [staged[tunings.request_key(one.id, asked)].id for one in (C, A)]
    rows = jobs_of(engine, created)
    assert [(row["problem_id"], row["count"]) for row in rows] == [(C.id, 9), (B.id, 4), (A.id, 1)]
    seconds = [job(engine, row["id"])["request"]["budget"]["seconds"] for row in rows]
    assert seconds == [0.8, 5.0, 0.8]
