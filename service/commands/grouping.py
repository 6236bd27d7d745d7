"""Options of commands that take a grouped product."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backends.grouping import NAMED, given_counts

Groups = Annotated[
    int | None,
    typer.Option(help="A grouped product: B is so many weight matrices (F.linear's w), A's rows are sorted."),
]
Routing = Annotated[
    str | None,
    typer.Option(
        help=f"How A's rows are distributed over the groups: {', '.join(NAMED)}, or the rows of each: 3,0,5."
    ),
]


def routing(text: str | None) -> Any:
    """The `routing` of a problem's wire form: a name, or the counts."""
    counts = None if text is None else given_counts(text)
    return text if counts is None else counts
