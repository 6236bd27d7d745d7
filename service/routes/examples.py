"""Examples of the OpenAPI document; tests check them against their schemas."""

from __future__ import annotations

from typing import Any

DEVICE_CLASS = "cpu:x86_64:AMD-EPYC-9B14:2"
POLICY_ID = "eager-cold-normal-5a3ec1b2"
TUNING_ID = "tuning-5b0c8f0e6a1d4c37"
PROBLEM = {"m": 16, "n": 4096, "k": 4096, "dtype": "bf16", "trans_b": True}
PROBLEM_ID = "tn_4096x16x4096_bf16-0a1b2c3d4e5f"

TUNING_REQUEST: dict[str, Any] = {
    "problems": [{**PROBLEM, "count": 32}, {"m": 128, "n": 128, "k": 128}],
    "device": "cpu",
    "budget": {"seconds_per_problem": 2},
    "policy": {"mode": "eager", "cache": "cold"},
    "search": {"strategy": "guided"},
    "rule": {"margin": 0.02},
    "priority": 10,
    "force": False,
}
LINKS = {"self": f"/v1/tunings/{TUNING_ID}", "events": f"/v1/tunings/{TUNING_ID}/events"}
TUNING_CREATED: dict[str, Any] = {
    "id": TUNING_ID,
    "status": "queued",
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "total": 2,
    "new": 2,
    "shared": 0,
    "known": 0,
    "left_out": None,
    "links": LINKS,
}
TUNING: dict[str, Any] = {
    "id": TUNING_ID,
    "status": "running",
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "request": {
        "budget": {"seconds": 2.0, "candidates": None, "final_share": 0.5},
        "search": {"strategy": "guided", "seed": 0, "families": None},
        "rule": {"margin": 0.02, "confidence": 0.99, "min_rounds": 8, "max_rounds": 60},
        "priority": 10,
        "force": False,
    },
    "total": 2,
    "started": 1,
    "succeeded": 0,
    "failed": 0,
    "created_at": "2025-01-01T12:00:00.000Z",
    "ended_at": None,
    "links": LINKS,
}
EVENT: dict[str, Any] = {
    "number": 1,
    "kind": "queued",
    "content": {"total": 2, "shared": 0, "known": 0},
    "created_at": "2025-01-01T12:00:00.000Z",
}

SOLUTION: dict[str, Any] = {
    "id": "stream-dot_upcast-kc_512-mc_16-nb_2-nc_256-rm_8-threads_2-1f0e9d8c7b6a",
    "family": "stream",
    "version": 1,
    "parameters": {"dot": "upcast", "kc": 512, "mc": 16, "nb": 2, "nc": 256, "rm": 8, "threads": 2},
    "build": None,
    "workspace_bytes": 0,
    "deterministic": True,
}
_MEASURED: dict[str, Any] = {
    "problem_id": PROBLEM_ID,
    "problem": PROBLEM,
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "solution": SOLUTION,
    "seconds": 0.00079,
    "judgement": "WIN",
    "baseline": {"name": "numpy upcast", "solution_id": "openblas-upcast-threads_2-0123456789ab",
                 "seconds": 0.00543},
    "speedup": {"low": 6.77, "mid": 6.84, "high": 6.97},
    "tie_set": [SOLUTION["id"]],
    "rounds": 24,
    "reason": "faster in the paired test, by more than the margin of 2%",
    "roofline": {"share": 0.89, "binds": "compute"},
    "session_id": "tn_4096x16x4096_bf16-0123456789abcdef",
    "environment_id": f"{DEVICE_CLASS}-0123456789ab",
    "decided_at": "2025-01-01T12:00:00.000Z",
    "provenance": {"kind": "measured", "source": None},
}  # fmt: skip
BEST_EXACT: dict[str, Any] = {"match": "exact", **_MEASURED}
_ASKED = {"m": 24, "n": 4096, "k": 4096, "dtype": "bf16", "trans_b": True}
_ASKED_ID = "tn_4096x24x4096_bf16-a1b2c3d4e5f6"
BEST_NEAREST: dict[str, Any] = {
    "match": "nearest",
    **_MEASURED,
    "distance": 0.585,
    "transfer_regret": {"median": 0.01, "p80": 0.02, "pairs": 7},
    "asked": _ASKED,
    "asked_id": _ASKED_ID,
    "notes": [],
}
BEST_DEFAULT: dict[str, Any] = {
    "match": "default",
    "solution": None,
    "reason": "nothing that fits was measured for tn_4096x24x4096_bf16 or near it",
    "problem_id": _ASKED_ID,
    "asked": _ASKED,
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "notes": [],
}
BEST_REQUEST: dict[str, Any] = {"problems": [PROBLEM, _ASKED], "device": "cpu", "deterministic": True}

SOLUTION_ANSWER = {
    **SOLUTION,
    "verdicts_won": 3,
    "measurements": 41,
    "created_at": "2025-01-01T12:00:00.000Z",
}
CANONICAL: dict[str, Any] = {
    "m": 4096, "n": 16, "k": 4096, "batch": 1, "trans_a": "T", "trans_b": "N",
    "lda": 4096, "ldb": 4096, "ldc": 4096, "ldd": 4096,
    "stride_a": 0, "stride_b": 0, "stride_c": 0, "stride_d": 0,
    "dtype_a": "bf16", "dtype_b": "bf16", "dtype_c": "bf16", "dtype_d": "bf16", "compute": "fp32",
    "alpha": "one", "beta": "zero", "activation": "none", "bias": None, "bias_axis": None,
    "scale_a": "none", "scale_b": "none", "scale_d": "none", "scale_dtype": None,
    "alignment": 16, "fast_accumulation": False,
}  # fmt: skip
PROBLEM_SUMMARY: dict[str, Any] = {
    "id": PROBLEM_ID,
    "problem": PROBLEM,
    "canonical": CANONICAL,
    "created_at": "2025-01-01T12:00:00.000Z",
}
_VERDICT: dict[str, Any] = {
    "judgement": "WIN",
    "baseline": "openblas-upcast-threads_2-0123456789ab",
    "baseline_name": "numpy upcast",
    "winner": SOLUTION["id"],
    "seconds": 0.00079,
    "baseline_seconds": 0.00543,
    "speedup": {"low": 6.77, "mid": 6.84, "high": 6.97},
    "tie_set": [SOLUTION["id"]],
    "rounds": 24,
    "reason": "faster in the paired test, by more than the margin of 2%",
    "targets": {
        "openblas": {
            "judgement": "TIE",
            "solution": "openblas-upcast-threads_1-0123456789ab",
            "seconds": 0.00541,
            "baseline_seconds": 0.00543,
            "speedup": {"low": 0.998, "mid": 1.004, "high": 1.011},
            "rounds": 24,
            "reason": "the difference from the baseline is within the noise",
            "proven": False,
        }
    },
}
PROBLEM_ANSWER: dict[str, Any] = {
    **PROBLEM_SUMMARY,
    "verdicts": [
        {
            "session_id": _MEASURED["session_id"],
            "device_class": DEVICE_CLASS,
            "policy_id": POLICY_ID,
            "verdict": _VERDICT,
            "roofline_share": 0.89,
            "binds": "compute",
            "decided_at": "2025-01-01T12:00:00.000Z",
        }
    ],
    "keys": [
        {
            "format": "tunableop-untuned",
            "key": "GemmTunableOp_BFloat16_TN,tn_4096_16_4096_ld_4096_4096_4096",
            "count": 32,
        }
    ],
}
MEASUREMENT: dict[str, Any] = {
    "number": 17,
    "session_id": _MEASURED["session_id"],
    "device_class": DEVICE_CLASS,
    "environment_id": _MEASURED["environment_id"],
    "policy_id": POLICY_ID,
    "solution": SOLUTION,
    "phase": "screen",
    "take": 0,
    "status": "ok",
    "seconds": 0.0008,
    "samples": [0.00079, 0.0008, 0.00081],
    "evidence": {},
    "created_at": "2025-01-01T12:00:00.000Z",
}
LEADERBOARD: dict[str, Any] = {
    "session": {
        "id": _MEASURED["session_id"],
        "job_id": "job-0123456789abcdef",
        "device_class": DEVICE_CLASS,
        "environment_id": _MEASURED["environment_id"],
        "policy_id": POLICY_ID,
        "status": "succeeded",
        "error": None,
        "notes": [],
        "search_ended": "budget spent",
        "created_at": "2025-01-01T12:00:00.000Z",
        "ended_at": "2025-01-01T12:00:04.000Z",
    },
    "verdict": _VERDICT,
    "items": [
        {
            "rank": 1,
            "solution": SOLUTION,
            "standing": "winner",
            "reason": _VERDICT["reason"],
            "phase": "final",
            "status": "ok",
            "seconds": 0.00079,
            "interval": {"low": None, "mid": 0.00079, "high": None},
            "samples": [0.00079],
            "resources": {"registers": 64, "shared_bytes": 0, "threads": 128},
            "packing": None,
            "evidence": {},
            "phases": {
                "screen": {"status": "ok", "seconds": 0.0008, "take": 0},
                "final": {"status": "ok", "seconds": 0.00079, "take": 1},
                "proof": {"status": "ok", "seconds": None, "take": 1},
            },
        }
    ],
}
WORKER: dict[str, Any] = {
    "id": "worker-0123456789abcdef",
    "host": "node-1",
    "pid": 4711,
    "device_class": DEVICE_CLASS,
    "environment_id": _MEASURED["environment_id"],
    "device_uuid": "CPU-876cd4af",
    "status": "measuring",
    "job_id": "job-0123456789abcdef",
    "heartbeat_age_seconds": 0.4,
    "last_failure": {
        "at": "2025-01-01T11:59:30.000Z",
        "job_id": "job-fedcba9876543210",
        "reason": "no default of this problem could be measured: numpy: timeout",
    },
    "version": "0.5.0",
    "started_at": "2025-01-01T11:59:00.000Z",
    "seen_at": "2025-01-01T12:00:00.000Z",
}
JOB: dict[str, Any] = {
    "id": "job-fedcba9876543210",
    "status": "failed",
    "attempt": 1,
    "retries": 0,
    "priority": 10,
    "problem": PROBLEM,
    "problem_id": PROBLEM_ID,
    "device_class": DEVICE_CLASS,
    "policy_id": POLICY_ID,
    "worker_id": WORKER["id"],
    "session_id": "tn_4096x16x4096_bf16-0123456789abcdef",
    "error": WORKER["last_failure"]["reason"],
    "evidence": None,
    "tunings": [TUNING_ID],
    "age_seconds": 42.5,
    "created_at": "2025-01-01T11:58:00.000Z",
    "started_at": "2025-01-01T11:59:20.000Z",
    "ended_at": "2025-01-01T11:59:30.000Z",
}
DEVICES: dict[str, Any] = {
    "classes": [
        {
            "id": DEVICE_CLASS,
            "vendor": "cpu",
            "arch": "x86_64",
            "product": "AMD-EPYC-9B14",
            "units": 2,
            "registered": True,
            "revision": 35,
            "workers": 1,
            "environments": 1,
            "outliers": [
                {
                    "uuid": "CPU-0c9e1b7a",
                    "ratio": 1.187,
                    "shapes": 8,
                    "p_value": 0.0001,
                    "reason": "the default is 18.7% slower than on the other devices of the class (median "
                    "of 8 shapes, rank test p = 0.0001)",
                    "since": "2025-01-01T11:00:00.000Z",
                }
            ],
        }
    ],
    "workers": [WORKER],
}
ENVIRONMENT: dict[str, Any] = {
    "id": _MEASURED["environment_id"],
    "device_class": DEVICE_CLASS,
    "environment": {
        "vendor": "cpu",
        "arch": "x86_64",
        "product": "AMD EPYC 9B14",
        "units": 2,
        "memory_bytes": 17179869184,
        "uuid": "CPU-876cd4af",
        "partition": "x86-64-v4+avx512_bf16",
        "driver": "Linux 6.1",
        "runtime": "Python 3.11.7",
        "libraries": {"blas": "openblas 0.3.31"},
    },
    "created_at": "2025-01-01T11:59:00.000Z",
}
BACKENDS: dict[str, Any] = {
    "backends": [
        {
            "name": "cpu",
            "available": True,
            "devices": [DEVICE_CLASS],
            "families": ["stream", "packed", "torch", "openblas", "openblas_upcast"],
            "modes": ["eager"],
            "notes": [],
        }
    ]
}

_KEPT: dict[str, Any] = {"stored": 0, "known": 0, "skipped": 0, "reasons": []}
IMPORT_ANSWER: dict[str, Any] = {
    "format": "tunableop-untuned",
    "problems": [{**PROBLEM, "id": PROBLEM_ID, "count": 32}],
    "rejected": [{"line": 7, "reason": "the line is cut short: no parameters after the operator signature"}],
    "rejected_more": 0,
    "claims": _KEPT,
    "sessions": _KEPT,
    "provenance": {
        "kind": "imported",
        "format": "tunableop-untuned",
        "source": "upload",
        "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "device_class": None,
        "new": True,
    },
    "tuning": None,
}
EXPORT_REPORT: dict[str, Any] = {
    "format": "tunableop",
    "device_class": "cuda:sm_90:NVIDIA-H200:132",
    "policy_id": POLICY_ID,
    "target": "torch-2.9",
    "written": 31,
    "omitted": {
        "TIE: the default stays (ties=default writes it out)": {
            "count": 4,
            "examples": ["tn_4096x16x4096_bf16"],
        }
    },
    "gain": {
        "rows": 31,
        "geometric_mean": 1.052,
        "problems": 35,
        "all_problems": 1.046,
        "with_bundle": 1.125,
    },
    "tune_again": 0,
    "one_seed": 0,
    "rests_on": {},
    "stale": {"cublaslt 130000 is now 130100": 2},
}
BUNDLE_REPORT: dict[str, Any] = {
    **EXPORT_REPORT,
    "format": "bundle",
    "target": "sm_90",
    "omitted": {
        "the best kernel of our own is a TIE": {"count": 4, "examples": ["tn_4096x16x4096_bf16"]},
    },
    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "bytes": 1843204,
}
BUNDLE_PROGRESS: dict[str, Any] = {
    "status": "building",
    "device_class": "cuda:sm_90:NVIDIA-H200:132",
    "policy_id": POLICY_ID,
    "target": "sm_90",
    "done": 12,
    "total": 31,
}

PROVENANCE: dict[str, Any] = {
    "number": 1, "kind": "imported", "format": "tunableop", "source": "tunableop_results0.csv",
    "sha256": "0" * 64, "device_class": "hip:gfx942:MI300X:304", "sessions": 0, "claims": 12, "keys": 12,
    "created_at": "2026-01-02T03:04:05.678Z",
}  # fmt: skip
