"""The rings of weights and activations that Hopper's copy engine fills (dequant_rings.h): their bytes, the
registers of those that read them, and what their operands must be."""

from __future__ import annotations

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.dequant_chunk import chunk_bytes, chunk_rule
from backends.kernels.legality import capability, first
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.tensor_map import LINE_BYTES, MOST_STEP, weight_maps
from backends.kernels.weights import bits, lines_rule
from backends.problem import GemmProblem

#: The compute capability (times ten) of the one architecture that has wgmma.
HOPPER = 90
#: Elements of k in a stage of activations, and rows of a warpgroup.
PART, ROWS = 64, 64
#: Threads of the producers' warpgroup.
PRODUCERS = 128
#: The allocation unit of shared memory, and the bytes that a block occupies beside what it requests.
_SHARED_UNIT, _BLOCK_SHARED = 1024, 1024


def deep(problem: GemmProblem) -> int:
    """Elements of k of a chunk: 128 bytes of weights."""
    return LINE_BYTES * 8 // bits(problem)


def ring_bytes(problem: GemmProblem, rows: int, columns: int, slots: int, stages: int) -> int:
    """Bytes of both rings."""
    chunk = chunk_bytes(problem, rows, 0, deep(problem))
    slot = -(-chunk // _SHARED_UNIT) * _SHARED_UNIT
    return slots * slot + stages * columns * LINE_BYTES


def with_barriers(found: int, slots: int, stages: int) -> int:
    """Shared memory of a block that needs `found` bytes beside two barriers for every slot and stage."""
    return -(-(found + 16 * (slots + stages)) // _SHARED_UNIT) * _SHARED_UNIT


def launched_registers(threads: int, blocks: int, arch: GpuArch) -> int:
    """Registers of a thread at the launch of a block of `threads`, of which a multiprocessor has so many
    blocks (dequant_rings.h: ExchangedRegisters)."""
    return min(arch.unit_registers // blocks // threads // 8 * 8, 248)


def consumer_registers(threads: int, blocks: int, arch: GpuArch, most: int = 40) -> int:
    """Registers of a consumer's thread, where a producer's thread keeps `most` at most."""
    launched = launched_registers(threads, blocks, arch)
    producer = 32 if launched < 128 else most
    return min((launched * threads - producer * PRODUCERS) // (threads - PRODUCERS) // 8 * 8, 240)


def operands_rule(product: OrientedGemm) -> str | None:
    """The rule that is broken, or None: 16-byte words of every operand, whole groups of a chunk, what the
    copy engine takes."""
    problem = product.problem
    if (broken := first(lines_rule(product), chunk_rule(problem, deep(problem)))) is not None:
        return broken
    if max(one.strides[0] for one in weight_maps(product, ROWS, 8)) >= MOST_STEP:
        return "the copy engine takes steps below 2^40 bytes"
    return None


def hopper_rule(environment: Environment) -> str | None:
    """The architecture."""
    return None if capability(environment) == HOPPER else f"wgmma needs sm_90a, not {environment.arch}"


def resident_rule(shared: int, blocks: int, arch: GpuArch) -> str | None:
    """Shared memory of all blocks of a multiprocessor, if they are several."""
    if blocks > 1 and blocks * (shared + _BLOCK_SHARED) > arch.unit_shared_bytes:
        return f"{blocks} blocks take {shared} bytes of shared memory each; {arch.name} has fewer"
    return None
