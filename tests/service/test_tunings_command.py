"""gemmtune status, tunings and cancel, on a database and through a service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from db import tunings as rows
from db.engine import open_engine, writing
from service.cli import app
from service.settings import Settings
from tests.db.samples import HERE, problem, request
from tests.service.http.filled import register
from tests.service.http.serving import serving

Run = Callable[..., Result]


@pytest.fixture
def url(tmp_path: Path, sqlite_template: Path) -> str:
    path = tmp_path / "gemmtune.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = open_engine(url)
    register(made, HERE)
    yield made
    made.dispose()


@pytest.fixture(params=["database", "service"])
def run(
    url: str, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Runs a command on the database, or through a service on it."""
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", url)
    monkeypatch.delenv("GEMMTUNE_SERVER", raising=False)

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=True)

    if request.param == "database":
        yield command
        return
    with serving(Settings(database_url=url)) as client:
        monkeypatch.setenv("GEMMTUNE_SERVER", str(client.base_url))
        yield command


def answer(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def submitted(engine: Engine, count: int, seed: int = 0) -> str:
    with writing(engine) as connection:
        items = [(problem(m), 1) for m in range(1, count + 1)]
        return rows.create_tuning(connection, request(seed=seed), items).id


def test_the_status_says_what_works_waits_and_runs(run: Run, engine: Engine) -> None:
    idle = answer(run("status", "--json"))
    assert [row["device_class"] for row in idle["workers"]] == [str(HERE.device_class)]
    assert idle["queue"] == [{"device_class": str(HERE.device_class), "workers": 1, "queued": 0}]
    assert idle["tunings"] == []
    made = submitted(engine, 3)
    found = answer(run("status", "--json"))
    assert [row["id"] for row in found["tunings"]] == [made]
    said = run("status").output
    assert made in "".join(said.split())
    assert "0/3" in said


def test_the_queue_is_counted_by_class(url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", url)
    submitted(engine, 3)
    found = answer(CliRunner().invoke(app, ["status", "--json"]))
    assert found["queue"][0]["queued"] == 3
    with serving(Settings(database_url=url)) as client:
        there = CliRunner().invoke(app, ["status", "--json", "--server", str(client.base_url)])
    assert answer(there)["queue"] == found["queue"]
    assert answer(there)["service"]["answers"] is True


def test_tunings_are_listed_in_pages(run: Run, engine: Engine) -> None:
    assert run("tunings").output == "no tuning\n"
    made = [submitted(engine, 1, seed) for seed in range(3)]
    first = answer(run("tunings", "--limit", "2", "--json"))
    assert [row["id"] for row in first["items"]] == made[:0:-1]
    rest = answer(run("tunings", "--limit", "2", "--cursor", first["next_cursor"], "--json"))
    assert [row["id"] for row in rest["items"]] == made[:1]
    assert rest["next_cursor"] is None
    table = run("tunings", "--limit", "2")
    assert f"more: --cursor {first['next_cursor']}" in table.stderr
    assert answer(run("tunings", "--status", "failed", "--json"))["items"] == []
    assert "must be one of" in str(run("tunings", "--status", "odd").exception)
    assert "no cursor of this list" in str(run("tunings", "--cursor", "odd").exception)


def test_a_tuning_is_cancelled_once(run: Run, engine: Engine) -> None:
    made = submitted(engine, 2)
    done = answer(run("cancel", made, "--json"))
    assert (done["id"], done["status"]) == (made, "cancelled")
    again = run("cancel", made)
    assert again.exit_code == 0
    assert f"{made} had ended before: cancelled" in again.stderr
    assert "there is no tuning 'tuning-none'" in str(run("cancel", "tuning-none").exception)


def test_a_service_that_does_not_answer_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["status", "--json", "--server", "http://127.0.0.1:9"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["service"]["answers"] is False
    assert "is `gemmtune serve` running there?" in done.stderr
