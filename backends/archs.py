"""Hardware facts, one row per architecture. A row with inconsistent limits raises ValueError on import.

Sources: the CUDA C++ programming guide's table of compute capabilities, AMD's CDNA and RDNA ISA guides,
and the x86-64 psABI's microarchitecture levels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache


@dataclass(frozen=True)
class Rates:
    """Throughput of one unit (SM, CU, WGP) per clock: bytes from memory, bytes from its L1 cache and fp32
    multiply-adds. `in_flight_bytes` are the bytes of outstanding loads that saturate the unit's share of the
    memory bandwidth. Only the cost models that order candidates use these; no legality rule does."""

    memory_bytes: float
    cache_bytes: float
    multiply_adds: float
    in_flight_bytes: int


@dataclass(frozen=True)
class MatrixCores:
    """The matrix instructions of an AMD architecture.

    - instruction: "mfma" (CDNA), or "wmma_gfx11" or "wmma_gfx12" (RDNA 3 and 4), which differ in how operands
      lie in registers.
    - shapes: input type (fp16, bf16, int8, fp8) -> (m, n, k) of its instructions, the smallest k first.
    - fp8: the 8-bit float formats that they multiply: "fnuz", "ocp", or "" for none.
    - multiply_adds: input type -> multiply-adds per clock of one unit, for cost models."""

    instruction: str
    shapes: Mapping[str, tuple[tuple[int, int, int], ...]]
    multiply_adds: Mapping[str, int]
    fp8: str = ""

    def __post_init__(self) -> None:
        if self.instruction not in ("mfma", "wmma_gfx11", "wmma_gfx12"):
            raise ValueError(f"matrix instructions are mfma or wmma, not {self.instruction}")
        if self.fp8 not in ("", "fnuz", "ocp") or ("fp8" in self.shapes) != bool(self.fp8):
            raise ValueError(f"8-bit floats are fnuz, ocp or none, not {self.fp8!r}")
        if not set(self.shapes) <= {"fp16", "bf16", "int8", "fp8"}:
            raise ValueError(f"no matrix instruction multiplies {', '.join(self.shapes)}")
        if set(self.shapes) != set(self.multiply_adds):
            raise ValueError(f"{', '.join(self.shapes)} have rates of {', '.join(self.multiply_adds)}")
        for kind, shapes in self.shapes.items():
            if any(m != n or m not in (16, 32) or k < 8 or k & (k - 1) for m, n, k in shapes) or not shapes:
                raise ValueError(f"matrix instructions of {kind} have 16 or 32 rows, not {shapes}")

    def shape(self, kind: str, m: int) -> tuple[int, int, int] | None:
        """The instruction of an input type with `m` rows and the largest k, or None."""
        return next((one for one in reversed(self.shapes.get(kind, ())) if one[0] == m), None)


@dataclass(frozen=True)
class GpuArch:
    """An architecture's limits. A unit is what the driver counts as a multiprocessor: an SM, a CU (CDNA) or a
    WGP (RDNA). Registers are 32 bits wide.

    - warp: threads per warp (wavefront).
    - block_shared_bytes, unit_shared_bytes: shared memory (LDS) available to a block and to a unit.
    - thread_registers, unit_registers: registers available to a thread and to a unit.
    - accumulation_registers: of thread_registers, those that only matrix instructions and copies can name
      (AGPRs).
    - address_registers: registers that the address of each of several loads in flight takes; 0 if they share
      one and differ in constant offsets.
    - register_granule: registers are allocated to a thread in multiples of this.
    - shared_granule, reserved_shared_bytes: shared memory is allocated to a block in multiples of the first;
      the second is what every block takes beside its own.
    - simds: the parts of a unit (SIMDs, SM sub-partitions) that share its registers and threads evenly.
    - unit_threads, unit_blocks: resident threads and blocks per unit. block_threads: threads per block.
    - default_shared_bytes: dynamic shared memory that a launch may use without setting a kernel attribute.
    - grid_threads: exclusive upper bound on the threads of a launch along each dimension; None if only the
      number of blocks is limited.
    - capability: NVIDIA's compute capability times ten, 0 for other vendors.
    - dependent_launches: programmatic dependent launch: a launch may start before the previous one has ended.
    - clusters: thread block clusters are supported.
    - matrix_cores: AMD's matrix instructions; None for other vendors and for architectures without them."""

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
    shared_granule: int = 128
    reserved_shared_bytes: int = 0
    simds: int = 4
    accumulation_registers: int = 0
    address_registers: int = 0
    block_threads: int = 1024
    grid_threads: int | None = None
    capability: int = 0
    dependent_launches: bool = False
    clusters: bool = False
    matrix_cores: MatrixCores | None = field(default=None, hash=False)

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
        if not 0 <= self.accumulation_registers < self.thread_registers:
            raise ValueError(f"{self.name}: a thread has more accumulation registers than registers")
        if self.unit_threads % (self.simds * self.warp) or self.unit_registers % self.simds:
            raise ValueError(f"{self.name}: {self.simds} SIMDs do not share its threads and registers evenly")
        if self.matrix_cores is not None:
            wave = 64 if self.matrix_cores.instruction == "mfma" else 32
            if self.vendor != "hip" or self.warp != wave:
                name = self.matrix_cores.instruction
                raise ValueError(f"{self.name}: {name} needs AMD wavefronts of {wave}")

    @property
    def vector_registers(self) -> int:
        """Registers of a thread that every instruction can name."""
        return self.thread_registers - self.accumulation_registers

    @property
    def async_copies(self) -> bool:
        """Whether global memory can be copied to shared memory asynchronously (cp.async, from sm_80 on)."""
        return self.capability >= 80


@dataclass(frozen=True)
class CpuIsa:
    """A CPU instruction set level: vector width, number of vector registers, and its compiler flags.

    `requires` are the /proc/cpuinfo flags that a CPU must have.
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
    """The row of a compute capability (times ten): KiB of shared memory, threads and blocks per
    multiprocessor, from "Technical Specifications per Compute Capability" in the CUDA programming guide. A
    block can use 1 KiB less shared memory than its multiprocessor has. All rows have the rates measured on an
    H200: 4.6 TB/s over 132 multiprocessors."""
    return GpuArch(
        f"sm_{capability}", "cuda", 32, (shared_kib - 1) * _KIB, shared_kib * _KIB,
        thread_registers=255, unit_registers=65536, register_granule=8, unit_threads=threads,
        unit_blocks=blocks, default_shared_bytes=48 * _KIB, rates=Rates(20, 64, 128, 42_000),
        reserved_shared_bytes=_KIB, capability=capability, dependent_launches=capability >= 90,
        clusters=capability >= 90,
    )  # fmt: skip


#: (m, n, k) of the matrix instructions of CDNA, by the bytes of a lane's operand and its elements.
_FOUR_INT8 = _FOUR_HALVES = ((16, 16, 16), (32, 32, 8))
_EIGHT_BYTES = _EIGHT_HALVES = ((16, 16, 32), (32, 32, 16))
_SIXTEEN_BYTES = ((16, 16, 64), (32, 32, 32))
_WMMA = ((16, 16, 16),)
#: Shapes: AMD's CDNA 2, 3 and 4 and RDNA 3 and 4 ISA guides; LLVM, BuiltinsAMDGPU.def. Multiply-adds: AMD
#: matrix instruction calculator (half of FLOPs/CU/cycle or FLOPs/WGP/cycle); MI355X's data sheet for CDNA 4.
_MATRIX_CORES = {
    "gfx90a": MatrixCores(
        "mfma", {"fp16": _FOUR_HALVES, "bf16": _FOUR_HALVES, "int8": _FOUR_INT8},
        {"fp16": 512, "bf16": 512, "int8": 512},
    ),
    "gfx942": MatrixCores(
        "mfma", {"fp16": _FOUR_HALVES, "bf16": _FOUR_HALVES, "int8": _EIGHT_BYTES, "fp8": _EIGHT_BYTES},
        {"fp16": 1024, "bf16": 1024, "int8": 2048, "fp8": 2048}, "fnuz",
    ),
    "gfx950": MatrixCores(
        "mfma",
        {
            "fp16": _FOUR_HALVES + _EIGHT_HALVES, "bf16": _FOUR_HALVES + _EIGHT_HALVES,
            "int8": _EIGHT_BYTES + _SIXTEEN_BYTES, "fp8": _EIGHT_BYTES,
        },
        {"fp16": 2048, "bf16": 2048, "int8": 4096, "fp8": 4096}, "ocp",
    ),
    "gfx1100": MatrixCores(
        "wmma_gfx11", {"fp16": _WMMA, "bf16": _WMMA, "int8": _WMMA},
        {"fp16": 512, "bf16": 512, "int8": 512},
    ),
    "gfx1201": MatrixCores(
        "wmma_gfx12", {"fp16": _WMMA, "bf16": _WMMA, "int8": _WMMA, "fp8": _WMMA},
        {"fp16": 1024, "bf16": 1024, "int8": 2048, "fp8": 2048}, "ocp",
    ),
}  # fmt: skip


def _cdna(name: str, shared_kib: int, rates: Rates, shared_granule: int = 512) -> GpuArch:
    """The row of a CDNA CU. It has four SIMDs, each with 512 registers of 64 lanes. A thread has up to 256 of
    them as VGPRs and up to 256 as AGPRs. A SIMD holds eight wavefronts, and four workgroups of several
    wavefronts each (CDNA ISA guides; LLVM, AMDGPUBaseInfo.cpp; the granule of LDS: AMDGPU User Guide,
    GRANULATED_LDS_SIZE)."""
    return GpuArch(
        name, "hip", 64, shared_kib * _KIB, shared_kib * _KIB, thread_registers=512,
        unit_registers=4 * 512 * 64, register_granule=8, unit_threads=2048, unit_blocks=16,
        default_shared_bytes=shared_kib * _KIB, rates=rates, shared_granule=shared_granule,
        accumulation_registers=256, address_registers=2, grid_threads=2**32, matrix_cores=_MATRIX_CORES[name],
    )  # fmt: skip


def _rdna(name: str, rates: Rates) -> GpuArch:
    """The row of an RDNA 3 or 4 WGP. It has four SIMDs, each with 1536 registers of 32 lanes and up to
    sixteen wavefronts; a thread can use 256 registers (RDNA ISA guides; LLVM, AMDGPUBaseInfo.cpp)."""
    return GpuArch(
        name, "hip", 32, 64 * _KIB, 128 * _KIB, thread_registers=256, unit_registers=4 * 1536 * 32,
        register_granule=24, unit_threads=2048, unit_blocks=32, default_shared_bytes=64 * _KIB, rates=rates,
        shared_granule=512, address_registers=2, grid_threads=2**32, matrix_cores=_MATRIX_CORES[name],
    )  # fmt: skip


#: An address takes two registers on AMD: a load has a constant offset of 12, 13 or 24 bits (ISA guides, "Flat
#: memory instructions"), mostly less than what lies between a thread's loads.
#: AMD's rates come from data sheets; none are measured: one die of an MI250X (1.6 TB/s, 110 CUs, 1.7 GHz),
#: MI300X (5.3 TB/s, 304 CUs, 2.1 GHz), MI355X (8 TB/s, 256 CUs, 2.4 GHz), RX 7900 XTX (0.96 TB/s, 48 WGPs,
#: 2.5 GHz) and RX 9070 XT (0.64 TB/s, 32 WGPs, 3.0 GHz). Bytes in flight cover a latency of 800 ns (600 ns on
#: RDNA), plus 50%.
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
        _cdna("gfx950", 160, Rates(13.0, 64, 128, 37_500), 1280),
        _rdna("gfx1100", Rates(8.0, 128, 256, 18_000)),
        _rdna("gfx1201", Rates(6.7, 128, 256, 18_000)),
    )
}

#: With NVIDIA's suffixes a kernel may use more instructions, and then runs only on that architecture (a) or
#: on its family (f).
_SUFFIXES = {"sm_90": ("a",), "sm_100": ("a", "f")}
#: Architectures by every target name that is passed to a compiler.
GPU_TARGETS: Mapping[str, GpuArch] = {
    name + suffix: row for name, row in GPU_ARCHS.items() for suffix in ("", *_SUFFIXES.get(name, ()))
}

#: Beginnings of RDNA's names, whose wavefronts have 32 lanes, and of those with the matrix instructions of
#: gfx1100 and gfx1201 (RDNA 3, 3.5 and 4; LLVM, "User Guide for AMDGPU Backend": Processors).
_RDNA = ("gfx10", "gfx11", "gfx12")
_WMMA_GFX11, _WMMA_GFX12 = ("gfx110", "gfx115"), ("gfx120",)
_SM = re.compile(r"sm_(\d+)[af]?")


@lru_cache(maxsize=64)
def gpu_arch(vendor: str, name: str) -> GpuArch:
    """The row of an architecture. One that is not listed gets conservative limits of its vendor."""
    found = GPU_TARGETS.get(name)
    if found is not None:
        return found
    if vendor == "hip":
        if not name.startswith(_RDNA):
            return replace(
                GPU_ARCHS["gfx90a"],
                name=name,
                thread_registers=256,
                accumulation_registers=0,
                matrix_cores=None,
            )
        like = "gfx1201" if name.startswith("gfx12") else "gfx1100"
        matrix_cores = _MATRIX_CORES[like] if name.startswith(_WMMA_GFX11 + _WMMA_GFX12) else None
        # Some of RDNA's SIMDs have 1024 registers, in granules of 16.
        return replace(
            GPU_ARCHS[like],
            name=name,
            unit_registers=4 * 1024 * 32,
            register_granule=16,
            matrix_cores=matrix_cores,
        )
    number = _SM.fullmatch(name)
    capability = int(number[1]) if number else 0
    return replace(nvidia(capability, 100 if capability >= 80 else 49, 1536, 16), name=name)


_V2 = frozenset(["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"])
_V3 = _V2 | frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])

#: Best first: a CPU's level is the first row whose `requires` flags it has.
CPU_ISAS: tuple[CpuIsa, ...] = (
    CpuIsa("x86-64-v4", "x86_64", 64, 32, ("-march=x86-64-v4",), _V4),
    CpuIsa("x86-64-v3", "x86_64", 32, 16, ("-march=x86-64-v3",), _V3),
    CpuIsa("x86-64-v2", "x86_64", 16, 16, ("-march=x86-64-v2",), _V2),
    CpuIsa("x86-64", "x86_64", 16, 16, ("-march=x86-64",)),
    CpuIsa("armv8-a", "aarch64", 16, 32, ("-march=armv8-a",)),
)

#: Extensions beyond a level: /proc/cpuinfo flag -> compiler flag.
CPU_EXTENSIONS: Mapping[str, str] = {
    "avx512_bf16": "-mavx512bf16",
    "avx512_vnni": "-mavx512vnni",
}


def cpu_isa(machine: str, flags: frozenset[str]) -> CpuIsa | None:
    """The best ISA level of a CPU with these /proc/cpuinfo flags; None for a machine not listed."""
    return next((row for row in CPU_ISAS if row.machine == machine and row.requires <= flags), None)


def foreign_float(kinds: Iterable[str], arch: GpuArch) -> str:
    """What to say of 8-bit floats that the architecture has in the other format, OCP's or gfx942's fnuz; ""
    of all others."""
    fnuz = arch.matrix_cores is not None and arch.matrix_cores.fp8 == "fnuz"
    kinds = tuple(kinds)
    if not all(kind.startswith("fp8_e") for kind in kinds):  # weights of fp8 are dequantised
        return ""
    for kind in kinds:
        if kind.endswith("_fnuz") != fnuz:
            own = f"{kind}_fnuz" if fnuz else kind.removesuffix("_fnuz")
            whose = "gfx942" if kind.endswith("_fnuz") else "OCP"
            return f"{kind} is the 8-bit float of {whose}, and {arch.name} has {own}"
    return ""
