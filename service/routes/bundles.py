"""Bundles of a device class: every binary, launch and verdict of our own winners in one file."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import FileResponse, Response

from backends.environment import DeviceClass
from service import errors, records
from service.bundle_builds import BundleBuilds, Progress
from service.bundles import Built, Selection, check_count, target_of
from service.deps import STRICT, Service, ServiceDep, answer
from service.routes import describe
from service.routes.best import is_known
from service.routes.examples import BUNDLE_PROGRESS, BUNDLE_REPORT
from service.routes.question import policy_of

router = APIRouter(tags=["files"], dependencies=STRICT)
PATH, MEDIA_TYPE = "/v1/bundles", "application/zip"
#: The header with the bundle's digest.
DIGEST_HEADER = "X-Bundle-Digest"
#: What a proxy adds: the client is not the one that it seems to be.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


# async: FastAPI runs a synchronous dependency in a thread, and this one only reads an attribute.
async def _builds(request: Request) -> BundleBuilds:
    found: BundleBuilds = request.app.state.bundles
    return found


BuildsDep = Annotated[BundleBuilds, Depends(_builds)]
Device = Annotated[
    str | None,
    Query(max_length=200, description="A device selector; without it the only class that can be meant."),
]
Target = Annotated[
    str | None,
    Query(max_length=40, description="The architecture that binaries are for; default: the device's."),
]
Policy = Annotated[
    str | None, Query(max_length=80, description="A measurement policy's id; default: the device's.")
]
_BUILDING: dict[str, Any] = {
    **describe.gives(BUNDLE_PROGRESS, "It is being built: ask again after Retry-After"),
    "model": records.BundleProgress,
    "headers": {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}},
}


@router.get(
    PATH,
    response_class=Response,
    responses={
        200: {
            "description": "The bundle (.gtb). A request with Range is answered 206 with that part of it",
            "content": {
                MEDIA_TYPE: {
                    "schema": {"type": "string", "format": "binary"},
                    "example": "(manifest.json, binaries)",
                }
            },
            "headers": {
                "ETag": {"description": "The bundle's digest.", "schema": {"type": "string"}},
                DIGEST_HEADER: {
                    "description": "The bundle's digest: SHA-256 of its manifest.json.",
                    "schema": {"type": "string"},
                },
                "Accept-Ranges": {"description": "bytes.", "schema": {"type": "string"}},
                "Content-Disposition": {
                    "description": "A name for the file.",
                    "schema": {"type": "string"},
                },
            },
        },
        202: _BUILDING,
        304: {"description": "What If-None-Match names is still the bundle"},
        **describe.refuses(403, 404, 409),
    },
    openapi_extra={"parameters": [describe.IF_NONE_MATCH]},
)
def get_bundle(
    request: Request,
    service: ServiceDep,
    builds: BuildsDep,
    device: Device = None,
    target: Target = None,
    policy: Policy = None,
) -> Response:
    """The kernels of our own that won on a device class, with their launches and verdicts, in one file. It is
    built in the background (202) and kept; a class without such a row is refused (404). Bundles of CPUs are
    served to this machine alone (403)."""
    found = _bundle(request, service, builds, device, target, policy)
    if isinstance(found, Response):
        return found
    chosen, built = found
    tag = f'"{built.digest}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", DIGEST_HEADER: built.digest}
    if is_known(request, f"W/{tag}"):
        return Response(status_code=304, headers=headers)
    return FileResponse(built.path, headers=headers, media_type=MEDIA_TYPE, filename=chosen.name)


@router.get(
    f"{PATH}/report",
    response_class=Response,
    responses={
        200: {**describe.gives(BUNDLE_REPORT, "The report"), "model": records.BundleReport},
        202: _BUILDING,
        **describe.refuses(403, 404, 409),
    },
)
def get_bundle_report(
    request: Request,
    service: ServiceDep,
    builds: BuildsDep,
    device: Device = None,
    target: Target = None,
    policy: Policy = None,
    digest: Annotated[
        str | None,
        Query(max_length=64, description="The report of this bundle, one of the latest; without the others."),
    ] = None,
) -> Response:
    """What a bundle holds, what was left out and why, and the geometric mean of its rows' speed-ups."""
    if digest is not None:
        report = builds.report(digest)
        if report is None:
            raise errors.not_found("bundle", digest)
        return answer(report)
    found = _bundle(request, service, builds, device, target, policy)
    return found if isinstance(found, Response) else answer(found[1].report)


def _bundle(
    request: Request,
    service: Service,
    builds: BundleBuilds,
    device: str | None,
    target: str | None,
    policy: str | None,
) -> tuple[Selection, Built] | Response:
    """The bundle, or the answer for one that is being built."""
    found: DeviceClass = service.read(service.device_class, service.selector(device))
    if found.vendor == "cpu" and not _is_local(request):
        raise errors.local_only(str(found))
    chosen = Selection(found, policy_of(policy, None, None, found.vendor), target_of(found, target))
    check_count(service.engine, chosen, service.settings.max_bundle_rows)
    made = builds.get(service.engine, chosen, _client(request))
    if isinstance(made, Progress):
        progress = {
            "status": "building", "device_class": str(chosen.device), "policy_id": chosen.policy_id,
            "target": chosen.target, "done": made.done, "total": made.total,
        }  # fmt: skip
        headers = {"Retry-After": str(service.settings.retry_after_seconds), "Cache-Control": "no-store"}
        return answer(progress, 202, headers)
    return chosen, made


def _client(request: Request) -> str:
    """Who asks, as far as it is known."""
    return "" if request.client is None else request.client.host


def _is_local(request: Request) -> bool:
    """Whether the client is on this machine, without a proxy between."""
    try:
        address = ip_address(_client(request))
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback and not any(name in request.headers for name in _FORWARDED)
