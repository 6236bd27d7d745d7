"""Fetched bundles on disk: each under its digest, with a record of what a source sent last.

    bundles/DIGEST.gtb      a bundle, checked whole before it got its name
    sources/SOURCE.json     {"digest", "etag"} of a source; SOURCE is a hash of its address and device
    partial/SOURCE.part     a download that was cut, and SOURCE.etag, what it is a part of

Files appear by rename, whole or not at all. The folder may be deleted at any time. Bundles over a limit of
bytes are deleted when another one comes, those that were used longest ago first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gemmtune.bundle import Bundle
from gemmtune.checked import is_digest
from gemmtune.errors import BundleError

#: The limit of the bundles on disk, and its default.
SIZE_SETTING, _DEFAULT_MIB = "GEMMTUNE_CLIENT_CACHE_MIB", 8192


def default_folder() -> Path:
    """$GEMMTUNE_CACHE_DIR, else gemmtune in $XDG_CACHE_HOME, else ~/.cache/gemmtune."""
    chosen = os.environ.get("GEMMTUNE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gemmtune"


def most_bytes() -> int:
    """$GEMMTUNE_CLIENT_CACHE_MIB, by default 8 GiB: what the kept bundles may have together. Raises
    BundleError."""
    text = os.environ.get(SIZE_SETTING, str(_DEFAULT_MIB))
    if not text.isdecimal():
        raise BundleError(f"{SIZE_SETTING} is {text!r}; it must be a whole number of MiB")
    return int(text) * 2**20


class CacheError(BundleError):
    """The cache folder cannot be written."""


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raises CacheError where writing fails."""
    try:
        yield
    except OSError as error:
        raise CacheError(f"{path} cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True)
class Sent:
    """What a source sent last."""

    digest: str
    etag: str | None


class Part:
    """The file of a download. `have` bytes are there, of the entity `etag`."""

    def __init__(self, file: IO[bytes], path: Path, etag_path: Path | None) -> None:
        self.file, self.path, self._etag_path = file, path, etag_path
        self.have = os.fstat(file.fileno()).st_size
        self.etag: str | None = None
        if etag_path is not None:
            with suppress(OSError):
                self.etag = etag_path.read_text().strip() or None
        if self.etag is None:
            self.restart(None)

    def restart(self, etag: str | None) -> None:
        """Empties the file: what follows is of the entity `etag`."""
        with _writing(self.path):
            self.file.seek(0)
            self.file.truncate()
            self.have, self.etag = 0, etag
            if self._etag_path is not None:
                self._etag_path.write_text(etag or "")

    def append(self, data: bytes) -> None:
        """Adds bytes."""
        with _writing(self.path):
            self.file.seek(self.have)
            self.file.write(data)
            self.file.flush()  # a later process goes on with it
        self.have += len(data)


def _locked(file: IO[bytes], path: Path) -> bool:
    """Whether this process now holds the file's lock, and the file is still the one of this path: another
    process may have renamed it before."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except (BlockingIOError, FileNotFoundError):
        return False


def _check_owner(folder: Path) -> None:
    """Raises BundleError for a folder in which other users can put bundles: these are code."""
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BundleError(
            f"the cache folder {folder} is another user's, or others may write to it (owner {found.st_uid}, "
            f"mode {stat.S_IMODE(found.st_mode):o}), and bundles are code: chmod go-w it if its content is "
            "your own, or pass cache= or set GEMMTUNE_CACHE_DIR"
        )


class Cache:
    """The cache folder of one source. Raises BundleError where it cannot be written."""

    def __init__(self, folder: Path, source: str) -> None:
        most_bytes()  # raises before anything is fetched
        self.folder, self._name = folder, hashlib.sha256(source.encode()).hexdigest()[:32]
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            for one in (folder, *(folder / name for name in ("bundles", "sources", "partial"))):
                one.mkdir(exist_ok=True, mode=0o700)
                _check_owner(one)
        except OSError as error:
            raise BundleError(
                f"the cache folder {folder} cannot be made ({error.strerror}): pass cache= or set "
                "GEMMTUNE_CACHE_DIR"
            ) from error

    def sent(self) -> Sent | None:
        """What the source sent last, if the bundle is still there."""
        try:
            found = json.loads((self.folder / "sources" / f"{self._name}.json").read_bytes())
            sent = Sent(found["digest"], found["etag"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return sent if self.bundle(sent.digest) is not None else None

    def bundle(self, digest: str) -> Path | None:
        """The file of a digest."""
        path = self.folder / "bundles" / f"{digest}.gtb"
        return path if isinstance(digest, str) and is_digest(digest) and path.is_file() else None

    def open(self, digest: str) -> Bundle | None:
        """The bundle of a digest, None where there is none. A file that is damaged is deleted."""
        path = self.bundle(digest)
        if path is None:
            return None
        try:
            found = Bundle(path)
        except BundleError:
            found = None
        if found is None or found.digest != digest:
            path.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(path)  # used now: others are deleted before it
        return found

    @contextmanager
    def part(self) -> Iterator[Part]:
        """The source's download, locked; where another process holds it, a download of one's own."""
        path = self.folder / "partial" / f"{self._name}.part"
        with ExitStack() as stack:
            with _writing(path):
                file: IO[bytes] = stack.enter_context(path.open("a+b"))
            if _locked(file, path):
                yield Part(file, path, path.with_suffix(".etag"))
                return
            folder = path.parent
            with _writing(folder):
                file = tempfile.NamedTemporaryFile(dir=folder, suffix=".own", delete=False)  # noqa: SIM115
            stack.enter_context(file)
            stack.callback(Path(file.name).unlink, missing_ok=True)
            yield Part(file, Path(file.name), None)

    def keep(self, part: Part, etag: str | None) -> Bundle:
        """Checks every byte of a complete download, files it under its digest and opens it there. A download
        that is no bundle is deleted. Raises BundleError."""
        try:
            part.file.flush()
            os.fsync(part.file.fileno())
            bundle = Bundle(part.path)
            bundle.check()
            place = self.folder / "bundles" / f"{bundle.digest}.gtb"
            os.replace(part.path, place)
            self._record(Sent(bundle.digest, etag))
            bundle.path = place
            self._prune(place)
        except BundleError:
            part.restart(None)
            raise
        except OSError as error:
            raise CacheError(f"{self.folder} cannot be written: {error.strerror}") from error
        return bundle

    def _prune(self, newest: Path) -> None:
        """Deletes the bundles that were used longest ago until the others are within the limit; never the
        newest. Who has a deleted one open reads it to its end."""
        found = []
        for path in (self.folder / "bundles").glob("*.gtb"):
            with suppress(FileNotFoundError):  # another process deletes too
                status = path.stat()
                found.append((path != newest, -status.st_mtime, status.st_size, path))
        total, most = 0, most_bytes()
        for older, _, size, path in sorted(found):
            total += size
            if older and total > most:
                path.unlink(missing_ok=True)

    def _record(self, sent: Sent) -> None:
        place = self.folder / "sources" / f"{self._name}.json"
        with tempfile.NamedTemporaryFile("w", dir=place.parent, suffix=".own", delete=False) as file:
            json.dump({"digest": sent.digest, "etag": sent.etag}, file)
        os.replace(file.name, place)
