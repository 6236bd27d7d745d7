"""The HIP backend on libraries of our own (on_host/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.hip import backend, driver
from tests.backends.hip.on_host.build import variables


@pytest.fixture
def on_host(rocm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process finds that ROCm. The file that faults are written to (GEMMTUNE_SHIM_FAULTS)."""
    faults = tmp_path / "faults"
    for name, value in variables(rocm, faults=str(faults)).items():
        monkeypatch.setenv(name, value)
    forget()
    return faults


def forget() -> None:
    """What earlier tests found out of the environment."""
    backend._look.cache_clear()
    driver.api.cache_clear()
