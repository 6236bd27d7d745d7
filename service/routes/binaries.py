"""A solution's compiled kernels, for programs that launch them without gemmtune."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from service import binaries
from service.binaries import Binaries
from service.deps import STRICT, ServiceDep, identifier
from service.routes import describe
from service.routes.best import is_known

router = APIRouter(tags=["solutions"], dependencies=STRICT)
MEDIA_TYPE = "application/zip"


# async: FastAPI runs a synchronous dependency in a thread, and this one only reads an attribute.
async def _binaries(request: Request) -> Binaries:
    found: Binaries = request.app.state.binaries
    return found


@router.get(
    "/v1/solutions/{solution_id}/binary",
    response_class=Response,
    responses={
        200: {
            "description": "A zip: launch.json, and the binaries that it names",
            "content": {
                MEDIA_TYPE: {
                    "schema": {"type": "string", "format": "binary"},
                    "example": "(kernel.cubin, launch.json)",
                }
            },
            "headers": {
                "ETag": {"description": "Of the file.", "schema": {"type": "string"}},
                "Content-Disposition": {
                    "description": "A name for the file.",
                    "schema": {"type": "string"},
                },
            },
        },
        304: {"description": "What If-None-Match names is still the file"},
        **describe.refuses(404, 409),
    },
    openapi_extra={"parameters": [describe.IF_NONE_MATCH]},
)
def get_binary(
    request: Request,
    service: ServiceDep,
    compiled: Annotated[Binaries, Depends(_binaries)],
    solution_id: str,
    arch: Annotated[
        str | None,
        Query(
            max_length=40,
            description="Architecture: sm_90a, gfx942, ...; needed unless the solution was measured on one.",
        ),
    ] = None,
    problem: Annotated[
        str | None,
        Query(
            max_length=200,
            description="A problem's id; needed unless the solution is best, or was measured, for one.",
        ),
    ] = None,
    units: Annotated[
        int | None,
        Query(
            ge=1,
            le=100_000,
            description="Multiprocessors, where a launch depends on them; default: those of the device "
            "that the solution was measured on.",
        ),
    ] = None,
) -> Response:
    """The solution's kernel, compiled for an architecture, and how it is launched for a problem. A library's
    call has no binary (409); a solution that is not legal there is refused with the rule (422)."""
    name = identifier("solution", solution_id)
    asked = None if problem is None else identifier("problem", problem)
    chosen = service.read(binaries.choose, name, asked, arch, units)
    body = compiled.package(chosen)
    tag = f'W/"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if is_known(request, tag):
        return Response(status_code=304, headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="{chosen.name}"'
    return Response(body, 200, headers, MEDIA_TYPE)
