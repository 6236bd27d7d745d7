"""A disk cache of compiled binaries, keyed by everything that affects the output.

A binary is written to a temporary file in the same folder, flushed, and renamed into place. Readers see
either the whole file or none, and two processes may safely compile the same binary at the same time.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from backends.canonical import short_hash
from backends.errors import NotCompiled, StorageError
from backends.owned import check_file, check_folder, own_folder

#: A binary's time of use is written again once it is older; binaries used more recently are never pruned.
_FRESH_SECONDS = 3600.0


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
        """The binary's path, or None. An empty file (left by a full disk) counts as missing. Raises
        StorageError for a file that another user could have written: a binary is code."""
        path = self.path(key, suffix)
        try:
            found = path.lstat()
            if not found.st_size:
                return None
            check_folder(self.root)
            check_folder(path.parent)
            check_file(path)
            if time.time() - found.st_mtime > _FRESH_SECONDS:
                os.utime(path)  # prune() removes what was not used for longest
        except StorageError:  # an OSError, too
            raise
        except OSError:
            return None
        return path

    def put(self, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
        """Calls build(path) with a temporary path to write to, then moves the file into place.

        Raises StorageError if the disk cannot be written; exceptions of `build` propagate.
        """
        path = self.path(key, suffix)
        try:
            own_folder(self.root)
            own_folder(path.parent)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{key}.", suffix=suffix)
            os.close(descriptor)
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(path, error) from error
        temporary = Path(name)
        try:
            build(temporary)
            try:
                temporary.chmod(temporary.stat().st_mode & 0o700)  # a compiler takes the umask's
                with temporary.open("rb") as handle:
                    os.fsync(handle.fileno())
                temporary.replace(path)
            except OSError as error:
                raise storage_error(path, error) from error
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def prune(self, limit: int) -> int:
        """Removes the binaries that were not used for longest until those left have at most `limit` bytes;
        returns how many bytes were removed. Binaries used within the last hour stay: a session may be about
        to load them."""
        files = []
        for path in self.root.glob("??/*"):
            with suppress(OSError):  # another process prunes, too
                found = path.lstat()
                files.append((found.st_mtime, found.st_size, path))
        size, removed = sum(each for _, each, _ in files), 0
        latest = time.time() - _FRESH_SECONDS
        for used, each, path in sorted(files):
            if size - removed <= limit or used > latest:
                break
            with suppress(OSError):
                path.unlink()
                removed += each
        return removed


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
