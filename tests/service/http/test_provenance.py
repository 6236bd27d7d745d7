"""Imported files neither outrank what was measured here nor name the devices that selectors mean."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from sqlalchemy import Engine

from db import classes, workers
from db.engine import reading, writing
from service import answers, records
from service.settings import Settings
from tests.service.http.filled import CLASS, ENVIRONMENT, GPU, fill, measured, problem, register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits
from tests.service.http.uploads import RESULTS, journal

ASKED = problem(16, 256, 512)
BEST = "/v1/solutions/best?m=16&n=256&k=512"
CSV = {"Content-Type": "text/csv"}
FOREIGN = replace(ENVIRONMENT, driver="planted")


def imported(client: httpx.Client, content: bytes, **params: str) -> None:
    response = client.post("/v1/imports/auto", content=content, headers=CSV, params=params)
    assert response.status_code == 200, response.text


def test_a_journal_does_not_outrank_what_was_measured_here(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, ASKED)
    before = client.get(BEST).json()
    assert before["provenance"]["kind"] == "measured"
    planted = journal(ASKED, FOREIGN, scale=1e-9)
    huge = planted.replace(b'"budget":{"seconds":2.0', b'"budget":{"seconds":1e9')
    assert huge != planted
    imported(client, huge)
    assert client.get(BEST).json() == before


def test_a_file_is_removed_with_all_that_it_brought(client: httpx.Client, engine: Engine) -> None:
    imported(client, journal(ASKED, FOREIGN))
    imported(client, RESULTS, device="hip:gfx942:MI300X:304")
    assert client.get(BEST).json()["provenance"]["kind"] == "node"
    page = fits(answers.Paged[records.ProvenanceRow], client.get("/v1/provenance"))
    first, second = page["items"]
    assert (first["kind"], first["sessions"], first["claims"]) == ("node", 1, 0)
    assert (second["format"], second["claims"], second["device_class"]) == (
        "tunableop", 1, "hip:gfx942:MI300X:304",
    )  # fmt: skip
    with writing(engine) as connection:
        measured(connection, ASKED)
    for row in page["items"]:
        assert client.delete(f"/v1/provenance/{row['number']}").status_code == 204
        fault_of(client.delete(f"/v1/provenance/{row['number']}"), 404)
    assert client.get("/v1/provenance").json()["items"] == []
    assert client.get(BEST).json()["provenance"]["kind"] == "measured"


def test_the_last_verdict_of_a_problem_goes_with_its_file(client: httpx.Client) -> None:
    imported(client, journal(ASKED, FOREIGN))
    client.delete("/v1/provenance/1")
    assert client.get(BEST).json()["match"] == "default"


def test_an_imported_class_makes_no_selector_ambiguous(client: httpx.Client, engine: Engine) -> None:
    other = replace(ENVIRONMENT, product="Planted")
    imported(client, journal(ASKED, other))
    imported(client, RESULTS, device="hip:gfx942:MI300X:304")
    assert client.get(f"{BEST}&device=cpu").json()["device_class"] == CLASS
    whole = str(other.device_class)
    assert client.get(f"{BEST}&device={whole}").json()["match"] == "exact"
    assert client.get(f"{BEST}&device=hip&imported=true").json()["match"] == "default"
    body = {"problems": [{"m": 1, "n": 1, "k": 1}], "device": whole}
    fault_of(client.post("/v1/tunings", json=body), 422)
    listed = {row["id"]: row["registered"] for row in client.get("/v1/devices").json()["classes"]}
    assert listed == {CLASS: True, whole: False, "hip:gfx942:MI300X:304": False}
    with writing(engine) as connection:
        assert classes.forget(connection, "hip:gfx942:MI300X:304")
        assert not classes.forget(connection, "hip:gfx942:None:1")


def test_a_class_is_forgotten_until_a_worker_registers_it(engine: Engine) -> None:
    register(engine, GPU)
    with writing(engine) as connection:
        with pytest.raises(classes.ClassInUse, match="has a worker"):
            classes.forget(connection, str(GPU.device_class))
        workers.mark(connection, ["worker-GPU-1"], "stopped")
        assert classes.forget(connection, str(GPU.device_class))
        assert classes.classes(connection).registered == ()
    register(engine, GPU)
    with reading(engine) as connection:
        assert classes.classes(connection).registered == (GPU.device_class,)


def test_without_a_device_the_only_class_that_can_be_meant_is(settings: Settings, engine: Engine) -> None:
    with serving(settings) as client:
        fault_of(client.get(BEST), 404)
    fill(engine, [ASKED])
    register(engine, GPU)
    with serving(settings) as client:
        assert set(fault_of(client.get(BEST), 409)["classes"]) == {CLASS, str(GPU.device_class)}
    with writing(engine) as connection:
        workers.mark(connection, ["worker-CPU-1"], "dead")
    with serving(settings) as client:
        assert client.get(BEST).json()["device_class"] == str(GPU.device_class)
    with writing(engine) as connection:
        workers.mark(connection, ["worker-GPU-1"], "stopped")
    with serving(settings) as client:
        assert client.get(BEST).json()["device_class"] == CLASS
