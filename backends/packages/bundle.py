"""A bundle (.gtb): the binaries, launches and verdicts of many problems of one device class in one zip.

Its first member is manifest.json; the others are binaries/SHA256, each binary once. The bundle's digest is
the SHA-256 of the manifest, which has the digest of every binary. docs/decisions/0016 lists the fields.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from os import SEEK_END
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any

from backends.cache import BinaryCache
from backends.environment import DeviceClass, Environment
from backends.errors import StorageError
from backends.packages import host
from backends.packages.bundle_file import FORMAT, VERSION, summed_up, write_file
from backends.packages.package import CONVENTION, IDENTITY, ORDER, describe, follows_units, operands_of
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.wire import problem_to_wire


@dataclass(frozen=True)
class Measured:
    """A measured solution of a problem. `verdict` has the fields of the manifest's: judgement, seconds,
    baseline_seconds, baseline, baseline_family, speedup, rounds, session, decided_at."""

    problem: GemmProblem
    solution: Solution
    environment: Environment
    verdict: Mapping[str, Any]


@dataclass(frozen=True)
class Binary:
    """A binary, and the suffix of its file's name: .cubin, .hsaco or .so."""

    data: bytes
    suffix: str


@dataclass(frozen=True)
class Row:
    """A row of the manifest, the binaries that it names by digest, and where it was measured."""

    described: Mapping[str, Any]
    binaries: Mapping[str, Binary]
    environment: Environment


def describe_row(one: Measured, target: str, cache: BinaryCache) -> Row:
    """Compiles a solution for an architecture of GPU_TARGETS; a CPU's is compiled for the CPU that it was
    measured on. Raises what package.describe() or host.describe() raises."""
    if one.solution.family in host.CPU_FAMILIES:
        made = host.describe(one.problem, one.solution, one.environment, cache)
        launched_by, launches, files = host.ENTRY, [made.launch], made.files
        operands, packing = operands_of(one.problem), None
        workspace = {"bytes": made.workspace_bytes, "alignment": made.workspace_align}
    else:
        units = one.environment.units if follows_units(one.solution) else None
        document, files = describe(one.problem, one.solution, target, units, cache)
        launched_by, launches = document["launched_by"], document["launches"]
        workspace, operands, packing = document["workspace"], document["operands"], document.get("packing")
    digests = {name: sha256(data).hexdigest() for name, data in files.items()}
    solution = one.solution.to_dict()
    described = {
        "problem": {
            "id": one.problem.id,
            "wire": problem_to_wire(one.problem),
            "canonical": one.problem.to_dict(),
        },
        "solution": {name: solution[name] for name in IDENTITY},
        "environment": one.environment.id,
        "verdict": dict(one.verdict),
        "deterministic": one.solution.deterministic,
        "operands": operands,
        "workspace": workspace,
        "launched_by": launched_by,
        "launches": [_by_digest(launch, digests) for launch in launches],
    }
    if packing is not None:
        described["packing"] = {**packing, "launch": _by_digest(packing["launch"], digests)}
    binaries = {digests[name]: Binary(data, PurePath(name).suffix) for name, data in files.items()}
    return Row(described, binaries, one.environment)


def _by_digest(launch: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """The launch with digests of files in place of their names."""
    found = {name: value for name, value in launch.items() if name != "file"}
    found["binary"] = digests[launch["file"]]
    if "runtime" in launch:
        found["runtime"] = digests[launch["runtime"]]
    return found


class BundleBuilder:
    """Collects rows, in any order, and writes them. Binaries wait in a temporary file. Use as a context
    manager."""

    def __init__(self, device: DeviceClass, policy_id: str, policy: Mapping[str, Any]) -> None:
        self._device, self._policy = device, {"id": policy_id, "content": dict(policy)}
        self._rows: dict[str, Mapping[str, Any]] = {}
        self._environments: dict[str, Environment] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._suffixes: dict[str, str] = {}
        self._spool = tempfile.TemporaryFile(prefix="gemmtune-bundle-")  # noqa: SIM115  (__exit__ closes it)

    def __enter__(self) -> BundleBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row) -> None:
        """Takes a row. Raises ValueError for a second row of a problem, StorageError for a full disk."""
        problem_id = row.described["problem"]["id"]
        if problem_id in self._rows:
            raise ValueError(f"{problem_id} has a row already")
        for digest, binary in row.binaries.items():
            if digest not in self._places:
                self._places[digest] = self._appended(binary.data)
                self._suffixes[digest] = binary.suffix
        self._environments[row.environment.id] = row.environment
        self._rows[problem_id] = row.described

    def _appended(self, data: bytes) -> tuple[int, int]:
        """Where the temporary file has the data: start and size."""
        try:
            start = self._spool.seek(0, SEEK_END)
            self._spool.write(data)
        except OSError as error:
            raise StorageError(f"cannot write a temporary file: {error.strerror or error}") from error
        return start, len(data)

    def write(self, path: Path) -> str:
        """Writes the file, whole or not at all, and returns the bundle's digest. Raises StorageError."""
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "device": {"class": str(self._device), **asdict(self._device)},
            "policy": self._policy,
            "environments": {name: _told(one) for name, one in self._environments.items()},
            "convention": CONVENTION,
            "order": ORDER,
            "rows": [self._rows[name] for name in sorted(self._rows)],
        }
        return write_file(path, summed_up(manifest, self._read, self._suffixes), self._read)

    def _read(self, digest: str) -> bytes:
        start, size = self._places[digest]
        self._spool.seek(start)
        return self._spool.read(size)


def _told(environment: Environment) -> dict[str, Any]:
    """Where rows were measured. A CPU's class does not name the ISA level that its kernels need."""
    found = {
        "runtime": environment.runtime,
        "driver": environment.driver,
        "libraries": dict(environment.libraries),
    }
    return {**found, "partition": environment.partition} if environment.vendor == "cpu" else found
