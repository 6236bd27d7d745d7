"""Operands as the copy engine's tensors."""

from __future__ import annotations

import ctypes

import pytest

from backends.kernels.oriented_gemm import GemmArgs, OrientedGemm
from backends.kernels.tensor_map import MAP_ALIGNMENT, argument_type, encoded, map_of
from backends.problem import GemmProblem, from_bmm, from_linear


@pytest.mark.parametrize(
    ("problem", "swap_ab", "operand", "found"),
    [
        (from_linear(40, 96, 200, "bf16"), False, "a", ("a", (200, 96, 1), (400, 16))),
        (from_linear(40, 96, 200, "bf16", lda=208), False, "b", ("b", (200, 40, 1), (416, 16))),
        (from_linear(40, 96, 200, "fp16"), True, "a", ("b", (200, 40, 1), (400, 16))),
        # Of one line the step to the next is nobody's.
        (from_linear(1, 96, 37, "bf16", lda=40), False, "b", ("b", (37, 1, 1), (16, 16))),
        (from_bmm(3, 8, 16, 32, "bf16", trans_b="T"), False, "a", ("a", (32, 16, 3), (64, 1024))),
    ],
)
def test_a_map_is_the_operand_by_lines(
    problem: GemmProblem, swap_ab: bool, operand: str, found: tuple[str, tuple[int, ...], tuple[int, ...]]
) -> None:
    one = map_of(OrientedGemm(problem, swap_ab), operand, 24)
    assert (one.operand, one.sizes, one.strides) == found
    assert (one.dtype, one.box) == (problem.dtype_a, (64, 24, 1))


def test_the_argument_ends_in_its_maps() -> None:
    product = GemmArgs(m=3, n=4, k=5)
    maps = [bytes([number]) * 128 for number in (1, 2)]
    whole = bytes(encoded(product, maps))
    kind = argument_type(2)
    assert kind.maps.offset % MAP_ALIGNMENT == 0
    assert whole[: ctypes.sizeof(GemmArgs)] == bytes(product)
    assert whole[kind.maps.offset :] == b"".join(maps)
    assert encoded(product, []) is product
    assert argument_type(0) is GemmArgs
