"""Table: what a program asks, and what happens when its source changes."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import gemmtune
import pytest
from gemmtune import problem

from tests.client import bundles


def test_rows_are_found_by_the_wire_form_and_by_the_key(tmp_path: Path) -> None:
    table = gemmtune.load(bundles.simple(tmp_path / "b.gtb", count=3))
    row = table.best(m=2, n=3, k=5, dtype="fp32")
    assert row is not None
    assert row.wire == {"m": 2, "n": 3, "k": 5, "dtype": "fp32"}
    assert table.find(problem.mm(2, 3, 5, "fp32")) is row
    assert table.best(m=2, n=3, k=5, dtype="float32", epilogue="none") is row
    assert table.best(m=4, n=3, k=5, dtype="fp32") is None
    assert table.best(m=2, n=3, k=5, dtype="bf16") is None
    assert table.best(m=2, n=3, k=5, dtype="fp32", trans_b=True) is None
    with pytest.raises(gemmtune.ProblemError, match="unknown field 'mode'"):
        table.best(m=2, n=3, k=5, mode="eager")


def test_what_a_table_says_of_itself(tmp_path: Path) -> None:
    path = bundles.simple(tmp_path / "b.gtb", count=3)
    table = gemmtune.load(str(path))
    assert str(table.device) == bundles.DEVICES["cuda"]
    assert len(table.digest) == 64
    assert table.policy["id"] == "eager-cold-1"
    assert list(table.environments) == ["here"]
    assert [row.canonical["n"] for row in table.rows] == [1, 2, 3]


def test_a_pinned_digest(tmp_path: Path) -> None:
    path = bundles.simple(tmp_path / "b.gtb")
    digest = gemmtune.load(path).digest
    assert gemmtune.load(path, digest=digest.upper()).digest == digest
    assert gemmtune.load(path, digest=f"sha256:{digest}").digest == digest
    with pytest.raises(gemmtune.BundleError, match=f"has the digest {digest}, not {'0' * 64}"):
        gemmtune.load(path, digest="0" * 64)
    with pytest.raises(gemmtune.BundleError, match="must be the 64 hex digits"):
        gemmtune.load(path, digest="abc")


def test_the_device_is_selected(tmp_path: Path) -> None:
    path = bundles.simple(tmp_path / "b.gtb")
    for selector in ("cuda", "CUDA:SM_90", bundles.DEVICES["cuda"]):
        assert gemmtune.load(path, device=selector).rows
    with pytest.raises(gemmtune.BundleError, match=r"is for cuda:sm_90:.*, not for 'cuda:sm_9'"):
        gemmtune.load(path, device="cuda:sm_9")


def test_a_refresh_serves_the_new_rows_at_once(tmp_path: Path) -> None:
    path = bundles.simple(tmp_path / "b.gtb", count=1)
    table = gemmtune.load(path)
    before = table.rows[0]
    assert table.refresh() is False
    bundles.simple(tmp_path / "new", count=2).replace(path)
    assert table.best(m=2, n=3, k=5, dtype="fp32") is None
    assert table.refresh() is True
    assert table.best(m=2, n=3, k=5, dtype="fp32") is not None
    assert len(table.rows) == 2
    assert before.bundle.digest != table.digest
    assert before.bundle.binary(before.launches[0].binary) == bundles.gemm_binary()


def test_a_source_that_is_away_warns_once(tmp_path: Path) -> None:
    path = bundles.simple(tmp_path / "b.gtb", count=2)
    table = gemmtune.load(path)
    path.unlink()
    with pytest.warns(RuntimeWarning, match="serves the rows of bundle .*cannot be read") as caught:
        assert table.refresh() is False
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table.refresh() is False
    assert len(table.rows) == 2


def test_a_source_that_changes_its_device(tmp_path: Path) -> None:
    path = bundles.simple(tmp_path / "b.gtb")
    table = gemmtune.load(path)
    bundles.simple(path, "hip")
    with pytest.raises(gemmtune.BundleError, match=r"now has hip:.*, this table serves cuda:"):
        table.refresh()
    assert table.rows[0].launched_by == "cuLaunchKernelEx"


def test_threads_see_one_table_or_the_other(tmp_path: Path) -> None:
    """Readers never see rows of one bundle with the index of another."""
    small, large = bundles.simple(tmp_path / "1", count=1), bundles.simple(tmp_path / "2", count=9)
    path = bundles.simple(tmp_path / "b.gtb", count=1)
    table, stop, odd = gemmtune.load(path), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            rows = table.rows
            if len(rows) not in (1, 9) or table.find(rows[0].key) is None:
                odd.append(len(rows))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        path.unlink()
        path.write_bytes((large if number % 2 == 0 else small).read_bytes())
        assert table.refresh() is True
    stop.set()
    for thread in threads:
        thread.join()
    assert odd == []
