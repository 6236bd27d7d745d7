"""The dashboard and the alert rules: they ask for metrics that the service has, and promtool's tests pass."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.metrics import Metrics
from service.store import WorkerCounts
from tests.docker.recipe import COMPOSE

FOLDER = Path(__file__).parents[2] / "docker" / "monitoring"
_NAME = re.compile(r"\bgemmtune_[a-z_]+")


def names_of_metrics() -> set[str]:
    """The names of every sample that the service can expose."""
    gauges = {
        "jobs": {"queued": 1}, "workers": {"idle": 1}, "queues": {"cpu": (1, 2.0)},
        "heartbeats": {("cpu", "one"): 1.0}, "counts": [("cpu", WorkerCounts().to_dict())],
        "outliers": {"cpu": 1},
    }  # fmt: skip
    process = {"event_streams": 0, "connections_in_use": 0, "failing_workers": 0}
    metrics = Metrics(lambda: gauges, lambda: process)
    metrics.observe("/", "GET", 200, 0.1)
    lines = metrics.text().decode().splitlines()
    return {match.group() for line in lines if (match := _NAME.match(line))}


def expressions() -> dict[str, str]:
    """Every query of the dashboard and of the rules, by where it is."""
    board: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    found = {f"{p['title']} {t['refId']}": t["expr"] for p in board["panels"] for t in p["targets"]}
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return found | {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


@pytest.mark.parametrize(("place", "query"), expressions().items())
def test_a_query_names_metrics_that_exist(place: str, query: str) -> None:
    asked = set(_NAME.findall(query))
    assert asked <= names_of_metrics(), place
    assert asked or query.startswith("up"), place


def test_every_metric_of_a_class_is_on_the_dashboard() -> None:
    shown = " ".join(expressions().values())
    missing = {name for name in names_of_metrics() if name not in shown}
    assert all(name.endswith(("_created", "_sum", "_count")) for name in missing - {"gemmtune_jobs"})


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "config", "--syntax-only", "prometheus.compose.yml"),  # its key is a file of the container
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_composes_prometheus_asks_the_api_and_grafana_asks_it() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    prometheus = yaml.safe_load((FOLDER / "prometheus.compose.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    (address,) = job["static_configs"][0]["targets"]
    name, _, port = address.partition(":")
    assert compose["services"][name]["ports"][0].endswith(f":{port}")
    assert name in compose["services"][name]["environment"]["GEMMTUNE_ALLOWED_HOSTS"]
    secret = Path(job["authorization"]["credentials_file"])
    assert secret.parent == Path("/run/secrets")
    assert secret.name in compose["services"]["prometheus"]["secrets"]
    assert all((FOLDER / name).exists() for name in prometheus["rule_files"])

    (source,) = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (board,) = yaml.safe_load((FOLDER / "grafana/dashboards/gemmtune.yml").read_text())["providers"]
    mounts = [row.split(":") for row in compose["services"]["grafana"]["volumes"]]
    assert ["./monitoring/dashboard.json", f"{board['options']['path']}/dashboard.json", "ro"] in mounts
