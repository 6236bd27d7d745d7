"""The pages that people look at, and their assets. They are no part of the OpenAPI document: all that they
show comes from the addresses that are in it."""

from __future__ import annotations

from hashlib import blake2b

from fastapi import APIRouter, Request
from starlette.responses import Response

from service import errors
from service.dashboard import pages
from service.dashboard.assets import PREFIX, assets, version
from service.dashboard.pages import PAGES, PageKind
from service.dashboard.rendering import headers, render
from service.guard import LOGIN
from service.routes.best import is_known

router = APIRouter(include_in_schema=False)
#: The digests of the two style elements that Redoc makes: an empty one, which it fills by script, and its
#: scroll bars'. No other inline style is taken.
_REDOC_STYLES = (
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' "
    "'sha256-QMIg+bpjm3JdElJ388KYke01izlUW0UoNOeKjpMxdgc='"
)
_FOREVER = "public, max-age=31536000, immutable"


def _page(request: Request, html: str, **sources: str) -> Response:
    """A page with an ETag; 304 where the browser has it."""
    found = headers(**sources) | {"ETag": f'W/"{blake2b(html.encode(), digest_size=12).hexdigest()}"'}
    if is_known(request, found["ETag"]):
        return Response(status_code=304, headers=found)
    return Response(html, 200, found, "text/html; charset=utf-8")


def _add(kind: PageKind) -> None:
    async def page(request: Request) -> Response:
        # Addresses that another version of the service may lack: pages use them where they are.
        operations = request.app.openapi()["paths"]
        has_fleet = "/v1/workers" in operations and "/v1/jobs" in operations
        keyed = request.app.state.keys_required
        most = request.app.state.service.settings.max_page
        html = render("page.html", page=kind, pages=PAGES, has_fleet=has_fleet, keyed=keyed, most=most)
        return _page(request, html)

    router.add_api_route(kind.path, page, methods=["GET"], name=f"page {kind.title.lower()}")


for _kind in PAGES:
    _add(_kind)


@router.get(LOGIN)
async def show_login(request: Request) -> Response:
    return _page(request, render("login.html", keyed=request.app.state.keys_required))


@router.get(pages.DOCS)
async def show_docs(request: Request) -> Response:
    return _page(request, render("docs.html"))


@router.get(pages.REDOC)
async def show_redoc(request: Request) -> Response:
    return _page(request, render("redoc.html"), style_src=_REDOC_STYLES)


@router.get(PREFIX + "{digest}/{name:path}")
async def get_asset(digest: str, name: str) -> Response:
    found = assets().get(name) if digest == version() else None
    if found is None:
        raise errors.not_found("asset", f"{digest}/{name}"[:200])
    kept = {"Cache-Control": _FOREVER, "X-Content-Type-Options": "nosniff"}
    return Response(found.content, 200, kept, found.media_type)
