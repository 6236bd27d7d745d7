"""The OpenAPI document's text on routes beyond their parameters: bodies, examples, refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from backends.grouping import MOST_GROUPS, NAMED
from backends.problem_rules import ALIGNMENTS, MAX_SIZE, MAX_STRIDE
from service.errors import MEDIA_TYPE
from service.guard import COOKIE
from tuners.policy import CACHES, MODES

#: What a filter `dtype` means, wherever there is one.
TYPE_OF_A = "The number format of A, as the problem is written (row-major): fp32, bf16, ..."
_FAULT = {"$ref": "#/components/schemas/Fault"}
#: status -> (when, and an example: the type's name, its title, a detail, further members).
_FAULTS: dict[int, tuple[str, str, str, str, dict[str, Any]]] = {
    400: (
        "The body is no JSON", "malformed-body", "The body is no JSON",
        "unexpected character: line 1 column 14 (char 13)", {},
    ),
    401: (
        "The service needs a key, and the request has no valid one", "unauthorized", "A key is needed",
        "the request has no key; send Authorization: Bearer KEY (gemmtune keys create makes one)", {},
    ),
    403: (
        "The key does not have the scope; a page of another site asks for a change; or the file is served to "
        "its own machine alone", "out-of-scope", "The key may not do this",
        "this needs a key of scope tune; this one has read", {"scope": "tune"},
    ),
    404: (
        "There is no such thing", "not-found", "Not found", "there is no tuning 'tuning-0'", {},
    ),
    409: (
        "The request names several devices, or asks for what cannot be given", "ambiguous-device",
        "Several device classes match", "device 'cuda' matches 2 device classes: ...; name one of them",
        {"classes": ["cuda:sm_90:NVIDIA-H100:132", "cuda:sm_90:NVIDIA-H200:132"]},
    ),
    413: (
        "The body is too large", "body-too-large", "The body is too large",
        "the body has more than 8388608 bytes (GEMMTUNE_MAX_BODY_BYTES); send it in parts",
        {"limit": 8388608},
    ),
    415: (
        "The body is of another type", "unsupported-media-type", "The body's type is not accepted",
        "Content-Type is missing; accepted: application/json", {},
    ),
    421: (
        "Host names another service", "misdirected-request", "The request is for another host",
        "Host must name this service, but it is 'evil.example'; list its names in GEMMTUNE_ALLOWED_HOSTS", {},
    ),
    429: (
        "The key made too many requests, or has too many jobs in the queue", "too-many-requests",
        "Too many requests", "key 0123456789ab (ci) made more requests than it may; try again in 1 s", {},
    ),
    422: (
        "A parameter or a field is not valid; `errors` lists every fault", "invalid-request",
        "The request is not valid", "/problems/3/m: m must be an integer, not '16'",
        {"errors": [{"pointer": "/problems/3/m", "detail": "m must be an integer, not '16'"}]},
    ),
    500: (
        "Unexpected; the service's log has the request's id", "unexpected", "Unexpected error",
        "the service's log tells more under this request's id", {},
    ),
    501: (
        "The service has not what writes such a file", "not-installed",
        "The service has not what this needs",
        "Parquet is written with pyarrow, which is not installed: pip install 'gemmtune[parquet]'", {},
    ),
    503: (
        "The database does not answer (Retry-After), or its schema is another version's",
        "database-unavailable", "The database does not answer",
        "the database does not answer (connection refused); try again in a moment", {},
    ),
}  # fmt: skip
#: How a key is sent; a service on loopback needs none unless GEMMTUNE_KEYS says so.
SECURITY: dict[str, Any] = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key of `gemmtune keys create`."},
    "login": {
        "type": "apiKey", "in": "cookie", "name": COOKIE, "description": "What POST /login gave for a key.",
    },
}  # fmt: skip
#: Statuses of operations that read a body.
_BODY = (400, 413, 415)


def refuses(*statuses: int, body: bool = False) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route: these statuses, and those that every operation may answer."""
    every = {*statuses, 401, 403, 421, 422, 429, 500, 503, *(_BODY if body else ())}
    return {status: _problem(status) for status in sorted(every)}


def _problem(status: int) -> dict[str, Any]:
    when, name, title, detail, members = _FAULTS[status]
    example = {
        "type": f"urn:gemmtune:{name}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": "/v1/tunings",
        "request_id": "8a3ce0b6c1f94a55",
        **members,
    }
    described: dict[str, Any] = {
        "description": when,
        "content": {MEDIA_TYPE: {"schema": _FAULT, "example": kept(example)}},
    }
    if status == 401:
        described["headers"] = {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}}
    if status in (429, 503):
        described["headers"] = {
            "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
        }
    return described


def gives(example: Any, description: str = "The answer") -> dict[str, Any]:
    """An example of a response; its schema comes from the response model."""
    return {"description": description, "content": {"application/json": {"example": kept(example)}}}


def gives_some(examples: Mapping[str, Any], description: str) -> dict[str, Any]:
    """Like gives(), with an example of each kind of answer."""
    named = {name: {"value": kept(example)} for name, example in examples.items()}
    return {"description": description, "content": {"application/json": {"examples": named}}}


_KEPT = "json:"


def kept(example: Any) -> str:
    """An example as text, because FastAPI drops nulls from plain values; unpacked() is the inverse."""
    return _KEPT + json.dumps(example)


def unpacked(document: Any) -> Any:
    """The document with the examples of kept() as values."""
    if isinstance(document, dict):
        return {name: unpacked(value) for name, value in document.items()}
    if isinstance(document, list):
        return [unpacked(value) for value in document]
    if isinstance(document, str) and document.startswith(_KEPT):
        return json.loads(document.removeprefix(_KEPT))
    return document


def takes(model: type[BaseModel], example: Any) -> dict[str, Any]:
    """`openapi_extra` of a route that parses its JSON body itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    content = {"application/json": {"schema": schema, "example": kept(example)}}
    return {"requestBody": {"required": True, "content": content}}


# ---- the question for the best solution ------------------------------------------------------------

_SIZE = {"type": "integer", "minimum": 1, "maximum": MAX_SIZE}
_LEADING = {"type": "integer", "minimum": 1, "maximum": MAX_STRIDE}
_TEXT = {"type": "string"}
_BOOL = {"type": "boolean"}
_TRANSPOSED = {"type": "string", "enum": ["true", "false", "1", "0", "N", "T", "C"]}
_OBJECT = "; a name, or an object as JSON text"


IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": _TEXT,
    "description": "A tag had before: 304 where it is still the answer's.",
}


def best_parameters() -> list[dict[str, Any]]:
    """The query parameters of GET /v1/solutions/best, which its route parses itself."""
    fields: dict[str, tuple[dict[str, Any], str]] = {
        "m": (_SIZE, "Rows of the row-major output."),
        "n": (_SIZE, "Columns of the row-major output."),
        "k": (_SIZE, "Length of the dot products."),
        "dtype": (_TEXT, "Of A, and of all that is not given; default fp32."),
        "batch": (_SIZE, "Strided batch."),
        "trans_a": (_TRANSPOSED, "A is stored transposed."),
        "trans_b": (_TRANSPOSED, "B is stored transposed (F.linear)."),
        **{f"dtype_{side}": (_TEXT, f"Of {side.upper()}.") for side in "abcd"},
        "compute": (_TEXT, "Compute type, where it is not the default."),
        "epilogue": (_TEXT, f"none, bias, relu, bias_relu, ...{_OBJECT}."),
        "scaling": (_TEXT, f"none, tensor, row, ...{_OBJECT}."),
        "groups": (
            {"type": "integer", "minimum": 0, "maximum": MOST_GROUPS},
            "A grouped product: B is so many weight matrices, A's rows are sorted by group.",
        ),
        "routing": (_TEXT, f"How A's rows are distributed: {', '.join(NAMED)}, or the rows of each: 3,0,5."),
        "alpha": ({"type": "number"}, "Scales the product."),
        "beta": ({"type": "number"}, "Scales C, which is added."),
        **{f"ld{side}": (_LEADING, f"Leading dimension of {side.upper()}, elements.") for side in "abcd"},
        "strides": (_TEXT, 'Elements between the matrices of a batch, as JSON text: {"a":0,"b":4096}.'),
        "layout": ({"type": "string", "enum": ["row", "col"]}, "row (default) or col."),
        "alignment": (
            {"type": "integer", "enum": list(ALIGNMENTS)},
            "Bytes that addresses are multiples of.",
        ),
        "fast_accumulation": (_BOOL, "Of 8-bit floats."),
        "prepacked": (_BOOL, "Quantised weights are packed once, at load, as the solution says."),
        "device": (_TEXT, "A device selector; without it the only class that can be meant."),
        "policy": (_TEXT, "A measurement policy's id; or give mode and cache."),
        "mode": (
            {"type": "string", "enum": list(MODES)},
            "Default: the device's, graph on a GPU and eager on a CPU.",
        ),
        "cache": ({"type": "string", "enum": list(CACHES)}, "cold (default) or warm operands."),
        "max_workspace": ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, "Bytes, at most."),
        "deterministic": (_BOOL, "Only solutions known to be deterministic."),
        "families": (_TEXT, "Only these families, separated by commas."),
        "imported": (_BOOL, "Also what imported files and pre-tuned tables say, where nothing was measured."),
    }
    return [
        {"name": n, "in": "query", "required": n in ("m", "n", "k"), "schema": schema, "description": text}
        for n, (schema, text) in fields.items()
    ] + [IF_NONE_MATCH]
