"""A disk cache of compiled binaries, keyed by everything that affects the output.

A binary is written to a temporary file in the same folder, flushed, and renamed into place. Readers see
either the whole file or none, and two processes may safely compile the same binary at the same time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from backends.canonical import short_hash
from backends.errors import NotCompiled, StorageError


class BinaryCache:
    """A folder of binaries. `root` is created on first use."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @staticmethod
    def key(sources: Mapping[str, str], arch: str, compiler: str, flags: Sequence[str]) -> str:
        """24 hex digits of a hash over the source texts, the architecture, the compiler version and the
        flags."""
        return short_hash([dict(sources), arch, compiler, list(flags)], digits=24)

    def path(self, key: str, suffix: str) -> Path:
        """Where the binary of `key` is stored, whether or not it exists yet."""
        return self.root / key[:2] / f"{key}{suffix}"

    def get(self, key: str, suffix: str) -> Path | None:
        """The binary's path, or None. An empty file (left by a full disk) counts as missing."""
        path = self.path(key, suffix)
        try:
            return path if path.stat().st_size > 0 else None
        except OSError:
            return None

    def put(self, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
        """Calls build(path) with a temporary path to write to, then moves the file into place.

        Raises StorageError if the disk cannot be written; exceptions of `build` propagate.
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


class CompiledOnly(BinaryCache):
    """A cache that compiles nothing: with it a family's compile() returns the binary that is there, or raises
    NotCompiled."""

    def get(self, key: str, suffix: str) -> Path:
        """The binary's path. Raises NotCompiled."""
        path = super().get(key, suffix)
        if path is None:
            raise NotCompiled(f"{self.path(key, suffix)} is not compiled yet")
        return path

    def put(self, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
        """Raises NotCompiled."""
        raise NotCompiled(f"{self.path(key, suffix)} is not compiled yet")


def storage_error(path: Path, error: OSError) -> StorageError:
    """The StorageError for a failed write, with advice for the user."""
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
