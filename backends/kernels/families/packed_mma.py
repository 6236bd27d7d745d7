"""Prepacked quantised weights times few columns on tensor cores (packed_mma.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.families.dequant_ring import DequantRing
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.launch import KernelLaunch
from backends.kernels.legality import MOST_BLOCKS, first, tensor_core_rule
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.prepacked import PACK, Prepacked
from backends.kernels.weights import (
    PackedWeightArgs,
    WeightConfig,
    bits,
    group,
    lines_rule,
    quantised,
    unsupported_weights,
)
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.quantisation import GROUPS, STORED_ZEROS
from backends.solution import Parameter

#: packed_weights.h: rows of a tile; bytes of its weights in a record; the packing kernel's lanes for them,
#: and its threads.
_ROWS, _RECORD, _LANES, _THREADS = 16, 1024, 64, 256
#: The layout's name. Another order of any byte is another name.
LAYOUT = "records-of-16-rows-1"


def deep(p: GemmProblem) -> int:
    """Elements of k of a record (packed_weights.h: kDeep)."""
    return _RECORD * 8 // _ROWS // bits(p)


def record_bytes(p: GemmProblem) -> int:
    """Bytes of a record: weights, scales and zero points of 16 rows (packed_weights.h: kBytes)."""
    groups = max(1, deep(p) // group(p)) if group(p) else 0
    scale = DTYPES[p.scale_dtype or "fp32"].bytes
    zero = {"float": scale, "shift": scale, "uint4": 1}.get(p.zero_a, 0)
    return -(-(_RECORD + groups * _ROWS * (scale + zero)) // 16) * 16


def packing_blocks(p: GemmProblem) -> int:
    """Blocks of the packing kernel."""
    return -(-(-(-p.m // _ROWS) * -(-p.k // deep(p)) * _LANES) // _THREADS)


@dataclass(frozen=True)
class PackedConfig(WeightConfig):
    """A configuration that reads a packed copy of the weights."""

    @property
    def argument_bytes(self) -> int:
        """Bytes of PackedWeightArgs."""
        return ctypes.sizeof(PackedWeightArgs)

    def arguments(self, operands: Operands, workspace: int) -> PackedWeightArgs:
        """The argument of the GEMM's launches and of the packing kernel's."""
        weights, found = super().arguments(operands, workspace), PackedWeightArgs()
        ctypes.memmove(ctypes.addressof(found), ctypes.addressof(weights), ctypes.sizeof(weights))
        found.packed, found.packed_bytes = operands.packed, self.prepacked.bytes
        return found

    @property
    def prepacked(self) -> Prepacked:
        """The copy: records of every tile, and scales of whole rows behind them."""
        p = self.product.problem
        tiles, records = -(-p.m // _ROWS), -(-p.k // deep(p))
        size = tiles * records * record_bytes(p)
        if not group(p):
            size += tiles * _ROWS * DTYPES[p.scale_dtype or "fp32"].bytes
        launch = KernelLaunch(PACK, (packing_blocks(p), 1, 1), (_THREADS, 1, 1), 0, True)
        return Prepacked(LAYOUT, size, launch, f"gemmtune::PackWeights<{quantised(p)}>")


class PackedMma(DequantRing):
    """Prepacked weights of int4, uint4, int8, fp8 or MXFP4 times 1 to 64 columns of bf16 or fp16 on tensor
    cores. A program packs its weights once; a warp reads them in contiguous runs, with their scales.

    Parameters: rows (of a warp), slots (of a team's ring, in records), warps_m (of a team, which shares the
    columns), warps_k (teams of a block, which share k), splits (blocks along k)."""

    name, columns, version = "packed-mma", (1, 64), 1
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "rows": (16, 32, 64), "slots": (2, 3, 4, 6), "warps_m": (1, 2, 4, 8), "warps_k": (1, 2, 4, 8, 16),
        "splits": (1, 2, 4, 8),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or zero points, or None."""
        p = problem
        if not p.prepacked:
            return "the problem's weights are not packed beforehand"
        if (why := unsupported_weights(p)) is not None:
            return why
        if p.zero_a in STORED_ZEROS and p.scale_a not in GROUPS:
            return f"zero points of {p.zero_a} are of groups of 32, 64 or 128, not of scale {p.scale_a}"
        return None

    def scales_sums(self, p: GemmProblem) -> bool:
        """Whether sums of a group are scaled, as they are of every group."""
        return group(p) > 0

    def step(self, product: OrientedGemm, values: Values) -> int:
        """A record."""
        return deep(product.problem)

    def _slot_bytes(self, product: OrientedGemm, values: Values) -> int:
        """Bytes of a team's chunk: activations, and a record of each tile (packed_mma.h: kSlot)."""
        p = product.problem
        tiles = self.rows(product, values, 32) // _ROWS
        return self._columns(product) * deep(p) * 2 + tiles * record_bytes(p)

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for sums, a group's own sums and those of its activations, a record's weights, and the
        activations of 32 elements of k."""
        p, tiles, halves = product.problem, number(values, "rows") // _ROWS, -(-self._columns(product) // 8)
        sums = 4 * tiles * halves * (2 if group(p) else 1)
        inputs = 4 * halves if p.zero_a in ("float", "shift") else 0
        return sums + inputs + 10 * tiles + 4 * halves + 24

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: mma.sync on this architecture, 16-byte words of every operand,
        activations within 2^31 bytes, weights that one launch packs."""
        broken = first(tensor_core_rule(environment), lines_rule(product))
        if broken is None and (product.n - 1) * product.problem.ldb * 2 >= 2**31:
            return f"columns {product.problem.ldb} elements apart end beyond 2^31 bytes"
        if broken is None and (blocks := packing_blocks(product.problem)) > MOST_BLOCKS:
            return f"{blocks} blocks pack the weights; a launch has {MOST_BLOCKS} at most"
        return broken

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """PackedMma with its template arguments."""
        tiles = number(values, "rows") // _ROWS
        numbers = [tiles, *(number(values, name) for name in ("slots", "warps_m", "warps_k"))]
        kinds = f"{product.types}, {quantised(product.problem)}, {self._columns(product)}"
        return f"PackedMma<{kinds}, {', '.join(map(str, numbers))}>"

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation, its blocks along m and its slices of k."""
        return PackedConfig(**vars(super().config(problem, values, arch)))
