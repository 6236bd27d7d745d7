"""The image's recipe, the Compose file and the pinned versions, read as files: nothing is built here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from service.settings import Settings
from tests.docker.recipe import (
    COMPOSE,
    CONSTRAINTS,
    DOCKERFILE,
    IGNORE,
    ROOT,
    base_image,
    copied,
    instructions,
    let_in,
    lineage,
)

RECIPE = DOCKERFILE.read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
TARGETS = ("api", "worker")
#: registry/folder/name:tag, the tag with a version of two numbers at least: `3`, `latest` move.
EXACT = re.compile(r"^[a-z0-9.-]+(/[a-z0-9._-]+)+:\d+(\.\d+)+(-[a-z0-9.-]+)?(@sha256:[0-9a-f]{64})?$")


# ---- the Dockerfile ----------------------------------------------------------------------------


def test_the_base_is_an_exact_version_of_the_pythons_that_the_project_allows() -> None:
    image = base_image(RECIPE)
    assert EXACT.match(image)
    version = image.rpartition(":")[2].partition("-")[0]
    assert version.count(".") == 2
    assert Requirement(f"python{PROJECT['project']['requires-python']}").specifier.contains(version)


def test_every_stage_starts_from_the_base_or_from_another_stage() -> None:
    known = {"${PYTHON_IMAGE}"}
    for row in instructions(RECIPE):
        if row.name == "FROM":
            source, word, name = row.words
            assert source in known
            assert word == "AS"
            known.add(name)
    assert known >= set(TARGETS)


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


def test_the_version_on_the_label_is_the_projects() -> None:
    versions = [i.text.partition("=")[2] for i in instructions(RECIPE) if i.text.startswith("VERSION=")]
    assert versions == [PROJECT["project"]["version"]]


def test_only_the_worker_has_a_compiler() -> None:
    installs = {t: [i for i in lineage(RECIPE, t) if "apt-get install" in i.text] for t in TARGETS}
    assert not installs["api"]
    (install,) = installs["worker"]
    assert "--no-install-recommends g++" in install.text
    assert "rm -rf /var/lib/apt/lists/*" in install.text


def test_pip_installs_pinned_versions_and_keeps_no_cache() -> None:
    runs = [i.text for i in instructions(RECIPE) if "pip install" in i.text]
    assert len(runs) == 2
    for run in runs:
        assert "--no-cache-dir" in run
        assert "--constraint constraints.txt" in run or "--no-index" in run


def test_every_package_of_the_project_is_in_the_image() -> None:
    folders = {name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    files = {"LICENSE", "pyproject.toml", "README.md", "docker/constraints.txt"}
    assert copied(RECIPE) == folders | files


# ---- the build context -------------------------------------------------------------------------


def test_the_context_is_what_the_dockerfile_copies_and_nothing_else() -> None:
    rows = [row for row in IGNORE.read_text().splitlines() if row and not row.startswith("#")]
    assert rows[0] == "*"  # so .git, .venv, tests, results and secrets stay out, whatever they are called
    assert let_in(IGNORE.read_text()) == copied(RECIPE)
    assert "**/__pycache__" in rows


# ---- pinned versions ---------------------------------------------------------------------------


def _pins() -> dict[str, Version]:
    rows = [row for row in CONSTRAINTS.read_text().splitlines() if row and not row.startswith("#")]
    pins: dict[str, Version] = {}
    for row in rows:
        name, equals, version = row.partition("==")
        assert equals, f"{row} is no exact version"
        pins[canonicalize_name(name)] = Version(version)
    assert len(pins) == len(rows)
    return pins


def test_every_pin_is_within_the_projects_bounds() -> None:
    pins = _pins()
    for text in [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]:
        needed = Requirement(text)
        name = canonicalize_name(needed.name)
        assert name in pins, f"{text}: run docker/update-constraints.sh"
        assert needed.specifier.contains(pins[name]), f"{text}, but {pins[name]} is pinned"


def test_what_the_dependencies_need_is_pinned_too() -> None:
    pins = _pins()
    seen: set[str] = set()
    waiting = [(text, "") for text in PROJECT["project"]["dependencies"]]
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


# ---- the Compose file --------------------------------------------------------------------------


def _problems_of(file: Path) -> str:
    """What the schema of the Compose specification says against a file; empty where it is valid."""
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)],
        env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_compose_file_is_valid(tmp_path: Path) -> None:
    assert not _problems_of(COMPOSE)
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace("depends_on:", "depend_on:"))
    assert "depend_on" in _problems_of(broken)


def test_images_are_exact_versions_or_built_from_the_dockerfile() -> None:
    for service in SERVICES.values():
        if "build" not in service:
            assert EXACT.match(service["image"])
            continue
        build = service["build"]
        assert (COMPOSE.parent / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == DOCKERFILE
        assert service["image"] == f"gemmtune-{build['target']}"
        assert build["target"] in TARGETS


def test_the_schema_is_upgraded_once_before_anything_uses_the_database() -> None:
    ready = {"database": {"condition": "service_healthy"}}
    assert "healthcheck" in SERVICES["database"]
    assert SERVICES["migrate"]["depends_on"] == ready
    assert SERVICES["migrate"]["command"] == ["db", "upgrade"]
    assert SERVICES["migrate"]["restart"] == "no"
    for name in ("api", "worker"):
        migrated = {"migrate": {"condition": "service_completed_successfully"}}
        assert SERVICES[name]["depends_on"] == ready | migrated
        assert SERVICES[name]["restart"] == "unless-stopped"


def test_only_the_api_is_published_and_only_on_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["api"]
    assert all(port.startswith("127.0.0.1:") for port in published["api"])


def test_our_containers_have_no_rights_to_lose() -> None:
    for name in ("migrate", "api", "worker"):
        service = SERVICES[name]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True
        assert "privileged" not in service


def test_every_volume_that_is_named_is_used() -> None:
    used = {row.partition(":")[0] for service in SERVICES.values() for row in service.get("volumes", [])}
    assert {name for name in used if not name.startswith("/")} == set(
        yaml.safe_load(COMPOSE.read_text())["volumes"]
    )


# ---- names -------------------------------------------------------------------------------------


def test_every_setting_is_one_that_gemmtune_reads() -> None:
    known = {f"GEMMTUNE_{name.upper()}" for name in Settings.model_fields}
    in_compose = {name for service in SERVICES.values() for name in service.get("environment", {})}
    in_images = set(re.findall(r"GEMMTUNE_[A-Z_]+", RECIPE))
    assert {name for name in in_compose | in_images if name.startswith("GEMMTUNE_")} <= known


def test_the_page_on_deployment_names_settings_that_exist() -> None:
    known = {f"GEMMTUNE_{name.upper()}" for name in Settings.model_fields}
    of_compose = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE.read_text()))
    named = set(re.findall(r"GEMMTUNE_[A-Z_]+", (ROOT / "docs" / "deployment.md").read_text()))
    assert of_compose <= named
    assert named <= known | of_compose
