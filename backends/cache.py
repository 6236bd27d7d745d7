"""Compiled binaries on disk, keyed by everything that shapes them.

A binary is written to a temporary file beside its place, flushed, and renamed into it: a reader sees the
whole file or none, and two processes that compile the same thing at once both end with a good one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from backends.canonical import short_hash
from backends.errors import StorageError


class BinaryCache:
    """A folder of binaries. `root` is made on first use."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @staticmethod
    def key(sources: Mapping[str, str], arch: str, compiler: str, flags: Sequence[str]) -> str:
        """24 hex digits over the sources' texts, the arch, the compiler's version and the flags."""
        return short_hash([dict(sources), arch, compiler, list(flags)], digits=24)

    def path(self, key: str, suffix: str) -> Path:
        """Where the binary of `key` lies or would lie."""
        return self.root / key[:2] / f"{key}{suffix}"

    def get(self, key: str, suffix: str) -> Path | None:
        """The binary's path, or None. An empty file (a disk that filled up once) counts as none."""
        path = self.path(key, suffix)
        try:
            return path if path.stat().st_size > 0 else None
        except OSError:
            return None

    def put(self, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
        """Calls build(path) with a temporary path to fill, then moves it into place.

        Raises StorageError where the disk refuses; whatever `build` raises passes through.
        """
        path = self.path(key, suffix)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{key}.", suffix=suffix)
            os.close(descriptor)
        except OSError as error:
            raise storage_error(path, error) from error
        temporary = Path(name)
        try:
            build(temporary)
            try:
                with temporary.open("rb") as handle:
                    os.fsync(handle.fileno())
                temporary.replace(path)
            except OSError as error:
                raise storage_error(path, error) from error
        finally:
            temporary.unlink(missing_ok=True)
        return path


def storage_error(path: Path, error: OSError) -> StorageError:
    """The user's words for a disk that refuses."""
    return StorageError(
        f"cannot write {path}: {error.strerror or error}; free some space or name another folder "
        "(GEMMTUNE_CACHE_DIR for compiled kernels)"
    )


def default_cache_dir() -> Path:
    """$GEMMTUNE_CACHE_DIR, else $XDG_CACHE_HOME/gemmtune, else ~/.cache/gemmtune."""
    chosen = os.environ.get("GEMMTUNE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gemmtune"
