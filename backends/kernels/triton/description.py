"""The request to the compiler process and its result: binaries with their launch descriptions, in one file.

The file is a zip: launch.json and one binary per kernel, a cubin or (AMD) a code object. launch.json has, for
each kernel, what a launch needs beside its grid: the entry's name, threads, dynamic shared memory, and the
types of its parameters in order, whose last two are always the addresses of global scratch and of profile
scratch (Triton adds them).
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
#: PTX's names of the types in a signature; descriptions use them for both vendors.
_PTX = {"i32": "u32", "i64": "u64", "fp32": "f32"}

Constant = int | bool | str | None


@dataclass(frozen=True)
class Request:
    """A request to compile one kernel of kernels.py: parameters with their types (in order), constants (in
    order), known divisors of integers and addresses, warps and stages, and the architecture (sm_90, gfx942)
    with its threads per warp."""

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: Mapping[str, Constant]
    divisibility: Mapping[str, int]
    options: Mapping[str, int]
    arch: str
    warp: int

    def to_json(self) -> str:
        """The request as one line of JSON; equal requests give equal lines."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["divisibility"] = dict(sorted(self.divisibility.items()))
        values["constants"] = dict(self.constants)
        values["options"] = dict(sorted(self.options.items()))
        return json.dumps(values, separators=(",", ":"))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The PTX types of the entry's parameters, scratch included."""
        own = [_PTX.get(kind, "u64") for _, kind in self.signature]
        return (*own, *["u64"] * SCRATCH_PARAMETERS)


@dataclass(frozen=True)
class Description:
    """How a compiled kernel is launched. Sizes are in bytes; scratch is the global scratch of a program (a
    block). Registers per thread and spilled bytes are as the compiler reported them, None if it did not."""

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
        """The description in a dict. Raises ValueError for anything that is not one."""
        try:
            return cls(**{**values, "parameters": tuple(values["parameters"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"no launch description: {error}") from error


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code and how it is launched."""

    binary: bytes
    description: Description


def binary_name(entry: str, arch: str) -> str:
    """The file name of an entry's binary: gemm.cubin for sm_90, gemm.hsaco for gfx942."""
    return f"{entry}.{'hsaco' if arch.startswith('gfx') else 'cubin'}"


def write(path: Path, arch: str, compiler: str, kernels: Mapping[str, Compiled]) -> None:
    """Writes the kernels to `path`; equal kernels give equal bytes."""
    table = {
        "format": FORMAT,
        "arch": arch,
        "compiler": compiler,
        "kernels": {name: asdict(one.description) for name, one in kernels.items()},
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        _add(file, _TABLE, json.dumps(table, indent=1).encode())
        for name, one in kernels.items():
            _add(file, binary_name(name, arch), one.binary)


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    # An explicit ZipInfo, so that the bytes do not contain the time.
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    file.writestr(info, data)


def read(path: Path) -> dict[str, Compiled]:
    """The kernels of a file by name. Raises LaunchError for a file that cannot be read as one."""
    try:
        with zipfile.ZipFile(path) as file:
            table = json.loads(file.read(_TABLE))
            if table["format"] != FORMAT:
                raise ValueError(f"format {table['format']}, {FORMAT} is known")
            return {
                name: Compiled(file.read(binary_name(name, table["arch"])), Description.from_dict(values))
                for name, values in table["kernels"].items()
            }
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise LaunchError(f"{path.name} is no file of compiled Triton kernels: {error}") from error
