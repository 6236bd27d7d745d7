"""The example for Kubernetes: valid by Kubernetes' own schema, allowed by the restricted Pod Security
Standard, and consistent with the images. Nothing here runs a cluster."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.docker.kubernetes_schema import ASSET, KINDS, problems
from tests.docker.recipe import DOCKERFILE, ROOT, lineage

FOLDER = ROOT / "docker" / "kubernetes"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEFINITIONS: dict[str, Any] = json.loads(ASSET.read_text())
DOCUMENTS: dict[str, dict[str, Any]] = {
    f"{file.name}: {one['kind']} {one['metadata']['name']}": one
    for file in sorted(FOLDER.glob("*.yaml"))
    for one in yaml.safe_load_all(file.read_text())
}
PODS = {
    name: one["spec"]["template"]
    for name, one in DOCUMENTS.items()
    if one["kind"] in ("Deployment", "DaemonSet", "Job")
}
CONTAINERS = {
    f"{name}, {container['name']}": container
    for name, pod in PODS.items()
    for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
}


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in DOCUMENTS.values() if one["kind"] == kind]


# ---- the schema --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_valid(name: str) -> None:
    assert not problems(DOCUMENTS[name], DEFINITIONS)


def test_the_schema_finds_faults() -> None:
    server = copy.deepcopy(next(one for one in of_kind("Deployment")))
    server["spec"]["replicas"] = "two"
    server["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFilesystem"] = True
    del server["spec"]["selector"]
    found = " ".join(problems(server, DEFINITIONS))
    assert "spec.replicas" in found
    assert "'readOnlyRootFilesystem' was unexpected" in found
    assert "'selector' is a required property" in found
    assert problems({"apiVersion": "v1", "kind": "Pods"}, DEFINITIONS)


def test_every_kind_of_the_asset_is_used() -> None:
    assert {f"{one['apiVersion']} {one['kind']}" for one in DOCUMENTS.values()} == KINDS.keys()


# ---- the restricted Pod Security Standard ------------------------------------------------------


def test_the_namespace_enforces_the_restricted_standard() -> None:
    (namespace,) = of_kind("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [one for one in DOCUMENTS.values() if one["kind"] != "Namespace"]
    assert {one["metadata"]["namespace"] for one in others} == {namespace["metadata"]["name"]}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_allowed_by_the_restricted_standard(name: str) -> None:
    spec = PODS[name]["spec"]
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
    assert kinds <= {"emptyDir", "secret"}
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_has_no_rights_and_limits(name: str) -> None:
    container = CONTAINERS[name]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}


# ---- what belongs together ---------------------------------------------------------------------


@pytest.mark.parametrize("name", PODS)
def test_a_pod_runs_as_the_images_user(name: str) -> None:
    context = PODS[name]["spec"]["securityContext"]
    (user,) = [i.text for i in lineage(DOCKERFILE.read_text(), "api") if i.name == "USER"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert context["fsGroup"] == context["runAsGroup"]  # the secrets' files are readable by the group alone


@pytest.mark.parametrize("name", CONTAINERS)
def test_an_image_is_one_of_ours_and_an_exact_version(name: str) -> None:
    match = re.fullmatch(
        r"registry\.example\.org/gemmtune-(api|worker|cuda|rocm):(\d+\.\d+\.\d+)", CONTAINERS[name]["image"]
    )
    assert match
    assert lineage(DOCKERFILE.read_text(), match.group(1))
    assert match.group(2) == PROJECT["version"]


@pytest.mark.parametrize("name", PODS)
def test_secrets_are_files_that_exist(name: str) -> None:
    secrets = {one["metadata"]["name"]: one["stringData"] for one in of_kind("Secret")}
    volumes = {one["name"]: one for one in PODS[name]["spec"]["volumes"]}
    assert secrets[volumes["secrets"]["secret"]["secretName"]].keys() == {"gemmtune_database_url", "ca.pem"}
    assert volumes["secrets"]["secret"]["defaultMode"] == 0o440
    for container in PODS[name]["spec"]["containers"]:
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == volumes.keys()
        environment = {row["name"]: row["value"] for row in container["env"]}
        assert environment["GEMMTUNE_SECRETS_DIR"] == mounts["secrets"]
        assert environment.keys() <= {f"GEMMTUNE_{field.upper()}" for field in Settings.model_fields}


def test_each_kind_of_process_has_a_database_role_of_its_own() -> None:
    roles = {
        one["metadata"]["name"]: one["stringData"]["gemmtune_database_url"].partition(":")[2]
        for one in of_kind("Secret")
    }
    page = (ROOT / "docs" / "deployment.md").read_text()
    for secret, url in roles.items():
        role = secret.replace("-", "_")
        assert url.startswith(f"//{role}:REPLACE@")
        assert f"CREATE ROLE {role} LOGIN" in page
        assert "sslmode=verify-full&sslrootcert=/run/secrets/gemmtune/ca.pem" in url


@pytest.mark.parametrize("name", PODS)
def test_selectors_find_their_pods(name: str) -> None:
    labels = PODS[name]["metadata"]["labels"]
    assert DOCUMENTS[name]["spec"].get("selector", {"matchLabels": labels}) == {"matchLabels": labels}


def test_the_service_and_the_policy_find_the_server() -> None:
    (deployment,) = of_kind("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (service,) = of_kind("Service")
    assert service["spec"]["selector"] == labels
    (port,) = deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert of_kind("PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"] == labels
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind("NetworkPolicy")}
    assert policies["gemmtune-default"]["podSelector"] == {}  # every pod, workers too
    assert "ingress" not in policies["gemmtune-default"]
    assert policies["gemmtune-server"]["podSelector"]["matchLabels"] == labels
    assert policies["gemmtune-server"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": port["name"]}]


@pytest.mark.parametrize(("device", "resource"), [("cuda", "nvidia.com/gpu"), ("hip", "amd.com/gpu")])
def test_a_gpu_worker_asks_for_one_gpu(device: str, resource: str) -> None:
    (pod,) = [
        one["spec"]["template"]["spec"] for one in of_kind("DaemonSet")
        if one["spec"]["template"]["spec"]["containers"][0]["args"] == ["worker", "--device", device]
    ]  # fmt: skip
    for container in pod["containers"]:
        assert container["resources"]["limits"][resource] == 1
    assert [one["key"] for one in pod["tolerations"]] == [resource]
    assert pod["terminationGracePeriodSeconds"] >= 30


def test_probes_ask_pages_that_need_no_key() -> None:
    (deployment,) = of_kind("Deployment")
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    paths = {key: probe["httpGet"]["path"] for key, probe in server.items() if key.endswith("Probe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert "args" not in server  # the image's: serve --host 0.0.0.0 --port 8080 --no-worker
