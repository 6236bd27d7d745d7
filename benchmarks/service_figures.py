"""Figures of tunings through the service: wall clock, agreement of rounds, means of lists, regret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil
from statistics import mean, median
from typing import Any

from backends.problem import GemmProblem
from benchmarks.report import geometric_mean


def wall(job: Mapping[str, Any]) -> float:
    """Seconds from a job's start to its end."""
    start, end = (datetime.fromisoformat(job[name]) for name in ("started_at", "ended_at"))
    return (end - start).total_seconds()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and most."""
    ordered = sorted(values)
    return {"median": median(ordered), "p95": ordered[ceil(0.95 * len(ordered)) - 1], "most": ordered[-1]}


def agreement(rounds: Sequence[Mapping[str, Any]], problems: Sequence[GemmProblem]) -> dict[str, Any]:
    """How often pairs of rounds name the same winner, and the same or one of the other's tie set."""
    same = tie = pairs = 0
    for problem in problems:
        found = [v for one in rounds if (job := one["jobs"].get(problem.id)) and (v := job["verdict"])]
        for at, first in enumerate(found):
            for second in found[at + 1 :]:
                pairs += 1
                equal = first["winner"] == second["winner"]
                same += equal
                tie += equal or second["winner"] in first["tie_set"] or first["winner"] in second["tie_set"]
    return {"pairs": pairs, "same": same / max(pairs, 1), "same_or_tie": tie / max(pairs, 1)}


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


def quick_figures(rounds: Sequence[Mapping[str, Any]], problems: Sequence[GemmProblem]) -> dict[str, Any]:
    """Of the rounds at effort quick: wall clock, verdicts, agreement."""
    jobs = [list(one["jobs"].values()) for one in rounds]
    judgements = [[v["judgement"] for job in each if (v := job["verdict"])] for each in jobs]
    return {
        "rounds": len(rounds),
        "seconds_a_problem": [one["seconds"] / len(problems) for one in rounds],
        "wall": spread([wall(job) for each in jobs for job in each if job["ended_at"]]),
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
