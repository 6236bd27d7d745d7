"""The CPU backend's figures: our kernels against OpenBLAS, loading, wall time, repeatability.

    python -m benchmarks.cpu product        own fp32 kernel over OpenBLAS, one thread, 1024^3
    python -m benchmarks.cpu decode         best own kernel over the baseline, M = 2..16, decode shapes
    python -m benchmarks.cpu load           milliseconds to load a cached binary
    python -m benchmarks.cpu wall           `gemmtune tune` of one small problem, end to end
    python -m benchmarks.cpu repeatability  20 problems tuned twice
    python -m benchmarks.cpu install        megabytes of the base install

Ratios compare within one run, from samples interleaved with the baseline's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from backends.cache import BinaryCache, default_cache_dir
from backends.problem import GemmProblem, from_linear, from_mm
from backends.registry import FoundDevice, backend, find_device
from backends.solution import Solution
from benchmarks.report import geometric_mean, write
from tuners.budget import Budget, Search
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.intervals import median_interval
from tuners.policy import MeasurementPolicy
from tuners.session import Session
from tuners.space import search_space
from tuners.tuning_settings import TuningSettings

SHAPES = Path(__file__).parent / "shapes.json"


def _cache() -> BinaryCache:
    return BinaryCache(default_cache_dir() / "kernels")


def _tune(runner: DeviceClient, problem: GemmProblem, seconds: float, seed: int = 0) -> Session:
    session = Session(runner, problem, TuningSettings(budget=Budget(seconds), search=Search(seed=seed)))
    for _ in session.run():
        pass
    return session


def product(device: FoundDevice) -> None:
    """Own fp32 kernel against OpenBLAS on one thread at 1024^3."""
    problem = from_mm(1024, 1024, 1024, "fp32")
    env = device.environment
    with DeviceClient(device, _cache()) as runner:
        space = search_space(problem, runner.backend, env, MeasurementPolicy())
        single = [s for s in space.candidates if s.parameters["threads"] == 1]
        ours = [s for s in single if s.family == "packed"]
        theirs = [s for s in single if s.family == "openblas"]
        task = Task(problem, MeasurementPolicy(), 0)
        runner.open(task)
        runner.compile(task, ours)
        screened = list(zip(runner.screen(ours, None), ours, strict=True))
        right = [
            (o.seconds, s) for o, s in screened if o.seconds is not None and o.status in ("ok", "unstable")
        ]
        finalists = [s for _, s in sorted(right, key=lambda pair: pair[0])[:3]]
        times = _rounds(runner, [*theirs, *finalists], 40)
    base = min(theirs, key=lambda s: median(times[s.id]))
    best = min(finalists, key=lambda s: median(times[s.id]))
    ratio = median_interval([b / o for b, o in zip(times[base.id], times[best.id], strict=True)], 0.99)
    write(
        "cpu-product", env,
        {
            "what": "speed of our best fp32 kernel over OpenBLAS's, one thread, 1024^3 (1 is equal speed)",
            "ratio": ratio.mid, "interval": [ratio.low, ratio.high],
            "own": best.id, "library": base.id,
            "own_gflops": problem.flops / median(times[best.id]) / 1e9,
            "library_gflops": problem.flops / median(times[base.id]) / 1e9,
            "candidates": len(ours), "rounds": len(times[base.id]),
        },
    )  # fmt: skip


def _rounds(runner: DeviceClient, solutions: list[Solution], rounds: int) -> dict[str, list[float]]:
    """Interleaved samples in rotating order."""
    times: dict[str, list[float]] = {s.id: [] for s in solutions}
    for turn in range(rounds):
        for i in range(len(solutions)):
            solution = solutions[(turn + i) % len(solutions)]
            outcome = runner.sample(solution)
            if outcome.seconds is None:
                raise SystemExit(f"{solution.id}: {outcome}")
            times[solution.id].append(outcome.seconds)
    return times


def decode(device: FoundDevice, quick: bool, dtype: str) -> None:
    """The tuned winner over the baseline for M = 2..16 on the decode list's weights."""
    layers = sorted({(s["n"], s["k"]) for s in json.loads(SHAPES.read_text())["decode_small"]})
    rows: list[dict[str, Any]] = []
    with DeviceClient(device, _cache()) as runner:
        for n, k in layers[:3] if quick else layers:
            for m in (2, 4, 8, 16):
                session = _tune(runner, from_linear(m, n, k, dtype), 2.0)
                verdict = session.verdict
                if verdict is None:
                    raise SystemExit(f"no verdict for {m}x{n}x{k}")
                read = session.problem.bytes_read
                row = {
                    "m": m, "n": n, "k": k, "verdict": verdict.judgement.value,
                    "speedup": verdict.speedup.mid, "interval": [verdict.speedup.low, verdict.speedup.high],
                    "winner": verdict.winner, "baseline": verdict.baseline_name,
                    "baseline_gb_per_s": read / verdict.baseline_seconds / 1e9,
                    "winner_gb_per_s": read / verdict.seconds / 1e9,
                }  # fmt: skip
                rows.append(row)
                print(
                    f"{m}x{n}x{k}: {row['verdict']} {row['speedup']:.2f}x {row['winner_gb_per_s']:.1f} GB/s",
                    flush=True,
                )
    by_m = {str(m): geometric_mean([r["speedup"] for r in rows if r["m"] == m]) for m in (2, 4, 8, 16)}
    write(
        f"cpu-decode-{dtype}", device.environment,
        {
            "what": f"baseline time over tuned time, {dtype}, F.linear decode shapes, cold; TIE and LOSS count 1",
            "geometric_mean": geometric_mean([r["speedup"] for r in rows]),
            "by_m": by_m, "problems": len(rows), "rows": rows,
        },
    )  # fmt: skip


def load(device: FoundDevice) -> None:
    """Milliseconds from the cache lookup to a kernel ready to launch, in fresh processes."""
    problem = from_mm(512, 512, 512, "fp32")
    families = backend("cpu").families()
    env, cache = device.environment, _cache()
    solution = next(iter(families["packed"].solutions(problem, env)))
    families["packed"].compile(problem, solution, env, cache)
    code = (
        "import sys, time, json; from pathlib import Path\n"
        "from backends.registry import backend, find_device; from backends.cache import BinaryCache\n"
        "from backends.problem import from_mm; from backends.solution import Solution\n"
        "cache = BinaryCache(Path(sys.argv[1])); b = backend('cpu'); d = b.open(0, cache)\n"
        "p = from_mm(512, 512, 512, 'fp32'); s = Solution.from_dict(json.loads(sys.argv[2]))\n"
        "f = b.families()[s.family]; d.runtime\n"
        "t = time.perf_counter(); path = f.compile(p, s, d.environment, cache); k = d.load(p, s, path)\n"
        "print((time.perf_counter() - t) * 1e3)"
    )
    arguments = [sys.executable, "-c", code, str(cache.root), json.dumps(solution.to_dict())]
    times = [
        float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout) for _ in range(15)
    ]
    write(
        "cpu-load", env,
        {"what": "cache lookup + load of a compiled kernel, ms, fresh process each", "median_ms": median(times),
         "worst_ms": max(times), "runs": len(times)},
    )  # fmt: skip


def wall(device: FoundDevice) -> None:
    """`gemmtune tune` of one small problem: seconds beyond budget and compiling."""
    rows = []
    for cold in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            if not cold and default_cache_dir().exists():
                shutil.copytree(default_cache_dir(), folder, dirs_exist_ok=True)
            for _ in range(1 if cold else 3):
                begin = time.monotonic()
                command = [
                    str(Path(sys.executable).parent / "gemmtune"),
                    "tune",
                    "--m",
                    "16",
                    "--n",
                    "768",
                    "--k",
                    "768",
                ]
                command += ["--dtype", "fp32", "--trans-b", "--seconds", "1", "--json"]
                env = {"GEMMTUNE_CACHE_DIR": folder, "PATH": "/usr/bin:/bin"}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
                seconds = time.monotonic() - begin
                counts = json.loads(done.stdout)["results"][0]["counts"]
                rows.append(
                    {"cache": "empty" if cold else "warm", "seconds": seconds, "budget": 1.0,
                     "compiling": counts["compiling_seconds"],
                     "beyond": seconds - 1.0 - counts["compiling_seconds"]}
                )  # fmt: skip
    worst = max(row["beyond"] for row in rows)
    write(
        "cpu-wall",
        device.environment,
        {"what": "seconds beyond budget + compiling", "worst_beyond": worst, "runs": rows},
    )


def repeatability(device: FoundDevice) -> None:
    """Tunes 20 problems twice: how often the second winner lies in the first tie set."""
    sizes = [(1, 768, 768), (4, 768, 3072), (8, 2304, 768), (16, 3072, 768), (32, 768, 768), (64, 768, 3072),
             (128, 2304, 768), (256, 768, 768), (512, 768, 768), (200, 300, 400)]  # fmt: skip
    problems = [from_linear(*size, dtype) for size in sizes for dtype in ("fp32", "bf16")]
    rows = []
    with DeviceClient(device, _cache()) as runner:
        first = [_tune(runner, problem, 2.0, seed=0).verdict for problem in problems]
        second = [_tune(runner, problem, 2.0, seed=1).verdict for problem in problems]
    for problem, a, b in zip(problems, first, second, strict=True):
        if a is None or b is None:
            raise SystemExit(f"no verdict for {problem.id}")
        rows.append(
            {"problem": problem.slug, "first": a.winner, "second": b.winner, "ties": len(a.tie_set),
             "same": a.winner == b.winner, "in_tie_set": b.winner in a.tie_set}
        )  # fmt: skip
    write(
        "cpu-repeatability", device.environment,
        {"what": "second run's winner within the first run's tie set", "problems": len(rows),
         "in_tie_set": sum(row["in_tie_set"] for row in rows), "same": sum(row["same"] for row in rows), "rows": rows},
    )  # fmt: skip


def install(device: FoundDevice) -> None:
    """Megabytes that the base install adds to a fresh virtual environment."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        site = next(Path(folder).glob("lib/python*/site-packages"))
        before = _megabytes(site)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, str(Path(__file__).parent.parent)], check=True)
        sizes = {p.name: _megabytes(p) for p in site.iterdir() if p.is_dir()}
        largest = dict(sorted(sizes.items(), key=lambda pair: -pair[1])[:8])
        write(
            "cpu-install", device.environment,
            {"what": "base install in a fresh environment, MB beyond an empty one",
             "megabytes": _megabytes(site) - before, "torch": (site / "torch").exists(), "largest": largest},
        )  # fmt: skip


def _megabytes(folder: Path) -> float:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6


def main() -> None:
    """Runs one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=("product", "decode", "load", "wall", "repeatability", "install"))
    parser.add_argument("--quick", action="store_true", help="fewer shapes")
    parser.add_argument("--dtype", default="fp32")
    options = parser.parse_args()
    device = find_device("cpu")
    if options.which == "decode":
        decode(device, options.quick, options.dtype)
    else:
        runs = {"product": product, "load": load, "wall": wall}
        runs |= {"repeatability": repeatability, "install": install}
        runs[options.which](device)


if __name__ == "__main__":
    main()
