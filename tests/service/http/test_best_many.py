"""The best solutions of many problems in one call."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from db.engine import writing
from service import answers
from service.settings import Settings
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import HUNGRY, fill, measured, problem
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits

URL = "/v1/solutions/best"
ONE = {"m": 16, "n": 256, "k": 512}
NEAR = {"m": 24, "n": 256, "k": 512}
FAR = {"m": 4096, "n": 256, "k": 512}


def many(client: httpx.Client, *problems: Any, **fields: Any) -> list[Any]:
    response = client.post(URL, json={"problems": list(problems), **fields})
    results: list[Any] = fits(answers.BestAnswers, response)["results"]
    return results


def test_answers_come_in_the_order_asked(filled: httpx.Client) -> None:
    found = many(filled, FAR, ONE, NEAR, ONE, FAR)
    assert [one["match"] for one in found] == ["default", "exact", "nearest", "exact", "default"]
    assert found[1] == found[3]


@pytest.mark.parametrize(
    "filters",
    [{}, {"max_workspace": HUNGRY - 1}, {"deterministic": True}, {"families": ["stream", "x"]}],
    ids=str,
)
def test_each_is_what_get_answers(filled: httpx.Client, filters: dict[str, Any]) -> None:
    query = {name: ",".join(value) if isinstance(value, list) else value for name, value in filters.items()}
    for asked in (ONE, NEAR, FAR):
        alone = filled.get(URL, params={**asked, **query}).json()
        assert many(filled, asked, **filters) == [alone]


def test_ten_thousand_at_once(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(**ONE))
    found = many(client, *[ONE] * 10_000)
    assert len(found) == 10_000
    assert all(one["match"] == "exact" for one in found)


def test_near_ones_are_looked_up_for_so_many(settings: Settings, engine: Engine) -> None:
    fill(engine, PROBLEMS[:3])
    with serving(settings.model_copy(update={"max_near": 2})) as client:
        near = [{**ONE, "m": m} for m in (20, 21, 22)]
        found = many(client, ONE, *near)
        assert [one["match"] for one in found] == ["exact", "nearest", "nearest", "default"]
        assert "GEMMTUNE_MAX_NEAR" in found[-1]["notes"][0]


def test_every_fault_is_told_at_once(filled: httpx.Client) -> None:
    body = {
        "problems": [ONE, {"m": 1, "n": 0, "k": 1}, {**ONE, "count": 2}], "max_workspace": -1, "x": 1,
    }  # fmt: skip
    fault = fault_of(filled.post(URL, json=body), 422)
    assert {part["pointer"] for part in fault["errors"]} == {
        "/problems/1/n",
        "/problems/2/count",
        "/max_workspace",
        "/x",
    }


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"mode": "fast"}, "/mode"),
        ({"policy": "x", "cache": "warm"}, "/policy"),
        ({"policy": "a b"}, "/policy"),
        ({"families": "stream"}, "/families"),
        ({"deterministic": "true"}, "/deterministic"),
        ({"device": "hip"}, "/device"),
        ({"imported": 1}, "/imported"),
    ],
)
def test_bad_fields_name_their_place(filled: httpx.Client, fields: dict[str, Any], pointer: str) -> None:
    fault = fault_of(filled.post(URL, json={"problems": [ONE], **fields}), 422)
    assert [part["pointer"] for part in fault["errors"]] == [pointer]


def test_an_ambiguous_device_is_409(filled: httpx.Client) -> None:
    fault = fault_of(filled.post(URL, json={"problems": [ONE], "device": "cpu"}), 409)
    assert len(fault["classes"]) == 2
