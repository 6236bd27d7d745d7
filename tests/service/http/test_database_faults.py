"""The database away, locked, damaged, restored: answers that say so, and that come back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from db import schema
from db.engine import open_engine
from service.settings import Settings
from tests.postgres import PostgresServer
from tests.service.http.filled import ENVIRONMENT, fill, problem, register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of

ONE = {"m": 16, "n": 256, "k": 512}
JSON = {"Content-Type": "application/json"}
READS = [
    "/readyz", "/v1/tunings", "/v1/tunings/tuning-1", "/v1/problems", "/v1/problems/x", "/v1/devices",
    "/v1/environments", "/v1/solutions/x", "/v1/solutions/best?m=16&n=256&k=512", "/v1/exports/json",
    "/v1/problems/x/measurements", "/v1/tunings/tuning-1/events",
]  # fmt: skip


def all_fail(client: httpx.Client, name: str) -> None:
    """Every route that needs the database says 503, and when to come back; the others work."""
    for url in READS:
        response = client.get(url)
        fault = fault_of(response, 503)
        assert fault["type"] == f"urn:gemmtune:{name}", url
        assert response.headers["retry-after"] == "2"
    for url in ("/v1/tunings", "/v1/solutions/best"):
        fault_of(client.post(url, json={"problems": [ONE]}), 503)
    fault_of(client.delete("/v1/tunings/tuning-1"), 503)
    upload = client.post("/v1/imports/json", content=b'[{"m":1,"n":1,"k":1}]', headers=JSON)
    fault_of(upload, 503)
    assert client.get("/healthz").status_code == 200
    assert client.get("/v1/backends").status_code == 200
    assert client.get("/metrics").status_code == 200


def test_a_server_that_is_away(tmp_path: Path) -> None:
    with serving(Settings(database_url="postgresql://u:p@127.0.0.1:9/none")) as client:
        all_fail(client, "database-unavailable")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"this is no database" * 1000)
    with serving(Settings(database_url=f"sqlite:///{path}")) as client:
        all_fail(client, "database-broken")
    assert path.read_bytes() == b"this is no database" * 1000


def test_a_file_that_is_damaged_later(settings: Settings, engine: Engine) -> None:
    fill(engine, [problem(**ONE)])
    engine.dispose()
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with serving(settings) as client:
        for url in ("/v1/problems", "/v1/devices", "/v1/solutions/best?m=16&n=256&k=512"):
            fault_of(client.get(url), 503)
        assert client.get("/healthz").status_code == 200


def test_a_locked_file_is_read_and_waited_for(settings: Settings, engine: Engine) -> None:
    fill(engine, [problem(**ONE)])
    path = settings.database_url.removeprefix("sqlite:///")
    with serving(settings) as client:
        locker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        locker.execute("BEGIN EXCLUSIVE")
        for url in READS[1:10]:
            assert client.get(url).status_code in (200, 404), url
        timer = threading.Timer(0.5, locker.rollback)
        timer.start()
        assert client.post("/v1/tunings", json={"problems": [ONE]}).status_code == 202
        timer.join()
        locker.close()


def test_a_lock_that_stays_is_503(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("db.engine.BUSY_SECONDS", 0.2)
    register(engine, ENVIRONMENT)
    with serving(settings) as client:
        assert client.post("/v1/tunings", json={"problems": [ONE]}).status_code == 202
        locker = sqlite3.connect(settings.database_url.removeprefix("sqlite:///"), isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        fault = fault_of(client.post("/v1/tunings", json={"problems": [ONE]}), 503)
        assert fault["type"] == "urn:gemmtune:database-unavailable"
        locker.rollback()
        locker.close()
        assert client.post("/v1/tunings", json={"problems": [ONE]}).status_code == 202


def test_a_restored_backup_is_seen(settings: Settings, engine: Engine, tmp_path: Path) -> None:
    """A file that takes the name of another is opened, not the one that was."""
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    backup = tmp_path / "backup.sqlite"
    other = open_engine(f"sqlite:///{backup}")
    shutil.copyfile(path, backup)
    fill(other, [problem(**ONE)])
    other.dispose()
    register(engine, ENVIRONMENT)
    engine.dispose()
    with serving(settings) as client:
        url = "/v1/solutions/best"
        assert client.get(url, params=ONE).json()["match"] == "default"
        for name in ("-wal", "-shm"):
            Path(f"{path}{name}").unlink(missing_ok=True)
        backup.replace(path)
        time.sleep(1.1)
        assert client.get(url, params=ONE).json()["match"] == "exact"


@pytest.mark.parametrize("what", ["deleted", "replaced", "read-only"])
def test_nothing_is_accepted_that_would_be_lost(settings: Settings, engine: Engine, what: str) -> None:
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    register(engine, ENVIRONMENT)
    with serving(settings) as client:
        assert client.post("/v1/tunings", json={"problems": [ONE]}).status_code == 202
        assert client.get("/readyz").json() == {"status": "ready", "schema": schema.head(), "workers": 1}
        if what == "deleted":
            path.unlink()
        elif what == "replaced":
            shutil.copyfile(path, path.with_suffix(".copy"))
            path.with_suffix(".copy").replace(path)
        else:
            path.chmod(0o444)
        refused = client.post("/v1/tunings", json={"problems": [{**ONE, "m": 77}]})
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:gemmtune:database-broken")
        assert refused.json()["detail"].startswith(f"the database file {path} ")
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["type"]) == (503, "urn:gemmtune:database-broken")


# ---- PostgreSQL ------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_server_that_goes_and_comes_back(postgres: PostgresServer, postgres_template: str) -> None:
    name = postgres.create(postgres_template)
    settings = Settings(database_url=postgres.url(name))
    engine = open_engine(settings.database_url)
    fill(engine, [problem(**ONE)])
    with serving(settings) as client:

        def works() -> None:
            assert client.get("/v1/solutions/best", params=ONE).json()["match"] == "exact"
            assert client.get("/v1/solutions/best", params={**ONE, "m": 24}).json()["match"] == "nearest"
            assert client.get("/v1/exports/json").status_code == 200
            assert client.get("/readyz").status_code == 200

        works()
        postgres.restart()  # every kept connection is cut
        works()
        with postgres.away():
            all_fail(client, "database-unavailable")
        works()
    engine.dispose()
    postgres.drop(name)


@pytest.mark.postgres
def test_text_that_postgres_refuses_is_no_crash(postgres: PostgresServer, postgres_template: str) -> None:
    name = postgres.create(postgres_template)
    settings = Settings(database_url=postgres.url(name))
    engine = open_engine(settings.database_url)
    fill(engine, [problem(**ONE)])
    with serving(settings) as client:
        for url in ("problems/%00", "tunings/a%00", "solutions/%00", "exports/json?device=%00"):
            fault_of(client.get(f"/v1/{url}"), 404)
        for query in ("policy=%00", "dtype=%00", "families=%00"):
            fault_of(client.get(f"/v1/solutions/best?m=1&n=1&k=1&{query}"), 422)
        fault_of(client.get(f"/v1/problems?m={2**31}"), 422)
        body: Any = {"problems": [{**ONE, "dtype": "a\0"}], "search": {"families": ["\0"]}, "device": "\0"}
        fault_of(client.post("/v1/tunings", json=body), 422)
        upload = client.post(
            "/v1/imports/auto", content=b'[{"m":1,"n":1,"k":1}]', headers=JSON, params={"source": "a\0b"}
        )
        assert upload.json()["provenance"]["source"] == "a\ufffdb"
        assert client.post("/v1/tunings", json={"problems": [ONE]}).status_code == 202
    engine.dispose()
    postgres.drop(name)
