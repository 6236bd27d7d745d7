"""Files that are trusted because only their owner could have written them: code that is loaded, locks.

A folder that others may write to, a link or a FIFO in place of a file: each lets another user of the machine
run code here, or stop a process for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from backends.errors import StorageError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_folder(path: Path) -> None:
    """Makes the folder, for this user alone, if it is missing. Raises StorageError for one that is another
    user's, or that others may write to; OSError if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raises StorageError for a folder that is another user's, or that others may write to. A link to a
    folder must be this user's, too."""
    if path.is_symlink() and path.lstat().st_uid != os.geteuid():
        raise _refused(path, "it is another user's link")
    _check(path, path.stat(), stat.S_ISDIR, "folder")


def check_file(path: Path) -> None:
    """Raises StorageError unless the path is a plain file of this user, no link, that others cannot write to.
    Raises OSError for a missing one."""
    _check(path, path.lstat(), stat.S_ISREG, "plain file")


def open_locked(path: Path) -> int:
    """A descriptor of a file of this user to lock, made if it is missing. Raises StorageError for a link, a
    FIFO, or a file of another user; OSError if it cannot be opened."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    if path.is_symlink():
        raise _refused(path, "it is a link")
    descriptor = os.open(path, flags, 0o600)
    try:
        _check(path, os.fstat(descriptor), stat.S_ISREG, "plain file")
    except StorageError:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: Path, found: os.stat_result, is_kind: Callable[[int], bool], kind: str) -> None:
    if not is_kind(found.st_mode):
        raise _refused(path, f"it is no {kind}")
    if found.st_uid != os.geteuid():
        raise _refused(path, f"it belongs to user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & _OTHERS_WRITE:
        raise _refused(path, f"others may write to it (mode {stat.S_IMODE(found.st_mode):04o})")


def _refused(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} cannot be trusted: {why}; remove it, run chmod go-w on it, or name another folder in "
        "GEMMTUNE_CACHE_DIR"
    )
