"""Hardware facts, one row an architecture; a row that contradicts itself does not import.

Sources: the CUDA C++ programming guide's table of compute capabilities, AMD's CDNA and RDNA ISA guides,
and the x86-64 psABI's microarchitecture levels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class Rates:
    """What one unit (SM, CU, WGP) does in a clock: bytes from memory, bytes from its L1 cache, fp32
    multiply-adds; and the bytes of loads in flight with which it reaches its share of the memory's bandwidth.
    Cost models order candidates by them; no rule depends on them."""

    memory_bytes: float
    cache_bytes: float
    multiply_adds: float
    in_flight_bytes: int


@dataclass(frozen=True)
class GpuArch:
    """An architecture's limits. A unit is what the driver counts as a multiprocessor: an SM, a CU of CDNA, a
    WGP of RDNA. Registers are of 32 bits.

    - warp: threads of a warp (wavefront).
    - block_shared_bytes, unit_shared_bytes: shared memory (LDS) that a block may use, and that a unit has.
    - thread_registers, unit_registers: of a thread at most, and of a unit.
    - register_granule: a thread is given a multiple of this many registers.
    - unit_threads, unit_blocks: threads and blocks that a unit holds at once; block_threads: of a block.
    - default_shared_bytes: dynamic shared memory of a launch without an attribute of its kernel.
    - grid_threads: a launch has fewer threads than this along each dimension; None: only blocks are limited.
    - capability: NVIDIA's compute capability times ten, 0 of another vendor.
    - dependent_launches: a launch may start while the one before it ends (programmatic dependent launch).
    - clusters: blocks may form clusters."""

    name: str
    vendor: str
    warp: int
    block_shared_bytes: int
    unit_shared_bytes: int
    thread_registers: int
    unit_registers: int
    register_granule: int
    unit_threads: int
    unit_blocks: int
    default_shared_bytes: int
    rates: Rates
    block_threads: int = 1024
    grid_threads: int | None = None
    capability: int = 0
    dependent_launches: bool = False
    clusters: bool = False

    def __post_init__(self) -> None:
        if self.warp not in (32, 64):
            raise ValueError(f"{self.name}: a warp has 32 or 64 threads, not {self.warp}")
        if not 0 < self.block_shared_bytes <= self.unit_shared_bytes:
            raise ValueError(f"{self.name}: a block's shared memory exceeds its unit's")
        if not 0 < self.default_shared_bytes <= self.block_shared_bytes:
            raise ValueError(f"{self.name}: a launch's shared memory by default exceeds a block's")
        if self.block_threads % self.warp or self.unit_threads % self.block_threads % self.warp:
            raise ValueError(f"{self.name}: {self.block_threads} threads are no whole warps")
        if not self.unit_registers >= self.thread_registers * self.warp:
            raise ValueError(f"{self.name}: a warp's registers exceed its unit's")

    @property
    def async_copies(self) -> bool:
        """Whether copies from memory to shared memory are asynchronous (cp.async, from sm_80 on)."""
        return self.capability >= 80


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


def nvidia(capability: int, shared_kib: int, threads: int, blocks: int) -> GpuArch:
    """A compute capability (times ten) by the CUDA programming guide, "Technical Specifications per Compute
    Capability": KiB of shared memory, threads and blocks of a multiprocessor. A block has 1 KiB less of the
    shared memory. Rates are an H200's, by measurement: 4.6 TB/s over 132 multiprocessors."""
    return GpuArch(
        f"sm_{capability}", "cuda", 32, (shared_kib - 1) * _KIB, shared_kib * _KIB,
        thread_registers=255, unit_registers=65536, register_granule=8, unit_threads=threads,
        unit_blocks=blocks, default_shared_bytes=48 * _KIB, rates=Rates(20, 64, 128, 42_000),
        capability=capability, dependent_launches=capability >= 90, clusters=capability >= 90,
    )  # fmt: skip


def _cdna(name: str, shared_kib: int, rates: Rates) -> GpuArch:
    """A CU of CDNA: four SIMDs of 512 registers (VGPRs and AGPRs) by 64 lanes, eight wavefronts and, of
    several wavefronts each, four workgroups a SIMD (CDNA ISA guides; LLVM, AMDGPUBaseInfo.cpp)."""
    return GpuArch(
        name, "hip", 64, shared_kib * _KIB, shared_kib * _KIB, thread_registers=512,
        unit_registers=4 * 512 * 64, register_granule=8, unit_threads=2048, unit_blocks=16,
        default_shared_bytes=shared_kib * _KIB, rates=rates, grid_threads=2**32,
    )  # fmt: skip


def _rdna(name: str, rates: Rates) -> GpuArch:
    """A WGP of RDNA 3 and 4: four SIMDs of 1536 registers by 32 lanes, of which a thread has 256 at most;
    sixteen wavefronts a SIMD (RDNA ISA guides; LLVM, AMDGPUBaseInfo.cpp)."""
    return GpuArch(
        name, "hip", 32, 64 * _KIB, 128 * _KIB, thread_registers=256, unit_registers=4 * 1536 * 32,
        register_granule=24, unit_threads=2048, unit_blocks=32, default_shared_bytes=64 * _KIB, rates=rates,
        grid_threads=2**32,
    )  # fmt: skip


#: AMD's rates are of data sheets, none measured: a die of an MI250X (1.6 TB/s, 110 CUs, 1.7 GHz), an MI300X
#: (5.3 TB/s, 304, 2.1), an MI355X (8 TB/s, 256, 2.4), an RX 7900 XTX (0.96 TB/s, 48 WGPs, 2.5) and an RX 9070
#: XT (0.64 TB/s, 32, 3.0); loads in flight for a latency of 800 ns (RDNA 600) and half as many again.
GPU_ARCHS: Mapping[str, GpuArch] = {
    row.name: row
    for row in (
        nvidia(80, 164, 2048, 32),
        nvidia(86, 100, 1536, 16),
        nvidia(89, 100, 1536, 24),
        nvidia(90, 228, 2048, 32),
        nvidia(100, 228, 2048, 32),
        _cdna("gfx90a", 64, Rates(8.6, 64, 128, 17_500)),
        _cdna("gfx942", 64, Rates(8.3, 64, 128, 21_000)),
        _cdna("gfx950", 160, Rates(13.0, 64, 128, 37_500)),
        _rdna("gfx1100", Rates(8.0, 128, 256, 18_000)),
        _rdna("gfx1201", Rates(6.7, 128, 256, 18_000)),
    )
}

#: NVIDIA's suffixes open instructions to a kernel that then runs on that architecture alone (a) or on its
#: family (f).
_SUFFIXES = {"sm_90": ("a",), "sm_100": ("a", "f")}
#: Architectures by every name that a compiler is given.
GPU_TARGETS: Mapping[str, GpuArch] = {
    name + suffix: row for name, row in GPU_ARCHS.items() for suffix in ("", *_SUFFIXES.get(name, ()))
}

_SM = re.compile(r"sm_(\d+)[af]?")


@lru_cache(maxsize=64)
def gpu_arch(vendor: str, name: str) -> GpuArch:
    """The row of an architecture; one that is not listed has the least limits of its vendor's rows."""
    found = GPU_TARGETS.get(name)
    if found is not None:
        return found
    if vendor == "hip":
        return replace(GPU_ARCHS["gfx90a"], name=name, thread_registers=256)
    number = _SM.fullmatch(name)
    capability = int(number[1]) if number else 0
    return replace(nvidia(capability, 100 if capability >= 80 else 49, 1536, 16), name=name)


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
