"""Logins: a key is exchanged for a cookie that scripts cannot read and other sites cannot send."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from db import keys as rows
from db.engine import writing
from service import answers, errors, keys, schemas
from service.deps import STRICT, JsonBody, Service, ServiceDep, answer, parse_json, parse_model
from service.guard import COOKIE, LOGIN, LOGOUT, begin_change, key_of
from service.keys import Key, Keyring
from service.routes import describe

router = APIRouter(tags=["operations"], dependencies=STRICT)
_EXAMPLE = {"key": "gt_0123456789ab_..."}
_ANSWER = {"name": "ci", "scopes": ["read", "tune"], "seconds": keys.LOGIN_SECONDS}


@router.post(
    LOGIN,
    response_model=answers.Login,
    responses={
        200: {
            **describe.gives(_ANSWER, "The cookie, what it may do, and for how many seconds it is valid"),
            "headers": {"Set-Cookie": {"description": "The login.", "schema": {"type": "string"}}},
        },
        **describe.refuses(body=True),
    },
    openapi_extra=describe.takes(schemas.LoginRequest, _EXAMPLE),
)
async def log_in(request: Request, service: ServiceDep, body: JsonBody) -> Response:
    """Exchange a key for a cookie (HttpOnly, SameSite=Strict; Secure over TLS). A page that has it sends its
    changes as JSON from this very origin."""
    asked = parse_model(schemas.LoginRequest, parse_json(body))
    ring: Keyring = request.app.state.keyring
    key = await ring.key(asked.key)
    if key is None:
        raise errors.unauthorized("the key is unknown, revoked or expired")
    await begin_change(request.scope, key)
    token, seconds = await run_in_threadpool(_log_in, service, key)
    ring.forget()
    shown = {"name": key.name, "scopes": sorted(key.scopes), "seconds": seconds}
    response = answer(shown, 200, {"Cache-Control": "no-store"})
    secure = request.scope["scheme"] == "https"
    response.set_cookie(COOKIE, token, max_age=seconds, httponly=True, samesite="strict", secure=secure)
    return response


def _log_in(service: Service, key: Key) -> tuple[str, int]:
    with writing(service.engine) as connection:
        return keys.log_in(connection, key)


@router.post(LOGOUT, status_code=204, response_class=Response, responses={**describe.refuses()})
async def log_out(request: Request, service: ServiceDep) -> Response:
    """End the login of the request's cookie. A key in the header stays as it is."""
    key = key_of(request.scope)
    if key is not None and key.id != key.owner:
        await run_in_threadpool(_log_out, service, key)
        request.app.state.keyring.forget()
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _log_out(service: Service, key: Key) -> None:
    with writing(service.engine) as connection:
        rows.revoke(connection, key.id)
