"""The fleet: workers, jobs, and failed jobs queued again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from db import fleet, queries
from db.engine import writing
from db.retries import retry_job
from service import answers, errors, records
from service.deps import STRICT, ServiceDep, answer, found, identifier
from service.pages import PageDep, page_of
from service.routes import describe
from service.routes.examples import JOB, WORKER
from service.routes.views import fleet_job_view, worker_view
from service.shares import share_of

router = APIRouter(tags=["fleet"], dependencies=STRICT)
_JOB_ID = "/v1/jobs/{job_id}"
#: The list's name in cursors: a tuning's jobs are another list.
_JOBS = "fleet-jobs"

Device = Annotated[str | None, Query(max_length=200, description="A device selector.")]


@router.get(
    "/v1/workers",
    response_model=answers.Paged[records.Worker],
    responses={
        200: describe.gives({"items": [WORKER], "next_cursor": None}, "Newest first"),
        **describe.refuses(404, 409),
    },
)
def list_workers(
    service: ServiceDep,
    page: PageDep,
    state: Annotated[records.WorkerState | None, Query(description="Only such workers.")] = None,
    device: Device = None,
    latest: Annotated[bool, Query(description="Only the latest worker of each device.")] = False,
) -> Response:
    """Workers, newest first: where they run, whether they live, what they run and what failed last."""
    class_id = None if device is None else str(service.read(service.device_class, device))
    before = None if page.cursor is None else page.after("workers")
    rows = service.read(fleet.workers, before, page.limit + 1, state, class_id, latest)
    shown = page_of("workers", rows, page.limit, lambda row: row["number"])
    return answer({**shown, "items": [worker_view(row) for row in shown["items"]]})


@router.get(
    "/v1/jobs",
    response_model=answers.Paged[records.Job],
    responses={
        200: describe.gives({"items": [JOB], "next_cursor": None}, "Newest first"),
        **describe.refuses(404, 409),
    },
)
def list_jobs(
    service: ServiceDep,
    page: PageDep,
    state: Annotated[answers.Status | None, Query(description="Only such jobs.")] = None,
    device: Device = None,
    tuning: Annotated[str | None, Query(max_length=200, description="Only jobs of this tuning.")] = None,
) -> Response:
    """Jobs of all tunings, newest first, with the reason of each failure."""
    class_id = None if device is None else str(service.read(service.device_class, device))
    number = None
    if tuning is not None:
        name = identifier("tuning", tuning)
        number = found("tuning", name, service.read(queries.tuning, name))["number"]
    before = None if page.cursor is None else page.after(_JOBS)
    rows = service.read(fleet.jobs, before, page.limit + 1, state, class_id, number)
    shown = page_of(_JOBS, rows, page.limit, lambda row: row["number"])
    return answer({**shown, "items": [fleet_job_view(row) for row in shown["items"]]})


@router.get(
    _JOB_ID, response_model=records.Job, responses={200: describe.gives(JOB), **describe.refuses(404)}
)
def get_job(service: ServiceDep, job_id: str) -> Response:
    """A job."""
    return answer(_job(service, identifier("job", job_id)))


@router.post(
    f"{_JOB_ID}/retry",
    status_code=202,
    response_model=records.Job,
    responses={
        202: describe.gives({**JOB, "status": "queued", "retries": 1, "error": None}, "Queued again"),
        **describe.refuses(404, 409),
    },
)
def retry(request: Request, service: ServiceDep, job_id: str) -> Response:
    """Queue a failed job again. It is measured anew, and its tunings that had ended run again. A job that is
    not failed is a 409 that says its state, so that a request that is sent twice queues it once."""
    name = identifier("job", job_id)
    share = share_of(request.scope, service.settings)
    with writing(service.engine) as connection:
        row = None if share is None else fleet.job(connection, name)
        if share is not None and row is not None:
            share.check(connection, row["priority"], 1)
        done = retry_job(connection, name)
    if not done:
        raise errors.not_found("job", name)
    return answer(_job(service, name), 202)


def _job(service: ServiceDep, name: str) -> dict[str, object]:
    return fleet_job_view(found("job", name, service.read(fleet.job, name)))
