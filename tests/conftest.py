"""Fixtures that several suites share."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.cache import BinaryCache


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> BinaryCache:
    """Compiled kernels of this test run."""
    return BinaryCache(Path(tmp_path_factory.mktemp("kernels")))
