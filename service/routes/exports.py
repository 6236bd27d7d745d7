"""The best rows of a device class as a file of another tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from backends.environment import DeviceClass
from service import errors, exports, schemas
from service.deps import STRICT, Service, ServiceDep, answer
from service.formats import WRITERS
from service.formats.core.export import ExportReport
from service.routes import describe
from service.routes.best import is_known
from service.routes.examples import EXPORT_REPORT
from service.routes.question import policy_of
from service.spool import Spool

router = APIRouter(tags=["files"], dependencies=STRICT)


class _Place:
    """A place to write a file: it is given back once the file is written, however long the client reads."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places, self._held = places, True

    def release(self) -> None:
        """Gives the place back, once."""
        if self._held:
            self._held = False
            self._places.release()


async def _place(request: Request) -> AsyncIterator[_Place]:
    places: asyncio.Semaphore = request.app.state.exports
    await places.acquire()
    place = _Place(places)
    try:
        yield place
    finally:
        place.release()


def _file_contents() -> dict[str, Any]:
    """Examples of the writers' files by media type; the report is JSON too."""
    contents: dict[str, Any] = {
        writer.media_type: {"schema": {"type": "string"}, "example": writer.example}
        for writer in WRITERS.values()
    }
    report = {"$ref": "#/components/schemas/ExportReport"}
    contents["application/json"] = {
        "schema": {"anyOf": [report, {"type": "object"}]},
        "example": describe.kept(EXPORT_REPORT),
    }
    return contents


@router.get(
    "/v1/exports/{format_name}",
    response_class=Response,
    responses={
        200: {
            "description": "The file; with report=true what would be in it and what would not, and why",
            "content": _file_contents(),
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
def export_file(
    request: Request,
    service: ServiceDep,
    place: Annotated[_Place, Depends(_place)],
    format_name: str,
    device: Annotated[
        str | None,
        Query(max_length=200, description="A device selector; without it the only class that can be meant."),
    ] = None,
    target: Annotated[
        str | None,
        Query(
            max_length=200,
            description="The stack that will load the file, e.g. torch-2.9.1+rocm; write + as %2B in a URL.",
        ),
    ] = None,
    ties: Annotated[
        Literal["omit", "default"], Query(description="What becomes of a TIE or a LOSS.")
    ] = "omit",
    policy: Annotated[
        str | None, Query(max_length=80, description="A measurement policy's id; default: the device's.")
    ] = None,
    imported: Annotated[bool, Query(description="Also what imported files claim, so labelled.")] = False,
    validator: Annotated[
        list[str] | None, Query(max_length=100, description="A value of the file's header, KEY:VALUE.")
    ] = None,
    max_workspace: Annotated[
        int | None, Query(ge=0, le=schemas.INT64, description="Bytes that a solution may use there.")
    ] = None,
    top_k: Annotated[
        int | None,
        Query(ge=1, le=2**31 - 1, description="Experts of a token, for rows of experts without tokens."),
    ] = None,
    report: Annotated[bool, Query(description="Answer the report alone.")] = False,
) -> Response:
    """The best known rows of a device class as the file that a framework loads. Rows that the target cannot
    use are left out and counted with their reasons; a file without a row is refused (409)."""
    if format_name not in WRITERS:
        raise errors.unknown_format(format_name, list(WRITERS))
    found: DeviceClass = service.read(service.device_class, service.selector(device))
    chosen = exports.Selection(
        found, policy_of(policy, None, None, found.vendor), imported, target, ties,
        _validators(validator or ()), max_workspace, top_k,
    )  # fmt: skip
    if report:
        made = exports.open_export(service.engine, format_name, chosen)
        return answer(_report(format_name, chosen, made.whole_report()))
    tag = f'W/"{service.read(exports.export_tag, format_name, chosen)}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if is_known(request, tag):
        return Response(status_code=304, headers=headers)
    return _file(place, service, format_name, chosen, headers)


def _file(
    place: _Place, service: Service, format_name: str, chosen: exports.Selection, headers: dict[str, str]
) -> Response:
    made = exports.open_export(service.engine, format_name, chosen)
    begun = exports.until_written(made)
    if not made.report.written:
        reason = exports.nothing_reason(service.engine, chosen, made.report)
        raise errors.nothing_to_export(reason, _report(format_name, chosen, made.report))
    named = {"Content-Disposition": f'attachment; filename="{made.name}"'}
    pieces = Spool(begun, made.pieces).pieces(place.release)
    return ClosedStream(pieces, headers={**headers, **named}, media_type=made.media_type)


class ClosedStream(StreamingResponse):
    """A stream whose iterator is closed with the response, not when it is collected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            close = getattr(self.body_iterator, "aclose", None)
            if close is not None:
                await close()


def _report(format_name: str, chosen: exports.Selection, found: ExportReport) -> dict[str, Any]:
    return {
        "format": format_name,
        "device_class": str(chosen.device),
        "policy_id": chosen.policy_id,
        "target": chosen.target,
        **found.figures(),
    }


def _validators(given: Sequence[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for text in given:
        key, colon, value = text.partition(":")
        if not (key and colon and value) or not text.isprintable() or key in out:
            raise errors.bad_parameter("validator", f"must be KEY:VALUE, each key once, not {text[:80]!r}")
        out[key] = value
    return out
