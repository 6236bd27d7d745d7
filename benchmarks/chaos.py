"""Kills, stops and limits a fleet's processes while clients submit jobs: every acknowledged job must end once.

    python -m benchmarks.chaos                       1,000 jobs on PostgreSQL, then 200 on SQLite
    python -m benchmarks.chaos --database sqlite --jobs 40 --kills 4 --seed 7 --output FILE

The fleet (tests/chaos) is two servers and six workers of three device classes. As root, small disks are mounted
in a mount namespace of the run's own, and a worker's processes are limited by a control group; where that is
not allowed, these faults are left out, and the summary says so. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from backends.registry import find_device
from benchmarks import report
from tests.chaos.plan import Size
from tests.chaos.run import Failed, Options, Run

#: As asked for where nothing else is.
SIZES = {
    "postgresql": Size(jobs=1000, workers=6, kills=30, stops=8, long_stops=2, limits=3, full_disks=4),
    "sqlite": Size(jobs=200, workers=6, kills=8, stops=4, long_stops=1, limits=1, full_disks=2),
}
#: Set in the process that has a mount namespace of its own.
_APART = "GEMMTUNE_CHAOS_APART"


def own_mounts() -> None:
    """Starts this program again in a mount namespace, where the machine allows one: whatever ends the run, its
    disks go with it."""
    if os.geteuid() != 0 or _APART in os.environ or shutil.which("unshare") is None:
        return
    os.environ[_APART] = "1"
    again = [sys.executable, "-m", "benchmarks.chaos", *sys.argv[1:]]
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *again])


def run(options: Options, kernels: Path | None, keep: Path | None) -> dict[str, Any]:
    """One run; its logs stay in `keep` if that is given."""
    print(f"seed {options.seed}, {options.database}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="gemmtune-chaos-") as scratch:
        Path(scratch).chmod(0o755)  # PostgreSQL runs as another user where this one is root
        folder = Path(scratch, "run")
        try:
            with Run(options, folder, kernels) as made:
                return made()
        finally:
            if keep is not None and (folder / "logs").exists():
                shutil.copytree(folder / "logs", keep / options.database, dirs_exist_ok=True)


def main() -> None:
    """Runs what the options say; prints a summary of each run as JSON and writes benchmarks/results/chaos.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=sorted(SIZES), action="append")
    parser.add_argument(
        "--seed", type=int, default=None, help="of every random choice; drawn and printed if not given"
    )
    for name in ("jobs", "workers", "kills", "stops", "long-stops", "limits", "full-disks"):
        parser.add_argument(f"--{name}", type=int, default=None)
    parser.add_argument("--kernels", type=Path, default=None, help="a folder of compiled kernels")
    parser.add_argument("--logs", type=Path, default=None, help="a folder for the programs' logs")
    parser.add_argument(
        "--output", type=Path, default=None, help="a file instead of benchmarks/results/chaos.json"
    )
    given = parser.parse_args()
    own_mounts()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is taken back
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    runs = []
    for database in given.database or list(SIZES):
        size = {
            name: getattr(SIZES[database], name) if getattr(given, name) is None else getattr(given, name)
            for name in SIZES[database].__dataclass_fields__
        }
        try:
            runs.append(run(Options(seed, database, Size(**size)), given.kernels, given.logs))
        except Failed as error:
            sys.exit(str(error))
    if given.output is None:
        report.write("chaos", find_device("cpu").environment, {"runs": runs})
    else:
        given.output.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
        print(json.dumps({"runs": runs}, indent=1))
    wrong = [text for one in runs for text in one["wrong"]]
    if wrong:
        sys.exit("\n".join(["seed " + str(seed), *wrong]))


if __name__ == "__main__":
    main()
