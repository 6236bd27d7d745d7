"""GET /v1/compare: two boards are joined, counted and ordered by the database, whatever their size."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select

from db import compared, models
from db.compared import Compared
from db.engine import reading, writing
from db.leaderboard import Board
from db.values import table
from db.worth import Scope
from service.board_answers import Comparison
from service.compared import comparison
from tests.service.dashboard.recorded import H200, Recorded
from tests.service.dashboard.test_leaderboard import everything as ranked
from tests.service.http.filled import CLASS, GPU, POLICY, measured, problem
from tests.service.http.shapes import fault_of, fits

COMPARE = "/v1/compare"


def everything(client: httpx.Client, **query: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first page, and the items of every page."""
    first, items, cursor = None, list[dict[str, Any]](), None
    while first is None or cursor is not None:
        asked = {**query, **({"cursor": cursor} if cursor else {})}
        page = fits(Comparison, client.get(COMPARE, params=asked))
        first = first or page
        items += page["items"]
        cursor = page["next_cursor"]
    return first, items


@pytest.fixture
def sides(recorded: Recorded) -> dict[str, str]:
    """The recorded sessions, and those of the later environment."""
    before, after = recorded.environments
    return {"a": H200, "b": H200, "a_environment": before, "b_environment": after}


def speedup(row: dict[str, Any]) -> float:
    return float(row["speedup"]["mid"]) if row["judgement"] == "WIN" else 1.0


@pytest.mark.parametrize("by", ["time", "speedup"])
def test_it_is_the_join_of_two_boards(pages: httpx.Client, sides: dict[str, str], by: str) -> None:
    first, items = everything(pages, **sides, by=by, limit=7)
    whole, _ = everything(pages, **sides, by=by, limit=1000)
    assert {**first, "items": [], "next_cursor": None} == {**whole, "items": [], "next_cursor": None}
    a, b = (
        {
            row["problem_id"]: row
            for row in ranked(pages, device=H200, environment=sides[f"{name}_environment"])
        }
        for name in "ab"
    )
    assert len(items) == len({row["problem_id"] for row in items}) == len(a.keys() | b.keys())
    for row in items:
        one, other = a.get(row["problem_id"]), b.get(row["problem_id"])
        assert (row["a"] is None, row["b"] is None) == (one is None, other is None)
        if one is None or other is None:
            assert (row["change"], row["ratio"]) == ("new" if one is None else "lost", None)
            continue
        ratio = speedup(other) / speedup(one) if by == "speedup" else one["seconds"] / other["seconds"]
        assert row["ratio"] == pytest.approx(ratio)
        assert row["change"] == ("better" if ratio > 1.02 else "worse" if ratio < 1 / 1.02 else "same")
        names = ("seconds", "judgement", "winner_id", "family", "session_id", "environment_id", "speedup")
        assert {name: row["a"][name] for name in names} == {name: one[name] for name in names}
    problems = first["problems"]
    assert (problems["a"], problems["b"], problems["both"]) == (len(a), len(b), len(a.keys() & b.keys()))
    for name in compared.CHANGES:
        found = [row["problem_id"] for row in items if row["change"] == name]
        assert problems[name] == len(found)
        _, alone = everything(pages, **sides, by=by, change=name, limit=5)
        assert [row["problem_id"] for row in alone] == found
    ratios = [row["ratio"] for row in items if row["ratio"] is not None]
    assert ratios == sorted(ratios)
    assert first["geometric_mean"] == pytest.approx(math.exp(fmean(map(math.log, ratios))))
    for one in first["curve"]:
        assert one["problems"] == sum(ratio >= one["p"] for ratio in ratios)
    assert problems["lost"] > 0


def test_the_other_order_has_problems_without_a_ratio_last_too(
    pages: httpx.Client, sides: dict[str, str]
) -> None:
    _, up = everything(pages, **sides, limit=7)
    _, down = everything(pages, **sides, order="desc", limit=7)
    known = sum(row["ratio"] is not None for row in up)
    assert [row["ratio"] for row in down[:known]] == [row["ratio"] for row in reversed(up[:known])]
    assert {row["ratio"] for row in (*up[known:], *down[known:])} == {None}


def test_the_other_way_round(pages: httpx.Client, sides: dict[str, str]) -> None:
    turned = {
        **sides, "a_environment": sides["b_environment"], "b_environment": sides["a_environment"],
    }  # fmt: skip
    there, back = everything(pages, **sides)[0], everything(pages, **turned)[0]
    for one, other in (("lost", "new"), ("better", "worse"), ("same", "same"), ("a", "b")):
        assert there["problems"][one] == back["problems"][other]
    assert there["geometric_mean"] == pytest.approx(1 / back["geometric_mean"])


def test_times_and_lists(pages: httpx.Client, recorded: Recorded, sides: dict[str, str]) -> None:
    first, items = everything(pages, a=H200, b=H200, a_until="2000-01-01", list="llama-3-8b.jsonl")
    assert (first["problems"]["a"], first["problems"]["b"]) == (0, 26)
    assert {row["change"] for row in items} == {"new"}
    assert (first["geometric_mean"], first["curve"], first["list"]) == (None, [], "llama-3-8b.jsonl")
    types, _ = everything(pages, **sides, dtype="bf16")
    whole, _ = everything(pages, **sides)
    assert 0 < types["problems"]["a"] < whole["problems"]["a"]


def test_classes_of_two_vendors_have_policies_of_their_own(pages: httpx.Client) -> None:
    first, items = everything(pages, a=H200, b="cpu")
    assert first["a"]["policy_id"] != first["b"]["policy_id"]
    assert {row["change"] for row in items} == {"lost", "new"}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("a=cuda&b=fast", 404), ("a=cuda", 409), ("a=cuda&b=cuda&list=none", 404),
        ("a=cuda&b=cuda&dtype=x", 422),
        ("a=cuda&b=cuda&a_until=now", 422), ("a=cuda&b=cuda&b_environment=none", 422),
        ("a=cuda&b=cpu&b_environment=722c3f4871ea", 422), ("a=cuda&b=cuda&change=x", 422),
        ("a=cuda&b=cuda&order=up", 422), ("a=cuda&b=cuda&cursor=x", 422), ("a=cuda&b=cuda&by=m", 422),
    ],
)  # fmt: skip
def test_bad_questions_are_refused(pages: httpx.Client, query: str, status: int) -> None:
    fault_of(pages.get(f"{COMPARE}?{query}"), status)


def test_a_fault_names_its_parameter(pages: httpx.Client) -> None:
    for query in ("b_until=now", "b_environment=none"):
        answer = pages.get(f"{COMPARE}?a=cuda&b=cuda&{query}")
        assert query.partition("=")[0] in answer.text


def test_an_answer_has_a_tag(pages: httpx.Client, sides: dict[str, str]) -> None:
    first = pages.get(COMPARE, params=sides)
    again = pages.get(COMPARE, params=sides, headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_on_both_databases(engine: Engine) -> None:
    """Also of damaged rows: a time of zero has no ratio."""
    asked = [problem(16, n, 256) for n in (64, 128, 192)]
    with writing(engine) as connection:
        for number, one in enumerate(asked):
            measured(connection, one, scale=1e-3)
            if number:
                measured(connection, one, environment=GPU, scale=2e-3, like=one)
        verdict = table(models.Verdict)
        last = select(verdict.c.number).order_by(verdict.c.number.desc()).limit(1).scalar_subquery()
        connection.execute(verdict.update().where(verdict.c.number == last).values(seconds=0.0))
    a, b = (Board(Scope(one, POLICY.id)) for one in (CLASS, str(GPU.device_class)))
    with reading(engine) as connection:
        found = comparison(connection, Compared(a, b), False, None, 10)
    assert found["problems"] == {
        "a": 3, "b": 2, "both": 2, "better": 0, "worse": 1, "same": 1, "lost": 1, "new": 0,
    }  # fmt: skip
    assert [row["ratio"] for row in found["items"]] == [pytest.approx(0.5), None, None]
