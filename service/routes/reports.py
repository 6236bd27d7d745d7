"""Reports on a device class: what tuning is worth, and what became of winners in another environment."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from db import worth
from service import deps, report_answers
from service.deps import STRICT, ServiceDep, answer
from service.diff import Fate, compare_named
from service.pages import LimitDep, PageDep, page_of
from service.routes import describe
from service.routes.question import policy_of
from service.routes.report_examples import DIFF, WORTH
from service.worth import worth_report

router = APIRouter(tags=["reports"], dependencies=STRICT)

Selector = Annotated[
    str | None, Query(max_length=200, description="A device selector; default GEMMTUNE_DEVICE.")
]
Policy = Annotated[
    str | None, Query(max_length=80, description="A measurement policy's id; default: the device's.")
]


@router.get(
    "/v1/reports/worth",
    response_model=report_answers.Worth,
    responses={200: describe.gives(WORTH), **describe.refuses(404, 409)},
)
def report_worth(
    service: ServiceDep,
    limit: LimitDep,
    device: Selector = None,
    list_name: Annotated[
        str | None,
        Query(
            alias="list",
            min_length=1,
            max_length=500,
            description="Only problems of the imported files with this source, or of a tuning's id.",
        ),
    ] = None,
    family: Annotated[
        str | None, Query(min_length=1, max_length=80, description="Only problems that this family won.")
    ] = None,
    dtype: Annotated[str | None, Query(min_length=1, max_length=40, description=describe.TYPE_OF_A)] = None,
    policy: Policy = None,
    detail: Annotated[
        bool,
        Query(description="Also the distribution, the curve of fast_p, the roofline, the largest gains."),
    ] = False,
) -> Response:
    """What tuning is worth on a device class: call-weighted seconds saved, the shares of problems with a
    speed-up of at least p (fast_p), the problems to tune next with their expected saving, and rows that are
    stale. `limit` is the number of untuned problems, of stale rows and of gains that are
    listed."""
    found = service.read(service.device_class, service.selector(device))
    problems = None
    if list_name is not None:
        problems = deps.found("list", list_name, service.read(worth.find_list, list_name))
    policy_id = policy_of(policy, None, None, found.vendor)
    scope = worth.Scope(str(found), policy_id, problems, family, dtype)
    return answer(service.read(worth_report, scope, limit, detail))


_ENVIRONMENT = Query(min_length=1, max_length=250, description="An environment's id, or the hash at its end.")


@router.get(
    "/v1/diff",
    response_model=report_answers.Diff,
    responses={200: describe.gives(DIFF), **describe.refuses()},
)
def compare_environments(
    service: ServiceDep,
    page: PageDep,
    before: Annotated[str, _ENVIRONMENT],
    after: Annotated[str, _ENVIRONMENT],
    fate: Annotated[Fate | None, Query(description="Only winners with this fate.")] = None,
    policy: Policy = None,
) -> Response:
    """What became of the winners of one environment in another of the same device class: kept, beaten,
    broken (it failed), retired (it could not be tried) or pending (the problem has no verdict there yet).
    `counts` are of all winners."""
    found = service.read(compare_named, before, after, policy)
    number = page.after("diff")
    rows = [one for one in found["items"] if one["number"] > number and fate in (None, one["fate"])]
    return answer({**found, **page_of("diff", rows, page.limit, lambda row: row["number"])})
