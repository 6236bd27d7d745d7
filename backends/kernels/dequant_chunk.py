"""A chunk of quantised weights and its products (dequant_chunk.h, dequant_tiles.h): its bytes, its registers,
what it must be, and what it costs. It has `rows` of weights of a warp or of a team, `columns` of activations
and `deep` elements of k."""

from __future__ import annotations

from backends.dtypes import DTYPES
from backends.kernels.weights import bits, floats, group, read_step, split_scales, wide
from backends.problem import GemmProblem
from backends.quantisation import groups_of

#: Instructions that convert the 512 bytes of weights that a warp loads at once, by their bits, and for 4 bits
#: if powers of two are left (dequant_ring.h: kFolded), and those of a chunk and of each of its copies. By
#: counting.
_CONVERT, _LIFT, _CHUNK, _COPY = {4: 50, 8: 20}, 30, 60, 3.5
#: The same for MXFP4, with the reading of four groups' scales; eight columns' sums of them take 8 more.
_CONVERT_MX = 104
#: And for 8-bit floats.
_CONVERT_FP8 = 48
#: Clocks of a multiprocessor's tensor cores for 64 rows and 16 of k times eight columns, and for their
#: weights, which come from registers. Estimated; they only order the candidates.
_COLUMNS_CLOCKS, _HELD_CLOCKS = 4.0, 16.0


def scales_sums(p: GemmProblem) -> bool:
    """Whether sums of a group are scaled instead of its weights (dequant_chunk.h: kAfter)."""
    return group(p) > 0 and group(p) % read_step(p) == 0 and p.zero_a != "shift"


def unsupported_scales(p: GemmProblem) -> str | None:
    """Why chunks cannot have the type of the scales, or None."""
    taken = scales_sums(p) or p.scale_dtype == p.dtype_b or split_scales(p)
    if p.scale_a.startswith("block") and not taken:
        return f"weights of {p.dtype_b} are multiplied by scales of their type here, not of {p.scale_dtype}"
    return None


def chunk_bytes(p: GemmProblem, rows: int, columns: int, deep: int) -> int:
    """Bytes of a team's chunk: weights, activations, scales and zero points."""
    found = rows * deep * bits(p) // 8 + columns * deep * 2
    if size := group(p):
        each = deep // size * DTYPES[p.scale_dtype or "fp32"].bytes
        found += rows * (each + 4 if p.mx else each)  # rows of bytes begin within a word
        found += rows * each if p.zero_a in ("float", "shift") else 0
        found += rows // 8 * (deep // size) * 4 if p.zero_a == "uint4" else 0
    return -(-found // 16) * 16


def tiles_at_once(tiles: int, halves: int) -> int:
    """Tiles of 16 rows that share a reading of activations (dequant_tiles.h: kAtOnce)."""
    return max(size for size in range(1, max(1, 8 // halves) + 1) if tiles % size == 0)


def fragment_registers(p: GemmProblem, tiles: int, halves: int) -> int:
    """Registers for sums, a group's own sums, and a step's weights and activations. (Compilers spill with
    more sums than their half more allows for.)"""
    at_once = tiles_at_once(tiles, halves)
    grouped = 4 * at_once * halves if scales_sums(p) else 0
    sums = 4 * tiles * halves
    ahead = 24 if p.mx else 0  # more loads, of less, that compilers move ahead
    return sums + sums // 2 + grouped + at_once * 20 + ahead + 8


def load_costs(
    p: GemmProblem, columns: int, rows: int, deep: int, warps_m: int
) -> tuple[float, float, float]:
    """For the 512 bytes of weights that a warp loads at once: instructions; those of them that multiply;
    clocks of shared memory. `rows` are a warp's, of `warps_m` that share the columns."""
    width, halves = bits(p), -(-columns // 8)
    once = tiles_at_once(rows // 16, halves)
    folded = width == 4 and halves <= 2 and p.dtype_b == "bf16" and scales_sums(p) and not p.mx
    eights = wide(p) // 8  # instructions of a load's 16 rows and eight columns, two loads for each
    multiplications = eights * halves * (1 + (1 / once if folded else 0))
    integers = _LIFT if folded else _CONVERT[width]
    convert = _CONVERT_MX + 8 * halves if p.mx else _CONVERT_FP8 if floats(p) else integers
    found = convert + multiplications
    found += halves * (eights * (2.5 if folded else 0.5) / once + (4 if folded else 2))
    loads = rows * deep * width // 8 // 512
    inputs = columns * deep * 2 / 512
    copies = loads + inputs / warps_m
    read = eights * 4 * min(columns, halves * 8) / 8 / (2 * once)
    shared = 8 + read + inputs * 4 / (loads * warps_m)
    return found + (_CHUNK + _COPY * copies) / loads, multiplications, shared


def together_registers(p: GemmProblem, tiles: int, columns: int) -> int:
    """Registers of a warp of a warpgroup (dequant_together.h) for sums, the sums of a group, and a group's
    weights."""
    sums = tiles * columns // 2
    grouped = sums if scales_sums(p) else 0
    ahead = 32 if p.mx else 0  # the next group's weights and scales, too
    return sums + grouped + tiles * 32 + ahead + 20


def together_costs(p: GemmProblem, columns: int, rows: int, deep: int, warps: int) -> tuple[float, float]:
    """load_costs() of a warp of a warpgroup: instructions, and clocks of a multiprocessor's tensor cores."""
    convert = 58.0 if floats(p) else {4: 60.0, 8: 30.0}[bits(p)]
    convert += columns / 2 if scales_sums(p) else 0
    if p.mx:  # two groups of a tile
        convert = 110.0 + columns
    loads = rows * deep * bits(p) // 8 // 512
    inputs = columns * deep * 2 / (512 * warps)  # instructions that copy activations, of a warp and chunk
    products = wide(p) * 512 / 16 / 256  # 16 x 16 products of a load
    clocks = products / 4 * (_HELD_CLOCKS + _COLUMNS_CLOCKS * columns / 8)
    return convert + (60 + 3 * inputs) / loads, clocks


def chunk_rule(p: GemmProblem, deep: int) -> str | None:
    """The rule that is broken, or None: whole steps of k and whole 4-byte words of scales."""
    if deep % read_step(p):
        return f"tile_k is a multiple of {read_step(p)} for {p.dtype_a}, not {deep}"
    if (size := group(p)) == 0:
        return None
    if deep % size:
        return f"tile_k is whole groups of {size}, not {deep}"
    each = DTYPES[p.scale_dtype or "fp32"].bytes
    if deep // size * each % 4:
        return f"a row's {deep // size} scales of tile_k {deep} are no whole 4-byte words"
    if (groups_of(p) * each % 4 and not p.mx) or p.alignment < 4:
        return f"a row's {groups_of(p)} scales must start at a multiple of 4 bytes"
    return None
