"""gemmtune.torch.grouped_mm: by rows of emulated kernels, by torch, compiled, differentiated, and what it
refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import (
    GroupError,
    grouped_mm,
    grouped_mm_w4a16,
    quantize_experts,
    scaled_grouped_mm,
)
from gemmtune.torch.grouped.products import GroupedProduct, make, of_call, of_row
from gemmtune.torch.served import current
from torch._dynamo.backends.debugging import aot_eager

from backends.problem import GemmProblem, from_linear
from tests.client.torch.grouped.samples import exact_products, random_operands, tally

if TYPE_CHECKING:
    from gemmtune import Table

E, N, K = 4, 40, 64


def problems() -> Iterator[tuple[GemmProblem, str]]:
    """What the table has rows for, and the family of each."""
    yield from_linear(6, N, K, "bf16", groups=E), "grouped-ring"
    yield from_linear(6, N, K, "bf16", groups=E, routing="skewed"), "grouped-ring"
    yield from_linear(40, N, K, "bf16", groups=E, routing=[40, 0, 0, 0]), "grouped-tile"
    yield from_linear(6, N, K, "fp16", groups=E, routing="skewed"), "grouped-ring"
    yield from_linear(6, N, K, "bf16", groups=E, ldb=K + 8), "grouped-ring"


def operands(counts: list[int], dtype: Any = torch.bfloat16) -> tuple[Any, Any, Any]:
    return random_operands(counts, N, K, dtype)


def right(out: Any, x: Any, w: Any, counts: list[int]) -> bool:
    return bool(torch.allclose(out.double(), exact_products(x, w, counts), rtol=0.02, atol=0.05))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("counts", [[6, 0, 0, 0], [1, 2, 0, 3], [0, 0, 0, 6]])
def test_any_counts_run_by_the_row(table: Table, counts: list[int], dtype: Any) -> None:
    x, w, offs = operands(counts, dtype)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = grouped_mm(x, w, offs)
    assert tally(count) == (1, 0), count.report()
    assert (out.shape, out.dtype) == ((6, N), dtype)
    assert right(out, x, w, counts)


#: Ends of six rows that are wrong, and where: what is said of them.
WRONG = {
    "offs[0] is -1; .* before it, 0, and at most x's rows, 6": [-1, 3, 3, 6],
    "offs[3] is 7; .* before it, 3, and at most x's rows, 6": [1, 3, 3, 7],
    "offs[1] is 1; .* before it, 3, and at most x's rows, 6": [3, 1, 3, 6],
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_ends_on_the_host_are_refused(table: Table, said: str) -> None:
    x, w, _ = operands([1, 2, 0, 3])
    offs = torch.tensor(WRONG[said], dtype=torch.int32)
    pattern = said.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(GroupError, match=pattern):
        grouped_mm(x, w, offs)
    with gemmtune.torch.enable(table), pytest.raises(GroupError, match=pattern):
        grouped_mm(x, w, offs)
    kind = torch.float8_e4m3fn
    with pytest.raises(GroupError, match=pattern):
        scaled_grouped_mm(x.to(kind), w.to(kind), torch.ones(6), torch.ones(E, N), offs)
    weights = quantize_experts(w, group_size=32)
    with pytest.raises(GroupError, match=pattern):
        grouped_mm_w4a16(x, weights.data, weights.scales, offs, weights.zeros)


def by_torchs_name(x: Any, w: Any, ends: list[int]) -> Any:
    """torch's own call, which leaves open what wrong ends mean, served by the table in use."""
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=torch.tensor(ends, dtype=torch.int32))


def test_wrong_ends_are_counted_while_a_report_watches(table: Table) -> None:
    x, w, offs = operands([1, 2, 0, 3])
    with gemmtune.torch.enable(table):
        with gemmtune.torch.report() as count:
            grouped_mm(x, w, offs)
            assert count.report().wrong_ends == 0
            assert "wrong" not in str(count.report())
            for number, wrong in enumerate(WRONG.values(), 1):
                by_torchs_name(x, w, wrong)
                assert count.report().wrong_ends == number
        assert count.report().hits == 4
        assert "3 ends of groups were wrong" in str(count.report())
        by_torchs_name(x, w, [1, 3, 3, 7])  # nobody watches
        with gemmtune.torch.report() as another:
            grouped_mm(x, w, offs)
        assert (another.report().wrong_ends, count.report().wrong_ends) == (0, 3)


def test_groups_of_ends_that_go_back_begin_at_the_last_end_so_far(table: Table) -> None:
    x, w, _ = operands([3, 0, 1, 2])
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        assert right(by_torchs_name(x, w, [3, 1, 4, 6]), x, w, [3, 0, 1, 2])
    assert (count.report().hits, count.report().wrong_ends) == (1, 1)


def test_wrong_ends_are_counted_in_and_outside_of_inference_mode(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmtune.torch.grouped.ends._COUNTS", {})
    x, w, _ = operands([1, 2, 0, 3])
    with gemmtune.torch.enable(table):
        with torch.inference_mode(), gemmtune.torch.report() as count:
            by_torchs_name(x, w, [1, 3, 3, 7])
            assert count.report().wrong_ends == 1
        with gemmtune.torch.report() as count:
            by_torchs_name(x, w, [1, 3, 3, 7])
            assert count.report().wrong_ends == 1


def test_ends_beyond_the_rows_of_a_padded_call_are_wrong(table: Table) -> None:
    x, w, _ = operands([1, 2, 0, 0])
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        by_torchs_name(x, w, [1, 3, 3, 5])
    assert (count.report().hits, count.report().wrong_ends) == (1, 1)


def test_rows_between_are_padded_to_the_next(table: Table) -> None:
    every = ([1, 0, 0, 0], [0, 3, 2, 0], [1, 10, 0, 9], [30, 11, 0, 0])
    given = [operands(counts) for counts in every]
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        found = [grouped_mm(*one) for one in given]
    assert tally(count) == (3, 1)
    for out, (x, w, _), counts in zip(found, given, every, strict=True):
        assert right(out, x, w, counts)


def test_without_a_row_torch_computes(table: Table) -> None:
    x, w, offs = operands([1, 2, 0, 3])
    assert right(grouped_mm(x, w, offs), x, w, [1, 2, 0, 3])
    others = [(x, w.transpose(1, 2).contiguous().transpose(1, 2), offs), (x.float(), w.float(), offs)]
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        found = [grouped_mm(*given) for given in others]
        assert grouped_mm(x[:0], w, torch.zeros(E, dtype=torch.int32)).shape == (0, N)
    assert tally(count) == (0, len(others))
    assert all(right(out, *given[:2], [1, 2, 0, 3]) for out, given in zip(found, others, strict=True))


def test_strided_rows(table: Table) -> None:
    x, w, offs = operands([1, 2, 0, 3])
    wide = torch.randn(6, 2 * K, dtype=torch.bfloat16)
    wide[:, :K] = x
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = grouped_mm(wide[:, :K], w, offs)
    assert tally(count) == (1, 0)
    assert right(out, x, w, [1, 2, 0, 3])


def test_it_compiles_and_differentiates(table: Table) -> None:
    counts = [1, 2, 0, 3]
    x, w, offs = operands(counts)
    wanted = [one.clone().double().requires_grad_() for one in (x, w)]
    grad = torch.randn(6, N, dtype=torch.bfloat16)
    exact_products(wanted[0], wanted[1], counts).backward(grad.double())
    x.requires_grad_()
    w.requires_grad_()
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = torch.compile(grouped_mm, backend=aot_eager, fullgraph=True)(x, w, offs)
        out.backward(grad)
    assert tally(count)[0] == 1
    for got, want in zip((x, w), wanted, strict=True):
        assert torch.allclose(got.grad.double(), want.grad, rtol=0.02, atol=0.1)
    torch.library.opcheck(torch.ops.gemmtune.grouped_mm.default, (x.detach(), w.detach(), offs))


def test_what_is_refused() -> None:
    x, w, offs = operands([1, 2, 0, 3])
    for given, text in (
        ((x[:, :8], w, offs), "x is [6, 8]"),
        ((x.half(), w, offs), "of one type"),
        ((x, w, offs.long()), "of torch.int32"),
        ((x, w, offs[:2]), "the groups' ends, [4]"),
    ):
        with pytest.raises(GroupError) as caught:
            grouped_mm(*given)
        assert text in str(caught.value)


def test_rows_of_a_table(table: Table) -> None:
    """Padded weights serve no call; of two routings the uniform one serves."""
    found = [of_row(row) for row in table.rows]
    assert found.count(None) == 1
    with gemmtune.torch.enable(table):
        served = current("cpu")
        assert served is not None
        rows = served.grouped[E, N, K, torch.bfloat16, "none"]
        assert {m: row.product.routing for m, row in rows.items()} == {6: "uniform", 40: "40,0,0,0"}
        assert served.left_out == {"no call of torch's is such a product": 1}


@pytest.mark.parametrize("routing", ["uniform", "skewed", "5,0,1,0"])
def test_a_race_has_rows_of_the_routing(routing: str) -> None:
    made = make(GroupedProduct(6, E, N, K, torch.bfloat16, routing), torch.device("cpu"))
    assert (int(made.offsets[-1]), made.offsets.dtype, made.a.shape) == (6, torch.int32, (6, K))
    if routing == "5,0,1,0":
        assert made.offsets.tolist() == [5, 5, 6, 6]


def test_a_recording_writes_problems_to_tune() -> None:
    x, w, offs = operands([1, 2, 0, 3])
    with gemmtune.torch.record(device_type="cpu") as recording:
        grouped_mm(x, w, offs)
    problem = from_linear(6, N, K, "bf16", groups=E)
    from backends.wire import problem_from_wire

    found = recording.problems()
    assert [problem_from_wire({k: v for k, v in one.items() if k != "count"}) for one in found] == [problem]


# ---- torch's own call ------------------------------------------------------------------------------


def test_torchs_call_runs_by_the_row(table: Table) -> None:
    counts = [1, 2, 0, 3]
    x, w, offs = operands(counts)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        found = [
            torch._grouped_mm(x, w.transpose(-2, -1), offs=offs),
            torch.nn.functional.grouped_mm(x, w.transpose(-2, -1), offs=offs),
        ]
    assert tally(count) == (2, 0)
    assert all(right(out, x, w, counts) for out in found)
    after = torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)
    assert tally(count) == (2, 0)
    assert right(after, x, w, counts)


def test_torchs_call_without_a_row_is_torchs(table: Table) -> None:
    """What is recorded is the grouped product, not what torch computes it with; groups along k, a bias and
    other layouts are no such product."""
    counts = [30, 11, 0, 0]
    x, w, offs = operands(counts)
    with gemmtune.torch.enable(table), gemmtune.torch.record("cpu") as recording:
        out = torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)
        torch._grouped_mm(x.t(), x, offs=torch.tensor([20, 41], dtype=torch.int32))
        torch._grouped_mm(x, w.transpose(-2, -1).contiguous(), offs=offs)
    assert right(out, x, w, counts)
    grouped = [one for one in recording.problems() if "groups" in one]
    assert grouped == [
        {"m": 41, "n": N, "k": K, "dtype": "bf16", "trans_b": True, "groups": E, "routing": "uniform",
         "count": 1}
    ]  # fmt: skip


def test_torchs_call_differentiates_by_the_row(table: Table) -> None:
    counts = [1, 2, 0, 3]
    x, w, offs = operands(counts)
    grads = []
    for enabled in (True, False):
        leaves = [one.clone().requires_grad_() for one in (x, w)]
        with gemmtune.torch.report() as count, ExitStack() as stack:
            if enabled:
                stack.enter_context(gemmtune.torch.enable(table))
            out = torch._grouped_mm(leaves[0], leaves[1].transpose(-2, -1), offs=offs)
            out.backward(torch.ones_like(out))
        assert tally(count)[0] == int(enabled)
        grads.append([one.grad for one in leaves])
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_call_of_torchs_becomes_the_operator(table: Table, compiling: None, dynamic: bool) -> None:
    x, w, offs = operands([1, 2, 0, 3])

    def products(x: Any, w: Any, offs: Any) -> Any:
        return torch.relu(torch._grouped_mm(x, w.transpose(-2, -1), offs=offs))

    with gemmtune.torch.enable(table), gemmtune.torch.report() as count, torch.no_grad():
        compiled = torch.compile(products, dynamic=dynamic, fullgraph=True)
        out = compiled(x, w, offs)
    assert tally(count) == (1, 0)
    assert torch.allclose(out.double(), exact_products(x, w, [1, 2, 0, 3]).relu(), rtol=0.02, atol=0.05)


def test_calls_of_torchs_that_are_no_such_product() -> None:
    x, w, offs = operands([1, 2, 0, 3])
    wt = w.transpose(-2, -1)
    assert of_call(x, wt, offs, None, None) == GroupedProduct(6, E, N, K, torch.bfloat16)
    for other in (
        (x, wt, None, None, None), (x, wt, offs.long(), None, None), (x, wt, offs[:2], None, None),
        (x, wt, offs.to("meta"), None, None), (x, wt, offs, x[0], None), (x, wt, offs, None, torch.float32),
        (x.float(), wt.float(), offs, None, None), (x[:0], wt, offs, None, None),
    ):  # fmt: skip
        assert of_call(*other) is None
