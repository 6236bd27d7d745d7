"""The HIP backend on an NVIDIA GPU against the CUDA backend, in one run: what the host's part of it costs.

    python -m benchmarks.hip_on_cuda [--repeats 3] [--seconds 3]

HIP's libraries are those of tests/backends/hip/on_cuda, compiled here: they forward to the CUDA driver, NVRTC and
cuBLASLt. Host nanoseconds per launch of the same solution of the same problem through both (the libraries' first
heuristic included), and wall seconds per problem of tuning five shapes. It says nothing of an AMD GPU.

CUDA launches kernels that wait for the launch before them with programmatic stream serialization, which HIP does not
have. `cuda_plain` is the same launch without it: the launch that HIP's is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

from backends.environment import Environment
from backends.problem import from_linear
from backends.registry import backend, find_device
from benchmarks.report import RESULTS, write
from benchmarks.trees import HERE, PROBES, run

#: (m, n, k, dtype) and family: kernels and library calls that take the GPU less time than the host.
KERNELS = (((16, 64, 64, "bf16"), "skinny"), ((1, 256, 256, "bf16"), "gemv"))
LIBRARY = (16, 64, 64, "fp32")
HEURISTIC = {"cuda": "cublaslt-heuristic", "hip": "hipblaslt-heuristic"}
#: Script that prints the least host nanoseconds per launch of each (figure, problem, solution or family).
LAUNCHES = """
import json, sys, time
from pathlib import Path
from backends.cache import BinaryCache
from backends.operands import Operands, layouts
from backends.problem import from_linear
from backends.registry import backend
from backends.solution import Solution
one, found = backend(sys.argv[1]), {}
if sys.argv[4] == "plain":
    from backends.kernels.launch import KernelLaunch
    KernelLaunch.dependent = lambda launch, arch: False
device = one.open(0, BinaryCache(Path(sys.argv[2])))
for figure, shape, family, values in json.loads(sys.argv[3]):
    problem, family = from_linear(*shape), one.families()[family]
    solution = Solution.from_dict(values) if values else next(iter(family.solutions(problem, device.environment)))
    buffers = {name: device.allocate(max(part.bytes, 16)) for name, part in layouts(problem).items()}
    operands = Operands.at({name: buffer.address for name, buffer in buffers.items()}, problem.scalars)
    kernel = device.load(problem, solution, family.compile(problem, solution, device.environment, device.cache))
    workspace = device.allocate(max(kernel.workspace_bytes, 16))
    launch = kernel.bind(operands, workspace.address)
    kernel.prepare()
    best = []
    for _ in range(100):
        device.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(200):
            launch()
        best.append((time.perf_counter_ns() - begin) / 200)
        device.synchronize()
    found[figure] = min(best)
print(json.dumps(found))
"""


def prepare(folder: Path) -> None:
    """Compiles the libraries, and has this process and its children find them."""
    from tests.backends.hip.on_cuda.build import build, variables  # noqa: PLC0415  (compiles with g++)

    os.environ.update(variables(build(folder)))


def launch(name: str, kind: str, home: Path, environments: Mapping[str, Environment]) -> Mapping[str, float]:
    """Host nanoseconds per launch through one backend: the first candidates that both backends may run. `kind`
    is "measured", as a tuning launches them, or "plain"."""
    asked: list[tuple[str, tuple[int, int, int, str], str, dict[str, Any] | None]] = []
    asked.append(("launch library", LIBRARY, HEURISTIC[name], None))
    for shape, kernel in KERNELS:
        problem, family = from_linear(*shape), backend("cuda").families()[kernel]
        solution = next(
            one
            for one in family.solutions(problem, environments["cuda"])
            if family.illegal(problem, one, environments["hip"]) is None
        )
        asked.append((f"launch {kernel}", shape, kernel, solution.to_dict()))
    text = run(HERE, home, "-c", LAUNCHES, name, str(home / "kernels"), json.dumps(asked), kind)
    return cast(dict[str, float], json.loads(text))


def measured(options: argparse.Namespace, environments: Mapping[str, Environment]) -> list[dict[str, Any]]:
    """One row a figure: medians of both backends, and HIP's over CUDA's."""
    homes = {name: Path(tempfile.mkdtemp(prefix=f"gemmtune-{name}-")) for name in ("cuda", "hip")}
    taken: dict[str, dict[str, list[float]]] = {}
    try:
        for probe in options.only.split(","):
            for repeat in range(-(probe == "launch"), options.repeats):
                for name in ("cuda", "hip") if repeat % 2 else ("hip", "cuda"):
                    given = argparse.Namespace(**{**vars(options), "device": name})
                    found: Mapping[str, float] = (
                        launch(name, "measured", homes[name], environments)
                        if probe == "launch"
                        else PROBES[probe](HERE, homes[name], given)
                    )
                    for figure, value in found.items():
                        if repeat >= 0:
                            taken.setdefault(figure, {"cuda": [], "hip": []})[name].append(value)
                if probe == "launch":
                    for figure, value in launch("cuda", "plain", homes["cuda"], environments).items():
                        if repeat >= 0:
                            taken[figure].setdefault("cuda_plain", []).append(value)
                print(probe, repeat, {figure: both["hip"] for figure, both in taken.items()}, file=sys.stderr)
    finally:
        for home in homes.values():
            shutil.rmtree(home, ignore_errors=True)
    return [
        {
            "figure": figure, "cuda": median(both["cuda"]), "hip": median(both["hip"]),
            "ratio": median(both["hip"]) / median(both["cuda"]), "all": both,
            **(
                {"ratio_to_plain": median(both["hip"]) / median(both["cuda_plain"])} if "cuda_plain" in both else {}
            ),
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
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gemmtune-rocm-") as folder:
        prepare(Path(folder))
        environments = {name: find_device(name).environment for name in ("cuda", "hip")}
        rows = measured(options, environments)
    write("hip-on-cuda", list(environments.values()), {"rows": rows}, options.output)
    for row in rows:
        print(f"{row['figure']:<28} {row['cuda']:12.4f} {row['hip']:12.4f}  {row['ratio']:.3f}x")


if __name__ == "__main__":
    main()
