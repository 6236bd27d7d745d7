"""HTTP of the standard library, with the rules of a file that is code: https, or loopback, or a pinned
digest; no redirect to plain http; no key sent to another host or in the clear."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from gemmtune.errors import BundleError

#: Seconds without a byte after which a server counts as away.
SECONDS = 30.0
_MOST_ANSWER = 2**20
#: What a connection that fails raises. urllib's own errors are OSErrors.
AWAY = (OSError, http.client.HTTPException)


class ServerAway(BundleError):
    """The server does not answer, or answers that it cannot now."""


def check_address(address: str, pinned: bool, key: str | None) -> None:
    """Raises BundleError for an address that a bundle must not come from, or a key must not be sent to.
    `pinned`: the bundle's digest is given, or no bundle is fetched."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise BundleError(f"{address!r} is no address of a service: https://host:port")
    if parts.scheme == "https" or is_loopback(parts):
        return
    if not pinned:
        raise BundleError(
            f"a bundle is code, and anyone on the way can alter what {address} sends: use https, or pin the "
            "bundle by digest="
        )
    if key is not None:
        raise BundleError(f"the key would be sent in the clear to {address}: use https")


def is_loopback(parts: SplitResult) -> bool:
    """Whether an address is this machine's own."""
    host = parts.hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Answer:
    """An answer: its status, headers and body, which is read in pieces and closed by `with`."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.status: int = raw.status

    def header(self, name: str) -> str | None:
        """A header's value."""
        value: str | None = self._raw.headers.get(name)
        return value

    def read(self, size: int) -> bytes:
        """The next bytes of the body, none at its end. Raises what AWAY lists."""
        data: bytes = self._raw.read(size)
        return data

    def json(self) -> Any:
        """The body. Raises ValueError, and what AWAY lists."""
        return json.loads(self._raw.read(_MOST_ANSWER))

    def detail(self) -> str:
        """What a problem+json body says, for an error's text."""
        try:
            found = self.json()
            return str(found.get("detail") or found.get("title") or "")[:1000]
        except (*AWAY, ValueError, AttributeError):
            return ""

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https, and on loopback; takes the key along to the same host alone."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """See HTTPRedirectHandler. Raises BundleError."""
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if req.get_method() != "GET":  # it would become a GET, and its body would be lost
            raise BundleError(
                f"{req.full_url} redirects to {newurl[:200]}: give that address, if you trust it"
            )
        if new.scheme != "https" and not (new.scheme == "http" and is_loopback(new) and is_loopback(old)):
            raise BundleError(f"{req.full_url} redirects to {newurl[:200]}, which is not https: refused")
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            found.remove_header("Authorization")
        return found


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Answers of every status but redirects are returned, not raised."""

    def http_response(self, request: Any, response: Any) -> Any:
        """See HTTPErrorProcessor."""
        if response.status in (301, 302, 303, 307, 308):
            return super().http_response(request, response)
        return response

    https_response = http_response


def _opener(address: str) -> urllib.request.OpenerDirector:
    """Without the handlers of files, FTP and data addresses. A request to this machine passes no proxy."""
    opener = urllib.request.OpenerDirector()
    proxies: dict[str, str] | None = {} if is_loopback(urlsplit(address)) else None
    for handler in (
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(), _Redirects(), _AnyStatus(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


def get(address: str, headers: Mapping[str, str]) -> Answer:
    """The answer to a GET. Raises ServerAway, and BundleError for a redirect that is refused."""
    return _answer(address, headers, None)


def post(address: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """The answer to a POST. Raises ServerAway, and BundleError for any redirect."""
    return _answer(address, headers, body)


def _answer(address: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
    request = urllib.request.Request(address, body, {"User-Agent": "gemmtune-client", **headers})
    try:
        answer = _opener(address).open(request, timeout=SECONDS)
        if answer is None:
            raise BundleError(f"{address} cannot be opened")
        return Answer(answer)
    except urllib.error.HTTPError as error:
        raise BundleError(f"{address}: {error}") from error
    except AWAY as error:
        raise ServerAway(f"{address} does not answer: {getattr(error, 'reason', error)}") from error
