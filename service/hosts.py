"""Names and origins that requests may give: Host against DNS rebinding, Origin against other sites' pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from backends.errors import GemmtuneError

_LOOPBACK_NAMES = ("localhost", "ip6-localhost")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
_ANY = "*"
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class BadSetting(GemmtuneError):
    """A setting's value means nothing."""


def listed(text: str) -> tuple[str, ...]:
    """The parts of a setting that is a list with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, whatever a name server says."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class AllowedHosts:
    """The hosts that requests may name. `names` lists them; `.example.org` are the hosts below it, `*` any.
    Without names, a service on loopback takes loopback names; another one takes any host where keys are
    required (a rebound page has neither key nor cookie), else addresses and its own name."""

    def __init__(self, names: Sequence[str], bound: str, keys: bool, own_name: str) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._below = tuple(name for name in self._names if name.startswith("."))
        self._local, self._keys = is_loopback(bound), keys
        self._own = own_name.lower()
        self._seen: dict[bytes, bool] = {}

    def allows(self, host: bytes) -> bool:
        """Whether a Host header may be answered."""
        known = self._seen.get(host)
        if known is None:
            known = self._allows(host.decode("latin-1").lower())
            if len(self._seen) < 1000:
                self._seen[host] = known
        return known

    def _allows(self, text: str) -> bool:
        form = _HOST.fullmatch(text)
        if form is None:
            return False
        name = form.group(1).rstrip(".")
        if self._names:
            return _ANY in self._names or name in self._names or name.endswith(self._below)
        if is_loopback(name):
            return True
        return not self._local and (self._keys or _is_address(name) or name == self._own)


def origins(text: str) -> frozenset[str]:
    """GEMMTUNE_CORS_ORIGINS as origins. Raises BadSetting."""
    found = frozenset(listed(text))
    for origin in found:
        parts = urlsplit(origin)
        if (
            parts.scheme not in _DEFAULT_PORTS
            or not parts.netloc
            or origin != f"{parts.scheme}://{parts.netloc}"
        ):
            raise BadSetting(
                f"GEMMTUNE_CORS_ORIGINS has {origin!r}; an origin is https://host or https://host:port, and "
                "* is not taken"
            )
    return found


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the host that the request went to. The scheme is left out: a proxy may
    have taken TLS off."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme)
    form = _HOST.fullmatch(host.lower())
    if default is None or form is None or parts.hostname is None:
        return False
    return form.group(1).strip("[]") == parts.hostname and (form.group(2) or default) == str(port or default)
