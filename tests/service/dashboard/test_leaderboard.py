"""GET /v1/leaderboard and /v1/ceilings: what the database sums, orders and filters."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update

from db import leaderboard, models, worth
from db.engine import open_engine, reading, writing
from db.leaderboard import Board
from db.values import table
from service.board_answers import Board as BoardAnswer
from service.board_answers import Ceilings
from service.leaderboard import ranked
from tests.service.dashboard.recorded import MARKUP, Recorded
from tests.service.http.filled import (
    CLASS,
    ENVIRONMENT,
    filled_database,
    measured,
    new_database,
    problem,
    register,
)
from tests.service.http.filled import POLICY as CPU_POLICY
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits

BOARD = "/v1/leaderboard"
CUDA: dict[str, Any] = {"device": "cuda"}


def everything(client: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    """The items of every page."""
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = fits(
            BoardAnswer, client.get(BOARD, params={**query, **({"cursor": cursor} if cursor else {})})
        )
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items


def gain(row: dict[str, Any]) -> float:
    """A problem's speed-up as aggregates count it."""
    return float(row["speedup"]["mid"]) if row["judgement"] == "WIN" else 1.0


def test_aggregates_are_those_of_the_rows(pages: httpx.Client) -> None:
    board = fits(BoardAnswer, pages.get(BOARD, params=CUDA))
    rows = everything(pages, **CUDA)
    assert board["problems"]["all"] == len(rows) == 36
    for name in ("win", "tie", "loss"):
        assert board["problems"][name] == sum(row["judgement"].lower() == name for row in rows)
    assert board["geometric_mean"] == pytest.approx(math.exp(fmean(math.log(gain(row)) for row in rows)))
    calls = [1 if row["calls"] is None else row["calls"] for row in rows]
    before = sum(n * row["baseline_seconds"] for n, row in zip(calls, rows, strict=True))
    saved = sum(row["saved_seconds"] for row in rows)
    assert board["seconds"]["baseline"] == pytest.approx(before)
    assert board["seconds"]["saved"] == pytest.approx(saved)
    assert board["seconds"]["speedup"] == pytest.approx(before / (before - saved))
    shares = [row["roofline_share"] for row in rows if row["roofline_share"] is not None]
    assert board["roofline"] == {"mean": pytest.approx(fmean(shares)), "problems": len(shares)}
    assert board["uncounted"] == sum(row["calls"] is None for row in rows) > 0
    assert sum(board["binds"].values()) == 36
    for one in board["fast_p"]:
        assert one["problems"] == sum(gain(row) >= one["p"] for row in rows)


def test_it_agrees_with_the_report_of_worth(pages: httpx.Client) -> None:
    for more in ({}, {"list": "llama-3-8b.jsonl"}, {"family": "cublaslt"}, {"dtype": "fp32"}):
        board = pages.get(BOARD, params=CUDA | more).json()
        report = pages.get("/v1/reports/worth", params=CUDA | more).json()
        assert board["geometric_mean"] == pytest.approx(report["geometric_mean"])
        assert board["seconds"]["saved"] == pytest.approx(report["seconds"]["saved"])
        assert board["problems"]["all"] == report["problems"]["tuned"]


@pytest.mark.parametrize(
    ("sort", "value"),
    [
        ("saved", lambda row: -row["saved_seconds"]),
        ("speedup", lambda row: -gain(row)),
        ("seconds", lambda row: row["seconds"]),
        ("decided", lambda row: tuple(-ord(c) for c in row["decided_at"])),
    ],
)
def test_it_is_sorted_as_it_says(pages: httpx.Client, sort: str, value: Any) -> None:
    rows = everything(pages, **CUDA, sort=sort, limit=1000)
    values = [value(row) for row in rows]
    assert values == sorted(values)
    paged = everything(pages, **CUDA, sort=sort, limit=7)
    assert [row["problem_id"] for row in paged] == [row["problem_id"] for row in rows]
    other = "desc" if sort == "seconds" else "asc"
    turned = [value(row) for row in everything(pages, **CUDA, sort=sort, order=other, limit=7)]
    assert turned == sorted(values, reverse=True)


def test_problems_without_a_ceiling_are_last_in_either_order(pages: httpx.Client) -> None:
    for order, sign in (("desc", -1), ("asc", 1)):
        rows = everything(pages, **CUDA, sort="roofline", order=order, limit=7)
        shares = [row["roofline_share"] for row in rows]
        known = [share for share in shares if share is not None]
        assert 0 < len(known) < len(shares) == 36
        assert shares == [*sorted(known, key=lambda share: sign * share), *[None] * (36 - len(known))]


def test_one_problem_alone(pages: httpx.Client) -> None:
    row = everything(pages, **CUDA)[7]
    assert everything(pages, **CUDA, problem=row["problem_id"]) == [row]
    assert everything(pages, **CUDA, problem="none") == []


def filtered(row: dict[str, Any], name: str) -> Any:
    """What a filter compares of a row."""
    return row["problem"].get("dtype") if name == "dtype" else row[name]


def test_filters(pages: httpx.Client) -> None:
    rows = everything(pages, **CUDA)
    for name in ("family", "judgement", "binds", "dtype"):
        for wanted in {filtered(row, name) for row in rows} - {None}:
            found = everything(pages, **CUDA, **{name: wanted})
            left = {row["problem_id"] for row in rows if filtered(row, name) == wanted}
            assert {row["problem_id"] for row in found} == left
    named = everything(pages, **CUDA, list=MARKUP)
    assert len(named) == 5
    assert {row["calls"] for row in named} == {7}


def test_groups_add_up(pages: httpx.Client) -> None:
    for by in ("family", "dtype", "judgement"):
        board = fits(BoardAnswer, pages.get(BOARD, params={**CUDA, "by": by, "limit": 1}))
        assert sum(group["problems"]["all"] for group in board["groups"]) == 36
        for group in board["groups"]:
            alone = pages.get(BOARD, params={**CUDA, by: group["name"], "limit": 1}).json()
            assert group["geometric_mean"] == pytest.approx(alone["geometric_mean"])
    lists = pages.get(BOARD, params={**CUDA, "by": "list", "limit": 1}).json()["groups"]
    assert {group["name"]: group["problems"]["all"] for group in lists} == {
        "llama-3-8b.jsonl": 26, MARKUP: 5, "tunableop-results.csv": 1,
    }  # fmt: skip


def test_several_groupings_at_once(pages: httpx.Client) -> None:
    names = ("family", "dtype", "judgement", "list")
    whole = fits(BoardAnswer, pages.get(BOARD, params={**CUDA, "by": names, "limit": 1}))
    alone = [pages.get(BOARD, params={**CUDA, "by": name, "limit": 1}).json()["groups"] for name in names]
    assert whole["groups"] == [group for groups in alone for group in groups]
    assert {group["by"] for group in whole["groups"]} == set(names)


def test_groups_are_of_the_other_filters(pages: httpx.Client) -> None:
    """So that a choice shows what another choice would give."""
    rows = everything(pages, **CUDA)
    chosen = {"family": rows[0]["family"], "dtype": "bf16", "judgement": "WIN"}
    board = pages.get(BOARD, params={**CUDA, **chosen, "by": list(chosen), "limit": 100}).json()
    kept = [row for row in rows if all(filtered(row, name) == value for name, value in chosen.items())]
    assert {row["problem_id"] for row in board["items"]} == {row["problem_id"] for row in kept}
    assert board["problems"]["all"] == len(kept) > 0
    assert len(board["groups"]) > len(chosen)
    for by in chosen:
        others = {name: value for name, value in chosen.items() if name != by}
        left = [row for row in rows if all(filtered(row, name) == value for name, value in others.items())]
        found = {group["name"]: group["problems"]["all"] for group in board["groups"] if group["by"] == by}
        assert found == Counter(filtered(row, by) for row in left)


def test_a_type_is_that_of_a_as_it_is_written(tmp_path: Path) -> None:
    """Whatever is asked, and whichever version stored the problem."""
    scaling = {"b": "group_128", "dtype": "bf16", "zero_b": "eight"}
    mixed = problem(1, 64, 128, dtype="bf16", dtype_b="uint4", trans_b=True, scaling=scaling)
    plain = problem(16, 128, 256)
    settings = filled_database(tmp_path, [plain], device=CLASS)
    engine = open_engine(settings.database_url)
    with writing(engine) as connection:
        measured(connection, mixed, like=plain)
    for earlier in (False, True):
        if earlier:
            with writing(engine) as connection:
                connection.execute(update(table(models.Problem)).values(dtype_b=None))
        with serving(settings) as client:
            for dtype, count in (("bf16", 1), ("uint4", 0), ("fp32", 1)):
                query = {"dtype": dtype}
                board = client.get(BOARD, params=query | {"by": "dtype"}).json()
                assert board["problems"]["all"] == count
                assert {one["name"] for one in board["groups"]} == {"bf16", "fp32"}
                assert client.get("/v1/reports/worth", params=query).json()["problems"]["tuned"] == count
                known = client.get("/v1/problems", params=query).json()["items"]
                assert [one["problem"]["dtype"] for one in known] == [dtype] * count
                lines = client.get("/v1/measurements", params=query).text.splitlines()
                assert {json.loads(line)["problem_id"] for line in lines} == {one["id"] for one in known}
    engine.dispose()


def test_as_of_an_environment_or_a_time(pages: httpx.Client, recorded: Recorded) -> None:
    before, after = recorded.environments
    old, new = (everything(pages, **CUDA, environment=name) for name in (before, after.rpartition("-")[2]))
    assert len(old) == 36
    assert 18 <= len(new) < 36
    assert {row["environment_id"] for row in old} == {before}
    assert {row["environment_id"] for row in new} == {after}
    last = max(row["decided_at"] for row in old)
    for until in (last, last[:10]):
        assert everything(pages, **CUDA, until=until)
    then = everything(pages, **CUDA, until=last)
    assert {row["environment_id"] for row in then} == {before}
    assert everything(pages, **CUDA, until="2000-01-01") == []
    assert len(everything(pages, **CUDA, until="2999-01-01")) == 36


def test_a_diff_and_two_boards_say_the_same(pages: httpx.Client, recorded: Recorded) -> None:
    before, after = recorded.environments
    diff = pages.get("/v1/diff", params={"before": before, "after": after, "limit": 1000}).json()
    old = {row["problem_id"]: row for row in everything(pages, **CUDA, environment=before)}
    new = {row["problem_id"]: row for row in everything(pages, **CUDA, environment=after)}
    for item in diff["items"]:
        assert item["before"]["session_id"] == old[item["problem_id"]]["session_id"]
        if item["after"] is None:
            assert item["problem_id"] not in new
        else:
            assert item["after"]["session_id"] == new[item["problem_id"]]["session_id"]


def test_ceilings_are_those_that_were_measured(pages: httpx.Client, recorded: Recorded) -> None:
    found = fits(Ceilings, pages.get("/v1/ceilings", params=CUDA))
    assert found["environment_id"] == recorded.environments[1]
    assert found["bytes_per_second"] == pytest.approx(4.56e12, rel=0.01)
    assert found["flops_per_second"]["bf16"] == pytest.approx(801.4e12, rel=0.001)
    for row in everything(pages, **CUDA, environment=recorded.environments[1]):
        if (
            row["roofline_share"] is not None
            and row["binds"] == "compute"
            and row["problem"]["dtype"] == "bf16"
        ):
            bound = row["flops"] / found["flops_per_second"]["bf16"]
            assert row["roofline_share"] == pytest.approx(bound / row["seconds"])


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("device=hip", 404), ("device=cuda&list=none", 404), ("device=cuda&sort=rank", 422),
        ("device=cuda&order=up", 422), ("device=cuda&until=yesterday", 422), ("device=cuda&until=", 422),
        ("device=cuda&until=0001-01-01T00:00:00%2B23:59", 422), ("device=cuda&dtype=fp17", 422),
        ("device=cuda&environment=none", 422), ("device=cpu&environment=722c3f4871ea", 422),
        ("device=cuda&cursor=x", 422), ("device=cuda&by=m", 422), ("device=cuda&judgement=win", 422),
        ("device=cuda&limit=0", 422), ("device=cuda&rank=1", 422), ("", 409),
    ],
)  # fmt: skip
def test_bad_questions_are_refused(pages: httpx.Client, query: str, status: int) -> None:
    fault_of(pages.get(f"{BOARD}?{query}"), status)


def test_a_cursor_is_of_its_order_alone(pages: httpx.Client) -> None:
    cursor = pages.get(BOARD, params={**CUDA, "limit": 2}).json()["next_cursor"]
    for other in ({"sort": "seconds"}, {"order": "asc"}):
        fault_of(pages.get(BOARD, params={**CUDA, **other, "cursor": cursor}), 422)
    fault_of(pages.get("/v1/problems", params={"cursor": cursor}), 422)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Verdicts as a damaged or early database may have them."""
    asked = [problem(16, n, 512) for n in (64, 128, 256, 512)]
    settings = filled_database(Path(tmp_path_factory.mktemp("odd")), asked, device=CLASS)
    engine = open_engine(settings.database_url)
    spoil(engine, [one.id for one in asked])
    engine.dispose()
    with serving(settings) as made:
        yield made


def spoil(engine: Engine, ids: list[str]) -> None:
    """NaN, infinite, absent and open speed-ups, none in a column; no roofline."""
    verdict = table(models.Verdict)
    spoiled = [
        {"low": "nan", "mid": "nan", "high": "nan"}, {"low": None, "mid": "inf", "high": None},
        {"low": None, "mid": None, "high": None}, {"low": None, "mid": 2.0, "high": None},
    ]  # fmt: skip
    with writing(engine) as connection:
        for name, speedup in zip(ids, spoiled, strict=True):
            mine = verdict.c.problem_id == name
            content = dict(connection.execute(verdict.select().where(mine)).mappings().one()["content"])
            content["speedup"] = speedup
            changed = {"content": content, "speedup": None, "roofline_share": None, "binds": None}
            connection.execute(update(verdict).where(mine).values(**changed))


def test_damaged_speedups_count_as_one(odd: httpx.Client) -> None:
    board = fits(BoardAnswer, odd.get(BOARD))
    assert board["problems"]["win"] == 4
    assert board["geometric_mean"] == pytest.approx(2.0**0.25)
    assert [row["speedup"]["mid"] for row in board["items"]].count(None) == 3
    assert board["roofline"] == {"mean": None, "problems": 0}
    for sort in leaderboard.SORTS:
        assert len(everything(odd, sort=sort, limit=1)) == 4


def test_a_class_without_ceilings(odd: httpx.Client) -> None:
    found = fits(Ceilings, odd.get("/v1/ceilings"))
    assert (found["environment_id"], found["bytes_per_second"], found["flops_per_second"]) == (None, None, {})


def test_a_class_without_verdicts(tmp_path: Path) -> None:
    settings = new_database(tmp_path)
    engine = open_engine(settings.database_url)
    register(engine, ENVIRONMENT)
    engine.dispose()
    with serving(settings) as client:
        board = fits(BoardAnswer, client.get(BOARD))
    assert (board["items"], board["fast_p"], board["geometric_mean"], board["next_cursor"]) == (
        [],
        [],
        None,
        None,
    )


def test_both_databases_say_the_same(engine: Engine) -> None:
    with writing(engine) as connection:
        for tokens in (16, 32, 64):
            measured(connection, problem(tokens, 256, 512), scale=1e-3 * tokens)
    scope = worth.Scope(CLASS, CPU_POLICY.id)
    with reading(engine) as connection:
        for asked in (
            Board(scope),
            Board(scope, until="2999-01-01T00:00:00.000Z"),
            Board(scope, "WIN", "memory"),
        ):
            for sort, descending in leaderboard.SORTS.items():
                found = ranked(connection, asked, sort, descending, None, 2, ("family", "dtype", "judgement"))
                assert (found["problems"]["all"], len(found["items"])) == (3, 2)
                assert found["geometric_mean"] == pytest.approx(2.0, rel=0.01)
                assert found["groups"][0]["problems"]["all"] == 3
                rest = ranked(connection, asked, sort, descending, found["next_cursor"], 2, ("list",))
                assert len({one["problem_id"] for one in (*found["items"], *rest["items"])}) == 3
