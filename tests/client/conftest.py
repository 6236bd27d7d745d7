"""Fixtures of the client's suites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gemmtune import drivers
from gemmtune.drivers import cuda, hip

from tests.client.stub import Stub, library


@pytest.fixture(params=["cuda", "hip"])
def stub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A vendor's driver, which is the tests' own."""
    yield from _installed(request.param, monkeypatch)


@pytest.fixture
def cuda_stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """CUDA's driver, which is the tests' own."""
    yield from _installed("cuda", monkeypatch)


def _installed(vendor: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    module = {"cuda": cuda, "hip": hip}[vendor]
    monkeypatch.setattr(module, "NAMES", (str(library(vendor)),))
    monkeypatch.setattr(drivers, "_open", {})
    found = Stub(vendor)
    yield found
    found.forget_current()
