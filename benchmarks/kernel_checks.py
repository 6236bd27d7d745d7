"""Times `gemmtune kernels check` of five AMD architectures and records what their kernels take.

python -m benchmarks.kernel_checks [--limit 100] [--output FOLDER]

Every kernel is compiled anew: the check gets a cache of its own. docs/kernels.md shows the table
(`python -m benchmarks.tables`); a suite compiles the default candidates again and compares them with it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.registry import find_device
from backends.toolchains.clang import clang_build
from backends.toolchains.triton import triton_build
from benchmarks.report import write

NAME = "kernels-check-amd"
ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
LIMIT = 100


def compilers(arch: str) -> dict[str, str | None]:
    """The compilers of an architecture's kernels and their versions."""
    return {"clang": clang_build(arch), "triton": triton_build()}


def rows_of(checked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per architecture and family: its summary, and the kernel of its default candidate, which is the
    first that a search tries, without its parameters and log."""
    defaults: dict[tuple[str, str], dict[str, Any]] = {}
    for sample in checked["samples"]:
        of = sample["arch"], sample["family"]
        defaults.setdefault(of, {name: sample[name] for name in KEPT})
    return [{**row, "default": defaults[row["arch"], row["family"]]} for row in checked["families"]]


#: What is recorded of a default candidate's kernel.
KEPT = (
    "solution", "status", "threads", "registers", "accumulation_registers", "scalar_registers",
    "shared_bytes", "scratch_bytes", "spill_bytes", "waves_per_simd", "occupancy_limit",
    "matrix_instructions",
)  # fmt: skip


def measured(archs: Sequence[str], limit: int) -> dict[str, Any]:
    """Runs the command with an empty cache: its seconds, those of all processors together, and the rows."""
    options = [text for arch in archs for text in ("--arch", arch)]
    command = [str(Path(sys.executable).with_name("gemmtune")), "kernels", "check", *options]
    with tempfile.TemporaryDirectory(prefix="gemmtune-check-") as folder:
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [*command, "--limit", str(limit), "--json"], check=False, stdout=subprocess.PIPE,
            env={**os.environ, "GEMMTUNE_CACHE_DIR": folder},
        )  # fmt: skip
        seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):  # 1: some kernels do not compile, which the rows show
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    checked = json.loads(done.stdout)
    processor = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return {
        "limit": limit, "kernels": len(checked["samples"]), "seconds": seconds,
        "processor_seconds": processor, "processors": len(os.sched_getaffinity(0)),
        "compilers": {arch: compilers(arch) for arch in archs},
        "notes": checked["notes"], "rows": rows_of(checked),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--limit", type=int, default=LIMIT, help="kernels of an architecture")
    parser.add_argument("--output", type=Path, help="folder; default: benchmarks/results")
    options = parser.parse_args()
    write(NAME, find_device("cpu").environment, measured(ARCHS, options.limit), options.output)


if __name__ == "__main__":
    main()
