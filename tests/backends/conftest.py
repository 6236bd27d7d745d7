"""Fixtures of the Triton families' suites."""

from __future__ import annotations

import pytest

from backends.kernels.triton import nvidia_prior


@pytest.fixture
def own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates in the order of our own model, whatever is installed."""
    monkeypatch.setattr(nvidia_prior, "build", lambda: None)
