"""Imports of files: problems to tune, results of other tools, measurements of bare nodes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from backends.environment import DeviceClass
from backends.errors import StorageError
from backends.problem import GemmProblem
from service import errors, records
from service import uploads as uploads_of
from service.deps import STRICT, Service, ServiceDep, answer, body_chunks, service_of
from service.formats import READERS, ReadOptions
from service.formats.core.base import TOKENS
from service.guard import key_of
from service.keys import TUNE
from service.routes import describe, parsing
from service.routes.examples import IMPORT_ANSWER
from service.routes.views import tuning_links
from service.schemas import TuningOptions
from service.shares import share_of
from service.tracing import traceparent_of
from service.uploads import Uploads

router = APIRouter(tags=["files"], dependencies=STRICT)

MEDIA_TYPES = (
    "text/csv",
    "text/plain",
    "application/json",
    "application/x-ndjson",
    "application/octet-stream",
)


async def _upload(request: Request) -> AsyncIterator[str]:
    """The path of a temporary file with the body."""
    kind = request.headers.get("content-type", MEDIA_TYPES[-1]).partition(";")[0].strip().lower()
    if kind not in MEDIA_TYPES:
        raise errors.unsupported_type(f"Content-Type {kind[:100]!r} is no file of a tool", MEDIA_TYPES)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise errors.unsupported_type(
            f"Content-Encoding {encoding[:100]!r} is not taken; send the file unpacked", MEDIA_TYPES
        )
    settings, key = service_of(request).settings, key_of(request.scope)
    limit, setting = settings.max_upload_bytes, "max_upload_bytes"
    if key is not None:
        own = key.limits.get("upload_bytes", settings.key_upload_bytes)
        limit, setting = min((limit, setting), (own, "key_upload_bytes"))
    uploads: Uploads = request.app.state.uploads
    async with uploads.place():
        with tempfile.NamedTemporaryFile(prefix="gemmtune-upload-") as file:
            try:
                async for chunk in body_chunks(request, limit, setting):
                    await run_in_threadpool(file.write, chunk)
                await run_in_threadpool(file.flush)
            except OSError as error:
                raise StorageError(f"the upload cannot be kept: {error.strerror or error}") from error
            yield file.name


Upload = Annotated[str, Depends(_upload)]


async def _until_gone(request: Request) -> None:
    """Ends when the client has disconnected; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.post(
    "/v1/imports/{format_name}",
    response_model=records.ImportAnswer,
    responses={200: describe.gives(IMPORT_ANSWER), **describe.refuses(404, 409, body=True)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "The file as it is.",
            "content": {
                kind: {
                    "schema": {"type": "string", "format": "binary"},
                    "example": READERS["tunableop-untuned"].example + "\n",
                }
                for kind in MEDIA_TYPES
            },
        }
    },
)
async def import_upload(
    request: Request,
    service: ServiceDep,
    file: Upload,
    format_name: str,
    device: Annotated[
        str | None,
        Query(
            max_length=200,
            description="Whose results the file's are: a selector, or a class vendor:arch:product:units.",
        ),
    ] = None,
    tune: Annotated[bool, Query(description="Also tune its problems on the device.")] = False,
    source: Annotated[
        str | None,
        Query(max_length=500, description="The file's name: some tools say in it what is there."),
    ] = None,
    tensor_parallel: Annotated[
        int, Query(ge=1, le=1024, description="Devices that share each layer of a model's description.")
    ] = 1,
    tokens: Annotated[
        list[Annotated[int, Query(ge=1, le=2**31 - 1)]] | None,
        Query(max_length=1000, description="Rows of activations, for a model's description (repeat)."),
    ] = None,
    dtype: Annotated[
        str | None,
        Query(max_length=40, description="Of a model's weights, where not its own."),
    ] = None,
    expert_parallel: Annotated[
        int,
        Query(ge=1, le=1024, description="Devices that share a layer's experts, whole ones each."),
    ] = 1,
    hidden_size: Annotated[
        int | None,
        Query(ge=1, le=2**31 - 1, description="Of names of layers of experts: the size of their inputs."),
    ] = None,
    top_k: Annotated[
        int | None,
        Query(ge=1, le=2**31 - 1, description="Of names of layers of experts: the experts of a token."),
    ] = None,
    layers: Annotated[
        Literal["fused", "split", "both"],
        Query(description="Of a model: fused as vLLM runs them, split as transformers does, or both."),
    ] = "fused",
    prepacked: Annotated[
        bool,
        Query(description="Its problems with quantised weights are those of a program that packs them once."),
    ] = False,
) -> Response:
    """Take a file in. `auto` finds the format out. Its problems are stored with the tool's own names for
    them; results rows become claims, which are served only where asked for; a bare node's journal becomes
    measurements. The same file again changes nothing."""
    if format_name != "auto" and format_name not in READERS:
        raise errors.unknown_format(format_name, ["auto", *READERS])
    key = key_of(request.scope)
    if tune and key is not None and not key.may(TUNE):
        raise errors.out_of_scope(TUNE, key.scopes)
    target = None
    if tune:
        target = await run_in_threadpool(service.read, service.workable_class, service.selector(device))
    name = None if format_name == "auto" else format_name
    options = ReadOptions(
        "", tensor_parallel, tuple(tokens or TOKENS), dtype, layers, expert_parallel, hidden_size, top_k
    )
    uploads: Uploads = request.app.state.uploads
    asked = uploads_of.Upload(
        service.settings.database_url,
        file,
        name,
        device,
        source or "upload",
        options,
        uploads.cpu_seconds,
        prepacked,
    )
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        done = await uploads.take(asked, gone)
    finally:
        gone.cancel()
    value = dict(done.answer)
    value["tuning"] = None
    if target is not None:
        value["tuning"] = await run_in_threadpool(_tune, request, service, done.problems, target)
    return answer(value)


def _tune(
    request: Request, service: Service, items: Sequence[tuple[GemmProblem, int]], device: DeviceClass
) -> dict[str, Any]:
    most = service.settings.max_problems
    if not items or len(items) > most:
        reason = "the file has no problem" if not items else f"more than {most} problems; tune them in parts"
        return {"id": None, "total": 0, "reason": reason, "links": None}
    asked = TuningOptions()
    settings = parsing.settings_of(asked, service.settings, device)
    share = share_of(request.scope, service.settings)
    created = service.tunings.submit(
        device, settings, items, asked.priority, asked.force, share, traceparent_of(request.scope)
    )
    return {
        "id": created.id, "total": created.total, "reason": None, "links": tuning_links(created.id),
    }  # fmt: skip
