"""Our own model of which configurations are likely: a roofline of one wave after another.

A wave is as many programs as the device runs at once. It takes as long as its tensor cores, its share of
L2's and of memory's bandwidth or the latency of its steps along k, whichever is longest; the last wave takes
as long as a full one, however few its programs (wave quantisation). Figures are of an H100's kind and matter
by their ratios alone: what is timed decides.
"""

from __future__ import annotations

from backends.environment import Environment
from backends.kernels.legality import arch_of, capability
from backends.kernels.triton.configuration import TritonConfig

#: Products (multiply and add) a multiprocessor does in a second at most, of 2-byte floats: sm_80, sm_90.
_PRODUCTS = {80: 1.4e12, 90: 3.0e12}
#: Bytes/s of memory and of L2, of the whole device; seconds of a launch, of a program's start and end, and
#: of a load's way from memory.
_MEMORY, _CACHE = 3.5e12, 6.0e12
_LAUNCH, _PROGRAM, _LOAD = 2.5e-6, 1.2e-6, 0.8e-6
#: Seconds of a step along k that nothing hides: barriers, and starting the tensor cores anew.
_STEP = 4e-8
#: How sharply the longest of what overlaps hides the others.
_OVERLAP = 3.0
_THREADS, _REGISTERS = 2048, 65536


def resident(one: TritonConfig, environment: Environment) -> int:
    """Programs that a multiprocessor runs at once, by shared memory, registers and threads."""
    arch, threads = arch_of(environment), 32 * one.warps
    shared = max(1, one.stage_bytes * one.stages)
    registers = min(255, 40 + one.block_m * one.block_n // threads)
    return max(
        1, min(arch.unit_shared_bytes // shared, _THREADS // threads, _REGISTERS // (registers * threads))
    )


def estimate(one: TritonConfig, environment: Environment) -> float:
    """Seconds that a launch may take."""
    p, units = one.product, max(1, environment.units)
    programs, at_once = one.tiles * one.slices, resident(one, environment)
    here = min(at_once, -(-programs // units))
    waves = -(-programs // (units * here))
    steps, size = one.slice_steps, p.element_bytes
    peak = _PRODUCTS[90 if capability(environment) >= 90 else 80] * 2 / size
    # Small tiles feed the tensor cores from shared memory less often than they could multiply.
    speed = peak * _efficiency(one, environment)
    math = here * steps * one.block_m * one.block_n * one.block_k / speed
    moved = here * steps * one.stage_bytes * units
    # A stage is computed on while the others are on their way, the next one's start included.
    latency = steps * _LOAD / max(0.5, one.stages - 1.5)
    overlapping = (math, moved / _CACHE, latency)
    wave: float = (
        sum(seconds**_OVERLAP for seconds in overlapping) ** (1 / _OVERLAP) + steps * _STEP + _PROGRAM
    )
    return _LAUNCH * (1 if one.slices == 1 else 2) + max(wave * waves, _memory_seconds(one))


def _efficiency(one: TritonConfig, environment: Environment) -> float:
    """Share of the tensor cores' peak that a tile reaches, by how often a loaded element is used."""
    reuse = one.block_m * one.block_n / (one.block_m + one.block_n)
    share = min(1.0, reuse / 64)
    # Hopper's own instruction takes four warps and 64 rows of A; anything less runs the older one.
    if capability(environment) == 90 and (one.block_m < 64 or one.warps < 4):
        share *= 0.6
    # Sums of 8-bit floats that are promoted to single precision are held twice.
    if one.promoted and one.block_m * one.block_n // (32 * one.warps) > 64:
        share *= 0.5
    return share


def _memory_seconds(one: TritonConfig) -> float:
    """Every operand read once and D written, and the slices' sums written and read."""
    p = one.product.problem
    return (p.bytes_read + p.bytes_written + 2 * one.partial_bytes) / _MEMORY
