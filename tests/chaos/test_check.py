"""The check of a chaos run finds what was lost, told twice or left behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, delete, update

from db import jobs, models, sessions, tunings
from db.engine import writing
from db.values import table
from tests.chaos.check import check
from tests.chaos.clients import Acknowledgement, Told
from tests.chaos.plan import Submission
from tests.db.samples import start, submit
from tests.db.steps import A, B, begin, end, events, job, known_worker
from tests.postgres import ON_SQLITE

pytestmark = ON_SQLITE
_job, _event, _tuning = table(models.Job), table(models.Event), table(models.Tuning)
_verdict, _best, _session = table(models.Verdict), table(models.Best), table(models.Session)
ASKED = Submission("cpu", ({"m": 1, "n": 64, "k": 128}, {"m": 2, "n": 64, "k": 128}))


@pytest.fixture
def told(engine: Engine) -> Told:
    """A tuning of two jobs that ended, and was followed."""
    known_worker(engine)
    made = submit(engine, [A, B])
    for name in made.new_jobs:
        end(engine, begin(engine, name))
    seen = [{name: one[name] for name in ("number", "kind", "content")} for one in events(engine, made)]
    return Told([Acknowledgement(made.id, ASKED)], {made.id: list[Mapping[str, Any]](seen)})


def found(engine: Engine, told: Told) -> str:
    return "; ".join(check(engine, told).wrong)


def change(engine: Engine, statement: Any) -> None:
    with writing(engine) as connection:
        assert connection.execute(statement).rowcount == 1


def test_nothing_is_wrong(engine: Engine, told: Told) -> None:
    done = check(engine, told)
    assert done.wrong == []
    assert done.counts["jobs"] == {"succeeded": 2}
    assert done.counts["events"] == {"ended": 1, "finished": 2, "queued": 1, "started": 2}
    assert done.counts["best"] == 2


def test_what_a_client_saw_goes_wrong_is_told(engine: Engine, told: Told) -> None:
    told.wrong.append("GET /: 500")
    assert found(engine, told) == "GET /: 500"


def test_a_tuning_that_is_lost(engine: Engine, told: Told) -> None:
    told.acknowledged.append(Acknowledgement("tuning-0", ASKED))
    assert found(engine, told) == "tuning-0 was acknowledged and is not there"


def test_a_job_that_does_not_end(engine: Engine, told: Told) -> None:
    made = submit(engine, [A], tunings.Request(*_other_request()))
    started = begin(engine, made.new_jobs[0])
    with writing(engine) as connection:
        begun = start(A, started.id)
        sessions.begin_session(connection, begun)
        jobs.hold(connection, started, session_id=begun.id)
    text = found(engine, told)
    assert (
        f"{started.id} is running; {started.id} is still in flight; sessions run on: ['{begun.id}']" in text
    )


def test_a_verdict_that_is_missing(engine: Engine, told: Told) -> None:
    first = _jobs(engine, told)[0]
    with writing(engine) as connection:
        connection.execute(delete(_best))
        mine = _session.c.job_id == first
        verdict = _verdict.c.session_id.in_(_session.select().with_only_columns(_session.c.id).where(mine))
        assert connection.execute(delete(_verdict).where(verdict)).rowcount == 1
    assert f"{first}, succeeded, has 0 verdicts" in found(engine, told)


def test_an_end_that_is_told_twice(engine: Engine, told: Told) -> None:
    name = told.acknowledged[0].tuning_id
    with writing(engine) as connection:
        row = connection.execute(_tuning.select().where(_tuning.c.id == name)).one()
        again = told.events[name][-2]["content"]
        tunings.emit(connection, row.number, "finished", again)
    text = found(engine, told)
    assert f"{name} tells an end of a job twice" in text
    assert f"{name}: 3 ends of 2 jobs" in text
    assert f"{name}: a client was told 6 events of " in text


def test_a_job_that_fails_without_evidence(engine: Engine, told: Told) -> None:
    first = _jobs(engine, told)[0]
    values = {"status": "failed", "broken": True, "error": "internal error: OSError"}
    change(engine, update(_job).where(_job.c.id == first).values(values))
    text = found(engine, told)
    assert "is broken: internal error: OSError" in text
    assert "is succeeded, not failed" in text
    assert f"{first}, failed, has 1 verdicts" in text


def test_a_job_without_a_right_default_has_to_fail(engine: Engine, told: Told) -> None:
    doomed = Submission("cuda", ({"m": 1, "n": 64, "k": 13}, {"m": 2, "n": 64, "k": 128}))
    told.acknowledged[0] = Acknowledgement(told.acknowledged[0].tuning_id, doomed)
    assert "0 jobs fail and 1 have no default that is right" in found(engine, told)


def _jobs(engine: Engine, told: Told) -> list[str]:
    seen = told.events[told.acknowledged[0].tuning_id]
    names = [str(one["content"]["job_id"]) for one in seen if one["kind"] == "finished"]
    assert [job(engine, name)["status"] for name in names] == ["succeeded"] * 2
    return names


def _other_request() -> tuple[Any, ...]:
    from tests.db.samples import CLASS, CONTENT, POLICY

    return CLASS, POLICY.id, POLICY.to_dict(), {**CONTENT, "other": 1}, 10, False
