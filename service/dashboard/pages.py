"""The pages by address: title, template and script of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class PageKind:
    """A page. `section`: the entry of the navigation that it belongs to."""

    path: str
    title: str
    script: str
    section: str
    chart: bool = True


PAGES = (
    PageKind("/", "Overview", "overview.js", "overview", chart=False),
    PageKind("/leaderboard", "Leaderboard", "leaderboard.js", "leaderboard"),
    PageKind("/leaderboard/{problem_id}", "Problem", "problem.js", "leaderboard", chart=False),
    PageKind("/roofline", "Roofline", "roofline.js", "roofline"),
    PageKind("/tunings", "Tunings", "tunings.js", "tunings", chart=False),
    PageKind("/tunings/{tuning_id}", "Tuning", "tuning.js", "tunings"),
    PageKind("/compare", "Compare", "compare.js", "compare"),
    PageKind("/fleet", "Fleet", "fleet.js", "fleet", chart=False),
)
#: Pages of the interface's documentation.
DOCS, REDOC = "/docs", "/redoc"
_PATHS = re.compile(
    "|".join(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(page.path)) for page in PAGES) + f"|{DOCS}|{REDOC}"
)


def is_page(path: str) -> bool:
    """Whether people look at this address."""
    return _PATHS.fullmatch(path) is not None


def login_address(path: str, query: str) -> str:
    """Where a browser without a login is sent; afterwards it goes back to the page."""
    return f"/login?next={quote(path + ('?' + query if query else ''), safe='')}"
