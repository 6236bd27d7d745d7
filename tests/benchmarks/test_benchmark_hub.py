"""benchmark_hub's files: fetched once, read, and searched with one GPU left out."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from backends.errors import ReadError
from backends.outcome import Status
from benchmarks import benchmark_hub as hub
from tuners.recorded_table import RecordedTable

TITAN = hub.FILES["RTX_Titan.json.gz"]


def cache(slower: float = 1.0) -> dict[str, Any]:
    """A file of Kernel Tuner's: 64 configurations, of which 128 x 128 with vectors of 4 is the fastest."""
    rows = {}
    for m, n, v, w in product((16, 32, 64, 128), (16, 32, 64, 128), (2, 4), (2, 4)):
        values = {**hub.DEFAULT, "MWG": m, "NWG": n, "VWM": v, "VWN": w}
        time = slower * (1 + 128 / m + 128 / n + 4 / v + 4 / w)
        rows[",".join(map(str, values.values()))] = {**values, "time": time, "times": [time] * 4}
    return {"tune_params_keys": list(hub.DEFAULT), "cache": rows}


def written(path: Path, content: Any) -> Path:
    with gzip.open(path, "wt") as file:
        json.dump(content, file)
    return path


@pytest.fixture
def tables(tmp_path: Path) -> list[RecordedTable]:
    """Three GPUs; to each of them the same configuration is the best."""
    return [
        hub.read(written(tmp_path / name, cache(slower)), hub.FILES[name].environment)
        for name, slower in zip(hub.FILES, (1.0, 2.0, 3.0), strict=False)
    ]


def test_half_of_the_runs_is_what_no_search_sees(tmp_path: Path) -> None:
    content = cache()
    values = next(iter(content["cache"].values()))
    values["times"], values["time"] = [1.0, 2.0, 3.0, 4.0], 2.5
    (recorded,) = hub.read(written(tmp_path / "a.gz", content), TITAN.environment).problems
    assert len(recorded.rows) == 64
    (row,) = [row for row in recorded.rows if row.first == (1e-3, 2e-3)]
    assert row.second == (3e-3, 4e-3)
    ((name, default),) = recorded.baselines
    assert name == "CLBlast's default"
    assert [dict(row.solution.parameters) for row in recorded.rows if row.solution.id == default] == [
        dict(hub.DEFAULT)
    ]


@pytest.mark.parametrize("time", ["RuntimeFailedConfig", 1e20])
def test_a_configuration_that_did_not_run_has_no_time(tmp_path: Path, time: object) -> None:
    content = cache()
    next(iter(content["cache"].values()))["time"] = time
    (recorded,) = hub.read(written(tmp_path / "a.gz", content), TITAN.environment).problems
    assert [row.seconds for row in recorded.rows if row.status is not Status.OK] == [None]


@pytest.mark.parametrize("content", [{}, {"tune_params_keys": ["MWG"], "cache": {"16": {}}}, [], 3])
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ReadError, match="as a cache of Kernel Tuner"):
        hub.read(written(tmp_path / "a.gz", content), TITAN.environment)
    whole = (tmp_path / "a.gz").read_bytes()
    for wrong in (whole[: len(whole) // 2], b"no gzip"):
        (tmp_path / "b.gz").write_bytes(wrong)
        with pytest.raises(ReadError, match="as a cache of Kernel Tuner"):
            hub.read(tmp_path / "b.gz", TITAN.environment)


def test_the_other_gpus_winners_are_known_and_the_own_are_not(tables: list[RecordedTable]) -> None:
    own = tables[1]
    known = hub.fastest_elsewhere(tables, own)
    assert {one.environment.product for one in known} == {
        one.environment.product for one in tables if one is not own
    }
    assert known[0].ratio == pytest.approx(5 / 9)  # 128 x 128, against the default's 64 x 64


def test_guided_finds_what_is_best_elsewhere(tables: list[RecordedTable]) -> None:
    figures = hub.compare(tables, ["guided"], 1)
    assert list(figures) == ["all", *(one.environment.product for one in tables)]
    assert figures["all"]["guided"]["mean_regret"] == pytest.approx(0, abs=1e-3)


def test_a_file_is_fetched_once_and_only_if_it_is_the_right_one(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    content = written(there / "one.gz", cache()).read_bytes()
    files = {"one.gz": replace(TITAN, sha256=hashlib.sha256(content).hexdigest())}
    assert hub.fetch(here, there.as_uri(), files) == [here / "one.gz"]
    assert (here / "one.gz").read_bytes() == content
    (there / "one.gz").unlink()
    hub.fetch(here, there.as_uri(), files)

    (there / "two.gz").write_bytes(b"another file")
    with pytest.raises(ReadError, match=r"two\.gz has the SHA-256 .*, not 85d4f512"):
        hub.fetch(here, there.as_uri(), {"two.gz": TITAN})
    assert not (here / "two.gz").exists()


def test_files_that_are_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        hub.main([str(tmp_path)])
    assert "lacks RTX_2080_Ti.json.gz" in capsys.readouterr().err
