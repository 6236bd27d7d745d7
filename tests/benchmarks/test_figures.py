"""A GPU's figures by one command: what is begun, what is left out, and what a step's end says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.figures import STEPS, Step, command, main, run


def step(name: str, minutes: float, *programs: str) -> Step:
    """A step whose commands are short programs, run once by timeit."""
    return Step(name, tuple(("timeit", "-n", "1", "-r", "1", program) for program in programs), minutes)


def test_steps_that_fit_are_run_once_and_failures_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "results"
    written = tmp_path / "written"
    again = f"open({str(written)!r}, 'a').write('x')"
    steps = [
        step("first", 1, again),
        step("second", 1, "raise SystemExit(3)", again),
        step("long", 90, again),
        step("last", 1, again, again),
    ]
    said: list[str] = []
    assert run(steps, folder, 60, said.append) == 1
    assert [line.partition(":")[0] for line in said] == ["first", "second", "long", "last"]
    assert "timeit ended with exit code 1" in said[1]
    assert "it takes 90 minutes" in said[2]
    assert written.read_text() == "xxx", "what follows a command that fails is not run"
    assert sorted(path.name for path in folder.glob("*.done")) == ["first.done", "last.done"]
    said.clear()
    assert run([steps[0], steps[3]], folder, 60, said.append) == 0
    assert [line.partition(": ")[2] for line in said] == ["done before", "done before"]
    assert written.read_text() == "xxx"


def test_a_step_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    said: list[str] = []
    assert run([step("slow", 0.005, "import time; time.sleep(60)")], tmp_path, 60, said.append) == 1
    assert "slow: stopped after" in said[0]
    assert not (tmp_path / "slow.done").exists()


def test_results_are_files_or_folders_as_the_option_says(tmp_path: Path) -> None:
    prefix = [sys.executable, "-m"]
    assert command("a", ("one", "--json", "OUT"), tmp_path) == [
        *prefix,
        "one",
        "--json",
        f"{tmp_path}/a.json",
    ]
    assert command("a", ("one", "--output", "OUT"), tmp_path) == [*prefix, "one", "--output", f"{tmp_path}/a"]
    assert command("a", ("one", "FOLDER/a.gtb"), tmp_path) == [*prefix, "one", f"{tmp_path}/a.gtb"]


def test_the_list_names_every_step_and_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "grouped", "moe-models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(len(one.commands) for one in STEPS if one.name in ("grouped", "moe-models"))
    assert any(
        line.startswith("grouped ") and "python -m benchmarks.grouped --quick" in line for line in lines
    )
    assert len({one.name for one in STEPS}) == len(STEPS)
    with pytest.raises(SystemExit):
        main([])
