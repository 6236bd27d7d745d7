"""Generates docs/performance.md, and the figures in docs/kernels.md, from benchmarks/results.

python -m benchmarks.tables
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import (
    tables_cuda,
    tables_formats,
    tables_kernels,
    tables_load,
    tables_lowbit,
    tables_service,
    tables_strategies,
)
from benchmarks.report import RESULTS

DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"


def result(name: str) -> dict[str, Any]:
    """A benchmark's JSON."""
    document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return document


def source(document: Mapping[str, Any]) -> str:
    """Where and how a figure was measured."""
    env = document["environment"]
    where = f"{env['product']}, {env['units']} cores, {env['partition']}; {env['libraries']['blas']}"
    return (
        f"`{document['command']}`, {document['measured_at'][:10]}, commit {document['commit'][:12]}, {where}"
    )


def product() -> str:
    """Own fp32 kernel against OpenBLAS."""
    r = result("cpu-product")
    low, high = r["interval"]
    return (
        "## One thread, fp32, 1024^3: our packed kernel over OpenBLAS\n\n"
        f"**{r['ratio']:.2f}x** the speed [{low:.2f}, {high:.2f}]: {r['own_gflops']:.0f} against "
        f"{r['library_gflops']:.0f} GFLOP/s, best of {r['candidates']} configurations, {r['rounds']} interleaved "
        f"rounds.\n\n{source(r)}\n"
    )


def decode(dtype: str) -> str:
    """Decode shapes, tuned against the baseline."""
    r = result(f"cpu-decode-{dtype}")
    names = sorted({row["baseline"] for row in r["rows"]})
    lines = [
        f"## Decode shapes, {dtype}: tuned over the baseline ({', '.join(names)})\n",
        f"F.linear y[m,n] = x[m,k] w[n,k]^T, {r['problems']} problems, cold operands, 2 s of measuring each; a TIE "
        f"or LOSS counts 1. Geometric mean **{r['geometric_mean']:.2f}x**; by m: "
        + ", ".join(f"m={m} {value:.2f}x" for m, value in r["by_m"].items())
        + ".\n",
        "| m x n x k | verdict | speed-up | interval | baseline GB/s | best GB/s | winner |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in r["rows"]:
        low, high = (f"{end:.2f}" if end is not None else "open" for end in row["interval"])
        lines.append(
            f"| {row['m']} x {row['n']} x {row['k']} | {row['verdict']} | {row['speedup']:.2f}x | {low}-{high} "
            f"| {row['baseline_gb_per_s']:.1f} | {row['winner_gb_per_s']:.1f} | {row['winner'].split('-')[0]} |"
        )
    return "\n".join([*lines, "", source(r), ""])


def small() -> str:
    """Loading, wall time, repeatability, size."""
    loading, wall, again, size = (
        result(f"cpu-{name}") for name in ("load", "wall", "repeatability", "install")
    )
    return (
        "## The tuner itself\n\n"
        "| what | figure | measured by |\n|---|---|---|\n"
        f"| a cached binary loads in | {loading['median_ms']:.2f} ms (worst of {loading['runs']}: "
        f"{loading['worst_ms']:.2f} ms) | {source(loading)} |\n"
        f"| `gemmtune tune` of one small problem ends, beyond budget and compiling, within "
        f"| {wall['worst_beyond']:.2f} s | {source(wall)} |\n"
        f"| the second run's winner lies in the first run's tie set | {again['in_tie_set']} of "
        f"{again['problems']} problems ({again['same']} the same solution) | {source(again)} |\n"
        f"| base install (no torch) | {size['megabytes']:.0f} MB | {source(size)} |\n"
    )


def service() -> str:
    """Lookups, batches, exports, submitting, overhead."""
    best, batch, export, submit, job = (
        result(f"api-{name}") for name in ("best", "batch", "export", "submit", "overhead")
    )
    formats = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(export["seconds"].items()))
    submitted = ", ".join(
        f"{name} {submit[name]['seconds']:.1f} s" for name in ("sqlite", "postgresql") if name in submit
    )
    overheads = f"{job['overhead_seconds'] * 1e3:.0f} ms"
    if "postgresql" in job:
        overheads = f"sqlite {overheads}, postgresql {job['postgresql']['overhead_seconds'] * 1e3:.0f} ms"
    return (
        "## The service\n\n"
        "| what | figure | measured by |\n|---|---|---|\n"
        f"| `GET /v1/solutions/best` among {best['rows_stored']:,} best rows, {best['connections']} connections, one "
        f"server process (SQLite): throughput of an empty async route | {best['throughput_ratio']:.0%} "
        f"({best['best_per_second']:,.0f} against {best['empty_per_second']:,.0f} a second) | {source(best)} |\n"
        f"| its p99 over that route's | {best['p99_ratio']:.1f}x ({best['best_p99_ms']:.1f} against "
        f"{best['empty_p99_ms']:.1f} ms) | the same run |\n"
        f"| the server's memory | {best['server_mib']:.0f} MiB | the same run |\n"
        f"| `POST /v1/solutions/best` with {batch['problems']:,} problems, all known | {batch['seconds']:.2f} s "
        f"| {source(batch)} |\n"
        f"| export of {export['rows_exported']:,} rows, streamed | {formats} | {source(export)} |\n"
        f"| {submit['problems']:,} problems submitted | {submitted} | {source(submit)} |\n"
        f"| overhead a job, beside its session | {overheads} | {source(job)} |\n"
    )


def lookups() -> str:
    """Lookups without HTTP, on each database, if they were timed."""
    if not (RESULTS / "api-near.json").exists():
        return ""
    made = result("api-near")
    databases = {name: made[name] for name in ("sqlite", "postgresql") if name in made}
    heads = [f"{name}, {one['rows_stored']:,} rows" for name, one in databases.items()]
    lines = [
        "### Lookups among a million best rows, without HTTP\n",
        "Milliseconds: median; 95th percentile; worst (mean of the processors' time). A `nearest` lookup is of a problem without a row; its solutions "
        "are all illegal there, so that as many near rows are tried as ever are. A history is what a worker reads "
        f"before a job: the outcomes of 12 near sessions, {made['measured']} each. "
        f"The load average of the machine's {made['environment']['units']} cores was {made['load']:.1f} as the run began, so "
        "that times are longer than the processors' time.\n",
        f"| lookup | {' | '.join(heads)} |",
        f"|---|{'---|' * len(databases)}",
    ]
    for kind, what in (
        ("exact", "the stored answer of a problem"), ("near", "`nearest`: the search for near rows"),
        ("answer", "`nearest`: the whole answer, no near row fits"), ("history", "a worker's history"),
    ):  # fmt: skip
        cells = [
            "; ".join(f"{one[kind][f'{name}_ms']:.2f}" for name in ("p50", "p95", "worst"))
            + ("" if "cpu_ms" not in one[kind] else f" (CPU {one[kind]['cpu_ms']:.2f})")
            for one in databases.values()
        ]
        lines.append(f"| {what} ({made['sqlite'][kind]['lookups']:,}) | {' | '.join(cells)} |")
    return "\n".join([*lines, "", source(made), ""])


def transfer() -> str:
    """Answers of near problems against problems' own bests."""
    made = result("transfer")
    lines = [
        "### Near problems\n",
        "Each number of tokens of each layer asked for as if it had not been tuned, of the lookup among all other rows of "
        "its table, which are stored as if they had been measured here; or, with `imported`, of the installed table. An answer's time is known where its solution was timed on the problem itself: every candidate of a "
        "recorded table; of a pre-tuned row the winner, the default and the best of each export target, which are fast ones.\n",
        f"| rows | asked | refused | answered | with a known time | within {made['allowed']:.0%} of the problem's own best "
        "| the worst of these |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = {
        **made["tables"],
        **{f"{name}, installed, nothing measured": of for name, of in made["elsewhere"].items()},
    }
    for name, found in rows.items():
        worst = "" if found["worst"] is None else f"{found['worst']:.1%} slower"
        lines.append(
            f"| {name} | {found['asked']} | {found['refused']} | {found['answered']} | {found['timed']} | "
            f"{found['within']} | {worst} |"
        )
    told = (
        f"`{made['command']}`, {made['measured_at'][:10]}, commit {made['commit'][:12]}; computed, no device"
    )
    return "\n".join([*lines, "", told, ""])


def document() -> str:
    """The whole page."""
    head = (
        "# Measured figures\n\nGenerated by `python -m benchmarks.tables` from benchmarks/results. Ratios compare "
        "within one run; absolute figures hold on the machine named.\n\n"
        "Tunings of GPUs before commit 2476962 took up to 1.7 us too much for defaults of less than 30 us, 0.7 us in "
        "the median ([decision 21](decisions/0021-a-graph-is-timed-behind-its-lead.md)): their speed-ups are too high "
        "by as much, a few percent of most lists. Times of programs and models are not affected.\n"
    )
    cpu = [
        product(),
        decode("fp32"),
        decode("bf16"),
        small(),
        service(),
        lookups(),
        transfer(),
        tables_load.section(RESULTS, source),
        tables_formats.section(RESULTS, source),
        tables_strategies.section(RESULTS),
        tables_strategies.hub_section(RESULTS),
    ]
    gpu = [*tables_cuda.sections(RESULTS), tables_lowbit.section(RESULTS), tables_service.section(RESULTS)]
    return "\n".join([head, *cpu, *gpu])


def main() -> None:
    """Writes the pages."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    DOCUMENT.write_text(document())
    (DOCUMENT.parent / tables_strategies.PICTURE).write_text(tables_strategies.picture(RESULTS))
    page = tables_kernels.DOCUMENT
    page.write_text(tables_kernels.filled(page.read_text(), RESULTS))
    print(f"written: {DOCUMENT}, {page}")


if __name__ == "__main__":
    main()
