"""Two versions share a database: servers and workers are upgraded one after the other, and no job is lost.

The old version is a wheel that was kept (tests/service/old_version.py). The new one is this source with one
migration more, as a later release would have: the old version works with a schema that it does not know.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from backends.cache import BinaryCache
from db import schema
from db.engine import open_engine, reading, writing
from tests.postgres import PostgresServer
from tests.service.old_version import FOLDER, ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

PACKAGES = ("backends", "db", "service", "tuners")
LATER = f"{int(schema.head()) + 1:04d}"
MIGRATION = f'''"""A later version's: a column with a default, and a table"""
import sqlalchemy as sa
from alembic import op

revision = "{LATER}"
down_revision = "{schema.head()}"
branch_labels = None
depends_on = None
keeps_older = True


def upgrade() -> None:
    op.add_column("jobs", sa.Column("of_a_later_version", sa.Integer(), nullable=False, server_default="7"))
    op.create_table("later", sa.Column("id", sa.Integer(), primary_key=True))
'''
ENDED = ("succeeded", "failed", "cancelled")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the import packages of both versions."""
    old, new = tmp_path_factory.mktemp("old"), tmp_path_factory.mktemp("new")
    (wheel,) = FOLDER.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(old)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, new / package)
    (new / "db" / "migrations" / "versions" / f"{LATER}_a_later_version.py").write_text(MIGRATION)
    return {"old": old, "new": new}


@dataclass
class Fleet:
    """A database and the processes of either version that use it."""

    versions: dict[str, Path]
    url: str
    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, version: str, *command: str) -> subprocess.Popen[str]:
        """Starts a command of a version; what it prints goes into a file."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.versions[version]),
            "PYTHONDONTWRITEBYTECODE": "",  # several processes of each version start
            "GEMMTUNE_DATABASE_URL": self.url,
            "GEMMTUNE_CACHE_DIR": str(self.folder / "cache"),
            "GEMMTUNE_PRETUNED": "false",
            "GEMMTUNE_PRECOMPILE": "false",
        }
        with (self.folder / f"log-{len(self.processes)}").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "service.entry", *command], cwd=self.folder, env=environment,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def logs(self) -> str:
        """The end of what each process has logged."""
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("log-*")))

    def run(self, version: str, *command: str) -> None:
        """Runs a command of a version to its end."""
        process = self.start(version, *command)
        process.communicate(timeout=90)
        assert process.returncode == 0, self.logs()

    def serve(self, version: str) -> str:
        """Starts a server of a version; its address."""
        process = self.start(version, "serve", "--no-worker", "--port", "0")
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, self.logs()
        return line.split("gemmtune serves ")[1].split()[0]

    def stop(self, process: subprocess.Popen[str]) -> None:
        """Ends a process as an operator does."""
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    def close(self) -> None:
        """Ends what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.exhaustive])]
)
def fleet(
    request: pytest.FixtureRequest, versions: dict[str, Path], tmp_path: Path, cache: BinaryCache
) -> Iterator[Fleet]:
    shutil.copytree(cache.root.parent / "ceilings", tmp_path / "cache" / "ceilings")
    server = PostgresServer() if request.param == "postgresql" else None
    if server is not None:
        server.start()
    url = f"sqlite:///{tmp_path / 'gemmtune.sqlite'}" if server is None else server.url(server.create())
    made = Fleet(versions, url, tmp_path)
    try:
        yield made
    finally:
        made.close()
        if server is not None:
            server.remove()


def submit(url: str, n: int) -> str:
    """Posts a small problem; the tuning's id."""
    wanted = {
        "problems": [{"m": 8, "n": n, "k": 64, "dtype": "fp32"}], "device": "cpu",
        "budget": {"seconds_per_problem": 0.1, "candidates": 1}, "search": {"families": ["openblas"]},
    }  # fmt: skip
    answer = httpx.post(f"{url}/v1/tunings", json=wanted, timeout=30)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def until(true: Callable[[], bool], fleet: Fleet, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, fleet.logs()
        time.sleep(0.1)


def ready(url: str) -> tuple[int, int]:
    """The status code of /readyz, and the number of live workers; zeros before the server listens."""
    try:
        answer = httpx.get(f"{url}/readyz", timeout=30)
    except httpx.ConnectError:
        return 0, 0
    return answer.status_code, answer.json().get("workers", 0)


def forget_calls(url: str) -> None:
    """Empties the job engine's table of calls."""
    engine = open_engine(url)
    calls = "dbos.workflow_status" if engine.dialect.name == "postgresql" else "workflow_status"
    try:
        with writing(engine) as connection:
            assert connection.execute(text(f"DELETE FROM {calls}")).rowcount >= 1
    finally:
        engine.dispose()


def status(url: str, tuning: str) -> Any:
    return httpx.get(f"{url}/v1/tunings/{tuning}", timeout=30).json()["status"]


def test_old_and_new_servers_and_workers_finish_each_others_jobs(fleet: Fleet) -> None:
    """The order of an upgrade: the schema, a server, a worker. The old worker starts on a schema that it does
    not know."""
    fleet.run("old", "db", "upgrade")
    old_server = fleet.serve("old")
    fleet.run("new", "db", "upgrade")  # while the old server runs
    new_server = fleet.serve("new")
    old_worker = fleet.start("old", "worker", "--device", "cpu")
    for url in (old_server, new_server):  # ready, and each knows the worker: tunings need a registered device
        until(lambda url=url: ready(url) == (200, 1), fleet)  # type: ignore[misc]
    old_job, new_job = submit(old_server, 64), submit(new_server, 128)
    until(lambda: status(old_server, new_job) == status(new_server, old_job) == "succeeded", fleet)

    fleet.stop(old_worker)
    waiting = submit(old_server, 192)
    # A later version's engine may not read an older one's queue; the rows are what counts.
    forget_calls(fleet.url)
    fleet.run("new", "db", "upgrade")
    new_worker = fleet.start("new", "worker", "--device", "cpu")
    until(lambda: status(old_server, waiting) == "succeeded", fleet)
    for url in (old_server, new_server):  # each shows what all have done
        assert [status(url, one) for one in (old_job, new_job, waiting)] == ["succeeded"] * 3
    fleet.stop(new_worker)

    engine = open_engine(fleet.url)
    try:
        with reading(engine) as connection:
            found = connection.execute(text("SELECT of_a_later_version FROM jobs")).scalars().all()
        assert schema.current(engine) == LATER
        assert found == [7, 7, 7]
    finally:
        engine.dispose()


@pytest.mark.exhaustive
def test_a_schema_that_does_not_keep_the_old_version_stops_it(fleet: Fleet) -> None:
    migration = fleet.versions["new"] / "db" / "migrations" / "versions" / f"{LATER}_a_later_version.py"
    migration.write_text(MIGRATION.replace("keeps_older = True", "keeps_older = False"))
    try:
        fleet.run("old", "db", "upgrade")
        server = fleet.serve("old")
        fleet.run("new", "db", "upgrade")
        assert httpx.get(f"{server}/readyz", timeout=30).status_code == 503
        process = fleet.start("old", "worker", "--device", "cpu")
        process.communicate(timeout=60)
        assert process.returncode != 0
        assert "install the newer one" in fleet.logs()
    finally:
        migration.write_text(MIGRATION)
