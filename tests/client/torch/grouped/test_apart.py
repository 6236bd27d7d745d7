"""Products with swiglu where a table has rows with it and without: the times of the rows decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import grouped_mm, moe
from gemmtune.torch.grouped import apart
from gemmtune.torch.grouped.products import GroupedProduct

from backends.cache import BinaryCache
from backends.problem import GemmProblem, from_linear
from backends.wire import problem_from_wire
from tests.client.torch.grouped.test_gated import E, K, N, layer, operands, right
from tests.client.torch.quantised.emulated import write

Write = Callable[[Mapping[GemmProblem, float]], gemmtune.Table]
#: Rows of the products; one step behind a product takes so long by the estimate.
M, STEP = 14, apart.activation_seconds(GroupedProduct(14, E, N, K, torch.bfloat16))


def plain(m: int = M, routing: str = "uniform") -> GemmProblem:
    return from_linear(m, N, K, "bf16", groups=E, routing=routing)


def gated(m: int = M, routing: str = "uniform") -> GemmProblem:
    return from_linear(m, N, K, "bf16", groups=E, routing=routing, activation="swiglu")


@pytest.fixture
def table(cache: BinaryCache, tmp_path: Path) -> Write:
    def make(seconds: Mapping[GemmProblem, float]) -> gemmtune.Table:
        rows = [(one, "grouped-ring") for one in seconds]
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gtb"
        return gemmtune.load(write(path, rows, cache, default="torch-grouped", seconds=seconds))

    return make


def ran(count: Any) -> Iterator[tuple[str, int, bool]]:
    """The products of N columns that ran: what is said of their type, their calls, and whether by a row."""
    for line in count.report().lines:
        if line.n == N:
            yield line.dtype, line.calls, line.hit


PLAIN, GATED = f"bf16 in {E} groups", f"bf16 in {E} groups, swiglu"


@pytest.mark.parametrize(
    ("more", "runs"),
    [(-5e-6, GATED), (0.0, GATED), (0.9 * STEP, GATED), (1.1 * STEP, PLAIN), (1e-3, PLAIN)],
)
def test_the_faster_way_runs(table: Write, more: float, runs: str) -> None:
    """`more`: what the row with the activation takes more than the one without."""
    counts = [6, 0, 5, 3]
    x, w, offs = operands(counts)
    made = table({plain(): 1e-5, gated(): 1e-5 + more})
    with gemmtune.torch.enable(made), gemmtune.torch.report() as count:
        out = grouped_mm(x, w, offs, activation="swiglu")
        again = grouped_mm(x, w, offs, activation="swiglu")
    assert list(ran(count)) == [(runs, 2, True)]
    assert torch.equal(out, again)
    assert (out.shape, out.dtype) == ((M, N // 2), torch.bfloat16)
    assert right(out, x, w, counts)


@pytest.mark.parametrize(("seconds", "runs"), [(0.5, GATED), (2.0, PLAIN)])
def test_a_layer_takes_the_faster_way(table: Write, seconds: float, runs: str) -> None:
    given = layer(M // 2)
    wanted = moe(*given)
    down = from_linear(M, K, N // 2, "bf16", groups=E)
    made = table({plain(): 1.0, gated(): seconds, down: 1.0})
    with gemmtune.torch.enable(made), gemmtune.torch.report() as count:
        found = moe(*given)
    assert list(ran(count)) == [(runs, 1, True)]
    assert (count.report().hits, count.report().misses) == (2, 0)
    assert torch.allclose(found.float(), wanted.float(), rtol=0.05, atol=0.01)


@pytest.mark.parametrize(("rows", "runs"), [([gated()], GATED), ([plain()], PLAIN)])
def test_the_only_row_runs_however_slow_it_is(table: Write, rows: list[GemmProblem], runs: str) -> None:
    x, w, offs = operands([6, 0, 5, 3])
    with gemmtune.torch.enable(table(dict.fromkeys(rows, 1.0))), gemmtune.torch.report() as count:
        grouped_mm(x, w, offs, "swiglu")
    assert list(ran(count)) == [(runs, 1, True)]


def test_each_call_is_decided_by_the_rows_that_would_serve_it(table: Write) -> None:
    """14 rows by rows of 14; 20 rows by the plain row of 28 or, with the activation, that of 24."""
    made = table({plain(14): 1e-5, gated(14): 9e-5, plain(28): 9e-5, gated(24): 2e-5})
    with gemmtune.torch.enable(made):
        for counts, wanted in (([6, 0, 5, 3], PLAIN), ([6, 6, 5, 3], GATED)):
            x, w, offs = operands(counts)
            with gemmtune.torch.report() as count:
                out = grouped_mm(x, w, offs, "swiglu")
            assert list(ran(count)) == [(wanted, 1, True)]
            assert right(out, x, w, counts)


def test_rows_of_other_routings_are_not_compared(table: Write) -> None:
    x, w, offs = operands([6, 0, 5, 3])
    made = table({plain(): 1e-5, gated(routing="skewed"): 1.0})
    with gemmtune.torch.enable(made), gemmtune.torch.report() as count:
        grouped_mm(x, w, offs, "swiglu")
    assert list(ran(count)) == [(GATED, 1, True)]


@pytest.mark.parametrize(("retired", "runs"), [(plain(), GATED), (gated(), PLAIN)])
@pytest.mark.parametrize("faster", ["plain", "gated"])
def test_a_row_that_may_not_run_leaves_the_product_to_the_other(
    table: Write, retired: GemmProblem, runs: str, faster: str
) -> None:
    x, w, offs = operands([6, 0, 5, 3])
    made = table({plain(): 1e-5, gated(): 1e-6 if faster == "gated" else 1e-3})
    with gemmtune.torch.enable(made), gemmtune.torch.report() as count:
        served = serving()
        for one in served.rows:
            one.live = one.row.problem_id != retired.id
        out = grouped_mm(x, w, offs, "swiglu")
    assert list(ran(count)) == [(runs, 1, True)]
    assert right(out, x, w, [6, 0, 5, 3])


def serving() -> Any:
    """The table that serves the CPU."""
    served = gemmtune.torch.served.current("cpu")
    assert served is not None
    return served


def test_it_is_decided_once_for_each_number_of_rows(table: Write) -> None:
    x, w, offs = operands([6, 0, 5, 3])
    made = table({plain(): 1e-5, gated(): 1e-3})
    with (
        gemmtune.torch.enable(made),
        mock.patch.object(apart, "_runs_apart", wraps=apart._runs_apart) as decide,
    ):
        for _ in range(3):
            grouped_mm(x, w, offs, "swiglu")
        assert decide.call_count == 1
        grouped_mm(x[:9], w, torch.tensor([4, 4, 9, 9], dtype=torch.int32), "swiglu")
        assert decide.call_count == 2
        serving()._index()  # as after a refresh
        grouped_mm(x, w, offs, "swiglu")
        assert decide.call_count == 3


def test_what_is_remembered_has_a_limit(table: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_MOST_KNOWN", 3)
    with gemmtune.torch.enable(table({plain(): 1e-5, gated(): 1e-3})):
        product = GroupedProduct(1, E, N, K, torch.bfloat16, activation="swiglu")
        for m in range(1, 12):
            assert apart.runs_apart(serving(), product._replace(m=m)) is True
            assert len(serving().apart[product.key]) <= 3


def test_a_recording_has_both_whichever_ran(table: Write) -> None:
    """So that a later tuning may find a faster row of either."""
    made = table({plain(): 1e-5, gated(): 1e-3})
    with gemmtune.torch.enable(made), gemmtune.torch.record(device_type="cpu") as recording:
        grouped_mm(*operands([6, 0, 5, 3]), "swiglu")
    found = [
        problem_from_wire({k: v for k, v in one.items() if k != "count"}) for one in recording.problems()
    ]
    assert set(found) == {gated(), plain()}


def test_the_estimate_counts_a_launch_and_what_it_moves() -> None:
    """8192 rows of Mixtral's gate and up are 0.7 GB, which an H100 moved in 241 us."""
    mixtral = GroupedProduct(8192, 8, 28672, 4096, torch.bfloat16)
    assert apart.activation_seconds(mixtral._replace(m=0)) == apart.LAUNCH_SECONDS
    assert apart.activation_seconds(mixtral) == pytest.approx(1.5e-6 + 704_643_072 / 4.8e12)
    assert apart.activation_seconds(mixtral) < 241e-6
