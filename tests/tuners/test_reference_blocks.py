"""Scales of blocks in the reference: results computed a block at a time pass, and wrong scales do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.dtypes import DTYPES, to_host
from backends.problem import GemmProblem, from_blas, from_linear
from tuners.inputs import DISTRIBUTIONS, OWN_SCALARS, Case, cases
from tuners.reference import error_bound, make_reference
from tuners.verify import compare

Array = npt.NDArray[Any]
BLOCK = 128


def block_scaled(m: int, n: int, k: int, kind: str = "fp8_e4m3", **options: Any) -> GemmProblem:
    scales = {"scale_a": "block_1x128", "scale_b": "block_128x128"}
    return from_linear(m, n, k, kind, **{"dtype_d": "bf16", **scales, **options})


def by_blocks(p: GemmProblem, inputs: Mapping[str, Array], bits: int | None = None) -> Array:
    """x[M,K] times w[N,K] transposed as vLLM's kernel does it: each block of k in single precision, times its
    two scales, added to the total. `bits`: a block's sum is cut to so many bits after every 32 of k, as
    Hopper's tensor cores do."""
    x, w = inputs["b"][0].astype(np.float32), inputs["a"][0].astype(np.float32)
    scale_x, scale_w = inputs["scale_b"][0], inputs["scale_a"][0]
    rows = np.arange(w.shape[0]) // BLOCK
    total = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for block in range(-(-p.k // BLOCK)):
        part = np.zeros_like(total)
        for start in range(block * BLOCK, min(p.k, (block + 1) * BLOCK), 32):
            here = slice(start, min(p.k, (block + 1) * BLOCK, start + 32))
            part = part + x[:, here] @ w[:, here].T
            if bits is not None:
                fraction, exponent = np.frexp(part)
                part = np.ldexp(np.trunc(fraction * 2.0**bits) / 2.0**bits, exponent).astype(np.float32)
        total += part * scale_x[:, block, None] * scale_w[rows, block][None, :]
    return to_host(total, DTYPES[p.dtype_d])[None]


PROBLEMS = [
    block_scaled(1, 300, 257), block_scaled(40, 200, 1000, dtype_d="fp16"), block_scaled(17, 128, 128),
    block_scaled(30, 130, 4096, dtype_d="fp32"), block_scaled(33, 70, 300, "fp8_e4m3_fnuz"),
    block_scaled(1, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:4])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.slug)
@pytest.mark.parametrize("bits", [None, 14])
def test_what_a_kernel_computes_by_blocks_is_right(
    problem: GemmProblem, distribution: str, bits: int | None
) -> None:
    for seed in range(3):
        reference, inputs = make_reference(Case(problem, seed, distribution, "test"))
        finding = compare(reference, by_blocks(problem, inputs, bits))
        assert not finding.wrong, finding.wrong


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:4])
@pytest.mark.parametrize("name", ["scale_a", "scale_b"])
@pytest.mark.parametrize("axis", [1, 2])
def test_scales_of_another_block_are_caught(name: str, axis: int, distribution: str) -> None:
    problem = block_scaled(40, 300, 700)
    reference, inputs = make_reference(Case(problem, 0, distribution, "test"))
    assert not compare(reference, by_blocks(problem, inputs)).wrong
    for wrong in (np.ones_like(inputs[name]), np.roll(inputs[name], 1, axis)):
        result = by_blocks(problem, {**inputs, name: wrong})
        assert "elements are off" in compare(reference, result).wrong


def test_a_dropped_element_of_k_is_caught_in_small_integers() -> None:
    """Where sums of a block are exact, only rounding its product with the scales is allowed for."""
    problem = block_scaled(40, 300, 700, dtype_d="fp32")
    reference, inputs = make_reference(Case(problem, 0, "integers", "test"))
    x = inputs["b"].copy()
    x[..., 699] = 0
    assert "elements are off" in compare(reference, by_blocks(problem, {**inputs, "b": x})).wrong
    rough = error_bound(problem, "integers").rough
    assert 0 < rough == 4 * 2.0**-24 * 700**0.5 < error_bound(problem, "normal").rough / 10


def test_the_error_of_a_narrow_accumulator_does_not_grow_with_blocks() -> None:
    """A block of 128 is promoted to single precision whatever k is."""
    rough = [error_bound(block_scaled(8, 128, k), "normal").rough for k in (128, 2**14)]
    assert rough[1] - rough[0] < 4 * 2.0**-24 * 2**7


def test_columns_that_are_not_compared_are_projected_with_their_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tuners.reference.FULL_FLOPS", 1e4)
    problem = block_scaled(12, 3000, 300)
    reference, inputs = make_reference(Case(problem, 0, "normal", "test"))
    assert reference.columns is not None
    assert reference.projection is not None
    result = by_blocks(problem, inputs)
    assert not compare(reference, result).wrong
    hidden = int(np.setdiff1d(np.arange(3000), reference.columns)[50])
    result[0, 5, hidden] += 4 * np.abs(reference.expected).max()
    assert "random projection" in compare(reference, result).wrong


def test_ragged_twins_keep_the_blocks() -> None:
    for case in cases(block_scaled(300, 512, 1024), 1, 0):
        p = case.problem
        assert (p.scale_a, p.scale_b) == ("block_128x128", "block_1x128")
        if case.name in ("ragged", OWN_SCALARS):
            assert p.k % BLOCK > 0 < p.m % BLOCK, "blocks that are cut off"
            assert p.k > BLOCK < p.m, "and whole ones"


def test_either_side_takes_either_block() -> None:
    """Against scales that are spread over every element."""
    options: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128", "trans_a": "T"}
    problem = from_blas(140, 131, 300, "bf16", **options, dtype_d="fp32")
    reference, inputs = make_reference(Case(problem, 0, "normal", "test"))
    a, b = inputs["a"][0].astype(np.float64), inputs["b"][0].astype(np.float64)
    for i in range(140):
        for block in range(3):
            a[i, block * BLOCK : (block + 1) * BLOCK] *= inputs["scale_a"][0][i, block]
    for j in range(131):
        for block in range(3):
            b[j, block * BLOCK : (block + 1) * BLOCK] *= inputs["scale_b"][0][j // BLOCK, block]
    assert np.allclose(reference.expected[0], b @ a.T, rtol=1e-12, atol=1e-10)
