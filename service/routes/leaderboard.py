"""The leaderboard of problems, and the ceilings that a device's rooflines are made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from backends.dtypes import DTYPES
from db import leaderboard, worth
from db.compared import Compared
from db.judged import is_judged_kernel
from db.leaderboard import Board
from service import board_answers, deps, errors
from service.answers import Judgement
from service.board_cache import BoardCache
from service.compared import comparison
from service.deps import STRICT, Service, ServiceDep, json_bytes
from service.diff import find_group
from service.leaderboard import ceilings, ranked
from service.pages import Cursor, LimitDep
from service.routes import describe
from service.routes.best import is_known
from service.routes.board_examples import BOARD, CEILINGS, COMPARISON
from service.routes.question import policy_of
from service.routes.reports import Policy, Selector

router = APIRouter(tags=["reports"], dependencies=STRICT)
_ENVIRONMENT = (
    "Only verdicts of this environment (its id, or the hash at its end) and of those with its software."
)
_UNTIL = "As of this time: 2026-01-31 (its end, UTC) or 2026-01-31T12:00:00Z."
_Environment = Annotated[str | None, Query(min_length=1, max_length=250, description=_ENVIRONMENT)]
_Until = Annotated[str | None, Query(max_length=40, description=_UNTIL)]


def _tagged(example: Any) -> dict[int | str, dict[str, Any]]:
    """Responses of an answer with an ETag."""
    tag = {"description": "Of the answer.", "schema": {"type": "string"}}
    return {
        200: {**describe.gives(example), "headers": {"ETag": tag}},
        304: {"description": "What If-None-Match names is still the answer"},
    }


@router.get(
    "/v1/leaderboard",
    response_model=board_answers.Board,
    responses={**_tagged(BOARD), **describe.refuses(404, 409)},
)
def rank_problems(
    request: Request,
    service: ServiceDep,
    limit: LimitDep,
    cursor: Cursor = None,
    device: Selector = None,
    list_name: Annotated[
        str | None,
        Query(
            alias="list",
            min_length=1,
            max_length=500,
            description="Only problems of the imported files with this source, or of a tuning's id, with "
            "their calls there.",
        ),
    ] = None,
    family: Annotated[
        str | None, Query(min_length=1, max_length=80, description="Only problems that this family won.")
    ] = None,
    dtype: Annotated[str | None, Query(max_length=40, description=describe.TYPE_OF_A)] = None,
    judgement: Annotated[Judgement | None, Query(description="Only such verdicts.")] = None,
    binds: Annotated[
        Literal["compute", "memory"] | None, Query(description="Only problems that this ceiling binds.")
    ] = None,
    environment: _Environment = None,
    until: _Until = None,
    problem: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Only this problem, by its id.")
    ] = None,
    judged: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=80,
            description="The verdicts of this judged kernel (gemmtune judge), in place of the winners'; its "
            "speed-up is what was measured, slower or not.",
        ),
    ] = None,
    sort: Annotated[
        board_answers.Sort,
        Query(
            description="saved: seconds of all calls; roofline: the share reached; decided: the time; "
            "problem: the order in which problems were first stored."
        ),
    ] = "saved",
    order: Annotated[
        Literal["asc", "desc"] | None,
        Query(description="Default: the fastest or largest first, the latest for decided."),
    ] = None,
    by: Annotated[
        list[Literal["family", "dtype", "judgement", "list"]],
        Query(
            description="Also group the problems; may be given several times. Groups by what a filter names "
            "are those of the other filters. A problem may be in several lists.",
        ),
    ] = [],  # noqa: B006  (FastAPI copies it)
    policy: Policy = None,
) -> Response:
    """Problems of a device class ranked by what their verdicts save, with aggregates of all of them: the
    geometric mean of speed-ups, fast_p, the share of the roofline, wins, ties and losses, and call-weighted
    seconds."""
    _check_type(dtype)
    found = service.read(service.device_class, service.selector(device))
    problems = None
    if list_name is not None:
        problems = deps.found("list", list_name, service.read(worth.find_list, list_name))
    policy_id = policy_of(policy, None, None, found.vendor)
    scope = worth.Scope(str(found), policy_id, problems, family, dtype)
    asked = replace(
        _board(service, scope, environment, until),
        judgement=judgement,
        binds=binds,
        judged=judged,
        problem_id=problem,
    )
    if judged is not None:
        if environment is not None or until is not None:
            raise errors.bad_parameter("judged", "it cannot be combined with environment or until")
        if not service.read(is_judged_kernel, judged):
            raise errors.not_found("judged kernel", judged)
    descending = leaderboard.SORTS[sort] if order is None else order == "desc"
    how = (sort, descending, cursor, limit, tuple(dict.fromkeys(by)))
    stamp = service.read(leaderboard.stamp, str(found), judged is not None)
    return _kept(request, (asked, how), stamp, lambda: service.read(ranked, asked, *how))


@router.get(
    "/v1/compare",
    response_model=board_answers.Comparison,
    responses={**_tagged(COMPARISON), **describe.refuses(404, 409)},
)
def compare_boards(
    request: Request,
    service: ServiceDep,
    limit: LimitDep,
    cursor: Cursor = None,
    a: Selector = None,
    b: Selector = None,
    a_environment: _Environment = None,
    b_environment: _Environment = None,
    a_until: _Until = None,
    b_until: _Until = None,
    a_policy: Policy = None,
    b_policy: Policy = None,
    list_name: Annotated[
        str | None,
        Query(
            alias="list",
            min_length=1,
            max_length=500,
            description="Only problems of the imported files with this source, or of a tuning's id.",
        ),
    ] = None,
    dtype: Annotated[str | None, Query(max_length=40, description=describe.TYPE_OF_A)] = None,
    by: Annotated[
        Literal["time", "speedup"],
        Query(description="time: the ratio is A's time over B's; speedup: B's speed-up over A's."),
    ] = "time",
    change: Annotated[board_answers.Change | None, Query(description="Only list such problems.")] = None,
    order: Annotated[
        Literal["asc", "desc"],
        Query(description="By the ratio: asc lists what got worst first. Those without one are last."),
    ] = "asc",
) -> Response:
    """Two boards side by side, of device classes, environments or times: what became better, worse, lost or
    new in B, and the ratio of each problem."""
    problems = None
    if list_name is not None:
        problems = deps.found("list", list_name, service.read(worth.find_list, list_name))
    _check_type(dtype)

    def side(selector: str | None, policy: str | None) -> worth.Scope:
        found = service.read(service.device_class, service.selector(selector))
        return worth.Scope(str(found), policy_of(policy, None, None, found.vendor), problems, None, dtype)

    asked = Compared(
        _board(service, side(a, a_policy), a_environment, a_until, "a_"),
        _board(service, side(b, b_policy), b_environment, b_until, "b_"),
        by,
        change,
    )
    how = (order == "desc", cursor, limit)
    stamp = tuple(service.read(leaderboard.stamp, one.scope.device_class_id) for one in (asked.a, asked.b))
    return _kept(request, (asked, how), stamp, lambda: service.read(comparison, asked, *how))


@router.get(
    "/v1/ceilings",
    response_model=board_answers.Ceilings,
    responses={**_tagged(CEILINGS), **describe.refuses(404, 409)},
)
def measured_ceilings(
    request: Request, service: ServiceDep, device: Selector = None, policy: Policy = None
) -> Response:
    """The measured ceilings that a device class's verdicts were compared with: bytes per second of reading,
    and operations per second by input type."""
    found = service.read(service.device_class, service.selector(device))
    asked = (str(found), policy_of(policy, None, None, found.vendor))
    stamp = service.read(leaderboard.stamp, str(found))
    return _kept(request, ("ceilings", asked), stamp, lambda: service.read(ceilings, *asked))


def _kept(request: Request, question: Hashable, stamp: Hashable, make: Callable[[], Any]) -> Response:
    """The answer to a question, kept while the stamp of the rows that it is made of stays, with its ETag."""
    cache: BoardCache = request.app.state.boards
    kept = cache.get(question, stamp, lambda: json_bytes(make()))
    headers = {"ETag": kept.tag, "Cache-Control": "no-cache"}
    if is_known(request, kept.tag):
        return Response(status_code=304, headers=headers)
    return Response(kept.body, 200, headers, "application/json")


def _check_type(dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise errors.bad_parameter("dtype", f"{dtype[:40]!r} is unknown; known: {', '.join(DTYPES)}")


def _board(
    service: Service, scope: worth.Scope, environment: str | None, until: str | None, prefix: str = ""
) -> Board:
    """The board of an environment and a time; `prefix` is that of their parameters' names."""
    ids = None
    if environment is not None:
        ids = service.read(_environments, environment, scope.device_class_id, f"{prefix}environment")
    return Board(scope, environment_ids=ids, until=None if until is None else _time(until, f"{prefix}until"))


def _environments(connection: Connection, name: str, device_class_id: str, parameter: str) -> tuple[str, ...]:
    group = find_group(connection, name, parameter)
    if group.device_class_id != device_class_id:
        raise errors.bad_parameter(parameter, f"it is of {group.device_class_id}, not of {device_class_id}")
    return group.ids


def _time(text: str, parameter: str) -> str:
    """The time as rows have it. A date is its end."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None:
        raise errors.bad_parameter(
            parameter, f"{text!r} is no date or time; give 2026-01-31 or 2026-01-31T12:00:00Z"
        )
    if len(text) == len("2026-01-31"):
        return f"{at:%Y-%m-%d}T23:59:59.999Z"
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        raise errors.bad_parameter(parameter, f"{text!r} is no time in UTC") from None
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
