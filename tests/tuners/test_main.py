"""The bare node: JSON lines in and out, in a process that may import nothing of the service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from backends.cache import BinaryCache

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
        "--cache-dir",
        str(cache.root),
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
    assert "above 0 seconds" in done.stderr
