"""Answers by a shipped pre-tuned table over HTTP, for numbers of tokens that it lacks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service import answers, pretuned
from service.settings import Settings
from tests.service.http.serving import serving
from tests.service.http.shapes import fits

URL = "/v1/solutions/best"
NAME, DEVICE = "h100-lowbit", "cuda:sm_90:NVIDIA-H100-80GB-HBM3:132"
ASKED: dict[str, Any] = {
    "m": 24, "n": 6144, "k": 4096, "dtype": "fp8_e4m3", "trans_b": "true", "device": DEVICE,
    "scaling": '{"a":"outer","b":"outer","d":"none","dtype":"fp32"}',
}  # fmt: skip
WORDS: dict[str, Any] = {
    "n": 6144, "k": 4096, "dtype": "fp8_e4m3", "trans_b": True,
    "scaling": {"a": "outer", "b": "outer", "d": "none", "dtype": "fp32"},
}  # fmt: skip


@pytest.fixture
def installed(engine: Engine) -> Engine:
    """A database that has the table and measured nothing."""
    pretuned.install(engine, pretuned.named(NAME))
    return engine


def best(client: httpx.Client, **parameters: Any) -> Any:
    return fits(answers.Best, client.get(URL, params={**ASKED, **parameters}))


def test_a_stranger_with_a_table_gets_its_nearest_row_where_asked_for(
    installed: Engine, settings: Settings
) -> None:
    with serving(settings) as client:
        found = best(client, imported="true")
        assert (found["match"], found["distance"]) == ("nearest", 0.415)
        assert found["provenance"] == {"kind": "pretuned", "source": NAME, "format": "jsonl"}
        assert (found["asked"], found["problem"]) == ({**WORDS, "m": 24}, {**WORDS, "m": 32})
        assert "it was not measured here" in found["reason"]
        answered = client.get(URL, params={**ASKED, "imported": "true"})
        again = client.get(
            URL, params={**ASKED, "imported": "true"}, headers={"If-None-Match": answered.headers["etag"]}
        )
        assert again.status_code == 304
        unasked = best(client)
        assert unasked["match"] == "default"
        assert f"the pre-tuned table {NAME} has {found['problem_id']}" in unasked["notes"][0]
        assert best(client, m=16, imported="true")["match"] == "imported"
        assert best(client, m=1000, imported="true")["match"] == "default"
        assert best(client, epilogue="gelu", imported="true")["match"] == "default"
        assert best(client, families="packed-mma", imported="true")["match"] == "default"


def test_many_at_once_within_the_limit_on_near_problems(installed: Engine, settings: Settings) -> None:
    problems = [{**WORDS, "m": m} for m in (16, 24, 20, 12)]
    body = {"problems": problems, "device": DEVICE, "imported": True}
    with serving(settings.model_copy(update={"max_near": 3})) as client:
        answered = fits(answers.BestAnswers, client.post(URL, json=body))["results"]
    assert [one["match"] for one in answered] == ["imported", "nearest", "nearest", "default"]
    assert "GEMMTUNE_MAX_NEAR" in answered[-1]["notes"][0]


def test_what_was_removed_answers_no_more(installed: Engine, settings: Settings) -> None:
    with serving(settings) as client:
        (number,) = (one["number"] for one in client.get("/v1/provenance").json()["items"])
        assert best(client, imported="true")["match"] == "nearest"
        assert client.delete(f"/v1/provenance/{number}").status_code == 204
        assert best(client, imported="true")["match"] == "default"


def test_an_export_of_claims_has_no_near_row(installed: Engine, settings: Settings) -> None:
    with serving(settings) as client:
        asked = best(client, imported="true")["asked_id"]
        listed = client.get("/v1/exports/jsonl", params={"device": DEVICE, "imported": "true"})
    assert listed.status_code == 200
    assert asked not in listed.text
    assert '"written":505' in listed.text
