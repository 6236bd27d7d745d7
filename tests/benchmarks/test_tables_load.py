"""What a service does under load and while its processes are killed, as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS
from benchmarks.tables_load import section

PROBED = {"p99_ms": 12.4, "worst_ms": 99.6, "seconds": 20.0}


def write(folder: Path, name: str, **values: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "load_average": 1.25, **values}))


def test_every_figure_stands_in_its_row(tmp_path: Path) -> None:
    write(
        tmp_path, "load-lookups", connections=16, workers=8, streams=500, imports=5, import_bytes=6e6,
        share=0.7251, loaded_per_second=2901.2, idle_per_second=4001.0, loaded_p99_ms=31.2, idle_p99_ms=9.8,
        server_mib=210.4, rows_stored=100_000,
    )  # fmt: skip
    flood = {"idle": {**PROBED, "p99_ms": 2.2}, "flooded": PROBED, "server_mib": 150.0}
    write(tmp_path, "load-uploads", import_bytes=6e6, clients={"taken": 45}, **flood)
    write(tmp_path, "load-streams", clients={"open": 2000}, **flood)
    write(tmp_path, "api-keys", throughput_ratio=0.934, requests_per_cpu_second_ratio=0.951)
    run = {
        "database": "postgresql", "jobs_acknowledged": 1293, "tunings_acknowledged": 107, "seconds": 61.4,
        "faults": {"kill worker": 14, "kill database": 6}, "wrong": ["a"],
        "seed": 23, "left_out": ["limit: no"],
        "counts": {"jobs": {"succeeded": 1002, "failed": 17}},
    }  # fmt: skip
    write(tmp_path, "chaos", runs=[run])
    text = section(tmp_path, lambda document: f"measured: {document['name']}")
    rows = [line.split(" | ")[1:] for line in text.splitlines() if line.startswith("| ")]
    assert rows[:8] == [
        ["figure |"], ["--- |"],
        ["73% (2,901 of 4,001 a second) |"], ["31 ms (idle 10 ms) |"], ["210 MiB |"],
        ["p99 12 ms, worst 100 ms during 20 s (before: p99 2 ms), 150 MiB |"],
        ["p99 12 ms, worst 100 ms during 20 s (before: p99 2 ms), 150 MiB |"],
        ["93%; of the requests a processor second 95% |"],
    ]  # fmt: skip
    assert rows[-1] == [
        "1,293 in 107 tunings", "6 x kill database, 14 x kill worker", "17 failed, 1,002 succeeded",
        "1 findings", "61 s", "23 |",
    ]  # fmt: skip
    assert "Left out: limit: no." in text
    assert text.count("measured: ") == 5


def test_what_is_not_measured_is_left_out(tmp_path: Path) -> None:
    assert section(tmp_path, lambda _: "") == ""
    write(tmp_path, "api-keys", throughput_ratio=0.934, requests_per_cpu_second_ratio=0.951)
    text = section(tmp_path, lambda document: f"measured: {document['name']}")
    assert "## Chaos" not in text
    assert text.count("measured: ") == 1


def test_the_kept_results_make_a_section() -> None:
    section(RESULTS, lambda _: "")
