"""What every benchmark writes says what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from tests.benchmarks.gpus import gpu


def test_without_a_repository_the_commit_is_the_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMTUNE_COMMIT", "0123abc")
    assert report.commit() == "0123abc"
    monkeypatch.delenv("GEMMTUNE_COMMIT")
    assert report.commit() == "unknown"


def test_without_git_the_commit_is_the_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("GEMMTUNE_COMMIT", "0123abc")
    assert report.commit() == "0123abc"


def test_several_devices_are_all_named(tmp_path: Path) -> None:
    path = report.write("x", [gpu(0).environment, gpu(1).environment], {"rows": [1]}, tmp_path / "made")
    document = json.loads(path.read_text())
    assert document["environment"]["uuid"] == "GPU-0"
    assert [one["uuid"] for one in document["environments"]] == ["GPU-0", "GPU-1"]
    assert document["rows"] == [1]
    assert document["commit"]
    assert document["command"].startswith("python -m benchmarks.")


def test_a_command_has_no_places_of_one_machine_and_no_password() -> None:
    given = ["/x/benchmarks/api.py", "near", "--folder", "/x/y", "--postgres", "postgresql://u:p@h/n"]
    assert report.command([*given, "--rows", "9"]) == (
        "python -m benchmarks.api near --postgres URL --rows 9"
    )
    written = ["/x/benchmarks/cpu.py", "load", "--output", "/x"]
    assert report.command(written) == "python -m benchmarks.cpu load"
