"""How long the genuine hipBLASLt and rocBLAS take to enumerate their solutions, on a runtime without a GPU.

    python -m benchmarks.hip_genuine [--repeats 20]

The libraries are those of `make genuine`: Debian sid's, on the fake runtime of tests/backends/hip/genuine, as
gfx90a with 104 compute units. Only host code runs, so the figures depend on the CPU (the second environment) and
say nothing of an AMD GPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from backends.environment import Environment
from backends.registry import find_device
from benchmarks.report import RESULTS, write
from tests.backends.hip.genuine.fetch import Genuine, Unavailable, fetch
from tests.backends.hip.genuine.machine import build_fake, python
from tests.backends.hip.genuine.problems import DEVICES

#: Seconds that getAllAlgos and matmulIsAlgoSupported of every solution may take together.
LIMIT_SECONDS = 0.2
LIMITED = "getAllAlgos and matmulIsAlgoSupported of all"


def measured(genuine: Genuine, repeats: int) -> dict[str, Any]:
    """What tests/backends/hip/genuine/timing.py writes. Raises Unavailable."""
    build_fake(genuine)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        module = "tests.backends.hip.genuine.timing"
        done = python(genuine, "-m", module, file.name, str(repeats), device=DEVICES[0])
        if done.returncode:
            raise Unavailable(f"{module} ends with {done.returncode}: {done.stderr.strip()[-2000:]}")
        found: dict[str, Any] = json.load(file)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes hip-genuine.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    try:
        genuine = fetch()
        found = measured(genuine, options.repeats)
    except Unavailable as error:
        raise SystemExit(f"the genuine libraries cannot be run: {error}") from None
    environment = Environment(**found.pop("environment"))
    seconds = found.pop("seconds")
    rows = [
        {"step": step, "median_seconds": median(values), "worst_seconds": max(values)}
        for step, values in seconds.items()
    ]
    limited = median(seconds[LIMITED])
    figures = {
        "what": "host seconds to enumerate solutions; the runtime is a fake without a GPU, the libraries genuine",
        "packages": {
            name: version
            for name, version in genuine.packages.items()
            if name in ("libhipblaslt1", "librocblas4")
        },
        **found,
        "repeats": options.repeats,
        "enumeration_seconds": limited,
        "limit_seconds": LIMIT_SECONDS,
        "within_limit": limited < LIMIT_SECONDS,
        "rows": rows,
    }
    write("hip-genuine", [environment, find_device("cpu").environment], figures, options.output)


if __name__ == "__main__":
    main()
