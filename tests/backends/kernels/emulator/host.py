"""Our kernels on the host's fibers (host_machine.h), many in one library, behind the verifier."""

from __future__ import annotations

import atexit
import ctypes
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.errors import LaunchError
from backends.kernels.family import KernelConfig
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.prepacked import PACK
from backends.kernels.tensor_map import MAP_BYTES, TensorMap, encoded
from backends.operands import Operands
from backends.traits import HOST_TRAITS
from tests.backends.kernels.emulator.memory import HostBuffer

H200 = Environment(
    "cuda", "sm_90", "NVIDIA H200", 132, 150_754_820_096, "GPU-recorded", libraries={"nvrtc": "13.0"}
)

#: Compiling takes longer than running. clang without optimization takes a third of g++'s time, and what it
#: makes twice the time of g++'s; g++ takes no less without. (clang warns of more: of quotients by zero in a
#: branch for other values, of variables that a planted mistake leaves unread, of an & that is meant.)
FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-DGEMMTUNE_HOST")
CLANG = (
    "clang++-19", "-O0", "-Wno-division-by-zero", "-Wno-unused-but-set-variable",
    "-Wno-bitwise-instead-of-logical",
)  # fmt: skip
GCC = ("g++", "-Og", "-Wno-maybe-uninitialized")


@dataclass(frozen=True)
class Built:
    """A configuration and its entry points in a library."""

    found: KernelConfig
    gemm: Callable[..., bytes | None]
    reduce: Callable[..., bytes | None]
    pack: Callable[..., bytes | None] | None = None


def source(configurations: Sequence[KernelConfig]) -> str:
    """One unit with every configuration under a number of its own."""
    lines = [f'#include "{header}"' for header in sorted({one.header for one in configurations})]
    for index, one in enumerate(configurations):
        own = one.unit.split("\n", 1)[1]  # without its include
        own = re.sub(r"\b(Chosen|Sums|Packing|gemm|reduce|pack)\b", rf"\1_{index}", own)
        lines.append(own)
    return "\n".join(lines)


def build(
    configurations: Sequence[KernelConfig], folder: Path, warp: int = 32, headers: Path = HEADERS
) -> list[Built]:
    """Compiles them for warps of 32 or 64 threads, with the headers' own warnings as errors."""
    library = compiled(source(configurations), folder / f"kernels-{warp}.so", warp, headers)
    return built(library, configurations)


def built(library: ctypes.CDLL, configurations: Sequence[KernelConfig]) -> list[Built]:
    """The configurations of a library of their source()."""
    found = []
    for index, one in enumerate(configurations):
        names = ("gemm", "reduce") if one.prepacked is None else ("gemm", "reduce", PACK)
        calls = [getattr(library, f"launch_{name}_{index}") for name in names]
        for call in calls:
            call.restype = ctypes.c_char_p
        found.append(Built(one, *calls))
    return found


def compiled(text: str, path: Path, warp: int = 32, headers: Path = HEADERS) -> ctypes.CDLL:
    """A unit as a library of the host."""
    options = [f"-DGEMMTUNE_WARP={warp}", f"-I{headers}", "-include", str(_standard()), "-shared"]
    # A library's calls of its own functions are direct.
    _compile([*options, *_linker(), "-Wl,-Bsymbolic", "-x", "c++", "-"], path, text)
    return ctypes.CDLL(str(path))


@lru_cache(maxsize=1)
def _compiler() -> tuple[str, ...]:
    """The compiler and its own flags, with the CPU's conversions of fp16 if it has them."""
    clang = shutil.which(CLANG[0]) and shutil.which("ld.lld-19")
    fp16 = re.search(r"^flags\b.*\bf16c\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return (*(CLANG if clang else GCC), *(("-mf16c",) if fp16 else ()))


def _linker() -> tuple[str, ...]:
    return ("-fuse-ld=lld-19",) if _compiler()[0] == CLANG[0] else ()


@lru_cache(maxsize=1)
def _standard() -> Path:
    """The system's headers that host.h includes, compiled once: they take a fifth of most units' time."""
    folder = Path(tempfile.mkdtemp(prefix="gemmtune-headers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "standard.h"
    included = re.findall(r"^#include <.*>$", (HEADERS / "emulator" / "host.h").read_text(), re.MULTILINE)
    assert included
    path.write_text("\n".join(included) + "\n")
    suffix = ".h.pch" if _compiler()[0] == CLANG[0] else ".h.gch"  # where each looks for it
    _compile(["-x", "c++-header", str(path)], path.with_suffix(suffix))
    return path


def copied_headers(folder: Path) -> Path:
    """A folder with every header, to plant a mistake in."""
    for name in ("device", "emulator", "families"):
        shutil.copytree(HEADERS / name, folder / name, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return folder


def _compile(options: Sequence[str], path: Path, text: str = "") -> None:
    program, *own = _compiler()
    command = [program, *FLAGS, *own, *options, "-o", str(path)]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[:6000]


def host_map(found: TensorMap, operand: int) -> bytes:
    """A map of the operand at that address, as hopper_host.h: HostMap lays it out."""
    made = struct.pack(
        "<Q3q2q3ii", operand, *found.sizes, *found.strides, *found.box, DTYPES[found.dtype].bytes
    )
    return made.ljust(MAP_BYTES, b"\0")


class HostKernel:
    """A backends.protocol.Kernel that runs on fibers: as on a GPU, or (`other_way`) its warps in reverse and
    a batch's products along the grid's y, one more than there are, as where its z is too short for them. A
    launch of as many blocks as run at once is one for so many `units` (multiprocessors)."""

    partial_sums = 1

    def __init__(self, built: Built, other_way: bool, units: int = 3) -> None:
        self._built, self._other_way = built, other_way
        self._found = built.found.on(units)
        self.workspace_bytes = self._found.workspace_bytes
        packed = self._found.prepacked
        self.layout = None if packed is None else packed.layout
        self.packed_bytes = 0 if packed is None else packed.bytes

    def pack(self, operands: Operands) -> Callable[[], None]:
        found, packed = self._found, self._found.prepacked
        assert packed is not None
        args = found.arguments(operands, 0)

        def launch() -> None:
            one = packed.launch
            sizes = (ctypes.c_uint * 3)(*one.grid)
            assert self._built.pack is not None
            fault = self._built.pack(
                ctypes.byref(args), sizes, one.block[0], ctypes.c_ulonglong(0), int(self._other_way)
            )
            if fault:
                raise LaunchError(fault.decode())

        return launch

    def bind(self, operands: Operands, workspace: int) -> Callable[[], None]:
        found = self._found
        args = found.arguments(operands, workspace)
        (across, down, deep), groups = found.grid, found.product.batch_groups
        if self._other_way and not found.spans_batch:
            args.batch_blocks, args.batch_groups = 1, args.batch + 1
            down, deep = down // groups * args.batch_groups, 1
        whole = encoded(args, [host_map(one, getattr(operands, one.operand)) for one in found.tensors])

        def run(call: Any, args: Any, grid: tuple[int, int, int], threads: int, shared: int) -> None:
            sizes = (ctypes.c_uint * 3)(*grid)
            fault = call(ctypes.byref(args), sizes, threads, ctypes.c_ulonglong(shared), int(self._other_way))
            if fault:
                raise LaunchError(fault.decode())

        def launch() -> None:
            run(self._built.gemm, whole, (across, down, deep), found.threads, found.shared_bytes)
            if found.reduces:
                run(
                    self._built.reduce, args, found.reduce_grid, found.reduce_threads,
                    found.reduce_shared_bytes,
                )  # fmt: skip

        return launch

    def prepare(self) -> None:
        """Nothing to set up."""


class HostDevice:
    """What the verifier asks of a device whose memory is the host's."""

    environment = H200
    reference: Any = None
    traits = HOST_TRAITS

    def allocate(self, size: int) -> HostBuffer:
        return HostBuffer(size)

    def synchronize(self) -> None:
        """Launches are over when they return."""
