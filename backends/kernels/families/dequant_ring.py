"""Quantised weights times few columns on tensor cores, dequantised in registers (dequant_ring.h)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.few_columns import SECOND_LAUNCH, FewColumnsFamily
from backends.kernels.legality import arch_of, first, tensor_core_rule
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.weights import (
    WeightConfig,
    bits,
    group,
    lines_rule,
    quantised,
    unsupported_weights,
    wide,
)
from backends.problem import GemmProblem
from backends.quantisation import GROUPS, STORED_ZEROS, groups_of
from backends.solution import Parameter

#: Bytes that L2 delivers to a multiprocessor per clock in practice on an H200; how much faster than its
#: share of memory bandwidth a multiprocessor reads while others idle; the share of the chunks in flight that
#: delays the rest (as skinny-ring's).
_L2_BYTES, _FASTER, _FILL_SHARE = 40, 2.0, 0.15
#: Instructions of a warp for 256 weights of 4 and of 8 bits, and for their products with eight columns;
#: those that a multiprocessor issues per clock at most, and clocks between two of a warp. By counting: they
#: only order the candidates.
_INSTRUCTIONS, _EACH_HALF, _ISSUED, _ISSUE_CLOCKS = {4: 16, 8: 20}, 2.0, 2.5, 4.0
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024


class DequantRing(FewColumnsFamily):
    """Weights of int4, uint4 or int8 times 1 to 64 columns of bf16 or fp16 on tensor cores; the weights are
    read once as they are stored, through rings of asynchronous copies in shared memory, and dequantised in
    registers.

    Parameters: rows (of a block), tile_k (elements of k that a warp copies at a time), slots (of its ring),
    warps (of a block, which share k), splits (blocks along k)."""

    name, columns = "dequant-ring", (1, 64)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "rows": (16, 32, 48, 64, 96, 128), "tile_k": (64, 128, 256, 512), "slots": (2, 3, 4, 6, 8),
        "warps": (2, 4, 8, 12, 16), "splits": (1, 2, 4, 8),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or zero points, or None."""
        p = problem
        if (why := unsupported_weights(p)) is not None:
            return why
        if p.zero_a in STORED_ZEROS and p.scale_a not in GROUPS:
            return f"zero points of {p.zero_a} are of groups of 32, 64 or 128, not of scale {p.scale_a}"
        if p.scale_a.startswith("block") and not _scales_sums(p) and p.scale_dtype != p.dtype_b:
            return (
                f"weights of {p.dtype_b} are multiplied by scales of their type here, not of {p.scale_dtype}"
            )
        return None

    def oriented(self, problem: GemmProblem, values: Values) -> OrientedGemm:
        """The weights are A."""
        return OrientedGemm(problem)

    def orientation(self, problem: GemmProblem) -> dict[str, Parameter]:
        """There is one."""
        return {}

    def step(self, product: OrientedGemm, values: Values) -> int:
        """tile_k elements of k."""
        return number(values, "tile_k")

    def threads(self, values: Values, warp: int) -> int:
        """Threads of a block."""
        return 32 * number(values, "warps")

    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block."""
        return number(values, "rows")

    def _columns(self, product: OrientedGemm) -> int:
        """Columns of the instantiation."""
        return 1 << (product.n - 1).bit_length() if product.n <= 8 else -(-product.n // 8) * 8

    def _slot_bytes(self, product: OrientedGemm, values: Values) -> int:
        """Bytes of a chunk: weights, activations, scales and zero points."""
        p, rows, deep = product.problem, number(values, "rows"), number(values, "tile_k")
        found = rows * deep * bits(p) // 8 + self._columns(product) * deep * 2
        if size := group(p):
            each = deep // size * DTYPES[p.scale_dtype or "fp32"].bytes
            found += rows * each
            found += rows * each if p.zero_a in ("float", "shift") else 0
            found += rows // 8 * (deep // size) * 4 if p.zero_a == "uint4" else 0
        return -(-found // 16) * 16

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Bytes of all warps' rings, or of the fp32 sums that reuse their memory at the end, whichever is
        more."""
        rows, warps = number(values, "rows"), number(values, "warps")
        rings = warps * number(values, "slots") * self._slot_bytes(product, values)
        return max(rings, warps * self._columns(product) * (rows + 8) * 4)

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for sums, a group's own sums, and a step's weights and activations. (Compilers spill with
        more sums than their half more allows for.)"""
        tiles, halves = number(values, "rows") // 16, -(-self._columns(product) // 8)
        at_once = max(size for size in range(1, max(1, 8 // halves) + 1) if tiles % size == 0)
        grouped = 4 * at_once * halves if _scales_sums(product.problem) else 0
        sums = 4 * tiles * halves
        return sums + sums // 2 + grouped + at_once * 20 + 8

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes of weights that a thread has in flight, and the share of the warps' iterations along k that
        have a chunk."""
        chunks = product.k / number(values, "tile_k") / number(values, "splits")
        warps, ring = number(values, "warps"), number(values, "slots") - 1
        each = number(values, "rows") * number(values, "tile_k") * bits(product.problem) // 8 // 32
        turns = max(1, ceil(chunks / warps))
        return min(ring, turns) * each, chunks / (turns * warps)

    def resident(self, product: OrientedGemm, values: Values, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once, by threads, registers and shared memory."""
        arch, threads = arch_of(environment), self.threads(values, 32)
        shared = self.shared_bytes(product, values, 32) + _BLOCK_SHARED
        registers = threads * (self.registers(product, values) + 50)
        fits = (
            arch.unit_threads // threads,
            arch.unit_registers // registers,
            arch.unit_shared_bytes // shared,
        )
        return max(1, min(fits))

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly the bytes that a multiprocessor reads, or would read while it issues its instructions.
        Every block reads the activations from L2; filling and draining the rings takes time."""
        p, problem, warps, splits = (
            product,
            product.problem,
            number(values, "warps"),
            number(values, "splits"),
        )
        rates, units = arch_of(environment).rates, max(1, environment.units)
        rows, columns, width = number(values, "rows"), self._columns(p), bits(problem)
        blocks = self.blocks(p, values, 32) * splits
        here = min(self.resident(p, values, environment), ceil(blocks / units))
        read = p.m * p.k * width / 8
        bytes_each, used = self.loads(p, values, 32)
        speed = min(1.0, here * 32 * warps * bytes_each * used / rates.in_flight_bytes)
        beside = max(1.0, (1 + 16 * columns / (rows * width)) * rates.memory_bytes / _L2_BYTES)
        found = max(read / units * beside, read / blocks * ceil(blocks / units) / _FASTER) / speed
        halves, tiles = -(-columns // 8), rows / 16
        each = _INSTRUCTIONS[width] + halves * (_EACH_HALF + 5 / tiles)
        issued = min(_ISSUED, here * warps * used / _ISSUE_CLOCKS)
        busiest = rows * p.k / splits * ceil(blocks / units) / 256
        found = max(found, busiest * each / issued * rates.memory_bytes)
        found += here * warps * self._slot_bytes(p, values) * _FILL_SHARE
        found *= 1.1 if here * warps < 8 else 1.0
        return found + (SECOND_LAUNCH if splits > 1 else 0)

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: mma.sync on this architecture, 16-byte words of every operand,
        whole steps of k and whole 4-byte words of scales."""
        p, deep = product.problem, number(values, "tile_k")
        broken = first(tensor_core_rule(environment), lines_rule(product))
        if broken is not None:
            return broken
        if deep % (4 * wide(p)):
            return f"tile_k is a multiple of {4 * wide(p)} for {p.dtype_a}, not {deep}"
        if (size := group(p)) == 0:
            return None
        if deep % size:
            return f"tile_k is whole groups of {size}, not {deep}"
        each = DTYPES[p.scale_dtype or "fp32"].bytes
        if deep // size * each % 4:
            return f"a row's {deep // size} scales of tile_k {deep} are no whole 4-byte words"
        if groups_of(p) * each % 4 or p.alignment < 4:
            return f"a row's {groups_of(p)} scales must start at a multiple of 4 bytes"
        return None

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """DequantRing with its template arguments."""
        names = ("rows", "tile_k", "slots", "warps")
        numbers = [self._columns(product), *(number(values, name) for name in names)]
        kinds = f"{product.types}, {quantised(product.problem)}"
        return f"DequantRing<{kinds}, {', '.join(map(str, numbers))}>"

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation, its blocks along m and its slices of k."""
        made = super().config(problem, values, arch)
        return WeightConfig(
            made.product, made.header, made.instantiation, made.threads, made.shared_bytes, made.blocks,
            made.splits, made.step,
        )  # fmt: skip


def _scales_sums(p: GemmProblem) -> bool:
    """Whether sums of a group are scaled instead of its weights (dequant_ring.h: kAfter)."""
    return group(p) > 0 and group(p) % (4 * wide(p)) == 0 and p.zero_a != "shift"
