"""Tunings through the service: wall clock of each problem, the first hour, repeatability, and regret.

    python -m benchmarks.service_tuning [--device cuda] [--problems 40] [--efforts quick normal] [--rounds 4 1]
        [--first 10] [--thorough 8] [--thorough-seconds 10] [--dtype bf16] [--lists decode_m1 ...]
        [--shapes benchmarks/untuned.json] [--cache FOLDER]

Problems are spread evenly over the fixed lists, or over those of `--shapes`. In order: (1) `first`: a bare service with
an empty cache tunes some problems at effort normal; (2) the portfolio is compiled into an empty cache, timed; (3) a
second service with that cache and a new database tunes all problems at each of `--efforts`, `--rounds` times (force),
which is asking again and again; (4) every few problems are tuned thoroughly; (5) all winners of a problem and its
default are timed in one final, in a process that searched nothing: regret is the time of a quick round's winner over
the fastest's there. The ceilings are those that the second service measured.

Of each effort and round "beyond" has the wall clock of a job minus its measuring, and what that consists of. Measuring
is the strategy's own time, screening, the final, and the timing in the second process: what a budget limits. Setting
up, waiting for compilers, proving, starting the second process and laying out its operands, and storing are not.

The result is service-tuning.json, or service-tuning-NAME.json for the lists of NAME.json.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from sqlalchemy import select

from backends.cache import BinaryCache
from backends.problem import GemmProblem
from backends.registry import FoundDevice
from backends.solution import Solution
from benchmarks.cuda_tuned import SHAPES, machine, read_shapes, say
from benchmarks.precompiled import precompiled
from benchmarks.report import RESULTS, write
from benchmarks.service_figures import by_list, effort_figures, named, regret_figures, wall
from db import models
from db.engine import open_engine, reading
from db.values import table
from service.formats.core.row_text import problem_wire
from tuners.ceilings import CeilingStore
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.effort import EFFORTS
from tuners.policy import MeasurementPolicy

#: Samples of each solution in the common final.
SAMPLES = 30
#: The fixed lists that are tuned unless others are asked for.
FIXED = ("decode_m1", "decode_small", "decode_large", "prefill")
#: The effort whose rounds the regret and the means of lists are of.
JUDGED = "quick"


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Serving:
    """A service with its workers on a database in `folder`: its process, and a client. Starting it returns
    once `workers` of them live; SystemExit with the log's end if they do not within 90 s."""

    def __init__(self, folder: Path, cache: Path, device: str, *options: str, workers: int = 1) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        port = free_port()
        environment = {
            **os.environ,
            "GEMMTUNE_DATABASE_URL": f"sqlite:///{folder / 'gemmtune.sqlite'}",
            "GEMMTUNE_CACHE_DIR": str(cache),
        }
        self._log = folder / "log"
        command = [
            sys.executable,
            "-m",
            "service.entry",
            "serve",
            "--device",
            device,
            "--port",
            str(port),
            *options,
        ]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self._wait(workers)

    def __enter__(self) -> httpx.Client:
        return self.client

    def __exit__(self, *_: object) -> None:
        self.stop()

    def living(self) -> list[dict[str, Any]]:
        """The workers that live."""
        rows = self.client.get("/v1/workers").json()["items"]
        return [row for row in rows if row["status"] in ("idle", "measuring")]

    def stop(self) -> None:
        """Ends the service and its workers."""
        self.client.close()
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def kill(self) -> None:
        """Kills the service's process."""
        self.client.close()
        self.process.kill()
        self.process.wait()

    def _wait(self, workers: int) -> None:
        ends = time.monotonic() + 90
        while time.monotonic() < ends and self.process.poll() is None:
            try:
                if len(self.living()) >= workers:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        self.process.kill()
        sys.exit(f"{workers} workers did not come:\n{self._log.read_text()[-3000:]}")


def submit(client: httpx.Client, problems: Sequence[GemmProblem], budget: Mapping[str, Any]) -> str:
    """Requests one tuning of the problems; returns its address."""
    body = {"problems": [problem_wire(one) for one in problems], "budget": dict(budget), "force": True}
    answer = client.post("/v1/tunings", json=body)
    answer.raise_for_status()
    return f"/v1/tunings/{answer.json()['id']}"


def jobs_of(client: httpx.Client, address: str) -> list[dict[str, Any]]:
    """All jobs of a tuning."""
    jobs: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = client.get(address, params={"limit": 500, **cursor}).json()["jobs"]
        jobs += page["items"]
        if page["next_cursor"] is None:
            return jobs
        cursor = {"cursor": page["next_cursor"]}


def tuned(client: httpx.Client, problems: Sequence[GemmProblem], budget: Mapping[str, Any]) -> dict[str, Any]:
    """Tunes the problems in one tuning: its seconds from the request to its end, and its jobs by problem id."""
    start = time.monotonic()
    address = submit(client, problems, budget)
    while client.get(address, params={"limit": 1}).json()["ended_at"] is None:
        time.sleep(0.1)
    seconds = time.monotonic() - start
    jobs = jobs_of(client, address)
    failed = [job["error"] for job in jobs if job["verdict"] is None]
    if failed:
        say(f"{len(failed)} of {len(jobs)} jobs have no verdict: {failed[0]}")
    return {"seconds": seconds, "jobs": {job["problem_id"]: job for job in jobs}}


def solutions_of(client: httpx.Client, names: Sequence[str]) -> dict[str, Solution]:
    """Solutions by id."""
    fields = ("id", "family", "version", "parameters", "build", "workspace_bytes", "deterministic")
    answers = {name: client.get(f"/v1/solutions/{name}").json() for name in names}
    return {name: Solution.from_dict({key: row[key] for key in fields}) for name, row in answers.items()}


def final(
    runner: DeviceClient, problem: GemmProblem, solutions: Sequence[Solution], policy: MeasurementPolicy
) -> dict[str, float]:
    """Solution id -> median seconds of interleaved samples, in a process that only screens these."""
    task = Task(problem, policy, 0)
    runner.open(task)
    runner.begin(task, solutions)
    while waiting := [one for one in solutions if not runner.ready(one)]:
        runner.await_any(waiting, 1.0)
    samples: dict[str, list[float]] = {}
    for one in solutions:
        outcome = runner.screen([one], None)[0]
        if outcome.samples:
            samples[one.id] = []
    for _ in range(SAMPLES):
        for one in solutions:
            if one.id in samples:
                samples[one.id] += runner.sample(one).samples
    return {name: median(taken) for name, taken in samples.items() if taken}


def regrets(
    device: FoundDevice, cache: Path, problems: Sequence[GemmProblem], rounds: Sequence[Mapping[str, Any]],
    known: Mapping[str, Solution], names: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each problem: each round's winner's time over the fastest's of the common final, less 1."""
    rows = []
    policy = MeasurementPolicy.of(device.environment.vendor)
    with DeviceClient(device, BinaryCache(cache / "kernels")) as runner:
        for problem in problems:
            times = final(runner, problem, [known[name] for name in names[problem.id]], policy)
            best = min(times.values())
            chosen = [one["jobs"][problem.id]["verdict"] for one in rounds if problem.id in one["jobs"]]
            winners = [verdict["winner"] for verdict in chosen if verdict is not None]
            defaults = [verdict["baseline"] for verdict in chosen if verdict is not None]
            rows.append({
                "problem": problem.id,
                "microseconds": {name: seconds * 1e6 for name, seconds in times.items()},
                "regret": [times[name] / best - 1 for name in winners if name in times],
                "speedup": [times[default] / times[name] for name, default in zip(winners, defaults, strict=True)
                            if name in times and default in times],
            })  # fmt: skip
    return rows


def counted(folder: Path) -> dict[str, dict[str, float]]:
    """Session id -> what it counted in seconds, of the sessions of a service's database that ended."""
    session = table(models.Session)
    query = select(session.c.id, session.c.counts)
    with reading(open_engine(f"sqlite:///{folder / 'gemmtune.sqlite'}")) as connection:
        return {
            name: {key: value for key, value in counts.items() if key.endswith("_seconds")}
            for name, counts in connection.execute(query)
            if counts is not None and "total_seconds" in counts
        }


def spent(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Medians of what sessions counted in seconds."""
    several: dict[str, list[float]] = {}
    for each in counts:
        for name, value in each.items():
            several.setdefault(name, []).append(value)
    return {name: median(values) for name, values in several.items()}


def result_name(shapes: Path) -> str:
    """The name of the result of a file of lists: the fixed ones' is service-tuning."""
    return "service-tuning" if shapes.resolve() == SHAPES.resolve() else f"service-tuning-{shapes.stem}"


def rounds_of(efforts: Sequence[str], rounds: Sequence[int]) -> dict[str, int]:
    """Effort -> its rounds: a number for each effort, or one for all. Raises ValueError for another number of numbers,
    a number below 1, an effort that is given twice, or efforts without the one that the regret is of."""
    if JUDGED not in efforts:
        raise ValueError(
            f"--efforts {' '.join(efforts)} lacks {JUDGED}: regret and means of lists are of its rounds"
        )
    if len(set(efforts)) < len(efforts):
        raise ValueError(f"--efforts {' '.join(efforts)} names an effort twice")
    if len(rounds) not in (1, len(efforts)) or min(rounds) < 1:
        given = " ".join(map(str, rounds))
        raise ValueError(
            f"--rounds {given}: give one number from 1, or one for each of {len(efforts)} efforts"
        )
    return dict(zip(efforts, rounds if len(rounds) > 1 else [*rounds] * len(efforts), strict=True))


def spaced(problems: Sequence[Any], count: int) -> list[Any]:
    """`count` of the problems, evenly spread."""
    step = max(len(problems) / max(count, 1), 1.0)
    return [problems[int(at * step)] for at in range(min(count, len(problems)))]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; `asked` has the rounds of each effort. Raises SystemExit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="a file of lists")
    parser.add_argument("--lists", nargs="+", help="default: decode and prefill of the fixed ones, else all")
    parser.add_argument(
        "--problems", type=int, default=40, help="so many, evenly spread over the lists, from 1; default: 40"
    )
    parser.add_argument(
        "--efforts", nargs="+", choices=list(EFFORTS), default=[JUDGED], help=f"{JUDGED} must be one of them"
    )
    parser.add_argument(
        "--rounds", type=int, nargs="+", default=[4], help="for all efforts, or for each; default: 4"
    )
    parser.add_argument("--first", type=int, default=10, help="problems of the bare service; 0: leave it out")
    parser.add_argument("--thorough", type=int, default=8, help="problems that are tuned thoroughly")
    parser.add_argument("--thorough-seconds", type=float, default=10.0)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument(
        "--cache",
        type=Path,
        help="the folder that the portfolio is compiled into, and that is kept; default: one of its own",
    )
    options = parser.parse_args(arguments)
    try:
        options.asked = rounds_of(options.efforts, options.rounds)
    except ValueError as error:
        parser.error(str(error))
    if options.problems < 1:
        parser.error(f"--problems {options.problems}: give a number from 1")
    return options


def rounds_of_all(
    client: httpx.Client, folder: Path, problems: Sequence[GemmProblem], asked: Mapping[str, int],
    told: Callable[[str, Mapping[str, Any]], None],
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Effort -> the tunings of its rounds, by the service whose database is in `folder`. `told` is given an effort's
    figures after each of its rounds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for effort, count in asked.items():
        mine = found.setdefault(effort, [])
        for number in range(count):
            mine.append(tuned(client, problems, {"effort": effort}))
            say(f"{effort}, round {number}: {mine[-1]['seconds'] / len(problems):.2f} s a problem")
            counts = counted(folder)
            sessions = [job["session_id"] for one in mine for job in one["jobs"].values()]
            times = {"spent": spent(counts[name] for name in sessions if name in counts)}
            told(effort, effort_figures(mine, problems, counts) | times)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parsed(arguments)
    device = machine(options.device.split(":")[0], 1)[0]
    result = result_name(options.shapes)
    wanted = options.lists or (FIXED if options.shapes.resolve() == SHAPES.resolve() else None)
    shapes = [(shape.problem(options.dtype), shape.list) for shape in read_shapes(options.shapes, wanted)]
    chosen = spaced(shapes, options.problems)
    problems, lists = [problem for problem, _ in chosen], {problem.id: which for problem, which in chosen}
    deep = spaced(problems, options.thorough)
    figures: dict[str, Any] = {
        "what": "tunings through the service: seconds of wall clock a job; regret as a share of the time",
        "dtype": options.dtype, "problems": len(problems),
    }  # fmt: skip

    def keep() -> None:
        """Writes what there is, so that a run that is cut short is not lost."""
        write(result, device.environment, figures, options.output)

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if options.first:
            some = spaced(problems, options.first)
            with Serving(folder / "bare", folder / "bare-cache", options.device) as client:
                jobs = tuned(client, some, {"effort": "normal"})["jobs"]
            figures["first"] = {
                "spent": spent(counted(folder / "bare").values()),
                "effort": "normal",
                "wall": [wall(jobs[problem.id]) for problem in some],
            }
            keep()
        cache = options.cache or folder / "cache"
        warm = cache.exists() and any(cache.iterdir())
        compiled = precompiled(device.environment, cache)
        figures |= {"precompile": compiled} if not warm else {}
        keep()
        with Serving(folder / "warm", cache, options.device) as client:

            def told(effort: str, found: Mapping[str, Any]) -> None:
                figures[effort] = found
                keep()

            rounds = rounds_of_all(client, folder / "warm", problems, options.asked, told)
            every = [one for mine in rounds.values() for one in mine]
            budget = {"effort": "thorough", "seconds_per_problem": options.thorough_seconds}
            every += [tuned(client, deep, budget)] if deep else []
            names = named(every, problems)
            known = solutions_of(client, sorted({name for each in names.values() for name in each}))
        if (ceilings := CeilingStore(cache / "ceilings").get(device.environment)) is not None:
            figures["ceilings"] = asdict(ceilings)
        judged = rounds[JUDGED]
        rows = regrets(device, cache, [one for one in problems if names[one.id]], judged, known, names)
        figures["regret"] = regret_figures(rows, deep, options.thorough_seconds)
        figures["lists"], figures["rows"] = by_list(lists, rows, judged), rows
        keep()


if __name__ == "__main__":
    main()
