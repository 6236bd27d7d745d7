"""Hardware facts, one row an architecture; a row that contradicts itself does not import.

Sources: the CUDA C++ programming guide's table of compute capabilities, AMD's CDNA and RDNA ISA guides,
and the x86-64 psABI's microarchitecture levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuArch:
    """Threads a warp, and shared-memory bytes that one block may use and that one unit has."""

    name: str
    vendor: str
    warp: int
    block_shared_bytes: int
    unit_shared_bytes: int
    block_threads: int = 1024

    def __post_init__(self) -> None:
        if self.warp not in (32, 64):
            raise ValueError(f"{self.name}: a warp has 32 or 64 threads, not {self.warp}")
        if not 0 < self.block_shared_bytes <= self.unit_shared_bytes:
            raise ValueError(f"{self.name}: a block's shared memory exceeds its unit's")
        if self.block_threads % self.warp:
            raise ValueError(f"{self.name}: {self.block_threads} threads are no whole warps")


@dataclass(frozen=True)
class CpuIsa:
    """A level of a CPU's instruction set: vector width, registers, and the compiler flags that name it.

    `requires` are the flags of /proc/cpuinfo that a CPU must have.
    """

    name: str
    machine: str
    vector_bytes: int
    vector_registers: int
    flags: tuple[str, ...]
    requires: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.vector_bytes not in (16, 32, 64):
            raise ValueError(f"{self.name}: vectors have 16, 32 or 64 bytes, not {self.vector_bytes}")
        if not self.flags or any(not flag.startswith("-m") for flag in self.flags):
            raise ValueError(f"{self.name}: compiler flags must name the target, not {self.flags}")


_KIB = 1024

GPU_ARCHS: Mapping[str, GpuArch] = {
    row.name: row
    for row in (
        GpuArch("sm_80", "cuda", 32, 163 * _KIB, 164 * _KIB),
        GpuArch("sm_86", "cuda", 32, 99 * _KIB, 100 * _KIB),
        GpuArch("sm_89", "cuda", 32, 99 * _KIB, 100 * _KIB),
        GpuArch("sm_90", "cuda", 32, 227 * _KIB, 228 * _KIB),
        GpuArch("sm_100", "cuda", 32, 227 * _KIB, 228 * _KIB),
        GpuArch("gfx90a", "hip", 64, 64 * _KIB, 64 * _KIB),
        GpuArch("gfx942", "hip", 64, 64 * _KIB, 64 * _KIB),
        GpuArch("gfx950", "hip", 64, 160 * _KIB, 160 * _KIB),
        GpuArch("gfx1100", "hip", 32, 64 * _KIB, 128 * _KIB),
        GpuArch("gfx1201", "hip", 32, 64 * _KIB, 128 * _KIB),
    )
}

#: NVIDIA's suffixes open instructions to a kernel that then runs on that architecture alone (a) or on its
#: family (f).
_SUFFIXES = {"sm_90": ("a",), "sm_100": ("a", "f")}
#: Architectures by every name that a compiler is given.
GPU_TARGETS: Mapping[str, GpuArch] = {
    name + suffix: row for name, row in GPU_ARCHS.items() for suffix in ("", *_SUFFIXES.get(name, ()))
}

_V2 = frozenset(["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"])
_V3 = _V2 | frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])

#: Best first: the first row whose `requires` a CPU has is its level.
CPU_ISAS: tuple[CpuIsa, ...] = (
    CpuIsa("x86-64-v4", "x86_64", 64, 32, ("-march=x86-64-v4",), _V4),
    CpuIsa("x86-64-v3", "x86_64", 32, 16, ("-march=x86-64-v3",), _V3),
    CpuIsa("x86-64-v2", "x86_64", 16, 16, ("-march=x86-64-v2",), _V2),
    CpuIsa("x86-64", "x86_64", 16, 16, ("-march=x86-64",)),
    CpuIsa("armv8-a", "aarch64", 16, 32, ("-march=armv8-a",)),
)

#: Extensions on top of a level: /proc/cpuinfo's flag -> the compiler's.
CPU_EXTENSIONS: Mapping[str, str] = {
    "avx512_bf16": "-mavx512bf16",
    "avx512_vnni": "-mavx512vnni",
}


def cpu_isa(machine: str, flags: frozenset[str]) -> CpuIsa | None:
    """The best ISA level of a CPU with these /proc/cpuinfo flags; None for a machine not listed."""
    return next((row for row in CPU_ISAS if row.machine == machine and row.requires <= flags), None)
