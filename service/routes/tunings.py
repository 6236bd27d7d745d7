"""Tunings: submitted, followed, cancelled."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from db import queries
from service import answers, errors, schemas
from service.campaign_plan import plan_campaign
from service.deps import STRICT, JsonBody, ServiceDep, answer, found, identifier, parse_json, parse_model
from service.pages import Cursor, LimitDep, Page, PageDep, page_of
from service.routes import describe, parsing
from service.routes.examples import EVENT, TUNING, TUNING_CREATED, TUNING_REQUEST
from service.routes.stream import after_of, event_stream, wants_json
from service.routes.views import event_view, job_view, left_out_view, tuning_links, tuning_view
from service.shares import share_of
from service.tracing import traceparent_of

router = APIRouter(tags=["tunings"], dependencies=STRICT)

CREATED = {
    **describe.gives(TUNING_CREATED, "Accepted; follow it at Location"),
    "headers": {"Location": {"description": "The tuning.", "schema": {"type": "string"}}},
}


@router.post(
    "/v1/tunings",
    status_code=202,
    response_model=answers.TuningCreated,
    responses={202: CREATED, **describe.refuses(409, body=True)},
    openapi_extra=describe.takes(schemas.TuningRequest, TUNING_REQUEST),
)
def create_tuning(request: Request, service: ServiceDep, body: JsonBody) -> Response:
    """Submit problems to be tuned. What another tuning has in flight is shared, and what is known already is
    not measured again (unless forced). With `campaign_seconds` problems may be left out; if all are, the
    tuning has no jobs and has ended."""
    value = parse_json(body)
    faults: list[errors.Part] = []
    given = parsing.problems(value, service.settings.max_problems, True, faults)
    items = parsing.merged(given)
    asked = parse_model(schemas.TuningRequest, value, faults)
    device = parsing.device_class(service, service.selector(asked.device), workable=True)
    settings = parsing.settings_of(asked, service.settings, device)
    parsing.check_sizes(service, device, settings.policy, given)
    share = share_of(request.scope, service.settings)
    campaign, seconds = None, asked.budget.campaign_seconds
    if seconds is not None:
        # A plan reads every best row of the class: not for a client that may have no job more.
        service.tunings.check_share(share, asked.priority)
        campaign = service.read(plan_campaign, str(device), settings.policy.id, items, seconds, asked.force)
    created = service.tunings.submit(
        device, settings, items, asked.priority, asked.force, share, traceparent_of(request.scope), campaign
    )
    links = tuning_links(created.id)
    value = {
        "id": created.id,
        "status": "succeeded" if created.known == created.total else "queued",
        "device_class": str(device),
        "policy_id": settings.policy.id,
        "total": created.total,
        "new": created.total - created.shared - created.known,
        "shared": created.shared,
        "known": created.known,
        "left_out": None if campaign is None else left_out_view(campaign),
        "links": links,
    }
    return answer(value, 202, {"Location": links["self"]})


@router.get(
    "/v1/tunings",
    response_model=answers.Paged[answers.TuningSummary],
    responses={
        200: describe.gives({"items": [TUNING], "next_cursor": None}, "Newest first"),
        **describe.refuses(),
    },
)
def list_tunings(
    service: ServiceDep,
    page: PageDep,
    status: Annotated[answers.Status | None, Query(description="Only such tunings.")] = None,
) -> Response:
    """Tunings, newest first."""
    before = None if page.cursor is None else page.after("tunings")
    rows = service.read(queries.tunings, before, page.limit + 1, status)
    shown = page_of("tunings", rows, page.limit, lambda row: row["number"])
    return answer({**shown, "items": [tuning_view(row) for row in shown["items"]]})


@router.get(
    "/v1/tunings/{tuning_id}",
    response_model=answers.Tuning,
    responses={200: describe.gives({**TUNING, "jobs": {"items": [], "next_cursor": None}}),
               **describe.refuses(404)},
)  # fmt: skip
def get_tuning(service: ServiceDep, tuning_id: str, limit: LimitDep, jobs_cursor: Cursor = None) -> Response:
    """A tuning and a page of its jobs, in the order they were given."""
    return answer(_with_jobs(service, tuning_id, Page(jobs_cursor, limit, "jobs_cursor")))


def _with_jobs(service: ServiceDep, tuning_id: str, page: Page) -> dict[str, Any]:
    name = identifier("tuning", tuning_id)
    row = found("tuning", name, service.read(queries.tuning, name))
    rows = service.read(queries.tuning_jobs, row["number"], page.after("jobs", -1), page.limit + 1)
    jobs = page_of("jobs", rows, page.limit, lambda job: job["position"])
    return {**tuning_view(row), "jobs": {**jobs, "items": [job_view(job) for job in jobs["items"]]}}


@router.delete(
    "/v1/tunings/{tuning_id}",
    response_model=answers.TuningSummary,
    responses={
        200: describe.gives({**TUNING, "status": "cancelled"}, "The tuning as it is now"),
        **describe.refuses(404),
    },
)
def cancel_tuning(service: ServiceDep, tuning_id: str) -> Response:
    """Cancel a tuning. It lets go of its jobs; one that no other tuning waits for is taken out of the queue,
    or stops. Cancelling again, or what has ended, changes nothing."""
    name = identifier("tuning", tuning_id)
    if not service.tunings.cancel(name):
        raise errors.not_found("tuning", name)
    return answer(tuning_view(found("tuning", name, service.read(queries.tuning, name))))


@router.get(
    "/v1/tunings/{tuning_id}/events",
    response_model=answers.Paged[answers.Event],
    responses={
        200: {
            "description": "A stream of events; with Accept: application/json a page of them",
            "content": {
                "application/json": {"example": describe.kept({"items": [EVENT], "next_cursor": None})},
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'id: 1\nevent: queued\ndata: {"total":1,"shared":0,"known":0}\n\n',
                },
            },
        },
        204: {"description": "The tuning has ended and every event was had: do not connect again"},
        **describe.refuses(404),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "description": "The number of the last event that was had; as `after`.",
                "schema": {"type": "integer", "minimum": 0},
            }
        ]
    },
)
def tuning_events(
    request: Request,
    service: ServiceDep,
    tuning_id: str,
    page: PageDep,
    after: Annotated[
        int | None, Query(ge=0, le=schemas.INT64, description="Only events after this number.")
    ] = None,
) -> Response:
    """A tuning's events, from the first: as server-sent events until it ends (Last-Event-ID resumes), or as
    pages of JSON."""
    name = identifier("tuning", tuning_id)
    row = found("tuning", name, service.read(queries.tuning, name))
    start = after_of(request, after)
    if not wants_json(request):
        return event_stream(service, request.app.state.events, row, start)
    rows = service.read(queries.events, row["number"], max(start, page.after("events")), page.limit + 1)
    shown = page_of("events", rows, page.limit, lambda event: event["number"])
    return answer({**shown, "items": [event_view(event) for event in shown["items"]]})
