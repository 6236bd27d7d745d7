"""Where a candidate stands in its session, and why it did not win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from tuners.decide import DecisionRule
from tuners.intervals import median_interval

Row = Mapping[str, Any]

_TIMED = ("ok", "pruned", "unstable")
#: Of an outcome's evidence: what a failure says, the first that is there.
_SAID = ("error", "message", "rule", "reason", "wrong", "log", "signal")
_MOST = 300


class Standing(StrEnum):
    """winner: it was chosen. default: what the verdict compares with. tied: not shown to be slower than the
    fastest. slower: timed in the final. dropped: left before the final. failed: it did not run, or was
    wrong."""

    WINNER = "winner"
    DEFAULT = "default"
    TIED = "tied"
    SLOWER = "slower"
    DROPPED = "dropped"
    FAILED = "failed"


def interval(samples: Sequence[Any], confidence: float) -> dict[str, float | None] | None:
    """The interval of the samples' median; an end that they do not bound is null, and so is the interval of
    no samples."""
    values = [value for value in samples if isinstance(value, int | float)]
    if not values:
        return None
    found = median_interval(values, confidence)
    return {name: value if abs(value) != float("inf") else None for name, value in vars(found).items()}


def confidence_of(request: Mapping[str, Any] | None) -> float:
    """The confidence that a session was decided with."""
    given = (request or {}).get("rule", {}).get("confidence")
    return given if isinstance(given, float) else DecisionRule().confidence


def standing(
    row: Row, verdict: Row | None, winner_seconds: Mapping[str, float | None]
) -> tuple[Standing, str]:
    """A candidate's standing, and the reason in words. `winner_seconds`: phase -> what the winner took."""
    name, status = row["solution_id"], row["status"]
    proof = row["phases"].get("proof")
    if status not in _TIMED or row["seconds"] is None:
        return Standing.FAILED, _failure(status, row["evidence"])
    if proof is not None and proof["status"] not in _TIMED:
        return Standing.FAILED, f"failed its proof: {proof['status'].replace('_', ' ')}"
    if verdict is None:
        return Standing.DROPPED, "the session has no verdict"
    if name == verdict["winner"] and name != verdict["baseline"]:
        return Standing.WINNER, verdict["reason"]
    if name == verdict["baseline"]:
        stays = "; it stays" if name == verdict["winner"] else ""
        return Standing.DEFAULT, f"the default ({verdict['baseline_name']}){stays}"
    if name in verdict["tie_set"]:
        return Standing.TIED, "not shown to be slower than the fastest; another was preferred"
    if row["phase"] == "final":
        return Standing.SLOWER, _slower(row, winner_seconds)
    return Standing.DROPPED, _dropped(row, winner_seconds)


def _failure(status: str, evidence: Any) -> str:
    said = next((evidence[name] for name in _SAID if evidence.get(name)), None) if evidence else None
    text = status.replace("_", " ")
    return text if said is None else f"{text}: {said}"[:_MOST]


def _slower(row: Row, winner_seconds: Mapping[str, float | None]) -> str:
    least = row["evidence"].get("at_least")
    if isinstance(least, float):
        return f"left the final: at least {least - 1:.1%} slower than its leader"
    return _behind(row["seconds"], winner_seconds.get("final"), "in the final")


def _dropped(row: Row, winner_seconds: Mapping[str, float | None]) -> str:
    best = row["evidence"].get("best_seconds")
    if row["status"] == "pruned" and isinstance(best, float) and best > 0:
        return f"dropped from the screening: {row['seconds'] / best:.2f}x the fastest then"
    return f"{_behind(row['seconds'], winner_seconds.get('screen'), 'in the screening')}; not in the final"


def _behind(seconds: float, winner: float | None, where: str) -> str:
    if not winner:
        return f"timed {where}"
    ratio = seconds / winner
    if ratio >= 1:
        return f"{ratio - 1:.1%} slower than the winner {where}"
    return f"{1 - ratio:.1%} faster than the winner {where}"
