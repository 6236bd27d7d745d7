"""Priority is lowered for the calling thread and what it starts, and for no other thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tuners.niceness import NICENESS, be_nice

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="niceness is the process's elsewhere")


def own() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def started() -> int:
    program = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_thread_and_the_processes_that_it_starts_are_lowered_and_no_other_thread() -> None:
    before = own()

    def lowered() -> tuple[int, int]:
        be_nice()
        return own(), started()

    with ThreadPoolExecutor(1) as pool:
        expected = min(19, before + NICENESS)
        assert pool.submit(lowered).result() == (expected, expected)
    assert own() == before


def test_a_second_step_is_below_the_first_and_the_last_is_the_lowest() -> None:
    def steps() -> list[int]:
        found = [own()]
        for _ in range(3):
            be_nice()
            found.append(own())
        return found

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(steps).result()
    assert found == sorted(found)
    assert found[0] < found[2]
    assert found[-1] == 19
