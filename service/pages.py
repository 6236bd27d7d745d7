"""Pages of a list: their cursors and their limit as query parameters, and their form in an answer."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Depends, Query

from service import errors
from service.deps import ServiceDep

_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Page:
    """Where a page begins and how many rows it has; `parameter` names the cursor's query parameter."""

    cursor: str | None
    limit: int
    parameter: str = "cursor"

    def after(self, kind: str, start: int = 0) -> int:
        """The number of the row before the page. Raises 422 for a cursor that is not of this list."""
        return start if self.cursor is None else _read_cursor(self.cursor, kind, self.parameter)


async def _limit(
    service: ServiceDep,
    limit: Annotated[
        int | None,
        Query(ge=1, description="Rows of a page, at most GEMMTUNE_MAX_PAGE; 100 where that is allowed."),
    ] = None,
) -> int:
    most = service.settings.max_page
    if limit is None:
        return min(100, most)
    if limit > most:
        raise errors.bad_parameter("limit", f"must be between 1 and {most}, not {limit}")
    return limit


LimitDep = Annotated[int, Depends(_limit)]
#: A page's cursor as a query parameter.
Cursor = Annotated[
    str | None,
    Query(max_length=200, description="next_cursor of the page before; without it the first page."),
]


async def _page(limit: LimitDep, cursor: Cursor = None) -> Page:
    return Page(cursor, limit)


PageDep = Annotated[Page, Depends(_page)]


def make_cursor(kind: str, number: int) -> str:
    """A cursor, opaque to clients, for the page after row `number` of the list `kind`."""
    return base64.urlsafe_b64encode(orjson.dumps([kind, number])).decode().rstrip("=")


def make_place(kind: str, value: float, number: int) -> str:
    """A cursor of a list that is ordered by a value, for the page after the row with these two."""
    return base64.urlsafe_b64encode(orjson.dumps([kind, number, value])).decode().rstrip("=")


def read_place(text: str, kind: str, parameter: str = "cursor") -> tuple[float, int]:
    """The value and the number of make_place(). Raises 422 for a cursor that is not of this list."""
    parts = _decoded(text)
    if len(parts) == 3 and parts[0] == kind and _is_number(parts[1]) and isinstance(parts[2], float):
        return parts[2], parts[1]
    raise _no_cursor(parameter)


def _read_cursor(text: str, kind: str, parameter: str) -> int:
    parts = _decoded(text)
    if len(parts) == 2 and parts[0] == kind and _is_number(parts[1]):
        return int(parts[1])
    raise _no_cursor(parameter)


def _decoded(text: str) -> list[Any]:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        value = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        return []
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _no_cursor(parameter: str) -> errors.Refused:
    return errors.bad_parameter(
        parameter, "this is no cursor of this list; take next_cursor of a page as it is"
    )


def page_of(kind: str, rows: Sequence[Any], limit: int, number: Callable[[Any], int]) -> dict[str, Any]:
    """{"items", "next_cursor"}. `rows` may hold one row more than the page, which shows that another page
    follows."""
    items = list(rows[:limit])
    more = len(rows) > limit
    return {"items": items, "next_cursor": make_cursor(kind, number(items[-1])) if more else None}
