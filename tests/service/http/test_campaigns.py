"""Campaigns over HTTP: seconds shared at submission, what is left out and why, bounds."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import Engine

from db.engine import writing
from service import answers
from tests.service.http.filled import measured, problem
from tests.service.http.shapes import fault_of, fits
from tests.service.http.test_tunings import ONE, TWO, jobs_of, submit


def seconds_of(engine: Engine) -> dict[str, float]:
    """Problem -> the seconds of its job, in the order in which jobs run."""
    return {job.problem_id: job.request["budget"]["seconds"] for job in jobs_of(engine)}


def test_a_campaigns_seconds_are_shared_by_calls_and_work(client: httpx.Client, engine: Engine) -> None:
    large = {"m": 512, "n": 256, "k": 512}
    response = submit(
        client, {**ONE, "count": 8}, TWO, large, budget={"campaign_seconds": 4, "candidates": 3}
    )
    assert response.status_code == 202
    made = fits(answers.TuningCreated, response)
    assert (made["total"], made["new"], made["status"]) == (3, 3, "queued")
    nothing = {"problems": 0, "problem_ids": []}
    assert made["left_out"] == {"tuned": nothing, "no_share": nothing}
    # Nothing of the class is tuned: 32, 8 and 2 parts of FLOPs, and what rounding left raised the last.
    assert list(seconds_of(engine).items()) == [
        (problem(**large).id, 2.5), (problem(**ONE).id, 0.8), (problem(**TWO).id, 0.63),
    ]  # fmt: skip
    assert {job.request["budget"]["candidates"] for job in jobs_of(engine)} == {3}
    found = fits(answers.Tuning, client.get(made["links"]["self"]))
    assert [job["problem_id"] for job in found["jobs"]["items"]] == list(seconds_of(engine))
    assert [job["count"] for job in found["jobs"]["items"]] == [1, 8, 1]
    assert found["request"]["campaign"] == {"seconds": 4.0, "left_out": {"tuned": 0, "no_share": 0}}
    assert "seconds" not in found["request"]["budget"]
    again = submit(client, TWO, large, {**ONE, "count": 8}, budget={"campaign_seconds": 4, "candidates": 3})
    assert (again.json()["shared"], again.json()["new"]) == (3, 0)


def test_a_campaign_tells_what_is_tuned_from_what_has_no_share(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(**ONE))
    many = {"m": 64, "n": 256, "k": 512, "count": 50}
    made = fits(answers.TuningCreated, submit(client, ONE, TWO, many, budget={"campaign_seconds": 0.5}))
    assert (made["total"], made["new"], made["known"]) == (1, 1, 0)
    assert made["left_out"] == {
        "tuned": {"problems": 1, "problem_ids": [problem(**ONE).id]},
        "no_share": {"problems": 1, "problem_ids": [problem(**TWO).id]},
    }
    forced = submit(client, ONE, budget={"campaign_seconds": 0.5}, force=True).json()
    assert (forced["new"], forced["left_out"]["tuned"]["problems"]) == (1, 0)


def test_a_campaign_posted_again_shares_its_seconds_among_what_is_left(
    client: httpx.Client, engine: Engine
) -> None:
    asked = {"budget": {"campaign_seconds": 2}}
    assert submit(client, ONE, TWO, **asked).json()["new"] == 2
    before = seconds_of(engine)[problem(**TWO).id]
    with writing(engine) as connection:
        measured(connection, problem(**ONE))
    again = submit(client, ONE, TWO, **asked).json()
    assert again["left_out"]["tuned"]["problem_ids"] == [problem(**ONE).id]
    assert (again["total"], again["new"], again["shared"]) == (1, 1, 0)
    assert before < seconds_of(engine)[problem(**TWO).id] == 2.0


def test_a_campaign_of_tuned_problems_alone_has_succeeded(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(**ONE))
    made = fits(answers.TuningCreated, submit(client, ONE, budget={"campaign_seconds": 60}))
    assert (made["status"], made["total"], made["left_out"]["tuned"]["problems"]) == ("succeeded", 0, 1)
    found = fits(answers.Tuning, client.get(made["links"]["self"]))
    assert (found["status"], found["total"], found["jobs"]["items"]) == ("succeeded", 0, [])
    events = client.get(made["links"]["events"], headers={"Accept": "application/json"}).json()["items"]
    assert [event["kind"] for event in events] == ["queued", "ended"]
    assert jobs_of(engine) == []


def test_a_large_campaign_is_stored_in_pieces(client: httpx.Client, engine: Engine) -> None:
    items = [{"m": m, "n": 64, "k": 64} for m in range(1, 402)]
    made = submit(client, *items, budget={"campaign_seconds": 400}).json()
    total, left_out = made["total"], made["left_out"]["no_share"]["problems"]
    assert (made["new"], total + left_out) == (total, 401)
    assert total > 200, "more than a piece"
    jobs = jobs_of(engine)
    assert [job.problem_id for job in jobs] == [problem(m, 64, 64).id for m in range(401, 401 - total, -1)]
    seconds = [job.request["budget"]["seconds"] for job in jobs]
    assert 380 < sum(seconds) <= 400
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) > 2
    again = submit(client, *items, budget={"campaign_seconds": 400}).json()
    assert (again["new"], again["shared"]) == (0, total)


@pytest.mark.parametrize(
    ("budget", "detail"),
    [
        ({"campaign_seconds": 0}, "greater than or equal to 0.5"),
        ({"campaign_seconds": 1e-6}, "greater than or equal to 0.5"),
        ({"campaign_seconds": -1}, "greater than or equal to 0.5"),
        ({"campaign_seconds": 604_801}, "less than or equal to 604800"),
        ({"campaign_seconds": 1e300}, "less than or equal to 604800"),
        ({"campaign_seconds": 60, "seconds_per_problem": 2}, "not both"),
        ({"seconds_per_problem": 1e-6}, "greater than or equal to 0.01"),
        ({"seconds_per_problem": 86_400}, "less than or equal to 3600"),
    ],
    ids=str,
)
def test_seconds_out_of_bounds_are_refused_with_the_bound(
    filled: httpx.Client, budget: dict[str, float], detail: str
) -> None:
    (fault,) = fault_of(submit(filled, ONE, budget=budget), 422)["errors"]
    assert fault["pointer"] == f"/budget/{next(iter(budget))}"
    assert detail in fault["detail"]


@pytest.mark.parametrize("value", ["Infinity", "NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["campaign_seconds", "seconds_per_problem"])
def test_seconds_that_are_no_number_are_refused(filled: httpx.Client, name: str, value: str) -> None:
    body = f'{{"problems": [{{"m": 16, "n": 256, "k": 512}}], "budget": {{"{name}": {value}}}}}'
    response = filled.post("/v1/tunings", content=body, headers={"Content-Type": "application/json"})
    fault_of(response, 400)
