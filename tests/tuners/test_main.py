"""The bare node: JSON lines in and out, in a process that may import nothing of the service."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.errors import DeviceLost
from backends.registry import FoundDevice
from tuners.__main__ import main
from tuners.campaign import Finished
from tuners.ceilings import Ceilings
from tuners.policy import MeasurementPolicy
from tuners.session_store import Result

GOOD = '{"m":16,"n":32,"k":48}\n{"m":4,"n":32,"k":48,"dtype":"bf16","trans_b":true}\n'
BAD = '{"m":0,"n":32,"k":48}\nnot json\n'


def run(tmp_path: Path, cache: BinaryCache, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    names = ("fastapi", "sqlmodel", "pydantic", "typer", "rich", "service")
    blocked = f"import sys\nfor name in {names}:\n    sys.modules[name] = None\n"
    code = blocked + "import runpy; runpy.run_module('tuners', run_name='__main__', alter_sys=True)"
    arguments = [
        "--output",
        str(tmp_path / "out.jsonl"),
        "--seconds",
        "0.3",
        "--candidates",
        "3",
        "--cache-dir",
        str(cache.root.parent),
        *more,
    ]
    return subprocess.run(
        [sys.executable, "-c", code, "-", *arguments],
        input=text,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
        check=False,
    )


def test_it_writes_json_lines_with_no_service_installed(tmp_path: Path, cache: BinaryCache) -> None:
    done = run(tmp_path, cache, GOOD)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["type"] for row in rows].count("result") == 2
    assert all(row["version"] == 1 for row in rows)
    start = next(row["start"] for row in rows if row["type"] == "start")
    assert start["environment"]["vendor"] == "cpu"
    verdicts = [row["result"]["verdict"]["judgement"] for row in rows if row["type"] == "result"]
    assert set(verdicts) <= {"WIN", "TIE", "LOSS"}


def test_bad_lines_are_named_and_good_ones_kept(tmp_path: Path, cache: BinaryCache) -> None:
    done = run(tmp_path, cache, BAD + GOOD.splitlines()[0])
    assert done.returncode == 1
    assert "line 1: m must be between 1 and 2147483647, not 0" in done.stderr
    assert "line 2: " in done.stderr
    assert '"type":"result"' in (tmp_path / "out.jsonl").read_text()


def test_nothing_to_do_and_unknown_devices_are_bad_input(tmp_path: Path, cache: BinaryCache) -> None:
    assert run(tmp_path, cache, BAD).returncode == 2
    done = run(tmp_path, cache, GOOD, "--device", "cuda")
    assert done.returncode == 2
    assert "no device matches 'cuda'; available: cpu:" in done.stderr
    done = run(tmp_path, cache, GOOD, "--seconds", "-1")
    assert done.returncode == 2
    assert "seconds above 0" in done.stderr
    done = run(tmp_path, cache, GOOD, "--candidates", "0")
    assert done.returncode == 2
    assert "a budget of candidates must be at least 1, not 0" in done.stderr


# ---- in this process -----------------------------------------------------------------------------


class PlannedCampaign:
    """Takes what the command built; `lost` is raised in place of a second problem's events."""

    def __init__(self, lost: Exception | None = None) -> None:
        self._lost = lost
        self.stopped = False

    def __call__(self, runner: Any, problems: Any, settings: Any, *_: Any) -> PlannedCampaign:
        self.runner, self.problems, self.policy = runner, problems, settings.policy
        return self

    def run(self) -> Iterator[Finished]:
        yield Finished(0, Result(self.problems[0], None, "none measured"))
        if self._lost is not None:
            raise self._lost


class NoRunner:
    """Stands for the device's."""

    def __init__(self, device: FoundDevice, _: BinaryCache) -> None:
        self.device, self.environment = device, device.environment

    def ceilings(self, *_: object) -> Ceilings:
        raise AssertionError("the planned campaign measures nothing")

    def __enter__(self) -> NoRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, PlannedCampaign]]:
    """Runs the command with three GPUs and a campaign that is planned; its exit code, and the campaign."""

    def planned(*arguments: str, lost: Exception | None = None) -> tuple[int, PlannedCampaign]:
        made = PlannedCampaign(lost)
        monkeypatch.setattr("tuners.__main__.Campaign", made)
        monkeypatch.setattr("tuners.__main__.DeviceClient", NoRunner)
        monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
        output = ("--output", str(tmp_path / "out.jsonl"), "--cache-dir", str(tmp_path))
        return main([*output, *arguments]), made

    return planned


@pytest.mark.usefixtures("three_gpus")
def test_the_mode_is_the_devices_unless_it_is_asked_for(plan: Callable[..., Any]) -> None:
    for arguments, wanted in (
        ((), MeasurementPolicy("eager")),
        (("--device", "cuda"), MeasurementPolicy("graph")),
        (("--device", "cuda", "--mode", "eager"), MeasurementPolicy("eager")),
        (
            ("--device", "cuda", "--max-workspace", "32MiB"),
            MeasurementPolicy("graph", max_workspace_bytes=2**25),
        ),
    ):
        _, made = plan(*arguments)
        assert made.policy == wanted


@pytest.mark.usefixtures("three_gpus")
def test_a_device_is_named_by_index_or_uuid(plan: Callable[..., Any]) -> None:
    for arguments, wanted in (
        (("--device", "cuda"), 0),
        (("--device", "cuda", "--index", "2"), 2),
        (("--device", "GPU-1111"), 1),
    ):
        code, made = plan(*arguments)
        assert (code, made.runner.device.index) == (1, wanted), "the problem has no verdict"


def test_a_lost_device_is_exit_code_1_with_its_reason(
    plan: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = plan(lost=DeviceLost("the GPU has fallen off the bus"))
    assert code == 1
    told = capsys.readouterr().err
    assert "nn_32x16x48" in told, "what came before"
    assert "error: the GPU has fallen off the bus; what was measured is kept: run the same command" in told


def test_a_workspace_limit_that_is_no_size_is_bad_input(
    plan: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--max-workspace", "much")[0] == 2
    assert "--max-workspace must be bytes such as 33554432 or 32MiB, not 'much'" in capsys.readouterr().err
