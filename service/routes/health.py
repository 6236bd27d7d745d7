"""Whether the service lives, whether it can work, and its metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from db import gauges, schema
from service import answers, errors, readiness
from service.deps import STRICT, ServiceDep, answer
from service.metrics import CONTENT_TYPE, Metrics
from service.routes import describe

router = APIRouter(tags=["operations"], dependencies=STRICT)


@router.get(
    "/healthz",
    response_model=answers.Health,
    responses={200: describe.gives({"status": "ok"}), **describe.refuses()},
)
async def healthz() -> Response:
    """The process lives. Nothing else is looked at."""
    return answer({"status": "ok"})


@router.get(
    "/readyz",
    response_model=answers.Ready,
    responses={
        200: describe.gives({"status": "ready", "schema": "0005", "workers": 1}),
        **describe.refuses(),
    },
)
def readyz(service: ServiceDep) -> Response:
    """The database answers, takes writes, and has this version's schema, its disk and the cache's have room,
    the audit log takes lines, and the workers beside this server live; else 503, which says what to do.
    `workers` counts the live ones of all device classes."""
    schema.ready(service.engine)
    readiness.check_disks(service.settings)
    failing = service.failing_workers()
    if failing:
        raise errors.workers_fail(failing)
    return answer(
        {
            "status": "ready",
            "schema": schema.current(service.engine),
            "workers": service.read(gauges.live_workers),
        }
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus text",
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": 'gemmtune_jobs{status="queued"} 3.0\n',
                }
            },
        },
        **describe.refuses(),
    },
)
def metrics(request: Request) -> Response:
    """Requests by route, jobs and workers by status, and the process, for Prometheus."""
    found: Metrics = request.app.state.metrics
    return Response(found.text(), media_type=CONTENT_TYPE)
