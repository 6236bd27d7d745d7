"""Kernels that are right, that cheat and that fail, judged in the device process of this CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.outcome import Outcome, Status
from backends.problem import GemmProblem, from_mm
from backends.registry import find_device
from backends.user_kernels.source import read_kernel
from tests.tuners.judge.kernels import CHEATS, FAILURES, HEAD, LOUD, RIGHT
from tuners.device_process import Task
from tuners.judge.client import PRINTED, JudgeClient, KernelFailed
from tuners.policy import MeasurementPolicy

PROBLEM = from_mm(64, 48, 80, "fp32")
Judge = Callable[..., Outcome]


@contextmanager
def judging(
    folder: Path, cache: BinaryCache, text: str, problem: GemmProblem = PROBLEM, hang_seconds: float = 60.0
) -> Iterator[tuple[JudgeClient, Outcome]]:
    """The client of a kernel, and the outcome of its screening."""
    path = folder / "mine.py"
    path.write_text(HEAD + text)
    with JudgeClient(find_device("cpu"), cache, read_kernel(path), hang_seconds) as client:
        task = Task(problem, MeasurementPolicy(cache="warm"), 0)
        (baseline,) = client.space(task, None).baselines
        client.open(task)
        client.screen([baseline.solution], None)
        yield client, client.screen([client.solution], None)[0]


def test_a_right_kernel_passes_every_check(tmp_path: Path, cache: BinaryCache) -> None:
    with judging(tmp_path, cache, LOUD) as (client, outcome):
        assert outcome.status in (Status.OK, Status.UNSTABLE)
        assert outcome.evidence["proof"]["seeds"] == 5
        assert outcome.evidence["repeatable"] is True
        assert "cheats" not in outcome.evidence
        # What it printed is kept, cut, and counted.
        printed = outcome.evidence["printed"]
        assert printed["bytes"] >= 2**20
        assert printed["first"] == "x" * PRINTED
        assert client.sample(client.solution).status in (Status.OK, Status.UNSTABLE)
        # Its source is the solution's identity.
        assert client.solution.family == "user.mine"
        assert client.solution.parameters == {"source": client.kernel.digest[:16]}


#: Cheats that times alone tell: a busy machine may hide them from one audit.
TIMED = ("skips repeated contents", "returns early")
#: What is said of a kernel that returns early where the machine is so slow that its output itself tells.
LATE = "it wrote its output only after the timed launches had ended"


@pytest.mark.parametrize("name", [name for name in CHEATS if name not in TIMED])
def test_a_cheat_is_caught_and_named(name: str, tmp_path: Path, cache: BinaryCache) -> None:
    source, cheat, words = CHEATS[name]
    with judging(tmp_path, cache, source) as (client, outcome):
        assert outcome.status is Status.WRONG_RESULT
        assert outcome.evidence["cheats"][0] == cheat
        assert words in outcome.evidence["wrong"]
        with pytest.raises(KernelFailed, match="wrong result"):
            client.sample(client.solution)


@pytest.mark.parametrize("name", TIMED)
def test_a_cheat_that_times_tell_is_caught_within_three_audits(
    name: str, tmp_path: Path, cache: BinaryCache
) -> None:
    source, cheat, words = CHEATS[name]
    seen = []
    for _ in range(3):
        with judging(tmp_path, cache, source) as (_, outcome):
            seen.append(outcome)
            if outcome.status is Status.WRONG_RESULT and outcome.evidence["cheats"][0] == cheat:
                assert any(one in outcome.evidence["wrong"] for one in (words, LATE))
                return
    pytest.fail(f"{cheat} was not told: {seen}")


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_with_its_cause(name: str, tmp_path: Path, cache: BinaryCache) -> None:
    source, status, words = FAILURES[name]
    with judging(tmp_path, cache, source, hang_seconds=1.0) as (_, outcome):
        assert outcome.status == status
        assert words in str(dict(outcome.evidence))


def test_a_kernel_without_out_returns_its_result(tmp_path: Path, cache: BinaryCache) -> None:
    with judging(tmp_path, cache, "def gemm(a, b):\n    return a @ b\n") as (_, outcome):
        assert outcome.status in (Status.OK, Status.UNSTABLE)


def test_a_wrong_kernel_is_no_cheat(tmp_path: Path, cache: BinaryCache) -> None:
    with judging(tmp_path, cache, RIGHT + "    out[0, 0] += 1\n") as (_, outcome):
        assert outcome.status is Status.WRONG_RESULT
        assert "cheats" not in outcome.evidence
        assert "elements are off" in outcome.evidence["wrong"]
