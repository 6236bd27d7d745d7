"""Records a table of a device for replayed searches (tuners/recorded_table.py).

    python -m benchmarks.record_table --device cuda:sm_90 --list decode_m1 --list prefill --count 1000 \\
        --seconds 1500 --output benchmarks/recorded/h200-bf16.npz
    python -m benchmarks.record_table --device cpu --problems problems.jsonl --count 300 --seconds 600 \\
        --output benchmarks/recorded/cpu.npz

Of every family half of the rows are its first listed candidates and half are drawn by the seed from its whole
space; families take turns until there are `count` rows, or every legal member is there. Each distinct binary is
compiled once, on all processors, before anything is measured. Candidates are verified on the problem itself
and one seed. After each problem the table is written; when the time is up, it has what was measured so far.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache, default_cache_dir
from backends.errors import DeviceMemoryExceeded, GemmtuneError, UnsupportedProblem
from backends.family_space import FamilySpace, permuted
from backends.outcome import Status
from backends.problem import GemmProblem
from backends.registry import find_device
from backends.solution import Solution
from backends.wire import problem_from_wire
from benchmarks.report import commit
from tuners.device_client import DeviceClient
from tuners.device_process import DeviceProcess, Task
from tuners.policy import MeasurementPolicy
from tuners.recorded_table import RecordedProblem, RecordedTable, Row
from tuners.strategies.exhaustive import in_turns, untried

SHAPES = Path(__file__).parent / "shapes.json"
#: Samples of a pass, more than a screening takes, so that searches draw different ones; indices of a space that
#: are looked at for legal members.
SAMPLES, SCANNED = 10, 5000
#: A candidate is screened until it is shown to be slower than this many times the best, with the screening's
#: own factors (tuners/options.py); the defaults and those within NEAR of the best have a second pass.
SLOW, NEAR = 4.0, 2.0
#: Share of the time for compiling before anything is measured. Shares of a problem's time when its screenings,
#: its first pass and its second pass end.
COMPILING, ENDS = 0.4, (0.6, 0.8, 1.0)
#: Candidates that are screened in one call; candidates whose samples are taken in rounds, fewer than the device
#: process keeps loaded.
BATCH, GROUP = 16, 48


@dataclass(frozen=True)
class Choice:
    """The candidates of a problem that are to be measured: its defaults, then solution -> its place among the
    listed candidates, None if it is not listed."""

    task: Task
    baselines: tuple[tuple[str, Solution], ...]
    places: Mapping[Solution, int | None]


def choose(
    listed: Mapping[str, Sequence[Solution]], spaces: Mapping[str, FamilySpace], count: int, seed: int
) -> list[Solution]:
    """At most `count` candidates, families in turns: of each alternately the next listed one and one drawn
    from its space. The same seed draws the same members of equal spaces, so that problems share binaries."""

    def of(name: str) -> Iterator[Solution]:
        drawn = spaces[name].along(islice(permuted(spaces[name].size, seed), SCANNED))
        return in_turns([iter(listed.get(name, ())), drawn])

    return list(islice(untried(in_turns(of(name) for name in spaces), set()), count))


def chosen(runner: DeviceClient, problem: GemmProblem, count: int, seed: int) -> Choice:
    """The candidates of a problem. Raises UnsupportedProblem."""
    policy = MeasurementPolicy.of(runner.environment.vendor)
    task = Task(problem, policy, seed, exact_only=True)
    space = runner.space(task, None)
    baselines = tuple((one.name, one.solution) for one in space.baselines)
    task = replace(task, defaults=frozenset(solution.id for _, solution in baselines))
    listed: dict[str, list[Solution]] = {}
    for solution in space.candidates:
        listed.setdefault(solution.family, []).append(solution)
    spaces = {name: runner.family_space(task, name) for name in space.families}
    found = choose(listed, spaces, count, seed)
    places = {solution: place for place, solution in enumerate(space.candidates)}
    own = dict.fromkeys(solution for _, solution in baselines)
    return Choice(task, baselines, {one: places.get(one) for one in (*own, *found)})


class Precompiling:
    """Compiles candidates on all processors, from the moment that they are chosen. What fails is a row
    later."""

    def __init__(self, runner: DeviceClient) -> None:
        self._runner, self._families = runner, runner.backend.families()
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        self._jobs: list[Future[None]] = []

    def add(self, choice: Choice) -> None:
        """Queues the candidates of a problem."""
        self._jobs += [
            self._pool.submit(self._compile, choice.task.problem, solution)
            for solution in choice.places
            if self._families[solution.family].compiles
        ]

    def _compile(self, problem: GemmProblem, solution: Solution) -> None:
        with suppress(GemmtuneError):
            family, here = self._families[solution.family], self._runner.environment
            family.compile(problem, solution, here, self._runner.cache)

    def finish(self, seconds: float) -> None:
        """Waits for at most `seconds`, and drops what is still queued then."""
        done, left = wait(self._jobs, seconds)
        for job in left:
            job.cancel()
        self._pool.shutdown()
        for job in done:
            job.result()
        print(f"compiled {len(done)} of {len(self._jobs)} candidates", flush=True)


def condition(process: DeviceProcess) -> dict[str, Any]:
    """Runs in the device process: clocks, power, temperature."""
    return dict(process.device.condition())


class Recording:
    """Measures the candidates of one problem."""

    def __init__(self, runner: DeviceClient, choice: Choice, seconds: float, group: int) -> None:
        self._runner, self._choice, self._group = runner, choice, group
        begin = time.monotonic()
        self._screened, self._first_ends, self._ends = (begin + share * seconds for share in ENDS)
        self._rows: dict[Solution, Row] = {}

    def run(self) -> RecordedProblem:
        """Both passes. Raises DeviceMemoryExceeded."""
        runner, choice = self._runner, self._choice
        runner.open(choice.task)
        before = runner.run(condition)
        for batch in self._ready():
            self._screen(batch)
        runner.settle()
        near = self._sorted()
        for solution, samples in self._sampled(near, "first", self._first_ends):
            self._rows[solution] = replace(self._rows[solution], first=samples)
        for solution, samples in self._sampled(near, "second", self._ends):
            self._rows[solution] = replace(self._rows[solution], second=samples)
        after = runner.run(condition)
        # One that is near the best and had no second pass when the time was up is no row: its regret is unknown.
        rows = tuple(row for row in self._rows.values() if row.second or not self._near(row))
        kept = {row.solution for row in rows}
        baselines = tuple((name, one.id) for name, one in choice.baselines if one in kept)
        return RecordedProblem(choice.task.problem, rows, baselines, {"before": before, "after": after})

    def _best(self) -> float | None:
        times = [row.seconds for row in self._rows.values() if row.seconds is not None]
        return min(times, default=None)

    def _near(self, row: Row) -> bool:
        best, own = self._best(), {solution for _, solution in self._choice.baselines}
        if row.seconds is None or best is None:
            return False
        return row.seconds <= NEAR * best or row.solution in own

    def _ready(self) -> Iterator[list[Solution]]:
        """Batches of compiled candidates, the defaults first, until the time for screenings is up."""
        task, waiting = self._choice.task, dict.fromkeys(self._choice.places)
        for solution in dict.fromkeys(solution for _, solution in self._choice.baselines):
            del waiting[solution]
            yield [solution]
        beside = self._runner.backend.traits.compiles_beside
        if beside:
            self._runner.begin(task, list(waiting))
        while waiting and time.monotonic() < self._screened:
            if not beside:  # the call waits for compilers
                self._runner.begin(task, list(islice(waiting, BATCH)))
            ready = list(islice((one for one in waiting if self._runner.ready(one)), BATCH))
            if ready:
                for solution in ready:
                    del waiting[solution]
                yield ready
            else:
                self._runner.await_any(list(waiting), 1.0)

    def _screen(self, batch: Sequence[Solution]) -> None:
        best = self._best()
        outcomes = self._runner.screen(batch, None if best is None else SLOW * best)
        clock = self._runner.run(condition).get("sm_mhz")
        for asked, outcome in zip(batch, outcomes, strict=True):
            place = self._choice.places[asked]
            self._rows[asked] = Row(outcome.solution, outcome.status, outcome.samples, (), place, clock)

    def _sorted(self) -> list[Solution]:
        """The defaults, then the candidates near the best, the fastest first."""
        own = {solution for _, solution in self._choice.baselines}
        near = [(row.seconds, one) for one, row in self._rows.items() if self._near(row)]
        return [one for _, one in sorted(near, key=lambda pair: (pair[1] not in own, pair[0], pair[1].id))]

    def _sampled(
        self, near: Sequence[Solution], which: str, ends: float
    ) -> Iterator[tuple[Solution, tuple[float, ...]]]:
        """The samples of a pass, completed to SAMPLES of each candidate, for those that there was time for. A
        group takes its samples in rounds, so that a change of the machine's speed affects all of it alike."""
        for start in range(0, len(near), self._group):
            group = {one: list(getattr(self._rows[one], which)) for one in near[start : start + self._group]}
            for number in range(min(map(len, group.values())), SAMPLES):
                for solution in [one for one, samples in group.items() if len(samples) == number]:
                    if time.monotonic() > ends:
                        return
                    taken = self._runner.sample(solution)
                    if taken.status in (Status.OK, Status.UNSTABLE):
                        group[solution] += taken.samples
                    else:  # without a second pass it is no row
                        del group[solution]
            yield from ((one, tuple(samples)) for one, samples in group.items())


def rule(count: int, seed: int, group: int) -> str:
    """How the rows are chosen and measured."""
    return (
        f"At most {count} candidates of a problem beside its defaults, families in turns: of each alternately "
        f"the next listed candidate and the next legal member among the first {SCANNED} indices of its space "
        f"in the order of seed {seed}. Verified on the problem itself, one seed; pruned at {SLOW:g} times the "
        f"screening's factors. Two passes of {SAMPLES} samples for the defaults and the candidates within "
        f"{NEAR:g} of the fastest, taken in rounds over groups of {group}, the fastest first; the first pass "
        "begins with the screening's samples."
    )


def problems_of(lists: Sequence[str], path: Path | None, dtype: str) -> list[GemmProblem]:
    """The problems of fixed lists (shapes.json), then those of a file of JSON lines."""
    shapes = json.loads(SHAPES.read_text())
    rows = [row for name in lists for row in shapes[name]]
    found = [
        problem_from_wire({**{key: v for key, v in row.items() if key != "name"}, "dtype": dtype})
        for row in rows
    ]
    lines = path.read_text().splitlines() if path else []
    found += [problem_from_wire(json.loads(line)) for line in lines if line.strip()]
    return list(dict.fromkeys(found))


def main() -> None:
    """Records, and writes the table after each problem."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record_table")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--list", action="append", default=[], help="a fixed list of shapes.json (repeat)")
    parser.add_argument("--dtype", default="bf16", help="of the fixed lists")
    parser.add_argument("--problems", type=Path, help="a file of problems, JSON lines")
    parser.add_argument("--count", type=int, default=1000, help="candidates of a problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--group", type=int, default=GROUP,
        help="candidates whose samples are taken in rounds: more where the device's speed changes often",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=1500.0, help="of wall clock, in all")
    parser.add_argument("--cache-dir", type=Path, default=None)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    problems = problems_of(given.list, given.problems, given.dtype)
    if not problems:
        parser.error("no problem to record: give --list or --problems")
    begin = time.monotonic()
    device = find_device(given.device)
    root = given.cache_dir or default_cache_dir()
    made_by, at = commit(), datetime.now(UTC).isoformat(timespec="seconds")
    done: list[RecordedProblem] = []
    with DeviceClient(device, BinaryCache(root / "kernels")) as runner:
        choices, compiling = [], Precompiling(runner)
        for problem in problems:
            try:
                choices.append(chosen(runner, problem, given.count, given.seed))
                compiling.add(choices[-1])
            except UnsupportedProblem as error:
                print(f"left out: {error}", file=sys.stderr)
        print(
            f"chose {sum(len(c.places) for c in choices)} rows, {time.monotonic() - begin:.0f} s", flush=True
        )
        compiling.finish(max(0.0, COMPILING * given.seconds - (time.monotonic() - begin)))
        for number, choice in enumerate(choices):
            left = given.seconds - (time.monotonic() - begin)
            if left <= 0:
                print(f"the time is up: {len(choices) - number} problems were not measured", file=sys.stderr)
                break
            try:
                found = Recording(runner, choice, left / (len(choices) - number), given.group).run()
            except DeviceMemoryExceeded as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            twice = sum(bool(row.second) for row in found.rows)
            if not twice:  # what no search has seen tells the regret
                print(f"left out: no time for second passes of {found.problem.slug}", file=sys.stderr)
                continue
            done.append(found)
            print(f"{found.problem.slug}: {len(found.rows)} rows, {twice} of them twice", flush=True)
            policy = choice.task.policy
            RecordedTable(
                runner.environment,
                made_by,
                at,
                rule(given.count, given.seed, given.group),
                policy,
                tuple(done),
            ).save(given.output)
    print(f"written: {given.output}, {given.output.stat().st_size if done else 0} bytes")


if __name__ == "__main__":
    main()
