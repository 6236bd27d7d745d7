"""Quantised weights of groups in rings (grouped_weights.h): what grouped-ring asks where its weights are not
of the rows' type."""

from __future__ import annotations

from math import ceil

from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.grouping import ungrouped
from backends.kernels.dequant_chunk import chunk_rule, load_costs, unsupported_scales
from backends.kernels.family import Values, number
from backends.kernels.grouped import tiles, units_of
from backends.kernels.legality import arch_of
from backends.kernels.oriented_gemm import WIDE, OrientedGemm
from backends.kernels.weights import bits, group, lines_rule, unsupported_elements
from backends.problem import GemmProblem
from backends.quantisation import groups_of

#: Clocks of a multiprocessor's tensor cores for a multiplication of 16 x 8 x 16; clocks between two
#: instructions of a warp, and instructions that a multiprocessor issues per clock at most; clocks of a tile's
#: end. From dequant-ring and grouped-ring; they only order the candidates.
_MULTIPLY, _ISSUE_CLOCKS, _ISSUED, _END = 1.6, 6.0, 2.6, 1500.0
#: Bytes that L2 delivers to a multiprocessor per clock in practice; how much faster than its share of memory
#: bandwidth one reads while others idle; the share of what is not the bound that adds to it.
_L2_BYTES, _FASTER, _BESIDE = 40.0, 2.0, 0.15


def unsupported_group_elements(p: GemmProblem) -> str | None:
    """Why no family for quantised weights of groups has the problem, or None."""
    if ungrouped(p) is None:
        return "these kernels multiply rows of groups by the groups' weights; this is a product of one matrix"
    return unsupported_elements(p)


def unsupported_group_weights(p: GemmProblem) -> str | None:
    """Why grouped-ring does not have the problem's quantised weights, or None."""
    return unsupported_group_elements(p) or unsupported_scales(p)


def weights_rule(product: OrientedGemm, values: Values) -> str | None:
    """The rule that is broken, or None: 16-byte words of weights and of rows, whole steps of k, and scales of
    every group in whole 4-byte words."""
    p, deep = product.problem, number(values, "tile_k")
    if (broken := lines_rule(product) or chunk_rule(p, deep)) is not None:
        return broken
    if DTYPES[p.dtype_a].size(p.stride_a) % WIDE:
        return f"weights of groups must start at multiples of {WIDE} bytes"
    of_group = p.m * groups_of(p) * DTYPES[p.scale_dtype or "fp32"].bytes
    if of_group % 4:
        return f"scales of a group of weights must be whole 4-byte words, not {of_group} bytes"
    return None


def ring_load(p: GemmProblem, values: Values) -> tuple[float, float, float]:
    """What weights_cost() asks of products by mma.sync."""
    columns, rows, deep, warps = (number(values, name) for name in ("columns", "rows", "tile_k", "warps_m"))
    instructions, multiplications, shared = load_costs(p, columns, rows, deep, warps)
    return instructions, multiplications * _MULTIPLY, shared


def weights_cost(
    product: OrientedGemm, values: Values, environment: Environment, each_load: tuple[float, float, float]
) -> float:
    """Roughly the clocks of the busiest multiprocessor, as GroupedRing.cost(); here the instructions that
    dequantise may be the longest. `each_load`: what 512 bytes of weights take: instructions, clocks of the
    tensor cores, and of shared memory."""
    columns, rows, deep = (number(values, name) for name in ("columns", "rows", "tile_k"))
    warps_m, warps_k = number(values, "warps_m"), number(values, "warps_k")
    slots, resident = number(values, "slots"), number(values, "blocks_per_unit")
    p, rates, units = product.problem, arch_of(environment).rates, units_of(environment)
    whole = rows * warps_m
    scales = DTYPES[p.scale_dtype or "fp32"].bytes / group(p)
    weights = min(whole, product.m) * product.k * (bits(p) / 8 + scales)
    all_tiles = tiles(product, whole, columns)
    again = all_tiles / max(1, tiles(product, whole, product.n))
    busiest = ceil(all_tiles / units)
    here = min(resident, busiest)
    flight = here * warps_k * (slots - 1.5) * whole * deep * bits(p) / 8
    ahead = flight / rates.in_flight_bytes
    speed = min(1.0, ahead) * (0.9 + 0.1 * min(1.0, ahead / 2))
    share = max(all_tiles / units, busiest / _FASTER)
    read = share * weights / max(1.0, again) / rates.memory_bytes / speed
    delivered = share * (weights + columns * product.k * 2) / _L2_BYTES
    instructions, products, shared = each_load
    loads = busiest * whole * product.k * bits(p) / 8 / 512
    chunks = ceil(product.k / deep)
    turns = ceil(chunks / warps_k)
    used = chunks / (turns * warps_k)
    issued = loads * instructions / min(_ISSUED, here * warps_m * warps_k * used / _ISSUE_CLOCKS)
    each = (read, delivered, issued, loads * products, loads * shared)
    return max(each) * (1 - _BESIDE) + sum(each) * _BESIDE + busiest / here * (turns * 60 + _END)
