"""The leaderboard of problems, and the ceilings that a device's rooflines are made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from backends.dtypes import DTYPES
from db import leaderboard, worth
from db.judged import is_judged_kernel
from service import board_answers, deps, errors
from service.answers import Judgement
from service.board_cache import BoardCache
from service.deps import STRICT, ServiceDep, json_bytes
from service.diff import find_group
from service.leaderboard import ceilings, ranked
from service.pages import Cursor, LimitDep
from service.routes import describe
from service.routes.best import is_known
from service.routes.board_examples import BOARD, CEILINGS
from service.routes.question import policy_of
from service.routes.reports import Policy, Selector

router = APIRouter(tags=["reports"], dependencies=STRICT)


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
    environment: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=250,
            description="Only verdicts of this environment (its id, or the hash at its end) and of those "
            "with the same software.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        Query(
            max_length=40, description="As of this time: 2026-01-31 (its end, UTC) or 2026-01-31T12:00:00Z."
        ),
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
    if dtype is not None and dtype not in DTYPES:
        raise errors.bad_parameter("dtype", f"{dtype[:40]!r} is unknown; known: {', '.join(DTYPES)}")
    found = service.read(service.device_class, service.selector(device))
    problems = None
    if list_name is not None:
        problems = deps.found("list", list_name, service.read(worth.find_list, list_name))
    policy_id = policy_of(policy, None, None, found.vendor)
    scope = worth.Scope(str(found), policy_id, problems, family, dtype)
    asked = leaderboard.Board(
        scope,
        judgement,
        binds,
        None if environment is None else service.read(_environments, environment, str(found)),
        None if until is None else _time(until),
        judged,
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


def _environments(connection: Connection, name: str, device_class_id: str) -> tuple[str, ...]:
    group = find_group(connection, name, "environment")
    if group.device_class_id != device_class_id:
        raise errors.bad_parameter(
            "environment", f"it is of {group.device_class_id}, not of {device_class_id}"
        )
    return group.ids


def _time(text: str) -> str:
    """The time as rows have it. A date is its end."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None:
        raise errors.bad_parameter(
            "until", f"{text!r} is no date or time; give 2026-01-31 or 2026-01-31T12:00:00Z"
        )
    if len(text) == len("2026-01-31"):
        return f"{at:%Y-%m-%d}T23:59:59.999Z"
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        raise errors.bad_parameter("until", f"{text!r} is no time in UTC") from None
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
