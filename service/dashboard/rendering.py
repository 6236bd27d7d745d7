"""The pages' templates, with names in them escaped, and the headers that every page has."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from service.dashboard.assets import address, imports

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    "manifest-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}


def headers(**more: str) -> dict[str, str]:
    """Of a page: what it may load and who may show it. `more` adds sources to a directive (style_src)."""
    policy = [
        f"{name} {value} {more.get(name.replace('-', '_'), '')}".strip() for name, value in _POLICY.items()
    ]
    return {
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "private, no-cache",
    }


def render(template: str, **values: Any) -> str:
    """A template with its values. Raises jinja2.UndefinedError for a value that is missing."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("service.dashboard"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.globals |= {"asset": address, "imports": imports, "version": version("gemmtune")}
    return made
