"""The file of a bundle: writes a manifest with its binaries, reads and checks one, and writes a subset."""

from __future__ import annotations

import json
import os
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from backends.errors import GemmtuneError, StorageError
from backends.packages.cubin import oldest_driver
from backends.packages.package import zip_member

FORMAT, VERSION = "gemmtune-bundle", 1
SUFFIX, MANIFEST, BINARIES = ".gtb", "manifest.json", "binaries/"
#: Bytes of a manifest, and of a binary, that are read at most: 10,000 rows have about 75 MB of manifest.
_MOST_MANIFEST, _MOST_BINARY = 2**28, 2**28
_DIGEST = re.compile("[0-9a-f]{64}")
#: What reading a damaged zip raises.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)

#: Digest -> the binary.
Read = Callable[[str], bytes]


class BundleError(GemmtuneError, ValueError):
    """The file is no bundle, or is damaged; the message says how."""


# ---- writing -------------------------------------------------------------------------------------


def summed_up(manifest: Mapping[str, Any], read: Read, suffixes: Mapping[str, str]) -> dict[str, Any]:
    """The manifest with what its rows determine: `binaries`, `requires`, and only their environments."""
    names = sorted({digest for row in manifest["rows"] for digest in named_by(row)})
    binaries, drivers = {}, []
    for digest in names:
        data = read(digest)
        binaries[digest] = {"bytes": len(data), "suffix": suffixes[digest]}
        drivers.append(oldest_driver(data))
    used = {row["environment"] for row in manifest["rows"]}
    known = [driver for driver in drivers if driver is not None]
    return {
        **manifest,
        "requires": {"driver": max(known) if known else None},
        "environments": {name: manifest["environments"][name] for name in used},
        "binaries": binaries,
    }


def named_by(row: Mapping[str, Any]) -> Iterator[str]:
    """The digests of the binaries that a row's launches name."""
    packing = [row["packing"]["launch"]] if "packing" in row else []
    for launch in [*row["launches"], *packing]:
        yield launch["binary"]
        if "runtime" in launch:
            yield launch["runtime"]


def write_file(path: Path, manifest: Mapping[str, Any], read: Read) -> str:
    """Writes a bundle, whole or not at all; returns its digest. Equal manifests give equal files. Raises
    StorageError."""
    # Sorted: a database may give the names of an object back in another order.
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(zip_member(MANIFEST), text)
            for digest in sorted(manifest["binaries"]):
                file.writestr(zip_member(f"{BINARIES}{digest}"), read(digest))
        fresh.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    return sha256(text).hexdigest()


# ---- reading -------------------------------------------------------------------------------------


class BundleFile:
    """A bundle on disk: its manifest, checked against the list of the file's members. Raises BundleError.
    Binaries are checked when they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            members = file.infolist()
            if not members or members[0].filename != MANIFEST:
                raise BundleError(f"{path} is no bundle: its first member is not {MANIFEST}")
            text = self._member(file, members[0], _MOST_MANIFEST)
            #: SHA-256 of the manifest: equal digests mean equal bundles.
            self.digest = sha256(text).hexdigest()
            self.manifest = self._parsed(text)
            self._check(members[1:])

    @property
    def problem_ids(self) -> list[str]:
        """The problems that have a row, in the order of the rows."""
        return [row["problem"]["id"] for row in self.manifest["rows"]]

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        return {digest: one["bytes"] for digest, one in self.manifest["binaries"].items()}

    def binary(self, digest: str) -> bytes:
        """A binary, checked against its digest. Raises BundleError."""
        with self._opened() as file:
            return self._binary(file, digest)

    def verify(self) -> None:
        """Checks every binary. Raises BundleError."""
        with self._opened() as file:
            for digest in self._sizes:
                self._binary(file, digest)

    def subset(self, problem_ids: Collection[str], path: Path) -> str:
        """Writes a bundle of these problems' rows alone; returns its digest. A row that the bundle does not
        have is left out. Raises BundleError, StorageError."""
        rows = [row for row in self.manifest["rows"] if row["problem"]["id"] in problem_ids]
        suffixes = {digest: one["suffix"] for digest, one in self.manifest["binaries"].items()}
        with self._opened() as file:

            def read(digest: str) -> bytes:
                return self._binary(file, digest)

            return write_file(path, summed_up({**self.manifest, "rows": rows}, read, suffixes), read)

    def _binary(self, file: zipfile.ZipFile, digest: str) -> bytes:
        data = self._member(file, file.getinfo(f"{BINARIES}{digest}"), self._sizes[digest])
        if sha256(data).hexdigest() != digest:
            raise BundleError(f"{self.path} is damaged: binary {digest[:12]} has another digest")
        return data

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as file:
                yield file
        except (BundleError, StorageError):
            raise
        except FileNotFoundError as error:
            raise BundleError(f"{self.path} does not exist") from error
        except _DAMAGED as error:
            raise BundleError(f"{self.path} is no bundle, or is damaged: {error}") from error

    def _member(self, file: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
        with file.open(info) as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise BundleError(f"{self.path} is damaged: {info.filename} has more than {most} bytes")
        return data

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{self.path} is damaged: its manifest is no JSON ({error})") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise BundleError(f"{self.path} is no bundle: its manifest has no format {FORMAT!r}")
        if manifest.get("version") != VERSION:
            raise BundleError(
                f"{self.path} is a bundle of version {manifest.get('version')!r}; this gemmtune reads "
                f"version {VERSION}"
            )
        return manifest

    def _check(self, members: list[zipfile.ZipInfo]) -> None:
        """Compares the manifest with the members."""
        try:
            rows, binaries = self.manifest["rows"], self.manifest["binaries"]
            named = {digest for row in rows for digest in named_by(row)}
            known = {row["environment"] for row in rows} <= set(self.manifest["environments"])
            sizes = {f"{BINARIES}{digest}": one["bytes"] for digest, one in binaries.items()}
            ids = [row["problem"]["id"] for row in rows]
        except (KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"{self.path} is damaged: its manifest lacks fields ({error!r})") from error
        if named != set(binaries) or not known or len(set(ids)) != len(ids):
            raise BundleError(f"{self.path} is damaged: its manifest's rows and lists disagree")
        if not all(_DIGEST.fullmatch(digest) for digest in binaries):
            raise BundleError(f"{self.path} is damaged: a binary's name is no digest")
        if any(not isinstance(size, int) or not 0 < size <= _MOST_BINARY for size in sizes.values()):
            raise BundleError(f"{self.path} is damaged: a binary's size is not from 1 to {_MOST_BINARY}")
        there = {info.filename: info.file_size for info in members}
        if there != sizes or len(there) != len(members):
            raise BundleError(f"{self.path} is damaged: its members are not those that the manifest lists")
