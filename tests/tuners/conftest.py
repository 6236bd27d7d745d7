"""The planted backend, registered beside the real ones."""

from __future__ import annotations

import pytest

from backends import registry
from backends.registry import FoundDevice, find_device


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> FoundDevice:
    """This CPU under the planted backend."""
    monkeypatch.setitem(registry.BACKENDS, "planted", "tests.tuners.planted:PlantedBackend")
    return FoundDevice("planted", 0, find_device("cpu").environment)
