"""Stored measurements in bulk: a data set as one streamed file, and its data card."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import asdict
from hashlib import blake2b
from importlib.metadata import version as package_version
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Query, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from db.engine import now
from db.measured import Wanted, state
from service import data_card, errors, schemas
from service.deps import STRICT, Service, ServiceDep
from service.measured import LAST_HEADER, PATH, Asked, parts, wanted_of
from service.measured_files import KINDS, Pieces
from service.routes import describe
from service.routes.best import is_known
from service.routes.exports import ClosedStream

router = APIRouter(tags=["files"], dependencies=STRICT)
_CARD_TYPE = "text/markdown"
_EXAMPLES = {
    "jsonl": '{"number":1,"phase":"screen","take":0,"status":"ok","seconds":1.7e-05,...}\n',
    "csv": "number,phase,take,status,seconds,samples,...\n1,screen,0,ok,1.7e-05,[1.7e-05],...\n",
    "parquet": "(PAR1 ...)",
}


def _asked(
    device: Annotated[
        str | None, Query(max_length=200, description="A device selector; default: every class.")
    ] = None,
    policy: Annotated[str | None, Query(max_length=80, description="A measurement policy's id.")] = None,
    dtype: Annotated[str | None, Query(min_length=1, max_length=40, description=describe.TYPE_OF_A)] = None,
    problem: Annotated[str | None, Query(min_length=1, max_length=200, description="A problem's id.")] = None,
    family: Annotated[str | None, Query(min_length=1, max_length=80, description="Of the candidate.")] = None,
    tuning: Annotated[
        str | None, Query(min_length=1, max_length=200, description="A tuning's id: what its jobs measured.")
    ] = None,
    since: Annotated[
        str | None,
        Query(max_length=40, description="Stored at this time or later: ISO 8601; without an offset UTC."),
    ] = None,
    last: Annotated[
        int | None,
        Query(
            ge=0, le=schemas.INT64,
            description=f"None with a larger number, as {LAST_HEADER} of a file says: its card, or the file "
            "once more.",
        ),
    ] = None,
) -> Asked:  # fmt: skip
    return Asked(device, policy, dtype, problem, family, tuning, since, last)


AskedDep = Annotated[Asked, Depends(_asked)]
_LAST = {
    LAST_HEADER: {
        "description": "The number of the newest measurement that the file may have.",
        "schema": {"type": "integer"},
    }
}


@router.get(
    PATH,
    response_class=Response,
    responses={
        200: {
            "description": "The file, streamed",
            "content": {
                KINDS[name].media_type: {"schema": {"type": "string"}, "example": example}
                for name, example in _EXAMPLES.items()
            },
            "headers": {
                **_LAST,
                "ETag": {"description": "Of the file.", "schema": {"type": "string"}},
                "Content-Disposition": {
                    "description": "A name for the file.",
                    "schema": {"type": "string"},
                },
            },
        },
        304: {"description": "What If-None-Match names is still the file"},
        **describe.refuses(404, 409, 501),
    },
    openapi_extra={"parameters": [describe.IF_NONE_MATCH]},
)
def export_measurements(
    request: Request,
    service: ServiceDep,
    asked: AskedDep,
    file_format: Annotated[
        Literal["jsonl", "csv", "parquet"], Query(alias="format", description="The kind of file.")
    ] = "jsonl",
) -> Response:
    """Every stored outcome of every candidate, with its samples, its evidence, its problem and how often that
    is called: one row each. Filters leave rows out. A file in which nothing is left has no row."""
    kind = KINDS[file_format]
    kind.check()
    wanted, state = service.read(_wanted, service, asked)
    given = [package_version("gemmtune"), file_format, state, _given(asked)]
    tag = f'W/"{blake2b(orjson.dumps(given), digest_size=12).hexdigest()}"'
    kept = {LAST_HEADER: str(wanted.last), "ETag": tag, "Cache-Control": "no-cache"}
    if is_known(request, tag):
        return Response(status_code=304, headers=kept)
    about = {"measurements": str(wanted.last), "selection": str(_given(asked)), "written_at": now()}
    pieces = kind.write(parts(service.engine, wanted), about)
    packed = {}
    if kind.is_text:
        packed["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("accept-encoding", ""):
            pieces, packed["Content-Encoding"] = _gzipped(pieces), "gzip"
    # Read here: an error of the database is still an answer of its own.
    first = next(pieces, b"")
    headers = {
        **kept,
        **packed,
        "Content-Disposition": f'attachment; filename="gemmtune-measurements{kind.suffix}"',
    }
    stream = _sent(request.app.state.exports, first, pieces)
    return ClosedStream(stream, headers=headers, media_type=kind.media_type)


@router.get(
    f"{PATH}/card",
    response_class=Response,
    responses={
        200: {
            "description": "The data card, in Markdown",
            "content": {
                _CARD_TYPE: {
                    "schema": {"type": "string"},
                    "example": "# Measurements of GEMM candidates\n...",
                }
            },
            "headers": _LAST,
        },
        **describe.refuses(404, 409),
    },
)
def measurements_card(service: ServiceDep, asked: AskedDep) -> Response:
    """The data card of such a file: its columns with their units, how it was measured and what to be careful
    about, counts, environments and policies, and a note on its licence."""
    wanted, _ = service.read(_wanted, service, asked)
    text = service.read(data_card.card, wanted, _given(asked), now())
    return Response(text, headers={LAST_HEADER: str(wanted.last)}, media_type=_CARD_TYPE)


def _given(asked: Asked) -> Mapping[str, Any]:
    return {name: value for name, value in asdict(asked).items() if value is not None and name != "last"}


def _wanted(connection: Connection, service: Service, asked: Asked) -> tuple[Wanted, list[int]]:
    """What is read, and what changes with it."""
    found = wanted_of(connection, asked, lambda name: str(service.device_class(connection, name)))
    if isinstance(found, str):
        raise errors.not_found(found, getattr(asked, found))
    return found, state(connection, found)


def _gzipped(pieces: Pieces) -> Pieces:
    """Packed where the pieces are made: a file of this size would keep the event loop busy."""
    packer = zlib.compressobj(5, wbits=31)
    with closing(pieces):
        for piece in pieces:
            yield packer.compress(piece)
    yield packer.flush()


async def _sent(places: asyncio.Semaphore, first: bytes, pieces: Pieces) -> AsyncIterator[bytes]:
    """The pieces. A place is held while one is made, and none while the client reads it."""
    try:
        piece: bytes | None = first
        while piece is not None:
            if piece:
                yield piece
            async with places:
                piece = await run_in_threadpool(next, pieces, None)
    finally:
        pieces.close()  # it is not running: its step has ended
