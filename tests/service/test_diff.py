"""What becomes of winners when an environment changes: their fates, and how they are measured again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select

from backends.environment import Environment
from backends.errors import InvalidProblem
from backends.outcome import Outcome, Status
from backends.problem import GemmProblem
from backends.solution import Solution
from db import models, sessions, workers
from db.engine import reading, writing
from db.values import put_environment, table
from service.diff import compare_named
from service.revalidation import PRIORITY, queue_revalidation, stale_winners
from service.settings import Settings
from service.store import DirectStore
from service.tunings import Tunings
from service.worth_text import COLUMNS, diff_text
from tests.db.samples import (
    BASELINE,
    CLASS,
    HERE,
    POLICY,
    UPDATED,
    candidate,
    problem,
    screened,
    start,
    store_session,
    won,
)
from tests.postgres import ON_SQLITE
from tests.service.test_worth import listed
from tuners.budget import Budget
from tuners.session_store import SessionSpec
from tuners.tuning_settings import TuningSettings

OLD, NEW = candidate(4), candidate(8)
#: A library's call in the build before and after.
CALL = [Solution("cublas-like", 1, {"algorithm": 3}, build=build) for build in ("1", "2")]


def measured(
    connection: Connection, of: GemmProblem, winner: Solution, environment: Environment, *others: Outcome,
    ties: tuple[str, ...] = (),
) -> None:  # fmt: skip
    begun = start(of, environment=environment)
    if not ties:
        store_session(connection, begun, winner, others=others)
        return
    sessions.begin_session(connection, begun)
    outcomes = [screened(BASELINE, 3e-6), screened(winner, 1e-6), *others]
    sessions.append_outcomes(connection, begun.id, outcomes, 1, Counter())
    result = won(of, winner)
    result["verdict"]["tie_set"] += ties
    sessions.end_session(connection, begun, result)


def diff(engine: Engine, before: str = HERE.id, after: str = UPDATED.id) -> dict[str, Any]:
    with reading(engine) as connection:
        return compare_named(connection, before, after, POLICY.id)


@pytest.fixture
def changed(engine: Engine) -> Engine:
    """A library was updated. Winners by n of their problems, before and after."""
    with writing(engine) as connection:
        for m in (1, 2, 3, 4, 5, 7):
            measured(connection, problem(m), OLD, HERE)
        measured(connection, problem(6), CALL[0], HERE)
        measured(connection, problem(8), BASELINE, HERE)
        measured(connection, problem(1), OLD, UPDATED)
        measured(connection, problem(2), NEW, UPDATED, screened(OLD, 1e-6), ties=(OLD.id,))
        measured(connection, problem(3), NEW, UPDATED, screened(OLD, 2e-6))
        measured(connection, problem(4), NEW, UPDATED, screened(OLD, status=Status.WRONG_RESULT))
        measured(connection, problem(5), BASELINE, UPDATED)
        measured(connection, problem(6), CALL[1], UPDATED)
        measured(connection, problem(8), NEW, UPDATED)
    return engine


def test_every_winner_has_a_fate(changed: Engine) -> None:
    found = diff(changed)
    fates = {one["problem"]["m"]: (one["fate"], one["reason"]) for one in found["items"]}
    assert fates == {
        1: ("kept", "won again"),
        2: ("kept", "ties with the winner"),
        3: ("beaten", f"by {NEW.id}"),
        4: ("broken", "wrong_result"),
        5: ("retired", "packed 1 could not be tried"),
        6: ("kept", "won again"),
        7: ("pending", "not measured there yet"),
    }
    assert found["counts"] == {"kept": 3, "beaten": 1, "broken": 1, "retired": 1, "pending": 1}
    assert found["changes"] == ["blas 1 is now 2"]
    third = next(one for one in found["items"] if one["problem"]["m"] == 3)
    assert (third["before"]["winner_id"], third["after"]["winner_id"]) == (OLD.id, NEW.id)


def test_a_winner_that_the_default_overtook_is_beaten(engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(1), OLD, HERE)
        measured(connection, problem(1), BASELINE, UPDATED, screened(OLD, 4e-6))
    (one,) = diff(engine)["items"]
    assert (one["fate"], one["reason"]) == ("beaten", "by the default, numpy")


def test_devices_with_the_same_software_count_as_one(changed: Engine) -> None:
    twin = replace(UPDATED, uuid="CPU-2")
    with writing(changed) as connection:
        measured(connection, problem(7), OLD, twin)
    found = diff(changed)
    assert found["counts"]["pending"] == 0
    assert set(found["after"]) == {UPDATED.id, twin.id}
    assert diff(changed, after=twin.id.rpartition("-")[2])["counts"] == found["counts"]


def test_what_cannot_be_compared_is_refused(changed: Engine) -> None:
    other = replace(HERE, product="Another")
    with writing(changed) as connection:
        put_environment(connection, other)
    with pytest.raises(InvalidProblem, match="no environment 'none' is known"):
        diff(changed, before="none")
    with pytest.raises(InvalidProblem, match="two of one device class"):
        diff(changed, after=other.id)


def test_the_text_lists_what_is_not_kept(changed: Engine) -> None:
    text = diff_text(diff(changed), most=3)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "3 kept, 1 beaten, 1 broken, 1 retired, 1 pending" in text
    assert text.endswith("and 1 more")


# ---- measured again ------------------------------------------------------------------------------


class Recorded:
    """A queue that only writes down what is put into it."""

    def __init__(self) -> None:
        self.put_jobs: list[tuple[int, int]] = []

    def put(self, _connection: Connection, _queue: str, job_ids: list[str], priority: int) -> None:
        self.put_jobs.append((len(job_ids), priority))


def revalidate(engine: Engine, **settings: Any) -> list[tuple[int, int]]:
    queue = Recorded()
    made = Tunings(engine, queue)  # type: ignore[arg-type]
    list(queue_revalidation(engine, made, Settings(**settings), UPDATED))
    return [one for one in queue.put_jobs if one[0]]


def test_a_worker_in_a_new_environment_has_stale_winners_measured_again(engine: Engine) -> None:
    with writing(engine) as connection:
        for m, winner in ((1, OLD), (2, OLD), (3, OLD), (4, BASELINE)):
            measured(connection, problem(m), winner, HERE)
        listed(connection, "app.csv", {problem(2): 50, problem(3): 7})
        workers.register(connection, "worker-1", "host", 1, HERE)
        assert stale_winners(connection, CLASS, 10) == {}
    assert revalidate(engine) == []
    with writing(engine) as connection:
        workers.mark(connection, ["worker-1"], "stopped")
        workers.register(connection, "worker-2", "host", 2, UPDATED)
        found = stale_winners(connection, CLASS, 2)
    assert found == {POLICY.id: [(problem(2), 50), (problem(3), 7)]}, "those that save most come first"
    assert revalidate(engine, revalidate=0) == []
    assert revalidate(engine, revalidate=2) == [(2, PRIORITY)]
    assert revalidate(engine) == [(1, PRIORITY)], "what is queued already is shared"
    with reading(engine) as connection:
        (budget,) = {
            row.request["budget"]["seconds"] for row in connection.execute(select(table(models.Job)))
        }
    assert budget == 1.0


@ON_SQLITE
def test_earlier_winners_are_given_to_a_session_latest_first(engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(1), OLD, HERE)
        measured(connection, problem(1), NEW, UPDATED)
        measured(connection, problem(2), CALL[0], HERE)
    later = replace(HERE, libraries={"blas": "3"})
    spec = SessionSpec(problem(1), later, TuningSettings(POLICY, Budget(1.0)))
    found = DirectStore(engine).start(spec).winners
    assert [one.id for one in found] == [NEW.id, OLD.id]
