"""Turns rows into answers: plain values in the shapes of service.answers and service.records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db.liveness import LIVE
from service.formats.core.row_text import problem_wire
from service.standing import confidence_of, interval, standing
from service.stored_problems import stored_problem
from tuners.budget import StopReason
from tuners.campaign_shares import CampaignShares, LeftOut

Row = Mapping[str, Any]


def wire_of(problem_id: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A stored problem in its row-major wire form."""
    return problem_wire(stored_problem(problem_id, values))


# ---- tunings -------------------------------------------------------------------------------------


def tuning_links(tuning_id: str) -> dict[str, str]:
    """Links to the tuning and to its events."""
    return {"self": f"/v1/tunings/{tuning_id}", "events": f"/v1/tunings/{tuning_id}/events"}


def left_out_view(campaign: CampaignShares) -> dict[str, Any]:
    """answers.LeftOut."""
    parts = {reason.value: campaign.ids(reason) for reason in LeftOut}
    return {name: {"problems": len(ids), "problem_ids": ids} for name, ids in parts.items()}


def tuning_view(row: Row) -> dict[str, Any]:
    """answers.TuningSummary."""
    names = ("id", "status", "policy_id", "request", "total", "started", "succeeded", "failed")
    return {
        **{name: row[name] for name in names},
        "device_class": row["device_class_id"],
        "created_at": row["created_at"],
        "ended_at": row["ended_at"],
        "links": tuning_links(row["id"]),
    }


def job_view(row: Row) -> dict[str, Any]:
    """answers.TuningJob."""
    names = ("id", "position", "problem_id", "count", "status", "attempt", "session_id", "verdict", "error",
             "roofline_share", "binds", "evidence", "created_at", "started_at", "ended_at")  # fmt: skip
    return {
        **{name: row[name] for name in names},
        "problem": wire_of(row["problem_id"], row["problem"]),
        "notes": row["notes"] or [],
        "search_ended": _search_ended(row),
    }


def _search_ended(row: Row) -> str | None:
    """Why the search of a session ended, from its counts. A session that was stopped has none: its
    search was cancelled."""
    if row["session_status"] == "stopped":
        return StopReason.CANCELLED.value
    return (row["counts"] or {}).get("search_ended") or None


def event_view(row: Row) -> dict[str, Any]:
    """answers.Event."""
    return {name: row[name] for name in ("number", "kind", "content", "created_at")}


# ---- what is stored ------------------------------------------------------------------------------


def solution_view(row: Row) -> dict[str, Any]:
    """records.SolutionAnswer."""
    names = ("id", "family", "version", "parameters", "build", "workspace_bytes", "deterministic",
             "verdicts_won", "measurements", "created_at")  # fmt: skip
    return {name: row[name] for name in names}


def problem_view(row: Row) -> dict[str, Any]:
    """records.ProblemSummary."""
    return {
        "id": row["id"],
        "problem": wire_of(row["id"], row["content"]),
        "canonical": row["content"],
        "created_at": row["created_at"],
    }


def problem_detail(row: Row) -> dict[str, Any]:
    """records.ProblemAnswer."""
    verdicts = [
        {
            "session_id": verdict["session_id"],
            "device_class": verdict["device_class_id"],
            "policy_id": verdict["policy_id"],
            "verdict": verdict["content"],
            "roofline_share": verdict["roofline_share"],
            "binds": verdict["binds"],
            "decided_at": verdict["created_at"],
        }
        for verdict in row["verdicts"]
    ]
    return {**problem_view(row), "verdicts": verdicts, "keys": row["keys"]}


def measurement_view(row: Row) -> dict[str, Any]:
    """records.Measurement."""
    names = ("number", "session_id", "policy_id", "environment_id", "solution", "phase", "take", "status",
             "seconds", "samples", "evidence", "created_at")  # fmt: skip
    return {**{name: row[name] for name in names}, "device_class": row["device_class_id"]}


def leaderboard_view(
    session: Row | None, rows: list[dict[str, Any]], verdict: Row | None = None
) -> dict[str, Any]:
    """records.Leaderboard."""
    names = ("solution", "phase", "status", "seconds", "samples", "evidence", "phases")
    confidence = confidence_of(None if session is None else session["request"])
    winner = next(
        (row for row in rows if verdict is not None and row["solution_id"] == verdict["winner"]), None
    )
    taken = {} if winner is None else {n: one["seconds"] for n, one in winner["phases"].items()}
    items = []
    for rank, row in enumerate(rows, 1):
        stands, reason = standing(row, verdict, taken)
        items.append(
            {
                "rank": rank,
                **{name: row[name] for name in names},
                "interval": interval(row["samples"], confidence),
                "standing": stands.value,
                "reason": reason,
                "resources": row.get("resources"),
                "packing": row.get("packing"),
            }
        )
    return {
        "session": None if session is None else session_view(session), "verdict": verdict, "items": items,
    }  # fmt: skip


def session_view(row: Row) -> dict[str, Any]:
    """records.Session."""
    names = ("id", "job_id", "policy_id", "environment_id", "status", "error", "created_at", "ended_at")
    return {
        **{name: row[name] for name in names},
        "device_class": row["device_class_id"],
        "notes": row["notes"] or [],
        "search_ended": _search_ended({"session_status": row["status"], "counts": row["counts"]}),
    }


def device_view(row: Row) -> dict[str, Any]:
    """records.DeviceClass."""
    names = ("id", "vendor", "arch", "product", "units", "registered", "revision", "workers", "environments")
    return {**{name: row[name] for name in names}, "outliers": [outlier_view(one) for one in row["outliers"]]}


def outlier_view(row: Row) -> dict[str, Any]:
    """records.Outlier."""
    names = ("ratio", "shapes", "p_value", "reason")
    return {"uuid": row["uuid"], **{name: row["content"][name] for name in names}, "since": row["since"]}


def provenance_view(row: Row) -> dict[str, Any]:
    """records.ProvenanceRow. A pre-tuned table says itself of which class it is."""
    names = ("number", "kind", "format", "source", "sha256", "sessions", "claims", "keys", "created_at")
    own = (row["header"] or {}).get("device") if row["kind"] == "pretuned" else None
    return {**{name: row[name] for name in names}, "device_class": row["device_class_id"] or own or None}


def worker_view(row: Row) -> dict[str, Any]:
    """records.Worker. A worker that should live but has not beaten for half a minute is silent."""
    names = ("id", "host", "pid", "environment_id", "device_uuid", "job_id", "started_at", "seen_at",
             "version")  # fmt: skip
    silent = row["status"] in LIVE and not row["alive"]
    return {
        **{name: row[name] for name in names},
        "status": "silent" if silent else row["status"],
        "device_class": row["device_class_id"],
        "heartbeat_age_seconds": row["beat_age"],
        "last_failure": row["failure"],
    }


def fleet_job_view(row: Row) -> dict[str, Any]:
    """records.Job."""
    names = ("id", "status", "attempt", "retries", "priority", "problem_id", "policy_id", "worker_id",
             "session_id", "error", "evidence", "tunings", "created_at", "started_at",
             "ended_at")  # fmt: skip
    return {
        **{name: row[name] for name in names},
        "problem": wire_of(row["problem_id"], row["problem"]),
        "device_class": row["device_class_id"],
        "age_seconds": row["age"],
    }


def environment_view(row: Row) -> dict[str, Any]:
    """records.Environment."""
    return {
        "id": row["id"],
        "device_class": row["device_class_id"],
        "environment": row["content"],
        "created_at": row["created_at"],
    }
