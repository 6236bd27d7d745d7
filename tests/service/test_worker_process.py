"""A worker's process: its priority."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine

from backends.registry import FoundDevice
from service.commands import run
from service.device_lock import DeviceLock
from service.settings import Settings
from tests.fleet import GPU_CLASS
from tuners.niceness import NICENESS


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is the process's elsewhere")
@pytest.mark.parametrize(("device", "steps"), [(GPU_CLASS, 1), ("cpu", 0)])
def test_a_worker_gives_way_to_other_programs_unless_its_device_is_the_host(
    three_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, steps: int
) -> None:
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{tmp_path / 'gemmtune.sqlite'}")
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(run, "log_to_stderr", lambda _json: None)
    found: list[int] = []

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def made(_settings: Settings, engine: Engine, _device: FoundDevice, lock: DeviceLock) -> None:
        found.append(niceness())
        lock.release()
        engine.dispose()

    monkeypatch.setattr("service.worker.Worker", made)
    monkeypatch.setattr("service.worker_process.run_worker", lambda _worker: None)
    with ThreadPoolExecutor(1) as pool:  # niceness is a thread's own
        pool.submit(run.worker, device).result()
    assert found == [min(19, niceness() + steps * NICENESS)]
