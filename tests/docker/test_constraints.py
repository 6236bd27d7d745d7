"""The pinned versions of the images: within the project's bounds, complete, and on PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from backends.toolchains.triton import LINE
from tests.docker.recipe import CONSTRAINTS, CUDA_CONSTRAINTS, ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
BUILD: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
ON_CUDA = [*EXTRAS["cuda"], *EXTRAS["triton"], *EXTRAS["torch"], *EXTRAS["heuristics"]]


def _pins(file: Path) -> dict[str, Version]:
    rows = [row for row in file.read_text().splitlines() if row and not row.startswith("#")]
    pins: dict[str, Version] = {}
    for row in rows:
        name, equals, version = row.partition("==")
        assert equals, f"{row} is no exact version"
        pins[canonicalize_name(name)] = Version(version)
    assert len(pins) == len(rows)
    return pins


@pytest.mark.parametrize(
    ("file", "needed"),
    [
        (CONSTRAINTS, [*PROJECT["dependencies"], *BUILD]),
        (CUDA_CONSTRAINTS, [*PROJECT["dependencies"], *ON_CUDA]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_every_pin_is_within_the_projects_bounds(file: Path, needed: list[str]) -> None:
    pins = _pins(file)
    for text in needed:
        one = Requirement(text)
        name = canonicalize_name(one.name)
        assert name in pins, f"{text}: run docker/update-constraints.sh"
        assert one.specifier.contains(pins[name]), f"{text}, but {pins[name]} is pinned"


@pytest.mark.parametrize("file", [CONSTRAINTS, CUDA_CONSTRAINTS], ids=lambda file: file.name)
def test_what_the_dependencies_need_is_pinned_too(file: Path) -> None:
    pins = _pins(file)
    seen: set[str] = set()
    waiting = [(text, "") for text in PROJECT["dependencies"]]
    while waiting:
        text, extra = waiting.pop()
        needed = Requirement(text)
        if needed.marker and not needed.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(needed.name)
        assert name in pins, f"{name} is not pinned: run docker/update-constraints.sh"
        for wanted in {"", *needed.extras}:
            if f"{name}[{wanted}]" not in seen:
                seen.add(f"{name}[{wanted}]")
                waiting += [(text, wanted) for text in metadata.requires(name) or []]


def test_the_cuda_image_has_the_other_images_versions() -> None:
    ours, cuda = _pins(CONSTRAINTS), _pins(CUDA_CONSTRAINTS)
    assert {name: version for name, version in cuda.items() if name in ours and name != "setuptools"} == {
        name: version for name, version in ours.items() if name != "setuptools"
    }


def test_the_cuda_image_has_a_torch_with_cuda_and_the_triton_that_compiles_our_kernels() -> None:
    pins = _pins(CUDA_CONSTRAINTS)
    assert pins["torch"].local is None  # builds of other indices are +cpu, +cu130
    assert str(pins["triton"]).startswith(LINE)
    assert pins["nvidia-cublas"].major == pins["nvidia-cuda-nvrtc"].major == pins["cuda-toolkit"].major == 13
    assert "cuda-toolkit" in pins  # the names of versions that belong together; it holds no toolkit


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", [CONSTRAINTS, CUDA_CONSTRAINTS], ids=lambda file: file.name)
def test_pip_finds_every_pin_and_no_conflict(file: Path, tmp_path: Path) -> None:
    """Of PyPI's metadata alone: no wheel is downloaded or installed."""
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
         "--dry-run", "--ignore-installed", "--only-binary=:all:", f"--report={report}", "-r", str(file)],
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
