"""The CUDA backend's figures, on every GPU of this machine.

    python -m benchmarks.cuda lists      the published lists, tuned against torch and cuBLASLt's heuristic
    python -m benchmarks.cuda screening  configurations verified and timed within 3 s of wall clock
    python -m benchmarks.cuda launch     host microseconds to launch a stored cuBLASLt solution from Python
    python -m benchmarks.cuda trap       algorithm 66 with split-K: which splits are wrong, and is each predicted
    python -m benchmarks.cuda types      one problem per combination of types: tuned, or its error
    python -m benchmarks.cuda repeat     6 shapes tuned twice: is the second winner in the first tie set

`lists` appends every row to OUTPUT/.partial as it is measured. The same command resumes an interrupted run;
--resume FILE resumes a run of another machine; --kept writes the document from the stored rows, without a
GPU. On a machine without git, set GEMMTUNE_COMMIT. No service is needed: backends, tuners, numpy and the CUDA
libraries. Ratios compare within one session, from samples interleaved with the baseline's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from backends.environment import Environment
from backends.problem import GemmProblem, from_linear
from backends.registry import FoundDevice
from benchmarks import cuda_calls, cuda_trap
from benchmarks.cuda_jobs import Jobs, Partial, spread
from benchmarks.cuda_tuned import (
    SHAPES,
    TIMED,
    Shape,
    Tuned,
    ceilings_of,
    in_words,
    kernel_cache,
    machine,
    read_shapes,
    row,
    say,
    screening_figures,
    summary,
    tune,
)
from benchmarks.cuda_types import combinations, tuned_types
from benchmarks.report import RESULTS, UNKNOWN, commit, write
from tuners.budget import Budget
from tuners.device_client import DeviceClient

#: Shapes (m, n, k of F.linear) that run in under 100 us, then two that take longer.
SHORT = ((1, 4096, 4096), (16, 4096, 4096), (8, 1280, 8192), (4, 7168, 2048), (32, 6144, 4096),
         (64, 8192, 8192), (128, 4096, 4096), (512, 4096, 4096))  # fmt: skip
LONG = ((4096, 8192, 8192), (4096, 28672, 4096))
REPEATED = ((1, 4096, 4096), (16, 6144, 4096), (64, 8192, 8192), (128, 4096, 4096), (1024, 4096, 4096),
            (4096, 6144, 4096))  # fmt: skip
#: The decode and prefill lists: the GEMMs of serving a model.
SERVING = ("decode_m1", "decode_small", "decode_large", "prefill")
#: Seconds that a shape takes beyond its budget (operands, references, the proof): none starts with less left.
BESIDE_SECONDS = 4.0


# ---- lists ---------------------------------------------------------------------------------------


@dataclass
class Lists:
    """One run over `shapes`. The document also has the rows that earlier runs stored for other `published`
    shapes (empty: only those of `shapes`). `start` makes a device's runner; tests replace it."""

    found: Sequence[FoundDevice]
    shapes: Sequence[Shape]
    dtype: str
    seconds: float
    partial: Partial
    limit_seconds: float | None = None
    any_commit: bool = False
    published: Sequence[Shape] = ()
    families: Sequence[str] | None = None
    start: Callable[[FoundDevice], Any] = lambda device: DeviceClient(device, kernel_cache())

    def __post_init__(self) -> None:
        self._commit, self._begin = commit(), time.monotonic()
        if self._commit == UNKNOWN:
            say("the commit is unknown: set GEMMTUNE_COMMIT")

    @property
    def wanted(self) -> Sequence[Shape]:
        """The shapes that the document covers."""
        return self.published or self.shapes

    def rows(self) -> list[dict[str, Any]]:
        """The stored rows of wanted shapes with this budget, type, families and commit (any commit with
        `any_commit`), in the order of the lists."""
        asked = (self.dtype, self.seconds, self.families)
        kept = {
            (one["list"], one["name"]): one["row"]
            for one in self.partial.read()
            if one["kind"] == "row"
            and (one["dtype"], one["seconds"], one.get("families")) == asked
            and (self.any_commit or one["row"]["commit"] == self._commit)
        }
        return [kept[shape.list, shape.name] for shape in self.wanted if (shape.list, shape.name) in kept]

    def run(self) -> list[dict[str, Any]]:
        """Tunes the missing shapes; returns all rows, including errors."""
        known = {(one["list"], one["name"]) for one in self.rows() if "error" not in one}
        missing = [shape for shape in self.shapes if (shape.list, shape.name) not in known]
        missing.sort(key=lambda shape: (-shape.problem(self.dtype).flops, -shape.n * shape.k, shape.name))
        say(f"{len(missing)} of {len(self.shapes)} shapes to tune on {len(self.found)} devices")
        self._jobs = Jobs(missing)
        spread(self.found, self._jobs, self._one, self._failed, self.start)
        return self.rows()

    def gpus(self) -> list[dict[str, Any]]:
        """Every GPU that the rows were measured on: uuid, index, environment, ceilings."""
        used = {one.get("uuid") for one in self.rows()}
        kept = {
            one["uuid"]: one for one in self.partial.read() if one["kind"] == "gpu" and one["uuid"] in used
        }
        return [{k: v for k, v in one.items() if k != "kind"} for _, one in sorted(kept.items())]

    def _late(self, needed: float) -> bool:
        return self.limit_seconds is not None and time.monotonic() - self._begin + needed > self.limit_seconds

    def _one(self, runner: DeviceClient, shape: Shape) -> None:
        if self._late(self.seconds + BESIDE_SECONDS):
            self._jobs.clear()
            return
        problem, env = shape.problem(self.dtype), runner.environment
        ceilings = ceilings_of(runner, [problem.multiplied_as])
        values = {
            "kind": "gpu", "uuid": env.uuid, "index": runner.device.index, "environment": env.to_dict(),
            "ceilings": None if ceilings is None else asdict(ceilings),
        }  # fmt: skip
        if values not in self.partial.read():
            self.partial.write(values)

        def late(tuned: Tuned, stamp: float) -> bool:
            return self._late(0.0)

        tuned = tune(runner, problem, self.seconds, stop=late, families=self.families)
        if tuned.session.stopped:
            say(f"{shape.name}: stopped at the time limit")
            return
        self._keep(shape, runner.device, row(tuned, ceilings))

    def _failed(self, device: FoundDevice, shape: Shape, error: Exception) -> None:
        self._keep(shape, device, {"error": f"{type(error).__name__}: {error}"})

    def _keep(self, shape: Shape, device: FoundDevice, figures: dict[str, Any]) -> None:
        values = {
            **asdict(shape), "gpu": device.index, "uuid": device.environment.uuid, "commit": self._commit,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"), **figures,
        }  # fmt: skip
        line = {
            "kind": "row",
            "list": shape.list,
            "name": shape.name,
            "dtype": self.dtype,
            "seconds": self.seconds,
            "families": self.families,
        }
        self.partial.write({**line, "row": values})
        done = len({(one["list"], one["name"]) for one in self.rows()})
        say(f"[{done}/{len(self.wanted)}] gpu {device.index} {shape.name}: {in_words(values)}")


def lists(options: argparse.Namespace) -> None:
    """Every shape of the lists, on every GPU at once."""
    name = f"{options.device}-lists-{options.dtype}"
    names = [part for part in options.lists.split(",") if part] if options.lists else None
    partial = Partial(options.output / ".partial" / f"{name}.jsonl", options.resume)
    limit = None if options.limit_minutes is None else options.limit_minutes * 60
    found = [] if options.kept else machine(options.device, options.gpus)
    shapes = [] if options.kept else read_shapes(options.shapes, names)
    everything = read_shapes(options.shapes)
    run = Lists(
        found, shapes, options.dtype, options.seconds, partial, limit, options.any_commit, everything,
        options.families,
    )  # fmt: skip
    rows = run.run()
    if not rows:
        raise SystemExit(f"no rows: {partial.path} has none of this budget, type and commit")
    write(name, *lists_document(run, rows), options.output)


def lists_document(run: Lists, rows: Sequence[dict[str, Any]]) -> tuple[list[Environment], dict[str, Any]]:
    """The environments that the rows were measured in, and the figures."""
    gpus = run.gpus()
    environments = [Environment.from_dict(one["environment"]) for one in gpus]
    names = list(dict.fromkeys(one["list"] for one in rows))
    good = [one for one in rows if "error" not in one]
    return environments or [device.environment for device in run.found], {
        "what": "the baseline's time over the tuned time of the published lists, cold operands; where nothing was "
        "shown faster than the baseline its own call is the answer, and the ratio is 1",
        "dtype": run.dtype, "seconds": run.seconds, "families": run.families, "complete": len(good) == len(run.wanted),
        "shapes_wanted": len(run.wanted), "shapes_done": len(good), "errors": len(rows) - len(good),
        "commits": sorted({one["commit"] for one in rows}),
        "gpus": gpus, "lists": {each: summary([one for one in rows if one["list"] == each]) for each in names},
        "serving": summary([one for one in rows if one["list"] in SERVING]), "all": summary(rows), "rows": list(rows),
    }  # fmt: skip


def _linear(shape: Sequence[int], dtype: str) -> GemmProblem:
    m, n, k = shape
    return from_linear(m, n, k, dtype)


# ---- screening -----------------------------------------------------------------------------------


def screening(options: argparse.Namespace) -> None:
    """How many configurations are verified and timed within some seconds of wall clock."""
    device = machine(options.device, 1)[0]
    shapes = options.only or [*SHORT, *LONG]
    with DeviceClient(device, kernel_cache()) as runner:
        rows = [
            screened(runner, _linear(shape, options.dtype), shape, options.seconds, options.families)
            for shape in shapes
        ]
    short = [one for one in rows if one["run_us"] is not None and one["run_us"] < 100]
    counts = [one["configurations"] for one in short]
    write(
        f"{options.device}-screening", device.environment,
        {"what": "configurations verified (one seed) and timed within some seconds of wall clock, baselines included",
         "dtype": options.dtype, "seconds": options.seconds, "families": options.families, "short_shapes": len(short),
         "short_minimum": min(counts, default=None), "short_median": median(counts) if counts else None, "rows": rows},
        options.output,
    )  # fmt: skip


def screened(
    runner: DeviceClient,
    problem: GemmProblem,
    shape: Sequence[int],
    seconds: float,
    families: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Screens one problem for `seconds` of wall clock, without a final. `run_us` is the fastest candidate's
    time."""

    def enough(tuned: Tuned, stamp: float) -> bool:
        return stamp > seconds or bool(tuned.finals)

    # The search gets 1 - final_share of a budget: this budget keeps it searching until the wall clock ends
    # it.
    tuned = tune(runner, problem, seconds / (1 - Budget().final_share), stop=enough, families=families)
    times = [o.seconds for o in tuned.timed() if o.seconds is not None]
    base = next((o.seconds for _, o in tuned.screened if o.status in TIMED and o.seconds is not None), None)
    values = {
        "m": shape[0], "n": shape[1], "k": shape[2],
        "run_us": min(times) * 1e6 if times else None, "baseline_us": base * 1e6 if base else None,
        "seconds": seconds, **screening_figures(tuned, seconds), "setup_seconds": tuned.session.counts.setup_seconds,
    }  # fmt: skip
    say(f"{problem.slug}: {values['configurations']} within {seconds:g} s, {values['by_status']}")
    return values


# ---- types ---------------------------------------------------------------------------------------


def types(options: argparse.Namespace) -> None:
    """One mid-size problem per combination of types, epilogue and layout."""
    found = machine(options.device, options.gpus)
    wanted = combinations()
    rows = tuned_types(found, {name: wanted[name] for name in options.only or wanted}, options.seconds)
    write(
        f"{options.device}-types", [device.environment for device in found],
        {"what": "a mid-size problem of every combination of types, epilogue and layout: its verdict, or the error "
         "that is stated", "seconds": options.seconds, "combinations": len(rows),
         "tuned": sum("verdict" in one for one in rows), "rows": rows},
        options.output,
    )  # fmt: skip


# ---- repeat --------------------------------------------------------------------------------------


def repeat(options: argparse.Namespace) -> None:
    """Tunes every shape once, then every shape again."""
    device = machine(options.device, 1)[0]
    problems = [_linear(shape, options.dtype) for shape in options.only or REPEATED]
    verdicts = []
    with DeviceClient(device, kernel_cache()) as runner:
        for seed in (0, 1):
            for problem in problems:
                tuned = tune(runner, problem, options.seconds, seed)
                verdicts.append(tuned.verdict)
                say(f"seed {seed}, {problem.slug}: {in_words(row(tuned))}")
    rows = [
        {"problem": problem.slug, "first": a.winner, "second": b.winner, "ties": len(a.tie_set),
         "same": a.winner == b.winner, "in_tie_set": b.winner in a.tie_set,
         "first_us": a.seconds * 1e6, "second_us": b.seconds * 1e6,
         "first_verdict": a.judgement.value, "second_verdict": b.judgement.value}
        for problem, a, b in zip(problems, verdicts, verdicts[len(problems) :], strict=False)
    ]  # fmt: skip
    write(
        f"{options.device}-repeat", device.environment,
        {"what": "second run's winner within the first run's tie set", "dtype": options.dtype,
         "seconds": options.seconds, "problems": len(rows), "in_tie_set": sum(one["in_tie_set"] for one in rows),
         "same": sum(one["same"] for one in rows), "rows": rows},
        options.output,
    )  # fmt: skip


def launch(options: argparse.Namespace) -> None:
    """Host time per launch; opens the device in this process."""
    device = machine(options.device, 1)[0]
    write(
        f"{options.device}-launch",
        device.environment,
        cuda_calls.launches(device, options.dtype),
        options.output,
    )


def trap(options: argparse.Namespace) -> None:
    """Verifies one algorithm's split-K configurations."""
    device = machine(options.device, 1)[0]
    figures = cuda_trap.trap(device, options.algorithm, options.seconds)
    write(f"{options.device}-trap", device.environment, figures, options.output)


def _shape(text: str) -> tuple[int, int, int]:
    m, n, k = (int(part) for part in text.split("x"))
    return m, n, k


def parser() -> argparse.ArgumentParser:
    """The parser, with a subcommand per benchmark."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = made.add_subparsers(dest="which", required=True)
    runs: dict[str, tuple[Callable[[argparse.Namespace], None], float]] = {
        "lists": (lists, 6.0), "screening": (screening, 3.0), "launch": (launch, 0.0), "trap": (trap, 60.0),
        "types": (types, 1.5), "repeat": (repeat, 6.0),
    }  # fmt: skip
    for name, (run, seconds) in runs.items():
        one = commands.add_parser(name, help=(run.__doc__ or "").splitlines()[0])
        one.set_defaults(run=run)
        one.add_argument(
            "--output", type=Path, default=RESULTS, help="folder of the result (benchmarks/results)"
        )
        one.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
        one.add_argument("--dtype", default="bf16")
        if name != "launch":
            whose = "of all the shapes together" if name == "trap" else "a problem"
            one.add_argument(
                "--seconds", type=float, default=seconds, help=f"of measuring, {whose} ({seconds:g})"
            )
        if name in ("lists", "types"):
            one.add_argument("--gpus", type=int, help="use so many GPUs (all)")
        if name in ("screening", "repeat"):
            one.add_argument("--only", type=_shape, nargs="+", metavar="MxNxK", help="these shapes")
    commands.choices["types"].add_argument("--only", nargs="+", metavar="NAME", help="these combinations")
    commands.choices["trap"].add_argument("--algorithm", type=int, default=66)
    of_lists = commands.choices["lists"]
    of_lists.add_argument("--lists", help="comma-separated names (all)")
    for name in ("lists", "screening"):
        commands.choices[name].add_argument(
            "--families", type=lambda text: text.split(","), help="candidates of these, comma-separated (all)"
        )
    of_lists.add_argument("--shapes", type=Path, default=SHAPES, help=argparse.SUPPRESS)
    of_lists.add_argument("--resume", type=Path, metavar="FILE", help="go on from this partial file")
    of_lists.add_argument(
        "--any-commit", action="store_true", help="keep partial rows that another commit measured"
    )
    of_lists.add_argument(
        "--kept", action="store_true", help="measure nothing: the document of the rows kept so far"
    )
    of_lists.add_argument("--limit-minutes", type=float, help="end after so long with the rows so far")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one benchmark."""
    options = parser().parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
