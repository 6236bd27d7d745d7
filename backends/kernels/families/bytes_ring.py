"""8-bit weights times few columns of 8-bit activations on tensor cores, with scales (bytes_ring.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.few_columns import SECOND_LAUNCH, FewColumnsFamily
from backends.kernels.legality import arch_of, first, tensor_core_rule
from backends.kernels.matrix_epilogue import ScaledConfig, matrix_types
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.kernels.scaled import (
    FP8,
    blocks,
    bytes_rule,
    lines_rule,
    unsupported_bytes,
)
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Elements of k in a step of the four lanes of a row, and those that share a scale of a block.
_STEP, _BLOCK = 64, 128
#: Named barriers of a block but the one of all threads.
_MOST_TEAMS = 15
#: Of a multiprocessor of an H200: bytes that L2 delivers per clock in practice; how much faster than its
#: share of memory bandwidth it reads while others idle.
_L2_BYTES, _FASTER = 40, 2.0
#: Instructions of a chunk and of each of its copies. By counting.
_CHUNK, _COPY = 60, 3.5
#: Clocks between two instructions of a warp, and instructions that a multiprocessor issues per clock at most;
#: clocks of its tensor cores for an instruction, and of what converts 8-bit floats; clocks until a wave of
#: blocks reads steadily and from its last byte to its end. Those of dequant_ring.py; they only order the
#: candidates.
_ISSUE_CLOCKS, _ISSUED, _MULTIPLY, _CONVERT, _WAVE = 6.0, 2.6, 1.6, 0.5, 6000
#: The share of what is not the bound that adds to it.
_BESIDE = 0.15
#: The most candidates that are listed, and those of them that differ in more than slots.
_MOST, _MOST_APART = 128, 96
#: Shared memory that a block occupies beside what it requests, and registers of a thread beside sums and
#: operands.
_BLOCK_SHARED, _BESIDE_REGISTERS = 1024, 25


class BytesRing(FewColumnsFamily):
    """8-bit weights times 1 to 64 columns of 8-bit activations on tensor cores, with scales: int8 summed in
    int32, 8-bit floats in fp32; the weights are read once, through rings of asynchronous copies in shared
    memory.

    Parameters: rows (of a warp), tile_k (elements of k that a team copies at a time), slots (of its ring),
    warps_m (of a team, which shares the columns), warps_k (teams of a block, which share k), splits (blocks
    along k)."""

    name, columns = "bytes-ring", (1, 64)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "rows": (16, 32, 48, 64), "tile_k": (64, 128, 256, 512), "slots": (2, 3, 4, 6, 8),
        "warps_m": (1, 2, 3, 4, 8), "warps_k": (1, 2, 4, 8, 16), "splits": (1, 2, 4, 8),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types or scales, or None."""
        return unsupported_bytes(problem)

    def oriented(self, problem: GemmProblem, values: Values) -> OrientedGemm:
        """The weights are A."""
        return OrientedGemm(problem)

    def orientation(self, problem: GemmProblem) -> dict[str, Parameter]:
        """There is one."""
        return {}

    def step(self, product: OrientedGemm, values: Values) -> int:
        """tile_k elements of k."""
        return number(values, "tile_k")

    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block."""
        return number(values, "rows") * number(values, "warps_m")

    def _columns(self, product: OrientedGemm) -> int:
        """Columns of the instantiation."""
        return 1 << (product.n - 1).bit_length() if product.n <= 8 else -(-product.n // 8) * 8

    def _halves(self, product: OrientedGemm) -> int:
        """Groups of eight columns."""
        return -(-self._columns(product) // 8)

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Bytes of all teams' rings, or of the sums that reuse their memory at the end, whichever is more;
        and of the scales of rows and columns."""
        rows, teams, deep = (
            self.rows(product, values, 32),
            number(values, "warps_k"),
            number(values, "tile_k"),
        )
        columns, scales = self._columns(product), deep // _BLOCK if blocks(product.problem) else 0
        slot = (rows + columns) * deep + (rows // 16 + columns) * scales * 4
        rings = teams * number(values, "slots") * -(-slot // WIDE) * WIDE
        found = max(rings, teams * columns * (rows + 8) * 4)
        return found if blocks(product.problem) else found + -(-(rows + columns) // 4) * WIDE

    def _at_once(self, product: OrientedGemm, values: Values) -> int:
        """Tiles of 16 rows that share a reading of activations (bytes_ring.h: kAtOnce)."""
        tiles, most = number(values, "rows") // 16, 2 if self._halves(product) >= 8 else 4
        return most if tiles % most == 0 else 1 if tiles > most else tiles

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for sums, a block's own sums, and a step's weights and activations. (Compilers take half
        of the sums' number more.)"""
        tiles, halves, at_once = (
            number(values, "rows") // 16,
            self._halves(product),
            self._at_once(product, values),
        )
        words = 8 if product.problem.dtype_a in FP8 else 4  # of a row or column in a step
        own = 4 * at_once * halves if blocks(product.problem) else 0
        sums = 4 * tiles * halves
        return sums + sums // 2 + own + (2 * at_once + 1) * words + 8

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes of weights that a thread has in flight, and the share of the teams' iterations along k that
        have a chunk."""
        chunks = product.k / number(values, "tile_k") / number(values, "splits")
        teams, ring = number(values, "warps_k"), number(values, "slots") - 1
        each = number(values, "rows") * number(values, "tile_k") // 32
        turns = max(1, ceil(chunks / teams))
        return min(ring, turns) * each, chunks / (turns * teams)

    def resident(self, product: OrientedGemm, values: Values, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once, by threads, registers and shared memory."""
        arch, threads = arch_of(environment), self.threads(values, 32)
        shared = self.shared_bytes(product, values, 32) + _BLOCK_SHARED
        registers = threads * (self.registers(product, values) + _BESIDE_REGISTERS)
        fits = (
            arch.unit_threads // threads,
            arch.unit_registers // registers,
            arch.unit_shared_bytes // shared,
        )
        return max(1, min(fits))

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly what the busiest multiprocessor could read meanwhile, in bytes: the longest of reading, of
        what L2 delivers, and of what it issues, multiplies, converts and reads from shared memory, and a
        share of the others. A wave of blocks takes time until it reads steadily."""
        p, splits = product, number(values, "splits")
        rates, units = arch_of(environment).rates, max(1, environment.units)
        blocks_ = self.blocks(p, values, 32) * splits * p.batch
        resident = self.resident(p, values, environment)
        here = min(resident, ceil(blocks_ / units))
        warps = here * number(values, "warps_m") * number(values, "warps_k")
        bytes_each, used = self.loads(p, values, 32)
        share, busiest = blocks_ / units, ceil(blocks_ / units)
        ahead = warps * 32 * bytes_each * used / rates.in_flight_bytes
        speed = min(1.0, ahead) * (0.95 + 0.05 * min(1.0, ahead / 2))  # what is in flight is not always even
        weights = p.m * p.k * p.batch
        read = max(weights / units, weights / blocks_ * busiest / _FASTER) / rates.memory_bytes / speed
        inputs = self._columns(p) * p.k / splits
        delivered = (weights / units + inputs * share) / _L2_BYTES
        loads = weights / 512 / blocks_ * busiest
        instructions, multiplications, converted, shared = self._each_load(p, values)
        issued = loads * instructions / min(_ISSUED, warps * used / _ISSUE_CLOCKS)
        times = (
            read, delivered, issued, loads * multiplications * _MULTIPLY, loads * converted * _CONVERT,
            loads * shared,
        )  # fmt: skip
        waves = max(1.0, blocks_ / (units * resident))
        clocks = max(times) * (1 - _BESIDE) + sum(times) * _BESIDE + waves * _WAVE
        clocks += 2 * p.partial_bytes(splits) / (units * _L2_BYTES)
        return clocks * rates.memory_bytes + (SECOND_LAUNCH if splits > 1 else 0)

    def _each_load(self, product: OrientedGemm, values: Values) -> tuple[float, float, float, float]:
        """For the 512 bytes of weights that a warp loads at once: instructions; those of them that multiply,
        and that convert; clocks of shared memory."""
        columns, halves, once = (
            self._columns(product),
            self._halves(product),
            self._at_once(product, values),
        )
        fp8 = product.problem.dtype_a in FP8
        # Two loads are a tile's step; its activations are read and converted for `once` tiles.
        multiplications = halves * (4 if fp8 else 2) / 2
        converted = 8.0 * (1 + halves / once / 2) if fp8 else 0.0
        deep = number(values, "tile_k")
        loads = number(values, "rows") * deep / 512
        inputs = columns * deep / 512 / number(values, "warps_m")
        scaled = 4 * halves * _STEP / _BLOCK if blocks(product.problem) else 0
        found = 1 + halves / once / 2 + multiplications + converted + scaled
        shared = 8 + halves * min(columns, 8) / 2 / once + inputs * 4 / loads
        return (
            found + (_CHUNK + _COPY * (loads + inputs)) / loads,
            multiplications,
            converted,
            shared,
        )

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
        """The rule that is broken, or None: tensor cores of this architecture, 16-byte words of every
        operand, whole blocks of scales."""
        p, deep = product.problem, number(values, "tile_k")
        broken = first(tensor_core_rule(environment), bytes_rule(product, environment), lines_rule(product))
        if broken is not None:
            return broken
        if blocks(p) and deep % _BLOCK:
            return f"tile_k is whole blocks of {_BLOCK}, not {deep}"
        teams = number(values, "warps_k")
        if number(values, "warps_m") > 1 and teams > _MOST_TEAMS:
            return f"a block has barriers for {_MOST_TEAMS} teams of several warps, not {teams}"
        return None

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """BytesRing with its template arguments."""
        names = ("rows", "tile_k", "slots", "warps_m", "warps_k")
        numbers = [self._columns(product), *(number(values, name) for name in names)]
        kinds = f"{matrix_types(product.problem)}, {flag(blocks(product.problem))}"
        return f"BytesRing<{kinds}, {', '.join(map(str, numbers))}>"

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation, its blocks along m and its slices of k."""
        made = super().config(problem, values, arch)
        return ScaledConfig(
            made.product, made.header, made.instantiation, made.threads, made.shared_bytes, made.blocks,
            made.splits, made.step,
        )  # fmt: skip
