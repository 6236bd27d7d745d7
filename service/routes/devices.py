"""Where problems are measured: devices, environments, backends."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from backends import registry
from db import fleet, queries
from service import answers, records
from service.deps import STRICT, ServiceDep, answer
from service.pages import PageDep, page_of
from service.routes import describe
from service.routes.examples import BACKENDS, DEVICES, ENVIRONMENT
from service.routes.views import device_view, environment_view, worker_view

router = APIRouter(tags=["devices"], dependencies=STRICT)
#: The latest workers, which the list of device classes has beside them; /v1/workers has all.
_WORKERS = 100


@router.get(
    "/v1/devices",
    response_model=records.Devices,
    responses={200: describe.gives(DEVICES), **describe.refuses()},
)
def list_devices(service: ServiceDep) -> Response:
    """The device classes that a selector may name, and the latest workers."""
    classes = service.read(queries.device_classes)
    workers = service.read(fleet.workers, None, _WORKERS)
    return answer(
        {"classes": [device_view(row) for row in classes], "workers": [worker_view(row) for row in workers]}
    )


@router.get(
    "/v1/environments",
    response_model=answers.Paged[records.Environment],
    responses={
        200: describe.gives({"items": [ENVIRONMENT], "next_cursor": None}),
        **describe.refuses(404, 409),
    },
)
def list_environments(
    service: ServiceDep,
    page: PageDep,
    device: Annotated[str | None, Query(max_length=200, description="A device selector.")] = None,
) -> Response:
    """The devices with their drivers and libraries that results are true of, in the order met."""
    class_id = None if device is None else str(service.read(service.device_class, device))
    rows = service.read(queries.environments, page.after("environments"), page.limit + 1, class_id)
    shown = page_of("environments", rows, page.limit, lambda row: row["number"])
    return answer({**shown, "items": [environment_view(row) for row in shown["items"]]})


@router.get(
    "/v1/backends",
    response_model=records.Backends,
    responses={200: describe.gives(BACKENDS), **describe.refuses()},
)
def list_backends() -> Response:
    """The backends of this installation, and what this machine has of each. A missing driver is a note."""
    return answer({"backends": [_backend(name) for name in registry.BACKENDS]})


def _backend(name: str) -> dict[str, Any]:
    try:
        backend = registry.backend(name)
        probe = backend.probe()
        return {
            "name": name,
            "available": bool(probe.devices),
            "devices": [str(environment.device_class) for environment in probe.devices],
            "families": list(backend.families()),
            "modes": list(backend.traits.modes),
            "notes": [*probe.notes, *registry.plugin_notes(name)],
        }
    except Exception as error:  # a failing driver or binding must not fail the list
        notes = [f"{type(error).__name__}: {error}"[:500]]
        return {"name": name, "available": False, "devices": [], "families": [], "modes": [], "notes": notes}
