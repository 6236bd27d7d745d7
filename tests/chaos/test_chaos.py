"""Every acknowledged job ends once, whatever is killed, stopped or full: `make chaos` in short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from backends.cache import BinaryCache

#: Any other has to pass too; this one's faults hit workers that measure.
SEED = 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "database",
    [
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("sqlite", marks=pytest.mark.exhaustive),
    ],
)
def test_every_acknowledged_job_ends_once(database: str, tmp_path: Path, cache: BinaryCache) -> None:
    made = tmp_path / "summary.json"
    command = [
        sys.executable, "-m", "benchmarks.chaos", "--database", database, "--seed", str(SEED), "--jobs", "24",
        "--workers", "3", "--kills", "4", "--stops", "1", "--long-stops", "0", "--limits", "1",
        "--full-disks", "2", "--kernels", str(cache.root.resolve()), "--output", str(made),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    (run,) = json.loads(made.read_text())["runs"]
    assert (run["seed"], run["database"], run["wrong"]) == (SEED, database, [])
    assert run["jobs_acknowledged"] >= 24
    assert sum(count for name, count in run["faults"].items() if name.startswith("kill")) == 4
    left_out = {text.partition(":")[0] for text in run["left_out"]}
    assert left_out <= {"full disk", "limit of processes"}, "what the machine does not allow is said"
    assert len(run["timeline"]) == 8 - 2 * ("full disk" in left_out) - ("limit of processes" in left_out)
