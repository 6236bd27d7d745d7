"""A device runner on this machine's CPU, and the planted backend registered beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.registry import FoundDevice, find_device


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> BinaryCache:
    """Compiled kernels of this test run."""
    return BinaryCache(Path(tmp_path_factory.mktemp("kernels")))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> FoundDevice:
    """This CPU under the planted backend."""
    monkeypatch.setitem(registry.BACKENDS, "planted", "tests.tuners.planted:PlantedBackend")
    return FoundDevice("planted", 0, find_device("cpu").environment)
