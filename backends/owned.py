"""Files that are trusted because only their owner could have written them: code that is loaded, locks, the
audit log.

A folder that others may write to, a link or a FIFO in place of a file: each lets another user of the machine
run code here, stop a process for ever, or take lines out of a log.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from backends.errors import StorageError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_CACHE = "remove it, run chmod go-w on it, or name another folder in GEMMTUNE_CACHE_DIR"


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


def open_appended(path: Path, advice: str) -> int:
    """A descriptor to append to a file and to read it, made for this user alone if it is missing. The folder
    may be root's. Root may append to a file of any user: services have users of their own, and root looks
    after them. Raises StorageError, which ends with `advice`, for a link, a FIFO, a file of another user, and
    one that others may write to or replace; OSError if it cannot be opened."""
    folder = path.parent
    if path.is_symlink():
        raise _refused(path, "it is a link", advice)
    if folder.is_symlink() and folder.lstat().st_uid not in (0, os.geteuid()):
        raise _refused(folder, "it is another user's link", advice)
    is_root = os.geteuid() == 0
    found = folder.stat()
    _check(folder, found, stat.S_ISDIR, "folder", advice, any_owner=is_root or found.st_uid == 0)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags, 0o600)
    try:
        _check(path, os.fstat(descriptor), stat.S_ISREG, "plain file", advice, any_owner=is_root)
    except StorageError:
        os.close(descriptor)
        raise
    return descriptor


def _check(
    path: Path, found: os.stat_result, is_kind: Callable[[int], bool], kind: str, advice: str = _CACHE,
    any_owner: bool = False,
) -> None:  # fmt: skip
    if not is_kind(found.st_mode):
        raise _refused(path, f"it is no {kind}", advice)
    if found.st_uid != os.geteuid() and not any_owner:
        raise _refused(path, f"it belongs to user {found.st_uid}, not to {os.geteuid()}", advice)
    if found.st_mode & _OTHERS_WRITE:
        raise _refused(path, f"others may write to it (mode {stat.S_IMODE(found.st_mode):04o})", advice)


def _refused(path: Path, why: str, advice: str = _CACHE) -> StorageError:
    return StorageError(f"{path} cannot be trusted: {why}; {advice}")
