"""What tuning is worth on a device class: seconds saved, speed-ups, what to tune next, stale rows.

Times are weighted by calls (db/worth.py says whose). Where the default stays, the speed-up is 1. Figures of
problems that were not tuned are estimates from the nearest tuned ones (tuners/expected_gain.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection

from db import worth
from db.worth import Scope
from service.formats.core.row_text import problem_wire
from service.freshness import Freshness
from service.stored_problems import stored_problem
from service.worth_detail import Tuned, worth_detail
from tuners.expected_gain import Estimator, Expected, Shape, TunedProblem

#: fast_p, KernelBench's measure: the share of problems with a speed-up of at least p.
FAST_P = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)
PERCENTILES = (5, 25, 50, 75, 95)
#: Untuned problems and stale rows that a report lists if not asked for another number.
LISTED = 20


def tuned_row(row: Any) -> TunedProblem:
    """A row of db.worth.tuned() as estimates read it."""
    shape = Shape(row.kind, row.dtype, row.m, row.n, row.k, row.batch)
    return TunedProblem(shape, row.baseline_seconds, row.speedup if row.judgement == "WIN" else 1.0)


def worth_report(
    connection: Connection, scope: Scope, listed: int = LISTED, detail: bool = False
) -> dict[str, Any]:
    """The report as plain JSON values (report_answers.Worth). At most `listed` untuned problems, stale rows
    and, with `detail`, gains are listed."""
    freshness = Freshness.of(connection, scope.device_class_id)
    rows = worth.tuned(connection, scope)
    found = [_tuned(row, freshness) for row in rows]
    uncounted = sum(row.calls is None for row in rows)
    others = worth.untuned(connection, scope)
    shapes = [Shape(row.kind, row.dtype, row.m, row.n, row.k, row.batch) for row in others]
    expected = Estimator(map(tuned_row, rows)).expect(shapes)
    judged = Counter(one.judgement for one in found)
    return {
        "device_class": scope.device_class_id,
        "policy_id": scope.policy_id,
        "list": None if scope.problems is None else scope.problems.name,
        "family": scope.family,
        "dtype": scope.dtype,
        "present_environments": list(freshness.present),
        "problems": {
            "tuned": len(found),
            "untuned": len(others),
            **{name.lower(): judged[name] for name in ("WIN", "TIE", "LOSS")},
            "stale": sum(bool(one.stale) for one in found),
            "uncounted": uncounted,
        },
        "seconds": _seconds(found, [row.calls for row in others], expected),
        **_speedups(found),
        "next": _next(connection, others, expected, listed),
        "stale": _stale(found, listed),
        "detail": worth_detail(connection, found, freshness.present, listed) if detail else None,
    }


def _tuned(row: Any, freshness: Freshness) -> Tuned:
    return Tuned(
        row.problem_id,
        row.calls or 1,
        row.judgement,
        row.baseline_seconds,
        tuned_row(row).speedup,
        row.environment_id,
        freshness.stale(row.environment_id, row.family, row.version) or "",
        row,
    )


def _seconds(
    found: Sequence[Tuned], calls: Sequence[int], expected: Sequence[Expected | None]
) -> dict[str, Any]:
    """Call-weighted sums. The share that is tuned is None where the rest cannot be estimated."""
    before = sum(one.calls * one.baseline_seconds for one in found)
    saved = sum(one.saved_seconds for one in found)
    rest = sum(n * one.baseline_seconds for n, one in zip(calls, expected, strict=True) if one is not None)
    known = bool(found) and None not in expected
    return {
        "baseline": before,
        "saved": saved,
        "speedup": before / (before - saved) if found else None,
        "untuned_estimate": rest if known else None,
        "tuned_share": before / (before + rest) if known else None,
    }


def _speedups(found: Sequence[Tuned]) -> dict[str, Any]:
    """The distribution of speed-ups over tuned problems, each counted once."""
    values = np.array([one.speedup for one in found], dtype=np.float64)
    if not len(values):
        return {"geometric_mean": None, "fast_p": [], "percentiles": []}
    at_least = [(p, int(np.count_nonzero(values >= p))) for p in FAST_P]
    return {
        "geometric_mean": float(np.exp(np.mean(np.log(values)))),
        "fast_p": [{"p": p, "problems": count, "share": count / len(values)} for p, count in at_least],
        "percentiles": [
            {"percent": percent, "speedup": float(value)}
            for percent, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)
        ],
    }


def _next(
    connection: Connection, others: Sequence[Any], expected: Sequence[Expected | None], listed: int
) -> list[dict[str, Any]]:
    """Untuned problems, the largest expected saving first; without an estimate, the most work first."""

    def order(pair: tuple[Any, Expected | None]) -> tuple[float, float, str]:
        row, one = pair
        saving = 0.0 if one is None else row.calls * one.saving_seconds
        return -saving, -float(row.calls) * row.m * row.n * row.k * row.batch, row.id

    first = sorted(zip(others, expected, strict=True), key=order)[:listed]
    contents = worth.problem_contents(connection, [row.id for row, _ in first])
    return [
        {
            "problem_id": row.id,
            "problem": problem_wire(stored_problem(row.id, contents[row.id])),
            "calls": row.calls,
            "saving_seconds": None if one is None else row.calls * one.saving_seconds,
            "estimate": None if one is None else one.to_dict(),
        }
        for row, one in first
    ]


def _stale(found: Sequence[Tuned], listed: int) -> dict[str, Any]:
    """Stale rows: by reason, and those that save the most seconds."""
    stale = sorted((one for one in found if one.stale), key=lambda one: (-one.saved_seconds, one.problem_id))
    reasons = Counter(one.stale for one in stale)
    return {
        "saved_seconds": sum(one.saved_seconds for one in stale),
        "reasons": [{"reason": reason, "problems": count} for reason, count in reasons.most_common(listed)],
        "items": [
            {
                "problem_id": one.problem_id,
                "environment_id": one.environment_id,
                "reason": one.stale,
                "saved_seconds": one.saved_seconds,
            }
            for one in stale[:listed]
        ],
    }
