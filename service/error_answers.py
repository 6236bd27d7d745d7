"""Errors as RFC 9457 problem documents: the answers of the app's handlers and of the middleware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import quote

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from backends.errors import GemmtuneError
from service.errors import MEDIA_TYPE, UNEXPECTED, Fault, fault_of

#: Longest detail, in characters: messages may quote the request.
_LONGEST_DETAIL = 2000


def problem_response(fault: Fault, request_path: str, request_id: str, retry_after: int) -> Response:
    """The problem document as a response; a 503 has Retry-After."""
    document = {
        "type": f"urn:gemmtune:{fault.name}",
        "title": fault.title,
        "status": fault.status,
        "detail": fault.detail[:_LONGEST_DETAIL],
        "instance": quote(request_path, safe="/:@!$&'()*+,;=~-._"),
        "request_id": request_id,
        **fault.members,
    }
    headers = dict(fault.headers)
    if fault.status == 503:
        headers.setdefault("Retry-After", str(retry_after))
    text = orjson.dumps(document, default=str)
    return Response(text, fault.status, headers, MEDIA_TYPE)


def install(
    app: FastAPI, retry_after: int, allowed: Callable[[str], Sequence[str]] = lambda path: ()
) -> None:
    """Makes every error of the app a problem document. `allowed` lists the methods of a path."""

    async def answer(request: Request, error: Exception) -> Response:
        fault = fault_of(error)
        if fault is UNEXPECTED:
            raise error  # the outermost layer logs it with its traceback
        methods = allowed(str(request.scope["path"])) if fault.status == 405 else ()
        if methods:
            listed = ", ".join(methods)
            fault = replace(fault, detail=f"this address takes {listed}", headers={"Allow": listed})
        return problem_response(
            fault, str(request.scope["path"]), str(request.scope.get("request_id", "")), retry_after
        )

    for kind in (GemmtuneError, RequestValidationError, HTTPException, DBAPIError):
        app.add_exception_handler(kind, answer)
