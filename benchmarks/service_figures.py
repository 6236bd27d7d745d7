"""Figures of tunings through the service: wall clock and what it consists of, agreement of rounds, means of lists,
regret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from math import ceil
from statistics import mean, median
from typing import Any

import numpy as np

from backends.problem import GemmProblem
from benchmarks.report import geometric_mean

#: Draws of the bootstrap of a mean regret.
_DRAWS = 20_000

Counted = Mapping[str, float]


def wall(job: Mapping[str, Any]) -> float:
    """Seconds from a job's start to its end."""
    start, end = (datetime.fromisoformat(job[name]) for name in ("started_at", "ended_at"))
    return (end - start).total_seconds()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and most."""
    ordered = sorted(values)
    return {"median": median(ordered), "p95": ordered[ceil(0.95 * len(ordered)) - 1], "most": ordered[-1]}


def parts(wall_seconds: float, counts: Counted) -> dict[str, float]:
    """What a job's wall clock consists of beside measuring, in seconds; the parts sum to the wall clock minus
    `measuring_seconds`. `counts` are its session's. Of the second process the timing is measuring, and only the rest is
    a part. "outside" is what passes outside the session's clock: starting the device process before the first one,
    opening the session and storing its result. "other steps" is what remains of the session."""
    found = {
        "setup": counts["setup_seconds"],
        "compilers": counts["compiling_seconds"],
        "proving": counts["proving_seconds"],
        "second process": counts["confirming_seconds"] - counts["retiming_seconds"],
        "lost": counts["lost_seconds"],
    }
    found["other steps"] = counts["total_seconds"] - counts["measuring_seconds"] - sum(found.values())
    return {**found, "outside": wall_seconds - counts["total_seconds"]}


def beyond_measuring(
    jobs: Sequence[Mapping[str, Any]], counts: Mapping[str, Counted]
) -> dict[str, Any] | None:
    """Spreads of the jobs' wall clock minus measuring, of measuring, and of each part of the former; None if no job
    has a session that ended. `counts`: session id -> what the session counted."""
    known = [(wall(job), counts[job["session_id"]]) for job in jobs if job["session_id"] in counts]
    if not known:
        return None
    several = [parts(*one) for one in known]
    return {
        "problems": len(known),
        **spread([seconds - counted["measuring_seconds"] for seconds, counted in known]),
        "measuring": spread([counted["measuring_seconds"] for _, counted in known]),
        "parts": {name: spread([one[name] for one in several]) for name in several[0]},
    }


def agreement(rounds: Sequence[Mapping[str, Any]], problems: Sequence[GemmProblem]) -> dict[str, Any]:
    """How often pairs of rounds name the same winner, and the same or one of the other's tie set; and the pairs of
    winners that differ and are a stated tie ("ties")."""
    same = tie = pairs = 0
    ties: list[dict[str, Any]] = []
    for problem in problems:
        found = [v for one in rounds if (job := one["jobs"].get(problem.id)) and (v := job["verdict"])]
        for at, first in enumerate(found):
            for second in found[at + 1 :]:
                pairs += 1
                if first["winner"] == second["winner"]:
                    same += 1
                elif second["winner"] in first["tie_set"] or first["winner"] in second["tie_set"]:
                    tie += 1
                    ties.append({"problem": problem.slug, "winners": [first["winner"], second["winner"]]})
    return {
        "pairs": pairs, "same": same / max(pairs, 1), "same_or_tie": (same + tie) / max(pairs, 1), "ties": ties,
    }  # fmt: skip


@dataclass(frozen=True)
class TieWidth:
    """Two winners of a problem that are a stated tie: how much longer the slower one took in the common final, as a
    share of the faster one's time."""

    problem: str
    width: float


def tie_widths(made: Mapping[str, Any]) -> list[TieWidth] | None:
    """Each pair of rounds whose winners differ and are a stated tie, and were both raced; None where a result of an
    earlier version does not tell which of its pairs are."""
    agreed, times = made["quick"]["agreement"], {}
    for row in made["rows"]:
        # Rows name problems by id, which is the slug and a hash.
        times[row["problem"].rpartition("-")[0]] = row["microseconds"]
    if "ties" in agreed:
        pairs = [(one["problem"], *one["winners"]) for one in agreed["ties"]]
    elif agreed["same_or_tie"] == 1:
        pairs = list(_changed(made["quick"]["verdicts"]))
    else:
        return None
    found = []
    for problem, first, second in pairs:
        raced = times.get(problem, {})
        if first in raced and second in raced:
            fast, slow = sorted((raced[first], raced[second]))
            found.append(TieWidth(problem, slow / fast - 1))
    return found


def _changed(verdicts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Pairs of rounds with other winners: the problem, and both."""
    for one in verdicts:
        winners = [found["winner"] for found in one["rounds"] if found is not None]
        for first, second in combinations(winners, 2):
            if first != second:
                yield one["problem"], first, second


def interval_of_mean(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The 95% interval of the mean regret by a bootstrap over problems, whose rounds are no samples of their own."""
    sums = np.array([sum(row["regret"]) for row in rows])
    counts = np.array([len(row["regret"]) for row in rows])
    drawn = np.random.default_rng(0).integers(0, len(rows), (_DRAWS, len(rows)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), (2.5, 97.5))
    return float(low), float(high)


def verdicts_of(rounds: Sequence[Mapping[str, Any]], problem: GemmProblem) -> dict[str, Any]:
    """What each round found for a problem: its winner, judgement, speed-up, and how many tie; None without a
    verdict."""
    found = [one["jobs"][problem.id] for one in rounds if problem.id in one["jobs"]]
    return {
        "problem": problem.slug,
        "rounds": [
            None if (v := job["verdict"]) is None else {
                "winner": v["winner"], "judgement": v["judgement"], "speedup": v["speedup"]["mid"],
                "tied": len(v["tie_set"]), "reason": v["reason"], "seconds": wall(job),
            }
            for job in found
        ],
    }  # fmt: skip


def by_list(
    names: Mapping[str, str], rows: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Geometric means of verdicts' speed-ups (1 where the default stays) of each round, and of the final's."""
    found: dict[str, Any] = {}
    for which in dict.fromkeys(names.values()):
        mine = [name for name, of in names.items() if of == which]
        each = []
        for one in rounds:
            verdicts = [one["jobs"][name]["verdict"] for name in mine if name in one["jobs"]]
            each.append(
                geometric_mean(
                    [v["speedup"]["mid"] if v and v["judgement"] == "WIN" else 1.0 for v in verdicts]
                )
            )
        raced = [max(row["speedup"][0], 1e-9) for row in rows if row["problem"] in mine and row["speedup"]]
        found[which] = {
            "problems": len(mine), "rounds": each,
            "raced": geometric_mean(raced) if raced else None,
        }  # fmt: skip
    return found


def effort_figures(
    rounds: Sequence[Mapping[str, Any]], problems: Sequence[GemmProblem], counts: Mapping[str, Counted]
) -> dict[str, Any]:
    """Of the rounds at one effort: wall clock, what each round took beyond measuring, verdicts, agreement. `counts`:
    session id -> what the session counted."""
    jobs = [list(one["jobs"].values()) for one in rounds]
    judgements = [[v["judgement"] for job in each if (v := job["verdict"])] for each in jobs]
    return {
        "rounds": len(rounds),
        "seconds_a_problem": [one["seconds"] / len(problems) for one in rounds],
        "wall": spread([wall(job) for each in jobs for job in each if job["ended_at"]]),
        "beyond": [beyond_measuring(each, counts) for each in jobs],
        "judgements": [{kind: each.count(kind) for kind in ("WIN", "TIE", "LOSS")} for each in judgements],
        "agreement": agreement(rounds, problems),
        "verdicts": [verdicts_of(rounds, problem) for problem in problems],
    }


def named(every: Sequence[Mapping[str, Any]], problems: Sequence[GemmProblem]) -> dict[str, list[str]]:
    """Problem id -> ids of all its winners and defaults."""
    found: dict[str, dict[str, None]] = {problem.id: {} for problem in problems}
    for one in every:
        for name, job in one["jobs"].items():
            if (verdict := job["verdict"]) is not None:
                found[name] |= {verdict["winner"]: None, verdict["baseline"]: None}
    return {name: list(ids) for name, ids in found.items()}


def regret_figures(
    rows: Sequence[Mapping[str, Any]], deep: Sequence[GemmProblem], seconds: float
) -> dict[str, Any]:
    """Over all problems, and over those that were also tuned thoroughly."""
    regret = [value for row in rows for value in row["regret"]]
    deepest = {problem.id for problem in deep}
    against = [value for row in rows if row["problem"] in deepest for value in row["regret"]]
    return {
        "against": "the fastest of all winners of the problem, raced in one final of another process",
        "mean": mean(regret), **spread(regret),
        "thorough": {"problems": len(deep), "seconds": seconds, **({"mean": mean(against), **spread(against)} if against else {})},
    }  # fmt: skip
