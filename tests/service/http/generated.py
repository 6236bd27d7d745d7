"""Generated requests of an operation, each answer checked by schemathesis.

Importing schemathesis takes a second: suites import this module where they use it, so that not every process
of a test run imports it as it collects.
"""

from __future__ import annotations

from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import BaseSchema, checks
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from service.app import openapi_document
from service.formats import READERS, WRITERS
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import BASELINE, CLASS

SETTINGS = settings(
    deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
CHECKS = (
    checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    allow_header_conformance,
    unsupported_method,
)
#: What stands for some of the generated values, that more requests get past the first check.
KNOWN: dict[str, list[Any]] = {
    "problem_id": [problem.id for problem in PROBLEMS],
    "solution_id": [BASELINE.id],
    "format_name": ["auto", *READERS, *WRITERS],
    "device": [CLASS, "cuda"],
    "policy": [None],
    "target": [None],
    "dtype": ["fp32", "bf16"],
    **{name: [None] for name in ("dtype_a", "dtype_b", "dtype_c", "dtype_d", "compute")},
    **{name: [None] for name in ("lda", "ldb", "ldc", "ldd")},
    "epilogue": ["none", "bias_relu"],
    "scaling": ["none"],
    "strides": [None],
    "alignment": [16, None],
    "fast_accumulation": [False],
    "cursor": [None],
    "families": [None],
    "m": [16],
}


@schemathesis.serializer("application/x-ndjson", "text/csv")
def as_it_is(_context: Any, value: Any) -> bytes:
    """A file's bytes."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def tamed(values: Any) -> Any:
    """The values, the known ones among them replaced in every second set of them."""
    if isinstance(values, list):
        return [tamed(value) for value in values]
    if not isinstance(values, dict):
        return values
    shape = len(repr(sorted(values.items(), key=str)))
    out = {}
    for name, value in values.items():
        known = KNOWN.get(name) if shape % 2 else None
        made = tamed(value) if known is None else known[shape // 2 % len(known)]
        if made is not None or known is None:
            out[name] = made
    return out


def map_path_parameters(_context: Any, path_parameters: Any) -> Any:
    """Ids that are there."""
    return tamed(path_parameters)


def map_query(_context: Any, query: Any) -> Any:
    """Devices and types that are there."""
    return tamed(query)


def map_body(_context: Any, body: Any) -> Any:
    """Problems that can be."""
    return tamed(body)


def request_and_check(case: schemathesis.Case[Any], filled: httpx.Client) -> None:
    # A problem has fields that nothing reads (batch strides of a single matrix): they are not looked at.
    loose = case.method == "POST" and "imports" not in case.path
    page = case.path == "/login"  # GET shows it; that is no operation
    chosen = [
        check
        for check in CHECKS
        if not (loose and check is negative_data_rejection) and not (page and check is unsupported_method)
    ]
    key = {name: value for name, value in filled.headers.items() if name == "authorization"}
    case.call_and_validate(base_url=str(filled.base_url), checks=chosen, timeout=120, headers=key or None)


def document() -> BaseSchema:
    """The application's document."""
    schema = schemathesis.openapi.from_dict(dict(openapi_document()))
    for hook in (map_path_parameters, map_query, map_body):
        schema.hook(hook)
    return schema


# Not schema.parametrize(), which takes ten seconds of every process's collection to generate requests.
def check_requests(operation: str, document: BaseSchema, filled: httpx.Client, most: int = 15) -> None:
    """Sends generated requests of an operation, "METHOD path", with the client's key if it has one, `most` of
    every kind. Raises where an answer is wrong."""
    load_all_checks()
    method, path = operation.split(" ", 1)
    chosen = document.include(method=method, path=path)
    wanted = settings(SETTINGS, max_examples=most)
    (made,) = get_all_tests(schema=chosen, test_func=request_and_check, settings=wanted, given_kwargs=None)
    assert isinstance(made, Ok)
    _, generated = made.ok()
    generated(filled=filled)
