"""gemmtune.torch.scaled_grouped_mm: by rows of emulated kernels, by torch, compiled, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import GroupError, scaled_grouped_mm
from gemmtune.torch.grouped.scaled import ScaledGroupedProduct, make, of_call, of_row, torch_call
from gemmtune.torch.served import current
from torch._dynamo.backends.debugging import aot_eager

from backends.cache import BinaryCache
from backends.problem import GemmProblem, from_linear
from backends.wire import problem_from_wire
from tests.backends.kernels.triton.test_legality import MI300X
from tests.client.torch.grouped.samples import tally
from tests.client.torch.quantised.emulated import write

if TYPE_CHECKING:
    from gemmtune import Table

E, N, K = 4, 136, 272
BLOCKS: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128"}
ROWS: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer"}


def fp8(m: int, scales: dict[str, Any], kind: str = "fp8_e4m3", **more: Any) -> GemmProblem:
    return from_linear(m, N, K, kind, groups=E, **scales, **more)


def problems() -> Iterator[tuple[GemmProblem, str]]:
    """What the table has rows for, and the family of each."""
    yield fp8(6, BLOCKS), "grouped-ring"
    yield fp8(6, BLOCKS, routing="skewed"), "grouped-ring"
    yield fp8(6, ROWS, dtype_d="fp32", routing=[0, 6, 0, 0]), "grouped-ring"
    yield fp8(6, BLOCKS, ldb=K + 16), "grouped-ring"
    yield fp8(6, ROWS), "grouped-ring"


Given = tuple[Any, Any, Any, Any, Any]


FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


def operands(counts: list[int], scales: str = "blocks", kind: Any = FN) -> Given:
    random = torch.Generator().manual_seed(sum(counts))
    m = sum(counts)

    def floats(*shape: int) -> Any:
        return torch.randn(shape, generator=random).to(kind)

    shapes = {"blocks": ((m, 3), (E, 2, 3)), "rows": ((m,), (E, N))}[scales]
    of_x, of_w = (torch.rand(shape, generator=random) + 0.5 for shape in shapes)
    return floats(m, K), floats(E, N, K), of_x, of_w, torch.tensor(counts).cumsum(0).to(torch.int32)


def expected(given: Given, counts: list[int]) -> Any:
    x, w, of_x, of_w, _ = given
    if of_w.dim() == 3:
        x = x.double() * of_x.double().repeat_interleave(128, 1)[:, :K]
        of_w = of_w.double().repeat_interleave(128, 1)[:, :N].repeat_interleave(128, 2)[:, :, :K]
        w = w.double() * of_w
    else:
        x, w = x.double() * of_x.double()[:, None], w.double() * of_w.double()[..., None]
    return torch.cat([rows @ one.t() for rows, one in zip(x.split(counts), w, strict=True)])


def right(out: Any, given: Given, counts: list[int]) -> bool:
    return bool(torch.allclose(out.double(), expected(given, counts), rtol=0.01, atol=0.05))


@pytest.mark.parametrize("counts", [[6, 0, 0, 0], [1, 2, 0, 3], [0, 0, 0, 6], [1, 0, 2, 0]])
def test_any_counts_run_by_the_row(table: Table, counts: list[int]) -> None:
    """Fewer rows than were measured, too."""
    given = operands(counts)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = scaled_grouped_mm(*given)
    assert tally(count) == (1, 0), count.report()
    assert (out.shape, out.dtype) == ((sum(counts), N), torch.bfloat16)
    assert right(out, given, counts)


@pytest.fixture(scope="module")
def fnuz(cache: BinaryCache, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Rows that gfx942 was tuned for, of both kinds of scales."""
    path = tmp_path_factory.mktemp("fnuz") / "rows.gtb"
    rows = [(fp8(6, scales, "fp8_e4m3_fnuz"), "grouped-mfma") for scales in (BLOCKS, ROWS)]
    return gemmtune.load(write(path, rows, cache, default="torch-grouped", gpu=MI300X))


@pytest.mark.parametrize("scales", ["blocks", "rows"])
def test_gfx942s_floats_run_by_rows_of_theirs(fnuz: Table, table: Table, scales: str) -> None:
    counts = [1, 2, 0, 3]
    given = operands(counts, scales, FNUZ)
    assert {one.dtype for one in map(of_row, fnuz.rows) if one is not None} == {FNUZ}
    with gemmtune.torch.enable(fnuz), gemmtune.torch.report() as count:
        out = scaled_grouped_mm(*given)
        other = scaled_grouped_mm(*operands(counts, scales, FN))
    assert tally(count) == (1, 1), "a row is of one of the types"
    assert right(out, given, counts)
    assert right(other, operands(counts, scales, FN), counts)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = scaled_grouped_mm(*given)
    assert tally(count) == (0, 1)
    assert right(out, given, counts)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_scales_of_rows_run_by_the_row(table: Table, shape: tuple[int, ...]) -> None:
    x, w, of_x, of_w, offs = given = operands([1, 2, 0, 3], "rows")
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = scaled_grouped_mm(x, w, of_x.reshape(shape), of_w, offs, out_dtype=torch.float32)
        other = scaled_grouped_mm(x, w, of_x.reshape(shape), of_w, offs, out_dtype=torch.float16)
    assert tally(count) == (1, 1), "the rows' outputs are float32 and bfloat16"
    assert right(out, given, [1, 2, 0, 3])
    assert right(other, given, [1, 2, 0, 3])


@pytest.mark.parametrize("scales", ["blocks", "rows"])
def test_without_a_row_torch_computes_the_same(table: Table, scales: str) -> None:
    """Also where nothing is enabled, and of a weight that is not packed."""
    counts = [20, 1, 0, 9]
    given = operands(counts, scales)
    strided = given[1].view(torch.uint8).mT.contiguous().mT.view(torch.float8_e4m3fn)
    assert right(scaled_grouped_mm(*given), given, counts)
    few = operands([1, 2, 0, 3], scales)
    unpacked, nothing = (few[0], strided, *few[2:]), torch.zeros(E, dtype=torch.int32)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        found = [scaled_grouped_mm(*given), scaled_grouped_mm(*unpacked)]
        assert scaled_grouped_mm(given[0][:0], given[1], given[2][:0], given[3], nothing).shape == (0, N)
    assert tally(count) == (0, 2)
    assert right(found[0], given, counts)
    assert right(found[1], unpacked, [1, 2, 0, 3])


def test_rows_of_no_group_are_left_alone(table: Table) -> None:
    x, w, of_x, of_w, _ = given = operands([1, 2, 0, 3])
    offs = torch.tensor([1, 3, 3, 4], dtype=torch.int32)
    with gemmtune.torch.enable(table):
        by_row = scaled_grouped_mm(x, w, of_x, of_w, offs)
    for out in (by_row, scaled_grouped_mm(x, w, of_x, of_w, offs)):
        assert right(out[:4], (x[:4], w, of_x[:4], of_w, offs), [1, 2, 0, 1])
    assert given[0].shape == (6, K)


def test_it_compiles(table: Table) -> None:
    given = operands([1, 2, 0, 3])
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        compiled = torch.compile(scaled_grouped_mm, backend=aot_eager, fullgraph=True)
        out = compiled(*given)
    assert tally(count) == (1, 0)
    assert right(out, given, [1, 2, 0, 3])
    operator = torch.ops.gemmtune.scaled_grouped_mm.default
    tests = ("test_faketensor",)  # torch compares no 8-bit floats on a CPU
    torch.library.opcheck(operator, (*given, torch.bfloat16), test_utils=tests)


def test_what_is_refused() -> None:
    x, w, of_x, of_w, offs = operands([1, 2, 0, 3])
    e5m2 = torch.float8_e5m2
    for given, text in (
        ((x[:, :16], w, of_x, of_w, offs), "x is [6, 16]"),
        ((x.to(e5m2), w.to(e5m2), of_x, of_w, offs), "float8_e5m2; scaled_grouped_mm multiplies"),
        ((x.bfloat16(), w.bfloat16(), of_x, of_w, offs), "torch.float8_e4m3fn or torch.float8_e4m3fnuz"),
        ((x.to(FNUZ), w, of_x, of_w, offs), "they must be [m, k] and [groups, n, k] of one type"),
        ((x, w, of_x.half(), of_w, offs), "scale_x is torch.float16"),
        ((x, w, of_x, of_w[:, :1], offs), "scale_w [4, 1, 3]; they must be [6, 3] and [4, 2, 3] for blocks"),
        ((x, w, of_x, of_w[0], offs), "or [6] and [4, 136] for rows"),
        ((x, w, of_x[:, 0], of_w, offs), "scale_x is [6]"),
        ((x, w, of_x, of_w, offs[:2]), "the groups' ends, [4]"),
    ):
        with pytest.raises(GroupError) as caught:
            scaled_grouped_mm(*given)
        assert text in str(caught.value)
    with pytest.raises(GroupError, match=r"out_dtype is torch\.float64"):
        scaled_grouped_mm(x, w, of_x, of_w, offs, out_dtype=torch.float64)


def test_rows_of_a_table(table: Table) -> None:
    """Padded rows serve no call; of two routings the uniform one serves."""
    assert [of_row(row) for row in table.rows].count(None) == 1
    with gemmtune.torch.enable(table):
        served = current("cpu")
        assert served is not None
        assert served.grouped == {}
        blocks = served.scaled_grouped[E, N, K, FN, "blocks", torch.bfloat16]
        assert {m: row.product.routing for m, row in blocks.items()} == {6: "uniform"}
        rows = served.scaled_grouped[E, N, K, FN, "rows", torch.float32]
        assert {m: row.product.routing for m, row in rows.items()} == {6: "0,6,0,0"}
        assert served.left_out == {"no call of torch's is such a product": 1}


@pytest.mark.parametrize("scales", ["blocks", "rows"])
def test_a_race_is_of_the_same_numbers(scales: str) -> None:
    for kind in (FN, FNUZ):
        product = ScaledGroupedProduct(6, E, N, K, kind, scales, torch.bfloat16, "5,0,1,0")
        made = make(product, torch.device("cpu"))
        assert made.a.dtype is made.weight.dtype is kind
        assert (made.offsets.tolist(), made.ends) == ([5, 5, 6, 6], [5, 5, 6, 6])
        given = (made.a, made.weight, made.scale_x, made.scale_w, made.offsets)
        assert right(torch_call(product, made)(), given, [5, 0, 1, 0])


@pytest.mark.parametrize("scales", ["blocks", "rows"])
def test_a_recording_writes_problems_to_tune(scales: str) -> None:
    for kind, name in ((FN, "fp8_e4m3"), (FNUZ, "fp8_e4m3_fnuz")):
        with gemmtune.torch.record(device_type="cpu") as recording:
            scaled_grouped_mm(*operands([1, 2, 0, 3], scales, kind))
        (found,) = recording.problems()
        problem = problem_from_wire({of: value for of, value in found.items() if of != "count"})
        assert problem == fp8(6, BLOCKS if scales == "blocks" else ROWS, name)


# ---- torch's own call ------------------------------------------------------------------------------


def test_torchs_call_runs_by_the_row(table: Table) -> None:
    """Even where torch has no kernel, as on a CPU."""
    x, w, of_x, of_w, offs = given = operands([1, 2, 0, 3], "rows")
    call = torch._scaled_grouped_mm
    asked = (x, w.transpose(-2, -1), of_x, of_w)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = call(*asked, offs=offs, out_dtype=torch.float32)
        fast = call(*asked, offs=offs, out_dtype=torch.float32, use_fast_accum=True)
        with pytest.raises(NotImplementedError, match="no kernel of aten::_scaled_grouped_mm for CPU"):
            call(*asked, offs=offs, out_dtype=torch.float16)  # for which there is no row
    assert tally(count) == (2, 1)
    assert torch.equal(out, fast)
    assert right(out, given, [1, 2, 0, 3])
    with pytest.raises(NotImplementedError):
        call(*asked, offs=offs, out_dtype=torch.float32)


def test_a_recording_has_torchs_call() -> None:
    x, w, of_x, of_w, offs = operands([1, 2, 0, 3], "rows")
    with gemmtune.torch.record("cpu") as recording, pytest.raises(NotImplementedError):
        torch._scaled_grouped_mm(x, w.transpose(-2, -1), of_x, of_w, offs=offs)
    (found,) = recording.problems()
    problem = problem_from_wire({name: value for name, value in found.items() if name != "count"})
    assert problem == fp8(6, ROWS, dtype_d="bf16")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_call_of_torchs_becomes_the_operator(table: Table, dynamic: bool) -> None:
    x, w, of_x, of_w, offs = given = operands([1, 2, 0, 3], "rows")

    def product(x: Any, w: Any, of_x: Any, of_w: Any, offs: Any) -> Any:
        return torch._scaled_grouped_mm(x, w.transpose(-2, -1), of_x, of_w, offs=offs)

    torch._dynamo.reset()
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count, torch.no_grad():
        out = torch.compile(product, dynamic=dynamic, fullgraph=True)(x, w, of_x, of_w, offs)
    assert tally(count) == (1, 0)
    assert right(out, given, [1, 2, 0, 3])


def test_calls_of_torchs_that_are_no_such_product() -> None:
    x, w, of_x, of_w, offs = operands([1, 2, 0, 3], "rows")
    wt, nothing = w.transpose(-2, -1), (None, None, None)
    known = ScaledGroupedProduct(6, E, N, K, FN, "rows", torch.bfloat16)
    assert of_call(x, wt, of_x, of_w, offs, *nothing) == known
    assert of_call(x, wt, of_x, of_w, offs, None, None, torch.float32) == known._replace(
        out_dtype=torch.float32
    )
    for other in (
        (x, wt, of_x, of_w, None, *nothing), (x, wt, of_x, of_w, offs.long(), *nothing),
        (x, wt, of_x, of_w, offs[:2], *nothing), (x, wt, of_x, of_w, offs.to("meta"), *nothing),
        (x, wt, of_x, of_w, offs, of_w, None, None), (x, wt, of_x, of_w, offs, None, of_x, None),
        (x, wt, of_x, of_w, offs, None, None, torch.float64), (x[:0], wt, of_x[:0], of_w, offs, *nothing),
        (x.bfloat16(), wt, of_x, of_w, offs, *nothing), (x, w, of_x, of_w, offs, *nothing),
        (x, wt, of_x.half(), of_w, offs, *nothing), (x, wt, of_x[:1], of_w, offs, *nothing),
        (x, wt, of_x, of_w[:, :2], offs, *nothing), (x, wt[0], of_x, of_w, offs, *nothing),
    ):  # fmt: skip
        assert of_call(*other) is None
