"""Examples of reports for the OpenAPI document; tests check them against their schemas."""

from __future__ import annotations

from typing import Any

from service.routes.examples import DEVICE_CLASS, POLICY_ID, PROBLEM, PROBLEM_ID

_ENVIRONMENT = f"{DEVICE_CLASS}-0123456789ab"

WORTH: dict[str, Any] = {
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "list": "tunableop_untuned0.csv",
    "family": None,
    "dtype": None,
    "present_environments": [_ENVIRONMENT],
    "problems": {"tuned": 4, "untuned": 1, "win": 3, "tie": 1, "loss": 0, "stale": 1, "uncounted": 0},
    "seconds": {
        "baseline": 0.84,
        "saved": 0.31,
        "speedup": 1.58,
        "untuned_estimate": 0.06,
        "tuned_share": 0.93,
    },
    "geometric_mean": 1.42,
    "fast_p": [{"p": 1.0, "problems": 4, "share": 1.0}, {"p": 1.2, "problems": 3, "share": 0.75}],
    "percentiles": [{"percent": 50, "speedup": 1.37}],
    "next": [
        {
            "problem_id": PROBLEM_ID,
            "problem": PROBLEM,
            "calls": 32,
            "saving_seconds": 0.012,
            "estimate": {
                "baseline_seconds": 0.0019,
                "speedup": 1.25,
                "basis": "kind",
                "neighbours": 3,
                "distance": 0.58,
            },
        }
    ],
    "stale": {
        "saved_seconds": 0.02,
        "reasons": [{"reason": "blas openblas 0.3.30 is now openblas 0.3.31", "problems": 1}],
        "items": [
            {
                "problem_id": PROBLEM_ID,
                "environment_id": f"{DEVICE_CLASS}-ba9876543210",
                "reason": "blas openblas 0.3.30 is now openblas 0.3.31",
                "saved_seconds": 0.02,
            }
        ],
    },
}
