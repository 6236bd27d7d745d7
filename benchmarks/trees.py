"""Compares two trees of gemmtune in one run, interleaved: is one slower than the other?

    python -m benchmarks.trees OLD_TREE [--repeats 3] [--device cuda] [--only launch,devices]

Each probe runs in its own process, alternating between the trees: CPU seconds of `gemmtune --help`, wall
seconds of `gemmtune devices`, host nanoseconds per launch, microseconds of GET /v1/solutions/best, and
seconds per problem of `gemmtune tune` on five shapes. A figure is the ratio of medians, this tree over the
other.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import RESULTS, write

HERE = Path(__file__).resolve().parent.parent
#: Five shapes of linear layers, bf16: one token, a small batch, a large one, a square, odd sizes.
SHAPES = ((1, 4096, 4096), (16, 4096, 4096), (128, 4096, 4096), (2048, 2048, 2048), (3, 1000, 777))
#: Script that prints {family: host nanoseconds per launch} of the tree that it runs in.
LAUNCHES = """
import json, sys, time
from pathlib import Path
from backends.cache import BinaryCache
from backends.operands import Operands, layouts
from backends.problem import from_linear
from backends.registry import backend
one = backend(sys.argv[1])
device = one.open(0, BinaryCache(Path(sys.argv[2])))
problem, found = from_linear(16, 512, 512, "bf16"), {}
buffers = {name: device.allocate(max(part.bytes, 16)) for name, part in layouts(problem).items()}
operands = Operands.at({name: buffer.address for name, buffer in buffers.items()}, problem.scalars)
for name in sys.argv[3].split(","):
    family = one.families().get(name)
    solution = next(iter(family.solutions(problem, device.environment)), None) if family else None
    if solution is None:
        continue
    binary = family.compile(problem, solution, device.environment, device.cache)
    kernel = device.load(problem, solution, binary)
    workspace = device.allocate(max(kernel.workspace_bytes, 16))
    launch = kernel.bind(operands, workspace.address)
    kernel.prepare()
    best = []
    for _ in range(40):
        device.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(500):
            launch()
        best.append((time.perf_counter_ns() - begin) / 500)
        device.synchronize()
    found[name] = min(best)
print(json.dumps(found))
"""
#: Script that starts a service and prints the median microseconds of GET best.
ASKING = """
import http.client, json, os, subprocess, sys, time
server = subprocess.Popen(
    [sys.executable, "-m", "service.entry", "serve", "--no-worker", "--port", "0", "--device", "cpu"],
    stdout=subprocess.PIPE, text=True)
try:
    url = next(line for line in server.stdout if "gemmtune serves" in line).split()[2]
    host = url.removeprefix("http://")
    connection, taken = http.client.HTTPConnection(host), []
    for _ in range(1500):
        begin = time.perf_counter_ns()
        connection.request("GET", "/v1/solutions/best?m=16&n=512&k=512&dtype=bf16&device=cpu")
        connection.getresponse().read()
        taken.append((time.perf_counter_ns() - begin) / 1000)
    print(json.dumps({"best": sorted(taken[200:])[len(taken[200:]) // 2]}))
finally:
    server.terminate()
    server.wait()
"""
Probe = Callable[[Path, Path, argparse.Namespace], Mapping[str, float]]


def run(tree: Path, home: Path, *command: str) -> str:
    """Runs a command in a tree, with cache and database in `home`; returns its output. Raises SystemExit with
    its error output."""
    paths = [
        str(tree),
        *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != str(HERE)),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "GEMMTUNE_CACHE_DIR": str(home / "cache"),
        "GEMMTUNE_DATABASE_URL": f"sqlite:///{home / 'gemmtune.sqlite'}",
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{tree}: {' '.join(command[:6])} failed: {done.stderr[-1500:]}")
    return done.stdout


def help_(tree: Path, home: Path, options: argparse.Namespace) -> Mapping[str, float]:
    """CPU seconds of `gemmtune --help`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(tree, home, "-m", "service.entry", "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"help": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def devices(tree: Path, home: Path, options: argparse.Namespace) -> Mapping[str, float]:
    """Wall seconds of `gemmtune devices`."""
    begin = time.perf_counter()
    run(tree, home, "-m", "service.entry", "devices", "--json")
    return {"devices": time.perf_counter() - begin}


def launch(tree: Path, home: Path, options: argparse.Namespace) -> Mapping[str, float]:
    """Host nanoseconds per launch, by family."""
    text = run(tree, home, "-c", LAUNCHES, options.device, str(home / "kernels"), options.families)
    return {f"launch {name}": float(value) for name, value in json.loads(text).items()}


def best(tree: Path, home: Path, options: argparse.Namespace) -> Mapping[str, float]:
    """Microseconds of GET best."""
    run(tree, home, "-m", "service.entry", "db", "upgrade")
    return {"best": float(json.loads(run(tree, home, "-c", ASKING).splitlines()[-1])["best"])}


def tune(tree: Path, home: Path, options: argparse.Namespace) -> Mapping[str, float]:
    """Wall seconds per problem to tune the five shapes into a new database: first with nothing compiled, then
    with the first run's binaries."""
    (home / "gemmtune.sqlite").unlink(missing_ok=True)
    figure = "tune" if (home / "cache").exists() else "tune, nothing compiled"
    file = home / "shapes.jsonl"
    rows = [{"m": m, "n": n, "k": k, "dtype": "bf16", "trans_b": True} for m, n, k in SHAPES]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    begin = time.perf_counter()
    command = ("tune", str(file), "--device", options.device, "--seconds", str(options.seconds))
    run(tree, home, "-m", "service.entry", *command)
    return {figure: (time.perf_counter() - begin) / len(SHAPES)}


PROBES: Mapping[str, Probe] = {
    "help": help_,
    "devices": devices,
    "launch": launch,
    "best": best,
    "tune": tune,
}
#: Probes that run once before they are measured, so that compiling is not part of the figure.
_WARMED = ("launch",)


def measured(old: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per figure: both medians, and this tree's over the other's."""
    homes = {tree: Path(tempfile.mkdtemp(prefix="gemmtune-tree-")) for tree in (old, HERE)}
    taken: dict[str, dict[Path, list[float]]] = {}
    try:
        for name in options.only.split(","):
            for repeat in range(-(name in _WARMED), options.repeats):
                for tree in (old, HERE) if repeat % 2 else (HERE, old):
                    for figure, value in PROBES[name](tree, homes[tree], options).items():
                        if repeat >= 0:
                            taken.setdefault(figure, {old: [], HERE: []})[tree].append(value)
                print(name, repeat, {figure: found[HERE] for figure, found in taken.items()}, file=sys.stderr)
    finally:
        for home in homes.values():
            shutil.rmtree(home, ignore_errors=True)
    return [
        {
            "figure": figure, "old": median(found[old]), "new": median(found[HERE]),
            "ratio": median(found[HERE]) / median(found[old]), "all": [found[old], found[HERE]],
        }
        for figure, found in taken.items()
        if found[old]
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes trees-DEVICE.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring a problem (3)")
    parser.add_argument("--only", default=",".join(PROBES))
    parser.add_argument(
        "--families", default="gemv-persistent,skinny-ring,tile-wgmma,cublaslt-heuristic,naive"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    from backends.registry import find_device  # noqa: PLC0415  (a benchmark of whole processes needs no more)

    environment = find_device(options.device).environment
    rows = measured(options.old.resolve(), options)
    write(f"trees-{options.device.partition(':')[0]}", environment, {"rows": rows}, options.output)
    for row in rows:
        print(f"{row['figure']:<28} {row['old']:12.4f} {row['new']:12.4f}  {row['ratio']:.3f}x")


if __name__ == "__main__":
    main()
