"""Stands in for NVIDIA's nvMatmulHeuristics: does what script.json beside it says, and keeps in asked.jsonl
what it was asked. The process that asks imports a copy of it under the library's name.
"""

from __future__ import annotations

import enum
import json
import os
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


class NvMatmulHeuristicsTarget(enum.IntEnum):
    GENERIC = 0
    TRITON = 3


class NvMatmulHeuristicsFlags(enum.IntEnum):
    NONE = 0
    PERF_MODEL_BASED_AUTO_TUNING = 8


class NvMatmulHeuristicsNvidiaGpu(enum.IntEnum):
    H100_SXM = 9000
    H200_SXM = 9003


class NvMatmulHeuristicsMatmulLayout(enum.IntEnum):
    NN_ROW_MAJOR = 0
    NT_ROW_MAJOR = 1
    TN_ROW_MAJOR = 2
    TT_ROW_MAJOR = 3
    NN_COL_MAJOR = 4
    NT_COL_MAJOR = 5
    TN_COL_MAJOR = 6
    TT_COL_MAJOR = 7


class Kernel:
    """A configuration, by the library's names."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


class NvMatmulHeuristicsInterfaceEx:
    def __init__(self, backend: enum.IntEnum, flags: enum.IntEnum, gpu: enum.IntEnum) -> None:
        self._script = json.loads((_HERE / "script.json").read_text())
        self._made = {
            "target": backend.name,
            "flags": flags.name,
            "gpu": gpu.name,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def makeNvMatmulHeuristicsProblem(  # noqa: N802  (the library's name)
        self, m: int, n: int, k: int, layout: enum.IntEnum, batch_size: int
    ) -> dict[str, Any]:
        return {"m": m, "n": n, "k": k, "layout": layout.name, "batch": batch_size}

    def get(self, problem: dict[str, Any], count: int, precision: str) -> list[dict[str, Any]]:
        with (_HERE / "asked.jsonl").open("a") as file:
            file.write(json.dumps({**self._made, **problem, "precision": precision}) + "\n")
        fault = self._script.get("fault")
        if fault == "raise":
            raise RuntimeError("Failed to set predefined GPU, status: 4")
        if fault == "die":
            os.abort()
        if fault == "hang":
            time.sleep(60)
        print("the library talks to people, too")
        answers = self._script["row" if problem["layout"].endswith("ROW_MAJOR") else "column"]
        return [{"kernel": Kernel(one), "runtime": 0.0} for one in answers[:count]]
