"""Rows of another environment are off until a race has found them faster than torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import race, served
from gemmtune.torch.environment import differences
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
        assert close(module(x), x, module.weight.t())
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
    monkeypatch.setattr(race.race_rows, "__defaults__", (-1.0,))
    assert hits(elsewhere) == 0


def test_rows_of_this_environment_are_not_raced(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_raced", lambda *_: pytest.fail("raced"))
    assert hits(table) == 1


def test_a_race_times_both_sides(make_table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race.race_rows, "__defaults__", (60.0,))  # however busy the machine is
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
