"""The Dockerfile and the build's context, read as files: nothing is built here.

The suites cannot build the images of GPUs whole: their wheels are gigabytes, and AMD's base is in a registry.
What can be checked without a build is checked here, by these rules and by hadolint.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.docker.recipe import (
    DOCKERFILE,
    EXACT,
    IGNORE,
    ROOT,
    base_images,
    copied,
    instructions,
    let_in,
    lineage,
    stages,
)

RECIPE = DOCKERFILE.read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = ("api", "worker", "cuda", "rocm")
BUILDERS = {"api": "builder", "worker": "builder", "cuda": "cuda-builder", "rocm": "rocm-builder"}


def _hadolint(file: Path) -> str:
    """What hadolint says against a file; empty where it is accepted."""
    # DL3008: versions of Debian's packages go out of its archive; the base image's version fixes the release.
    program = Path(sys.executable).parent / "hadolint"
    command = [str(program), "--no-color", "--failure-threshold=style", "--ignore=DL3008", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_hadolint_accepts_it(tmp_path: Path) -> None:
    assert not _hadolint(DOCKERFILE)
    broken = tmp_path / "Dockerfile"
    broken.write_text(RECIPE.replace("FROM ${PYTHON_IMAGE} AS base", "FROM debian AS base"))
    assert "DL3006" in _hadolint(broken)


# ---- base images -------------------------------------------------------------------------------


def test_every_base_image_is_an_exact_version() -> None:
    found = base_images(RECIPE)
    assert found.keys() == {"PYTHON_IMAGE", "ROCM_IMAGE"}
    assert all(EXACT.match(image) for image in found.values())


def test_the_python_is_one_that_the_project_allows() -> None:
    version = base_images(RECIPE)["PYTHON_IMAGE"].partition(":")[2].partition("-")[0]
    assert version.count(".") == 2
    assert Requirement(f"python{PROJECT['project']['requires-python']}").specifier.contains(version)


def test_every_stage_starts_from_a_base_or_from_another_stage() -> None:
    known = {f"${{{name}}}" for name in base_images(RECIPE)}
    for row in instructions(RECIPE):
        if row.name == "FROM":
            source, word, name = row.words
            assert source in known
            assert word == "AS"
            known.add(name)
        elif row.name == "COPY" and row.text.startswith("--from="):
            assert row.words[0].partition("=")[2] in known
    assert known >= set(TARGETS)


def test_the_default_target_is_the_api() -> None:
    assert list(stages(RECIPE))[-1] == "api"


# ---- what an image is --------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_a_container_runs_as_a_user_with_fixed_ids_and_no_rights(target: str) -> None:
    rows = lineage(RECIPE, target)
    (user,) = [i.text for i in rows if i.name == "USER"]
    assert re.fullmatch(r"(\d{4,}):\1", user)
    assert any(f"--uid {user.partition(':')[0]}" in i.text for i in rows if i.name == "RUN")
    assert rows[-1].name == "CMD"  # nothing is done as another user afterwards
    assert [i.name for i in rows].index("USER") > max(n for n, i in enumerate(rows) if i.name == "RUN")


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_says_how_to_run_stop_and_keep_it(target: str) -> None:
    rows = {i.name: i for i in lineage(RECIPE, target)}
    assert rows["ENTRYPOINT"].words == ["gemmtune"]
    assert rows["STOPSIGNAL"].text == "SIGTERM"
    assert rows["VOLUME"].words == ["/var/lib/gemmtune", "/var/cache/gemmtune"]
    assert "HEALTHCHECK" in rows
    assert "org.opencontainers.image.revision" in rows["LABEL"].text


@pytest.mark.parametrize("name", ["LABEL", "ARG", "WORKDIR", "STOPSIGNAL", "ENTRYPOINT"])
def test_the_image_on_amds_base_is_set_up_as_the_others(name: str) -> None:
    own, base = ([i.text for i in stages(RECIPE)[stage] if i.name == name] for stage in ("rocm", "base"))
    assert own == base


def test_the_image_on_amds_base_has_the_same_user_and_environment() -> None:
    own, base = stages(RECIPE)["rocm"], stages(RECIPE)["base"]
    for name, word in (("RUN", "useradd"), ("ENV", "GEMMTUNE_CACHE_DIR"), ("COPY", "precompile.sh")):
        assert [i.text for i in own if i.name == name and word in i.text] == [
            i.text for i in base if i.name == name and word in i.text
        ]


def test_the_version_on_the_label_is_the_projects() -> None:
    versions = [i.text.partition("=")[2] for i in instructions(RECIPE) if i.text.startswith("VERSION=")]
    assert set(versions) == {PROJECT["project"]["version"]}


@pytest.mark.parametrize(("target", "device"), [("worker", "cpu"), ("cuda", "cuda"), ("rocm", "hip")])
def test_a_worker_brings_the_portfolios_kernels_of_its_device(target: str, device: str) -> None:
    rows = lineage(RECIPE, target)
    assert rows[-1].words == ["worker", "--device", device]
    names = [f"{i.name} {i.text}" for i in rows]
    filled = names.index(f"RUN gemmtune-precompile {device}")
    assert filled < [i.name for i in rows].index("VOLUME")  # a new volume is filled from the image's folder


def test_only_the_cpu_worker_has_a_compiler_of_the_hosts() -> None:
    installs = {t: [i for i in lineage(RECIPE, t) if "apt-get install" in i.text] for t in TARGETS}
    assert not installs["api"]
    assert not installs["cuda"]
    assert [" g++" in i.text for i in installs["rocm"]] == [False]
    (install,) = installs["worker"]
    assert "--no-install-recommends g++" in install.text


def test_packages_of_debian_leave_no_lists() -> None:
    for row in instructions(RECIPE):
        if "apt-get install" in row.text:
            assert "--no-install-recommends" in row.text
            assert "rm -rf /var/lib/apt/lists/*" in row.text


def test_pip_installs_pinned_versions_and_keeps_no_cache() -> None:
    runs = [i.text for i in instructions(RECIPE) if "pip install" in i.text or "pip wheel" in i.text]
    assert len(runs) == 8
    for run in runs:
        assert "--no-cache-dir" in run
        assert "--constraint constraints" in run or "--no-index" in run


@pytest.mark.parametrize(("target", "builder"), BUILDERS.items())
def test_an_environment_has_the_wheel_and_no_pip(target: str, builder: str) -> None:
    assert f"--from={builder} /opt/gemmtune /opt/gemmtune" in [i.text for i in lineage(RECIPE, target)]
    rows = [i.text for i in stages(RECIPE)[builder]]
    assert "--from=wheel /wheels /wheels" in rows
    assert re.search(r"pip uninstall --yes (setuptools )?pip$", rows[-1])
    pins = "constraints-cuda.txt" if target == "cuda" else "constraints.txt"
    assert any(f"--constraint {pins} " in row for row in rows)


def test_every_package_of_the_project_is_in_the_image() -> None:
    folders = {name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    files = {"LICENSE", "pyproject.toml", "README.md"}
    ours = {"docker/constraints.txt", "docker/constraints-cuda.txt", "docker/precompile.sh"}
    assert copied(RECIPE) == folders | files | ours


# ---- the build context -------------------------------------------------------------------------


def test_the_context_is_what_the_dockerfile_copies_and_nothing_else() -> None:
    rows = [row for row in IGNORE.read_text().splitlines() if row and not row.startswith("#")]
    assert rows[0] == "*"  # so .git, .venv, tests, results and secrets stay out, whatever they are called
    assert let_in(IGNORE.read_text()) == copied(RECIPE)
    assert "**/__pycache__" in rows
