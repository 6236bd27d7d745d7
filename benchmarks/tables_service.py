"""The sections of docs/performance.md about tunings through a service on GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import tables_lists
from benchmarks.cells import source, table, times
from benchmarks.service_figures import interval_of_mean, tie_widths
from benchmarks.tables_cuda import TITLES

Document = Mapping[str, Any]

#: The widest a tie may be: a quarter of the margin.
TIE = 0.005
#: Seconds that a tuning's wall clock may exceed its measuring by where the portfolio is compiled.
BEYOND = 0.5
#: Effort -> seconds that the wall clock of a problem may take there.
WALLS: Mapping[str, float] = {"normal": 4.0}
#: The efforts whose rounds a result may have.
EFFORTS = ("quick", "normal", "thorough")
#: Seconds below which a part of what is not measuring is left out.
_SMALL = 0.005
#: What the parts of what is not measuring are called.
_PARTS: Mapping[str, str] = {
    "setup": "setting up", "compilers": "waiting for compilers", "proving": "proving",
    "second process": "the second process beside its timing", "lost": "hangs and crashes",
    "other steps": "other steps of the session", "outside": "opening and storing the session",
}  # fmt: skip
_MEASURING = (
    "Measuring is what the budget limits: the strategy's own time, screening, the final, and the timing in the second "
    "process."
)
#: The results with the table of the fixed lists.
_LISTED = ("service-tuning", "service-tuning-lists")
#: Why a service's first tuning takes so long.
_STARTS = (
    "The first tuning of a service takes longest: the device process and the second one start and load their libraries, "
    "and the device's ceilings are measured."
)


def section(results: Path) -> str:
    """The sections of what was measured, each with the source of its figures."""
    parts = []
    for name, rows_of, title, about in (
        (
            "service-tuning",
            _tuning,
            "Tunings through the service",
            f"Problems of the fixed lists, over HTTP. {_STARTS}",
        ),
        (
            "service-tuning-regret",
            _tuning,
            "Regret, and a bare service",
            f"Fewer problems of the fixed lists, tuned thoroughly as well. {_STARTS}",
        ),
        (
            "service-tuning-lists",
            _tuning,
            "Tunings of the fixed lists of decode and prefill, whole",
            f"Every problem of these lists once, over HTTP, on an H200, whose bars these are. {_STARTS}",
        ),
        (
            "service-tuning-untuned",
            _tuning,
            "Tunings of layers that nothing shipped has",
            "Problems of `benchmarks/untuned.json`, over HTTP: no portfolio, recorded or pre-tuned table, and no fixed "
            f"list has their layers. {_STARTS}",
        ),
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
            measuring = [_MEASURING] if any(_beyond(made, effort) for effort in EFFORTS) else []
            said = " ".join([about, *measuring, *made.get("notes", ())])
            more = tables_lists.lists(made, results) if name in _LISTED else ""
            parts.append(
                f"## {title}\n\n{said}\n\n{table(('what', 'figure'), rows_of(made))}\n{more}{source(made)}\n"
            )
    return "\n".join(parts)


def _tuning(made: Document) -> list[tuple[str, str]]:
    rows = []
    if (first := made.get("first")) is not None:
        each = ", ".join(f"{seconds:.1f}" for seconds in first["wall"])
        what = f"a bare service, nothing compiled, effort {first['effort']}: wall clock"
        rows.append((f"{what} of each problem, in order", f"{each} s"))
        if rest := first["wall"][1:]:
            rows.append(
                (f"{what} from the second problem on", f"median {median(rest):.1f} s of {len(rest)} problems")
            )
    if (compiled := made.get("precompile")) is not None:
        rows.append(
            (f"the portfolio compiled, {compiled['processors']} processors", f"{compiled['seconds']:.0f} s")
        )
    for effort in EFFORTS:
        rows += _clock(made, effort)
    if (quick := made.get("quick")) is not None:
        agreement = quick["agreement"]
        wins = ", ".join(str(one["WIN"]) for one in quick["judgements"])
        rows.append(("WINs of each round", f"{wins} of {made['problems']} problems"))
        if agreement["pairs"]:
            rows.append((
                "two rounds name the same winner; the same or a stated tie",
                f"{agreement['same']:.1%}; {agreement['same_or_tie']:.1%} of {agreement['pairs']} pairs",
            ))  # fmt: skip
            if "rows" in made:
                rows += _ties(made)
    rows += _gains(made)
    if made.get("regret") is not None and _several(made):
        rows += _regret(made)
    return rows


def _several(made: Document) -> bool:
    """Whether problems were tuned more than once, so that a tuning's winner has others beside it."""
    tunings = sum(made[effort]["rounds"] for effort in EFFORTS if made.get(effort) is not None)
    return bool(tunings > 1 or made["regret"]["thorough"]["problems"])


def _clock(made: Document, effort: str) -> list[tuple[str, str]]:
    """The wall clock of a problem at an effort, and what of it is not measuring."""
    if (found := made.get(effort)) is None:
        return []
    wall = found["wall"]
    bar = f" (bar: {WALLS[effort]:g} s)" if effort in WALLS else ""
    rounds = "once" if found["rounds"] == 1 else f"{found['rounds']} times"
    rows = [(
        f"effort {effort}, {made['problems']} problems, asked {rounds}: wall clock of a problem{bar}",
        f"median {wall['median']:.2f} s, p95 {wall['p95']:.1f} s, most {wall['most']:.1f} s",
    )]  # fmt: skip
    if known := _beyond(made, effort):
        each = ", ".join(f"{one['median']:.2f}; {one['p95']:.2f} s" for one in known)
        what = f"effort {effort}: wall clock minus measuring in each round: median; p95 (bar: {BEYOND:g} s)"
        rows.append((what, each))
        parts = known[-1]["parts"]
        shown = [
            f"{_PARTS[name]} {one['median']:.2f}; {one['p95']:.2f} s"
            for name, one in parts.items()
            if one["p95"] >= _SMALL
        ]
        rows.append(
            (
                f"effort {effort}: what that consists of in the last round: median; p95",
                ", ".join(shown) or "nothing",
            )
        )
    return rows


def _beyond(made: Document, effort: str) -> list[Document]:
    """What each round at an effort took beyond measuring; none in a result of an earlier version."""
    found = made.get(effort) or {}
    return [one for one in found.get("beyond", ()) if one is not None]


def _gains(made: Document) -> list[tuple[str, str]]:
    """The mean gains of lists that are no fixed ones, which have a table of their own."""
    rows = []
    for name, one in (made.get("lists") or {}).items():
        if name not in TITLES:
            rounds = ", ".join(times(value, 3) for value in one["rounds"])
            what = f"{name}, {one['problems']} problems: over the default (geometric mean) in the common final; verdicts of each round"
            rows.append((what, f"**{times(one['raced'], 3)}**; {rounds}"))
    return rows


def _ties(made: Document) -> list[tuple[str, str]]:
    """How far winners of two rounds that are a stated tie are apart in the common final."""
    widths = tie_widths(made)
    if widths is None:
        return []
    what = f"pairs that are a stated tie; within {TIE:.1%} in the common final; the widest"
    if not widths:
        return [(what, "none")]
    within = sum(one.width <= TIE for one in widths)
    widest = max(widths, key=lambda one: one.width)
    return [(what, f"{len(widths)}; {within / len(widths):.0%}; {widest.width:.1%} ({widest.problem})")]


def _regret(made: Document) -> list[tuple[str, str]]:
    """The regret of quick tunings against thorough ones where there were any, else against one another."""
    regret, thorough = made["regret"], made["regret"]["thorough"]
    values = sum(len(row["regret"]) for row in made["rows"])
    several = f"{values} values of {len(made['rows'])} problems"
    # Which problems were tuned thoroughly is not told, so an interval is known where all were, or none.
    low, high = interval_of_mean(made["rows"])
    interval = f" (95% by a bootstrap over problems: {low:.2%} to {high:.2%})"
    if thorough["problems"]:
        against = f"the fastest winner of all rounds and a thorough tuning of {thorough['seconds']:.0f} s"
        if thorough["problems"] < len(made["rows"]):
            several, interval = f"{thorough['problems']} problems", ""
        regret = thorough
    else:
        efforts = " and ".join(effort for effort in EFFORTS if made.get(effort) is not None)
        against = f"the fastest of the {efforts} tunings' own winners"
    return [(
        f"regret of quick against {against}: mean; p95; most",
        f"{regret['mean']:.2%}{interval}; {regret['p95']:.1%}; {regret['most']:.1%}, {several}",
    )]  # fmt: skip


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
