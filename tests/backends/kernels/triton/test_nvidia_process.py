"""The process that is kept between questions: it answers one after another, and starts again after it died,
did not answer, or talked nonsense."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.kernels.triton import nvidia_process
from backends.kernels.triton.nvidia_process import StandingProcess

PROGRAM = """
    import json, os, sys, time
    for line in sys.stdin:
        asked = json.loads(line)
        if "say" in asked:
            print(asked["say"], flush=True)
        elif "die" in asked:
            print("boom\\n\\nlast words", file=sys.stderr, flush=True)
            os._exit(asked["die"])
        elif "hang" in asked:
            time.sleep(60)
        else:
            print(json.dumps([os.getpid(), "x" * asked.get("long", 0)]), flush=True)
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandingProcess]:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.setattr(nvidia_process, "PROGRAM", tmp_path / "program.py")
    process = StandingProcess()
    yield process
    process.close()


def answered(process: StandingProcess, question: dict[str, int] | None = None) -> list[Any]:
    found = process.ask(question or {}, 30)
    assert isinstance(found, list), found
    return found


def test_one_process_answers_all_questions(process: StandingProcess) -> None:
    (pid, _) = answered(process)
    assert process.ask({"long": 1_000_000}, 30) == [pid, "x" * 1_000_000], "an answer of many reads"
    assert pid != os.getpid()


@pytest.mark.parametrize(
    ("question", "seconds", "words"),
    [
        ({"die": 3}, 30, "last words"),
        ({"hang": 1}, 0.2, "no answer within 0 s"),
        ({"say": "{"}, 30, "its answer cannot be read: "),
    ],
)
def test_it_starts_again(
    process: StandingProcess, question: dict[str, int], seconds: float, words: str
) -> None:
    (before, _) = answered(process)
    assert str(process.ask(question, seconds)).startswith(words)
    (after, _) = answered(process)
    assert after != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_one_that_died_between_questions_is_told_and_replaced(process: StandingProcess) -> None:
    (pid, _) = answered(process)
    os.kill(pid, 9)
    assert process.ask({}, 30) == "status -9"
    assert process.ask({}, 30) != "status -9"


def test_a_child_of_this_process_starts_its_own(process: StandingProcess) -> None:
    (pid, _) = answered(process)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # what happens here is seen through the pipe alone
        try:
            os.write(write, str(answered(process)[0]).encode())
            process.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 100)) not in (pid, child)
    os.close(read)
    os.close(write)
    assert process.ask({}, 30) == [pid, ""], "the child neither used nor ended it"


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    """However the owner ends: its input ends with it."""
    code = """
        import os, sys
        from pathlib import Path
        from backends.kernels.triton import nvidia_process
        nvidia_process.PROGRAM = Path(sys.argv[1])
        print(nvidia_process.StandingProcess().ask({}, 30)[0], flush=True)
        os.kill(os.getpid(), 9)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "program.py")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    pid = int(done.stdout)
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":  # nobody waits for orphans in a container
            return
        os.sched_yield()
        subprocess.run(["sleep", "0.01"], check=True)
    pytest.fail("the process outlives its owner")
