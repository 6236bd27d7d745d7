"""The operators that compiled graphs and autograd see, and fp8 products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch

from backends.wire import problem_from_wire
from tests.client.torch.conftest import K, N

if TYPE_CHECKING:
    from gemmtune import Table


def _operands(name: str) -> tuple[Any, ...]:
    x, w, bias = torch.randn(8, K), torch.randn(N, K), torch.randn(N)
    given = {"linear": (x, w, bias), "mm": (x, w.t()), "addmm": (bias, x, w.t())}[name]
    return tuple(one.requires_grad_() for one in given)


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("name", ["linear", "mm", "addmm"])
def test_operators_keep_torchs_rules(table: Table, name: str, used: bool) -> None:
    operator = getattr(torch.ops.gemmtune, name).default
    if not used:
        torch.library.opcheck(operator, _operands(name))
        return
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        torch.library.opcheck(operator, _operands(name))
    assert count.report().hits > 0


def test_scaled_products_without_rows_are_torchs(table: Table) -> None:
    a = torch.randn(16, K).to(torch.float8_e4m3fn)
    b = torch.randn(N, K).to(torch.float8_e4m3fn).t()
    one = torch.tensor(1.0)
    call: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
    expected = torch._scaled_mm(a, b, **call)
    with gemmtune.torch.enable(table), gemmtune.torch.record("cpu") as recording:
        assert torch.equal(torch._scaled_mm(a, b, **call), expected)
        out = torch.empty_like(expected)
        torch._scaled_mm(a, b, **call, out=out)
        assert torch.equal(out, expected)
    (problem,) = recording.problems()
    assert problem.pop("count") == 2
    canonical = problem_from_wire(problem)
    assert (canonical.dtype_a, canonical.dtype_d, canonical.scale_a) == ("fp8_e4m3", "bf16", "tensor")
    assert (canonical.m, canonical.n, canonical.trans_a) == (N, 16, "T")
