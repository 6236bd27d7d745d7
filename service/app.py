"""The application: its state, middleware, routes and OpenAPI document.

`python -m service.app docs/openapi.json` writes the document.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware

from db import gauges, keys
from db.engine import open_engine
from db.lookup import open_lookup
from service import error_answers, measured, records, schemas
from service.audit import Trail
from service.binaries import Binaries
from service.board_cache import BoardCache
from service.bundle_builds import BundleBuilds
from service.deps import Operations, Service, TuningService
from service.event_hub import EventHub
from service.guard import Guarded, Headed, Rules
from service.hosts import AllowedHosts, is_loopback, listed, origins
from service.keys import Keyring
from service.metrics import Metrics
from service.middleware import Compressed, Observed
from service.retention import keep_pruned
from service.routes import (
    best,
    binaries,
    bundles,
    describe,
    devices,
    exports,
    fleet,
    health,
    imports,
    leaderboard,
    login,
    measurements,
    pages,
    problems,
    provenance,
    reports,
    tunings,
)
from service.settings import Settings
from service.tracing import open_tracing
from service.tunings import open_tunings
from service.uploads import Uploads

_TAGS = [
    {"name": "solutions", "description": "The best known way to run a problem."},
    {"name": "tunings", "description": "Have problems measured, and follow it."},
    {"name": "problems", "description": "Problems and everything that was measured for them."},
    {"name": "files", "description": "Files of other tools, taken in and written."},
    {"name": "reports", "description": "What tuning is worth, and what has changed."},
    {"name": "devices", "description": "Where problems are measured."},
    {"name": "fleet", "description": "Workers and jobs."},
    {"name": "operations", "description": "Is the service well?"},
]
_ROUTES = (
    best, tunings, problems, measurements, binaries, bundles, imports, exports, reports, leaderboard,
    provenance, devices, fleet, login, health, pages,
)  # fmt: skip
_DESCRIPTION = (
    "Which way of running this GEMM is fastest and right on this device? Errors are RFC 9457 problem "
    "documents; lists are paged by `cursor`; unknown fields and parameters are refused."
)
#: Models that FastAPI does not find by itself: bodies that routes parse, and the error document.
_BODIES: tuple[type[BaseModel], ...] = (
    schemas.TuningRequest, schemas.BestRequest, schemas.LoginRequest, schemas.Fault,
)  # fmt: skip
#: What pages of GEMMTUNE_CORS_ORIGINS may send and read.
_CORS_METHODS = ("GET", "HEAD", "POST", "DELETE")
_CORS_HEADERS = ("Authorization", "Content-Type", "If-None-Match", "Last-Event-ID", "X-Request-Id")
_CORS_SHOWN = (
    "Content-Disposition", "ETag", "Location", "Retry-After", "X-Bundle-Digest",
    "X-Last-Measurement", "X-Request-Id",
)  # fmt: skip


def create_app(
    settings: Settings,
    make_tunings: Callable[[Engine, Settings], TuningService] = open_tunings,
    failing: Callable[[], Sequence[str]] = tuple,
    uploads: Uploads | None = None,
) -> FastAPI:
    """The application; its database is opened at startup and closed at shutdown. `failing` describes the
    workers beside it that end again and again. `uploads`: the processes of several applications, which their
    caller closes."""

    tracing = open_tracing(settings, "server")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # built now, or the first bad request would hold up all others for it
        url = settings.database_url
        service = Service(settings, open_engine(url), open_lookup(url), make_tunings, failing)
        app.state.service = service
        poll, most = settings.events_poll_seconds, settings.max_event_streams
        app.state.events = EventHub(service.read, lambda: service.closing, poll, most)
        app.state.exports = asyncio.Semaphore(settings.max_exports)
        pruning = asyncio.create_task(keep_pruned(settings, service.engine, lambda: service.closing))
        try:
            yield
        finally:
            service.closing = True
            pruning.cancel()
            await asyncio.gather(pruning, return_exceptions=True)
            await app.state.events.close()
            if uploads is None:
                await run_in_threadpool(app.state.uploads.close)
            await run_in_threadpool(app.state.bundles.close)
            await run_in_threadpool(tracing.close)
            await app.state.service.close()

    app = FastAPI(
        title="gemmtune",
        version=version("gemmtune"),
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # pages of our own show it, without another host
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.operations = Operations(app)

    def process_values() -> Mapping[str, float]:
        service: Service = app.state.service  # there is none before the start
        return service.process_values()

    app.state.metrics = Metrics(lambda: app.state.service.read(gauges.gauges), process_values)
    app.state.keyring = Keyring(lambda: app.state.service.read(keys.valid))
    app.state.uploads = Uploads(settings) if uploads is None else uploads
    app.state.binaries = Binaries(settings)
    app.state.boards = BoardCache()
    app.state.bundles = BundleBuilds(settings, app.state.binaries)
    error_answers.install(app, settings.retry_after_seconds, app.state.operations.allowed)
    app.router.routes.append(best.hot_route())  # first: routes are matched in order
    for routes in _ROUTES:
        app.include_router(routes.router)
    plain = frozenset({best.PATH, bundles.PATH, measured.PATH})
    app.add_middleware(Compressed, minimum_size=settings.compress_bytes, plain=plain)
    app.add_middleware(Headed)
    app.state.keys_required = keys_required(settings)
    rules = _rules(app, settings)
    trail = Trail.of_server(settings)
    app.add_middleware(Guarded, rules=rules, retry_after=settings.retry_after_seconds, trail=trail)
    if rules.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=sorted(rules.origins), allow_methods=_CORS_METHODS,
            allow_headers=_CORS_HEADERS, expose_headers=_CORS_SHOWN,
        )  # fmt: skip
    app.add_middleware(
        Observed,
        metrics=app.state.metrics,
        access_log=settings.access_log,
        retry_after=settings.retry_after_seconds,
        tracing=tracing,
    )
    _complete(app)
    return app


def keys_required(settings: Settings) -> bool:
    """Whether requests need a key."""
    return not is_loopback(settings.host) if settings.keys is None else settings.keys


def _rules(app: FastAPI, settings: Settings) -> Rules:
    needed = keys_required(settings)
    return Rules(
        AllowedHosts(listed(settings.allowed_hosts), settings.host, needed, socket.gethostname()),
        app.state.keyring if needed else None,
        origins(settings.cors_origins),
        settings.key_requests_per_second,
    )


#: The OpenAPI document, once an application has built it: every application has the same routes, and building
#: takes half a second.
_document: dict[str, Any] | None = None


def _complete(app: FastAPI) -> None:
    """Adds the models that FastAPI does not find by itself to the OpenAPI document."""
    plain = app.openapi

    def complete() -> dict[str, Any]:
        global _document
        if _document is None:
            document: dict[str, Any] = describe.unpacked(plain())
            models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
                (records.ExportReport, "serialization"),
                *((model, "validation") for model in _BODIES),
            ]
            _, found = models_json_schema(models, ref_template="#/components/schemas/{model}")
            components = document["components"]["schemas"] | found["$defs"]
            for unused in ("HTTPValidationError", "ValidationError"):
                components.pop(unused, None)
            document["components"]["schemas"] = dict(sorted(components.items()))
            document["components"]["securitySchemes"] = describe.SECURITY
            document["security"] = [{}, *({name: []} for name in describe.SECURITY)]
            _document = document
        app.openapi_schema = _document
        return _document

    app.openapi = complete  # type: ignore[method-assign]


def openapi_document() -> Mapping[str, Any]:
    """The document that is committed as docs/openapi.json."""
    return create_app(Settings()).openapi()


if __name__ == "__main__":
    text = json.dumps(openapi_document(), indent=1, ensure_ascii=False) + "\n"
    Path(sys.argv[1]).write_text(text, encoding="utf-8") if sys.argv[1:] else sys.stdout.write(text)
