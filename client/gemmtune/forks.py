"""Renews locks in a forked process: a thread that held one in the parent is not there to release it."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Owner(Protocol):
    """An object with a lock."""

    def after_fork(self) -> None:
        """Makes the lock free, in the forked process."""


_OWNERS: WeakSet[Owner] = WeakSet()


def register(owner: Owner) -> None:
    """Calls `owner.after_fork()` in every process that is forked from this one."""
    _OWNERS.add(owner)


def _after_fork() -> None:
    for owner in tuple(_OWNERS):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)
