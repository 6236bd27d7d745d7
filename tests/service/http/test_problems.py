"""Problems, their measurements, and solutions."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from db.engine import writing
from service import answers, records
from service.imports import import_file
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import BASELINE, CLASS, candidates, measured, problem
from tests.service.http.shapes import fault_of, fits
from tests.service.http.uploads import UNTUNED, stream

FIRST = PROBLEMS[0]
MEASUREMENTS = f"/v1/problems/{FIRST.id}/measurements"


def everything(client: httpx.Client, url: str, limit: int, **params: Any) -> list[Any]:
    """Every item of a list, page by page."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        asked = {"limit": limit, **params, **({"cursor": cursor} if cursor else {})}
        page = client.get(url, params=asked).json()
        assert len(page["items"]) <= limit
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


# ---- problems --------------------------------------------------------------------------------------


def test_problems_are_listed_in_the_order_met(filled: httpx.Client) -> None:
    for limit in (1, 3, len(PROBLEMS), 1000):
        found = everything(filled, "/v1/problems", limit)
        assert [item["id"] for item in found] == [problem.id for problem in PROBLEMS]
    page = fits(answers.Paged[records.ProblemSummary], filled.get("/v1/problems"))
    assert page["items"][0]["problem"] == {"m": 16, "n": 256, "k": 512, "dtype": "fp32"}
    assert page["items"][0]["canonical"] == FIRST.to_dict()


def test_filters_are_of_the_row_major_call(filled: httpx.Client) -> None:
    def ids(**params: Any) -> set[str]:
        return {item["id"] for item in filled.get("/v1/problems", params=params).json()["items"]}

    assert ids(m=16, n=256, k=512, dtype="fp32") == {FIRST.id}
    assert ids(m=256) == set()
    assert ids(m=32) == {problem(32, 256, 512).id, problem(32, 512, 512).id}
    assert ids(dtype="bf16") == {problem(16, 256, 512, dtype="bf16", trans_b=True, epilogue="bias_relu").id}
    assert ids(k=64) == {problem(8, 64, 64, batch=4).id}


@pytest.mark.parametrize(
    "query", ["m=0", "m=x", f"n={2**31}", f"k={10**30}", "dtype=fp17", "dtype=%00", "q=1"]
)
def test_bad_filters_are_422(filled: httpx.Client, query: str) -> None:
    fault = fault_of(filled.get(f"/v1/problems?{query}"), 422)
    assert fault["errors"][0]["parameter"] == query.split("=", maxsplit=1)[0]


def test_a_problem_has_its_verdicts_and_names(client: httpx.Client, engine: Engine) -> None:
    asked = problem(1, 768, 768, dtype="fp16", epilogue="bias")
    with writing(engine) as connection:
        first, second = (measured(connection, asked, job_id=name) for name in ("job-1", "job-2"))
    import_file(engine, stream(UNTUNED), "untuned.csv")
    found = fits(records.ProblemAnswer, client.get(f"/v1/problems/{asked.id}"))
    assert [one["session_id"] for one in found["verdicts"]] == [second, first]
    assert found["verdicts"][0]["verdict"]["judgement"] == "WIN"
    assert found["verdicts"][0]["verdict"]["targets"]["bundle"]["judgement"] == "WIN"
    ((key),) = found["keys"]
    assert (key["format"], key["count"]) == ("tunableop-untuned", 1)
    assert key["key"].startswith("GemmAndBiasTunableOp_Half_")


STRANGE = ["x", "a%00b", "%E2%98%83", "a%20b", "-", "%2e%2e", "nn_1x1x1_fp32-0123456789ab", "x" * 300, "%0A"]


@pytest.mark.parametrize("name", STRANGE)
def test_what_names_nothing_is_404(filled: httpx.Client, name: str) -> None:
    for url in (f"/v1/problems/{name}", f"/v1/problems/{name}/measurements", f"/v1/solutions/{name}"):
        fault_of(filled.get(url), 404)


# ---- measurements ----------------------------------------------------------------------------------


def test_every_outcome_is_listed(filled: httpx.Client) -> None:
    page = fits(answers.Paged[records.Measurement], filled.get(MEASUREMENTS))
    phases = [(item["phase"], item["status"]) for item in page["items"]]
    assert phases == [("screen", "ok")] * 4 + [("screen", "wrong_result")] + [("final", "ok")] * 4 + [
        ("proof", "ok")
    ]
    failed = page["items"][4]
    assert (failed["seconds"], failed["samples"], failed["evidence"]) == (None, [], {"element": [0, 1]})
    assert everything(filled, MEASUREMENTS, 3) == page["items"]
    assert {item["device_class"] for item in page["items"]} == {CLASS}


def test_measurements_of_a_device_or_a_session(filled: httpx.Client) -> None:
    everyone = filled.get(MEASUREMENTS).json()["items"]
    session = everyone[0]["session_id"]
    assert filled.get(MEASUREMENTS, params={"device": CLASS}).json()["items"] == everyone
    assert filled.get(MEASUREMENTS, params={"session": session}).json()["items"] == everyone
    assert filled.get(MEASUREMENTS, params={"device": "cuda"}).json()["items"] == []
    assert filled.get(MEASUREMENTS, params={"session": "other"}).json()["items"] == []
    fault_of(filled.get(MEASUREMENTS, params={"device": "hip"}), 404)
    fault_of(filled.get(MEASUREMENTS, params={"device": "cpu"}), 409)
    fault_of(filled.get(MEASUREMENTS, params={"session": "\0"}), 404)
    fault_of(filled.get(MEASUREMENTS, params={"view": "best"}), 422)


def test_the_leaderboard_has_each_candidate_once(filled: httpx.Client) -> None:
    board = fits(records.Leaderboard, filled.get(MEASUREMENTS, params={"view": "leaderboard"}))
    first, second, third = candidates(FIRST)
    ids = [row["solution"]["id"] for row in board["items"]]
    assert ids[:4] == [first.id, second.id, third.id, BASELINE.id]
    assert [row["rank"] for row in board["items"]] == [1, 2, 3, 4, 5]
    assert board["items"][0]["phases"]["proof"]["status"] == "ok"
    assert board["items"][4]["status"] == "wrong_result"
    session = board["session"]["id"]
    assert board["session"]["status"] == "succeeded"
    same = filled.get(MEASUREMENTS, params={"view": "leaderboard", "session": session}).json()
    assert same == board
    empty = filled.get(MEASUREMENTS, params={"view": "leaderboard", "device": "cuda"}).json()
    assert empty == {"session": None, "verdict": None, "items": []}
    other = f"/v1/problems/{PROBLEMS[1].id}/measurements"
    fault_of(filled.get(other, params={"view": "leaderboard", "session": session}), 404)


# ---- solutions -------------------------------------------------------------------------------------


def test_a_solution_tells_how_often_it_won(filled: httpx.Client) -> None:
    found = fits(records.SolutionAnswer, filled.get(f"/v1/solutions/{BASELINE.id}"))
    assert (found["family"], found["build"], found["verdicts_won"]) == ("openblas", "openblas 0.3.31", 0)
    assert found["measurements"] == 2 * len(PROBLEMS)
    winner = fits(records.SolutionAnswer, filled.get(f"/v1/solutions/{candidates(FIRST)[0].id}"))
    assert winner["verdicts_won"] > 0
