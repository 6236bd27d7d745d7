"""Compiles the shipped portfolio before a measurement, as an idle worker does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from backends.environment import Environment
from benchmarks.cuda_tuned import say


def precompiled(environment: Environment, cache: Path) -> dict[str, Any]:
    """Compiles the portfolio's members for a device into the cache of the folder `cache`, and says how long it
    took."""
    arch = "cpu" if environment.vendor == "cpu" else environment.arch
    command = [sys.executable, "-m", "service.entry", "kernels", "precompile", "--portfolio", "--arch", arch]
    variables = {**os.environ, "GEMMTUNE_CACHE_DIR": str(cache)}
    start = time.monotonic()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    say(f"precompile: {seconds:.1f} s, exit code {done.returncode}; {done.stdout[-300:]}{done.stderr[-300:]}")
    return {"seconds": seconds, "processors": os.cpu_count(), "exit_code": done.returncode}
