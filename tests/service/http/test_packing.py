"""What a solution's packed copy of the weights costs, wherever the solution is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from backends.outcome import Outcome, Phase
from backends.solution import Solution
from db import sessions
from db.engine import writing
from service import answers, records, report
from service.commands.data import _show_best
from service.requests import request_content
from tests.service.http.filled import ENVIRONMENT, HUNGRY, POLICY, candidates, outcomes_of, problem, result_of
from tests.service.http.shapes import fits
from tuners.budget import Budget, Search
from tuners.decide import DecisionRule
from tuners.packed import PackingCost
from tuners.session_store import Result

ONE = {"m": 16, "n": 256, "k": 512}
ASKED = problem(**ONE)
#: The winner and the next one read packed copies; the third does not.
WINNER, SECOND, THIRD = candidates(ASKED)
COSTS = {
    WINNER.id: PackingCost("rows_16", 3 * 2**19, 84.62),
    SECOND.id: PackingCost("tiles_64", 2**20, 120.0),
}


def told(outcome: Outcome) -> Outcome:
    """The outcome as the device process tells it."""
    cost = COSTS.get(outcome.solution.id)
    if cost is None or outcome.phase is Phase.FINAL:
        return outcome
    screened = replace(cost, us=99.0) if outcome.phase is Phase.SCREEN else cost
    return replace(outcome, evidence={**outcome.evidence, "packing": screened.to_dict()})


def with_packing(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The result of a session whose winner reads a packed copy."""
    found = result_of(ASKED, outcomes)
    found["verdict"]["packing"] = COSTS[WINNER.id].to_dict()
    return found


@pytest.fixture
def session_id(client: httpx.Client, engine: Engine) -> str:
    content = request_content(Budget(), Search(), DecisionRule())
    start = sessions.SessionStart(ASKED, ENVIRONMENT, POLICY.id, POLICY.to_dict(), content, origin="filled")
    outcomes = [told(outcome) for outcome in outcomes_of(ASKED, ENVIRONMENT, 1e-3)]
    with writing(engine) as connection:
        found = sessions.begin_session(connection, start)
        sessions.append_outcomes(connection, found, outcomes, 1, Counter())
        sessions.end_session(connection, start, with_packing(outcomes))
    return found


def best(client: httpx.Client, **parameters: Any) -> Any:
    return fits(answers.Best, client.get("/v1/solutions/best", params={**ONE, **parameters}))


def test_the_best_row_has_the_winners(client: httpx.Client, session_id: str) -> None:
    found = best(client)
    assert found["solution"]["id"] == WINNER.id
    assert found["packing"] == {"layout": "rows_16", "bytes": 3 * 2**19, "us": 84.62}


@pytest.mark.parametrize(("family", "solution"), [(SECOND.family, SECOND), (THIRD.family, THIRD)])
def test_an_alternative_has_its_own(
    client: httpx.Client, session_id: str, family: str, solution: Solution
) -> None:
    found = best(client, families=family, max_workspace=HUNGRY - 1)
    assert found["alternative"]
    assert found["solution"]["id"] == solution.id
    cost = COSTS.get(solution.id)
    assert found.get("packing") == (None if cost is None else {**cost.to_dict(), "us": 99.0})
    assert ("packing" in found) == (cost is not None)


def test_a_near_answer_says_whose_it_is(client: httpx.Client, session_id: str) -> None:
    found = best(client, m=17)
    assert found["match"] == "nearest"
    assert found["packing"]["layout"] == "rows_16"
    assert f"packing is what the solution took for {ASKED.id}" in found["notes"]


def test_candidates_and_verdicts_have_theirs(client: httpx.Client, session_id: str) -> None:
    url = f"/v1/problems/{ASKED.id}"
    board = fits(records.Leaderboard, client.get(f"{url}/measurements", params={"view": "leaderboard"}))
    packing = {row["solution"]["id"]: row["packing"] for row in board["items"]}
    assert packing[WINNER.id] == COSTS[WINNER.id].to_dict(), "its proof's, by its own packing kernel"
    assert packing[SECOND.id]["us"] == 99.0
    assert packing[THIRD.id] is None
    assert board["verdict"]["packing"] == COSTS[WINNER.id].to_dict()
    (verdict,) = fits(records.ProblemAnswer, client.get(url))["verdicts"]
    assert verdict["verdict"]["packing"] == COSTS[WINNER.id].to_dict()


def test_commands_show_it(client: httpx.Client, session_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = "rows_16, 1.5 MiB, packed once in 84.6 us"
    _show_best(best(client))
    assert said in " ".join(capsys.readouterr().out.split())
    _show_best(best(client, families=THIRD.family, max_workspace=HUNGRY - 1))
    assert "packed once" not in capsys.readouterr().out
    outcomes = outcomes_of(ASKED, ENVIRONMENT, 1e-3)
    for values, shown in ((with_packing(outcomes), True), (result_of(ASKED, outcomes), False)):
        table = report.verdicts_table([Result.from_dict(values)], {})
        (cell,) = table.columns[0].cells
        assert (f"packed weights: {said}" in str(cell)) == shown
