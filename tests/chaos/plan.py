"""What is submitted and what goes wrong, all drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.fleet import CRASHING_K, DOOMED_K

#: Problems of one tuning, at most, and at least so many tunings; every so many asks for an earlier one's
#: problems again, or is cancelled as soon as it is acknowledged.
_LARGEST, _FEWEST, _REPEATED, _CANCELLED = 24, 12, 10, 13
#: What the classes' jobs may use. The null driver's other families have no compiler.
_FAMILIES = {"cpu": ["openblas", "packed"], "cuda": ["hostlib"], "hip": ["hostlib"]}
#: Kills of each kind, in 20.
_KILLS = {"worker": 10, "server": 6, "database": 2, "database backend": 2}
#: Seconds that a process is stopped; that a limit stays, which the worker is to start under; a full disk.
_SHORT, _LONG, _LIMITED, _FULL = (0.5, 5.0), (33.0, 40.0), (8.0, 14.0), (3.0, 6.0)
#: Tasks that a limited worker may have: too few to start at all, or to start what measures.
_TASKS = (2, 16)
#: The share of kills and stops of workers that wait for one that measures.
_BUSY = 0.75


@dataclass(frozen=True)
class Size:
    """How much of each: jobs, workers, processes killed, processes stopped for a while (`long_stops` of them
    for longer than a worker may be silent), times that a worker is limited to a few processes and threads,
    and times that a disk is full."""

    jobs: int
    workers: int
    kills: int
    stops: int
    long_stops: int
    limits: int
    full_disks: int


@dataclass(frozen=True)
class Submission:
    """A tuning: its device's vendor, problems, and whether it is cancelled."""

    vendor: str
    problems: tuple[Mapping[str, Any], ...]
    cancelled: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """As POST /v1/tunings takes it."""
        return {
            "problems": list(self.problems),
            "device": self.vendor,
            "budget": {"seconds_per_problem": 0.1, "candidates": 4},
            "search": {"families": _FAMILIES[self.vendor]},
        }

    @property
    def doomed(self) -> int:
        """How many of its jobs end without a verdict."""
        return 0 if self.vendor == "cpu" else sum(one["k"] == DOOMED_K for one in self.problems)


@dataclass
class Fault:
    """kind: kill, stop, limit or full disk; `target` is a program or a disk. `at` seconds after the start.
    `busy`: it hits a worker that measures, if one does. `tasks`: of a limit."""

    kind: str
    target: str
    seconds: float = 0.0
    at: float = 0.0
    busy: bool = False
    tasks: int = 0
    notes: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "at": round(self.at, 1), "seconds": round(self.seconds, 1)}


def submissions(choose: random.Random, jobs: int) -> list[Submission]:
    """Tunings of `jobs` distinct problems in all, beside those that are asked for twice and those of tunings
    that are cancelled."""
    fresh = {vendor: _problems(vendor) for vendor in _FAMILIES}
    made: list[Submission] = []
    left, number = jobs, 0
    while left:
        number += 1
        vendor = choose.choice(sorted(_FAMILIES))
        if number % _REPEATED == 0:
            made.append(choose.choice([one for one in made if not one.cancelled]))
            continue
        count = choose.randint(1, min(_LARGEST, 1 + 2 * jobs // _FEWEST, left))
        cancelled = number % _CANCELLED == 0
        if not cancelled:
            left -= count
        made.append(Submission(vendor, tuple(next(fresh[vendor]) for _ in range(count)), cancelled))
    return made


def _problems(vendor: str) -> Iterator[dict[str, Any]]:
    """Distinct small problems; of a GPU's some are doomed and some end the device process."""
    number = 0
    while True:
        number += 1
        m, n = 1 + number % 17, 8 + 8 * (number // 17)
        k = DOOMED_K if number % 41 == 7 else CRASHING_K if number % 37 == 5 else 16 + number % 13
        yield {"m": m, "n": n, "k": k, "dtype": "fp32"}


def faults(
    choose: random.Random, size: Size, workers: Sequence[str], servers: Sequence[str], postgres: bool
) -> list[Fault]:
    """The faults in their order. Every kind of kill comes once before any is drawn twice."""
    kinds = {kind: weight for kind, weight in _KILLS.items() if postgres or not kind.startswith("database")}
    kills = list(kinds)[: size.kills]
    kills += choose.choices(list(kinds), list(kinds.values()), k=max(0, size.kills - len(kills)))

    def program(kind: str) -> str:
        return choose.choice({"worker": workers, "server": servers}.get(kind, [kind]))

    def busy(kind: str) -> bool:
        return kind == "worker" and choose.random() < _BUSY

    made = [Fault("kill", program(kind), busy=busy(kind)) for kind in kills]
    for number in range(size.stops):
        long = number < size.long_stops
        kind = "worker" if long or choose.random() < 0.7 else "server"
        seconds = choose.uniform(*(_LONG if long else _SHORT))
        made.append(Fault("stop", program(kind), seconds, busy=busy(kind)))
    # One disk after the other, so that each is full once where there are as many faults as disks.
    made += [
        Fault("full disk", ("database", "cache")[number % 2], choose.uniform(*_FULL))
        for number in range(size.full_disks)
    ]
    made += [
        Fault("limit", program("worker"), choose.uniform(*_LIMITED), tasks=choose.randint(*_TASKS))
        for _ in range(size.limits)
    ]
    choose.shuffle(made)
    return made
