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
    """Both sections, each with the sources of its figures; what has not been measured yet is left out."""
    load = {
        name: json.loads((results / f"{name}.json").read_text())
        for name in ("load-lookups", "load-uploads", "load-streams", "api-keys")
        if (results / f"{name}.json").exists()
    }
    chaos = results / "chaos.json"
    made = [_load(load, source)] if load else []
    return "\n".join([*made, *([_chaos(json.loads(chaos.read_text()), source)] if chaos.exists() else [])])


def _load(load: Mapping[str, dict[str, Any]], source: Source) -> str:
    rows: list[tuple[str, str]] = []
    for name, made in load.items():
        rows += _ROWS[name](made)
    sources = [f"{source(made)}{_busy(made)}  " for made in load.values()]
    return "\n".join(
        [
            "## Lookups under load\n",
            "One server process, SQLite; the load comes from the same machine.\n",
            table(("what", "figure"), rows),
            *sources,
            "",
        ]
    )


def _busy(made: Document) -> str:
    return f"; load average {made['load_average']:.1f} at the end" if "load_average" in made else ""


def _beside(made: Document) -> list[tuple[str, str]]:
    what = (
        f"`GET /v1/solutions/best` among {made['rows_stored']:,} best rows, {made['connections']} connections, while "
        f"{made['workers']} workers measure on the null driver, {made['streams']} clients follow events and "
        f"{made['imports']} files of {_megabytes(made['import_bytes'])} are imported: share of the idle throughput"
    )
    share = (
        f"{made['share']:.0%} ({made['loaded_per_second']:,.0f} of {made['idle_per_second']:,.0f} a second)"
    )
    return [
        (what, share),
        ("its p99", f"{made['loaded_p99_ms']:.0f} ms (idle {made['idle_p99_ms']:.0f} ms)"),
        ("the server's memory", f"{made['server_mib']:.0f} MiB"),
    ]


def _keys(made: Document) -> list[tuple[str, str]]:
    spent = f"of the requests a processor second {made['requests_per_cpu_second_ratio']:.0%}"
    what = "`GET /v1/solutions/best` with a key: share of the throughput without"
    return [(what, f"{made['throughput_ratio']:.0%}; {spent}")]


def _uploads(made: Document) -> list[tuple[str, str]]:
    what = f"{made['clients']['taken']} files of {_megabytes(made['import_bytes'])} at once: one client's lookups"
    return [(what, _latency(made))]


def _streams(made: Document) -> list[tuple[str, str]]:
    return [(f"{made['clients']['open']:,} streams of events at once: one client's lookups", _latency(made))]


_ROWS: Mapping[str, Callable[[Document], list[tuple[str, str]]]] = {
    "load-lookups": _beside, "load-uploads": _uploads, "load-streams": _streams, "api-keys": _keys,
}  # fmt: skip


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
