"""gemmtune selftest: the report's files, exit codes, and what stops it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Done

from backends import registry
from backends.cache import BinaryCache
from backends.errors import InvalidProblem, StorageError, UnknownDevice
from backends.registry import FoundDevice, find_device
from service import selftest_tuning
from service.cli import app
from service.commands import selftest as command
from service.device_lock import DeviceInUse, DeviceLock, locks_folder
from service.settings import Settings
from tests.service.loaded import ROOT
from tuners.selftest import calls, candidates, timing
from tuners.selftest.report import Report, Section

NAMES = ["probe", "contract", "timing", "tuning", "libraries", "kernels"]


@pytest.fixture(autouse=True)
def home(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Its working folder, with the compiled kernels of this test run."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "kernels").symlink_to(cache.root.resolve())
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> Done:
    return CliRunner().invoke(app, ["selftest", *arguments])


def report(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few problems, candidates and samples."""
    monkeypatch.setattr(candidates, "PROBLEMS", 2)
    monkeypatch.setattr(candidates, "TYPES", ("fp32", "fp16"))
    monkeypatch.setattr(timing, "SAMPLES", 3)
    monkeypatch.setattr(candidates, "KERNELS", 1)
    monkeypatch.setattr(selftest_tuning, "CANDIDATES", 3)
    monkeypatch.setattr(selftest_tuning, "SECONDS", 0.3)


def test_every_part_has_a_section_and_both_files_say_the_same(home: Path, short: None) -> None:
    families = ("--family", "openblas_upcast", "--family", "stream")
    done = call("--device", "cpu", "--seconds", "60", "--out", "mine.json", *families)
    assert done.exit_code == 0, done.output
    found = report(home / "mine.json")
    assert [section["name"] for section in found["sections"]] == NAMES
    assert (found["status"], found["complete"], found["interrupted"]) == ("pass", True, False)
    assert found["device_class"] == str(find_device("cpu").environment.device_class)
    by_name = {section["name"]: section for section in found["sections"]}
    assert [check["name"] for check in by_name["tuning"]["checks"]] == [
        "tuned", "stored", "exported", "read back", "imported"
    ]  # fmt: skip
    assert by_name["libraries"]["figures"]["solutions"]["openblas_upcast"]["fp16"]["TN"] > 0
    assert by_name["kernels"]["figures"]["families"]["stream"]["ok"] >= 1
    text = (home / "mine.txt").read_text()
    assert text.startswith("gemmtune self-test: PASS\n")
    assert all(section["title"] in text for section in found["sections"])
    assert done.stdout.startswith("gemmtune self-test: PASS\n")
    assert "written: mine.json and mine.txt" in done.stdout


def test_a_wrong_library_is_exit_code_1_and_in_both_files(
    home: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "cpu", "tests.tuners.selftest_backend:SelfTestBackend")
    done = call("--seconds", "40", "--family", "planted-library")
    assert done.exit_code == 1
    files = sorted(path.name for path in home.glob("gemmtune-selftest-*"))
    assert files == ["gemmtune-selftest-cpu.json", "gemmtune-selftest-cpu.txt"]
    found = report(home / files[0])
    assert (found["status"], found["complete"]) == ("fail", True)
    assert "FAILED planted-library: wrong_result: " in (home / files[1]).read_text()
    assert "FAILED planted-library: wrong_result: " in done.stdout
    assert found["sections"][3]["status"] == "pass", "the wrong candidate wins no tuning"
    assert found["sections"][-1]["name"] == "kernels", "the parts after it ran"


def test_without_the_device_the_report_says_what_the_probe_found(
    home: Path, three_gpus: None, capsys: pytest.CaptureFixture[str]
) -> None:
    done = call("--device", "hip")
    assert isinstance(done.exception, UnknownDevice), "main() ends with exit code 2"
    assert "no driver on this machine (libfake.so is not found)" in str(done.exception)
    found = report(home / "gemmtune-selftest-hip.json")
    assert (found["status"], found["device_class"]) == ("absent", None)
    assert found["notes"] == ["hip: no driver on this machine (libfake.so is not found)"]
    assert [section["name"] for section in found["sections"]] == NAMES
    assert {section["status"] for section in found["sections"]} == {"absent"}
    text = (home / "gemmtune-selftest-hip.txt").read_text()
    assert text.startswith("gemmtune self-test: ABSENT\n")
    assert "libfake.so is not found" in text


def test_ctrl_c_writes_what_there_is(home: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "selftest",
        "--device",
        "cpu",
        "--out",
        str(home / "mine"),
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(600):
        if (home / "mine.json").exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    found = report(home / "mine.json")
    assert (found["complete"], found["interrupted"]) == (False, True)
    assert [section["name"] for section in found["sections"]] == NAMES
    assert found["sections"][0]["status"] == "pass"
    assert found["sections"][-1]["checks"][0]["detail"] == "not run: interrupted"
    assert out.startswith("gemmtune self-test: PASS, INCOMPLETE\n")


# ---- bad input -----------------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_is_refused_at_once(home: Path) -> None:
    done = call("--device", "cpu", "--out", str(home / "no" / "folder"))
    assert isinstance(done.exception, StorageError)
    assert str(done.exception).startswith(f"cannot write {home / 'no' / 'folder.json'}: ")


def test_a_folder_in_the_files_place_is_refused_at_once(home: Path) -> None:
    (home / "mine.txt").mkdir()
    done = call("--device", "cpu", "--out", "mine")
    assert isinstance(done.exception, StorageError)
    assert str(done.exception) == "cannot write mine.txt: it is a folder; name another file"


def test_an_unknown_family_is_refused_with_the_known_ones(home: Path) -> None:
    done = call("--device", "cpu", "--family", "nobody")
    assert isinstance(done.exception, InvalidProblem)
    assert "family 'nobody' is unknown to cpu; known: stream, packed" in str(done.exception)


def test_a_device_in_use_is_refused(home: Path) -> None:
    device: FoundDevice = find_device("cpu")
    with DeviceLock(locks_folder(Settings()), device):
        done = call("--device", "cpu")
    assert isinstance(done.exception, DeviceInUse)
    assert not (home / "gemmtune-selftest-cpu.json").exists()


def test_the_contract_and_the_reference_have_names_that_do_not_change() -> None:
    """They are part of the report's format."""
    assert list(calls.CONTRACT) == [
        "the opened device is the probed one", "memory keeps what is written", "sizes of memory and cache",
        "too large an allocation is refused", "a device beyond the last is refused",
        "an unknown family is refused",
    ]  # fmt: skip


def test_a_number_that_json_does_not_have_is_null(home: Path) -> None:
    made = Report({"version": None, "commit": None, "python": "3.11"}, "cpu", 1.0)
    made.sections.append(Section("kernels", "Kernel families", {"errors": [float("inf"), 1.5]}))
    command._save(made, [home / "x.json", home / "x.txt"])
    assert report(home / "x.json")["sections"][0]["figures"] == {"errors": [None, 1.5]}
