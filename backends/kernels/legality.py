"""The legality rules of our kernels, each written once. A rule returns its violation as a sentence, or None.

The headers guard the same rules by static_assert, and every unit asserts the threads and the shared memory
that are derived in Python (family.py), so that the two cannot drift apart unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.archs import GpuArch, gpu_arch
from backends.environment import Environment
from backends.grouping import ungrouped
from backends.kernels.oriented_gemm import CPP_TYPES, MOST_BLOCKS_YZ, WIDE, OrientedGemm
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution

#: Registers for addresses, counters and constants, beside operands and sums.
OTHER_REGISTERS = 32
MOST_BLOCKS = 2**31 - 1
#: Pairs (type of A and B, compute type) that FMAs compute; tensor cores take the same ones for 16-bit floats.
PLAIN = (("fp32", "fp32"), ("fp16", "fp32"), ("bf16", "fp32"))
#: Threads of a block of epilogue.h: Reduce.
REDUCE_THREADS = 256


def arch_of(environment: Environment) -> GpuArch:
    """The facts of a GPU's architecture."""
    return gpu_arch(environment.vendor, environment.arch)


def unsupported(p: GemmProblem, computes: Sequence[tuple[str, str]] = PLAIN) -> str | None:
    """Why kernels for these pairs (type of A and B, compute type) do not support the problem's types, compute
    type, scaling or groups, or None."""
    if (broken := ungrouped(p)) is not None:
        return broken
    return unsupported_types(p, computes)


def unsupported_types(p: GemmProblem, computes: Sequence[tuple[str, str]]) -> str | None:
    """unsupported() of a grouped product, too."""
    if p.dtype_b != p.dtype_a or (p.dtype_a, p.compute) not in computes:
        known = ", ".join(f"{kind} in {compute}" for kind, compute in computes)
        return f"our kernels multiply {known}, not {p.dtype_a} x {p.dtype_b} in {p.compute}"
    if p.dtype_d not in CPP_TYPES or p.dtype_c not in CPP_TYPES:
        return f"our kernels have no C of {p.dtype_c} or D of {p.dtype_d}"
    if p.bias is not None and p.bias not in CPP_TYPES:
        return f"our kernels add no bias of {p.bias}"
    if (p.scale_a, p.scale_b, p.scale_d) != ("none", "none", "none"):
        return "our kernels have no scales"
    return None


def malformed(
    solution: Solution, name: str, version: int, choices: Mapping[str, Sequence[Parameter]]
) -> str | None:
    """What is wrong with the parameters themselves, or None. Imported parameters may be anything, and source
    code is generated from them."""
    given = solution.parameters
    if solution.family != name:
        return f"a solution of {solution.family} is none of {name}"
    if solution.version != version:
        return f"version {solution.version} of {name} is another kernel; this is {version}"
    if set(given) != set(choices):
        return f"a {name} solution has the parameters {', '.join(choices)}"
    for parameter, known in choices.items():
        value = given[parameter]
        # Not `in` alone: True == 1.
        if type(value) is not type(known[0]) or value not in known:
            return f"{parameter} must be one of {', '.join(map(str, known))}, not {value!r}"
    return None


def threads_rule(threads: int, arch: GpuArch) -> str | None:
    """Threads of a block: whole warps (wavefronts) of the architecture."""
    if not arch.warp <= threads <= arch.block_threads:
        return f"a block has {arch.warp} to {arch.block_threads} threads, not {threads}"
    return f"{threads} threads are no whole warps of {arch.warp}" if threads % arch.warp else None


def shared_rule(size: int, arch: GpuArch) -> str | None:
    """Shared memory of a block."""
    if size > arch.block_shared_bytes:
        return f"{size} bytes of shared memory; {arch.name} has {arch.block_shared_bytes} for a block"
    return None


def registers_rule(registers: int, threads: int, arch: GpuArch, accumulated: int = 0) -> str | None:
    """Registers of a thread for operands and sums; too many would spill, or not launch at all. `accumulated`
    of them are sums of matrix instructions, which accumulation registers hold where there are any."""
    room = arch.unit_registers // threads
    ordinary = registers - min(accumulated, arch.accumulation_registers)
    for needed, limit in ((ordinary, min(arch.vector_registers, room)), (registers, room)):
        most = limit - OTHER_REGISTERS
        if needed > most:
            return f"operands and sums take {needed} registers; {threads} threads have {most} each for them"
    return None


def sums_rule(sums: int, most: int, which: str = "") -> str | None:
    """Sums of a lane: compilers copy them on their way to D, so that more would spill."""
    if sums > most:
        return f"warp_m x warp_n is {sums} sums of a lane{which}; at most {most}"
    return None


def resident_blocks(registers: int, threads: int, shared: int, arch: GpuArch) -> int:
    """Blocks that a unit runs at once, about: of threads with so many registers for operands and sums, and of
    so many bytes of shared memory."""
    granule = arch.register_granule
    all_registers = -(-min(arch.thread_registers, registers + OTHER_REGISTERS) // granule) * granule
    room = (
        arch.unit_shared_bytes // shared, arch.unit_registers // (all_registers * threads),
        arch.unit_threads // threads, arch.unit_blocks,
    )  # fmt: skip
    return max(1, min(room))


def grid_rule(blocks: int, threads: int, product: OrientedGemm, arch: GpuArch, splits: int = 1) -> str | None:
    """The grid limits: blocks of the launch (or tiles, which blocks count) of `threads` threads, and blocks
    of the launch that adds slices of k."""
    reduce = -(-product.m * product.n * product.batch // REDUCE_THREADS) if splits > 1 else 0
    if splits * product.batch_groups > MOST_BLOCKS_YZ:
        return f"a batch of {product.batch} by {splits} slices of k; a launch has {MOST_BLOCKS_YZ} squared"
    if max(blocks, reduce) > MOST_BLOCKS:
        return f"{max(blocks, reduce)} blocks; a launch has {MOST_BLOCKS} at most"
    all_threads = max(blocks * threads, reduce * REDUCE_THREADS)
    if arch.grid_threads is not None and all_threads >= arch.grid_threads:
        return f"{all_threads} threads along x; a launch on {arch.name} has fewer than {arch.grid_threads}"
    return None


def columns_rule(product: OrientedGemm, least: int, most: int | None = None) -> str | None:
    """Columns of D: those of the operand that is not streamed. `most` None: any number."""
    if product.n < least or (most is not None and product.n > most):
        numbers = f"{least} and more" if most is None else f"{least} to {most}"
        return f"{numbers} columns beside the streamed operand, not {product.n}"
    return None


def whole_rule(size: int, part: int, what: str, parts: str) -> str | None:
    """A size that must be a multiple of a part."""
    return f"{what} {size} is no multiple of {parts} {part}" if size % part else None


def wide_rule(size: int, element_bytes: int, what: str) -> str | None:
    """The contiguous side of a tile that is loaded 16 bytes at a time."""
    return whole_rule(size, WIDE // element_bytes, what, "the elements of 16 bytes,")


def fp32_rule(product: OrientedGemm) -> str | None:
    """Asynchronous copies do not convert elements."""
    if product.element_bytes != 4:
        return f"copies do not widen: fp32, not {product.problem.dtype_a}"
    return None


def small_rule(product: OrientedGemm, most: int) -> str | None:
    """A GEMM that must be one tile."""
    if max(product.m, product.n, product.k) > most:
        return f"sides of at most {most}, not {product.m} x {product.n} x {product.k}"
    return None


def capability(environment: Environment) -> int:
    """The compute capability times ten: 90 for sm_90 and sm_90a; 0 for another vendor's GPU."""
    return arch_of(environment).capability


def tensor_core_rule(environment: Environment) -> str | None:
    """The architecture has mma.sync on bf16 and TF32, and asynchronous copies."""
    if not arch_of(environment).async_copies:
        return f"mma.sync on bf16 needs sm_80 or later, not {environment.arch}"
    return None


def deep_rule(product: OrientedGemm) -> str | None:
    """16-bit floats with both operands contiguous along k."""
    if product.element_bytes != 2:
        return f"tensor cores multiply 16-bit floats, not {product.problem.dtype_a}"
    if not (product.a_along_k and product.b_along_k):
        return "both operands must be contiguous along k"
    return None


def first(*rules: str | None) -> str | None:
    """The first violation, or None."""
    return next((rule for rule in rules if rule is not None), None)
