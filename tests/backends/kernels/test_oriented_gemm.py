"""A problem as a kernel sees it: sides, alignment, slices of k, the batch's place in the grid."""

from __future__ import annotations

import pytest

from backends.kernels.family import KernelConfig
from backends.kernels.oriented_gemm import OrientedGemm
from backends.operands import Operands
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm

NONE = Operands(0, 0, 0, 0, 0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("problem", "aligned", "whole"),
    [
        (from_linear(1, 64, 64, "bf16"), (True, True), (True, True)),
        (from_linear(2, 64, 60, "bf16"), (False, False), (False, False)),
        (from_linear(2, 64, 60, "fp32"), (True, True), (True, True)),
        (from_linear(2, 64, 62, "bf16", lda=64, ldb=72), (True, True), (False, False)),
        (from_linear(1, 64, 60, "bf16", ldb=64), (True, True), (False, False)),
        (from_linear(2, 64, 64, "bf16", alignment=8), (False, False), (False, False)),
        (from_bmm(2, 8, 64, 64, "bf16", stride_b=64 * 64 + 4), (False, True), (False, True)),
        (from_mm(2, 64, 63, "bf16"), (True, False), (True, False)),
    ],
)
def test_what_starts_at_16_bytes_and_what_is_whole_loads(
    problem: GemmProblem, aligned: tuple[bool, bool], whole: tuple[bool, bool]
) -> None:
    product = OrientedGemm(problem)
    assert (product.aligned("a"), product.aligned("b")) == aligned
    assert (product.whole("a"), product.whole("b")) == whole
    swap_ab = OrientedGemm(problem, swap_ab=True)
    assert (swap_ab.aligned("b"), swap_ab.aligned("a")) == aligned


@pytest.mark.parametrize(("trans_a", "trans_b"), [("N", "N"), ("N", "T"), ("T", "N"), ("T", "T")])
def test_the_transposed_product_has_the_other_sides(trans_a: str, trans_b: str) -> None:
    problem = from_blas(5, 7, 9, "bf16", trans_a=trans_a, trans_b=trans_b)
    own, other = OrientedGemm(problem), OrientedGemm(problem, swap_ab=True)
    assert (own.m, own.n, other.m, other.n) == (5, 7, 7, 5)
    assert (own.a_along_k, own.b_along_k) == (trans_a == "T", trans_b == "N")
    assert (other.a_along_k, other.b_along_k) == (own.b_along_k, own.a_along_k)


def test_one_column_without_gaps_is_along_k_whatever_its_name() -> None:
    assert OrientedGemm(from_blas(5, 1, 9, trans_b="T", ldb=1)).b_along_k
    assert not OrientedGemm(from_blas(5, 1, 9, trans_b="T", ldb=2)).b_along_k
    assert not OrientedGemm(from_blas(5, 2, 9, trans_b="T")).b_along_k


@pytest.mark.parametrize(
    ("k", "splits", "step", "slice_k"),
    [(100, 1, 8, 104), (100, 3, 8, 40), (100, 16, 32, 32), (1, 4, 1, 1), (2**31 - 1, 1, 8, 2**31)],
)
def test_slices_are_whole_steps_and_cover_k(k: int, splits: int, step: int, slice_k: int) -> None:
    args = OrientedGemm(from_linear(1, 4, k)).arguments(NONE, 0, splits, step)
    assert (args.slice, args.splits) == (slice_k, splits)
    assert args.slice % step == 0
    assert args.slice * splits >= k


def test_a_large_batch_takes_both_of_the_grids_sides() -> None:
    product = OrientedGemm(from_bmm(200_000, 3, 4, 5))
    found = KernelConfig(product, "naive.h", "Naive", 32, 0, 1, splits=2)
    assert found.grid == (1, 8, 65535)
    assert found.reduce_grid == (-(-200_000 * 12 // 256), 1, 1)
    assert product.partial_bytes(2) == 2 * 200_000 * 12 * 4
