"""What pictures of the report of worth need: the distribution of speed-ups, fast_p as a curve, the roofline,
the largest gains, and the environments of the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection

from db import queries, worth
from service.formats.core.row_text import problem_wire
from service.stored_problems import stored_problem

#: Speed-ups from which classes of the distribution begin; the first holds problems whose default stays.
EDGES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 5.0, 10.0)
#: Points of the curve, and problems of the roofline (those that take most time), at most.
_CURVE, _POINTS = 61, 1000


@dataclass(frozen=True)
class Tuned:
    """A best row as the report reads it; `stale` says why it is, "" if it is not. `row` is that of
    db.worth.tuned()."""

    problem_id: str
    calls: int
    judgement: str
    baseline_seconds: float
    speedup: float
    environment_id: str
    stale: str
    row: Any

    @property
    def before_seconds(self) -> float:
        """Of all its calls with the default."""
        return self.calls * self.baseline_seconds

    @property
    def saved_seconds(self) -> float:
        """Of all its calls."""
        return self.before_seconds * (1 - 1 / self.speedup)


def worth_detail(
    connection: Connection, found: Sequence[Tuned], present: Sequence[str], listed: int
) -> dict[str, Any]:
    """report_answers.WorthDetail. At most `listed` gains are listed."""
    gains = sorted(found, key=lambda one: (-one.saved_seconds, one.problem_id))
    gains = [one for one in gains if one.saved_seconds > 0][:listed]
    points = [one for one in found if one.row.roofline_share]
    points = sorted(points, key=lambda one: (-one.before_seconds, one.problem_id))[:_POINTS]
    ids = {one.problem_id for one in (*gains, *points)}
    contents = worth.problem_contents(connection, sorted(ids))
    problems = {name: stored_problem(name, content) for name, content in contents.items()}
    return {
        "distribution": _distribution(found),
        "curve": _curve(found),
        "roofline": _roofline(points, problems),
        "gains": [_gain(one, problems[one.problem_id]) for one in gains],
        "environments": _environments(connection, found, present),
    }


def _distribution(found: Sequence[Tuned]) -> list[dict[str, Any]]:
    """Problems by speed-up: from `low` to below `high` (None: without end)."""
    counts, _ = np.histogram([one.speedup for one in found], bins=[0.0, *EDGES[1:], np.inf])
    ends: list[float | None] = [*EDGES[1:], None]
    return [
        {"low": low, "high": high, "problems": int(count)}
        for low, high, count in zip(EDGES, ends, counts, strict=True)
    ]


def _curve(found: Sequence[Tuned]) -> list[dict[str, float]]:
    """fast_p at points that are spaced evenly in the logarithm: `share` of problems, each counted once, and
    `time_share`, each weighted by the time of all its calls with the default."""
    if not found:
        return []
    speedups = np.array([one.speedup for one in found])
    weights = np.array([one.before_seconds for one in found])
    points = np.geomspace(1.0, max(2.0, float(speedups.max())), _CURVE)
    total = float(weights.sum()) or 1.0
    return [
        {
            "p": float(p),
            "share": float(np.mean(speedups >= p)),
            "time_share": float(weights[speedups >= p].sum()) / total,
        }
        for p in points
    ]


def _roofline(points: Sequence[Tuned], problems: Mapping[str, Any]) -> dict[str, Any]:
    """Problems in a roofline's plane. The ceilings are those that the verdicts were compared with: a verdict
    stores the share of the bound that its winner reached."""
    rows, compute, memory = [], dict[str, float](), 0.0
    for one in points:
        row, problem = one.row, problems[one.problem_id]
        moved = problem.bytes_read + problem.bytes_written
        bound = row.roofline_share * row.seconds
        dtype = problem.multiplied_as
        if row.binds == "memory":
            memory = max(memory, moved / bound)
        else:
            compute[dtype] = max(compute.get(dtype, 0.0), problem.flops / bound)
        rows.append(
            {
                "problem_id": one.problem_id,
                "dtype": dtype,
                "intensity": problem.flops / moved,
                "flops_per_second": problem.flops / row.seconds,
                "baseline_flops_per_second": problem.flops / row.baseline_seconds,
                "share": row.roofline_share,
                "binds": row.binds,
            }
        )
    return {
        "bytes_per_second": memory or None,
        "flops_per_second": dict(sorted(compute.items())),
        "problems": rows,
    }


def _gain(one: Tuned, problem: Any) -> dict[str, Any]:
    row = one.row
    return {
        "problem_id": one.problem_id,
        "problem": problem_wire(problem),
        "calls": one.calls,
        "baseline_name": row.baseline_name,
        "baseline_seconds": one.baseline_seconds,
        "family": row.family,
        "seconds": row.seconds,
        "speedup": one.speedup,
        "saved_seconds": one.saved_seconds,
        "roofline_share": row.roofline_share,
    }


def _environments(
    connection: Connection, found: Sequence[Tuned], present: Sequence[str]
) -> list[dict[str, Any]]:
    """Where the verdicts were measured, the most problems first; a device's UUID is left out."""
    counts = Counter(one.environment_id for one in found)
    contents = queries.environment_contents(connection, list(counts))
    return [
        {
            "environment_id": name,
            "problems": count,
            "present": name in present,
            "environment": {key: value for key, value in contents[name].items() if key != "uuid"},
        }
        for name, count in counts.most_common()
    ]
