"""What every benchmark writes: figures with the environment, commit and command that made them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from typing import Any

from backends.environment import Environment

RESULTS = Path(__file__).parent / "results"


def geometric_mean(values: Sequence[float]) -> float:
    """Raises ValueError for an empty sequence."""
    if not values:
        raise ValueError("no values")
    return exp(sum(log(value) for value in values) / len(values))


def commit() -> str:
    """The commit measured, marked where the tree differs from it."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    # What a benchmark itself writes does not make the measured code another.
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "--", "backends", "tuners", "db", "service"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def write(name: str, environment: Environment, figures: Mapping[str, Any]) -> Path:
    """Writes results/NAME.json and prints the figures."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "command": "python -m " + " ".join([f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "commit": commit(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment.to_dict(),
        **figures,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "rows"}, indent=1))
    print(f"written: {path}")
    return path
