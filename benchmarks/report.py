"""Writes every benchmark's result: figures with the environment, commit and command that produced them.

On a machine without git, or without the repository, GEMMTUNE_COMMIT names the commit that was copied there;
without either the commit is "unknown".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from typing import Any

from backends.environment import Environment

RESULTS = Path(__file__).parent / "results"
UNKNOWN = "unknown"


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean. Raises ValueError for an empty sequence."""
    if not values:
        raise ValueError("no values")
    return exp(sum(log(value) for value in values) / len(values))


def commit() -> str:
    """$GEMMTUNE_COMMIT (for a copy without its repository), else git's HEAD, marked +changes if the tree
    differs from it, else "unknown"."""
    told = os.environ.get("GEMMTUNE_COMMIT", "").strip()
    head = "" if told else _git("rev-parse", "HEAD")
    if not head:
        return told or UNKNOWN
    # Only the measured code counts: a benchmark's own results do not make the tree dirty.
    dirty = _git("status", "--porcelain", "--", "backends", "tuners", "db", "service")
    return head + ("+changes" if dirty else "")


def _git(*arguments: str) -> str:
    """What git prints, "" where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def command(arguments: Sequence[str]) -> str:
    """The command line that repeats a measurement: without --output and --folder, which are places of one
    machine, and without what a database's URL says."""
    rest = list(arguments[1:])
    for option in ("--output", "--folder"):
        if option in rest:
            at = rest.index(option)
            del rest[at : at + 2]
    if "--postgres" in rest:
        at = rest.index("--postgres")
        rest[at + 1 : at + 2] = ["URL"]
    return "python -m " + " ".join([f"benchmarks.{Path(arguments[0]).stem}", *rest])


def write(
    name: str,
    environment: Environment | Sequence[Environment],
    figures: Mapping[str, Any],
    folder: Path | None = None,
) -> Path:
    """Writes NAME.json into results (or `folder`) and prints the figures. With several environments, the
    first is "environment" and all are in "environments"."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    several = [environment] if isinstance(environment, Environment) else list(environment)
    document = {
        "command": command(sys.argv),
        "commit": commit(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": several[0].to_dict(),
        **({"environments": [one.to_dict() for one in several]} if len(several) > 1 else {}),
        **figures,
    }
    fresh = path.with_suffix(".json.new")  # a run killed here leaves the previous document intact
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.replace(path)
    print(json.dumps({key: value for key, value in figures.items() if key != "rows"}, indent=1))
    print(f"written: {path}")
    return path
