"""Few columns on tensor cores, with operands prefetched into rings in shared memory (skinny_ring.h)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import ClassVar

from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.few_columns import (
    SECOND_LAUNCH,
    STREAMS,
    FewColumnsFamily,
)
from backends.kernels.legality import (
    arch_of,
    deep_rule,
    first,
    tensor_core_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.problem import GemmProblem
from backends.solution import Parameter

#: On an H200: bytes that L2 delivers to a multiprocessor per clock in practice; how much faster than its
#: share of memory bandwidth a multiprocessor reads while others idle; the share of the chunks in flight that
#: delays the rest.
_L2_BYTES, _FASTER, _FILL_SHARE = 40, 2.0, 0.15
#: For unaligned rows: instructions for 512 bytes of a row; clocks between two instructions of a warp;
#: instructions that a multiprocessor issues per clock at most. By counting and from one profile; they only
#: order the candidates.
_RAGGED_INSTRUCTIONS, _ISSUE_CLOCKS, _ISSUED = 14, 6.0, 2.0
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024


class SkinnyRing(FewColumnsFamily):
    """1 to 64 columns on tensor cores, both operands contiguous along k; the large one is read once, through
    rings of asynchronous copies in shared memory.

    Parameters: stream (a | b: the operand that is read once), rows (of a block), tile_k (elements of k that a
    warp copies at a time), slots (of its ring), warps (of a block, which share k), splits (blocks along
    k)."""

    name, columns = "skinny-ring", (1, 64)
    version = 2
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "stream": STREAMS, "rows": (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128),
        "tile_k": (64, 128, 256), "slots": (2, 3, 4, 6, 8), "warps": (2, 4, 8, 12, 16),
        "splits": (1, 2, 4, 8),
    }  # fmt: skip

    def supports(self, problem: GemmProblem) -> bool:
        """Whether kernels exist for the problem's types, and A and B have 16-bit elements."""
        return super().supports(problem) and DTYPES[problem.dtype_a].bytes == 2

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

    def _whole(self, product: OrientedGemm) -> bool:
        return product.whole("a") and product.whole("b")

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Bytes of all warps' rings, or of the fp32 sums that reuse their memory at the end, whichever is
        more."""
        rows, columns, warps = number(values, "rows"), self._columns(product), number(values, "warps")
        line = number(values, "tile_k") * 2 + (0 if self._whole(product) else WIDE)
        rings = warps * number(values, "slots") * (rows + columns) * line
        return max(rings, warps * columns * (rows + 8) * 4)

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for sums, and a step's columns and row."""
        rows, columns = number(values, "rows") // 8, -(-self._columns(product) // 8)  # groups of eight
        tiles = min(-(-rows // 2) * columns, rows * -(-columns // 2))
        return 4 * tiles + 4 * columns + 8

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes that a thread has in flight, and the share of the warps' iterations along k that have a
        chunk."""
        chunks = product.k / number(values, "tile_k") / number(values, "splits")
        warps, ring = number(values, "warps"), number(values, "slots") - 1
        each = number(values, "rows") * number(values, "tile_k") * product.element_bytes // 32
        turns = max(1, ceil(chunks / warps))
        return min(ring, turns) * each, chunks / (turns * warps)

    def resident(self, product: OrientedGemm, values: Values, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once, by threads, registers and shared memory."""
        arch, threads = arch_of(environment), self.threads(values, 32)
        shared = self.shared_bytes(product, values, 32) + _BLOCK_SHARED
        registers = threads * (self.registers(product, values) + (40 if self._whole(product) else 100))
        return max(
            1,
            min(
                arch.unit_threads // threads,
                arch.unit_registers // registers,
                arch.unit_shared_bytes // shared,
            ),
        )

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly the bytes that a multiprocessor reads, as in the other families. Beyond that: every block
        reads the columns from L2; filling and draining the rings takes time, and so does a multiprocessor
        with few warps; unaligned words are assembled by instructions. Fitted to measurements of 9 GEMMs on an
        H200."""
        p, warps, splits = product, number(values, "warps"), number(values, "splits")
        rates = arch_of(environment).rates
        units, rows, columns = max(1, environment.units), number(values, "rows"), self._columns(p)
        blocks = self.blocks(p, values, 32) * splits * p.batch
        here = min(self.resident(p, values, environment), ceil(blocks / units))
        read = p.m * p.k * p.element_bytes * p.batch
        bytes_each, used = self.loads(p, values, 32)
        speed = min(1.0, here * 32 * warps * bytes_each * used / rates.in_flight_bytes)
        beside = max(1.0, (1 + columns / rows) * rates.memory_bytes / _L2_BYTES)
        found = max(read / units * beside, read / blocks * ceil(blocks / units) / _FASTER) / speed
        if not self._whole(p):
            issued = min(_ISSUED, here * warps / _ISSUE_CLOCKS)
            lines = ceil(blocks / units) * (rows + columns) * p.k * p.element_bytes / 512 / splits
            found = max(found, lines * _RAGGED_INSTRUCTIONS / issued * rates.memory_bytes)
        chunks = here * warps * (rows + columns) * number(values, "tile_k") * p.element_bytes
        found += chunks * _FILL_SHARE
        found *= 1.15 if here * warps < 6 else 1.05 if here * warps < 8 else 1.0
        found *= 1.0 if number(values, "slots") <= 4 else 1.05
        return found + (SECOND_LAUNCH if splits > 1 else 0)

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: mma.sync on this architecture, 16-bit operands contiguous along
        k."""
        return first(tensor_core_rule(environment), deep_rule(product))

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """SkinnyRing with its template arguments."""
        names = ("rows", "tile_k", "slots", "warps")
        numbers = [self._columns(product), *(number(values, name) for name in names)]
        whole = flag(self._whole(product))
        return f"SkinnyRing<{product.types}, {whole}, {', '.join(map(str, numbers))}>"

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        """No candidates if k is so short that most of a chunk is beyond it."""
        for values in super().candidates(problem, environment):
            if problem.k * 2 > number(values, "tile_k"):
                yield values
