"""What a compiler says that a kernel takes of its device, kept beside the binary: no device is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

#: Of the file beside a binary that holds its kernels' resources.
SUFFIX = ".resources.json"


@dataclass(frozen=True)
class Resources:
    """Registers of a thread; bytes of shared memory of a block; bytes that a thread spills: stored and loaded
    again (ptxas counts both), or kept in scratch (AMD). None where the compiler said nothing of it."""

    registers: int | None
    shared_bytes: int
    spill_bytes: int | None


def write(path: Path, kernels: Mapping[str, Resources]) -> None:
    """Fills `path`: entry point -> its resources."""
    path.write_text(json.dumps({name: asdict(one) for name, one in kernels.items()}, indent=1) + "\n")


def read(binary: Path) -> dict[str, Resources]:
    """What lies beside a binary. Raises OSError or ValueError where that is nothing of ours."""
    try:
        kernels = json.loads(binary.with_name(binary.stem + SUFFIX).read_bytes())
        return {name: Resources(**values) for name, values in kernels.items()}
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{binary.name}: no resources lie beside it: {error}") from error
