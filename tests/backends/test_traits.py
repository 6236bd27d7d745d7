"""Every backend's devices are measured as its vendor's row says."""

from __future__ import annotations

import pytest

from backends.registry import BACKENDS, backend
from backends.traits import VENDOR_TRAITS


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_has_its_vendors_traits(name: str) -> None:
    assert backend(name).traits == VENDOR_TRAITS[name]
    assert set(backend(name).traits.modes) <= {"eager", "graph"}
