"""Where operands lie, against addresses counted one by one."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.dtypes import COMPLEX, DTYPES
from backends.operands import NAMES, Layout, as_product, layouts, operand_bytes
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from tests.backends.test_problem import problems

Element = Callable[[int, int, int], int]
#: Elements of k, and rows, that share a block's scale.
BLOCK = 128
#: (Of MXFP4 a view has bytes, of two elements each: test_mx_product.py.)
SMALL = problems(largest=5).filter(lambda p: not p.mx_product)


def elements(p: GemmProblem) -> dict[str, Element]:
    """The offset of (batch, row, column) of op(A), op(B), C and D as BLAS states it."""

    def matrix(trans: str, ld: int, stride: int) -> Element:
        if trans == "N":
            return lambda t, i, j: t * stride + i + j * ld
        return lambda t, i, j: t * stride + j + i * ld

    return {
        "a": matrix(p.trans_a, p.lda, p.stride_a),
        "b": matrix(p.trans_b, p.ldb, p.stride_b),
        "c": matrix("N", p.ldc, p.stride_c),
        "d": matrix("N", p.ldd, p.stride_d),
    }


def shape(p: GemmProblem, name: str) -> tuple[int, int]:
    """(rows, columns) of op(A), op(B), C or D."""
    return {"a": (p.m, p.k), "b": (p.k, p.n), "c": (p.m, p.n), "d": (p.m, p.n)}[name]


def values(p: GemmProblem, name: str) -> int | None:
    """How many values a bias or a scale has, None for a matrix."""
    if name == "bias":
        return p.m if p.bias_axis == "m" else p.n
    if not name.startswith("scale_"):
        return None
    whole = {"scale_a": p.m, "scale_b": p.n, "scale_d": 1}[name]
    blocks = -(-whole // BLOCK), -(-p.k // BLOCK)
    sizes = {"tensor": 1, "outer": whole, "block_1x128": whole * blocks[1], "block_128x128": prod(blocks)}
    sizes |= {f"block_1x{deep}": whole * -(-p.k // deep) for deep in (32, 64)}
    return sizes[getattr(p, name)]


def stride(p: GemmProblem, name: str) -> int:
    return int(getattr(p, f"stride_{name}"))


def touched(p: GemmProblem, name: str) -> set[int]:
    rows, columns = shape(p, name)
    at = elements(p)[name]
    return {at(t, i, j) for t in range(p.batch) for i in range(rows) for j in range(columns)}


# ---- layouts -----------------------------------------------------------------------------------


def test_scales_of_blocks_are_stored_as_vllm_stores_them() -> None:
    """x[M, K] has scales [M, K/128] and w[N, K] has [N/128, K/128], both row-major with whole rows of k."""
    found = layouts(
        from_linear(5, 300, 260, "fp8_e4m3", scale_a="block_1x128", scale_b="block_128x128", dtype_d="bf16")
    )
    kind = DTYPES["fp32"]
    assert found["scale_b"] == Layout(3, 5, 3, 0, 1, kind), "the activation is BLAS's B"
    assert found["scale_a"] == Layout(3, 3, 3, 0, 1, kind), "the weight is BLAS's A"
    assert "scale_a" not in layouts(from_linear(5, 300, 260, "fp8_e4m3", scale_b="block_32"))


@given(SMALL)
def test_a_problem_has_the_operands_it_needs(p: GemmProblem) -> None:
    found = layouts(p)
    assert ("c" in found) is (p.beta != "zero")
    assert ("bias" in found) is (p.bias is not None)
    for name in ("scale_a", "scale_b", "scale_d"):
        assert (name in found) is (getattr(p, name) not in ("none", "block_32"))
    assert {"a", "b", "d"} <= set(found) <= set(NAMES)


def test_layouts_are_made_once_and_nobody_changes_them() -> None:
    p = from_bmm(2, 3, 4, 5)
    assert layouts(p) is layouts(from_bmm(2, 3, 4, 5))
    with pytest.raises(TypeError):
        layouts(p)["a"] = layouts(p)["b"]  # type: ignore[index]


@given(SMALL)
def test_a_view_shows_each_element_at_its_address(p: GemmProblem) -> None:
    for name, layout in layouts(p).items():
        view = layout.view(np.arange(layout.elements))
        assert view.shape == (layout.copies, layout.columns, layout.rows)
        count = values(p, name)
        if count is not None:
            assert view.reshape(-1).tolist() == list(range(count))
            continue
        assert layout.copies == (p.batch if stride(p, name) else 1)
        rows, columns = shape(p, name)
        turned = name in "ab" and getattr(p, f"trans_{name}") != "N"
        at = elements(p)[name]
        for t in range(layout.copies):
            for i in range(rows):
                for j in range(columns):
                    assert view[(t, i, j) if turned else (t, j, i)] == at(t, i, j)


@given(SMALL)
def test_sizes_end_at_the_last_element(p: GemmProblem) -> None:
    total = 0
    for name, layout in layouts(p).items():
        count = values(p, name)
        last = count - 1 if count is not None else max(touched(p, name))
        assert layout.elements == last + 1
        field = "scale_dtype" if name.startswith("scale_") else "bias" if name == "bias" else f"dtype_{name}"
        kind = getattr(p, field)
        assert layout.dtype is DTYPES[kind]
        assert layout.bytes == (last + 1) * DTYPES[kind].storage.itemsize
        total += layout.bytes
    assert operand_bytes(p) == total


@given(SMALL, st.integers(0, 7))
def test_writes_hit_the_elements_and_nothing_else(p: GemmProblem, spare: int) -> None:
    for name, layout in layouts(p).items():
        flat = np.zeros(layout.elements + spare, np.int8)
        layout.view(flat)[...] = 1
        count = values(p, name)
        expected = touched(p, name) if count is None else set(range(count))
        assert set(np.flatnonzero(flat).tolist()) == expected


def test_a_view_needs_enough_storage() -> None:
    layout = Layout(3, 4, 5, 100, 2, DTYPES["fp32"])
    assert layout.elements == 100 + 3 * 5 + 3
    with pytest.raises(ValueError, match="117 elements of storage, 118 needed"):
        layout.view(np.zeros(117, np.float32))
    assert layout.view(np.zeros(118, np.float32)).shape == (2, 4, 3)


@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3", "fp64", "complex64"])
def test_views_step_in_elements_of_any_size(name: str) -> None:
    layout = Layout(2, 3, 4, 20, 2, DTYPES[name])
    flat = np.zeros(layout.elements, layout.dtype.storage)
    layout.view(flat)[1, 2, 1] = 3
    assert np.flatnonzero(flat.astype(np.complex128)).tolist() == [20 + 2 * 4 + 1]


def test_interleaved_heads_share_their_rows() -> None:
    p = from_bmm(2, 3, 4, 5, ldd=8, stride_d=4)
    layout = layouts(p)["d"]
    assert layout.elements == 3 * 8
    flat = np.full(layout.elements, -1)
    layout.view(flat)[0], layout.view(flat)[1] = 0, 1
    assert flat.reshape(3, 2, 4)[:, 0].tolist() == [[0] * 4] * 3
    assert flat.reshape(3, 2, 4)[:, 1].tolist() == [[1] * 4] * 3


def test_a_broadcast_operand_is_stored_once() -> None:
    p = from_bmm(7, 3, 4, 5, "bf16", stride_b=0)
    assert layouts(p)["a"].elements == 4 * 5
    assert layouts(p)["a"].copies == 1
    assert layouts(p)["b"].elements == 7 * 3 * 5
    assert operand_bytes(p) == 2 * (20 + 105 + 7 * 12)


# ---- the product -------------------------------------------------------------------------------


def naive(p: GemmProblem, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> dict[int, complex]:
    """D's offset -> value of op(A) op(B), one multiplication at a time."""
    at = elements(p)

    def read(flat: npt.NDArray[Any], name: str, t: int, i: int, j: int) -> complex:
        value = complex(flat[at[name](t, i, j)])
        return value.conjugate() if getattr(p, f"trans_{name}") == "C" else value

    return {
        at["d"](t, i, j): sum((read(a, "a", t, i, x) * read(b, "b", t, x, j) for x in range(p.k)), start=0j)
        for t in range(p.batch)
        for i in range(p.m)
        for j in range(p.n)
    }


def filled(layout: Layout, imaginary: bool, seed: int) -> npt.NDArray[Any]:
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, layout.elements).astype(np.float64)
    return values + 1j * rng.integers(-9, 10, layout.elements) if imaginary else values


@given(SMALL, st.integers(0, 2**32))
def test_the_matmul_of_as_product_is_the_product(p: GemmProblem, seed: int) -> None:
    found = layouts(p)
    imaginary = DTYPES[p.dtype_a].kind == COMPLEX
    a, b = filled(found["a"], imaginary, seed), filled(found["b"], imaginary, seed + 1)
    left, right = as_product(p, found["a"].view(a), found["b"].view(b))
    assert left.shape[1:] == (p.n, p.k)
    assert right.shape[1:] == (p.k, p.m)
    d = np.full(found["d"].elements, 12345.0 + 0j)
    found["d"].view(d)[...] = left @ right
    expected = naive(p, a, b)
    assert {at: d[at] for at in expected} == expected
    padding = set(range(d.size)) - set(expected)
    assert all(d[at] == 12345.0 for at in padding)


@given(SMALL)
def test_real_products_copy_nothing(p: GemmProblem) -> None:
    found = layouts(p)
    a, b = filled(found["a"], False, 1), filled(found["b"], False, 2)
    left, right = as_product(p, found["a"].view(a), found["b"].view(b))
    if "C" not in (p.trans_a, p.trans_b):
        assert np.shares_memory(right, a)
        assert np.shares_memory(left, b)


@pytest.mark.parametrize(("trans_a", "trans_b"), [("C", "N"), ("N", "C"), ("T", "C"), ("C", "C")])
def test_conjugation_is_of_the_side_that_asks(trans_a: str, trans_b: str) -> None:
    p = from_blas(1, 1, 1, "complex64", trans_a=trans_a, trans_b=trans_b)
    left, right = as_product(p, np.full((1, 1, 1), 2 + 3j), np.full((1, 1, 1), 5 + 7j))
    assert right.item() == (2 - 3j if trans_a == "C" else 2 + 3j)
    assert left.item() == (5 - 7j if trans_b == "C" else 5 + 7j)
