"""The sections of docs/performance.md about a service at work: lookups under load, and the chaos run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cells import table

Document = Mapping[str, Any]
Source = Callable[[dict[str, Any]], str]


def section(results: Path, source: Source) -> str:
    """Both sections, each with the sources of its figures."""
    load = {
        name: json.loads((results / f"{name}.json").read_text())
        for name in ("load-lookups", "load-uploads", "load-streams", "api-keys")
    }
    chaos = json.loads((results / "chaos.json").read_text())
    return "\n".join([_load(load, source), _chaos(chaos, source)])


def _load(load: Mapping[str, dict[str, Any]], source: Source) -> str:
    beside, uploads, streams, keys = load.values()
    rows = [
        (
            f"`GET /v1/solutions/best`, {beside['connections']} connections, while {beside['workers']} workers measure "
            f"on the null driver, {beside['streams']} clients follow events and {beside['imports']} files of "
            f"{_megabytes(beside['import_bytes'])} are imported: share of the idle throughput",
            f"{beside['share']:.0%} ({beside['loaded_per_second']:,.0f} of {beside['idle_per_second']:,.0f} a second)",
        ),
        ("its p99", f"{beside['loaded_p99_ms']:.0f} ms (idle {beside['idle_p99_ms']:.0f} ms)"),
        ("the server's memory", f"{beside['server_mib']:.0f} MiB"),
        (
            "`GET /v1/solutions/best` with a key: share of the throughput without",
            f"{keys['throughput_ratio']:.0%}; of the requests a processor second "
            f"{keys['requests_per_cpu_second_ratio']:.0%}",
        ),
        (
            f"{uploads['clients']['taken']} files of {_megabytes(uploads['import_bytes'])} at once: one client's lookups",
            _latency(uploads),
        ),
        (
            f"{streams['clients']['open']:,} streams of events at once: one client's lookups",
            _latency(streams),
        ),
    ]
    sources = [
        f"{source(one)}; load average {one['load_average']:.1f} at the end  "
        for one in (beside, uploads, streams)
    ]
    return "\n".join(
        [
            "## Lookups under load\n",
            f"One server process, SQLite, {beside['rows_stored']:,} best rows; the load comes from the same machine.\n",
            table(("what", "figure"), rows),
            *sources,
            source(keys),
            "",
        ]
    )


def _latency(flood: Document) -> str:
    idle, during = flood["idle"], flood["flooded"]
    return (
        f"p99 {during['p99_ms']:.0f} ms, worst {during['worst_ms']:.0f} ms during {during['seconds']:.0f} s (before: "
        f"p99 {idle['p99_ms']:.0f} ms), {flood['server_mib']:.0f} MiB"
    )


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB"


def _chaos(chaos: dict[str, Any], source: Source) -> str:
    rows = []
    for run in chaos["runs"]:
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(run["faults"].items()))
        wrong = len(run["wrong"])
        rows.append(
            (
                run["database"], f"{run['jobs_acknowledged']:,} in {run['tunings_acknowledged']} tunings", faults,
                _ends(run["counts"]["jobs"]), "nothing" if not wrong else f"{wrong} findings",
                f"{run['seconds']:.0f} s", str(run["seed"]),
            )
        )  # fmt: skip
    left_out = sorted({text for run in chaos["runs"] for text in run["left_out"]})
    notes = [f"Left out: {'; '.join(left_out)}.\n"] if left_out else []
    return "\n".join(
        [
            "## Chaos\n",
            "`make chaos`: two servers and six workers of three device classes, whose processes are killed, stopped "
            "and limited, and whose disks are full for seconds, while clients submit, follow, cancel and look up. Then "
            "what clients were told is compared with the database: each acknowledged job ended once, with one verdict "
            "or a stated reason. Jobs that several tunings ask for are acknowledged more than once.\n",
            table(("database", "jobs acknowledged", "faults", "ends", "wrong", "time", "seed"), rows),
            *notes,
            source(chaos),
            "",
        ]
    )


def _ends(jobs: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in sorted(jobs.items()))
