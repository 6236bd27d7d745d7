"""The images' script that compiles the shipped portfolio, with a stand-in for the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.recipe import ROOT

GROUPS = [
    {"vendor": "cuda", "target": "sm_90"},
    {"vendor": "cuda", "target": "sm_80"},
    {"vendor": "cuda", "target": "sm_90"},
    {"vendor": "cpu", "target": "x86-64-v3"},
]


def run(folder: Path, vendor: str) -> tuple[str, list[str]]:
    """What the script printed, and the arguments of its calls of gemmtune that compile."""
    commands = folder / "bin"
    commands.mkdir()
    (commands / "python").symlink_to(sys.executable)
    shown, kept = folder / "groups.json", folder / "calls"
    shown.write_text(json.dumps({"groups": GROUPS}))
    gemmtune = f'if [ "$1" = portfolio ]; then cat {shown}; else echo "$@" >> {kept}; fi'
    for name, text in {"gemmtune": gemmtune, "chown": ""}.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "GEMMTUNE_CACHE_DIR": str(folder),
    }
    command = ["sh", str(ROOT / "docker" / "precompile.sh"), vendor]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout, kept.read_text().splitlines() if kept.exists() else []


@pytest.mark.parametrize(("vendor", "targets"), [("cuda", ["sm_80", "sm_90"]), ("cpu", ["x86-64-v3"])])
def test_every_target_of_the_vendor_is_compiled_once(tmp_path: Path, vendor: str, targets: list[str]) -> None:
    said, calls = run(tmp_path, vendor)
    assert calls == [f"kernels precompile --portfolio --arch {target}" for target in targets]
    assert said == ""


def test_a_vendor_without_members_is_told_why_and_what_to_do(tmp_path: Path) -> None:
    said, calls = run(tmp_path, "hip")
    assert calls == []
    assert "has none of hip\ndevices" in said
    assert "`gemmtune portfolio build --output FILE`" in said
    assert "GEMMTUNE_PORTFOLIO=FILE" in said
