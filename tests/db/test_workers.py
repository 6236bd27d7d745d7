"""Workers: they live while their counter rises, and the next one of a device finds the last one dead."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from threading import Thread

import pytest
from sqlalchemy import Connection, Engine, update

from backends.errors import AmbiguousDevice, UnknownDevice
from db import classes, environments, fleet, gauges, liveness, models, queries, workers
from db.engine import writing
from db.lookup import open_lookup
from db.values import put_environment, table
from tests.db.samples import CLASS, HERE, UPDATED
from tests.postgres import ON_POSTGRES

OTHER = replace(HERE, uuid="CPU-2")


def rows(connection: Connection) -> dict[str, dict[str, object]]:
    return {row["id"]: row for row in fleet.workers(connection, None, 100)}


def test_without_any_device_it_is_said_what_to_do() -> None:
    with pytest.raises(UnknownDevice, match=r"^no device is known yet: tune a problem on this machine"):
        classes.Classes().resolve(None)
    with pytest.raises(UnknownDevice, match=r"^no device matches 'cuda'; available: none$"):
        classes.Classes().resolve("cuda")


def test_a_worker_beats_until_it_is_marked(engine: Engine) -> None:
    with writing(engine) as connection:
        assert workers.register(connection, "one", "host", 11, HERE) == []
        row = rows(connection)["one"]
        assert (row["host"], row["pid"], row["status"], row["beat"]) == ("host", 11, "idle", 0)
        assert (row["device_class_id"], row["environment_id"]) == (CLASS, HERE.id)
        assert workers.beats(connection) == {"one": 0}
        assert workers.beat(connection, "one", "measuring", "job-1")
        assert workers.beat(connection, "one", "measuring", "job-1")
        assert workers.beats(connection) == {"one": 2}
        row = rows(connection)["one"]
        assert (row["status"], row["job_id"]) == ("measuring", "job-1")
        workers.mark(connection, ["one"], "stopped")
        row = rows(connection)["one"]
        assert (row["status"], row["job_id"]) == ("stopped", None)
        assert workers.beats(connection) == {}
        assert not workers.beat(connection, "one", "idle", None)
        assert rows(connection)["one"]["beat"] == 2, (
            "a worker that was taken for dead is told, and nothing else"
        )
        assert not workers.beat(connection, "unknown", "idle", None)


def test_only_earlier_workers_of_the_same_device_are_dead(engine: Engine) -> None:
    with writing(engine) as connection:
        workers.register(connection, "same", "host", 1, HERE)
        workers.register(connection, "updated", "host", 2, replace(UPDATED, uuid="CPU-3"))
        workers.register(connection, "device", "host", 3, OTHER)
        assert workers.register(connection, "next", "host", 5, HERE) == ["same"]
        found = {name: row["status"] for name, row in rows(connection).items()}
        assert found == {"same": "dead", "updated": "idle", "device": "idle", "next": "idle"}
        assert not workers.beat(connection, "same", "idle", None)
        assert workers.register(connection, "last", "host", 6, HERE) == ["next"], "the dead die once"


def test_a_registration_whose_acknowledgement_was_lost_is_one_worker(engine: Engine) -> None:
    for _ in range(2):
        with writing(engine) as connection:
            assert workers.register(connection, "one", "host", 11, HERE) == []
            assert workers.beats(connection) == {"one": 0}


def test_a_lock_that_is_held_proves_that_the_last_holder_is_dead(engine: Engine) -> None:
    with writing(engine) as connection:
        workers.register(connection, "one", "host", 1, HERE, lock="a")
        assert workers.register(connection, "two", "renamed", 2, HERE, lock="a") == ["one"]
        assert set(workers.beats(connection)) == {"two"}


def test_a_device_is_leased_to_one_worker(engine: Engine) -> None:
    """Two machines with equal names and ids have different locks: neither may declare the other dead."""
    with writing(engine) as connection:
        workers.register(connection, "one", "host", 1, HERE, lock="boot-1:a")
    with (
        pytest.raises(
            workers.DeviceLeased, match=r"CPU-1 belongs to worker one on host host \(process 1\)"
        ) as held,
        writing(engine) as connection,
    ):
        workers.register(connection, "two", "host", 2, HERE, lock="boot-2:a")
    assert (held.value.worker_id, held.value.beat) == ("one", 0)
    with writing(engine) as connection:
        assert set(workers.beats(connection)) == {"one"}
        workers.register(connection, "device", "host", 3, OTHER, lock="boot-2:b")
        assert workers.register(connection, "two", "host", 2, HERE, lock="boot-2:a", silent={"one"}) == [
            "one"
        ]
        assert set(workers.beats(connection)) == {"device", "two"}
        workers.mark(connection, ["two"], "stopped")
        assert workers.register(connection, "three", "host", 4, HERE, lock="boot-1:a") == [], (
            "it was given up"
        )


def test_only_workers_that_beat_within_the_window_count(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(engine) as connection:
        workers.register(connection, "one", "host", 1, HERE)
        workers.beat(connection, "one", "measuring", "job-1")
        assert gauges.live_workers(connection) == 1
        monkeypatch.setattr(liveness, "WINDOW_SECONDS", 0.05)
        time.sleep(0.1)
        assert gauges.live_workers(connection) == 0
        (found,) = queries.device_classes(connection)
        assert found["workers"] == 0
        assert gauges.gauges(connection)["workers"] == {}
        assert gauges.gauges(connection)["heartbeats"][CLASS, "one"] >= 0.1
        assert not rows(connection)["one"]["alive"]
        workers.beat(connection, "one", "measuring", "job-1")
        assert gauges.live_workers(connection) == 1


def test_a_silent_worker_is_no_live_worker_of_its_class(engine: Engine, database_url: str) -> None:
    """What counts workers counts heartbeats: selectors, lookups, staleness, and forgetting a class."""

    def looked_up() -> classes.Classes:
        async def read() -> classes.Classes:
            lookup = open_lookup(database_url)
            try:
                return await lookup.classes()
            finally:
                await lookup.close()

        return asyncio.run(read())

    with writing(engine) as connection:
        workers.register(connection, "one", "host", 1, HERE)
    assert looked_up().live == (HERE.device_class,)
    with writing(engine) as connection:
        assert classes.classes(connection).resolve(None) == HERE.device_class
        assert environments.present_environments(connection, CLASS) == [HERE.id]
        with pytest.raises(classes.ClassInUse):
            classes.forget(connection, CLASS)
        long_ago = {"seen_at": "2020-01-01T00:00:00.000Z"}
        connection.execute(update(table(models.Worker)).values(long_ago))
    assert looked_up().live == ()
    with writing(engine) as connection:
        with pytest.raises(AmbiguousDevice):
            classes.classes(connection).resolve(None)
        assert environments.present_environments(connection, CLASS) == []
        assert classes.forget(connection, CLASS)


def test_a_clock_that_was_set_back_makes_nobody_live(engine: Engine) -> None:
    with writing(engine) as connection:
        workers.register(connection, "one", "host", 1, HERE)
        connection.execute(update(table(models.Worker)).values(seen_at="2199-01-01T00:00:00.000Z"))
        assert gauges.live_workers(connection) == 0


def test_a_device_whose_libraries_changed_is_the_same_device(engine: Engine) -> None:
    with writing(engine) as connection:
        workers.register(connection, "before", "host", 1, HERE)
        assert workers.register(connection, "after", "host", 2, UPDATED) == ["before"]
        (found,) = queries.device_classes(connection)
        assert (found["workers"], found["environments"]) == (1, 2)


@pytest.mark.parametrize("status", ["dead", "stopped"])
def test_marking_is_for_those_named(engine: Engine, status: str) -> None:
    with writing(engine) as connection:
        for name, device in (("one", HERE), ("two", OTHER)):
            workers.register(connection, name, "host", 1, device)
        workers.mark(connection, [], status)
        assert set(workers.beats(connection)) == {"one", "two"}
        workers.mark(connection, ["one"], status)
        assert {name: row["status"] for name, row in rows(connection).items()} == {
            "one": status,
            "two": "idle",
        }
        assert gauges.gauges(connection)["workers"] == {"idle": 1}


@ON_POSTGRES
def test_new_devices_of_a_class_register_at_once(engine: Engine) -> None:
    """Each has stored its environment, which refers to the class, when it locks the class."""
    with writing(engine) as connection:
        workers.register(connection, "one", "host", 11, HERE)

    def register() -> None:
        with writing(engine) as connection:
            workers.register(connection, "two", "host", 12, OTHER)

    thread = Thread(target=register)
    third = replace(HERE, uuid="CPU-3")
    with writing(engine) as connection:
        put_environment(connection, third, registered=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "it waits for a registration that would wait for it"
        workers.register(connection, "three", "host", 13, third)
        assert set(workers.beats(connection)) == {"one", "two", "three"}
