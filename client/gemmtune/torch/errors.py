"""The exceptions of `gemmtune.torch`."""

from __future__ import annotations

from gemmtune.errors import GemmtuneError


class ServingError(GemmtuneError):
    """A table that cannot serve this process's torch, or this model; the text says why."""


class GroupError(ValueError):
    """Operands of a grouped product that do not fit each other."""
