"""Few columns on tensor cores with unaligned rows: eight classes of rows with the same shift
(skinny_shifted.h)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.cluster import ClusterConfig, scheduled_threads, units_of_clusters
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.few_columns import (
    STREAMS,
    FewColumnsFamily,
    likelier_stream,
    streamed,
)
from backends.kernels.legality import (
    arch_of,
    deep_rule,
    first,
    registers_rule,
    tensor_core_rule,
)
from backends.kernels.oriented_gemm import WIDE, GemmArgs, OrientedGemm, flag
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed.
MOST = 24
#: Elements of k in a step; every eighth line has the same shift.
_DEEP, _CLASSES = 32, 8
#: Clocks on an H200: the latency of a load; the time that the small operand's way through shared memory adds
#: before the first multiplication; between two instructions of a warp. Then instructions that a
#: multiprocessor issues per clock at most, and bytes that L2 delivers to it per clock beside memory's. Fitted
#: to two GEMMs; they only order the candidates.
_LATENCY, _COPIED, _ISSUE_CLOCKS, _ISSUED, _L2_BYTES = 1000, 1000, 6.0, 4.0, 27
#: The share of its latency that a later window costs, without and with `ahead`; the share of the shorter one
#: of reading and issuing that the longer one does not hide; how much faster than its share of memory
#: bandwidth a multiprocessor reads while others idle.
_LATER, _LATER_AHEAD, _BESIDE, _FASTER = 0.5, 0.05, 0.25, 1.3
#: Clocks of a launch of clusters with their two barriers, and of a second launch.
_CLUSTERED, _SECOND = 1700, 3500
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024
#: Registers for a second instruction's lines (addresses, masks), beside their loads and sums.
_SECOND_LINES = 16


@dataclass(frozen=True)
class SlicesInClusters(ClusterConfig):
    """Each block of a cluster has a slice of k. Its argument describes the slices as that of a two-launch
    split does."""

    def arguments(self, operands: Operands, workspace: int) -> GemmArgs:
        """The launch's argument."""
        return self.product.arguments(operands, workspace, self.slices, self.step)


class SkinnyShifted(FewColumnsFamily):
    """1 to 32 columns on tensor cores, both operands contiguous along k and the large one's rows unaligned:
    warps take every eighth row, which have the same shift, and read the small operand at that shift.

    Parameters: stream (a | b: the operand that is read once), lines (of a class: 8 are an instruction's
    columns, 16 its rows, 32 the rows of two instructions), classes (of a block), unroll (steps of 32 of k in
    a window), ahead (whether a window is requested before the previous one is multiplied), warps (of each
    class, which share k), splits (blocks along k), cluster (whether those add their sums through distributed
    shared memory, without a second launch)."""

    #: Version 1 had no cluster and at most 16 lines, and launched whole groups of eight classes; its lanes
    #: could load the small operand themselves. Version 2 requested its second window after the small operand
    #: had arrived.
    version = 3
    name, columns = "skinny-shifted", (1, 32)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "stream": STREAMS, "lines": (8, 16, 32), "classes": (1, 2, 4, 8), "unroll": (1, 2, 3, 4),
        "ahead": (0, 1), "warps": (1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32),
        "splits": (1, 2, 4, 8), "cluster": (0, 1),
    }  # fmt: skip

    def supports(self, problem: GemmProblem) -> bool:
        """Whether kernels exist for the problem's types, and A and B have 16-bit elements."""
        return super().supports(problem) and DTYPES[problem.dtype_a].bytes == 2

    def step(self, product: OrientedGemm, values: Values) -> int:
        """32 elements of k."""
        return _DEEP

    def threads(self, values: Values, warp: int) -> int:
        """Threads of a block: `warps` warps for each of its classes."""
        return 32 * number(values, "classes") * number(values, "warps")

    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block: `lines` of each of its classes."""
        return number(values, "lines") * number(values, "classes")

    def blocks(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Blocks along m: as many as eight classes are divided into, for each 8 `lines` rows; in the last
        group, only those that have rows."""
        classes = number(values, "classes")
        spans, rest = divmod(product.m, _CLASSES * number(values, "lines"))
        return spans * (_CLASSES // classes) + -(-min(rest, _CLASSES) // classes)

    def _eights(self, product: OrientedGemm) -> int:
        return -(-product.n // 8)

    def _steps(self, product: OrientedGemm, values: Values) -> int:
        """The most steps of a slice: the last one includes what the largest shift adds."""
        splits = number(values, "splits")
        each = -(-product.k // (splits * _DEEP))
        return max(each, -(-(product.k + 7) // _DEEP) - (splits - 1) * each)

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Bytes of the columns, or of the fp32 sums that reuse their memory at the end, whichever is more;
        with clusters also of the sums that a cluster's blocks exchange."""
        columns, classes = 8 * self._eights(product), number(values, "classes")
        pitch, banks = number(values, "lines"), 32 // classes
        if classes > 1:  # an odd number of each class's share of the banks
            pitch = (-(-pitch // banks) | 1) * banks
        sums = number(values, "warps") * columns * (classes * pitch + 4) * 4
        line = (16 * (self._steps(product, values) + number(values, "unroll") - 1) + 8) * 4
        sent = columns * classes * number(values, "lines") * 4 if number(values, "cluster") else 0
        return max(sums, columns * ((line + 108) // 128 * 128 + WIDE)) + sent

    def _tiles(self, product: OrientedGemm, values: Values) -> int:
        """The number of accumulators, each of one instruction's sums."""
        lines, eights = number(values, "lines"), self._eights(product)
        return -(-eights // 2) if lines == 8 else eights * lines // 16

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for windows, sums, a step's columns, and a second instruction's lines."""
        lines, unroll, eights = number(values, "lines"), number(values, "unroll"), self._eights(product)
        windows = 4 * unroll * (lines // 8) * (1 + number(values, "ahead"))
        multiplied = 4 * self._tiles(product, values) + 4 * eights + 4
        return windows + multiplied + (_SECOND_LINES if lines == 32 else 0)

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes that a thread has in flight, and the share of its loads that lie within a slice of k."""
        unroll, steps = number(values, "unroll"), self._steps(product, values)
        turn = unroll * number(values, "warps")
        each = WIDE * number(values, "lines") // 8 * unroll * (1 + number(values, "ahead"))
        return each, steps / (ceil(steps / turn) * turn)

    def most(self, product: OrientedGemm, environment: Environment) -> int:
        """MOST, for every GEMM."""
        return MOST

    def resident(self, product: OrientedGemm, values: Values, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once, by threads, registers and shared memory."""
        arch, threads = arch_of(environment), self.threads(values, 32)
        shared = self.shared_bytes(product, values, 32) + _BLOCK_SHARED
        registers = threads * (self.registers(product, values) + 32)
        return max(
            1,
            min(
                arch.unit_threads // threads,
                arch.unit_registers // registers,
                arch.unit_shared_bytes // shared,
            ),
        )

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly the clocks of a multiprocessor: reading or issuing instructions, whichever takes longer,
        and a part of the other; its blocks' latencies; reads of the small operand; the second launch, or
        clusters."""
        units, splits = max(1, environment.units), number(values, "splits")
        classes, lines, warps = (number(values, name) for name in ("classes", "lines", "warps"))
        blocks = self.blocks(product, values, 32) * splits * product.batch
        clustered = number(values, "cluster") == 1
        busiest = ceil(blocks / units_of_clusters(environment.units, splits if clustered else 1))
        here = min(self.resident(product, values, environment), busiest)
        steps, eights = self._steps(product, values), self._eights(product)
        turns = ceil(steps / (warps * number(values, "unroll")))

        whole = product.m * product.k * product.element_bytes * product.batch / units
        most = busiest * classes * lines * steps * _DEEP * product.element_bytes
        read = max(whole, most / _FASTER) / arch_of(environment).rates.memory_bytes
        tiles = self._tiles(product, values)
        each = 9 * eights + 2 * tiles + 2 * lines // 8 + 12  # instructions of a step
        issued: float = busiest * classes * warps * turns * number(values, "unroll") * each
        issued /= min(_ISSUED, here * classes * warps / _ISSUE_CLOCKS)
        busy = max(read, issued) + min(read, issued) * _BESIDE
        later = _LATER_AHEAD if number(values, "ahead") else _LATER
        waits = _LATENCY * (1 + later * (turns - 1)) + _COPIED
        near = busiest * product.n * steps * _DEEP * product.element_bytes / _L2_BYTES
        added = _CLUSTERED if clustered else _SECOND if splits > 1 else 0
        return busy + ceil(busiest / here) * waits + near + added

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rules of every family for few columns, then the registers for the threads that they are
        allocated for."""
        registers = self.registers(streamed(problem, values), values)
        threads = scheduled_threads(self.threads(values, 32))
        broken = super().rule(problem, values, environment)
        return broken or registers_rule(registers, threads, arch_of(environment))

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: mma.sync on this architecture, 16-bit operands contiguous along
        k, clusters."""
        return first(
            tensor_core_rule(environment), deep_rule(product), self._cluster_rule(values, environment)
        )

    def _cluster_rule(self, values: Values, environment: Environment) -> str | None:
        if not number(values, "cluster"):
            return None
        if not arch_of(environment).clusters:
            return f"clusters of blocks need sm_90 or later, not {environment.arch}"
        return "cluster must be 0 where k is not split" if number(values, "splits") == 1 else None

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation; with `cluster` the slices of k form clusters and need no second launch."""
        found = super().config(problem, values, arch)
        if not number(values, "cluster"):
            return found
        return SlicesInClusters(
            found.product, found.header, found.instantiation, found.threads, found.shared_bytes, found.blocks,
            step=found.step, slices=found.splits,
        )  # fmt: skip

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """SkinnyShifted with its template arguments."""
        numbers = {name: str(number(values, name)) for name in ("lines", "classes", "unroll", "warps")}
        numbers["ahead"] = flag(number(values, "ahead") == 1)
        names = ("lines", "classes", "unroll", "ahead", "warps")
        slices = number(values, "splits") if number(values, "cluster") else 1
        steps = self._steps(product, values)
        arguments = [self._eights(product), *(numbers[name] for name in names), steps, slices]
        return f"SkinnyShifted<{product.types}, {', '.join(map(str, arguments))}>"

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        """Candidates for unaligned rows (otherwise nothing needs assembling, and skinny-ring has more in
        flight), unless k is so short that a lane's loads are mostly beyond it."""
        product = streamed(problem, {"stream": likelier_stream(problem)})
        if problem.k >= _DEEP and not product.aligned("a"):
            yield from super().candidates(problem, environment)
