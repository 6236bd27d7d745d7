"""enable(): torch's operators run by rows, below autograd, and are torch's own again afterwards."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.client.torch.close import close
from tests.client.torch.conftest import K, N

if TYPE_CHECKING:
    from gemmtune import Table

DTYPES = [torch.float32, torch.bfloat16]


def _linear(dtype: Any) -> tuple[Any, Any]:
    return torch.randn(40, K, dtype=dtype), torch.randn(N, K, dtype=dtype).t()


def _calls(count: Any) -> tuple[int, int]:
    """Products by rows and by torch, but for those in fp64, which check the others."""
    lines = [line for line in count.report().lines if line.dtype != "fp64"]
    hits = sum(line.calls for line in lines if line.hit)
    return hits, sum(line.calls for line in lines) - hits


def _rows_apart(dtype: Any) -> tuple[Any, Any]:
    return torch.randn(40, K + 16, dtype=dtype)[:, :K], torch.randn(N, K, dtype=dtype).t()


#: Operands of products with rows.
OPERANDS: dict[str, Any] = {
    "linear": _linear,
    "plain": lambda dtype: (torch.randn(40, K, dtype=dtype), torch.randn(K, N, dtype=dtype)),
    "transposed": lambda dtype: (torch.randn(40, N, dtype=dtype).t(), torch.randn(40, K, dtype=dtype)),
    "rows apart": _rows_apart,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERANDS)
def test_mm_and_its_out_form(table: Table, name: str, dtype: Any) -> None:
    a, b = OPERANDS[name](dtype)
    out = torch.empty(a.shape[0], b.shape[1], dtype=dtype)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        assert close(torch.mm(a, b), a, b)
        assert torch.mm(a, b, out=out) is out
        assert close(a @ b, a, b)
    assert close(out, a, b)
    assert _calls(count) == (3, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_addmm_with_a_bias_and_with_a_matrix(table: Table, dtype: Any) -> None:
    a, b = _linear(dtype)
    bias, c, right = torch.randn(N, dtype=dtype), torch.randn(40, N, dtype=dtype), b.contiguous()
    out = torch.empty(40, N, dtype=dtype)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        assert close(torch.addmm(bias, a, b), a, b, bias)
        assert close(nn.functional.linear(a, b.t(), bias), a, b, bias)
        torch.addmm(bias, a, b, out=out)
        assert close(out, a, b, bias)
        assert close(torch.addmm(c, a, right), a, right, c)
        torch.addmm(c, a, right, out=out)
        assert close(out, a, right, c)
    assert _calls(count) == (5, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bmm_and_a_broadcast_operand(table: Table, dtype: Any) -> None:
    a, b = torch.randn(3, 8, K, dtype=dtype), torch.randn(3, K, 24, dtype=dtype)
    shared = torch.randn(K, 24, dtype=dtype).expand(3, K, 24)
    out = torch.empty(3, 8, 24, dtype=dtype)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        assert close(torch.bmm(a, b), a, b)
        torch.bmm(a, b, out=out)
        assert close(out, a, b)
        assert close(torch.bmm(a, shared), a, shared)
    assert _calls(count) == (3, 0)


def test_scalars_of_addmm_are_left_to_torch(table: Table) -> None:
    a, b = _linear(torch.float32)
    bias = torch.randn(N)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        assert close(torch.addmm(bias, a, b, beta=0.5), a, b, 0.5 * bias)
        assert close(torch.addmm(bias, a, b, alpha=2), 2 * a, b, bias)
        assert close(torch.addmm(bias, a, b, beta=0), a, b)
    assert count.report().hits == 0


def test_outputs_that_torch_refuses_are_refused(table: Table) -> None:
    a, b = torch.randn(40, K), torch.randn(K, N)
    with gemmtune.torch.enable(table):
        with pytest.raises(RuntimeError):
            torch.mm(a, b, out=torch.empty(40, N, dtype=torch.float64))
        with pytest.raises(RuntimeError):
            torch.mm(a, torch.randn(K + 1, N))
        with pytest.raises(RuntimeError):
            torch.mm(a, b.bfloat16())


def test_an_output_over_an_operand_is_left_to_torch(table: Table) -> None:
    flat, b = torch.randn(2 * 40 * N), torch.randn(K, N)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        torch.mm(flat[: 40 * K].view(40, K), b, out=flat[K : K + 40 * N].view(40, N))
    assert count.report().hits == 0


def test_backward_passes_through_it(table: Table) -> None:
    module, x = nn.Linear(K, N), torch.randn(40, K, requires_grad=True)
    parameters = [x, *module.parameters()]
    expected = torch.autograd.grad(module(x).square().sum(), parameters)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        found = torch.autograd.grad(module(x).square().sum(), parameters)
    assert count.report().hits == 3
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_disable_restores_torchs_kernels_without_a_word(table: Table) -> None:
    a, b = _linear(torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle = gemmtune.torch.enable(table)
    with pytest.raises(gemmtune.torch.ServingError, match="enabled already"):
        gemmtune.torch.enable(table)
    handle.disable()
    handle.disable()
    with gemmtune.torch.report() as count:
        torch.mm(a, b)
    assert count.report().lines == ()
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        torch.mm(a, b)
    assert count.report().hits == 1


def test_applied_modules_and_enabled_operators_count_once(table: Table) -> None:
    module = nn.Linear(K, N).requires_grad_(False)
    with gemmtune.torch.apply(module, table), gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        module(torch.randn(8, K))
        module(torch.randn(7, K))
    assert (count.report().hits, count.report().misses) == (1, 1)
    assert "1 call by rows, 1 by torch, about 0.010 ms saved" in str(count.report())


MATRICES = st.tuples(
    st.sampled_from([1, 3, 8, 40]), st.sampled_from([16, N]), st.sampled_from([1, K, 40]),
    st.booleans(), st.booleans(), st.sampled_from([0, 0, 16, 3]), st.sampled_from([0, 0, 1, 4]),
    st.sampled_from(DTYPES),
)  # fmt: skip


def test_any_operands_give_torchs_result(table: Table) -> None:
    @settings(max_examples=80, deadline=None)
    @given(MATRICES)
    def check(case: tuple[Any, ...]) -> None:
        m, n, k, transposed_a, transposed_b, padding, offset, dtype = case

        def matrix(rows: int, columns: int, transposed: bool) -> Any:
            if transposed:
                return matrix(columns, rows, False).t()
            flat = torch.randn(rows * (columns + padding) + offset).to(dtype)[offset:]
            return flat.view(rows, columns + padding)[:, :columns]

        a, b = matrix(m, k, transposed_a), matrix(k, n, transposed_b)
        assert close(torch.mm(a, b), a, b)

    with gemmtune.torch.enable(table):
        check()


def test_threads_call_overridden_operators(table: Table) -> None:
    from concurrent.futures import ThreadPoolExecutor

    a, b = _linear(torch.float32)
    with gemmtune.torch.enable(table), ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: torch.mm(a, b), range(20)))
    assert all(close(one, a, b) for one in results)
