"""The exception of `gemmtune.torch`."""

from __future__ import annotations

from gemmtune.errors import GemmtuneError


class ServingError(GemmtuneError):
    """A table that cannot serve this process's torch, or this model; the text says why."""
