"""The report of worth as a page: whole, offline, escaped; and the detail that it draws."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from sqlalchemy import Engine

from backends.problem import from_linear
from db import worth
from db.engine import reading, writing
from service.report_answers import Worth
from service.worth import tuned_row, worth_report
from service.worth_page import worth_page
from tests.db.samples import BASELINE, HERE, problem, start, store_session
from tests.service.test_worth import SCOPE, WON, listed
from tuners.expected_gain import Shape

_VOID = {"meta", "circle", "path", "rect"}


class _Page(HTMLParser):
    """Elements, attributes and texts; every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in _VOID or tag == "circle":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID or tag == "circle":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """Two wins, one of them called most, a default that stays, and a problem to tune."""
    with writing(engine) as connection:
        store_session(connection, start(problem(1)), WON)
        store_session(connection, start(problem(2, n=128)), WON)
        store_session(connection, start(problem(3)), BASELINE)
        listed(connection, "app.csv", {problem(1): 10, problem(2, n=128): 90, problem(4): 5})
    return engine


def report(engine: Engine, limit: int = 20, **scope: Any) -> dict[str, Any]:
    with reading(engine) as connection:
        found = worth_report(connection, replace(SCOPE, **scope), limit, detail=True)
    Worth.model_validate(found)
    return found


def test_the_detail_is_that_of_the_verdicts(filled: Engine) -> None:
    detail = report(filled)["detail"]
    counts = {one["low"]: one["problems"] for one in detail["distribution"] if one["problems"]}
    assert counts == {1.0: 1, 3.0: 2}
    curve = {one["p"]: one for one in detail["curve"]}
    assert curve[1.0] == {"p": 1.0, "share": 1.0, "time_share": 1.0}
    last = detail["curve"][-1]
    assert last["p"] == pytest.approx(3.0)
    shares = [one["share"] for one in detail["curve"]]
    assert shares == sorted(shares, reverse=True)
    assert [one["problem_id"] for one in detail["gains"]] == [problem(2, n=128).id, problem(1).id]
    first = detail["gains"][0]
    assert first["saved_seconds"] == pytest.approx(90 * 3e-6 * (1 - 1 / 3))
    (one,) = detail["environments"]
    assert one["environment_id"] == HERE.id
    assert "uuid" not in one["environment"]
    roofline = detail["roofline"]
    assert {row["problem_id"] for row in roofline["problems"]} >= {problem(1).id, problem(2, n=128).id}
    for row in roofline["problems"]:
        assert row["share"] == 0.5
        bound = row["flops_per_second"] / row["share"]
        assert bound <= row["intensity"] * roofline["bytes_per_second"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("weights", "scales", "of_scales"),
    [("fp8_e4m3", "outer", "bf16"), ("int8", "outer", "bf16"), ("fp4_e2m1", "block_1x32", "fp8_e8m0")],
)
def test_products_of_quantised_weights_are_under_the_type_that_is_multiplied(
    engine: Engine, weights: str, scales: str, of_scales: str
) -> None:
    quantised = from_linear(16, 64, 64, "bf16", dtype_b=weights, scale_b=scales, scale_dtype=of_scales)
    with writing(engine) as connection:
        store_session(connection, start(quantised), WON)
        (row,) = worth.tuned(connection, SCOPE)
    (point,) = report(engine)["detail"]["roofline"]["problems"]
    assert (point["problem_id"], point["dtype"]) == (quantised.id, "bf16")
    # An estimate finds the row by the shape that is asked for.
    assert tuned_row(row).shape == Shape.of(quantised)


def test_gains_are_limited_and_without_detail_there_are_none(filled: Engine) -> None:
    assert len(report(filled, 1)["detail"]["gains"]) == 1
    with reading(filled) as connection:
        assert worth_report(connection, SCOPE)["detail"] is None


def test_the_page_is_whole_and_loads_nothing(filled: Engine) -> None:
    text = worth_page(report(filled), "2026-01-31T12:00:00Z")
    page = _Page(text)
    assert page.found.count("svg") == 3
    assert not {"script", "link", "img", "iframe", "a"} & set(page.found)
    for name, value in page.attributes:
        assert name not in ("src", "href")
        assert not name.startswith("on")
        assert "http" not in value or name == "xmlns", (name, value)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text
    said = " ".join(page.texts)
    for words in (
        "Speed-ups",
        "fast_p",
        "Roofline",
        "Largest gains",
        "Tune next",
        "Environment",
        "2 WIN, 1 TIE",
    ):
        assert words in said
    assert "blas 1" in said


def test_names_are_escaped(filled: Engine) -> None:
    found = report(filled)
    evil = "<script>alert(1)</script>"
    found["list"] = found["device_class"] = evil
    found["detail"]["gains"][0]["family"] = evil
    found["detail"]["roofline"]["problems"][0]["problem_id"] = evil
    found["detail"]["environments"][0]["environment"]["product"] = evil
    text = worth_page(found, evil)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 5
    _Page(text)


def test_a_class_without_a_verdict_has_a_page_too(engine: Engine) -> None:
    text = worth_page(report(engine), "now")
    page = _Page(text)
    assert "svg" not in page.found
    assert "problems tuned" in page.texts
