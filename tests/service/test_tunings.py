"""Submitting and cancelling: rows and queued jobs commit together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text

from backends.errors import GemmtuneError
from backends.problem import GemmProblem
from db import jobs, models, queries
from db import tunings as rows
from db.engine import DatabaseUnavailable, reading, writing
from db.jobs import start_job
from db.tunings import Created
from db.values import table
from service.jobs import JobQueue
from service.requests import read_request, request_content
from service.settings import Settings
from service.tunings import Tunings, open_tunings
from tests.db.samples import HERE, POLICY, problem
from tests.postgres import ON_POSTGRES, PostgresServer
from tuners.budget import Budget, Search
from tuners.campaign_shares import CampaignShares, LeftOut
from tuners.decide import DecisionRule
from tuners.tuning_settings import TuningSettings

A, B, C = problem(1), problem(2), problem(3)


@pytest.fixture
def tunings(engine: Engine, database_url: str) -> Iterator[Tunings]:
    made = open_tunings(engine, Settings(database_url=database_url))
    yield made
    made.close()


def submit(tunings: Tunings, *items: tuple[GemmProblem, int], priority: int = 10) -> Created:
    return tunings.submit(HERE.device_class, TuningSettings(POLICY), list(items), priority)


def queued(engine: Engine) -> list[tuple[str, str, int]]:
    """The engine's rows: job, status, priority."""
    name = "workflow_status" if engine.dialect.name == "sqlite" else "dbos.workflow_status"
    with reading(engine) as connection:
        found = connection.execute(text(f"SELECT workflow_uuid, status, priority FROM {name}"))
        return sorted((row[0], row[1], row[2]) for row in found)


def counts(engine: Engine) -> dict[str, int]:
    """Rows of all that a submission writes."""
    found = {}
    with reading(engine) as connection:
        for model in (
            models.Tuning,
            models.Job,
            models.TuningJob,
            models.Event,
            models.Problem,
            models.Policy,
        ):
            query = select(func.count()).select_from(table(model))
            found[str(table(model).name)] = connection.execute(query).scalar_one()
    return found


def job(engine: Engine, job_id: str) -> dict[str, Any]:
    with reading(engine) as connection:
        row = connection.execute(select(table(models.Job)).where(table(models.Job).c.id == job_id))
        return dict(row.mappings().one())


# ---- submitting --------------------------------------------------------------------------------


def test_a_tuning_and_its_queued_jobs_are_there_together(tunings: Tunings, engine: Engine) -> None:
    created = submit(tunings, (A, 2), (B, 1), priority=3)
    assert queued(engine) == sorted((name, "ENQUEUED", 3) for name in created.new_jobs)
    assert [job(engine, name)["status"] for name in created.new_jobs] == ["queued", "queued"]
    again = submit(tunings, (B, 1), (C, 1))
    assert (again.shared, len(again.new_jobs)) == (1, 1)
    assert len(queued(engine)) == 3, "a shared job is queued once"


def test_equal_problems_are_one_with_their_calls_together(tunings: Tunings, engine: Engine) -> None:
    created = submit(tunings, (A, 2), (B, 1), (A, 5))
    assert created.total == 2
    with reading(engine) as connection:
        found = queries.tuning_jobs(connection, created.number, -1, 10)
    assert [(row["problem_id"], row["count"]) for row in found] == [(A.id, 7), (B.id, 1)]


def test_a_large_tuning_lets_others_write_between_its_pieces(
    tunings: Tunings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tunings.PIECE", 2)
    real = rows.stage_jobs
    seen: list[int] = []

    def staged(connection: Any, request: Any, problems: Any) -> Any:
        if seen:
            with reading(engine) as other:
                assert queries.tunings(other, None, 10) == [], "not acknowledged, so nobody sees it"
        seen.append(len(problems))
        return real(connection, request, problems)

    with monkeypatch.context() as patched:
        patched.setattr(rows, "stage_jobs", staged)
        created = submit(tunings, *((problem(k), 1) for k in range(1, 6)))
    assert seen == [2, 2, 1]
    assert (created.total, len(created.new_jobs), created.shared) == (5, 5, 0)
    with reading(engine) as connection:
        found = queries.tuning_jobs(connection, created.number, -1, 10)
    assert [row["problem_id"] for row in found] == [problem(k).id for k in range(1, 6)]
    assert submit(tunings, *((problem(k), 1) for k in range(4, 8))).shared == 2


def seconds_of(engine: Engine, created: Created) -> list[tuple[str, int, float]]:
    """Problem, calls and seconds of a tuning's jobs, in the order in which they run."""
    with reading(engine) as connection:
        found = queries.tuning_jobs(connection, created.number, -1, 100)
    numbered = sorted((job(engine, row["id"])["number"], row) for row in found)
    return [
        (row["problem_id"], row["count"], job(engine, row["id"])["request"]["budget"]["seconds"])
        for _, row in numbered
    ]


@pytest.mark.parametrize("piece", [200, 2])
def test_a_campaign_submits_what_has_a_share_the_first_first(
    tunings: Tunings, engine: Engine, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr("service.tunings.PIECE", piece)
    items = [(problem(k), k) for k in range(1, 7)]
    shares = {problem(k).id: float(10 * k) for k in (5, 1, 4)} | {problem(2).id: 0.5}
    left_out = {problem(3).id: LeftOut.TUNED, problem(6).id: LeftOut.NO_SHARE}
    campaign = CampaignShares(200.0, shares, left_out)
    settings = TuningSettings(POLICY, Budget(candidates=7))
    created = tunings.submit(HERE.device_class, settings, items, campaign=campaign)
    assert (created.total, len(created.new_jobs), created.shared, created.known) == (4, 4, 0, 0)
    assert seconds_of(engine, created) == [
        (problem(5).id, 5, 50.0), (problem(1).id, 1, 10.0), (problem(4).id, 4, 40.0), (problem(2).id, 2, 0.5),
    ]  # fmt: skip
    assert {job(engine, name)["request"]["budget"]["candidates"] for name in created.new_jobs} == {7}
    assert {name for name, _, _ in queued(engine)} == set(created.new_jobs)
    with reading(engine) as connection:
        row = queries.tuning(connection, created.id)
    assert row is not None
    assert row["request"]["campaign"] == {"seconds": 200.0, "left_out": {"tuned": 1, "no_share": 1}}
    again = tunings.submit(HERE.device_class, settings, items, campaign=campaign)
    assert (again.shared, again.new_jobs) == (4, [])


def test_a_campaign_without_shares_is_a_tuning_that_has_succeeded(tunings: Tunings, engine: Engine) -> None:
    campaign = CampaignShares(5.0, {}, {A.id: LeftOut.TUNED})
    created = tunings.submit(HERE.device_class, TuningSettings(POLICY), [(A, 1)], campaign=campaign)
    assert (created.total, created.new_jobs, queued(engine)) == (0, [], [])
    with reading(engine) as connection:
        row = queries.tuning(connection, created.id)
    assert row is not None
    assert (row["status"], row["total"]) == ("succeeded", 0)
    assert tunings.cancel(created.id), "it is there, and stays as it is"


def test_a_submission_that_ends_before_it_is_acknowledged_leaves_nothing_to_measure(
    tunings: Tunings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tunings.PIECE", 2)
    items = [(each, 1) for each in (A, B, C)]
    with monkeypatch.context() as patched:
        patched.setattr(rows, "create_tuning", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            submit(tunings, *items)
    assert queued(engine) == []
    with writing(engine) as connection:
        assert not jobs.has_waiting(connection, str(HERE.device_class))
        assert jobs.next_to_enqueue(connection, str(HERE.device_class), 10) == []
        assert rows.discard_unlinked(connection) == 3
    created = submit(tunings, *items)
    assert (len(created.new_jobs), len(queued(engine))) == (3, 3)


@pytest.mark.parametrize("where", ["create_tuning", "put", "emit"])
def test_a_failure_in_the_middle_leaves_neither(
    tunings: Tunings, engine: Engine, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    before = counts(engine)
    place: tuple[Any, str] = (JobQueue, where) if where == "put" else (rows, where)
    real = getattr(*place)

    def fails_afterwards(*arguments: Any) -> None:
        real(*arguments)
        raise GemmtuneError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(*place, fails_afterwards)
        with pytest.raises(GemmtuneError, match="planted"):
            submit(tunings, (A, 1), (B, 1))
    assert counts(engine) == before
    assert queued(engine) == []
    assert len(submit(tunings, (A, 1), (B, 1)).new_jobs) == 2
    assert len(queued(engine)) == 2


@ON_POSTGRES
def test_nothing_is_acknowledged_that_was_not_kept(
    postgres: PostgresServer, tunings: Tunings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JobQueue.put

    def restarts_the_server(*arguments: Any) -> None:
        real(*arguments)
        postgres.restart()

    with monkeypatch.context() as patched:
        patched.setattr(JobQueue, "put", restarts_the_server)
        with pytest.raises(DatabaseUnavailable):
            submit(tunings, (A, 1))
    assert set(counts(engine).values()) == {0}
    assert queued(engine) == []
    created = submit(tunings, (A, 1))
    postgres.restart()
    assert [row[0] for row in queued(engine)] == created.new_jobs, "what was acknowledged is there"


# ---- cancelling --------------------------------------------------------------------------------


def test_cancelling_takes_the_jobs_out_of_the_queue(tunings: Tunings, engine: Engine) -> None:
    first, second = submit(tunings, (A, 1), (B, 1)), submit(tunings, (B, 1))
    assert tunings.cancel(first.id)
    states = {name: status for name, status, _ in queued(engine)}
    assert states == {first.new_jobs[0]: "CANCELLED", first.new_jobs[1]: "ENQUEUED"}
    assert tunings.cancel(second.id)
    assert {status for _, status, _ in queued(engine)} == {"CANCELLED"}
    assert tunings.cancel(first.id), "again changes nothing"
    assert not tunings.cancel("tuning-unknown")


def test_a_crash_before_the_queue_is_told_leaves_a_job_that_nobody_starts(
    tunings: Tunings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = submit(tunings, (A, 1))

    def crashes(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(JobQueue, "drop", crashes)
        with pytest.raises(KeyboardInterrupt):
            tunings.cancel(created.id)
    assert [status for _, status, _ in queued(engine)] == ["ENQUEUED"]
    with writing(engine) as connection:
        assert start_job(connection, created.new_jobs[0], "worker-1") is None
    assert job(engine, created.new_jobs[0])["status"] == "cancelled"


# ---- requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "search", "rule"),
    [
        (Budget(), Search(), DecisionRule()),
        (
            Budget(0.5, 3, 0.25),
            Search("exhaustive", 7, ("stream", "packed")),
            DecisionRule(0.1, 0.9, 4, 9),
        ),
        (Budget(candidates=1), Search(families=()), DecisionRule(margin=0.0)),
        (Budget(), Search(options={"near_turns": 3, "gain": 0.5}), DecisionRule()),
    ],
)
def test_a_request_is_read_back_as_it_was_asked(budget: Budget, search: Search, rule: DecisionRule) -> None:
    content = request_content(budget, search, rule)
    read = read_request(content)
    assert (read[0], read[2]) == (budget, rule)
    assert (read[1].strategy, read[1].seed) == (search.strategy, search.seed)
    assert read[1].options == search.options
    assert ("options" in content["search"]) == bool(search.options), "as requests of earlier versions"
    wanted = None if search.families is None else tuple(sorted(search.families))
    assert read[1].families == wanted
    assert request_content(*read) == content


def test_the_order_of_families_is_no_part_of_a_request() -> None:
    one, two = (Search(families=families) for families in (("a", "b"), ("b", "a", "a")))
    contents = [request_content(Budget(), search, DecisionRule()) for search in (one, two)]
    assert contents[0] == contents[1]
