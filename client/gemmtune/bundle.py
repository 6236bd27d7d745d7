"""Reads a bundle (.gtb), a zip of a manifest and binaries, and trusts nothing in it.

Every size is checked before anything is inflated: the manifest has a bound, and it states the bytes of each
binary. A binary is read when a kernel needs it, and checked against its digest then.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gemmtune import forks
from gemmtune.checked import Checked, is_digest
from gemmtune.device import VENDORS, DeviceClass
from gemmtune.errors import BundleError
from gemmtune.row import Row, read_row

FORMAT, VERSION = "gemmtune-bundle", 1
MANIFEST = "manifest.json"
#: Folder of the binaries in the zip.
FOLDER = "binaries/"
#: Bounds in bytes: of the file, of its manifest, of one binary; and on the number of rows and binaries.
MOST_FILE, MOST_MANIFEST, MOST_BINARY = 4 * 2**30, 256 * 2**20, 512 * 2**20
MOST_ROWS, MOST_BINARIES = 100_000, 100_000
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_AGAIN = "fetch or export it again"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


class _Binary(NamedTuple):
    bytes: int
    suffix: str


class Bundle:
    """An open bundle: its manifest read and checked, its binaries read on demand. Raises BundleError. Threads
    may share it, and a process may fork: each read has its own position in the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._zip, members = _opened(self.path)
        manifest = self._read(members[0], MOST_MANIFEST)
        #: SHA-256 of the manifest, which names every binary's: it covers all code in the file.
        self.digest = hashlib.sha256(manifest).hexdigest()
        found = _parsed(manifest, self.path)
        _check_version(found)
        self.device, self.vendor = _device(found.object("device"))
        self.policy: Mapping[str, Any] = found.mapping("policy")
        self.requires_driver = _least_driver(found)
        self.environments: Mapping[str, Mapping[str, Any]] = found.mapping("environments")
        self._binaries = _binaries(found)
        self._members = self._matched(members[1:])
        self.rows: tuple[Row, ...] = tuple(
            read_row(one, self.vendor, self) for one in found.objects("rows", MOST_ROWS)
        )
        self._check_rows()
        forks.register(self)

    def after_fork(self) -> None:
        """Reads on in a forked process, if another thread was reading at the fork. zipfile has a lock too."""
        file = self._zip.fp
        if file is not None and self._lock.locked():
            self._lock, self._zip = threading.Lock(), zipfile.ZipFile(file)

    def _matched(self, members: list[zipfile.ZipInfo]) -> Mapping[str, zipfile.ZipInfo]:
        """The binaries' members by digest: exactly those that the manifest names, of the sizes it states."""
        found = {member.filename: member for member in members}
        named = {f"{FOLDER}{digest}": digest for digest in self._binaries}
        if extra := sorted(set(found) - set(named)):
            raise BundleError(f"{self.path} has {extra[0][:80]!r}, which its manifest lacks; {_AGAIN}")
        if lost := sorted(set(named) - set(found)):
            raise BundleError(f"{self.path} lacks {lost[0]}, which its manifest names; {_AGAIN}")
        for name, digest in named.items():
            stated, real = self._binaries[digest].bytes, found[name].file_size
            if stated != real:
                raise BundleError(f"{name} in {self.path} has {real} bytes, not {stated} as stated; {_AGAIN}")
        return {digest: found[name] for name, digest in named.items()}

    def _check_rows(self) -> None:
        keys = set()
        for number, row in enumerate(self.rows):
            if row.environment not in self.environments:
                raise BundleError(f"row {number} of {self.path} names no environment of the bundle; {_AGAIN}")
            for launch in row.all_launches:
                for digest in (launch.binary, launch.runtime):
                    if digest is not None and digest not in self._binaries:
                        raise BundleError(f"row {number} of {self.path} needs a binary that is not there")
            if row.key in keys:
                raise BundleError(f"{self.path} has two rows of {row.problem_id}; {_AGAIN}")
            keys.add(row.key)

    def binary(self, digest: str) -> bytes:
        """The bytes of a binary, checked against its digest. Raises BundleError."""
        data = self._read(self._members[digest], self._binaries[digest].bytes)
        if hashlib.sha256(data).hexdigest() != digest:
            raise BundleError(f"{FOLDER}{digest} in {self.path} is not what its name says: altered; {_AGAIN}")
        return data

    def size(self, digest: str) -> int:
        """The bytes of a binary."""
        return self._binaries[digest].bytes

    def check(self) -> None:
        """Reads and checks every binary. Raises BundleError."""
        for digest in self._binaries:
            self.binary(digest)

    def _read(self, member: zipfile.ZipInfo, most: int) -> bytes:
        if member.file_size > most:
            raise BundleError(f"{member.filename} in {self.path} has {member.file_size} bytes, over {most}")
        try:
            with self._lock, self._zip.open(member) as file:
                data = file.read(most + 1)
        except _DAMAGE as error:
            raise BundleError(f"{member.filename} in {self.path} is damaged ({error}); {_AGAIN}") from error
        if len(data) != member.file_size:
            raise BundleError(f"{member.filename} in {self.path} is cut short; {_AGAIN}")
        return data


class _File(io.RawIOBase):
    """A file read by pread(): processes that share it after a fork do not move one another's position."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size, self._position = os.fstat(self._descriptor).st_size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError("a position before the file's start")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Reads from the position on."""
        data = os.pread(self._descriptor, len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Closes the file."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def _opened(path: Path) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:
    """The zip and its members, the manifest first. Raises BundleError."""
    try:
        size = path.stat().st_size
        file = _File(path)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    if not path.is_file():
        raise BundleError(f"{path} is no file")
    if size > MOST_FILE:
        raise BundleError(f"{path} has {size} bytes; a bundle has at most {MOST_FILE}")
    try:
        found = zipfile.ZipFile(file)
    except _DAMAGE as error:
        begins = os.pread(file.fileno(), 2, 0) if size else b""
        file.close()
        why = f"is cut short or damaged; {_AGAIN}" if begins == b"PK" else "is no bundle (.gtb)"
        raise BundleError(f"{path} ({size} bytes) {why}") from error
    members = found.infolist()
    if not members or members[0].filename != MANIFEST or len(members) > 1 + MOST_BINARIES:
        raise BundleError(f"{path} is a zip, but no bundle: its first member must be {MANIFEST}")
    names = {member.filename for member in members}
    if len(names) != len(members):
        raise BundleError(f"{path} has two members of one name; {_AGAIN}")
    for member in members:
        if member.compress_type not in _PLAIN or member.flag_bits & 1:
            raise BundleError(f"{member.filename[:80]!r} in {path} is compressed as no bundle is")
    return found, members


def _parsed(manifest: bytes, path: Path) -> Checked:
    try:
        return Checked(json.loads(manifest), "")
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{MANIFEST} in {path} is no JSON ({str(error)[:100]}); {_AGAIN}") from error


def _check_version(found: Checked) -> None:
    if found.text("format") != FORMAT:
        raise BundleError(f"the manifest's format is {found.text('format')[:80]!r}, not {FORMAT!r}")
    version = found.whole("version", 1, 10**9)
    if version > VERSION:
        raise BundleError(
            f"the bundle has version {version}, this client reads {VERSION}: pip install -U gemmtune-client"
        )


def _device(found: Checked) -> tuple[DeviceClass, str]:
    vendor = found.one_of("vendor", VENDORS)
    device = DeviceClass(vendor, found.text("arch"), found.text("product"), found.whole("units", 1, 10**9))
    if str(device) != found.text("class"):
        raise found.fail("class", f"{found.text('class')[:200]!r} is not {device}")
    return device, vendor


def _least_driver(found: Checked) -> int | None:
    requires = found.object("requires")
    return None if requires.raw("driver") is None else requires.whole("driver", 0, 10**9)


def _binaries(found: Checked) -> Mapping[str, _Binary]:
    read = {}
    binaries = found.object("binaries")
    for digest in found.mapping("binaries"):
        if not is_digest(digest):
            raise found.fail("binaries", f"has {digest[:80]!r}, which is no SHA-256")
        one = binaries.object(digest)
        read[digest] = _Binary(one.whole("bytes", 1, MOST_BINARY), one.text("suffix", 32))
    return read
