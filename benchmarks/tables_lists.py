"""The table of the fixed lists as tuned through the service: what was gained, and what a bound would allow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from backends.problem import from_linear
from benchmarks.bounds import LAUNCH_US, ceilings_of_bounds, gain_at_bound
from benchmarks.cells import percent, table, times
from benchmarks.cuda_tuned import read_shapes
from benchmarks.lowbit import KINDS
from benchmarks.report import geometric_mean
from benchmarks.tables_cuda import TITLES
from tuners.ceilings import Ceilings
from tuners.roofline import bound

Document = Mapping[str, Any]

#: The result whose bounds tell the ceilings of its device, for a result that has none of its own.
_LENDER = "lowbit-decode"
#: The gains that are wanted of whole lists at a second of measuring a problem.
BARS: Mapping[str, float] = {
    "decode_m1": 1.31, "decode_small": 1.16, "decode_large": 1.09, "prefill": 1.015,
}  # fmt: skip
_HEADS = (
    "list", "problems", "over the default (geometric mean)", "bar", "at the bound", "winners: of the bound",
    "default: of the bound", "winners: time beyond the bound (median)",
)  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """A problem of a list in the common final: microseconds of its default, of the first round's winner, and of the
    bound."""

    which: str
    default_us: float
    winner_us: float
    bound_us: float

    @property
    def beyond_us(self) -> float:
        """Microseconds that the winner takes beyond the bound."""
        return self.winner_us - self.bound_us


def lists(made: Document, results: Path) -> str:
    """The table with its explanation; "" for a result that was cut short, or of a device without ceilings."""
    known = _ceilings(made, results)
    if "lists" not in made or known is None:
        return ""
    ceilings, origin, elsewhere = known
    timed = _timed(made, ceilings)
    groups = {name: [one for one in timed if one.which == name] for name in TITLES}
    found = {name: mine for name, mine in groups.items() if mine}
    rate = ceilings.flops_per_second[made["dtype"]]
    return (
        f"\n{table(_HEADS, [_line(name, mine) for name, mine in found.items()])}\n"
        "*Of the bound*: geometric mean of the bound over the time, which is the longer of reading and writing at the "
        f"measured bandwidth ({ceilings.read_bytes_per_second / 1e9:,.0f} GB/s read) and multiplying at the measured rate "
        f"({rate / 1e12:.0f} TFLOP/s {made['dtype']}), {origin}. *At the bound*: what would be gained by a launch that "
        f"takes {LAUNCH_US} us longer than the bound: the median of launches that read matrices of 3 to 1000 MB and do "
        f"nothing else on an H200 (`cuda-reading.json`). {' '.join(_explained(found, elsewhere))}\n\n"
    )


def _ceilings(made: Document, results: Path) -> tuple[Ceilings, str, str] | None:
    """The device's ceilings and where they are from: the result's own, or those behind another result's bounds; then
    also in what else than this run they were measured, "" for its own."""
    if "ceilings" in made:
        return Ceilings(**made["ceilings"]), "both of the same run", ""
    path = results / f"{_LENDER}.json"
    if not path.exists():
        return None
    lender = json.loads(path.read_text())
    if lender["environment"]["product"] != made["environment"]["product"]:
        return None
    problems = [
        (from_linear(one["m"], one["n"], one["k"], **KINDS[one["kind"]]), one["bound_us"] / 1e6)
        for one in lender["rows"]
    ]
    when = lender["measured_at"][:10]
    origin = f"both as the bounds of `{_LENDER}.json` have them, measured on {when}"
    same = lender["environment"]["uuid"] == made["environment"].get("uuid")
    elsewhere = "in another run on the same card" if same else "on another card of the model, in another run"
    return ceilings_of_bounds(problems), origin, elsewhere


def _timed(made: Document, ceilings: Ceilings) -> list[Timed]:
    """The problems whose winner and default were timed in the common final."""
    known = {
        (problem := shape.problem(made["dtype"])).id: (shape.list, problem)
        for shape in read_shapes(lists=list(made["lists"]))
    }
    winners = {one["problem"]: one["rounds"][0] for one in made["quick"]["verdicts"]}
    timed = []
    for row in made["rows"]:
        which, problem = known[row["problem"]]
        verdict = winners[problem.slug]
        if verdict is not None and row["speedup"] and verdict["winner"] in row["microseconds"]:
            us = row["microseconds"][verdict["winner"]]
            timed.append(Timed(which, us * row["speedup"][0], us, bound(problem, ceilings).seconds * 1e6))
    return timed


def _line(name: str, mine: Sequence[Timed]) -> tuple[str, ...]:
    bar = f"{BARS[name]:g}x" if name in BARS else "-"
    return (
        TITLES[name], str(len(mine)), f"**{times(_gained(mine), 3)}**", bar, times(_most(mine), 3),
        percent(geometric_mean([one.bound_us / one.winner_us for one in mine])),
        percent(geometric_mean([one.bound_us / one.default_us for one in mine])),
        f"{median(one.beyond_us for one in mine):.1f} us",
    )  # fmt: skip


def _gained(mine: Sequence[Timed]) -> float:
    """The geometric mean gain of the winners."""
    return geometric_mean([one.default_us / one.winner_us for one in mine])


def _most(mine: Sequence[Timed]) -> float:
    """The geometric mean gain of launches at the bound."""
    return geometric_mean([gain_at_bound(one.default_us, one.bound_us) for one in mine])


def _explained(found: Mapping[str, Sequence[Timed]], elsewhere: str) -> list[str]:
    """What the table shows: lists at the bound, lists below their bars, winners beyond the bound, and how long the
    winners of lists that are not at the bound take beyond it. `elsewhere`: where the ceilings were measured, "" for the
    same run."""
    said = []
    for name, mine in found.items():
        bar, gained, most = BARS.get(name, 0.0), _gained(mine), _most(mine)
        if gained >= most:
            said.append(f"{TITLES[name]}: the winners are about at the bound.")
        if gained < bar:
            whole = len(read_shapes(lists=[name]))
            part = (
                ""
                if len(mine) == whole
                else f" for the whole list, of which these are {len(mine)} of {whole} problems"
            )
            said.append(
                f"{TITLES[name]}: {gained:.3f}x is below the bar of {bar:g}x{part}; the bound allows about {most:.2f}x."
            )
    said += _beyond([one for mine in found.values() for one in mine], elsewhere)
    return said + _shrinking({name: mine for name, mine in found.items() if _gained(mine) < _most(mine)})


def _beyond(timed: Sequence[Timed], elsewhere: str) -> list[str]:
    """How many winners are faster than the bound, and what that says."""
    faster = [one.bound_us / one.winner_us for one in timed if one.beyond_us < 0]
    if not faster:
        return []
    why = (
        f"the ceilings were measured {elsewhere}, and may be too low for this one, so that is no mistake of the winners"
        if elsewhere
        else "the ceilings of the run are too low for them"
    )
    return [
        f"{len(faster)} of {len(timed)} winners are faster than the bound, at up to {max(faster):.0%} of it: {why}."
    ]


def _shrinking(below: Mapping[str, Sequence[Timed]]) -> list[str]:
    """Of lists that are not at the bound: that the times beyond it hardly depend on the problem, where they lie
    within less than half of the span of the bounds."""
    steady = {}
    for name, mine in below.items():
        beyond, bounds = [one.beyond_us for one in mine], [one.bound_us for one in mine]
        if _width(beyond) < _width(bounds) / 2:
            steady[name] = f"{TITLES[name]}: {_span(beyond)} us beyond {_span(bounds)} us"
    if not steady:
        return []
    which = "the other lists" if len(steady) == len(below) else "some of the other lists"
    return [
        f"The winners of {which} take longer than the bound by times that differ far less than the bounds do "
        f"({'; '.join(steady.values())}): most of the rest does not shrink with the problem, as a launch's start and end do not."
    ]


def _width(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"
