"""The Compose file, by profile: valid by the specification's schema, and nothing has a right too many."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.docker.compose import config, variables
from tests.docker.recipe import COMPOSE, DOCKERFILE, EXACT, ROOT, stages

TEXT = COMPOSE.read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
PROFILES = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
OURS = {name for name, service in SERVICES.items() if service["image"].startswith("gemmtune-")}
WORKERS = OURS - {"migrate", "api"}
SCRIPT = ROOT / "docker" / "make-secrets.sh"


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
    broken.write_text(TEXT.replace("depends_on:", "depend_on:"))
    assert "depend_on" in _problems_of(broken)


def test_what_every_profile_resolves_to_is_valid(tmp_path: Path) -> None:
    """One call for all: the schema's program takes most of a second to start."""
    files = []
    for profile in sorted(PROFILES):
        file = tmp_path / f"{profile}.yaml"
        file.write_text(yaml.safe_dump(config(TEXT, {profile})))
        files.append(str(file))
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *files],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_profile_has_all_that_its_services_refer_to(profile: str) -> None:
    found = config(TEXT, {profile})
    assert len(found["services"]) > len(config(TEXT, ())["services"])
    for service in found["services"].values():
        assert set(service.get("depends_on", ())) <= found["services"].keys()
        assert set(service.get("secrets", ())) <= found["secrets"].keys()
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (COMPOSE.parent / source).exists()
            elif not source.startswith("/"):
                assert source in found["volumes"]
    assert "${" not in yaml.safe_dump(found)


def test_without_a_profile_there_is_no_worker() -> None:
    assert set(config(TEXT, ())["services"]) == {"database", "migrate", "api"}


def test_every_secret_and_volume_that_is_named_is_used() -> None:
    everything = config(TEXT, PROFILES)
    declared = yaml.safe_load(TEXT)
    assert everything["secrets"].keys() == declared["secrets"].keys()
    assert everything["volumes"].keys() == declared["volumes"].keys()


def test_the_text_lists_every_profile_and_variable() -> None:
    introduction = TEXT.partition("\nname:")[0]
    assert set(re.findall(r"[a-z]+(?:-\d)?", introduction)) >= PROFILES
    assert set(re.findall(r"[A-Z]+(?:_[A-Z0-9]+)+", introduction)) >= variables(TEXT) - {
        "CUDA_DEVICE_2", "CUDA_DEVICE_3",
    }  # fmt: skip


def test_a_variable_is_filled_in() -> None:
    chosen = config(TEXT, {"cuda"}, {"CUDA_DEVICE": "GPU-215a5e42", "GEMMTUNE_PORT": "81"})["services"]
    assert chosen["api"]["ports"] == ["127.0.0.1:81:8080"]
    (device,) = chosen["cuda"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "capabilities": ["gpu"], "device_ids": ["GPU-215a5e42"]}


# ---- images ------------------------------------------------------------------------------------


def test_images_are_exact_versions_or_built_from_the_dockerfile() -> None:
    for service in SERVICES.values():
        if "build" not in service:
            assert EXACT.match(service["image"])
            continue
        build = service["build"]
        assert (COMPOSE.parent / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == DOCKERFILE
        assert service["image"] == f"gemmtune-{build['target']}"
        assert build["target"] in stages(DOCKERFILE.read_text())


# ---- what is reachable, and what a container may do ---------------------------------------------


def test_ports_are_published_only_on_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"api", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_container_has_no_rights_to_lose(name: str) -> None:
    service = SERVICES[name]
    # PostgreSQL's image starts as root, gives itself its folder, and goes on as postgres.
    assert name == "database" or service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "privileged" not in service
    assert 0 < service["pids_limit"] <= 4096
    assert service["ulimits"]["nofile"]["soft"] >= 65536


def test_passwords_are_files_and_no_variables() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            assert "PASSWORD" not in key or str(value).startswith("/run/secrets/"), name
            assert "GEMMTUNE_DATABASE_URL" not in key
    for name in OURS:
        assert SERVICES[name]["environment"]["GEMMTUNE_SECRETS_DIR"] == "/run/secrets"
        assert "gemmtune_database_url" in SERVICES[name]["secrets"]


def test_the_script_writes_every_secret_once_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    for _ in range(2):  # the second run changes nothing
        subprocess.run(["bash", SCRIPT, folder], check=True, capture_output=True)
        found = {path.name: path.read_text() for path in folder.iterdir()}
        password = found["database_password"]
        assert re.fullmatch("[0-9a-f]{48}", password)
        assert found["database_url"] == f"postgresql://gemmtune:{password}@database/gemmtune"
        assert re.fullmatch("[0-9a-f]{48}", found["grafana_password"])
        assert found["grafana_password"] != password
        (folder / "prometheus_key").write_text("key")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir())
    assert found["prometheus_key"] == "key"
    declared = yaml.safe_load(TEXT)["secrets"].values()
    assert {secret["file"].rpartition("/")[2] for secret in declared} == found.keys()


# ---- the order of starting, and workers ---------------------------------------------------------


def test_the_schema_is_upgraded_once_before_anything_uses_the_database() -> None:
    ready = {"database": {"condition": "service_healthy"}}
    assert "healthcheck" in SERVICES["database"]
    assert SERVICES["migrate"]["depends_on"] == ready
    assert SERVICES["migrate"]["command"] == ["db", "upgrade"]
    assert SERVICES["migrate"]["restart"] == "no"
    for name in OURS - {"migrate"}:
        migrated = {"migrate": {"condition": "service_completed_successfully"}}
        assert SERVICES[name]["depends_on"] == ready | migrated
        assert SERVICES[name]["restart"] == "unless-stopped"


def test_workers_have_time_to_give_their_job_back_and_keep_their_kernels() -> None:
    for name in WORKERS:
        assert SERVICES[name]["stop_grace_period"] == "30s"
        assert any(row.endswith(":/var/cache/gemmtune") for row in SERVICES[name]["volumes"])


def test_each_gpu_worker_has_one_gpu_and_shares_the_locks_of_its_vendor() -> None:
    for vendor, count in (("cuda", 4), ("rocm", 2)):
        names = sorted(name for name in WORKERS if name.partition("-")[0] == vendor)
        assert len(names) == count
        assert {tuple(SERVICES[name]["profiles"]) for name in names} == {(name,) for name in names}
        assert len({str(SERVICES[name]["volumes"]) for name in names}) == 1
        found = [config(TEXT, names)["services"][name] for name in names]
        gpus = {str(one.get("deploy", one.get("devices"))) for one in found}
        assert len(gpus) == count


def test_every_setting_is_one_that_gemmtune_reads() -> None:
    known = {f"GEMMTUNE_{name.upper()}" for name in Settings.model_fields}
    in_compose = {name for service in SERVICES.values() for name in service.get("environment", {})}
    in_images = set(re.findall(r"GEMMTUNE_[A-Z_]+", DOCKERFILE.read_text()))
    assert {name for name in in_compose | in_images if name.startswith("GEMMTUNE_")} <= known


def test_the_page_on_deployment_names_settings_that_exist() -> None:
    known = {f"GEMMTUNE_{name.upper()}" for name in Settings.model_fields}
    of_compose = variables(TEXT)
    named = set(re.findall(r"GEMMTUNE_[A-Z_]+", (ROOT / "docs" / "deployment.md").read_text()))
    assert {name for name in of_compose if name.startswith("GEMMTUNE_")} <= named
    assert named <= known | of_compose
