"""What the kernels compute, through Triton's interpreter, verified as a tuner verifies: ragged twins, padded
leading dimensions, guard bands, alpha and beta beyond one."""

from __future__ import annotations

from typing import Any

import pytest

from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.toolchains.triton import missing
from tests.backends.kernels.triton.asking import Asked, Mistake, line
from tests.backends.kernels.triton.framework_samples import (
    BLOCKS,
    INDUCTOR,
    MOE,
    block_scaled,
    grouped,
    scaled_grouped,
)

pytestmark = [pytest.mark.torch, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

SPLIT, LOOP = {"split_k": 3}, {"programs_per_unit": 1, "flatten": True, "loads": "pointer"}
TMA = {**LOOP, "loads": "tma"}

#: A problem, and what of the tile is another; the family follows from the parameters.
CASES: dict[str, tuple[GemmProblem, dict[str, Any]]] = {
    "bf16": (from_linear(70, 130, 100, "bf16"), {}),
    "even sizes": (from_linear(64, 128, 96, "bf16"), {}),
    "swapped, fused": (
        from_linear(64, 128, 96, "fp16", bias="fp16", activation="gelu", beta=1.0), {"swap": True},
    ),
    "NN": (from_blas(70, 90, 50, "fp16"), {}),
    "NT": (from_blas(70, 90, 50, "fp16", trans_b="T", activation="relu"), {"swap": True}),
    "TT": (from_blas(70, 90, 50, "fp16", trans_a="T", trans_b="T", bias="fp32", bias_axis="n"), {}),
    "tf32 in slices": (
        from_mm(70, 130, 100, "tf32", bias="fp32", bias_axis="m", activation="silu", alpha=2.0, beta=1.0),
        SPLIT,
    ),
    "more slices than steps": (from_linear(40, 50, 60, "fp16"), {"split_k": 8, "swap": True}),
    "a batch, persistent": (from_bmm(3, 70, 70, 100, "fp16", trans_a="T", activation="relu"), LOOP),
    "a broadcast weight in slices": (from_bmm(3, 40, 70, 100, "bf16", stride_b=0, beta=-1.0), SPLIT),
    "int8": (from_bmm(3, 40, 70, 100, "int8", beta=2.0, alpha=2.0), {}),
    "int8 in slices": (from_linear(40, 70, 100, "int8", bias="int32", activation="relu"), SPLIT),
    "int8 to bf16": (from_linear(40, 70, 100, "int8", dtype_d="bf16"), LOOP),
    "int8, scales of rows": (
        from_linear(
            40, 70, 128, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer", bias="bf16",
            activation="silu",
        ),
        {},
    ),
    "int8, scales of tensors, in slices": (
        from_linear(40, 70, 128, "int8", dtype_d="fp16", scale_a="tensor", scale_b="tensor", beta=1.0),
        {**SPLIT, "swap": True},
    ),
    "int8, a scale of rows, persistent": (
        from_bmm(3, 40, 70, 100, "int8", dtype_d="fp32", scale_a="outer", alpha=1.5), {**LOOP, "swap": True},
    ),
    "int8, scales of rows and of D": (
        from_linear(
            40, 70, 128, "int8", dtype_d="fp32", scale_a="tensor", scale_b="outer", scale_d="tensor",
            beta=2.0,
        ),
        {"swap": True},
    ),
    "FNUZ, scales of rows": (
        from_linear(
            40, 70, 128, "fp8_e4m3_fnuz", dtype_d="bf16", scale_a="outer", scale_b="outer", bias="bf16",
        ),
        {},
    ),
    "FNUZ, both formats, in slices": (
        from_linear(
            40, 70, 128, "fp8_e4m3_fnuz", dtype_b="fp8_e5m2_fnuz", dtype_d="fp16", scale_a="outer",
            scale_b="tensor",
        ),
        {**SPLIT, "swap": True},
    ),
    "FNUZ, persistent": (from_linear(40, 70, 128, "fp8_e5m2_fnuz", dtype_d="fp32", scale_b="outer"), LOOP),
    "fp8, scales of rows": (
        from_linear(
            40, 70, 128, "fp8_e4m3", dtype_b="fp8_e5m2", scale_a="outer", scale_b="outer", bias="bf16"
        ),
        {},
    ),
    "fp8, scales of tensors": (
        from_linear(
            40, 70, 128, "fp8_e4m3", dtype_d="fp8_e4m3", scale_a="tensor", scale_b="tensor", scale_d="tensor"
        ),
        {"swap": True},
    ),
    "fp8, scales of rows, in slices, swapped": (
        from_linear(40, 70, 128, "fp8_e5m2", scale_a="outer", scale_b="tensor"), {**SPLIT, "swap": True},
    ),
    "by descriptors": (from_linear(70, 130, 104, "bf16", bias="bf16", activation="relu"), TMA),
    "by descriptors, NT": (from_blas(72, 88, 50, "fp16", trans_b="T", beta=1.0), {**TMA, "swap": True}),
    "by descriptors, TT": (from_blas(72, 88, 56, "fp16", trans_a="T", trans_b="T"), TMA),
    "by descriptors, int8": (from_linear(40, 70, 112, "int8"), TMA),
    **{
        f"blocks of scales to {out}": (block_scaled(70, 150, 300, dtype_d=out), BLOCKS)
        for out in ("bf16", "fp16", "fp32")
    },
    "blocks of scales, one row": (block_scaled(1, 300, 257), {**BLOCKS, "BLOCK_SIZE_M": 16}),
    "blocks of scales, several steps each": (
        block_scaled(40, 200, 256), {**BLOCKS, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1},
    ),
    "blocks of scales, a tile across two": (
        block_scaled(33, 300, 200, alignment=1), {**BLOCKS, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_M": 16},
    ),
    "blocks of scales, FNUZ": (
        block_scaled(70, 150, 300, "fp8_e4m3_fnuz"), {**BLOCKS, "waves_per_eu": 2, "kpack": 2},
    ),
    "Inductor's, ragged": (from_linear(70, 130, 100, "bf16"), INDUCTOR),
    "Inductor's, whole steps": (from_linear(64, 130, 96, "fp16"), INDUCTOR),
    "Inductor's, NN": (from_mm(70, 90, 50, "fp16"), INDUCTOR),
    "Inductor's, TN": (from_mm(70, 90, 50, "bf16", trans_a="T"), {**INDUCTOR, "GROUP_M": 1}),
    "Inductor's, TT": (from_mm(70, 90, 50, "fp16", trans_a="T", trans_b="T", alignment=2), INDUCTOR),
    "Inductor's, one row": (from_linear(1, 130, 100, "bf16"), {**INDUCTOR, "BLOCK_M": 16}),
    "groups": (grouped(70, 90, 100, 5, routing="skewed"), MOE),
    "groups, empty ones": (grouped(53, 64, 64, 6, "fp16", routing=[0, 20, 0, 1, 32, 0]), MOE),
    "one row of 33 groups": (grouped(1, 40, 50, 33), {**MOE, "GROUP_SIZE_M": 8}),
    "one group": (grouped(40, 33, 70, 1, alignment=2), {**MOE, "BLOCK_SIZE_M": 32}),
    **{
        f"groups, scales of blocks to {out}": (
            scaled_grouped(53, 150, 300, 6, routing=[0, 20, 0, 1, 32, 0], dtype_d=out), MOE,
        )
        for out in ("bf16", "fp16", "fp32")
    },
    "groups, scales of blocks, whole steps": (
        scaled_grouped(70, 150, 256, 3, routing="skewed"),
        {**MOE, "BLOCK_SIZE_K": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_M": 32},
    ),
    "groups, scales of blocks, FNUZ": (
        scaled_grouped(40, 130, 200, 5, "fp8_e4m3_fnuz"), {**MOE, "waves_per_eu": 2, "kpack": 2},
    ),
    **{
        f"groups, scales of rows to {out}": (
            scaled_grouped(53, 70, 100, 6, of_rows=True, routing=[0, 20, 0, 1, 32, 0], dtype_d=out), MOE,
        )
        for out in ("bf16", "fp16", "fp32")
    },
    "groups, scales of rows, FNUZ": (
        scaled_grouped(40, 70, 200, 5, "fp8_e4m3_fnuz", of_rows=True), {**MOE, "BLOCK_SIZE_K": 256},
    ),
    "one row of 33 scaled groups": (
        scaled_grouped(1, 140, 130, 33, alignment=1), {**MOE, "GROUP_SIZE_M": 8, "BLOCK_SIZE_K": 64},
    ),
    "one of each": (from_linear(1, 1, 1, "bf16"), {}),
    "one row": (from_linear(1, 130, 100, "bf16", alignment=2), {"split_k": 2, "swap": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_right(name: str, interpreter: Asked) -> None:
    problem, changed = CASES[name]
    answer = interpreter(line(problem, changed))
    assert answer["wrong"] == ""
    assert "exact" in answer["cases"]
    assert any(case.startswith("ragged") for case in answer["cases"]) or name == "one of each"


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("bf16", ("product", "left = K - first_k", "left = K + 1 - first_k")),
        ("swapped, fused", ("finish", "x = x * alpha", "x = x")),
        ("tf32 in slices", ("reduce", "range(slices)", "range(slices - 2)")),
        ("bf16", ("finish", "= rm < M, rn < N", "= rm < M, rn < N + 1")),
        ("a batch, persistent", ("persistent", "index = (number // tiles)", "index = (number // tiles * 0)")),
        ("by descriptors", ("descriptor", "step * BLOCK_K])", "step * BLOCK_N])")),
        ("fp8, scales of rows", ("finish", "scale_b + rn", "scale_b + rn * 0")),
        ("int8, scales of rows", ("finish", "scale_a + rm", "scale_a + rm * 0")),
        ("blocks of scales to bf16", ("block_scaled", "from_n // SCALED_N * blocks", "from_n * 0")),
        ("blocks of scales to bf16", ("block_scaled", "scale_a + from_m * blocks", "scale_a")),
        ("blocks of scales to fp16", ("block_scaled", "step * BLOCK_K // SCALED_K", "step * 0")),
        ("blocks of scales, one row", ("block_scaled", "left = K -", "left = K + 1 -")),
        ("blocks of scales to fp32", ("block_scaled", "(rn < N)[None", "(rn < N + 1)[None")),
        ("Inductor's, ragged", ("inductor_mm", "left = K -", "left = K + 1 -")),
        ("Inductor's, TN", ("inductor_mm", "at_k[None, :] * STRIDE_AK", "at_k[None, :]")),
        ("Inductor's, NN", ("banded_tile", "index % height", "index % height * 0")),
        ("groups", ("fused_moe", "left = K -", "left = K + 1 -")),
        ("groups", ("fused_moe", "(rn < N)[None", "(rn < N + 1)[None")),
        ("groups", ("rows_of_block", "block - earlier", "block - block")),
        ("groups, empty ones", ("rows_of_block", "up_to <= block", "up_to < block")),
        ("one row of 33 groups", ("fused_moe", "group.to(tl.int64) * stride_b", "0")),
        (
            "groups, scales of blocks to bf16",
            ("fused_moe_scaled", "scale_a + rm * blocks", "scale_a + rm * 0"),
        ),
        (
            "groups, scales of blocks to bf16",
            ("fused_moe_scaled", "group.to(tl.int64) * tl.cdiv(N, SCALED_N)", "0"),
        ),
        ("groups, scales of blocks to fp16", ("fused_moe_scaled", "step * BLOCK_K // SCALED_K", "step * 0")),
        ("groups, scales of blocks to fp32", ("fused_moe_scaled", "from_n // SCALED_N", "from_n * 0")),
        ("groups, scales of blocks to fp32", ("fused_moe_scaled", "left = K -", "left = K + 1 -")),
        ("groups, scales of rows to bf16", ("fused_moe_scaled", "scale_a + rm,", "scale_a + rm * 0,")),
        ("groups, scales of rows to bf16", ("fused_moe_scaled", "group.to(tl.int64) * N", "0")),
        ("groups, scales of rows to fp32", ("fused_moe_scaled", "(rn < N)[None", "(rn < N + 1)[None")),
    ],
)
def test_a_mistake_shows(name: str, mistake: Mistake, interpreter: Asked) -> None:
    """The verification sees what it must see: sources with a mistake planted."""
    wrong = interpreter(line(*CASES[name], mistake))["wrong"]
    assert "off" in wrong or "outside" in wrong or "changed" in wrong, wrong


@pytest.mark.parametrize(
    "ends",
    [
        [20, 40, 40, 60], [0, 0, 0, 0], [0, 0, 0, 60], [60, 60, 60, 60], [20, 40, 40, 50],
        [20, 400, 50, 2**31 - 1], [-5, 20, 20, 61], [-(2**31), 16, 17, 33], [60, 30, 60, 60],
    ],
)  # fmt: skip
def test_ends_that_only_the_device_knows(ends: list[int], interpreter: Asked) -> None:
    """Whatever the ends are, rows before an end that is within the rows are of its group, and no row beyond
    the last end is written."""
    every = grouped(60, 40, 36, 4), scaled_grouped(60, 40, 36, 4), scaled_grouped(60, 40, 36, 4, of_rows=True)
    for problem in every:
        assert interpreter(line(problem, MOE, ends=ends))["wrong"] == ""


def test_a_row_beyond_the_last_end_shows(interpreter: Asked) -> None:
    """Written rows that no group has are seen. (The interpreter computes on copies of the operands' size, so
    writes beyond them cannot be.)"""
    for kernel, problem in (
        ("fused_moe", grouped(60, 40, 36, 4)), ("fused_moe_scaled", scaled_grouped(60, 40, 36, 4)),
    ):  # fmt: skip
        mistake = kernel, "rows = rm < end", "rows = rm < M"
        wrong = interpreter(line(problem, MOE, mistake, [20, 40, 40, 50]))["wrong"]
        assert wrong == "rows [50, 51, 52, 53, 54, 55] are off"
