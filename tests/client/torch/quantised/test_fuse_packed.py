"""apply(fuse=True) of QuantizedLinear siblings with packed copies: the product's, and its parts'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import QuantizedLinear, prepack_model
from torch import nn

from backends.cache import BinaryCache
from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from tests.client.packed_rows import COLUMNS, ROWS, write
from tests.client.torch.quantised import emulated
from tests.client.torch.quantised.conftest import K, weights
from tests.client.torch.quantised.samples import right, sample

if TYPE_CHECKING:
    from gemmtune import Table

pytestmark = pytest.mark.compiler
#: Outputs of q, k and v.
SIZES = (16, 8, 8)
NAMES = ["q_proj", "k_proj", "v_proj"]


class Attention(nn.Module):  # type: ignore[misc]
    """Three projections of one input."""

    def __init__(self, sizes: Sequence[int] = SIZES, bias: bool = False, k: int = K) -> None:
        super().__init__()
        for number, (name, n) in enumerate(zip(NAMES, sizes, strict=True)):
            added = torch.randn(n, dtype=torch.bfloat16) if bias else None
            setattr(self, name, QuantizedLinear(sample(n, k, seed=number), added))

    @property
    def projections(self) -> tuple[Any, ...]:
        return self.q_proj, self.k_proj, self.v_proj

    def forward(self, x: Any) -> tuple[Any, ...]:
        return tuple(one(x) for one in self.projections)


def packed(m: int, n: int = sum(SIZES), **options: Any) -> GemmProblem:
    return weights(m, n=n, prepacked=True, **{"zero": "eight", **options})


def stored(m: int, n: int = sum(SIZES), **options: Any) -> GemmProblem:
    return weights(m, n=n, **{"zero": "eight", **options})


def given(m: int, k: int = K) -> Any:
    torch.manual_seed(m)
    return torch.randn(m, k, dtype=torch.bfloat16)


def ran(model: Attention, m: int, call: Any = None) -> list[tuple[int, bool]]:
    """Runs the model, or what was compiled of it, on m rows, and compares its outputs: n of each call, and
    whether a row ran."""
    x = given(m, model.q_proj.in_features)
    with gemmtune.torch.report() as count:
        outputs = model(x) if call is None else call(x)
    parts = zip(model.projections, outputs, strict=True)
    assert all(right(out, x, one.quantized_weight, one.bias) for one, out in parts)
    return sorted((line.n, line.hit) for line in count.report().lines for _ in range(line.calls))


ALONE = [(8, True), (8, True), (16, True)]
BY_TORCH = [(8, False), (8, False), (16, False)]
MERGED = [(32, True)]


def made(path: Path, cache: BinaryCache, *rows: tuple[GemmProblem, str | None]) -> Table:
    return gemmtune.load(write(path / "rows.gtb", rows, cache))


def parts(m: int, layout: str | None, **options: Any) -> list[tuple[GemmProblem, str | None]]:
    return [(packed(m, n, **options), layout) for n in (16, 8)]


@pytest.mark.parametrize("bias", [False, True])
def test_the_product_of_all_has_a_copy_whose_parts_are_the_modules(
    tmp_path: Path, cache: BinaryCache, bias: bool
) -> None:
    of: dict[str, Any] = {"bias": "bf16"} if bias else {}
    table = made(tmp_path, cache, (packed(4, **of), ROWS), *parts(4, ROWS, **of), *parts(9, ROWS, **of))
    model = Attention(bias=bias)
    with gemmtune.torch.apply(model, table, fuse=True) as handle:
        assert handle.fused == 1
        assert ran(model, 4) == BY_TORCH, "a copy is made by prepack_model() alone"
        assert prepack_model(model) == NAMES
        assert ran(model, 4) == MERGED
        assert ran(model, 9) == ALONE, "each by its part of the copy"
        storages = {one.packed.untyped_storage().data_ptr() for one in model.projections}
        assert len(storages) == 1
        assert [one.packed.numel() for one in model.projections] == [4 * n * K for n in SIZES]
        assert 0 <= handle.packed_bytes - 4 * 32 * K <= 256, "no more than alignment"
        assert prepack_model(model) == NAMES
        assert ran(model, 4) == MERGED
    with gemmtune.torch.enable(table):
        assert ran(model, 4) == ALONE


def test_modules_in_another_order_share_a_copy(tmp_path: Path, cache: BinaryCache) -> None:
    """OPT has k_proj and v_proj before q_proj."""
    table = made(tmp_path, cache, (packed(4), ROWS), *parts(4, ROWS))
    model = Attention()
    first = model._modules.pop("q_proj")
    model.q_proj = first
    with gemmtune.torch.apply(model, table, fuse=True):
        assert prepack_model(model) == ["k_proj", "v_proj", "q_proj"]
        assert ran(model, 4) == MERGED
        assert len({one.packed.untyped_storage().data_ptr() for one in model.projections}) == 1


def test_copies_that_are_no_parts_lie_apart(tmp_path: Path, cache: BinaryCache) -> None:
    table = made(tmp_path, cache, (packed(4), COLUMNS), *parts(4, COLUMNS), *parts(9, COLUMNS))
    model = Attention()
    with gemmtune.torch.apply(model, table, fuse=True) as handle:
        assert handle.packed_bytes == 0
        assert prepack_model(model) == NAMES
        assert (ran(model, 4), ran(model, 9)) == (MERGED, ALONE)
        assert 0 <= handle.packed_bytes - 2 * 4 * 32 * K <= 4 * 256, "twice"
    assert len({one.packed.untyped_storage().data_ptr() for one in model.projections}) == 3


def test_modules_that_were_packed_before_are_merged(tmp_path: Path, cache: BinaryCache) -> None:
    table = made(tmp_path, cache, (packed(4), ROWS), *parts(4, ROWS), (stored(2), None))
    model = Attention()
    with gemmtune.torch.enable(table):
        assert prepack_model(model) == NAMES
    with gemmtune.torch.apply(model, table, fuse=True) as handle:
        assert handle.fused == 1
        assert ran(model, 4) == ALONE, "the product has no copy yet"
        assert ran(model, 2) == MERGED, "by weights as they are stored"
        assert prepack_model(model) == NAMES
        assert ran(model, 4) == MERGED


def test_rows_of_the_product_alone(tmp_path: Path, cache: BinaryCache) -> None:
    table = made(tmp_path, cache, (packed(4), ROWS))
    model = Attention()
    with gemmtune.torch.apply(model, table, fuse=True):
        assert prepack_model(model) == NAMES
        assert [one.packed for one in model.projections] == [None] * 3
        assert (ran(model, 4), ran(model, 9)) == (MERGED, BY_TORCH)
        model.k_proj.drop_packed()
        assert ran(model, 4) == BY_TORCH


def test_the_faster_of_the_product_and_its_parts_runs(tmp_path: Path, cache: BinaryCache) -> None:
    table = made(tmp_path, cache, (stored(4), None), *parts(4, ROWS))
    model = Attention()
    with gemmtune.torch.apply(model, table, fuse=True) as handle:
        assert prepack_model(model) == NAMES
        assert ran(model, 4) == MERGED, "one launch takes the verdicts' time, three take three times as long"
        (group,) = handle._weight_groups
        (slow,) = (row for row in group.tuned() if row.product.m == 4)
        object.__setattr__(slow.row.verdict, "seconds", 1.0)
        assert ran(model, 4) == ALONE


def test_other_weights_are_in_no_copy(tmp_path: Path, cache: BinaryCache) -> None:
    table = made(tmp_path, cache, (packed(4), ROWS), *parts(4, ROWS))
    model = Attention()
    with gemmtune.torch.apply(model, table, fuse=True):
        prepack_model(model)
        model.k_proj.load_state_dict(QuantizedLinear(sample(8, K, seed=7)).state_dict())
        assert ran(model, 4) == [(8, False), (8, True), (16, True)]
        assert prepack_model(model) == NAMES
        assert ran(model, 4) == MERGED
        for one in model.projections:  # in place, without the modules' knowing
            one.scales.mul_(2)
            one.hold(None)
        assert ran(model, 4) == BY_TORCH
        model.v_proj.scales = model.v_proj.scales.clone()  # no longer a part of the merged weights
        assert prepack_model(model) == NAMES
        assert ran(model, 4) == ALONE


def test_a_copy_of_another_table_is_not_read(
    tmp_path: Path, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path, cache, (packed(4), ROWS))
    found = gemmtune.load(write(tmp_path / "other.gtb", [(packed(4), COLUMNS)], cache)).rows
    model = Attention()
    with gemmtune.torch.apply(model, table, fuse=True) as handle:
        prepack_model(model)
        monkeypatch.setattr(type(table), "rows", property(lambda _: found))
        monkeypatch.setattr(type(table), "digest", property(lambda _: "newer"))
        monkeypatch.setattr(type(table), "refresh", lambda _: True)
        assert handle.refresh()
        assert ran(model, 4) == BY_TORCH


def test_compiled_siblings_read_the_products_copy(
    tmp_path: Path, cache: BinaryCache, compiling: None
) -> None:
    table = made(tmp_path, cache, (packed(4), ROWS), *parts(4, ROWS))
    model = Attention()
    with torch.no_grad(), gemmtune.torch.apply(model, table, fuse=True):
        prepack_model(model)
        compiled = torch.compile(model, fullgraph=True)
        assert ran(model, 4, compiled) == MERGED
        model.k_proj.prepack()  # a copy of its own again
        assert ran(model, 4, compiled) == ALONE


def test_compiled_siblings_of_copies_apart_compute_alone(
    tmp_path: Path, cache: BinaryCache, compiling: None
) -> None:
    table = made(tmp_path, cache, (packed(4), COLUMNS), *parts(4, COLUMNS))
    model = Attention()
    with torch.no_grad(), gemmtune.torch.apply(model, table, fuse=True):
        prepack_model(model)
        compiled = torch.compile(model, fullgraph=True)
        assert ran(model, 4, compiled) == ALONE


def test_records_of_sixteen_rows_are_parts_of_the_products_copy(tmp_path: Path, cache: BinaryCache) -> None:
    """By the family's own kernels, emulated. The copies lie apart where k_proj has half a record, and where
    a part would begin between two multiples of 256 bytes."""
    cases = (((32, 16, 16), 1024, 1), ((16, 8, 8), 1024, 3), ((32, 16, 16), 256, 3))
    for number, (sizes, k, storages) in enumerate(cases):
        rows = [(packed(4, n, k=k), "packed-mma") for n in sorted({sum(sizes), *sizes})]
        table = gemmtune.load(emulated.write(tmp_path / f"{number}.gtb", rows, cache))
        model = Attention(sizes, k=k)
        with gemmtune.torch.apply(model, table, fuse=True) as handle:
            assert prepack_model(model) == NAMES
            assert ran(model, 4) == [(sum(sizes), True)]
            (group,) = handle._weight_groups
            parts_of = [one.packed for one in model.projections if one.packed is not None]
            assert len(parts_of) == 3
            assert group.packed_data is not None
            kept = group.packed_data.numel()
            kept += sum(one.numel() for one in parts_of) if storages == 3 else 0
            assert 0 <= handle.packed_bytes - kept <= 4 * 256, "one copy of all, or two; and their alignment"
            x = given(4, k)
            assert right(model.k_proj(x), x, model.k_proj.quantized_weight), "one alone has its part"
        assert len({one.packed.untyped_storage().data_ptr() for one in model.projections}) == storages


@pytest.mark.parametrize("prepacked", [False, True])
def test_recording_names_the_product_of_all(prepacked: bool) -> None:
    model = Attention(bias=True)
    with gemmtune.torch.record("cpu", model=model, fuse=True, prepacked=prepacked) as recording:
        model(given(4))
    found = {(problem_from_wire({k: v for k, v in one.items() if k != "count"}), one["count"])
             for one in recording.problems()}  # fmt: skip
    make = packed if prepacked else stored
    assert found == {(make(4, n, bias="bf16"), 1 if n != 8 else 2) for n in (32, 16, 8)}
