"""Devices, environments and backends."""

from __future__ import annotations

import httpx
import pytest

from backends import registry
from service import answers, records
from service.settings import Settings
from tests.service.http.filled import CLASS, ENVIRONMENT, GPU, OTHER_CPU
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits


def test_classes_and_workers(filled: httpx.Client) -> None:
    found = fits(records.Devices, filled.get("/v1/devices"))
    classes = {one["id"]: one for one in found["classes"]}
    assert set(classes) == {CLASS, str(GPU.device_class), str(OTHER_CPU.device_class)}
    assert (classes[CLASS]["units"], classes[CLASS]["workers"], classes[CLASS]["environments"]) == (2, 1, 1)
    assert classes[CLASS]["revision"] > 0
    assert {worker["status"] for worker in found["workers"]} == {"idle"}
    assert [worker["device_uuid"] for worker in found["workers"]] == ["CPU-2", "GPU-1", "CPU-1"]


def test_environments(filled: httpx.Client) -> None:
    page = fits(answers.Paged[records.Environment], filled.get("/v1/environments?limit=2"))
    assert [one["id"] for one in page["items"]] == [ENVIRONMENT.id, GPU.id]
    assert page["items"][1]["environment"] == GPU.to_dict()
    rest = filled.get("/v1/environments", params={"cursor": page["next_cursor"]}).json()
    assert [one["id"] for one in rest["items"]] == [OTHER_CPU.id]
    only = filled.get("/v1/environments?device=cuda").json()["items"]
    assert [one["id"] for one in only] == [GPU.id]
    fault_of(filled.get("/v1/environments?device=hip"), 404)
    fault_of(filled.get("/v1/environments?device=cpu"), 409)


def test_backends_of_this_installation(filled: httpx.Client) -> None:
    found = fits(records.Backends, filled.get("/v1/backends"))["backends"]
    assert [one["name"] for one in found] == list(registry.BACKENDS)
    cpu = next(one for one in found if one["name"] == "cpu")
    assert cpu["available"]
    assert cpu["families"] == list(registry.backend("cpu").families())
    assert cpu["modes"] == ["eager"]


def test_a_backend_that_cannot_be_loaded_is_a_note(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "broken", "backends.nowhere:Backend")
    with serving(settings) as client:
        found = fits(records.Backends, client.get("/v1/backends"))["backends"]
    assert found[-1]["name"] == "broken"
    assert not found[-1]["available"]
    assert "backends.nowhere" in found[-1]["notes"][0]
