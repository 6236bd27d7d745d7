"""Processes that list candidates: the same lists as this process makes, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import cycle

import pytest

from backends.errors import DeviceError, DeviceLost, UnsupportedProblem
from backends.kernel_checks.candidates import environment_of
from backends.problem import from_blas
from backends.registry import backend
from tuners import listing
from tuners.listing import ListingPool
from tuners.space import listed

PROBLEM = from_blas(4096, 16, 4096, "bf16", trans_a="T")
HERE = environment_of("sm_90")
CUDA = backend("cuda")
FAMILIES = ["skinny-ring", "gemv", "triton-gemm", "tile-wgmma", "stream-k"]


@pytest.fixture
def pool() -> Iterator[ListingPool]:
    made = ListingPool("cuda", CUDA, 2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def standing() -> Iterator[ListingPool]:
    """A pool whose processes no test ends."""
    made = ListingPool("cuda", CUDA, 2)
    yield made
    made.close()


def test_the_lists_are_those_of_this_process_in_order(standing: ListingPool) -> None:
    found = standing.begin(FAMILIES, PROBLEM, HERE, None)()
    assert list(found) == FAMILIES
    assert found == listed(FAMILIES, PROBLEM, CUDA, HERE, None)
    assert sum(len(one.candidates) for one in found.values()) > 100
    assert all("id" in vars(one) for one in found["skinny-ring"].candidates), "ids are hashed there, not here"


def test_lists_that_were_begun_ahead_are_waited_for(
    standing: ListingPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, calls = from_blas(4096, 48, 4096, "bf16", trans_a="T"), counted(standing, monkeypatch)
    standing.list_ahead(FAMILIES[:3], problem, HERE, None)
    standing.list_ahead(FAMILIES[:3], problem, HERE, None)
    assert calls == FAMILIES[:3], "the second time nothing is new"
    found = standing.begin(FAMILIES, problem, HERE, None)()
    assert calls == FAMILIES, "only what was not begun ahead"
    assert list(found) == FAMILIES
    assert found == listed(FAMILIES, problem, CUDA, HERE, None)
    standing.begin(FAMILIES[:1], problem, HERE, None)()
    assert calls == [*FAMILIES, FAMILIES[0]], "what was taken is listed anew"


def test_a_wrong_guess_changes_nothing(standing: ListingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(standing, monkeypatch)
    for guess, limit in ((from_blas(4096, 32, 4096, "bf16", trans_a="T"), None), (PROBLEM, 2**20)):
        standing.list_ahead(FAMILIES[:2], guess, HERE, limit)
        calls.clear()
        found = standing.begin(FAMILIES[:2], PROBLEM, HERE, None)()
        assert calls == FAMILIES[:2], "of another problem or limit"
        assert found == listed(FAMILIES[:2], PROBLEM, CUDA, HERE, None)


def test_a_list_that_has_begun_is_not_begun_ahead(
    standing: ListingPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = standing.begin(FAMILIES[:1], PROBLEM, HERE, None)
    calls = counted(standing, monkeypatch)
    standing.list_ahead(FAMILIES[:1], PROBLEM, HERE, None)
    assert calls == []
    assert lists() == listed(FAMILIES[:1], PROBLEM, CUDA, HERE, None)


def test_threads_that_guess_change_no_list(standing: ListingPool) -> None:
    problems = [from_blas(4096, n, 4096, "bf16", trans_a="T") for n in (8, 16, 24)]
    ended = threading.Event()

    def guess() -> None:
        for problem in cycle(problems):
            if ended.wait(0.001):
                return
            standing.list_ahead(["stream-k"], problem, HERE, None)

    guessing = threading.Thread(target=guess)
    guessing.start()
    try:
        for problem in problems * 3:
            found = standing.begin(["stream-k"], problem, HERE, None)()
            assert found == listed(["stream-k"], problem, CUDA, HERE, None)
    finally:
        ended.set()
        guessing.join()


def counted(pool: ListingPool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The families that are scheduled from now on."""
    calls: list[str] = []
    schedule = pool._schedule

    def one(call: Callable[..., object], *arguments: object) -> object:
        calls.append(str(arguments[0]))
        return schedule(call, *arguments)

    monkeypatch.setattr(pool, "_schedule", one)
    return calls


def test_a_family_whose_process_is_killed_is_listed_here(
    pool: ListingPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listing, "one_family", _killed)
    found = pool.begin(["skinny-ring"], PROBLEM, HERE, None)()
    assert found == listed(["skinny-ring"], PROBLEM, CUDA, HERE, None)
    assert "died while it listed skinny-ring" in caplog.text
    monkeypatch.undo()
    assert len(pool.begin(["stream-k", "skinny"], PROBLEM, HERE, None)()["skinny"].candidates) > 0, (
        "a next list has a new process"
    )


def _killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_family_raises_is_raised_here(standing: ListingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "one_family", _refused)
    with pytest.raises(UnsupportedProblem, match="not this one"):
        standing.begin(["gemv"], PROBLEM, HERE, None)()


def _refused(*_: object) -> None:
    raise UnsupportedProblem("not this one")


def test_a_closed_pool_is_a_fault_of_the_machine(pool: ListingPool) -> None:
    waiting = pool.begin(FAMILIES, PROBLEM, HERE, None)
    pool.close()
    with pytest.raises(DeviceError):
        waiting()
    with pytest.raises(DeviceLost, match="cannot be used"):
        pool.begin(FAMILIES, PROBLEM, HERE, None)


@pytest.mark.parametrize(("processors", "processes"), [(1, 0), (2, 0), (5, 0), (6, 2), (8, 4), (64, 4)])
def test_processes_are_for_machines_with_processors_to_spare(
    monkeypatch: pytest.MonkeyPatch, processors: int, processes: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    assert listing.processes_here() == processes
