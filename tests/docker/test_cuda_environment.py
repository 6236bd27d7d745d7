"""docker/cuda-environment.sh: which wheels it carries, and that a folder made of wheels runs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.docker.recipe import CUDA_CONSTRAINTS, ROOT

SCRIPT = ROOT / "docker" / "cuda-environment.sh"


def _run(*arguments: str | Path, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A pure wheel of some files."""
    meta = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{meta}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{meta}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content[f"{meta}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{meta}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, words in content.items():
            file.writestr(path, words)


def test_torch_and_cudas_libraries_are_left_to_the_machine() -> None:
    pins = {row for row in CUDA_CONSTRAINTS.read_text().splitlines() if not row.startswith("#")}
    assert set(_run("list", "--all").stdout.split()) == pins
    carried = {row.partition("==")[0] for row in _run("list").stdout.split()}
    assert carried >= {
        "cuda-bindings",
        "nvmath-python",
        "nvidia-ml-py",
        "nvidia-matmul-heuristics",
        "numpy",
        "dbos",
    }
    assert not carried & {"torch", "triton", "nvidia-cublas", "nvidia-cuda-nvrtc", "cuda-toolkit", "sympy"}


def test_a_folder_of_wheels_is_installed_run_and_compared(tmp_path: Path) -> None:
    wheels, target = tmp_path / "wheels", tmp_path / "a target"
    wheels.mkdir()
    entry = "import sys, needed\nprint(needed.VALUE, *sys.argv[1:])\n"
    _wheel(wheels, "gemmtune", "0.1.0", {"service/__init__.py": "", "service/entry.py": entry})
    _wheel(wheels, "needed", "2.0", {"needed.py": "VALUE = 7\n"})
    (wheels / "cuda-environment.sh").write_text(SCRIPT.read_text())
    (wheels / "constraints-cuda.txt").write_text("# pins\nneeded==2.0\nlater==1.0\n")
    script = wheels / "cuda-environment.sh"

    done = _run("install", wheels, target, script=script)
    assert done.returncode == 0, done.stderr
    said = subprocess.run([target / "gemmtune", "tune", "it"], capture_output=True, text=True, check=False)
    assert said.stdout == "7 tune it\n", said.stderr

    done = _run("check", target, script=script)
    assert done.returncode == 1
    assert done.stdout == "later: missing; the image has 1.0\n1 packages differ from the image's\n"


@pytest.mark.parametrize("arguments", [(), ("instal", "x", "y"), ("install", "x")])
def test_what_it_does_not_understand_is_answered_with_its_use(arguments: tuple[str, ...]) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert "cuda-environment.sh install FOLDER TARGET" in done.stderr
