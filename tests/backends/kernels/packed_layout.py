"""The layout of packed-mma's weights (device/packed_weights.h) in numpy: as a whole, and where each
number is. Operands and copies are bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES
from backends.problem import GemmProblem

Bytes = npt.NDArray[np.uint8]
#: Elements of k of a scale, by its name; the others are of a row, or of all weights.
GROUPS = {"block_1x32": 32, "block_1x64": 64, "block_1x128": 128, "block_128x128": 128}


def four(p: GemmProblem) -> bool:
    """Whether weights have 4 bits, not 8."""
    return DTYPES[p.dtype_a].bits == 4


def deep(p: GemmProblem) -> int:
    """Elements of k of a record: 16 rows of them are 1024 bytes."""
    return 128 if four(p) else 64


def counts(p: GemmProblem) -> tuple[int, int, int]:
    """Tiles, their records, and groups of a record."""
    groups = max(1, deep(p) // GROUPS[p.scale_a]) if p.scale_a in GROUPS else 0
    return -(-p.m // 16), -(-p.k // deep(p)), groups


def scale_bytes(p: GemmProblem) -> int:
    return DTYPES[p.scale_dtype or "fp32"].bytes


def codes(p: GemmProblem, a: Bytes) -> Bytes:
    """The bits of every stored weight, [m, k]."""
    line = p.lda // 2 if four(p) else p.lda
    used = p.k // 2 if four(p) else p.k
    rows = np.stack([a[row * line : row * line + used] for row in range(p.m)])
    return np.stack([rows & 15, rows >> 4], axis=-1).reshape(p.m, p.k) if four(p) else rows


def scales(p: GemmProblem, scale_a: Bytes) -> Bytes:
    """The bytes of every row's stored scales, [m, groups, bytes]."""
    size = scale_bytes(p)
    if p.scale_a not in GROUPS:
        return np.broadcast_to(scale_a.reshape(-1, 1, size), (p.m, 1, size))
    lines = scale_a.reshape(-1, p.k // GROUPS[p.scale_a], size)
    return np.repeat(lines, 128, axis=0)[: p.m] if p.scale_a == "block_128x128" else lines


def zeros(p: GemmProblem, zero_a: Bytes) -> Bytes:
    """The bytes of every row's stored zero points, [m, groups, bytes]."""
    groups = p.k // GROUPS[p.scale_a]
    if p.zero_a != "uint4":
        return zero_a.reshape(p.m, groups, scale_bytes(p))
    words = zero_a.view("<u4").reshape(p.m // 8, 1, groups)
    each = words >> (4 * np.arange(8, dtype=np.uint32).reshape(1, 8, 1)) & 15
    return each.reshape(p.m, groups, 1).astype(np.uint8)


def described(p: GemmProblem, stored: dict[str, Bytes]) -> Bytes:
    """The copy of a problem's stored weights, from packed_weights.h's description."""
    tiles, records, groups = counts(p)
    known = codes(p, stored["a"])
    if p.dtype_a == "int4":
        known = known ^ np.uint8(8)
    whole = np.zeros((tiles * 16, records * deep(p)), np.uint8)
    whole[: p.m, : p.k] = known
    # Tile, half of its rows, row, record, 32 elements, lane, element -> tile, record, half, row, lane, ...
    apart = whole.reshape(tiles, 2, 8, records, deep(p) // 32, 4, 8).transpose(0, 3, 1, 2, 5, 4, 6)
    if four(p):
        order = range(8) if p.dtype_a == "fp4_e2m1" else (0, 2, 4, 6, 1, 3, 5, 7)
        nibbles = apart[..., list(order)]
        apart = nibbles[..., 0::2] | nibbles[..., 1::2] << np.uint8(4)
    parts = [apart.reshape(tiles, records, 1024)]
    tail = np.zeros(0, np.uint8)
    rows = scales(p, stored["scale_a"])
    if groups:
        parts.append(beside(p, rows))
        if "zero_a" in stored:
            parts.append(beside(p, zeros(p, stored["zero_a"])))
        used = sum(part.shape[2] for part in parts)
        parts.append(np.zeros((tiles, records, -used % 16), np.uint8))
    else:
        tail = rows[[row if row < p.m else 0 for row in range(tiles * 16)]].reshape(-1)
    return np.concatenate([np.concatenate(parts, axis=2).reshape(-1), tail])


def beside(p: GemmProblem, rows: Bytes) -> Bytes:
    """What is behind each record's weights of scales or zero points [m, groups, bytes]: those of its groups,
    16 rows of each."""
    tiles, records, groups = counts(p)
    found = np.zeros((tiles, records, groups, 16, rows.shape[2]), np.uint8)
    for record in range(records):
        for group in range(groups):
            first = record * deep(p) + group * GROUPS[p.scale_a]
            if first < p.k:
                column = np.zeros((tiles * 16, rows.shape[2]), np.uint8)
                column[: p.m] = rows[:, first // GROUPS[p.scale_a]]
                found[:, record, group] = column.reshape(tiles, 16, -1)
    return found.reshape(tiles, records, -1)


def given_back(p: GemmProblem, copy: Bytes) -> tuple[Bytes, Bytes, Bytes | None]:
    """The bits of every weight [m, k], its scale's bytes [m, k, bytes] and its zero point's, read one by one
    from where a copy has them."""
    tiles, records, groups = counts(p)
    row, k = np.arange(p.m)[:, None], np.arange(p.k)[None, :]
    size, point = scale_bytes(p), 1 if p.zero_a == "uint4" else scale_bytes(p)
    stored_zeros = p.zero_a in ("uint4", "float", "shift")
    behind = groups * 16 * (size + (point if stored_zeros else 0))
    record = (row // 16 * records + k // deep(p)) * (1024 + -(-behind // 16) * 16)
    word = record + row % 16 // 8 * 512 + row % 8 * 64 + k % 32 // 8 * 16
    element, turn = k % 8, k % deep(p) // 32
    if not four(p):
        bits = copy[word + turn * 8 + element]
    else:
        bit = element * 4 if p.dtype_a == "fp4_e2m1" else element // 2 * 4 + element % 2 * 16
        bits = copy[word + turn * 4 + bit // 8] >> (bit % 8).astype(np.uint8) & 15
        bits = bits ^ np.uint8(8) if p.dtype_a == "int4" else bits
    if not groups:
        first = tiles * records * 1024 + row * size + 0 * k
        return bits, copy[first[..., None] + np.arange(size)], None
    group = k % deep(p) // min(deep(p), GROUPS[p.scale_a])
    scale = record + 1024 + (group * 16 + row % 16) * size
    zero = record + 1024 + groups * 16 * size + (group * 16 + row % 16) * point
    found = copy[scale[..., None] + np.arange(size)]
    return bits, found, copy[zero[..., None] + np.arange(point)] if stored_zeros else None
