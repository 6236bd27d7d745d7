"""Problems, what was measured for them, and solutions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from backends.dtypes import DTYPES
from backends.problem_rules import MAX_SIZE
from db import queries
from service import answers, errors, records
from service.deps import STRICT, Service, ServiceDep, answer, found, identifier
from service.pages import Page, PageDep, page_of
from service.routes import describe
from service.routes.examples import LEADERBOARD, MEASUREMENT, PROBLEM_ANSWER, PROBLEM_SUMMARY, SOLUTION_ANSWER
from service.routes.views import (
    leaderboard_view,
    measurement_view,
    problem_detail,
    problem_view,
    solution_view,
)

router = APIRouter(dependencies=STRICT)

Size = Annotated[int | None, Query(ge=1, le=MAX_SIZE, description="Of the row-major call.")]


@router.get(
    "/v1/solutions/{solution_id}",
    tags=["solutions"],
    response_model=records.SolutionAnswer,
    responses={200: describe.gives(SOLUTION_ANSWER), **describe.refuses(404)},
)
def get_solution(service: ServiceDep, solution_id: str) -> Response:
    """A solution, and how often it was measured and won."""
    name = identifier("solution", solution_id)
    return answer(solution_view(found("solution", name, service.read(queries.solution, name))))


@router.get(
    "/v1/problems",
    tags=["problems"],
    response_model=answers.Paged[records.ProblemSummary],
    responses={200: describe.gives({"items": [PROBLEM_SUMMARY], "next_cursor": None}), **describe.refuses()},
)
def list_problems(
    service: ServiceDep,
    page: PageDep,
    m: Size = None,
    n: Size = None,
    k: Size = None,
    dtype: Annotated[str | None, Query(description=describe.TYPE_OF_A)] = None,
) -> Response:
    """Every known problem, in the order met."""
    if dtype is not None and dtype not in DTYPES:
        raise errors.bad_parameter("dtype", f"{dtype[:40]!r} is unknown; known: {', '.join(DTYPES)}")
    # A row-major call's m is the stored, column-major problem's n.
    rows = service.read(queries.problems, page.after("problems"), page.limit + 1, m=n, n=m, k=k, dtype=dtype)
    shown = page_of("problems", rows, page.limit, lambda row: row["number"])
    return answer({**shown, "items": [problem_view(row) for row in shown["items"]]})


@router.get(
    "/v1/problems/{problem_id}",
    tags=["problems"],
    response_model=records.ProblemAnswer,
    responses={200: describe.gives(PROBLEM_ANSWER), **describe.refuses(404)},
)
def get_problem(service: ServiceDep, problem_id: str) -> Response:
    """A problem, its latest verdicts, and the names that other tools have for it."""
    name = identifier("problem", problem_id)
    return answer(problem_detail(found("problem", name, service.read(queries.problem, name))))


@router.get(
    "/v1/problems/{problem_id}/measurements",
    tags=["problems"],
    response_model=answers.Paged[records.Measurement] | records.Leaderboard,
    responses={
        200: describe.gives_some(
            {"outcomes": {"items": [MEASUREMENT], "next_cursor": None}, "leaderboard": LEADERBOARD},
            "Outcomes, or with view=leaderboard one row a solution",
        ),
        **describe.refuses(404, 409),
    },
)
def get_measurements(
    service: ServiceDep,
    problem_id: str,
    page: PageDep,
    device: Annotated[str | None, Query(max_length=200, description="A device selector.")] = None,
    session: Annotated[str | None, Query(max_length=200, description="Only of this session.")] = None,
    view: Annotated[
        Literal["outcomes", "leaderboard"],
        Query(description="leaderboard: of the latest session with a verdict, or of `session`."),
    ] = "outcomes",
) -> Response:
    """Every outcome of a problem in the order stored: what was right and how fast, what failed and why. Or
    the leaderboard of a session: every candidate once, the fastest first, with its interval and the reason
    why it did not win."""
    name = identifier("problem", problem_id)
    found("problem", name, service.read(queries.problem, name))
    class_id = None if device is None else str(service.read(service.device_class, device))
    if session is not None:
        identifier("session", session)
    if view == "leaderboard":
        return answer(_leaderboard(service, name, class_id, session))
    return answer(_outcomes(service, name, page, class_id, session))


def _outcomes(
    service: Service, problem_id: str, page: Page, class_id: str | None, session: str | None
) -> dict[str, Any]:
    after = page.after("measurements")
    rows = service.read(queries.measurements, problem_id, after, page.limit + 1, class_id, session)
    shown = page_of("measurements", rows, page.limit, lambda row: row["number"])
    return {**shown, "items": [measurement_view(row) for row in shown["items"]]}


def _leaderboard(
    service: Service, problem_id: str, class_id: str | None, session: str | None
) -> dict[str, Any]:
    if session is None:
        row = service.read(queries.latest_session, problem_id, class_id, None)
    else:
        row = service.read(queries.session, session)
        if row is None or row["problem_id"] != problem_id:
            raise errors.not_found("session of the problem", session)
    if row is None:
        return leaderboard_view(None, [])
    rows = service.read(queries.leaderboard, row["id"])
    return leaderboard_view(row, rows, service.read(queries.session_verdict, row["id"]))
