"""Examples of leaderboards for the OpenAPI document; tests check them against their schemas."""

from __future__ import annotations

from typing import Any

from service.routes.examples import DEVICE_CLASS, POLICY_ID, PROBLEM, PROBLEM_ID, SOLUTION

_ENVIRONMENT = f"{DEVICE_CLASS}-0123456789ab"
_SUMS: dict[str, Any] = {
    "problems": {"all": 4, "win": 3, "tie": 1, "loss": 0},
    "geometric_mean": 1.42,
    "seconds": {"baseline": 0.84, "saved": 0.31, "speedup": 1.58},
    "roofline": {"mean": 0.61, "problems": 4},
}

BOARD: dict[str, Any] = {
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "list": None,
    "judged": None,
    "sort": "saved",
    "order": "desc",
    **_SUMS,
    "uncounted": 0,
    "binds": {"compute": 1, "memory": 3},
    "fast_p": [{"p": 1.0, "problems": 4, "share": 1.0}, {"p": 1.2, "problems": 3, "share": 0.75}],
    "groups": [{"by": "family", "name": "packed", **_SUMS}],
    "items": [
        {
            "problem_id": PROBLEM_ID,
            "problem": PROBLEM,
            "calls": 32,
            "judgement": "WIN",
            "winner_id": SOLUTION["id"],
            "family": SOLUTION["family"],
            "seconds": 0.00079,
            "baseline_name": "numpy upcast",
            "baseline_seconds": 0.0009,
            "speedup": {"low": 1.12, "mid": 1.14, "high": 1.16},
            "tied": 2,
            "rounds": 20,
            "saved_seconds": 0.0035,
            "roofline_share": 0.61,
            "binds": "memory",
            "flops": 536870912,
            "bytes": 33718272,
            "session_id": "tn_4096x16x4096_bf16-0123456789abcdef",
            "environment_id": _ENVIRONMENT,
            "decided_at": "2026-01-31T12:00:00.000Z",
        }
    ],
    "next_cursor": None,
}

CEILINGS: dict[str, Any] = {
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "environment_id": _ENVIRONMENT,
    "bytes_per_second": 2.1e10,
    "flops_per_second": {"bf16": 3.4e11, "fp32": 1.6e11},
}

_SIDE: dict[str, Any] = {
    "judgement": "WIN",
    "seconds": 0.00079,
    "baseline_seconds": 0.0009,
    "speedup": {"low": 1.12, "mid": 1.14, "high": 1.16},
    "winner_id": SOLUTION["id"],
    "family": SOLUTION["family"],
    "session_id": "tn_4096x16x4096_bf16-0123456789abcdef",
    "environment_id": _ENVIRONMENT,
    "decided_at": "2026-01-31T12:00:00.000Z",
}

COMPARISON: dict[str, Any] = {
    "a": {"device_class": DEVICE_CLASS, "policy_id": POLICY_ID},
    "b": {"device_class": DEVICE_CLASS, "policy_id": POLICY_ID},
    "by": "time",
    "list": None,
    "margin": 0.02,
    "problems": {"a": 4, "b": 3, "both": 3, "better": 1, "worse": 1, "same": 1, "lost": 1, "new": 0},
    "geometric_mean": 1.01,
    "curve": [{"p": 0.9, "problems": 3, "share": 1.0}, {"p": 1.02, "problems": 1, "share": 0.33}],
    "order": "asc",
    "items": [
        {
            "problem_id": PROBLEM_ID, "problem": PROBLEM, "change": "worse", "ratio": 0.93,
            "a": _SIDE, "b": {**_SIDE, "seconds": 0.00085},
        }
    ],
    "next_cursor": None,
}  # fmt: skip
