"""Examples of reports for the OpenAPI document; tests check them against their schemas."""

from __future__ import annotations

from typing import Any

from service.routes.examples import DEVICE_CLASS, POLICY_ID, PROBLEM, PROBLEM_ID, SOLUTION

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
    "detail": {
        "distribution": [
            {"low": 1.0, "high": 1.02, "problems": 1}, {"low": 1.02, "high": None, "problems": 3},
        ],
        "curve": [{"p": 1.0, "share": 1.0, "time_share": 1.0}, {"p": 2.0, "share": 0.25, "time_share": 0.4}],
        "roofline": {
            "bytes_per_second": 4.2e12,
            "flops_per_second": {"bf16": 7.8e14},
            "problems": [
                {
                    "problem_id": PROBLEM_ID, "dtype": "bf16", "intensity": 15.9, "flops_per_second": 5.1e13,
                    "baseline_flops_per_second": 3.4e13, "share": 0.76, "binds": "memory",
                }
            ],
        },
        "gains": [
            {
                "problem_id": PROBLEM_ID, "problem": PROBLEM, "calls": 32, "baseline_name": "torch",
                "baseline_seconds": 1.6e-05, "family": "gemv", "seconds": 1.1e-05, "speedup": 1.45,
                "saved_seconds": 0.00016, "roofline_share": 0.76,
            }
        ],
        "environments": [
            {
                "environment_id": _ENVIRONMENT, "problems": 4, "present": True,
                "environment": {"product": "AMD EPYC 9B14", "libraries": {"blas": "openblas 0.3.31"}},
            }
        ],
    },
}  # fmt: skip

DIFF: dict[str, Any] = {
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "before": [f"{DEVICE_CLASS}-ba9876543210"],
    "after": [_ENVIRONMENT],
    "changes": ["blas openblas 0.3.30 is now openblas 0.3.31"],
    "counts": {"kept": 11, "beaten": 1, "broken": 0, "retired": 0, "pending": 2},
    "items": [
        {
            "number": 17,
            "problem_id": PROBLEM_ID,
            "problem": PROBLEM,
            "fate": "beaten",
            "reason": "by the default, numpy upcast",
            "before": {
                "session_id": "tn_4096x16x4096_bf16-0123456789abcdef",
                "judgement": "WIN",
                "winner_id": SOLUTION["id"],
                "seconds": 0.00079,
                "baseline_name": "numpy upcast",
                "baseline_seconds": 0.0009,
                "speedup": 1.14,
            },
            "after": {
                "session_id": "tn_4096x16x4096_bf16-fedcba9876543210",
                "judgement": "TIE",
                "winner_id": "openblas-upcast-threads_2-0123456789ab",
                "seconds": 0.00078,
                "baseline_name": "numpy upcast",
                "baseline_seconds": 0.00078,
                "speedup": 1.0,
            },
        }
    ],
    "next_cursor": None,
}
