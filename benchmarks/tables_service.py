"""The sections of docs/performance.md about tunings through a service on GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import tables_lists
from benchmarks.cells import source, table

Document = Mapping[str, Any]


def section(results: Path) -> str:
    """The sections of what was measured, each with the source of its figures."""
    parts = []
    for name, rows_of, title, about in (
        ("service-tuning", _tuning, "Tunings through the service", "Problems of the fixed lists, over HTTP."),
        ("two-devices", _two, "Two GPUs of one host", "One service, SQLite, a worker for each GPU."),
        (
            "client-path",
            _path,
            "From two wheels to more tokens per second",
            "The commands of docs/pytorch.md.",
        ),
    ):
        path = results / f"{name}.json"
        if path.exists():
            made = json.loads(path.read_text())
            said = " ".join([about, *made.get("notes", ())])
            more = tables_lists.lists(made, results) if name == "service-tuning" else ""
            parts.append(
                f"## {title}\n\n{said}\n\n{table(('what', 'figure'), rows_of(made))}\n{more}{source(made)}\n"
            )
    return "\n".join(parts)


def _tuning(made: Document) -> list[tuple[str, str]]:
    rows = []
    if (first := made.get("first")) is not None:
        each = ", ".join(f"{seconds:.1f}" for seconds in first["wall"])
        rows.append((f"effort {first['effort']}, nothing compiled: seconds of each problem, in order", each))
    if (compiled := made.get("precompile")) is not None:
        rows.append(
            (f"the portfolio compiled, {compiled['processors']} processors", f"{compiled['seconds']:.0f} s")
        )
    if (quick := made.get("quick")) is not None:
        wall, agreement = quick["wall"], quick["agreement"]
        rows.append((
            f"effort quick, {made['problems']} problems, asked {quick['rounds']} times: wall clock of a problem",
            f"median {wall['median']:.2f} s, p95 {wall['p95']:.1f} s, most {wall['most']:.1f} s",
        ))  # fmt: skip
        rows.append((
            "two rounds name the same winner; the same or a stated tie",
            f"{agreement['same']:.1%}; {agreement['same_or_tie']:.1%} of {agreement['pairs']} pairs",
        ))  # fmt: skip
    if (regret := made.get("regret")) is not None:
        rows.append(("regret of quick: mean; p95", f"{regret['mean']:.2%}; {regret['p95']:.1%}"))
    return rows


def _two(made: Document) -> list[tuple[str, str]]:
    rows = []
    if (cold := made.get("cold")) is not None:
        kills = " and ".join(f"the {one['what']} after {one['after_jobs']} jobs" for one in cold["kills"])
        once = cold["verdicts_of_a_problem"].get("1", 0)
        what = f"{cold['jobs']} problems, kill -9 of {kills}: problems with exactly one verdict"
        rows.append((what, f"{once} of {cold['jobs']}, in {cold['seconds']:.0f} s"))
    devices = made["warm_two"]["devices"].values()
    shares = ", ".join(f"{one['jobs']} jobs and {one['idle_share']:.0%} idle" for one in devices)
    rows.append(("two workers over one, kernels compiled: times as fast", f"{made['faster']:.2f}; {shares}"))
    ratios = ", ".join(f"{one['ratio']:.3f} (p = {one['p_value']:.2f})" for one in made["defaults"].values())
    rows.append(("each GPU's defaults over the other's: median ratio, rank test", ratios))
    if (slow := made.get("throttled")) is not None:
        found = "; ".join(one["reason"] for one in slow["outliers"]) or "not found"
        rows.append((f"a busy loop on one GPU: set apart after {slow['seconds']:.0f} s", found))
    return rows


def _path(made: Document) -> list[tuple[str, str]]:
    names = {
        "environment": "a virtual environment", "install": "both wheels installed",
        "model": f"`gemmtune model --tokens {made['tokens']}`, nothing compiled",
        "program": "docs/examples/decode_step.py",
    }  # fmt: skip
    rows = [(names[name], f"{seconds:.0f} s") for name, seconds in made["seconds"].items()]
    rate = made["tokens_per_second"]
    rows.append((f"{made['model']}, batch 1, tokens per second", f"torch {rate['torch']:.1f}, with the bundle "
                 f"{rate['gemmtune']:.1f}: **{made['speedup']:.3f}x**"))  # fmt: skip
    return rows
