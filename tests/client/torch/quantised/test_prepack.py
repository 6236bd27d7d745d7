"""Packed copies of quantised weights: packed by rows of the table in use, read by rows, and refused."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import (
    PackedWeight,
    QuantizedLinear,
    ServingError,
    WeightError,
    linear_w4a16,
    linear_w8a16,
    prepack_model,
    prepack_w4a16,
    prepack_w8a16,
    watch,
)
from gemmtune.torch.quantised.stored import QuantizedWeight
from gemmtune.torch.served import current
from torch import nn
from torch._dynamo.backends.debugging import aot_eager

from backends.cache import BinaryCache
from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from tests.client.packed_rows import COLUMNS, ROWS, write
from tests.client.torch.quantised import emulated
from tests.client.torch.quantised.conftest import K, N, weights
from tests.client.torch.quantised.samples import right, sample
from tests.client.torch.quantised.test_docs import examples

if TYPE_CHECKING:
    from gemmtune import Table

pytestmark = pytest.mark.compiler


def packed(m: int, **options: Any) -> GemmProblem:
    return weights(m, prepacked=True, **{"zero": "eight", **options})


def stored(m: int, **options: Any) -> GemmProblem:
    return weights(m, **{"zero": "eight", **options})


#: Rows with the layout that each reads. 1 and 4 read ROWS, 16 reads COLUMNS, 2 and 32 weights as stored.
TABLE = (
    (packed(1), ROWS), (packed(4), ROWS), (packed(16), COLUMNS), (packed(32), None), (stored(2), None),
    (packed(4, bias="bf16"), COLUMNS),
    (packed(2, kind="int8", zero="none", scale_b="outer"), COLUMNS),
    (packed(2, zero="none"), None),
)  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> Path:
    """The bundle of TABLE."""
    return write(tmp_path_factory.mktemp("packed") / "rows.gtb", TABLE, cache)


@pytest.fixture
def table(bundle: Path) -> Table:
    """The table of TABLE."""
    return gemmtune.load(bundle)


class Seen:
    """Notes the rows that ran: (M, whether the problem is prepacked, layout), None for torch."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def saw(self, product: Any, row: Any, device_type: str) -> None:
        found = None if row is None else (row.product.m, row.product.prepacked, row.layout)
        self.rows.append(found)

    def lacked(self, product: Any, device_type: str) -> None:
        raise AssertionError(product)

    def saw_layer(self, layer: Any, device_type: str) -> None:
        raise AssertionError("there are no layers")

    def take(self) -> list[Any]:
        found, self.rows = self.rows, []
        return found


@contextmanager
def seen(table: Table, **options: Any) -> Iterator[Seen]:
    one = Seen()
    with gemmtune.torch.enable(table, **options):
        watch.add(one)
        try:
            yield one
        finally:
            watch.remove(one)


def made(weight: QuantizedWeight, **options: Any) -> PackedWeight | None:
    if weight.bits == 8:
        return prepack_w8a16(weight.data, weight.scales, weight.group_size, **options)
    return prepack_w4a16(
        weight.data, weight.scales, weight.zeros, weight.group_size, zero_point=weight.zero_point, **options
    )


def call(x: Any, weight: QuantizedWeight, prepacked: PackedWeight | None, bias: Any = None) -> Any:
    if weight.bits == 8:
        return linear_w8a16(x, weight.data, weight.scales, weight.group_size, bias, prepacked=prepacked)
    return linear_w4a16(
        x, weight.data, weight.scales, weight.zeros, weight.group_size, bias, zero_point=weight.zero_point,
        prepacked=prepacked,
    )  # fmt: skip


def given(m: int) -> Any:
    return torch.randn(m, K, dtype=torch.bfloat16)


def refused(match: str, *arguments: Any) -> None:
    with pytest.raises(WeightError, match=match):
        call(*arguments)


# ---- packing -------------------------------------------------------------------------------------


def test_the_layout_is_that_of_most_rows(table: Table) -> None:
    weight = sample(N, K)
    with gemmtune.torch.enable(table):
        found = made(weight)
        with_bias, eight = made(weight, bias=True), made(sample(N, K, bits=8, group=-1))
    assert found is not None
    assert (found.layout, found.form, found.nbytes) == (ROWS, weight.form, 4 * N * K)
    assert found.data.data_ptr() % 256 == 0
    assert torch.equal(found.data.view(torch.float32).view(N, K), weight.dequantize())
    assert with_bias is not None
    assert with_bias.layout == COLUMNS
    assert torch.equal(with_bias.data.view(torch.float32).view(K, N), weight.dequantize().t())
    assert eight is not None
    assert eight.layout == COLUMNS


def test_of_as_many_rows_the_smallest_m_decides(tmp_path: Path, cache: BinaryCache) -> None:
    rows = [(packed(8), COLUMNS), (packed(3), ROWS)]
    with gemmtune.torch.enable(gemmtune.load(write(tmp_path / "two.gtb", rows, cache))):
        found = made(sample(N, K))
    assert found is not None
    assert found.layout == ROWS


def test_nothing_is_packed_that_no_row_reads(table: Table) -> None:
    weight = sample(N, K)
    with gemmtune.torch.enable(table):
        assert made(sample(N, K, zero="none")) is None  # its rows read weights as stored
        assert made(sample(N + 8, K)) is None
        assert made(weight, dtype=torch.float16) is None
        with pytest.raises(WeightError, match="activations are bfloat16 or float16"):
            made(weight, dtype=torch.float32)
    with pytest.raises(ServingError, match="no table is in use on cpu"):
        made(weight)


def test_a_packing_launch_that_fails_says_so(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmtune.launch import Kernel

    def failing(self: Any) -> Any:
        raise gemmtune.LaunchError("planted")

    monkeypatch.setattr(Kernel, "prepare_packing", failing)
    with gemmtune.torch.enable(table), pytest.raises(gemmtune.LaunchError, match="planted"):
        made(sample(N, K))


def test_nothing_is_packed_while_a_graph_is_captured(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the kernel is loaded: the copy would hold nothing until the graph is replayed."""
    with gemmtune.torch.enable(table):
        made(sample(N, K))
        served = current("cpu")
        assert served is not None
        for capture in (7, None):  # one that has a number, and one that has none
            monkeypatch.setattr(served.runtime, "capture", lambda _, number=capture: number)
            with pytest.raises(gemmtune.LaunchError, match="pack them before the capture"):
                made(sample(N, K))


# ---- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "row"),
    [
        (1, (1, True, ROWS)),
        (2, (2, False, None)),  # the stored problem's row of that M
        (3, (4, True, ROWS)),  # rows of zeros behind the input
        (4, (4, True, ROWS)),
        (5, (32, True, None)),  # the row of 16 reads another layout
        (16, (32, True, None)),
        (33, None),
    ],
)
def test_rows_that_read_the_copy_run(table: Table, m: int, row: Any) -> None:
    weight, x = sample(N, K), given(m)
    with seen(table) as rows:
        copied = made(weight)
        out = call(x, weight, copied)
    assert rows.take() == [row]
    assert out.dtype is torch.bfloat16
    assert right(out, x, weight)


def test_without_a_copy_no_row_reads_one(table: Table) -> None:
    weight = sample(N, K)
    with seen(table) as rows:
        for m in (1, 2, 4):
            x = given(m)
            assert right(call(x, weight, None), x, weight)
        assert rows.take() == [(2, False, None), (2, False, None), (32, True, None)]
        x, other = given(2), sample(N, K, zero="none")
        assert right(call(x, other, None), x, other)
        assert rows.take() == [(2, True, None)], "a row of prepacked problems that reads weights as stored"


def test_a_row_for_a_weaker_alignment_may_read_another_layout(tmp_path: Path, cache: BinaryCache) -> None:
    rows = [(packed(4), COLUMNS), (packed(4, alignment=4), ROWS), (packed(4, alignment=2), None)]
    table = gemmtune.load(write(tmp_path / "weaker.gtb", rows, cache))
    weight, x = sample(N, K), given(4)
    other = gemmtune.load(write(tmp_path / "other.gtb", [(packed(4), ROWS)], cache))
    with gemmtune.torch.enable(other):
        by_rows = made(weight)
    with seen(table) as found:
        copied = made(weight)
        for one in (copied, by_rows, None):
            assert right(call(x, weight, one), x, weight)
    assert found.take() == [(4, True, COLUMNS), (4, True, ROWS), (4, True, None)]


def test_a_bias_and_eight_bits(table: Table) -> None:
    weight, eight, bias = sample(N, K), sample(N, K, bits=8, group=-1), torch.randn(N, dtype=torch.bfloat16)
    with seen(table) as rows:
        x = given(4).view(2, 2, K)
        assert right(call(x, weight, made(weight, bias=True), bias), x, weight, bias)
        x = given(2)
        assert right(call(x, eight, made(eight)), x, eight)
    assert rows.take() == [(4, True, COLUMNS), (2, True, COLUMNS)]


def test_without_a_table_torch_reads_the_stored_weights(table: Table) -> None:
    weight, x = sample(N, K), given(4)
    with gemmtune.torch.enable(table):
        copied = made(weight)
    assert right(call(x, weight, copied), x, weight)


def test_a_launch_that_fails_is_torchs(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmtune.launch import PreparedLaunch

    def failing(self: Any, *arguments: Any) -> None:
        raise gemmtune.LaunchError("planted")

    weight, x = sample(N, K), given(16)
    with seen(table) as rows:
        copied = made(weight)
        monkeypatch.setattr(PreparedLaunch, "__call__", failing)
        with pytest.warns(RuntimeWarning, match="planted"):
            assert right(call(x, weight, copied), x, weight)
    assert rows.take() == [None]


@pytest.mark.parametrize("zero", ["eight", "uint4"])
def test_our_own_kernels_pack_and_multiply(zero: str, tmp_path: Path, cache: BinaryCache) -> None:
    """packed-mma by the emulator: copies that rows of different M made are equal."""
    rows = [(packed(m, zero=zero), "packed-mma") for m in (2, 8)]
    first = gemmtune.load(emulated.write(tmp_path / "both.gtb", rows, cache))
    second = gemmtune.load(emulated.write(tmp_path / "one.gtb", rows[1:], cache))
    weight, copies = sample(N, K, zero=zero), []
    for table, sizes in ((first, (2, 3, 8)), (second, (3, 8))):
        with seen(table) as found:
            copied = made(weight)
            assert copied is not None
            copies.append(copied)
            for m in sizes:
                x = given(m)
                assert right(call(x, weight, copied), x, weight)
        wanted = [m if m in (2, 8) else 8 for m in sizes]
        assert found.take() == [(m, True, copied.layout) for m in wanted]
    assert copies[0].layout == copies[1].layout
    assert torch.equal(copies[0].data, copies[1].data)


# ---- what is refused -----------------------------------------------------------------------------


def test_a_copy_that_no_row_of_the_table_reads(table: Table, tmp_path: Path, cache: BinaryCache) -> None:
    weight = sample(N, K)
    with gemmtune.torch.enable(table):
        copied = made(weight)
    newer = gemmtune.load(write(tmp_path / "newer.gtb", [(packed(4), COLUMNS)], cache))
    with gemmtune.torch.enable(newer):
        refused("in the layout test-rows, and the table in use reads test-columns", given(4), weight, copied)
        again = made(weight)
        x = given(4)
        assert right(call(x, weight, again), x, weight)
    none = gemmtune.load(write(tmp_path / "none.gtb", [(stored(4), None)], cache))
    with gemmtune.torch.enable(none):
        refused("reads no packed copy of them: pack them again", given(4), weight, copied)


def test_copies_of_other_weights(table: Table) -> None:
    weight, x = sample(N, K), given(4)
    with gemmtune.torch.enable(table):
        copied = made(weight)
        assert copied is not None
        refused(r"copy is of weights \[32, 256\] .*, and the weights are \[40, 256\]",
                x, sample(40, K), copied)  # fmt: skip
        refused("zero point eight.*zero point none", x, sample(N, K, zero="none"), copied)
        short = replace(copied, data=copied.data[:-4])
        refused("has 32764 bytes, and weights .* have 32768 in the layout test-rows", x, weight, short)
        room = torch.zeros(copied.nbytes + 512, dtype=torch.uint8)
        start = -room.data_ptr() % 256 + 16
        refused("must be contiguous and at a multiple of 256 bytes",
                x, weight, replace(copied, data=room[start : start + copied.nbytes]))  # fmt: skip
        apart = torch.zeros(2 * copied.nbytes + 512, dtype=torch.uint8)
        apart = apart[-apart.data_ptr() % 256 :]
        refused("must be contiguous", x, weight, replace(copied, data=apart[: 2 * copied.nbytes : 2]))
        refused("a copy is", x, weight, replace(copied, data=copied.data.view(torch.float32)))
        no_copies: list[Any] = [copied.data, "yes"]
        for one in no_copies:
            with pytest.raises(WeightError, match=r"prepacked is a \w+; give the PackedWeight that"):
                linear_w4a16(x, weight.data, weight.scales, prepacked=one)
        run = torch.ops.gemmtune.linear_w4a16
        with pytest.raises(WeightError, match="layout is missing"):
            run(x, weight.data, weight.scales, None, None, None, None, copied.data)
        with pytest.raises(WeightError, match="packed is missing"):
            run(x, weight.data, weight.scales, None, None, None, None, None, ROWS)


# ---- compiled, differentiated, recorded, raced ---------------------------------------------------


def test_torchs_own_checks_of_an_operator(table: Table) -> None:
    weight, eight = sample(N, K), sample(N, K, bits=8, group=-1)
    x, bias = given(4).requires_grad_(), torch.randn(N, dtype=torch.bfloat16, requires_grad=True)
    w4, w8 = torch.ops.gemmtune.linear_w4a16.default, torch.ops.gemmtune.linear_w8a16.default
    with gemmtune.torch.enable(table):
        one, other = made(weight, bias=True), made(eight)
    assert one is not None
    assert other is not None
    four = (x, weight.data, weight.scales, None, None, None, bias, one.data, one.layout)
    torch.library.opcheck(w4, four)
    torch.library.opcheck(w8, (x, eight.data, eight.scales, -1, None, other.data, other.layout))


def test_gradients_flow_to_the_input_and_the_bias(table: Table) -> None:
    weight = sample(N, K)
    grads = []
    for prepack in (True, False):
        torch.manual_seed(1)
        x = given(4).requires_grad_()
        bias = torch.randn(N, dtype=torch.bfloat16, requires_grad=True)
        with seen(table) as rows:
            out = call(x, weight, made(weight, bias=True) if prepack else None, bias)
            (out * torch.arange(N)).sum().backward()
        assert rows.take()[0] == ((4, True, COLUMNS) if prepack else None)
        grads.append((x.grad, bias.grad))
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def test_one_compiled_graph_serves_every_m(table: Table) -> None:
    weight, graphs = sample(N, K), []

    def backend(module: Any, example: Any) -> Any:
        graphs.append(module)
        return aot_eager(module, example)

    torch._dynamo.reset()
    with seen(table) as rows:
        module = QuantizedLinear(weight)
        assert module.prepack()
        compiled = torch.compile(lambda x: module(x) * 2, dynamic=True, fullgraph=True, backend=backend)
        for m in (4, 3, 2, 33):
            x = given(m)
            assert right(compiled(x) / 2, x, weight)
    torch._dynamo.reset()
    assert rows.take() == [(4, True, ROWS), (4, True, ROWS), (2, False, None), None]
    assert len(graphs) == 1


def test_a_recording_asks_for_prepacked_problems(table: Table) -> None:
    weight = sample(N, K)
    with gemmtune.torch.enable(table):
        copied = made(weight)
        with gemmtune.torch.record("cpu") as plain:
            call(given(3), weight, copied)
            call(given(3), weight, None)
    with gemmtune.torch.record("cpu", prepacked=True) as wished:
        call(given(3), weight, None)
        given(3) @ given(3).t()
    found = [{problem_from_wire(one) for one in _plain(rows)} for rows in (plain, wished)]
    assert found[0] == {packed(3), stored(3)}
    assert packed(3) in found[1]
    assert len(found[1]) == 2


def _plain(recording: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "count"} for one in recording.problems()]


def test_a_race_packs_before_it_times(
    tmp_path: Path, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmtune.torch import race

    rows = [(packed(4), ROWS)]
    old = gemmtune.load(write(tmp_path / "old.gtb", rows, cache, torch_build="1.0"))
    weight, x = sample(N, K), given(4)
    with seen(old, race=False) as found:
        assert made(weight) is None, "a row that no race has decided reads nothing"
        assert right(call(x, weight, None), x, weight)
    assert found.take() == [None]
    monkeypatch.setattr(race, "MOST", float("inf"))
    monkeypatch.setattr(race, "_CPU_BYTES", 1)
    with seen(old) as found:
        assert right(call(x, weight, made(weight)), x, weight)
    assert found.take()[-1] == (4, True, ROWS)


def test_the_example_of_the_documentation(table: Table) -> None:
    weight, x = sample(N, K), given(4)
    example = next(one for one in examples() if "prepack_w4a16" in one)
    names: dict[str, Any] = {
        "gemmtune": gemmtune, "table": table, "weight": weight.data, "scales": weight.scales, "x": x,
    }  # fmt: skip
    exec(compile(example, "docs/pytorch.md", "exec"), names)
    assert names["copy"].layout == ROWS
    assert right(names["y"], x, weight)


# ---- modules -------------------------------------------------------------------------------------


def linear(bias: bool = False) -> Any:
    added = torch.randn(N, dtype=torch.bfloat16) if bias else None
    return QuantizedLinear(sample(N, K), added)


def test_a_module_keeps_its_copy(table: Table) -> None:
    module, x = linear(), given(4)
    with seen(table) as rows:
        module(x)
        assert module.prepack()
        assert right(module(x), x, module.quantized_weight)
        module.half()  # the weights stay where they are
        module.to("cpu")
        module(x)
        assert rows.take() == [(32, True, None), (4, True, ROWS), (4, True, ROWS)]
        assert sorted(module.state_dict()) == ["scales", "weight"]
        module.drop_packed()
        module(x)
        assert rows.take() == [(32, True, None)]


def test_other_weights_have_no_copy(table: Table) -> None:
    module, x = linear(), given(4)
    with seen(table) as rows:
        assert module.prepack()
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert other.packed is None
            assert right(other(x), x, module.quantized_weight)
        file = io.BytesIO()
        torch.save(QuantizedLinear(sample(N, K, seed=1)).state_dict(), file)
        file.seek(0)
        module.load_state_dict(torch.load(file))
        assert (module.packed, module.layout) == (None, None)
        assert right(module(x), x, sample(N, K, seed=1))
        assert module.prepack()
        assert right(module(x), x, sample(N, K, seed=1))
        assert rows.take()[-1] == (4, True, ROWS)
        module.to_empty(device="cpu")
        assert (module.packed, module.layout) == (None, None)


def test_weights_that_change_leave_the_copy_unread(table: Table) -> None:
    module, x = linear(), given(4)
    changes = (
        lambda: module.scales.mul_(2),
        lambda: module.weight.copy_(sample(N, K, seed=1).data),
        lambda: setattr(module, "weight", sample(N, K, seed=2).data),
    )
    with seen(table) as rows:
        for change in changes:
            assert module.prepack()
            assert right(module(x), x, module.quantized_weight)
            change()
            assert right(module(x), x, module.quantized_weight)
            assert rows.take() == [(4, True, ROWS), (32, True, None)]
            assert copy.deepcopy(module).packed is None


def test_weights_of_inference_mode_are_packed(table: Table) -> None:
    x = given(4)
    with torch.inference_mode(), seen(table) as rows:
        module = linear()
        assert module.prepack()
        assert right(module(x), x, module.quantized_weight)
        assert rows.take() == [(4, True, ROWS)]


def test_modules_that_were_pickled_before_there_were_copies() -> None:
    module = linear()
    state = module.__getstate__()
    state.pop("packed_copy")
    two = {**state, "layout": None, "_copied": (), "_buffers": {**state["_buffers"], "packed": None},
           "_non_persistent_buffers_set": {"packed"}}  # fmt: skip
    for one in (state, two):
        old = QuantizedLinear.__new__(QuantizedLinear)
        old.__setstate__(one)
        x = given(3)
        assert right(old(x), x, module.quantized_weight)
        assert (old.packed, old.layout) == (None, None)
        assert sorted(old.state_dict()) == ["scales", "weight"]
        assert [name for name, _ in old.named_buffers()] == ["weight", "scales"]


def test_a_model_is_packed_by_name(table: Table) -> None:
    model = nn.Module()
    model.up, model.down = linear(), linear(bias=True)
    model.other = QuantizedLinear(sample(N, K, zero="none"))
    with gemmtune.torch.apply(model, table):
        assert prepack_model(model) == ["up", "down"]
    assert (model.up.layout, model.down.layout, model.other.layout) == (ROWS, COLUMNS, None)
    with pytest.raises(ServingError, match="no table is in use"):
        prepack_model(model)


def test_apply_loads_the_rows_of_both_problems(table: Table) -> None:
    model = nn.Sequential(linear())
    with gemmtune.torch.apply(model, table) as handle:
        assert handle.quantized == 1
        assert len(handle._served._kernels) == 5
