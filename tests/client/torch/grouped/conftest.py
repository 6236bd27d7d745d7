"""The table of a module's own rows of emulated kernels, compiled once a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.cache import BinaryCache


@pytest.fixture(scope="module")
def bundle(
    request: pytest.FixtureRequest, cache: BinaryCache, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The bundle of the module's problems(), each with its family. `table` of the folder above loads it."""
    from tests.client.torch.quantised.emulated import write

    path = tmp_path_factory.mktemp("grouped") / "rows.gtb"
    return write(path, request.module.problems(), cache, default="torch-grouped")
