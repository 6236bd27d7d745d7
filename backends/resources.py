"""Kernel resource usage as the compiler reports it, stored beside the binary. Needs no device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

#: Suffix of the file beside a binary that holds the resource usage of its kernels.
SUFFIX = ".resources.json"


@dataclass(frozen=True)
class Resources:
    """Registers per thread, bytes of shared memory per block, and bytes that a thread spills: spill stores
    plus spill loads (ptxas), or spilled registers in scratch memory (AMD). None if the compiler did not
    report it.

    Only AMD's compilers report the rest: accumulation registers (AGPRs, part of `registers`), scalar
    registers of a wavefront, and bytes of scratch memory per thread, which holds spilled registers and
    arrays."""

    registers: int | None
    shared_bytes: int
    spill_bytes: int | None
    accumulation_registers: int | None = None
    scalar_registers: int | None = None
    scratch_bytes: int | None = None

    def to_dict(self) -> dict[str, int | None]:
        """Plain JSON values; what only some vendors' compilers report is left out where it is unknown."""
        optional = [field.name for field in fields(self) if field.default is None]
        return {
            name: value for name, value in asdict(self).items() if value is not None or name not in optional
        }


def write(path: Path, kernels: Mapping[str, Resources]) -> None:
    """Writes entry point -> resources to `path`, as JSON."""
    path.write_text(json.dumps({name: one.to_dict() for name, one in kernels.items()}, indent=1) + "\n")


def read(binary: Path) -> dict[str, Resources]:
    """Reads the file beside a binary: entry point -> resources. Raises OSError if it is missing, ValueError
    if it is malformed."""
    try:
        kernels = json.loads(binary.with_name(binary.stem + SUFFIX).read_bytes())
        return {name: Resources(**values) for name, values in kernels.items()}
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{binary.name}: no resources lie beside it: {error}") from error
