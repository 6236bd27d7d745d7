"""The regrets of search strategies, as a table and as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.report import RESULTS
from benchmarks.tables_strategies import hub_section, picture, section
from tuners.strategies import STRATEGIES


def found(*means: float) -> dict[str, Any]:
    at = {
        str(20 * place): {"mean_regret": mean, "p95_regret": 3 * mean, "share_timed": 0.1 * place}
        for place, mean in enumerate(means, 1)
    }
    return {**at["40"], "at": at}


def write(folder: Path) -> None:
    table = {
        "problems": 3,
        "rows": 1200,
        "commit": "c" * 40,
        "measured_at": "2026-01-02T03:04",
        "noise": 0.001,
    }
    small = {**table, "problems": 1, "rows": 80, "strategies": {"guided": found(0.0, 0.0)}}
    large = {**table, "strategies": {"guided": found(0.02, 0.01)}}
    document = {
        "tables": {"large.npz": large, "small.npz": small},
        "left_out": {"noisy.npz": {**table, "noise": 0.03}, "still.npz": table},
        "strategies": {"slow": found(0.04, 0.02), "guided": found(0.01, 0.005)},
        "environment": {"product": "GPU"}, "command": "python -m benchmarks.strategies",
        "measured_at": "2026-01-02T03:04", "commit": "d" * 40,
    }  # fmt: skip
    (folder / "strategies.json").write_text(json.dumps(document))


def test_the_least_regret_comes_first(tmp_path: Path) -> None:
    write(tmp_path)
    lines = section(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("| `")][:2] == [
        "| `guided` | 1.00% (3.0%) | 0.50% (1.5%) | 20% |",
        "| `slow` | 4.00% (12.0%) | 2.00% (6.0%) | 20% |",
    ]
    assert any("3 problems, 1,200 rows" in line for line in lines)


def test_the_default_strategy_has_a_row_for_each_table(tmp_path: Path) -> None:
    write(tmp_path)
    text = section(tmp_path)
    assert "| `large.npz` | 3 | 400 | 2.00% (6.0%) | 1.00% (3.0%) | 20.0% |\n" in text
    assert "| `small.npz` | 1 | 80 | 0.00% (0.0%) | 0.00% (0.0%) | 20.0% |\n" in text


def test_a_table_is_left_out_for_its_noise_only_where_it_is_the_larger(tmp_path: Path) -> None:
    write(tmp_path)
    told = {line.split("`")[1]: line for line in section(tmp_path).splitlines() if "left out" in line}
    assert "3.00%, more than that of any strategy" in told["benchmarks/recorded/noisy.npz"]
    assert told["benchmarks/recorded/still.npz"].endswith("a mean regret of 0.10%")


def test_a_line_of_the_picture_falls_where_its_regret_does(tmp_path: Path) -> None:
    write(tmp_path)
    root = ElementTree.fromstring(picture(tmp_path))
    lines = [one.get("points", "").split() for one in root if one.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [2, 2]
    heights = [[float(point.split(",")[1]) for point in points] for points in lines]
    assert heights[0][0] > heights[1][0], "guided lies below slow"
    assert heights[1][1] > heights[1][0], "less regret after more candidates"


def test_the_hubs_gpus_have_a_column_each(tmp_path: Path) -> None:
    one, two = {"slow": found(0.04, 0.02)}, {"slow": found(0.4, 0.1)}
    document = {
        "rows": {"RTX_one.json.gz": 17956, "RTX_two.json.gz": 10000},
        "strategies": {"all": {"slow": found(0.22, 0.06)}, "RTX one": one, "RTX two": two},
        "command": "python -m benchmarks.benchmark_hub",
        "measured_at": "2026-01-02T03:04",
        "commit": "d" * 40,
    }
    (tmp_path / "benchmark-hub.json").write_text(json.dumps(document))
    text = hub_section(tmp_path)
    assert "17,956 configurations (RTX_one), 10,000 configurations (RTX_two)" in text
    assert "| strategy | 20 candidates | 40 candidates | RTX one | RTX two |\n|---|---|---|---|---|\n" in text
    assert "| `slow` | 22.00% (66.0%) | 6.00% (18.0%) | 2.00% | 10.00% |\n" in text


def test_the_kept_result_is_of_strategies_that_exist() -> None:
    document = json.loads((RESULTS / "strategies.json").read_text())
    assert set(document["strategies"]) == set(STRATEGIES)
