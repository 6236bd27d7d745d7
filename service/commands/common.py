"""Shared by the commands: exit codes, consoles, options, and the output for a file that was read."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from backends.errors import InvalidProblem
from backends.wire import problem_to_wire
from service.formats import FORMATS
from service.formats.core.base import TOKENS, Imported
from tuners.policy import read_bytes

OK, FAILED, BAD_INPUT, PARTLY, INTERRUPTED = 0, 1, 2, 3, 130

#: Without a terminal there is no width to fit: a wide console keeps the lines of tables whole.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
FormatName = Annotated[
    str | None,
    typer.Option("--format", help=f"Format of FILE ({', '.join(FORMATS)}); detected if not given."),
]
Device = Annotated[str | None, typer.Option(help="Device selector, e.g. cpu or cuda:sm_90.")]
#: For commands that use a device of this machine.
OwnDevice = Annotated[
    str | None, typer.Option("--device", help="Device selector, e.g. cpu or cuda:sm_90, or a device's UUID.")
]
Index = Annotated[
    int | None, typer.Option(help="Of several such devices the one with this index (gemmtune devices).")
]
Mode = Annotated[
    str | None, typer.Option(help="eager or graph; default: the device's (graph on GPUs, eager on CPUs).")
]
MaxWorkspace = Annotated[str | None, typer.Option(help="Workspace limit: bytes, or e.g. 32MiB.")]
Server = Annotated[
    str | None,
    typer.Option(envvar="GEMMTUNE_SERVER", help="Ask the service at http://host:port, not this machine."),
]


def tell(text: str, style: str | None = None) -> None:
    """Prints one line on standard error, without wrapping it: scripts and logs read it."""
    err.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def token_ladder(text: str | None) -> tuple[int, ...]:
    """--tokens of a model's config.json: rows of activations. Raises InvalidProblem."""
    if text is None:
        return TOKENS
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and len(part) < 12 for part in parts):
        raise InvalidProblem(f"--tokens {text[:80]!r} must be whole numbers, such as 1,16,2048")
    return tuple(int(part) for part in parts)


def print_json(value: object) -> None:
    """Prints the value on standard output, indented."""
    json.dump(value, sys.stdout, indent=1, default=dict)
    sys.stdout.write("\n")


def imported_json(read: Imported) -> dict[str, Any]:
    """What a file held, as plain JSON values."""
    return {
        "format": read.format,
        "problems": [
            {**problem_to_wire(i.problem), "id": i.problem.id, "count": i.count} for i in read.problems
        ],
        "rejected": [{"line": r.line, "reason": r.reason} for r in read.rejected],
    }


def input_code(read: Imported) -> int:
    """PARTLY if some lines were rejected, BAD_INPUT if no problem was left, else OK."""
    if not read.rejected:
        return OK
    return PARTLY if read.problems else BAD_INPUT


def workspace_limit(text: str | None) -> int | None:
    """--max-workspace as bytes. Raises InvalidProblem."""
    return None if text is None else read_bytes(text, "--max-workspace")
