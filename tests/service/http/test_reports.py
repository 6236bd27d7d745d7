"""GET /v1/reports/worth, as clients meet it; and what a best answer says of a changed environment."""

from __future__ import annotations

from dataclasses import replace

import httpx
import orjson
import pytest
from sqlalchemy import Engine

from db import workers
from db.engine import writing
from service.answers import Best
from service.report_answers import Diff, Worth
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import CLASS, ENVIRONMENT, fill, problem
from tests.service.http.shapes import fault_of, fits


def test_the_report_of_a_class(filled: httpx.Client) -> None:
    found = fits(Worth, filled.get("/v1/reports/worth"))
    assert found["device_class"] == CLASS
    assert found["problems"]["tuned"] == found["problems"]["win"] == len(PROBLEMS)
    assert found["seconds"]["speedup"] == pytest.approx(2.0, rel=0.01)
    assert found["stale"]["items"] == found["next"] == []


def test_a_class_without_a_verdict_has_an_empty_report(filled: httpx.Client) -> None:
    found = fits(Worth, filled.get("/v1/reports/worth", params={"device": "cuda"}))
    assert found["problems"]["tuned"] == 0
    assert found["seconds"]["speedup"] is None


def test_what_is_unknown_is_refused(filled: httpx.Client) -> None:
    assert "list" in fault_of(filled.get("/v1/reports/worth?list=none"), 404)["detail"]
    fault_of(filled.get("/v1/reports/worth?device=hip"), 404)
    fault_of(filled.get("/v1/reports/worth?lists=none"), 422)
    fault_of(filled.get("/v1/reports/worth?limit=0"), 422)


def test_a_stale_answer_says_what_has_changed(client: httpx.Client, engine: Engine) -> None:
    asked = problem()
    fill(engine, [asked])
    query: dict[str, int | str] = {"m": 16, "n": 256, "k": 512}
    body = {"problems": [query], "device": "cpu"}
    near = {**query, "m": 24}
    assert "stale" not in fits(Best, client.get("/v1/solutions/best", params=query))
    later = replace(ENVIRONMENT, libraries={"blas": "openblas 0.3.32", "compiler": "c++ 12"})
    with writing(engine) as connection:
        workers.mark(connection, [f"worker-{ENVIRONMENT.uuid}"], "stopped")
        workers.register(connection, "worker-later", "host", 1, later)
    reason = "blas openblas 0.3.31 is now openblas 0.3.32"
    assert client.post("/v1/solutions/best", json=body).json()["results"][0]["stale"] == reason
    for asked_for in (query, near, {**query, "families": "stream"}):
        found = fits(Best, client.get("/v1/solutions/best", params=asked_for))
        assert found["stale"] == reason, asked_for
    row = fits(Worth, client.get("/v1/reports/worth"))["stale"]["items"][0]
    assert (row["problem_id"], row["reason"]) == (asked.id, reason)
    assert orjson.loads(client.get("/v1/solutions/best", params=query).content)["match"] == "exact"


def test_environments_are_compared_page_by_page(client: httpx.Client, engine: Engine) -> None:
    asked = [problem(m) for m in (16, 32, 64)]
    fill(engine, asked)
    later = replace(ENVIRONMENT, libraries={"blas": "openblas 0.3.32", "compiler": "c++ 12"})
    fill(engine, asked[:2], environment=later)
    query: dict[str, int | str] = {"before": ENVIRONMENT.id, "after": later.id, "limit": 2}
    first = fits(Diff, client.get("/v1/diff", params=query))
    assert first["counts"] == {"kept": 2, "beaten": 0, "broken": 0, "retired": 0, "pending": 1}
    second = fits(Diff, client.get("/v1/diff", params={**query, "cursor": first["next_cursor"]}))
    assert [one["problem_id"] for one in first["items"] + second["items"]] == [one.id for one in asked]
    assert second["next_cursor"] is None
    pending = fits(Diff, client.get("/v1/diff", params={**query, "fate": "pending"}))
    assert [one["problem_id"] for one in pending["items"]] == [asked[2].id]
    fault = fault_of(client.get("/v1/diff", params={**query, "before": "none"}), 422)
    assert "no environment 'none' is known" in fault["errors"][0]["detail"]
