"""The best solution of one problem, and of ten thousand at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from backends.environment import DeviceClass
from backends.errors import AmbiguousDevice, InvalidProblem, UnknownDevice
from backends.problem import GemmProblem
from db import queries
from service import answers, best, errors, schemas
from service.deps import STRICT, JsonBody, Service, ServiceDep, parse_json, parse_model, service_of
from service.formats.core.row_text import problem_text
from service.routes import describe, parsing
from service.routes.examples import BEST_DEFAULT, BEST_EXACT, BEST_NEAREST, BEST_REQUEST
from service.routes.question import Question, policy_of, read_question

PATH = "/v1/solutions/best"
router = APIRouter(tags=["solutions"], dependencies=STRICT)


# ---- one -----------------------------------------------------------------------------------------


async def get_best(request: Request) -> Response:
    """The best known way to run a problem: `match` says whether it was measured for this very problem
    (exact), for a near one (nearest: with its distance in doublings, and how the solution fared on other
    near problems), by somebody else (imported: only where asked for), or not at all (default). With
    `imported` a near problem may be a pre-tuned table's: `provenance` says so."""
    service = service_of(request)
    question = read_question(request.scope["query_string"])
    selector = service.selector(question.selector)
    device = await _class_of(service, selector)
    policy_id = question.policy_ids[device.vendor]
    document = await service.lookup.document(question.problem_id, str(device), policy_id)
    freshness = await service.freshness.get(str(device), service.read)
    if document is not None and not question.filters:
        body = best.exact(document, freshness)
    else:
        asked = best.Asked(device, policy_id, question.filters, question.imported, freshness)
        body = await run_in_threadpool(_search, service, asked, question, document)
    return _tagged(request, body)


async def _class_of(service: Service, selector: str | None) -> DeviceClass:
    """The class of a selector. Raises UnknownDevice, AmbiguousDevice."""
    if not service.classes_are_fresh():
        await service.reread_classes()
    if not service.knows(selector):
        with suppress(UnknownDevice, AmbiguousDevice):
            return service.selected(selector)
        service.refresh_classes(await service.lookup.classes())  # it may have been registered just now
    return service.selected(selector)


def _search(service: Service, asked: best.Asked, question: Question, document: str | None) -> bytes:
    return service.read(best.answer, asked, question.problem, document)


def _tagged(request: Request, body: bytes) -> Response:
    """The body as a response with an ETag; 304 if the client has it already."""
    tag = f'W/"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if is_known(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, "application/json")


def is_known(request: Request, tag: str) -> bool:
    """Whether the client has the answer already (If-None-Match, compared weakly)."""
    for name, value in request.scope["headers"]:
        if name == b"if-none-match":
            given = value.decode("latin-1").split(",")
            return any(g.strip() == "*" or g.strip().removeprefix("W/") == tag[2:] for g in given)
    return False


class _BareRoute(APIRoute):
    """A route that is in the OpenAPI document but calls its function directly: FastAPI's handling of
    parameters, dependencies and models takes as long as the whole lookup."""

    def __init__(self, path: str, endpoint: Any, **described: Any) -> None:
        super().__init__(path, endpoint, **described)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)

        self.app: ASGIApp = app


def hot_route() -> APIRoute:
    """The GET route, to be matched before all others."""
    return _BareRoute(
        PATH,
        get_best,
        methods=["GET"],
        generate_unique_id_function=lambda route: route.name,
        tags=["solutions"],
        response_model=answers.Best,
        responses={
            200: {
                **describe.gives_some(
                    {"exact": BEST_EXACT, "nearest": BEST_NEAREST, "default": BEST_DEFAULT},
                    "The answer; `match` says how far it goes",
                ),
                "headers": {"ETag": {"description": "Of the answer.", "schema": {"type": "string"}}},
            },
            304: {"description": "What If-None-Match names is still the answer"},
            **describe.refuses(404, 409),
        },
        openapi_extra={"parameters": describe.best_parameters()},
    )


# ---- many ----------------------------------------------------------------------------------------


@router.post(
    PATH,
    response_model=answers.BestAnswers,
    responses={
        200: describe.gives({"results": [BEST_EXACT, BEST_DEFAULT]}, "An answer a problem, in their order"),
        **describe.refuses(409, body=True),
    },
    openapi_extra=describe.takes(schemas.BestRequest, BEST_REQUEST),
)
def post_best(service: ServiceDep, body: JsonBody) -> Response:
    """The best known ways to run many problems. Near problems are looked up for the first
    GEMMTUNE_MAX_NEAR of those that were never measured."""
    value = parse_json(body)
    faults: list[errors.Part] = []
    items = parsing.problems(value, service.settings.max_problems, False, faults)
    request = parse_model(schemas.BestRequest, value, faults)
    device = parsing.device_class(service, service.selector(request.device))
    try:
        policy_id = policy_of(request.policy, request.mode, request.cache, device.vendor)
    except InvalidProblem as error:
        raise errors.bad_body(f"/{error.field}", str(error)) from None
    families = None if request.families is None else frozenset(request.families)
    filters = best.Filters(request.max_workspace, request.deterministic, families)
    freshness = service.read(service.freshness.read, str(device))
    asked = best.Asked(device, policy_id, filters, request.imported, freshness)
    results = service.read(_answers, asked, [problem for problem, _ in items], service.settings.max_near)
    return Response(b'{"results":[' + b",".join(results) + b"]}", media_type="application/json")


def _answers(
    connection: Connection, asked: best.Asked, problems: Sequence[GemmProblem], most_near: int
) -> list[bytes]:
    ids = [problem_text(problem)[0] for problem in problems]
    distinct = dict(zip(ids, problems, strict=True))
    documents = queries.best_documents(connection, list(distinct), str(asked.device), asked.policy_id)
    found: dict[str, bytes] = {}
    missing = 0
    for problem_id, problem in distinct.items():
        document = documents.get(problem_id)
        missing += document is None
        found[problem_id] = best.answer(connection, asked, problem, document, missing <= most_near)
    return [found[problem_id] for problem_id in ids]
