"""Records the noise of this machine: samples of baselines only, taken as in a final.

    python -m benchmarks.noise tests/data/noise-cpu.json

The A/A test (tests/tuners/test_session.py) draws its sessions from these series.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from backends.cache import BinaryCache, default_cache_dir
from backends.problem import from_linear, from_mm
from backends.registry import find_device
from benchmarks.report import commit
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.policy import MeasurementPolicy

PROBLEMS = {
    "1x768x768 fp32": from_linear(1, 768, 768),
    "8x2304x768 fp32": from_linear(8, 2304, 768),
    "64x768x768 fp16": from_linear(64, 768, 768, "fp16"),
    "256x512x512 fp32": from_mm(256, 512, 512),
    "16x4096x4096 fp32": from_linear(16, 4096, 4096),
}
SAMPLES = 1500


def main() -> None:
    """Writes {"environment", "commit", "series": {problem: seconds per launch}} to the named file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the file to write")
    given = parser.parse_args()
    device = find_device("cpu")
    series = {}
    with DeviceClient(device, BinaryCache(default_cache_dir() / "kernels")) as runner:
        for name, problem in PROBLEMS.items():
            runner.open(Task(problem, MeasurementPolicy(), 0))
            base = runner.backend.baselines(problem, device.environment)[0].solution
            samples = [runner.sample(base).seconds for _ in range(SAMPLES)]
            series[name] = [float(f"{s:.4g}") for s in samples if s is not None]
            print(name, len(series[name]), flush=True)
    document = {"environment": device.environment.to_dict(), "commit": commit(), "series": series}
    given.file.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
