"""gemmtune.torch.grouped_mm_w4a16: by rows of emulated kernels, by torch, compiled, what it refuses; and what
packs experts' weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import (
    GroupError,
    QuantizedExperts,
    WeightError,
    experts_from_mxfp4,
    grouped_mm_w4a16,
    pack_zeros,
    quantize,
    quantize_experts,
    stack_experts,
)
from gemmtune.torch.grouped.weights import GroupedWeightProduct, make, of_row, torch_call
from gemmtune.torch.quantised.form import Form
from gemmtune.torch.served import current
from torch._dynamo.backends.debugging import aot_eager

from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from tests.backends.weight_samples import mxfp4, weights
from tests.client.torch.grouped.samples import tally

if TYPE_CHECKING:
    from gemmtune import Table

E, N, K = 4, 40, 256
FORMS = ("mxfp4", "uint4", "shift")


def problem(form: str, m: int, **more: Any) -> GemmProblem:
    if form == "mxfp4":
        return mxfp4(m, N, K, groups=E, **more)
    return weights(m, N, K, zero_b=form, scale_b="block_1x64", groups=E, **more)


def problems() -> Iterator[tuple[GemmProblem, str]]:
    """What the table has rows for, and the family of each."""
    yield problem("mxfp4", 6), "grouped-ring"
    yield problem("mxfp4", 6, routing="skewed"), "grouped-ring"
    yield problem("uint4", 6), "grouped-ring"
    yield problem("shift", 6, routing=[0, 6, 0, 0]), "grouped-ring"
    yield problem("mxfp4", 6, ldb=K + 32), "grouped-ring"


def experts(form: str) -> QuantizedExperts:
    random = torch.Generator().manual_seed(7)
    floats = torch.randn((E, N, K), generator=random)
    if form == "mxfp4":
        return quantize_experts(floats, form="mxfp4")
    given = quantize_experts(floats.bfloat16(), group_size=64, symmetric=False)
    if form == "uint4":
        return given
    shifts = torch.randn(given.scales.shape, generator=random).bfloat16()
    return QuantizedExperts(given.data, given.scales, shifts, "shift")


Given = tuple[Any, QuantizedExperts, Any]


def operands(counts: list[int], form: str = "mxfp4", dtype: Any = torch.bfloat16) -> Given:
    random = torch.Generator().manual_seed(sum(counts))
    x = torch.randn((sum(counts), K), generator=random).to(dtype)
    return x, experts(form), torch.tensor(counts).cumsum(0).to(torch.int32)


def run(given: Given) -> Any:
    x, w, offs = given
    return grouped_mm_w4a16(x, w.data, w.scales, offs, w.zeros, zero_point=w.zero_point)


def right(out: Any, given: Given, counts: list[int]) -> bool:
    x, w, _ = given
    parts = zip(x.double().split(counts), w.dequantize(torch.float64), strict=True)
    want = torch.cat([rows @ one.t() for rows, one in parts])
    return bool(torch.allclose(out.double(), want, rtol=0.02, atol=0.01 * float(want.abs().max())))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counts", [[6, 0, 0, 0], [1, 2, 0, 3], [1, 0, 2, 0]])
def test_any_counts_run_by_the_row(table: Table, counts: list[int], form: str) -> None:
    """Fewer rows than were measured, too."""
    given = operands(counts, form)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = run(given)
    assert tally(count) == (1, 0), count.report()
    assert (out.shape, out.dtype) == ((sum(counts), N), torch.bfloat16)
    assert right(out, given, counts)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_row_torch_computes_the_same(table: Table, form: str) -> None:
    """More rows than were measured, another type of rows, no table."""
    many, other = operands([60, 1, 0, 39], form), operands([1, 2, 0, 3], form, torch.float16)
    assert right(run(many), many, [60, 1, 0, 39])
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        found = [run(many), run(other)]
        x, w, offs = many
        assert run((x[:0], w, torch.zeros_like(offs))).shape == (0, N)
    assert tally(count) == (0, 2)
    assert right(found[0], many, [60, 1, 0, 39])
    assert right(found[1], other, [1, 2, 0, 3])
    assert found[1].dtype is torch.float16


def test_rows_of_no_group_are_left_alone(table: Table) -> None:
    x, w, _ = operands([1, 2, 0, 3])
    offs = torch.tensor([1, 3, 3, 4], dtype=torch.int32)
    with gemmtune.torch.enable(table):
        by_row = run((x, w, offs))
    for out in (by_row, run((x, w, offs))):
        assert right(out[:4], (x[:4], w, offs), [1, 2, 0, 1])


def test_it_compiles(table: Table) -> None:
    given = operands([1, 2, 0, 3], "uint4")
    x, w, offs = given
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        compiled = torch.compile(grouped_mm_w4a16, backend=aot_eager, fullgraph=True)
        out = compiled(x, w.data, w.scales, offs, w.zeros)
    assert tally(count) == (1, 0)
    assert right(out, given, [1, 2, 0, 3])
    operator = torch.ops.gemmtune.grouped_mm_w4a16.default
    torch.library.opcheck(operator, (x, w.data, w.scales, offs, w.zeros, None, None))


def test_what_is_refused() -> None:
    x, w, offs = operands([1, 2, 0, 3], "uint4")
    data, scales, zeros = w.data, w.scales, w.zeros
    for given, error, text in (
        ((x[:, :16], data, scales, offs, zeros), GroupError, "x is [6, 16] of torch.bfloat16"),
        ((x.float(), data, scales, offs, zeros), GroupError, "of bfloat16 or float16"),
        ((x, data, scales, offs[:2], zeros), GroupError, "the groups' ends, [4]"),
        ((x, data, scales, offs.long(), zeros), GroupError, "of torch.int64"),
        ((x, data[0], scales, offs, zeros), WeightError, "4-bit weights of groups are [groups, N, K / 2]"),
        ((x, data.int(), scales, offs, zeros), WeightError, "weight is [4, 40, 128] of torch.int32"),
        (
            (x, data, scales[:2], offs, zeros),
            WeightError,
            "scales is [2, 40, 4]; it has a matrix for each of 4",
        ),
        ((x, data, scales, offs, zeros[0]), WeightError, "zeros is [5, 4]; it has a matrix for each of 4"),
        ((x, data, scales.mT.contiguous().mT, offs, zeros), WeightError, "scales must be contiguous"),
        ((x, data, scales[:, :, :1].contiguous(), offs), WeightError, "one for 256 elements of K"),
        ((x, data, scales[:, :, :3].contiguous(), offs), WeightError, "groups that divide K"),
        ((x, data, scales, offs, zeros.float()), WeightError, "zeros of torch.float32 may mean two things"),
        ((x, data, scales.to(torch.float8_e4m3fn), offs), WeightError, "NVFP4"),
    ):
        with pytest.raises(error) as caught:
            grouped_mm_w4a16(*given)
        assert text in str(caught.value)
    with pytest.raises(WeightError, match="which is groups of 64; group_size 128 wants"):
        grouped_mm_w4a16(x, data, scales, offs, zeros, 128)


def test_rows_of_a_table(table: Table) -> None:
    """Padded weights serve no call; of two routings the uniform one serves."""
    assert [of_row(row) for row in table.rows].count(None) == 1
    with gemmtune.torch.enable(table):
        served = current("cpu")
        assert served is not None
        assert (served.grouped, served.scaled_grouped, served.weights) == ({}, {}, {})
        form = Form(N, K, "fp4_e2m1", "none", K // 32, torch.uint8)
        rows = served.grouped_weights[E, form, torch.bfloat16]
        assert {m: row.product.routing for m, row in rows.items()} == {6: "uniform"}
        assert len(served.grouped_weights) == 3
        assert served.left_out == {"no call of torch's is such a product": 1}


@pytest.mark.parametrize("form", FORMS)
def test_a_race_is_of_the_same_numbers(form: str) -> None:
    product = GroupedWeightProduct(6, E, experts(form).form, torch.bfloat16, "5,0,1,0")
    made = make(product, torch.device("cpu"))
    assert made.offsets.tolist() == [5, 5, 6, 6]
    zero = None if form == "mxfp4" else form
    stored = QuantizedExperts(made.weight, made.scales, made.zeros, zero)
    assert right(torch_call(product, made)(), (made.a, stored, made.offsets), [5, 0, 1, 0])
    assert made.bytes > stored.nbytes


@pytest.mark.parametrize("form", FORMS)
def test_a_recording_writes_problems_to_tune(form: str) -> None:
    with gemmtune.torch.record(device_type="cpu") as recording:
        run(operands([1, 2, 0, 3], form))
    (found,) = recording.problems()
    written = problem_from_wire({name: value for name, value in found.items() if name != "count"})
    assert written == problem(form, 6)


def test_a_row_of_one_group_is_written_so() -> None:
    form = Form(N, 128, "uint4", "eight", 1, torch.bfloat16)
    written = problem_from_wire(GroupedWeightProduct(6, E, form, torch.bfloat16).wire())
    assert written == weights(6, N, 128, zero_b="eight", groups=E)


def test_gpt_oss_stores_experts_so() -> None:
    """As its checkpoints have them: blocks of 16 bytes, a scale each."""
    random = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (E, N, K // 32, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(120, 130, (E, N, K // 32), generator=random, dtype=torch.uint8)
    found = experts_from_mxfp4(blocks, scales)
    assert (found.shape, found.group_size, found.zero_point) == ((E, N, K), 32, "none")
    assert found.data.data_ptr() == blocks.data_ptr(), "nothing is copied"
    for expert in range(E):
        one = gemmtune.torch.from_mxfp4(blocks, scales, expert=expert)
        assert torch.equal(found.dequantize()[expert], one.dequantize())
    with pytest.raises(WeightError, match="those of experts are"):
        experts_from_mxfp4(blocks[0], scales[0])
    scales[2, 5, 1] = 255
    with pytest.raises(WeightError, match=r"scales\[5, 1\] is 255"):
        experts_from_mxfp4(blocks, scales)


def test_an_expert_whose_zero_points_are_all_8_goes_with_others() -> None:
    """An adapter leaves its zero points out."""
    floats = torch.randn((2, N, K), generator=torch.Generator().manual_seed(4))
    every = [quantize(floats[0], group_size=64, symmetric=False), quantize(floats[1], group_size=64)]
    assert [one.zero_point for one in every] == ["uint4", "eight"]
    found = stack_experts(every)
    assert found.zero_point == "uint4"
    assert all(torch.equal(a, b.dequantize()) for a, b in zip(found.dequantize(), every, strict=True))


def test_packing_experts() -> None:
    random = torch.Generator().manual_seed(3)
    floats = torch.randn((E, N, K), generator=random)
    every = [quantize(one, group_size=64, symmetric=False) for one in floats]
    found = stack_experts(every)
    assert (found.shape, found.zero_point, found.group_size) == ((E, N, K), "uint4", 64)
    assert found.nbytes == sum(one.nbytes for one in every)
    assert all(torch.equal(a, b.dequantize()) for a, b in zip(found.dequantize(), every, strict=True))
    again = quantize_experts(floats, group_size=64, symmetric=False)
    assert torch.equal(again.data, found.data)
    points = torch.zeros((E, N // 8, K // 64), dtype=torch.int32) + pack_zeros(torch.full((8, 1), 8))[0, 0]
    assert torch.equal(
        QuantizedExperts(found.data, found.scales, points).dequantize(),
        QuantizedExperts(found.data, found.scales, None, "eight").dequantize(),
    )
    signed = QuantizedExperts(found.data, found.scales, None, "signed")
    assert (signed.zero_point, replace(signed).form.kind) == ("signed", "int4")
    for wrong, text in (
        ([], "there are no experts"),
        ([every[0], quantize(floats[0], group_size=32, symmetric=False)], "expert 1 is"),
        ([quantize(floats[0], bits=8)], "expert 0 is"),
    ):
        with pytest.raises(WeightError, match=text):
            stack_experts(wrong)
    with pytest.raises(WeightError, match="weights of experts have 4"):
        quantize_experts(floats, bits=8)
    with pytest.raises(WeightError, match=r"must be floats \[experts, n, k\]"):
        quantize_experts(floats[0])
