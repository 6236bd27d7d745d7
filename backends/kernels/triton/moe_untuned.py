"""What vLLM and SGLang run for a layer of experts without a file for it and the device (get_default_config in
both), by the operands and the number of tokens.

A row is the parameters of a configuration in the order in which the frameworks write them: BLOCK_SIZE_M,
BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, num_warps, num_stages. Where a framework names neither warps nor
stages, they are Triton's defaults.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.grouping import SCALED_TYPES, scaled_blocks
from backends.problem import GemmProblem

#: Operands of 16 bits; 8-bit floats with scales of blocks, and of rows.
HALVES, BLOCK_SCALES, ROW_SCALES = KINDS = ("halves", "block scales", "row scales")
VLLM, SGLANG = FRAMEWORKS = ("vLLM", "SGLang")
Row = tuple[int, int, int, int, int, int]

#: vLLM's earlier releases, and SGLang but for scales of rows: for at most as many tokens as the device has
#: experts, and for more.
_FEW, _MANY = (16, 32, 64, 1), (64, 64, 32, 8)
_WARPS, _STAGES = 4, {"cuda": 3, "hip": 2}
#: The same with scales of blocks, for any number.
_OF_BLOCKS = (64, 128, 128, 32)
#: SGLang with scales of rows: warps and stages follow; AMD's stages are those above.
_SGLANG_FEW, _SGLANG_MANY = (64, 128, 128, 1, 4, 4), (128, 256, 128, 32, 8, 4)
#: vLLM's newer releases: rows by the most tokens of a call (None: any number), warps and stages. AMD's stages
#: are those above. 8-bit floats have steps of _FP8_STEP.
_NEWER: tuple[tuple[int | None, tuple[int, int, int, int, int]], ...] = (
    (32, (16, 64, 128, 4, 4)), (64, (32, 64, 128, 4, 3)), (96, (32, 128, 64, 4, 3)),
    (128, (64, 128, 64, 4, 3)), (512, (64, 128, 64, 8, 3)), (None, (128, 128, 64, 8, 3)),
)  # fmt: skip
_FP8_STEP = 128
#: Beyond so many tokens an expert they have bands of so many rows of tiles.
_BANDED, _NEWER_BAND = 128, 16
#: Newer releases with scales of blocks: the most tokens that have blocks of 16 rows, and no bands.
_SHORT_BLOCKS, _NO_BANDS = 64, 16
#: The most sums of a thread that may be held twice without spilling: as they are added up, and promoted.
MOST_PROMOTED = 64


def kind_of(problem: GemmProblem) -> str:
    """Which of KINDS a grouped product's operands are."""
    if problem.dtype_a not in SCALED_TYPES:
        return HALVES
    return BLOCK_SCALES if scaled_blocks(problem) else ROW_SCALES


def earlier(vendor: str, kind: str) -> tuple[Row, ...]:
    """vLLM's earlier releases: for at most as many tokens as the device has experts, and for more; one row
    where the tokens do not matter."""
    tiles = (_OF_BLOCKS,) if kind == BLOCK_SCALES else (_FEW, _MANY)
    return tuple((*tile, _WARPS, _stages(vendor)) for tile in tiles)


def newer(tokens: int, experts: int, vendor: str, kind: str) -> Row:
    """vLLM's newer releases."""
    if kind == BLOCK_SCALES:
        _, bn, bk, band = _OF_BLOCKS
        bm = 16 if tokens <= _SHORT_BLOCKS else _OF_BLOCKS[0]
        return bm, bn, bk, 1 if tokens <= _NO_BANDS else band, _WARPS, _stages(vendor)
    bm, bn, bk, warps, stages = next(row for most, row in _NEWER if most is None or tokens <= most)
    band = _NEWER_BAND if tokens // experts > _BANDED else 1
    step = _FP8_STEP if kind == ROW_SCALES else bk
    return bm, bn, step, band, warps, stages if vendor != "hip" else _stages(vendor)


def sglangs(vendor: str, kind: str) -> tuple[Row, ...]:
    """SGLang, like earlier()."""
    if kind != ROW_SCALES:
        return earlier(vendor, kind)
    return tuple(
        (*row[:5], row[5] if vendor != "hip" else _stages(vendor)) for row in (_SGLANG_FEW, _SGLANG_MANY)
    )


def untuned(framework: str, tokens: int, experts: int, vendor: str, kind: str) -> tuple[Row, ...]:
    """What one of FRAMEWORKS runs for so many tokens and experts on a device: its releases differ, and the
    first is of the release that is known longest."""
    if framework == SGLANG:
        return (_by_tokens(sglangs(vendor, kind), tokens, experts),)
    return _by_tokens(earlier(vendor, kind), tokens, experts), newer(tokens, experts, vendor, kind)


def promotion_spills(row: Row, arch: str, kind: str) -> bool:
    """Whether a configuration spills registers in our kernel for scales of rows, which promotes sums of
    Hopper's narrow accumulator, and does not in the frameworks', which keep them there: its time here says
    nothing of its time there."""
    bm, bn, _, _, warps, _ = row
    return kind == ROW_SCALES and arch == "sm_90" and bm * bn > MOST_PROMOTED * 32 * warps


def _by_tokens(rows: Sequence[Row], tokens: int, experts: int) -> Row:
    return rows[0] if tokens <= experts else rows[-1]


def _stages(vendor: str) -> int:
    return _STAGES.get(vendor, _STAGES["cuda"])
