"""The W3C's `traceparent`: names the trace and the span that a request belongs to.

Needs no library, so that a job has its request's trace whether or not spans are sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True)
class TraceParent:
    """A trace and a span of it, as hex digits in lower case: 32 and 16 of them."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        """The header's value, of version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def parse(value: str) -> TraceParent | None:
    """A header's value; None for one that the specification tells to ignore. Of a version that is not known
    yet the fields of version 00 count."""
    match = _FORM.fullmatch(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    unknown = version == "ff" or (version == "00" and more is not None)
    if unknown or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def of_headers(headers: Iterable[tuple[bytes, bytes]]) -> TraceParent | None:
    """That of an ASGI request's headers. Two of them are none: nothing says which is right."""
    given = [value for name, value in headers if name == b"traceparent"]
    return parse(str(given[0], "latin-1").strip(" \t")) if len(given) == 1 else None
