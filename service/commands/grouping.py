"""Options of commands that take a grouped product."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backends.errors import InvalidProblem
from backends.grouping import NAMED, given_counts


def _some(groups: int | None) -> int | None:
    """The wire form's 0 means that a product is not grouped, which nobody asks for by an option."""
    if groups is not None and groups < 1:
        raise InvalidProblem(
            f"--groups {groups}: a grouped product has 1 weight matrix or more, such as --groups 8; leave it "
            "out for a product that is not grouped",
            "groups",
        )
    return groups


Groups = Annotated[
    int | None,
    typer.Option(
        callback=_some,
        help="A grouped product: B is so many weight matrices (F.linear's w), A's rows are sorted.",
    ),
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
