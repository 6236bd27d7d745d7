"""Quantised weights times many columns by Hopper's wgmma, in tiles whose operands its copy engine loads
(dequant_tile_wgmma.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.cluster import units_of_clusters
from backends.kernels.dequant_rings import (
    PART,
    PRODUCERS,
    ROWS,
    consumer_registers,
    deep,
    hopper_rule,
    launched_registers,
    operands_rule,
    resident_rule,
    ring_bytes,
    with_barriers,
)
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.legality import arch_of, columns_rule, grid_rule, shared_rule
from backends.kernels.oriented_gemm import OrientedGemm, oriented
from backends.kernels.tensor_map import weight_maps
from backends.kernels.weights import (
    WeightArgs,
    WeightClusterConfig,
    bits,
    floats,
    group,
    quantised,
    split_scales,
    unsupported_scaled_weights,
)
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.quantisation import STORED_ZEROS
from backends.solution import Parameter

#: The fewest columns: of fewer, one block has all.
_LEAST = 65
#: Registers of a consumer's thread for two halves of a stage's weights, by their bits for those of one before
#: they are converted, for stored zero points or scales of every half, and for addresses and counters; of a
#: producer's thread at most; at the launch beside an instruction's sums, or the assembler refuses it.
_HELD, _RAW, _SCALES, _OTHER, _PRODUCER, _LAUNCHED = 16, {4: 8, 8: 18}, 2, 24, 56, 30
#: Bytes of a warp's patch of shared memory (dequant_tile_wgmma.h: kPatch).
_PATCH = 1280
#: Clocks of a multiprocessor for an instruction of 64 rows and 16 of k: of its tensor cores for each column,
#: and to issue what converts its weights (times the next for floats). The share of what is not the bound that
#: adds to it. Bytes that L2 delivers to a multiprocessor per clock. Clocks until a tile's first stage
#: arrives, which a block that takes several tiles does not wait for; of a tile's end, and for each of its
#: sums; of the launch. By counting; they only order the candidates.
_COLUMN, _CONVERT, _FLOATS, _BESIDE, _L2_BYTES = 0.5, 16.0, 1.5, 0.1, 38.0
_ARRIVES, _END, _STORE, _LAUNCH = 2200.0, 400.0, 0.03, 4000.0
#: Clocks that blocks of a cluster wait for one another, at a stage.
_WAIT = 20.0
#: The most candidates that are listed, in all and of a tile of D.
_MOST, _MOST_OF_TILE = 72, 8


@dataclass(frozen=True)
class TilesConfig(WeightClusterConfig):
    """A configuration whose blocks take tiles in turn. `resident`: blocks of the launch for each
    multiprocessor; 0: one for every tile."""

    resident: int = 0

    def on(self, units: int) -> TilesConfig:
        """See KernelConfig. Clusters take tiles round-robin, so any number of them is correct."""
        if self.resident == 0:
            return self
        most = units_of_clusters(units, self.tiles) * self.resident // self.tiles * self.tiles
        return replace(self, blocks=max(self.tiles, min(self.blocks, most)))

    def arguments(self, operands: Operands, workspace: int) -> WeightArgs:
        """The launch's argument, with the number of blocks."""
        found = super().arguments(operands, workspace)
        found.blocks = self.blocks
        return found


class DequantTileWgmma(KernelFamily):
    """Weights of int4, uint4, int8, fp8 or MXFP4 times 65 and more columns of bf16 or fp16 by wgmma: blocks
    take tiles of D in turn, the copy engine (TMA) fills rings of weights, as they are stored, and of
    activations, which the blocks of a cluster share; weights are dequantised in registers and multiplied by
    their scales.

    dequant_tile_wgmma.h. Parameters: tile_m x tile_n of D per tile, slots (chunks of 128 bytes of every row),
    stages (of 64 elements of k of the activations), share (blocks of a cluster that share activations), group
    (rows of tiles that are taken together), blocks_per_unit (of a multiprocessor), persistent (1: these are
    all of the launch's blocks; 0: it has a block for every tile)."""

    name = "dequant-tile-wgmma"
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (64, 128, 192, 256), "tile_n": (64, 96, 128, 160, 192, 224, 256), "slots": (2, 3, 4),
        "stages": (2, 3, 4, 5, 6, 8), "share": (1, 2, 4), "group": (1, 8, 32), "blocks_per_unit": (1, 2),
        "persistent": (0, 1),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or zero points, or None."""
        return unsupported_scaled_weights(problem)

    def threads(self, values: Values) -> int:
        """Threads of a block: its consumer warps, and a warpgroup of producers."""
        return number(values, "tile_m") * 2 + PRODUCERS

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of the rings, of the warps' patches, and of two barriers for every slot and stage."""
        rows, columns = number(values, "tile_m"), number(values, "tile_n")
        slots, stages = number(values, "slots"), number(values, "stages")
        found = ring_bytes(problem, rows, columns, slots, stages) + rows // 16 * _PATCH
        return with_barriers(found, slots, stages)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the architecture, columns, 16-byte words of every operand, whole
        groups of a chunk, what the copy engine takes, shared memory and registers of all blocks of a
        multiprocessor, the grid."""
        if (broken := hopper_rule(environment)) is not None:
            return broken
        product, arch = oriented(problem), arch_of(environment)
        if (broken := _product_rule(product)) is not None:
            return broken
        shared, threads = self.shared_bytes(problem, values), self.threads(values)
        return (
            shared_rule(shared, arch)
            or resident_rule(shared, number(values, "blocks_per_unit"), arch)
            or _registers_rule(problem, values, threads, arch)
            or grid_rule(self._blocks(product, values), threads, product, arch)
        )

    def _blocks(self, product: OrientedGemm, values: Values) -> int:
        """A block for every tile: whole clusters of rows."""
        share = number(values, "share")
        return product.tiles(number(values, "tile_m") * share, number(values, "tile_n")) * share

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost(): of every tile, cluster and number of blocks the deepest rings that fit."""
        if hopper_rule(environment) is not None or _product_rule(oriented(problem)) is not None:
            return
        product = oriented(problem)
        found = list(self._deepest(problem, environment))
        found.sort(key=lambda one: (self.cost(product, one, environment), -number(one, "slots")))
        tried: Counter[tuple[Parameter, Parameter]] = Counter()
        for values in found:
            tile = values["tile_m"], values["tile_n"]
            if tried[tile] < _MOST_OF_TILE and tried.total() < _MOST:
                tried[tile] += 1
                yield values

    def _deepest(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        names = ("tile_m", "tile_n", "share", "group", "blocks_per_unit", "persistent")
        kept = {**self.choices, "group": (8, 32)}
        for row in combinations(*(kept[name] for name in names)):
            given: dict[str, Parameter] = dict(zip(names, row, strict=True))
            for slots in (2, 3):
                rings = ({**given, "slots": slots, "stages": stages} for stages in (8, 6, 5, 4, 3, 2))
                legal = (values for values in rings if self.rule(problem, values, environment) is None)
                if (values := next(legal, None)) is not None:
                    yield {name: values[name] for name in self.choices}

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: its waves of blocks, each as long as multiplying with a share of
        converting, as L2 or memory deliver operands, or as a stage takes to arrive; and the ends of tiles."""
        names = ("tile_m", "tile_n", "stages", "share", "group", "blocks_per_unit", "persistent")
        rows, columns, stages, share, group, resident, persistent = (number(values, name) for name in names)
        p, rates = product.problem, arch_of(environment).rates
        units = units_of_clusters(environment.units, share) if persistent else max(1, environment.units)
        blocks = self._blocks(product, values)
        here = min(resident, ceil(blocks / units))
        weight, instructions = bits(p) / 8, here * rows / ROWS * PART / 16
        converted = instructions * _CONVERT * (_FLOATS if floats(p) else 1.0)
        multiplied = instructions * _COLUMN * columns
        if here * rows == ROWS:  # nothing is multiplied while the only warpgroup waits
            multiplied += converted
        delivered = here * PART * (rows * weight + 2 * columns / share) / _L2_BYTES
        at_once = min(blocks, units * here)
        high = min(max(group, share), ceil(product.m / rows))
        wide = min(ceil(product.n / columns), ceil(at_once / high))
        read = PART * (high * rows * weight + 2 * wide * columns) / environment.units / rates.memory_bytes
        bound = max(multiplied, converted, delivered, read, _ARRIVES / stages)
        step = bound + _BESIDE * (converted + delivered + read) + _WAIT * (share - 1)
        waves = blocks / (units * here)
        end = _END + here * rows * columns * _STORE + (0.0 if persistent else _ARRIVES)
        hidden = 2 if here * rows > ROWS else 1  # other warpgroups multiply while one stores
        parts = ceil(p.k / deep(p)) * deep(p) / PART
        return _LAUNCH + (max(1.0, waves) + ceil(waves)) / 2 * (parts * step + end / hidden)

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> TilesConfig:
        """The instantiation in clusters, with the tensor maps of weights and activations; on() sets the
        number of blocks."""
        product = OrientedGemm(problem)
        names = ("tile_m", "tile_n", "slots", "stages", "share", "group", "blocks_per_unit")
        rows, columns, share = (number(values, name) for name in ("tile_m", "tile_n", "share"))
        numbers = ", ".join(str(number(values, name)) for name in names)
        return TilesConfig(
            product, self.header, f"DequantTileWgmma<{product.types}, {quantised(problem)}, {numbers}>",
            self.threads(values), self.shared_bytes(problem, values), self._blocks(product, values),
            arch_specific=True, tiles=share, tensors=weight_maps(product, rows, columns // share),
            resident=number(values, "blocks_per_unit") if number(values, "persistent") else 0,
        )  # fmt: skip


def _product_rule(product: OrientedGemm) -> str | None:
    """The rule that every tile of a product breaks, or None."""
    return columns_rule(product, _LEAST) or operands_rule(product)


def _registers_rule(problem: GemmProblem, values: Values, threads: int, arch: GpuArch) -> str | None:
    """Registers of a consumer for sums, and weights before and after they are converted."""
    blocks, sums = number(values, "blocks_per_unit"), number(values, "tile_n") // 2
    if (launched := launched_registers(threads, blocks, arch)) < sums + _LAUNCHED:
        return f"an instruction takes {sums + _LAUNCHED} registers; a thread is launched with {launched}"
    room = consumer_registers(threads, blocks, arch, _PRODUCER) - _OTHER
    needed = sums + _HELD + _RAW[bits(problem)]
    if problem.zero_a in STORED_ZEROS or group(problem) == PART // 2 or split_scales(problem):
        needed += _SCALES
    if needed > room:
        return f"weights and sums take {needed} registers; a consumer has {room} for them"
    return None


__all__ = ["DequantTileWgmma"]
