"""Our own model of which configurations are likely: a roofline for each wave of programs.

A wave is as many programs as the device runs at once. It takes as long as its tensor cores, its share of the
bandwidth of L2 and of memory, or the latency of its steps along k, whichever is longest. The last wave takes
as long as a full one, however few programs it has (wave quantisation). The figures are typical of an H100,
and only their ratios matter: timing decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from backends.environment import Environment
from backends.kernels.legality import arch_of, capability
from backends.kernels.triton.configuration import TritonConfig

#: Peak multiply-adds of 2-byte floats per multiprocessor and second: sm_80, sm_90.
_PRODUCTS = {80: 1.4e12, 90: 3.0e12}
#: Bytes/s of memory and of L2 for the whole device; seconds of a launch, of a program's start and end, and of
#: a load from memory.
_MEMORY, _CACHE = 3.5e12, 6.0e12
_LAUNCH, _PROGRAM, _LOAD = 2.5e-6, 1.2e-6, 0.8e-6
#: Seconds of a step along k that nothing hides: barriers, and restarting the tensor cores.
_STEP = 4e-8
#: How sharply the longest of several overlapping costs hides the others (the exponent of a p-norm).
_OVERLAP = 3.0
_THREADS, _REGISTERS = 2048, 65536


@dataclass(frozen=True)
class _Unit:
    """An AMD compute unit (CU, WGP) by its data sheet: multiply-adds of 2-byte floats per second, the share
    of them that single-precision inputs reach, and bytes/s of memory and of the last-level cache."""

    products: float
    single: float
    memory: float
    cache: float


#: Of one die of an MI250X, MI300X, MI355X, RX 7900 XTX and RX 9070 XT, by the beginning of the architecture.
_AMD = {
    "gfx90a": _Unit(0.87e12, 1 / 4, 15e9, 63e9),
    "gfx942": _Unit(2.15e12, 1 / 8, 17e9, 57e9),
    "gfx950": _Unit(4.9e12, 1 / 16, 31e9, 64e9),
    "gfx11": _Unit(1.28e12, 1 / 8, 20e9, 73e9),
    "gfx12": _Unit(3.05e12, 1 / 8, 20e9, 80e9),
}


def resident(one: TritonConfig, environment: Environment) -> int:
    """Programs that a multiprocessor runs at once, by shared memory, registers and threads."""
    arch = arch_of(environment)
    threads, shared = arch.warp * one.warps, max(1, one.shared_bytes(arch))
    if arch.vendor == "hip":
        most, file, registers = arch.unit_threads, arch.unit_registers, one.registers(arch)
    else:
        most, file = _THREADS, _REGISTERS
        registers = min(255, 40 + one.block_m * one.block_n // threads)
    return max(1, min(arch.unit_shared_bytes // shared, most // threads, file // (registers * threads)))


def estimate(one: TritonConfig, environment: Environment) -> float:
    """Estimates the seconds of a launch."""
    units = max(1, environment.units)
    programs, at_once = one.tiles * one.slices, resident(one, environment)
    here = min(at_once, -(-programs // units))
    waves = -(-programs // (units * here))
    steps = one.slice_steps
    peak, memory, cache = _rates(one, environment)
    # Small tiles cannot feed the tensor cores from shared memory at their full rate.
    speed = peak * _efficiency(one, environment)
    math = here * steps * one.block_m * one.block_n * one.block_k / speed
    moved = here * steps * one.stage_bytes * units
    # One stage is computed while the others are in flight; the start of the next copy takes part of that
    # time.
    latency = steps * _LOAD / max(0.5, one.stages - 1.5)
    overlapping = (math, moved / cache, latency)
    wave: float = (
        sum(seconds**_OVERLAP for seconds in overlapping) ** (1 / _OVERLAP) + steps * _STEP + _PROGRAM
    )
    return _LAUNCH * (1 if one.slices == 1 else 2) + max(wave * waves, _bytes(one) / memory)


def _rates(one: TritonConfig, environment: Environment) -> tuple[float, float, float]:
    """Peak multiply-adds per second of a unit for the operands' type; bytes/s of memory and of the last-level
    cache for the whole device."""
    p = one.product
    amd = next((row for name, row in _AMD.items() if environment.arch.startswith(name)), None)
    if amd is None:
        peak = _PRODUCTS[90 if capability(environment) >= 90 else 80] * 2 / p.element_bytes
        return peak, _MEMORY, _CACHE
    units = max(1, environment.units)
    full = p.element_bytes == 4 and p.problem.compute == "fp32"
    peak = amd.products * (amd.single if full else 2 / p.element_bytes)
    return peak, amd.memory * units, amd.cache * units


def _efficiency(one: TritonConfig, environment: Environment) -> float:
    """The share of the tensor cores' peak that a tile reaches, by how often a loaded element is used."""
    reuse = one.block_m * one.block_n / (one.block_m + one.block_n)
    share = min(1.0, reuse / 64)
    # wgmma needs four warps and 64 rows of A; smaller tiles use mma.sync.
    if capability(environment) == 90 and (one.block_m < 64 or one.warps < 4):
        share *= 0.6
    # Sums of 8-bit floats that are promoted to single precision occupy registers twice.
    if one.promoted and one.block_m * one.block_n // (32 * one.warps) > 64:
        share *= 0.5
    return share


def _bytes(one: TritonConfig) -> int:
    """Bytes moved: every operand read once and D written, and the slices' sums written and read."""
    p = one.product.problem
    return p.bytes_read + p.bytes_written + 2 * one.partial_bytes
