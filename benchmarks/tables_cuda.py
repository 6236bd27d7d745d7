"""The CUDA part of docs/performance.md, from the results that exist; a missing file leaves its section
out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import cells
from benchmarks.cells import source

#: List -> its title.
TITLES: Mapping[str, str] = {
    "decode_m1": "Decode, one token (m = 1)",
    "decode_small": "Decode, small batches (m = 4 to 16)",
    "decode_large": "Decode, large batches (m = 32 to 128)",
    "prefill": "Prefill",
    "square": "Square",
    "odd": "Odd sizes",
}
#: List (or "serving": decode and prefill together) -> the target geometric mean, shown beside the
#: measured one.
BARS: Mapping[str, float] = {
    "decode_m1": 1.28, "decode_small": 1.10, "decode_large": 1.05, "prefill": 1.04, "odd": 3.0,
}  # fmt: skip
#: The same for candidates of libraries alone.
LIBRARY_BARS: Mapping[str, float] = {"serving": 1.03, "odd": 2.0}


def result(folder: Path, name: str) -> dict[str, Any] | None:
    """A benchmark's JSON, None where there is none."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def sections(folder: Path) -> list[str]:
    """Every section whose file exists."""
    found = []
    for path in sorted(folder.glob("cuda-lists-*.json"), key=lambda path: (len(path.stem), path.stem)):
        found += lists(json.loads(path.read_text()), path.stem.endswith("-libraries"))
    for name, make in (
        ("screening", screening),
        ("repeat", repeat),
        ("launch", launch),
        ("types", types),
        ("trap", trap),
        ("profile", profile),
        ("profile-libraries", profile),
        ("profile-inside", profile),
        ("profile-lowbit", profile),
    ):
        document = result(folder, f"cuda-{name}")
        if document is not None:
            found.append(make(document))
    return [f"# NVIDIA GPUs\n\n{_HEAD}\n", *found] if found else []


_HEAD = (
    "Against what a torch user runs today (torch's own call) and against cuBLASLt's first heuristic, in CUDA graphs, "
    "cold operands, every answer verified. A ratio is the default's time over the tuned time; where nothing was shown "
    "faster, the default stays, and the ratio is 1."
)


# ---- lists ---------------------------------------------------------------------------------------


def lists(document: Mapping[str, Any], libraries: bool = False) -> list[str]:
    """The summary of all lists, then a table per list; for candidates of `libraries` alone, only the
    summary."""
    dtype, rows = document["dtype"], document["rows"]
    found = [_summary(document, libraries)]
    for name in () if libraries else document["lists"]:
        mine = [row for row in rows if row["list"] == name]
        if mine:
            found.append(_list(TITLES.get(name, name), dtype, mine))
    return found


def _summary(document: Mapping[str, Any], libraries: bool) -> str:
    groups = {name: figures for name, figures in document["lists"].items() if figures["shapes"]}
    serving = document["serving"]
    named = [(TITLES.get(name, name), name, figures) for name, figures in groups.items()]
    if serving["shapes"]:
        named.append(("**Decode and prefill together**", "serving", serving))
    wanted = LIBRARY_BARS if libraries else BARS
    bars = any(name in wanted for _, name, _ in named)
    heads = ["list", "shapes", "over the default (geometric mean)", *(["bar"] if bars else []), "least", "most",
             "over cuBLASLt's heuristic", "WIN / TIE / LOSS", "share of bound (median)",
             "configurations a shape (median)"]  # fmt: skip
    lines = []
    for title, name, figures in named:
        verdicts = figures["verdicts"]
        bar = [f"{wanted[name]:.2f}x" if name in wanted else "-"] if bars else []
        lines.append(
            [title, str(figures["shapes"]), f"**{figures['geometric_mean']:.3f}x**", *bar, f"{figures['minimum']:.2f}x",
             f"{figures['maximum']:.2f}x", cells.times(figures["geometric_mean_heuristic"], 3),
             " / ".join(str(verdicts.get(kind, 0)) for kind in ("WIN", "TIE", "LOSS")),
             cells.percent(figures["share_median"]), f"{figures['configurations_median']:.0f}"]
        )  # fmt: skip
    parts = [
        f"## Linear layers of served models, {document['dtype']}: tuned over {_baselines(document['rows'])}"
        f"{', by libraries alone' if libraries else ''}\n",
        f"{document['shapes_done']} of {document['shapes_wanted']} shapes, {document['seconds']:g} s of measuring each"
        f"{'' if document['complete'] else ' (**not all of them yet**)'}; {document['all'].get('configurations', 0):,} "
        f"configurations verified and timed, {document['all'].get('wrong_results', 0):,} thrown out for wrong results.\n",
        cells.table(heads, lines),
        *_ceilings(document, document["dtype"]),
        source(document),
        _rows_of(document["commits"]),
    ]
    return "\n".join(parts)


def _rows_of(commits: Sequence[str]) -> str:
    """A line that names the rows' commits if there are several."""
    return (
        f"\nRows are of the commits {', '.join(one[:12] for one in commits)}.\n" if len(commits) > 1 else ""
    )


def _baselines(rows: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({row["baseline"] for row in rows if "error" not in row})) or "the default"


def _ceilings(document: Mapping[str, Any], dtype: str) -> list[str]:
    measured = [gpu["ceilings"] for gpu in document["gpus"] if gpu["ceilings"]]
    if not measured:
        return []

    def between(values: Iterable[float], unit: str) -> str:
        low, high = (f"{end(held):,.2f}" for held in [list(values)] for end in (min, max))
        return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"

    reading = between((one["read_bytes_per_second"] / 1e12 for one in measured), "TB/s")
    multiplying = between((one["flops_per_second"][dtype] / 1e12 for one in measured), f"TFLOP/s {dtype}")
    return [f"Bounds are from ceilings measured on each GPU: reading {reading}, multiplying {multiplying}.\n"]


def _list(title: str, dtype: str, rows: Sequence[Mapping[str, Any]]) -> str:
    heads = [
        "m x n x k",
        "torch us",
        "heuristic us",
        "best us",
        "over torch",
        "interval",
        "family",
        "of bound",
    ]
    lines = []
    for row in rows:
        size = f"{row['m']} x {row['n']} x {row['k']}"
        if "error" in row:
            lines.append([size, *["-"] * 5, cells.cell(row["error"]), "-"])
            continue
        won = row["verdict"] == "WIN"
        interval = (
            cells.interval(row["interval"])
            if won
            else f"{row['verdict']}, best library {cells.times(row['raw_ratio'])}"
        )
        share = "-" if row["share"] is None else f"{row['share']:.0%} ({row['binds']})"
        lines.append(
            [size, cells.us(row["torch_us"]), cells.us(row["heuristic_us"]), cells.us(row["best_us"]), f"{row['ratio']:.2f}x", interval,
             row["family"], share]
        )  # fmt: skip
    return f"### {title}, {dtype}\n\n{cells.table(heads, lines)}"


# ---- the rest ------------------------------------------------------------------------------------


def screening(document: Mapping[str, Any]) -> str:
    """Configurations verified and timed within some seconds."""
    lines = [
        [f"{row['m']} x {row['n']} x {row['k']}", cells.us(row["run_us"]), f"**{row['configurations']}**",
         f"{row['screening_seconds']:.2f}", cells.counts(row["by_status"])]
        for row in document["rows"]
    ]  # fmt: skip
    least = ""
    if document["short_minimum"] is not None:
        least = (
            f" Of the {document['short_shapes']} shapes whose run takes under 100 us: at least "
            f"**{document['short_minimum']}**, median {document['short_median']:g}."
        )
    return (
        f"## Screening: configurations verified and timed within {document['seconds']:g} s\n\nWall clock, "
        f"{document['dtype']}, one GPU.{least}\n\n"
        f"{cells.table(['m x n x k', 'fastest run us', 'verified and timed', 'seconds', 'outcomes'], lines)}\n{source(document)}\n"
    )


def repeat(document: Mapping[str, Any]) -> str:
    """Problems tuned twice."""
    lines = [
        [row["problem"], f"{row['first_verdict']} {cells.us(row['first_us'])} us",
         f"{row['second_verdict']} {cells.us(row['second_us'])} us", str(row["ties"]),
         "the same" if row["same"] else "in it" if row["in_tie_set"] else "**not in it**"]
        for row in document["rows"]
    ]  # fmt: skip
    heads = ["problem", "first", "second", "first tie set", "second winner"]
    return (
        f"## Tuned twice\n\nThe second winner lies in the first tie set for **{document['in_tie_set']} of "
        f"{document['problems']}** problems ({document['same']} the same solution).\n\n{cells.table(heads, lines)}\n"
        f"{source(document)}\n"
    )


def launch(document: Mapping[str, Any]) -> str:
    """Host time per launch."""
    lines = [
        [
            row["call"],
            f"{row['m']} x {row['n']} x {row['k']}",
            f"**{row['median_us']:.2f}**",
            f"{row['worst_us']:.2f}",
        ]
        for row in document["rows"]
    ]
    heads = [
        "call",
        "m x n x k",
        "us of host time, median",
        f"worst of {document['repetitions']} repetitions",
    ]
    return (
        f"## Launching from Python, outside graphs\n\nA stored cuBLASLt solution, loaded and bound, against torch's call; "
        f"{document['calls']:,} calls a repetition, {document['dtype']}.\n\n{cells.table(heads, lines)}\n{source(document)}\n"
    )


def types(document: Mapping[str, Any]) -> str:
    """Every combination of types."""
    lines = []
    for row in document["rows"]:
        if "error" in row:
            lines.append([row["name"], "not run", "-", "-", "-", cells.cell(row["error"])])
            continue
        lines.append(
            [row["name"], row["verdict"], f"{row['ratio']:.2f}x", row["baseline"], cells.us(row["best_us"]),
             f"{row['family']}; {cells.counts(row['by_status'])}"]
        )  # fmt: skip
    heads = ["types", "verdict", "ratio", "over", "best us", "winner; screened"]
    return (
        f"## Types, epilogues, layouts\n\n**{document['tuned']} of {document['combinations']}** combinations tuned, "
        f"{document['seconds']:g} s each.\n\n{cells.table(heads, lines)}\n{source(document)}\n"
    )


def trap(document: Mapping[str, Any]) -> str:
    """Split-K configurations that compute wrong results."""
    lines = [
        [row["problem"], str(row["tried"]), f"**{row['wrong']}**", ", ".join(map(str, row["wrong_splits"]))]
        for row in document["rows"]
        if row["wrong"]
    ]
    heads = ["problem", "splits and schemes that the check passes", "wrong", "wrong where splitk_num is"]
    missed = "each is foretold by the rule" if not document["unforetold"] else (
        f"{document['unforetold']} are not foretold by the rule"
    )  # fmt: skip
    if document["undetected"]:
        missed += (
            f"; {document['undetected']} that the rule foretells passed, where what is left out is less than what "
            "partial sums in a 16-bit output may be off by"
        )
    return (
        f"## Why every candidate is verified: cuBLASLt's algorithm {document['algorithm']}\n\nOf {document['tried']:,} "
        f"configurations that cublasLtMatmulAlgoCheck passes, on {len(document['rows'])} problems, "
        f"**{document['wrong']:,} give wrong results**: {missed}. The rule: the last k mod splitk_num elements of k are "
        "left out where that is not 0 and k / splitk_num, rounded down, is a whole number of the stage's elements of k. "
        f"Such configurations are illegal here.\n\n{cells.table(heads, lines)}\n{source(document)}\n"
    )


# ---- profile -------------------------------------------------------------------------------------

#: Column -> Nsight Compute's section and metric, and the divisor of its base unit.
_PROFILED: Mapping[str, tuple[str, float]] = {
    "us": ("GPU Speed Of Light Throughput: Duration", 1e3),
    "DRAM %": ("GPU Speed Of Light Throughput: DRAM Throughput", 1.0),
    "L2 %": ("GPU Speed Of Light Throughput: L2 Cache Throughput", 1.0),
    "SM %": ("GPU Speed Of Light Throughput: Compute (SM) Throughput", 1.0),
    "instructions a clock": ("Compute Workload Analysis: Executed Ipc Active", 1.0),
    "SM GHz": ("GPU Speed Of Light Throughput: SM Frequency", 1e9),
    "waves": ("Launch Statistics: Waves Per SM", 1.0),
    "occupancy %": ("Occupancy: Achieved Occupancy", 1.0),
}
#: The document that a profile takes its winners from -> the end of the section's title.
_WINNERS = {
    "cuda-lists-bf16-libraries.json": ": libraries' winners",
    "cuda-inside.json": ": the even products inside odd ones",
    "lowbit-": ": low-bit products",
}


def profile(document: Mapping[str, Any]) -> str:
    """One line per kernel with its shares of the hardware's peaks, and its commit if the rows have
    several."""
    of = [row.get("commit", document["commit"]) for row in document["rows"]]
    commits = sorted(set(of))
    lines = []
    for row, commit in zip(document["rows"], of, strict=True):
        head = [f"{row['m']} x {row['n']} x {row['k']}", f"{row['which']}: {row['family']}"]
        tail = [commit[:12]] if len(commits) > 1 else []
        for kernel in row.get("kernels", ()):
            found = []
            for name, by in _PROFILED.values():
                value = kernel["figures"].get(name, [None])[0]
                found.append(f"{value / by:.2f}" if isinstance(value, (int, float)) else "-")
            name = kernel["kernel"].split("(")[0].split("<")[0][:40]
            lines.append([*head, f"`{name}`", *found, *tail])
        if "error" in row:
            lines.append([*head, row["error"].replace("|", "/")[:80], *["-"] * len(_PROFILED), *tail])
    heads = ["m x n x k", "call", "kernel", *_PROFILED, *(["commit"] if len(commits) > 1 else [])]
    whose = next((title for name, title in _WINNERS.items() if name in document["command"]), "")
    return (
        f"## What the hardware does, by Nsight Compute{whose}\n\nEach kernel of one launch, caches flushed before it, clocks left "
        f"alone: shares are of the hardware's own peaks.\n\n{cells.table(heads, lines)}\n{source(document)}\n{_rows_of(commits)}"
    )
