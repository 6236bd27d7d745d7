"""What is asked of the compiler process, and what it gives: cubins with their launch descriptions, in one
file.

The file is a zip: launch.json and one cubin a kernel. launch.json says, for each kernel, what a launch needs
beside its grid: the entry's name, threads, dynamic shared memory, and the types of its parameters in order,
whose last two are always the addresses of global scratch and of profile scratch (Triton adds them).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backends.errors import LaunchError

FORMAT = 1
SUFFIX = ".triton.zip"
_TABLE = "launch.json"
#: Pointer parameters that Triton appends: global scratch, profile scratch.
SCRATCH_PARAMETERS = 2
#: What PTX calls the types that a signature names.
_PTX = {"i32": "u32", "i64": "u64", "fp32": "f32"}

Constant = int | bool | str | None


@dataclass(frozen=True)
class Request:
    """One kernel of kernels.py to compile: parameters with their types (in order), constants (in order),
    what integers and addresses are known to be multiples of, warps and stages, compute capability times
    ten."""

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: Mapping[str, Constant]
    divisibility: Mapping[str, int]
    options: Mapping[str, int]
    capability: int

    def to_json(self) -> str:
        """One line, the same for the same request."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["divisibility"] = dict(sorted(self.divisibility.items()))
        values["constants"] = dict(self.constants)
        values["options"] = dict(sorted(self.options.items()))
        return json.dumps(values, separators=(",", ":"))

    @property
    def parameters(self) -> tuple[str, ...]:
        """PTX types of the entry's parameters, scratch included."""
        own = [_PTX.get(kind, "u64") for _, kind in self.signature]
        return (*own, *["u64"] * SCRATCH_PARAMETERS)


@dataclass(frozen=True)
class Description:
    """How a compiled kernel is launched. Sizes in bytes; scratch is a program's (a block's) global scratch.
    Registers a thread and spilled bytes are ptxas's words, None where it said none."""

    entry: str
    threads: int
    shared_bytes: int
    scratch_bytes: int
    scratch_align: int
    profile_bytes: int
    parameters: tuple[str, ...]
    registers: int | None = None
    spill_bytes: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Description:
        """Raises ValueError for what is no description."""
        try:
            return cls(**{**values, "parameters": tuple(values["parameters"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"no launch description: {error}") from error


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code and how it is launched."""

    cubin: bytes
    description: Description


def write(path: Path, arch: str, compiler: str, kernels: Mapping[str, Compiled]) -> None:
    """Fills `path`; the same kernels give the same bytes."""
    table = {
        "format": FORMAT,
        "arch": arch,
        "compiler": compiler,
        "kernels": {name: asdict(one.description) for name, one in kernels.items()},
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        _add(file, _TABLE, json.dumps(table, indent=1).encode())
        for name, one in kernels.items():
            _add(file, f"{name}.cubin", one.cubin)


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    # A ZipInfo of its own: the clock must not be in the bytes.
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    file.writestr(info, data)


def read(path: Path) -> dict[str, Compiled]:
    """The kernels of a file by name. Raises LaunchError for what cannot be read as one."""
    try:
        with zipfile.ZipFile(path) as file:
            table = json.loads(file.read(_TABLE))
            if table["format"] != FORMAT:
                raise ValueError(f"format {table['format']}, {FORMAT} is known")
            return {
                name: Compiled(file.read(f"{name}.cubin"), Description.from_dict(values))
                for name, values in table["kernels"].items()
            }
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise LaunchError(f"{path.name} is no file of compiled Triton kernels: {error}") from error
