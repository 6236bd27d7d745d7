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
from backends.kernels.dequant_rings import (
    PART,
    PRODUCERS,
    consumer_registers,
    deep,
    hopper_rule,
    operands_rule,
    resident_rule,
    ring_bytes,
    with_barriers,
)
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.legality import (
    OTHER_REGISTERS,
    arch_of,
    columns_rule,
    first,
    grid_rule,
    shared_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm, oriented
from backends.kernels.tensor_map import LINE_BYTES, weight_maps
from backends.kernels.weights import WeightClusterConfig, bits, floats, quantised, unsupported_scaled_weights
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Registers of a thread for two stages' weights, and for those of one before they are converted; the most
#: columns whose weights are converted as soon as they are read (dequant_tma_wgmma.h: kBetween).
_HELD, _RAW, _FEW = 32, 16, 64
#: Clocks of a multiprocessor for an instruction of 64 rows and 16 of k: for its weights (times the next for
#: floats), and for each of its columns; and for its weights where one warpgroup waits for them alone. Bytes
#: that L2 delivers to a multiprocessor per clock; clocks until a stage arrives; of the launch; of a tile's
#: end for each of its sums, and for each slice of k. How much faster than its share of memory bandwidth a
#: multiprocessor reads while others idle, and the share of what is not the bound that adds to it. Fitted to
#: measurements on an H100 of weights of 4 bits, four layers of Llama-3-8B, 16 to 128 columns; they only order
#: the candidates.
_WEIGHTS, _FLOATS, _COLUMN, _ALONE, _L2_BYTES, _ARRIVES = 30.0, 1.5, 0.31, 44.0, 64.0, 1600.0
_LAUNCH, _END, _SLICE, _FASTER, _BESIDE = 6300.0, 0.35, 1150.0, 2.0, 0.12
#: The most candidates that are listed, in all and of a tile, a cluster and resident blocks.
_MOST, _MOST_ALIKE = 72, 2


class DequantTmaWgmma(KernelFamily):
    """Weights of int4, uint4, int8, fp8 or MXFP4 times 1 to 256 columns of bf16 or fp16 by wgmma: the copy
    engine (TMA) fills rings of weights, as they are stored, and of activations, which the blocks of a cluster
    share; weights are dequantised in registers and multiplied by their scales.

    dequant_tma_wgmma.h. Parameters: tile_m (rows of a block), teams (of warpgroups, which share k), slots
    (chunks of 128 bytes of every row), stages (of 64 elements of k of the activations), share (blocks of a
    cluster that share activations), splits (blocks of a cluster along k), blocks_per_unit (of a
    multiprocessor)."""

    name, columns = "dequant-tma-wgmma", (1, 256)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (64, 128, 192, 256), "teams": (1, 2), "slots": (2, 3, 4, 6, 8), "stages": (4, 6, 8, 12, 16),
        "share": (1, 2, 4), "splits": (1, 2, 3, 4, 8), "blocks_per_unit": (1, 2, 3),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or zero points, or None."""
        return unsupported_scaled_weights(problem)

    def threads(self, values: Values) -> int:
        """Threads of a block: its consumer warps, and a warpgroup of producers."""
        return number(values, "tile_m") * 2 * number(values, "teams") + PRODUCERS

    def tile_n(self, problem: GemmProblem, values: Values) -> int:
        """Columns of the instantiation: whole eights of every block of a cluster that shares them."""
        part = 8 * number(values, "share")
        return -(-problem.n // part) * part

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of the rings, or of the fp32 sums that reuse their memory at the end, whichever is more, and
        of two barriers for every slot and stage."""
        rows, columns = number(values, "tile_m"), self.tile_n(problem, values)
        slots, stages = number(values, "slots"), number(values, "stages")
        found = ring_bytes(problem, rows, columns, slots, stages)
        return with_barriers(max(found, columns * (rows + 4) * 4), slots, stages)

    def registers(self, values: Values, arch: GpuArch) -> int:
        """Registers of a consumer's thread."""
        return consumer_registers(self.threads(values), number(values, "blocks_per_unit"), arch)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the architecture, columns, 16-byte words of every operand, whole
        groups of a chunk, blocks of a cluster, what the copy engine takes, shared memory and registers of all
        blocks of a multiprocessor, the grid."""
        if (broken := hopper_rule(environment)) is not None:
            return broken
        product, arch = oriented(problem), arch_of(environment)
        broken = first(columns_rule(product, *self.columns), operands_rule(product))
        if broken is not None:
            return broken
        share, splits, blocks = (number(values, name) for name in ("share", "splits", "blocks_per_unit"))
        if share * splits > MOST_BLOCKS_OF_CLUSTER:
            return f"a cluster has {MOST_BLOCKS_OF_CLUSTER} blocks, not share {share} by splits {splits}"
        teams, parts = number(values, "teams"), deep(problem) // PART
        if parts % (2 * teams):
            return f"a team has two stages of a chunk or more, not {parts} / {teams}"
        columns = self.tile_n(problem, values)
        if columns > self.columns[1]:
            return f"{share} blocks share {columns} columns; wgmma has {self.columns[1]}"
        shared, room = self.shared_bytes(problem, values), self.registers(values, arch)
        if (broken := resident_rule(shared, blocks, arch)) is not None:
            return broken
        if (needed := columns // 2 + _HELD + (_RAW if columns > _FEW else 0)) > room - OTHER_REGISTERS:
            return (
                f"weights and sums take {needed} registers; a consumer has {room - OTHER_REGISTERS} for them"
            )
        return shared_rule(shared, arch) or grid_rule(
            self._blocks(product, values), self.threads(values), product, arch
        )

    def _blocks(self, product: OrientedGemm, values: Values) -> int:
        """Blocks along m: whole clusters."""
        share = number(values, "share")
        return -(-product.m // (number(values, "tile_m") * share)) * share

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost(), the deepest rings of equals first: for every tile, cluster and number of resident blocks
        the rings that cost least."""
        if hopper_rule(environment) is not None or problem.n > self.columns[1]:
            return
        product, found = oriented(problem), []
        for row in combinations(*self.choices.values()):
            values = dict(zip(self.choices, row, strict=True))
            if self.rule(problem, values, environment) is None:
                found.append((self.cost(product, values, environment), values))
        found.sort(key=lambda one: (one[0], -number(one[1], "stages"), -number(one[1], "slots")))
        tried: Counter[tuple[Parameter, ...]] = Counter()
        for _, values in found:
            alike = tuple(value for name, value in values.items() if name not in ("slots", "stages"))
            if tried[alike] < _MOST_ALIKE and tried.total() < _MOST:
                tried[alike] += 1
                yield values

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: for every element of k of the busiest multiprocessor's blocks the
        longest of converting and multiplying, of what L2 delivers, of reading, and of waiting for either,
        with a share of the others; and the ends of its tiles."""
        names = ("tile_m", "teams", "slots", "stages", "share", "splits", "blocks_per_unit")
        rows, teams, slots, stages, share, splits, resident = (number(values, name) for name in names)
        p, rates = product.problem, arch_of(environment).rates
        columns, depth, cluster = self.tile_n(p, values), deep(p), share * splits
        units = units_of_clusters(environment.units, cluster if cluster > 3 else 1)
        blocks = self._blocks(product, values) * splits
        busiest = ceil(blocks / units)
        here = min(resident, busiest)
        along = ceil(ceil(p.k / depth) / splits) * depth  # elements of k of a block
        weight, slower = bits(p) / 8, _FLOATS if floats(p) else 1.0
        multiplied = rows / 64 * (_WEIGHTS * slower + _COLUMN * columns) / 16
        alone = (_ALONE * slower + _COLUMN * columns) / 16 / (teams * here)
        delivered = (rows * weight + 2 * columns) / _L2_BYTES
        flight = here * (slots - 0.5) * rows * LINE_BYTES / rates.in_flight_bytes
        share_of_units = min(1.0, max(blocks / units / busiest, 1 / _FASTER))
        read = rows * weight * share_of_units / rates.memory_bytes / min(1.0, flight)
        waited = _ARRIVES / (stages * PART) / here
        times = (multiplied, alone, delivered, read, waited)
        each = max(times) + _BESIDE * (multiplied + delivered + read)
        return _LAUNCH + busiest * (along * each + _END * rows * columns) + _SLICE * (splits - 1)

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> WeightClusterConfig:
        """The instantiation in clusters, with the tensor maps of weights and activations."""
        product, columns = OrientedGemm(problem), self.tile_n(problem, values)
        names = ("tile_m", "teams", "slots", "stages", "share", "splits", "blocks_per_unit")
        rows, share = number(values, "tile_m"), number(values, "share")
        numbers = ", ".join(map(str, (columns, *(number(values, name) for name in names))))
        return WeightClusterConfig(
            product, self.header, f"DequantTmaWgmma<{product.types}, {quantised(problem)}, {numbers}>",
            self.threads(values), self.shared_bytes(problem, values), self._blocks(product, values),
            arch_specific=True, tiles=share, slices=number(values, "splits"),
            tensors=weight_maps(product, rows, columns // share),
        )  # fmt: skip


__all__ = ["DequantTmaWgmma"]
