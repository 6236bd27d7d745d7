"""Tunings and their jobs: shared, reported, known, cancelled; each step atomic under concurrency."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import Engine, select

from db import jobs, models, queries, tunings, workers
from db.engine import reading, writing
from db.jobs import StartedJob
from db.tunings import Created
from db.values import table
from tests.db.samples import CLASS, HERE, UPDATED, problem, request, submit
from tests.db.steps import (
    A,
    B,
    C,
    begin,
    cancel,
    end,
    events,
    job,
    jobs_of,
    known_worker,
    together,
    told,
    tuning,
)

# ---- one tuning --------------------------------------------------------------------------------


def test_a_tuning_from_its_request_to_its_end(engine: Engine) -> None:
    created = submit(engine, [A, B], request(priority=3))
    assert (created.total, created.shared, created.known, len(created.new_jobs)) == (2, 0, 0, 2)
    row = tuning(engine, created)
    assert (row["status"], row["total"], row["started"], row["ended_at"]) == ("queued", 2, 0, None)
    assert (row["request"]["priority"], row["request"]["force"]) == (3, False)
    rows = jobs_of(engine, created)
    assert [r["problem_id"] for r in rows] == [A.id, B.id]
    assert [r["id"] for r in rows] == created.new_jobs
    assert [(r["status"], r["attempt"], r["count"]) for r in rows] == [("queued", 0, 1)] * 2

    first = begin(engine, created.new_jobs[0])
    assert (first.attempt, first.problem, first.stop_requested) == (1, A.to_dict(), False)
    assert first.request == request().content
    assert first.policy == request().policy
    assert (tuning(engine, created)["status"], tuning(engine, created)["started"]) == ("running", 1)
    end(engine, first)
    row = tuning(engine, created)
    assert (row["status"], row["succeeded"], row["failed"]) == ("running", 1, 0)
    end(engine, begin(engine, created.new_jobs[1]), "failed")
    row = tuning(engine, created)
    assert (row["status"], row["started"], row["succeeded"], row["failed"]) == ("succeeded", 2, 1, 1)
    assert row["ended_at"] is not None
    rows = jobs_of(engine, created)
    assert [(r["status"], r["judgement"], r["error"]) for r in rows] == [
        ("succeeded", "TIE", None), ("failed", None, "planted"),
    ]  # fmt: skip
    assert told(engine, created) == ["queued", "started", "finished", "started", "finished", "ended"]
    finished = events(engine, created)[2]["content"]
    assert (finished["job_id"], finished["problem_id"], finished["status"]) == (first.id, A.id, "succeeded")


def test_only_a_job_that_broke_fails_its_tuning(engine: Engine) -> None:
    for broken, status in ((False, "succeeded"), (True, "failed")):
        created = submit(engine, [A, B])
        end(engine, begin(engine, created.new_jobs[0]), "failed", broken)
        end(engine, begin(engine, created.new_jobs[1]), "failed")
        row = tuning(engine, created)
        assert (row["status"], row["failed"], row["broken"]) == (status, 2, int(broken))
        assert events(engine, created)[-1]["content"] == {"status": status}


def test_call_counts_and_positions_are_kept(engine: Engine) -> None:
    submit(engine, [])  # the class is known
    with writing(engine) as connection:
        created = tunings.create_tuning(connection, request(), [(C, 7), (A, 1), (B, 5)])
    assert [(r["position"], r["problem_id"], r["count"]) for r in jobs_of(engine, created)] == [
        (0, C.id, 7), (1, A.id, 1), (2, B.id, 5),
    ]  # fmt: skip


def test_a_tuning_of_nothing_has_succeeded(engine: Engine) -> None:
    created = submit(engine, [])
    assert (tuning(engine, created)["status"], created.total) == ("succeeded", 0)
    assert told(engine, created) == ["queued", "ended"]


# ---- sharing -----------------------------------------------------------------------------------


def test_equal_jobs_in_flight_are_shared_and_both_tunings_are_told(engine: Engine) -> None:
    first, second = submit(engine, [A, B]), submit(engine, [B, C])
    assert (second.shared, second.known, len(second.new_jobs)) == (1, 0, 1)
    assert jobs_of(engine, second)[0]["id"] == first.new_jobs[1]
    end(engine, begin(engine, first.new_jobs[1]))
    for created, position in ((first, 1), (second, 0)):
        row = tuning(engine, created)
        assert (row["status"], row["started"], row["succeeded"]) == ("running", 1, 1)
        assert told(engine, created) == ["queued", "started", "finished"]
        assert jobs_of(engine, created)[position]["judgement"] == "TIE"


def test_what_differs_in_what_is_measured_is_not_shared(engine: Engine) -> None:
    submit(engine, [A])
    assert submit(engine, [A], request(seed=1)).shared == 0
    assert submit(engine, [A], request(priority=1)).shared == 1, "priority is no part of a job"
    assert submit(engine, [A], request(force=True)).shared == 1, "it is being measured anew already"


def test_a_job_that_has_ended_is_not_shared(engine: Engine) -> None:
    first = submit(engine, [A])
    end(engine, begin(engine, first.new_jobs[0]), "failed")
    second = submit(engine, [A])
    assert (second.shared, second.known, len(second.new_jobs)) == (0, 0, 1)


def test_a_tuning_that_shares_a_running_job_counts_it_as_started(engine: Engine) -> None:
    first = submit(engine, [A, B])
    running = begin(engine, first.new_jobs[0])
    second = submit(engine, [A, B, C])
    row = tuning(engine, second)
    assert (row["status"], row["started"], second.shared) == ("running", 1, 2)
    with writing(engine) as connection:
        jobs.release_job(connection, running)
    third = submit(engine, [A, B])
    end(engine, begin(engine, running.id))
    end(engine, begin(engine, first.new_jobs[1]))
    for created, total in ((first, 2), (second, 3), (third, 2)):
        row = tuning(engine, created)
        assert (row["started"], row["succeeded"], row["total"]) == (2, 2, total)
    assert [tuning(engine, each)["status"] for each in (first, second, third)] == [
        "succeeded", "running", "succeeded",
    ]  # fmt: skip


# ---- what is known already ---------------------------------------------------------------------


def test_what_was_measured_here_is_not_measured_again_unless_forced(engine: Engine) -> None:
    known_worker(engine)
    first = submit(engine, [A, B])
    end(engine, begin(engine, first.new_jobs[0]))
    second = submit(engine, [A])
    assert (second.known, second.new_jobs) == (1, [])
    row = tuning(engine, second)
    assert (row["status"], row["started"], row["succeeded"]) == ("succeeded", 1, 1)
    assert row["ended_at"] is not None
    assert told(engine, second) == ["queued", "ended"]
    assert jobs_of(engine, second)[0]["judgement"] == "TIE"
    third = submit(engine, [A, C])
    assert (third.known, third.shared, len(third.new_jobs)) == (1, 0, 1)
    assert tuning(engine, third)["status"] == "queued"
    forced = submit(engine, [A], request(force=True))
    assert (forced.known, len(forced.new_jobs)) == (0, 1)


def test_the_latest_of_several_is_the_known_one(engine: Engine) -> None:
    known_worker(engine)
    made = [submit(engine, [A], request(force=True)).new_jobs[0]]
    end(engine, begin(engine, made[0]))
    made.append(submit(engine, [A], request(force=True)).new_jobs[0])
    end(engine, begin(engine, made[1]))
    assert jobs_of(engine, submit(engine, [A]))[0]["id"] == made[1]


def test_another_environment_knows_nothing(engine: Engine) -> None:
    known_worker(engine)
    end(engine, begin(engine, submit(engine, [A]).new_jobs[0]))
    known_worker(engine, UPDATED, "worker-2")
    assert submit(engine, [A]).known == 0
    known_worker(engine, HERE, "worker-3")
    assert submit(engine, [A]).known == 1


def test_every_device_of_a_class_knows(engine: Engine) -> None:
    """Devices of a class are several environments; one that lives is as present as another."""
    second = replace(HERE, uuid="CPU-2")
    known_worker(engine)
    end(engine, begin(engine, submit(engine, [A]).new_jobs[0]))
    known_worker(engine, second, "worker-2")
    assert submit(engine, [A]).known == 1
    with writing(engine) as connection:
        workers.mark(connection, ["worker-1"], "stopped")
    assert submit(engine, [A]).known == 0, "who lives is another"
    with writing(engine) as connection:
        workers.mark(connection, ["worker-2"], "stopped")
    assert submit(engine, [A]).shared == 1


def test_a_failure_is_not_known(engine: Engine) -> None:
    known_worker(engine)
    end(engine, begin(engine, submit(engine, [A]).new_jobs[0]), "failed")
    assert submit(engine, [A]).known == 0


# ---- cancelling --------------------------------------------------------------------------------


def test_cancelling_detaches_and_the_other_tuning_gets_its_verdict(engine: Engine) -> None:
    first, second = submit(engine, [A, B]), submit(engine, [B])
    assert cancel(engine, first) == [first.new_jobs[0]]
    assert [r["status"] for r in jobs_of(engine, first)] == ["cancelled", "queued"]
    running = begin(engine, first.new_jobs[1])
    with reading(engine) as connection:
        assert not jobs.stop_requested(connection, running)
    end(engine, running)
    assert (tuning(engine, first)["status"], tuning(engine, second)["status"]) == ("cancelled", "succeeded")
    assert told(engine, first) == ["queued", "ended"], "an ended tuning is told nothing more"
    assert told(engine, second) == ["queued", "started", "finished", "ended"]
    assert tuning(engine, first)["succeeded"] == 0


def test_a_running_job_that_nobody_waits_for_is_asked_to_stop(engine: Engine) -> None:
    first, second = submit(engine, [A]), submit(engine, [A])
    running = begin(engine, first.new_jobs[0])
    assert cancel(engine, first) == []
    with reading(engine) as connection:
        assert not jobs.stop_requested(connection, running)
    assert cancel(engine, second) == []
    with reading(engine) as connection:
        assert jobs.stop_requested(connection, running)
    row = job(engine, running.id)
    assert (row["status"], row["stop_requested"], row["in_flight"]) == ("running", True, None)
    later = submit(engine, [A])
    assert (later.shared, len(later.new_jobs)) == (0, 1), "what is to stop is not shared"
    end(engine, running, "cancelled")
    assert job(engine, running.id)["status"] == "cancelled"
    assert tuning(engine, later)["status"] == "queued"
    for created in (first, second):
        assert told(engine, created) == ["queued", "started", "ended"]


def test_a_job_that_was_to_stop_still_is_after_its_worker_died(engine: Engine) -> None:
    created = submit(engine, [A])
    begin(engine, created.new_jobs[0])
    cancel(engine, created)
    assert begin(engine, created.new_jobs[0], "worker-2").stop_requested


def test_a_cancelled_job_is_never_started(engine: Engine) -> None:
    created = submit(engine, [A])
    assert cancel(engine, created) == created.new_jobs
    row = job(engine, created.new_jobs[0])
    assert (row["status"], row["in_flight"], row["attempt"]) == ("cancelled", None, 0)
    with writing(engine) as connection:
        assert jobs.start_job(connection, created.new_jobs[0], "worker-1") is None
        assert jobs.start_job(connection, "job-unknown", "worker-1") is None


def test_cancelling_again_or_what_is_unknown_or_ended_changes_nothing(engine: Engine) -> None:
    created = submit(engine, [A])
    cancel(engine, created)
    row = tuning(engine, created)
    assert cancel(engine, created) == []
    assert tuning(engine, created) == row
    with writing(engine) as connection:
        assert tunings.cancel_tuning(connection, "tuning-unknown") is None
    done = submit(engine, [B])
    end(engine, begin(engine, done.new_jobs[0]))
    row = tuning(engine, done)
    assert cancel(engine, done) == []
    assert tuning(engine, done) == row


# ---- at once -----------------------------------------------------------------------------------


def test_overlapping_sets_submitted_at_once_make_each_job_once(engine: Engine) -> None:
    everything = [problem(m, 64 + m) for m in range(1, 161)]
    choose = random.Random(7)
    sets = [choose.sample(everything, 100) for _ in range(6)]
    for seed in range(3):
        asked = request(seed=seed)
        made: list[Created] = together([partial(submit, engine, part, asked) for part in sets])
        union = {each for part in sets for each in part}
        new = [name for created in made for name in created.new_jobs]
        assert len(new) == len(set(new)) == len(union)
        of_problem = {job(engine, name)["problem_id"]: name for name in new}
        for created, part in zip(made, sets, strict=True):
            rows = jobs_of(engine, created)
            assert [row["problem_id"] for row in rows] == [each.id for each in part]
            assert [row["id"] for row in rows] == [of_problem[each.id] for each in part]
            assert created.shared + len(created.new_jobs) == len(part)


def test_tunings_that_come_while_their_job_ends_are_told_or_get_a_new_job(engine: Engine) -> None:
    """No tuning waits for a job that has ended without it."""
    for turn in range(8):
        first = submit(engine, [A], request(seed=turn))
        running = begin(engine, first.new_jobs[0])
        again = partial(submit, engine, [A], request(seed=turn))
        _, *attached = together([partial(end, engine, running), again, again, again])
        fresh = [created for created in attached if created.new_jobs]
        assert len(fresh) <= 1, "those that came too late share one"
        for created in attached:
            (row,) = jobs_of(engine, created)
            if row["id"] == running.id:
                assert tuning(engine, created)["status"] == "succeeded"
                assert told(engine, created)[-2:] == ["finished", "ended"]
            else:
                assert (row["status"], tuning(engine, created)["status"]) == ("queued", "queued")


def test_cancelling_while_the_job_ends_leaves_no_job_behind(engine: Engine) -> None:
    for turn in range(8):
        first, second = (submit(engine, [A, B], request(seed=turn)) for _ in range(2))
        running = begin(engine, first.new_jobs[0])
        together(
            [partial(end, engine, running), partial(cancel, engine, first), partial(cancel, engine, second)]
        )
        assert job(engine, running.id)["status"] == "succeeded"
        row = job(engine, first.new_jobs[1])
        assert (row["status"], row["in_flight"]) == ("cancelled", None)
        for created in (first, second):
            assert tuning(engine, created)["status"] == "cancelled"
            assert told(engine, created)[-1] == "ended"


def test_events_from_everywhere_are_numbered_without_gaps(engine: Engine) -> None:
    """A reader that has seen number n has seen every number below it."""
    created = submit(engine, [A, B, C])
    running = [begin(engine, name) for name in created.new_jobs]
    done = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        while True:
            last_look = done.is_set()
            with reading(engine) as connection:
                rows = queries.events(connection, created.number, len(seen), 1000)
            seen.extend(row["number"] for row in rows)
            if last_look:
                return

    def emit(started: StartedJob) -> None:
        for number in range(5):
            with writing(engine) as connection:
                jobs.hold(connection, started)
                jobs.emit_to_all(connection, started.number, "measured", {"number": number})
        end(engine, started)

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(follow)
        together([partial(emit, started) for started in running])
        done.set()
        reader.result(20)
    rows = events(engine, created)
    assert seen == list(range(1, len(rows) + 1))
    kinds = Counter(row["kind"] for row in rows)
    assert kinds == {"queued": 1, "started": 3, "measured": 15, "finished": 3, "ended": 1}
    assert rows[-1]["kind"] == "ended"


def test_many_shared_jobs_are_attached_and_cancelled_at_once(engine: Engine) -> None:
    """More jobs than one statement of SQLite's names, whose numbers and keys are in opposite orders: locks
    are taken in one order all the same."""
    many = sorted(
        (problem(m, 32) for m in range(1, 1101)),
        key=lambda p: tunings.request_key(p.id, request()),
        reverse=True,
    )
    for size in (400, 800, 1100):
        submit(engine, many[:size])

    def come_and_go() -> None:
        for _ in range(3):
            created = submit(engine, many)
            assert (created.shared, created.new_jobs) == (len(many), [])
            assert cancel(engine, created) == []

    together([come_and_go] * 3)
    with reading(engine) as connection:
        statuses = connection.scalars(select(table(models.Job).c.status)).all()
    assert Counter(statuses) == {"queued": len(many)}, "what a tuning waits for is never cancelled"


def test_a_clock_that_jumps_changes_no_order(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter(f"{year}-01-01T00:00:00.000Z" for year in (2031, 2030, 1970, 2029, 1999) * 40)
    for module in ("db.tunings", "db.jobs", "db.sessions", "db.values", "db.workers"):
        monkeypatch.setattr(f"{module}.now", lambda: next(clocks))
    known_worker(engine)
    made = [submit(engine, [A], request(force=True, seed=seed)) for seed in range(4)]
    for created in made:
        end(engine, begin(engine, created.new_jobs[0]))
        assert told(engine, created) == ["queued", "started", "finished", "ended"]
    with reading(engine) as connection:
        rows = queries.tunings(connection, None, 10)
        assert [row["id"] for row in rows] == [created.id for created in reversed(made)]
        verdicts = queries.problem(connection, A.id)
        assert verdicts is not None
        latest = verdicts["verdicts"][0]["session_id"]
        assert latest == job(engine, made[-1].new_jobs[0])["session_id"]
        documents = queries.best_documents(connection, [A.id], CLASS, request().policy_id)
        assert latest in documents[A.id]
