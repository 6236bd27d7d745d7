"""Rows of another environment are off until a race has found them faster than torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import operands, race, served
from gemmtune.torch.environment import differences
from gemmtune.torch.layouts import Product
from gemmtune.torch.served import Served
from gemmtune.torch.tuned_row import TunedRow
from torch import nn

from backends.problem import from_bmm, from_linear, from_mm
from tests.client.torch.close import close
from tests.client.torch.conftest import K, N

if TYPE_CHECKING:
    from gemmtune import Table


@pytest.fixture
def elsewhere(make_table: Any) -> Table:
    """A table that was measured with another torch."""
    table: Table = make_table([from_linear(8, N, K, "fp32")], torch_build="1.0")
    return table


def hits(table: Table, **options: Any) -> int:
    module, x = nn.Linear(K, N, bias=False).requires_grad_(False), torch.randn(8, K)
    with gemmtune.torch.apply(module, table, **options), gemmtune.torch.report() as count:
        found = module(x)
    if torch.get_float32_matmul_precision() == "highest":  # else a processor may multiply in bf16
        assert close(found, x, module.weight.t())
    return count.report().hits


@pytest.mark.parametrize(("share", "used"), [(0.5, 1), (1.2, 0)])
def test_a_race_decides(elsewhere: Table, monkeypatch: pytest.MonkeyPatch, share: float, used: int) -> None:
    raced = []

    def timed(row: Any, sets: Any) -> float:
        raced.append(row)
        assert len({one.a.data_ptr() for one in sets}) == len(sets) > 1
        return share

    monkeypatch.setattr(race, "timed_on_cpu", timed)
    assert hits(elsewhere) == used
    assert hits(elsewhere) == used  # from the file
    assert len(raced) == 1


def test_without_a_race_the_rows_stay_off(elsewhere: Table) -> None:
    assert hits(elsewhere, race=False) == 0
    with gemmtune.torch.apply(nn.Linear(K, N), elsewhere, race=False) as handle:
        assert handle.pending == 1


def test_rows_that_no_time_is_left_for_stay_off(elsewhere: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race.race_rows, "__defaults__", (0, -1.0))
    assert hits(elsewhere) == 0


def test_rows_of_this_environment_are_not_raced(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_raced", lambda *_: pytest.fail("raced"))
    assert hits(table) == 1


def test_a_race_times_both_sides(make_table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race.race_rows, "__defaults__", (0, 60.0))  # however busy the machine is
    table = make_table(
        [
            from_linear(8, N, K, "fp32", bias="fp32"), from_mm(40, N, K, "bf16", beta=1.0),
            from_bmm(3, 8, 24, K, "fp32"), from_mm(N, K, 40, "fp32", trans_a="T", lda=N + 16),
        ],
        torch_build="1.0",
    )  # fmt: skip
    with gemmtune.torch.enable(table):
        pass
    (file,) = (tmp_path / "gemmtune" / "races").iterdir()
    shares = json.loads(file.read_text())
    assert len(shares) == 4
    assert all(0 < share < 1000 for share in shares.values())


def test_a_broken_file_is_raced_again(elsewhere: Table, tmp_path: Path) -> None:
    hits(elsewhere)
    (file,) = (tmp_path / "gemmtune" / "races").iterdir()
    file.write_text("{")
    hits(elsewhere)
    assert len(json.loads(file.read_text())) == 1


def raced_file(tmp_path: Path) -> Path:
    return tmp_path / "gemmtune" / "races"


def test_what_torch_cannot_race_stays_pending_with_a_warning(
    elsewhere: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(race, "make", full)
        with (
            pytest.warns(RuntimeWarning, match=r"tn_48x8x32_fp32.*cannot be raced.*no memory"),
            gemmtune.torch.apply(nn.Linear(K, N, bias=False), elsewhere) as handle,
        ):
            assert handle.pending == 1
    assert not raced_file(tmp_path).exists()
    monkeypatch.setattr(race, "timed_on_cpu", lambda *_: 0.5)
    assert hits(elsewhere) == 1


def test_rows_of_another_precision_are_raced_later(
    elsewhere: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(race, "timed_on_cpu", lambda *_: 0.5)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert hits(elsewhere) == 0
    finally:
        torch.set_float32_matmul_precision(before)
    assert not raced_file(tmp_path).exists()
    assert hits(elsewhere) == 1


def test_a_row_that_cannot_be_launched_is_raced_by_the_next_process(
    elsewhere: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(TunedRow, "launch", lambda *_: False)
        assert hits(elsewhere) == 0
    assert not raced_file(tmp_path).exists()
    raced_file(tmp_path).mkdir(parents=True)
    file = race._file(Served(elsewhere))
    (row,) = elsewhere.rows
    file.write_text(json.dumps({f"{row.problem_id} ({row.solution.id})": float("inf")}))  # of an older client
    monkeypatch.setattr(race, "timed_on_cpu", lambda *_: 0.5)
    assert hits(elsewhere) == 1


def test_a_race_is_on_the_device_that_was_opened(elsewhere: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    raced = []
    monkeypatch.setattr(race, "_raced", lambda served, row, index: raced.append(index))
    monkeypatch.setattr(Served, "open", lambda *_: None)
    gemmtune.torch.enable(elsewhere, device=1).disable()
    assert raced == [1]


def test_a_race_leaves_torchs_state_alone(elsewhere: Table, tmp_path: Path) -> None:
    module = nn.Linear(K, N, bias=False)
    scaled = Product(4, N, K, (False, K), (True, K), torch.float8_e4m3fn, torch.bfloat16,
                     scale_a="outer", scale_b="outer")  # fmt: skip
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.bfloat16)
    try:
        gemmtune.torch.apply(module, elsewhere).disable()
        assert {one.dtype for one in operands.make(scaled, "cpu").scales} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)
    assert list(raced_file(tmp_path).iterdir())
    assert torch.equal(torch.get_rng_state(), state)


def test_only_what_both_state_is_compared() -> None:
    stated = {"driver": "580", "runtime": "CUDA 13.0", "libraries": {"torch": "2.11", "nvrtc": "13"}}
    assert differences(stated, {"torch": "2.11", "driver": "580", "cublaslt": "130"}) == []
    assert differences(stated, {"torch": "2.12"}) == ["torch 2.11 there, 2.12 here"]


def test_a_cublaslt_of_another_major_version_is_not_torchs() -> None:
    stated = {"libraries": {"cublaslt": "130100"}}
    assert differences(stated, {"cublaslt": "120805"}) == []
    assert len(differences(stated, {"cublaslt": "130200"})) == 1


def test_rows_whose_default_torch_does_not_run_are_left_out(make_table: Any) -> None:
    table = make_table([from_linear(8, N, K, "fp32")], default="openblas_upcast")
    module, x = nn.Linear(K, N, bias=False).requires_grad_(False), torch.randn(8, K)
    with gemmtune.torch.apply(module, table) as handle, gemmtune.torch.report() as count:
        module(x)
    assert handle.left_out == {"judged against openblas_upcast, which torch does not run": 1}
    assert (count.report().hits, handle.modules) == (0, 0)


def test_rows_of_an_unknown_default_are_raced(make_table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table([from_linear(8, N, K, "fp32")], default=None)
    assert hits(table, race=False) == 0
    monkeypatch.setattr(race, "timed_on_cpu", lambda row, sets: 0.5)
    assert hits(table) == 1


def test_the_defaults_are_those_of_the_exports() -> None:
    from backends import export_targets

    assert served.TORCH_DEFAULTS == export_targets.TORCH_DEFAULTS
