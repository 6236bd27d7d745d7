"""What is submitted and what goes wrong is a seed's, and as much as was asked for."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.chaos.plan import Size, faults, submissions

SIZE = Size(jobs=200, workers=6, kills=30, stops=8, long_stops=2, limits=3, full_disks=4)
WORKERS, SERVERS = [f"worker-{i}" for i in range(6)], ("server-1", "server-2")


def test_a_seed_is_a_plan() -> None:
    plans = [
        (submissions(choose, 100), faults(choose, SIZE, WORKERS, SERVERS, True))
        for choose in (random.Random(5), random.Random(5), random.Random(6))
    ]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


@pytest.mark.parametrize("jobs", [1, 40, 1000])
def test_as_many_jobs_are_asked_for(jobs: int) -> None:
    made = submissions(random.Random(1), jobs)
    kept = {(one.vendor, str(problem)) for one in made if not one.cancelled for problem in one.problems}
    assert len(kept) == jobs
    if jobs == 1000:
        assert any(one.cancelled for one in made)
        assert any(one.doomed for one in made)
        assert sum(len(one.problems) for one in made) > jobs, "some are asked for twice"


@pytest.mark.parametrize("postgres", [True, False])
def test_every_fault_comes_as_often_as_asked(postgres: bool) -> None:
    made = faults(random.Random(2), SIZE, WORKERS, SERVERS, postgres)
    assert Counter(one.kind for one in made) == {"kill": 30, "stop": 8, "limit": 3, "full disk": 4}
    killed = {one.target.partition("-")[0] for one in made if one.kind == "kill"}
    assert killed == {"worker", "server", *(("database", "database backend") if postgres else ())}
    assert sum(one.seconds > 30 for one in made) == 2
    assert {one.target for one in made if one.kind == "full disk"} == {"database", "cache"}
