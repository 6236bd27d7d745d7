"""Detects that the process was forked: a driver's context, and a CPU's threads, stay with the parent."""

from __future__ import annotations

import os

from gemmtune.errors import LaunchError

#: The current process's id. A launch compares it with the one that loaded the kernel, without a system call.
current = os.getpid()


def _forked() -> None:
    global current
    current = os.getpid()


os.register_at_fork(after_in_child=_forked)


def check(owner: int) -> None:
    """Raises LaunchError if the process `owner` is not this one."""
    if owner != current:
        raise LaunchError(
            f"process {owner} loaded the kernels and was then forked; this is process {current}, where the "
            "device's driver does not work: start processes with multiprocessing's method 'spawn', or load "
            "the table after the fork"
        )
