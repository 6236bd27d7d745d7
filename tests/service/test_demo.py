"""The demo waits for a worker no longer than there can be one."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from backends.errors import DeviceError
from db.engine import open_engine
from service.demo import wait_for_worker
from service.remote import Remote
from service.settings import Settings
from tests.service.http.filled import ENVIRONMENT, register
from tests.service.http.serving import serving

_WORKER = "ERROR service.serve the worker of cpu:a:b:1 (CPU-1) ended (exit code 1); it starts again in 1 s\n"
OLD = f"error: of an earlier run\n{_WORKER}"
ENDED = (
    "2026-01-31 INFO gemmtune.access method=GET path=/v1/devices\n"
    "error: device cpu:a:b:1 is in use by the worker with process id 7\n"
    f"2026-01-31 {_WORKER}"
    "2026-01-31 INFO gemmtune.access method=GET path=/v1/devices\n"
)


@pytest.fixture
def settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    path = tmp_path / "gemmtune.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    return Settings(database_url=f"sqlite:///{path}")


def test_a_worker_that_cannot_start_ends_the_demo_with_its_reason(settings: Settings, tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    log.write_text(OLD + ENDED)
    with (
        serving(settings) as client,
        Remote(str(client.base_url)) as remote,
        pytest.raises(DeviceError) as raised,
    ):
        wait_for_worker(remote, "cpu", log, len(OLD))
    assert str(raised.value) == (
        "the worker cannot start: device cpu:a:b:1 is in use by the worker with process id 7 "
        f"(all of it: {log})"
    )


def test_what_an_earlier_run_wrote_is_passed_over(settings: Settings, tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    log.write_text(OLD)
    engine: Engine = open_engine(settings.database_url)
    register(engine, ENVIRONMENT)
    engine.dispose()
    with serving(settings) as client, Remote(str(client.base_url)) as remote:
        wait_for_worker(remote, "cpu", log, len(OLD))
