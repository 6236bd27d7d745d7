"""Shared by the commands: exit codes, consoles, options, and the output for a file that was read."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from backends.wire import problem_to_wire
from service.formats import FORMATS
from service.formats.core.base import Imported
from tuners.effort import effort_help
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
Effort = Annotated[
    str | None,
    typer.Option(help=f"How much to spend on a problem. {effort_help()}. Other options replace its own."),
]
StopAtRoofline = Annotated[
    float | None,
    typer.Option(help="End the search once a candidate reaches this share of the roofline, e.g. 0.95."),
]
Server = Annotated[
    str | None,
    typer.Option(envvar="GEMMTUNE_SERVER", help="Ask the service at http://host:port, not this machine."),
]


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
