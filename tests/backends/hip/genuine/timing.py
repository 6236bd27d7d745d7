"""Times the enumeration of the genuine libraries on a fake device.

`python -m tests.backends.hip.genuine.timing FILE REPEATS`, in its own process under sid's loader
(machine.py), writes JSON to FILE: the environment, counts, and for each step the seconds of every repetition.
The first listing also loads the library's tables; its time is reported separately.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backends.hip import hipblaslt
from backends.hip.hipblaslt import HipblasLt
from backends.hip.rocblas import Rocblas
from tests.backends.hip.genuine.answers import UNLIMITED, open_device
from tests.backends.hip.genuine.problems import PROBLEMS

PROBLEM = PROBLEMS["bf16 TN"]


def main() -> None:
    """Writes the figures."""
    device, repeats = open_device(), int(sys.argv[2])
    call = hipblaslt.library(device).call(PROBLEM)
    first = _seconds(call.every)
    every = call.every()

    def list_and_check() -> int:
        return sum(call.supports(one) is not None for one in call.every())

    steps: dict[str, Callable[[], Any]] = {
        "getAllAlgos": call.every,
        "matmulIsAlgoSupported of all": lambda: [call.supports(one) for one in every],
        "getAllAlgos and matmulIsAlgoSupported of all": list_and_check,
        "heuristic, unlimited": lambda: call.heuristics(UNLIMITED),
        "the family hipblaslt": lambda: list(HipblasLt().enumerate_on(PROBLEM, device, UNLIMITED)),
        "the family rocblas": lambda: list(Rocblas().enumerate_on(PROBLEM, device, UNLIMITED)),
    }
    found = {
        "environment": device.environment.to_dict(),
        "problem": PROBLEM.slug,
        "listed": len(every),
        "supported": list_and_check(),
        "first_listing_seconds": first,
        "seconds": {name: [_seconds(step) for _ in range(repeats)] for name, step in steps.items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def _seconds(step: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
