"""Quantised weights times few columns on tensor cores, dequantised in registers (dequant_ring.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.dequant_chunk import (
    chunk_bytes,
    chunk_rule,
    fragment_registers,
    load_costs,
    scales_sums,
    tiles_at_once,
    unsupported_scales,
)
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.few_columns import SECOND_LAUNCH, FewColumnsFamily
from backends.kernels.legality import arch_of, first, tensor_core_rule
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.weights import (
    WeightConfig,
    bits,
    lines_rule,
    quantised,
    unsupported_weights,
)
from backends.problem import GemmProblem
from backends.quantisation import GROUPS, STORED_ZEROS
from backends.solution import Parameter

#: Of a multiprocessor of an H200: bytes that L2 delivers per clock in practice; how much faster than its
#: share of memory bandwidth it reads while others idle.
_L2_BYTES, _FASTER = 40, 2.0
#: Clocks between two instructions of a warp, and instructions that a multiprocessor issues per clock at most;
#: clocks of its tensor cores for an instruction; clocks until a wave of blocks reads steadily and from its
#: last byte to its end. Estimated from measurements of this kernel's first version on an H100; they only
#: order the candidates.
_ISSUE_CLOCKS, _ISSUED, _MULTIPLY, _WAVE = 6.0, 2.6, 1.6, 6000
#: The share of what is not the bound that adds to it.
_BESIDE = 0.15
#: The most candidates that are listed, and those of them that differ in more than slots.
_MOST, _MOST_APART = 128, 96
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024


class DequantRing(FewColumnsFamily):
    """Weights of int4, uint4, int8, fp8 or MXFP4 times 1 to 64 columns of bf16 or fp16 on tensor cores; the
    weights are read once as they are stored, through rings of asynchronous copies in shared memory, and
    dequantised in registers.

    Parameters: rows (of a warp), tile_k (elements of k that a team copies at a time), slots (of its ring),
    warps_m (of a team, which shares the columns), warps_k (teams of a block, which share k), splits (blocks
    along k)."""

    name, columns = "dequant-ring", (1, 64)
    version = 2
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "rows": (16, 32, 48, 64), "tile_k": (64, 128, 256, 512), "slots": (2, 3, 4, 6, 8),
        "warps_m": (1, 2, 3, 4, 8), "warps_k": (1, 2, 4, 8, 16), "splits": (1, 2, 4, 8),
    }  # fmt: skip

    #: Clocks of the tensor cores for one of _each_load()'s multiplications.
    multiply_clocks = _MULTIPLY

    def scales_sums(self, p: GemmProblem) -> bool:
        """Whether sums of a group are scaled instead of its weights (dequant_chunk.h: kAfter)."""
        return scales_sums(p)

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or zero points, or None."""
        p = problem
        if (why := unsupported_weights(p)) is not None:
            return why
        if p.zero_a in STORED_ZEROS and p.scale_a not in GROUPS:
            return f"zero points of {p.zero_a} are of groups of 32, 64 or 128, not of scale {p.scale_a}"
        return unsupported_scales(p)

    def oriented(self, problem: GemmProblem, values: Values) -> OrientedGemm:
        """The weights are A."""
        return OrientedGemm(problem)

    def orientation(self, problem: GemmProblem) -> dict[str, Parameter]:
        """There is one."""
        return {}

    def step(self, product: OrientedGemm, values: Values) -> int:
        """Elements of k of a chunk."""
        return number(values, "tile_k")

    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block."""
        return number(values, "rows") * number(values, "warps_m")

    def _columns(self, product: OrientedGemm) -> int:
        """Columns of the instantiation."""
        return 1 << (product.n - 1).bit_length() if product.n <= 8 else -(-product.n // 8) * 8

    def _slot_bytes(self, product: OrientedGemm, values: Values) -> int:
        """Bytes of a team's chunk: weights, activations, scales and zero points."""
        rows, deep = self.rows(product, values, 32), self.step(product, values)
        return chunk_bytes(product.problem, rows, self._columns(product), deep)

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Bytes of all teams' rings, or of the fp32 sums that reuse their memory at the end, whichever is
        more."""
        rows, teams = self.rows(product, values, 32), number(values, "warps_k")
        rings = teams * number(values, "slots") * self._slot_bytes(product, values)
        return max(rings, teams * self._columns(product) * (rows + 8) * 4)

    def _at_once(self, product: OrientedGemm, values: Values) -> int:
        """Tiles of 16 rows that share a reading of activations."""
        return tiles_at_once(number(values, "rows") // 16, -(-self._columns(product) // 8))

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for sums, a group's own sums, and a step's weights and activations."""
        tiles, halves = number(values, "rows") // 16, -(-self._columns(product) // 8)
        return fragment_registers(product.problem, tiles, halves)

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes of weights that a thread has in flight, and the share of the teams' iterations along k that
        have a chunk."""
        chunks = product.k / self.step(product, values) / number(values, "splits")
        warps, ring = number(values, "warps_k"), number(values, "slots") - 1
        each = number(values, "rows") * self.step(product, values) * bits(product.problem) // 8 // 32
        turns = max(1, ceil(chunks / warps))
        return min(ring, turns) * each, chunks / (turns * warps)

    def resident(self, product: OrientedGemm, values: Values, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once, by threads, registers and shared memory."""
        arch, threads = arch_of(environment), self.threads(values, 32)
        shared = self.shared_bytes(product, values, 32) + _BLOCK_SHARED
        beside = 50 if bits(product.problem) == 4 else 25
        registers = threads * (self.registers(product, values) + beside)
        fits = (
            arch.unit_threads // threads,
            arch.unit_registers // registers,
            arch.unit_shared_bytes // shared,
        )
        return max(1, min(fits))

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly what the busiest multiprocessor could read meanwhile, in bytes: the longest of reading, of
        what L2 delivers, and of what it issues, multiplies and reads from shared memory, and a share of the
        others. A wave of blocks takes time until it reads steadily."""
        p, splits = product, number(values, "splits")
        rates, units, width = arch_of(environment).rates, max(1, environment.units), bits(p.problem)
        blocks = self.blocks(p, values, 32) * splits
        resident = self.resident(p, values, environment)
        here = min(resident, ceil(blocks / units))
        warps = here * number(values, "warps_m") * number(values, "warps_k")
        bytes_each, used = self.loads(p, values, 32)
        share, busiest = blocks / units, ceil(blocks / units)
        ahead = warps * 32 * bytes_each * used / rates.in_flight_bytes
        speed = min(1.0, ahead) * (0.95 + 0.05 * min(1.0, ahead / 2))  # what is in flight is not always even
        weights = p.m * p.k * width / 8
        read = max(weights / units, weights / blocks * busiest / _FASTER) / rates.memory_bytes / speed
        inputs = self._columns(p) * p.k / splits * 2
        delivered = (weights / units + inputs * share) / _L2_BYTES
        loads = weights / 512 / blocks * busiest
        instructions, multiplications, shared = self._each_load(p, values)
        issued = loads * instructions / min(_ISSUED, warps * used / _ISSUE_CLOCKS)
        times = (read, delivered, issued, loads * multiplications * self.multiply_clocks, loads * shared)
        waves = max(1.0, blocks / (units * resident))
        clocks = max(times) * (1 - _BESIDE) + sum(times) * _BESIDE + waves * _WAVE
        clocks += 2 * p.partial_bytes(splits) / (units * _L2_BYTES)
        return clocks * rates.memory_bytes + (SECOND_LAUNCH if splits > 1 else 0)

    def _each_load(self, product: OrientedGemm, values: Values) -> tuple[float, float, float]:
        """For the 512 bytes of weights that a warp loads at once: instructions; those of them that multiply;
        clocks of shared memory."""
        rows, warps, deep = number(values, "rows"), number(values, "warps_m"), self.step(product, values)
        return load_costs(product.problem, self._columns(product), rows, deep, warps)

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost(); those that differ from an earlier one in slots alone come last."""
        apart: list[dict[str, Parameter]] = []
        alike: list[dict[str, Parameter]] = []
        seen = set()
        for values in super().candidates(problem, environment):
            key = tuple(value for name, value in values.items() if name != "slots")
            (alike if key in seen else apart).append(values)
            seen.add(key)
        apart = apart[:_MOST_APART]
        yield from (*apart, *alike[: _MOST - len(apart)])

    def most(self, product: OrientedGemm, environment: Environment) -> int:
        """As many as candidates() chooses from."""
        return 4 * _MOST

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: mma.sync on this architecture, 16-byte words of every operand,
        whole steps of k and whole 4-byte words of scales."""
        p, deep = product.problem, self.step(product, values)
        broken = first(tensor_core_rule(environment), lines_rule(product))
        if broken is not None:
            return broken
        return chunk_rule(p, deep)

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """DequantRing with its template arguments."""
        names = ("rows", "tile_k", "slots", "warps_m", "warps_k")
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
