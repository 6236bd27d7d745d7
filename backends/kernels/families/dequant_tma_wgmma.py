"""Quantised weights times up to 256 columns by Hopper's wgmma, loaded by its copy engine
(dequant_tma_wgmma.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.cluster import MOST_BLOCKS_OF_CLUSTER, units_of_clusters
from backends.kernels.dequant_chunk import chunk_bytes, chunk_rule
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.legality import (
    OTHER_REGISTERS,
    arch_of,
    capability,
    columns_rule,
    first,
    grid_rule,
    shared_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm, oriented
from backends.kernels.tensor_map import LINE_BYTES, MOST_STEP, weight_maps
from backends.kernels.weights import (
    WeightClusterConfig,
    bits,
    group,
    lines_rule,
    quantised,
    unsupported_weights,
)
from backends.problem import GemmProblem
from backends.quantisation import GROUPS, STORED_ZEROS
from backends.solution import Parameter

#: The compute capability (times ten) of the one architecture that has wgmma.
_CAPABILITY = 90
#: Elements of k in a stage of activations, and registers of a thread for two stages' weights.
_PART, _HELD = 64, 32
#: Clocks of a multiprocessor's tensor cores for 64 rows, eight columns and 16 of k, and at least for any
#: columns; instructions that convert the weights of an instruction, and those that a scheduler issues per
#: clock; bytes that L2 delivers per clock; how much faster than its share of memory bandwidth a
#: multiprocessor reads while others idle. Clocks of the launch, of a tile's end for each of its sums, and of
#: the addition of slices. Estimated; they only order the candidates.
_EIGHT_COLUMNS, _LEAST_CLOCKS, _CONVERT, _ISSUED, _L2_BYTES, _FASTER = 4.0, 20.0, 26.0, 0.6, 28.0, 2.0
_ARRIVAL, _END, _ADDED = 3000.0, 0.06, 900.0
#: The share of what is not the bound that adds to it.
_BESIDE = 0.15
#: The most candidates that are listed, in all and of a tile, a cluster and resident blocks.
_MOST, _MOST_ALIKE = 72, 2
#: The allocation unit of shared memory, and the bytes that a block occupies beside what it requests.
_SHARED_UNIT, _BLOCK_SHARED = 1024, 1024


class DequantTmaWgmma(KernelFamily):
    """Weights of int4, uint4, int8 or MXFP4 times 1 to 256 columns of bf16 or fp16 by wgmma: the copy engine
    (TMA) fills rings of weights, as they are stored, and of activations, which the blocks of a cluster share;
    weights are dequantised in registers and multiplied by their scales.

    dequant_tma_wgmma.h. Parameters: tile_m (rows of a block), slots (chunks of 128 bytes of every row),
    stages (of 64 elements of k of the activations), share (blocks of a cluster that share activations), splits
    (blocks of a cluster along k), blocks_per_unit (of a multiprocessor)."""

    name, columns = "dequant-tma-wgmma", (1, 256)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (64, 128, 192, 256), "teams": (1, 2), "slots": (2, 3, 4, 6, 8), "stages": (4, 6, 8, 12, 16),
        "share": (1, 2, 4), "splits": (1, 2, 3, 4, 8), "blocks_per_unit": (1, 2, 3),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or zero points, or None."""
        p = problem
        if (why := unsupported_weights(p)) is not None:
            return why
        if p.zero_a in STORED_ZEROS and p.scale_a not in GROUPS:
            return f"zero points of {p.zero_a} are of groups of 32, 64 or 128, not of scale {p.scale_a}"
        if p.mx and p.dtype_b != "bf16":
            return f"weights are multiplied by their scales here, whose range bf16 alone has, not {p.dtype_b}"
        if group(p) and not p.mx and p.scale_dtype != p.dtype_b:
            return f"weights of {p.dtype_b} are multiplied by scales of their type here, not of {p.scale_dtype}"
        return None

    def deep(self, problem: GemmProblem) -> int:
        """Elements of k of a chunk: 128 bytes of weights."""
        return LINE_BYTES * 8 // bits(problem)

    def threads(self, values: Values) -> int:
        """Threads of a block: its consumer warps, and a warpgroup of producers."""
        return number(values, "tile_m") * 2 * number(values, "teams") + 128

    def tile_n(self, problem: GemmProblem, values: Values) -> int:
        """Columns of the instantiation: whole eights of every block of a cluster that shares them."""
        part = 8 * number(values, "share")
        return -(-problem.n // part) * part

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of the rings, or of the fp32 sums that reuse their memory at the end, whichever is more, and
        of two barriers for every slot and stage."""
        rows, columns = number(values, "tile_m"), self.tile_n(problem, values)
        slots, stages = number(values, "slots"), number(values, "stages")
        chunk = chunk_bytes(problem, rows, 0, self.deep(problem))
        slot = -(-chunk // _SHARED_UNIT) * _SHARED_UNIT
        found = max(slots * slot + stages * columns * LINE_BYTES, columns * (rows + 4) * 4)
        return -(-(found + 16 * (slots + stages)) // _SHARED_UNIT) * _SHARED_UNIT

    def registers(self, values: Values, arch: GpuArch) -> int:
        """Registers of a consumer's thread (dequant_tma_wgmma.h: kConsumer)."""
        threads, blocks = self.threads(values), number(values, "blocks_per_unit")
        launched = min(arch.unit_registers // blocks // threads // 8 * 8, 248)
        producer = 32 if launched < 128 else 40
        return min((launched * threads - producer * 128) // (threads - 128) // 8 * 8, 240)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the architecture, columns, 16-byte words of every operand, whole
        groups of a chunk, blocks of a cluster, what the copy engine takes, shared memory and registers of all
        blocks of a multiprocessor, the grid."""
        if capability(environment) != _CAPABILITY:
            return f"wgmma needs sm_90a, not {environment.arch}"
        product, arch = oriented(problem), arch_of(environment)
        broken = first(
            columns_rule(product, *self.columns), lines_rule(product), chunk_rule(problem, self.deep(problem))
        )
        if broken is not None:
            return broken
        share, splits, blocks = (number(values, name) for name in ("share", "splits", "blocks_per_unit"))
        if share * splits > MOST_BLOCKS_OF_CLUSTER:
            return f"a cluster has {MOST_BLOCKS_OF_CLUSTER} blocks, not share {share} by splits {splits}"
        teams, parts = number(values, "teams"), self.deep(problem) // _PART
        if parts % (2 * teams):
            return f"a team has two stages of a chunk or more, not {parts} / {teams}"
        columns = self.tile_n(problem, values)
        if columns > self.columns[1]:
            return f"{share} blocks share {columns} columns; wgmma has {self.columns[1]}"
        if max(one.strides[0] for one in weight_maps(product, 64, 8)) >= MOST_STEP:
            return "the copy engine takes steps below 2^40 bytes"
        shared, room = self.shared_bytes(problem, values), self.registers(values, arch)
        if blocks > 1 and blocks * (shared + _BLOCK_SHARED) > arch.unit_shared_bytes:
            return f"{blocks} blocks take {shared} bytes of shared memory each; {arch.name} has fewer"
        if (needed := columns // 2 + _HELD) > room - OTHER_REGISTERS:
            return f"weights and sums take {needed} registers; a consumer has {room - OTHER_REGISTERS} for them"
        return shared_rule(shared, arch) or grid_rule(
            self._blocks(product, values), self.threads(values), product, arch
        )

    def _blocks(self, product: OrientedGemm, values: Values) -> int:
        """Blocks along m: whole clusters."""
        share = number(values, "share")
        return -(-product.m // (number(values, "tile_m") * share)) * share

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost(): for every tile, cluster and number of resident blocks the rings that cost least."""
        if capability(environment) != _CAPABILITY or problem.n > self.columns[1]:
            return
        product, found = oriented(problem), []
        for row in combinations(*self.choices.values()):
            values = dict(zip(self.choices, row, strict=True))
            if self.rule(problem, values, environment) is None:
                found.append((self.cost(product, values, environment), values))
        found.sort(key=lambda one: one[0])
        tried: Counter[tuple[Parameter, ...]] = Counter()
        for _, values in found:
            alike = tuple(values[name] for name in ("tile_m", "teams", "share", "splits", "blocks_per_unit"))
            if tried[alike] < _MOST_ALIKE and tried.total() < _MOST:
                tried[alike] += 1
                yield values

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: the longest of reading, of what L2 delivers, and of what the busiest
        multiprocessor issues and multiplies, and a share of the others."""
        names = ("tile_m", "teams", "slots", "stages", "share", "splits", "blocks_per_unit")
        rows, teams, slots, stages, share, splits, resident = (number(values, name) for name in names)
        p, rates = product.problem, arch_of(environment).rates
        columns, deep = self.tile_n(p, values), self.deep(p)
        units = units_of_clusters(environment, share * splits)
        blocks = self._blocks(product, values) * splits
        busiest = ceil(blocks / units)
        here, waves = min(resident, busiest), ceil(busiest / resident)
        along = ceil(ceil(p.k / deep) / splits) * deep  # elements of k of a block
        warpgroups, weight = rows // 64, bits(p) / 8
        multiplied = warpgroups * max(_LEAST_CLOCKS, _EIGHT_COLUMNS * columns / 8) / 16
        issued = warpgroups * _CONVERT / 16 / _ISSUED
        delivered = (rows * weight + 2 * columns / share) / _L2_BYTES
        flight = here * (slots - 0.5) * rows * LINE_BYTES / rates.in_flight_bytes
        speed = min(1.0, flight) * (0.9 + 0.1 * min(1.0, flight / 2))
        each = p.m * p.k * weight / blocks / along
        read = each / rates.memory_bytes / speed * max(blocks / units / busiest, 1 / _FASTER)
        # A stage arrives about a thousand clocks after it is requested.
        late = max(0.0, 1000.0 / (stages * _PART) / here - max(multiplied, issued, delivered, read))
        times = (multiplied, issued, delivered, read)
        each_k = max(times) * (1 - _BESIDE) + sum(times) * _BESIDE + late
        end = waves * (_END * rows * columns * here + (_ADDED if splits > 1 else 0))
        return busiest * along * each_k + end + _ARRIVAL

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> WeightClusterConfig:
        """The instantiation in clusters, with the tensor maps of weights and activations."""
        product, columns = OrientedGemm(problem), self.tile_n(problem, values)
        names = ("tile_m", "teams", "slots", "stages", "share", "splits", "blocks_per_unit")
        rows, share = number(values, "tile_m"), number(values, "share")
        numbers = ", ".join(map(str, (columns, *(number(values, name) for name in names))))
        return WeightClusterConfig(
            product, self.header, f"DequantTmaWgmma<{product.types}, {quantised(problem)}, {numbers}>",
            self.threads(values), self.shared_bytes(problem, values), self._blocks(product, values),
            arch_specific=True, tiles=share, slices=number(values, "splits"), tensors=weight_maps(product, rows, columns // share),
        )  # fmt: skip


__all__ = ["DequantTmaWgmma"]
