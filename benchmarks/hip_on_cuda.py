"""The HIP backend on an NVIDIA GPU against the CUDA backend, in one run: what the host's part of it costs.

    python -m benchmarks.hip_on_cuda [--repeats 3] [--seconds 3]

HIP's libraries are those of tests/backends/hip/on_cuda, compiled here: they forward to the CUDA driver, NVRTC and
cuBLASLt. Host nanoseconds per launch of the same kernel through both, and wall seconds per problem of tuning five
shapes. It says nothing of an AMD GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import RESULTS, write
from benchmarks.trees import HERE, PROBES

#: Families that both backends have, and their libraries' heuristics.
FAMILIES = "gemv,skinny,skinny-mma,vectorized,naive,hipblaslt-heuristic,cublaslt-heuristic"
#: One side's name of a figure -> the common one.
_COMMON = {"launch hipblaslt-heuristic": "launch library", "launch cublaslt-heuristic": "launch library"}


def prepare(folder: Path) -> None:
    """Compiles the libraries, and has this process and its children find them."""
    from tests.backends.hip.on_cuda.build import build, variables  # noqa: PLC0415  (compiles with g++)

    os.environ.update(variables(build(folder)))


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a figure: medians of both backends, and HIP's over CUDA's."""
    homes = {name: Path(tempfile.mkdtemp(prefix=f"gemmtune-{name}-")) for name in ("cuda", "hip")}
    taken: dict[str, dict[str, list[float]]] = {}
    try:
        for probe in options.only.split(","):
            for repeat in range(-(probe == "launch"), options.repeats):
                for name in ("cuda", "hip") if repeat % 2 else ("hip", "cuda"):
                    given = argparse.Namespace(**{**vars(options), "device": name})
                    found: Mapping[str, float] = PROBES[probe](HERE, homes[name], given)
                    for figure, value in found.items():
                        common = _COMMON.get(figure, figure)
                        if repeat >= 0:
                            taken.setdefault(common, {"cuda": [], "hip": []})[name].append(value)
                print(probe, repeat, {figure: both["hip"] for figure, both in taken.items()}, file=sys.stderr)
    finally:
        for home in homes.values():
            shutil.rmtree(home, ignore_errors=True)
    return [
        {
            "figure": figure, "cuda": median(both["cuda"]), "hip": median(both["hip"]),
            "ratio": median(both["hip"]) / median(both["cuda"]), "all": both,
        }
        for figure, both in taken.items()
        if both["cuda"] and both["hip"]
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes hip-on-cuda.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring a problem (3)")
    parser.add_argument("--only", default="launch,devices,tune")
    parser.add_argument("--families", default=FAMILIES)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    from backends.registry import find_device  # noqa: PLC0415  (a benchmark of whole processes needs no more)

    with tempfile.TemporaryDirectory(prefix="gemmtune-rocm-") as folder:
        prepare(Path(folder))
        environments = [find_device(name).environment for name in ("cuda", "hip")]
        rows = measured(options)
    write("hip-on-cuda", environments, {"rows": rows}, options.output)
    for row in rows:
        print(f"{row['figure']:<28} {row['cuda']:12.4f} {row['hip']:12.4f}  {row['ratio']:.3f}x")


if __name__ == "__main__":
    main()
