"""The commands portfolio build and portfolio show."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import select

from backends.counted import counted
from backends.environment import DeviceClass, selects
from backends.errors import InvalidProblem, UnknownDevice
from db import models
from db.engine import now, reading
from db.values import table
from service import portfolio as portfolios
from service.commands.common import Device, Json, out, print_json, tell
from service.pretuned import commit
from service.settings import Settings
from service.startup import open_database
from service.text_table import plain_table
from tuners.portfolio import file
from tuners.portfolio.cover import WITHIN
from tuners.portfolio.values import Group, Portfolio

portfolio = typer.Typer(
    help="Small sets of solutions that serve many problems: build one from measurements, show it.",
    no_args_is_help=True,
)


@portfolio.command()
def build(
    device: Device = None,
    within: Annotated[
        float, typer.Option(help="A member serves a problem if it is at most this much slower than its best.")
    ] = WITHIN,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("portfolio.json"),
    add: Annotated[
        bool, typer.Option("--add", help="Keep the groups of other targets and types that the file has.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build a portfolio from the stored outcomes of every session of a device class (default: all classes):
    for each target and types a greedy cover, so that each problem is served by some member."""
    if not 0 <= within < 1:
        raise InvalidProblem(f"--within must be at least 0 and below 1, not {within}")
    with reading(open_database(Settings())) as connection:
        known = list(connection.scalars(select(table(models.DeviceClass).c.id)))
        chosen = [name for name in known if device is None or selects(device, DeviceClass.parse(name))]
        if not chosen:
            raise UnknownDevice(device or "any", known)
        groups = portfolios.from_database(connection, chosen, within)
    if not groups:
        raise InvalidProblem("the database has no session with a verdict to build from: tune first")
    if add and output.exists():
        groups = portfolios.merged(file.read(output).groups, groups)
    made = {"release": version("gemmtune"), "commit": commit(), "made_at": now()}
    file.write(output, groups, made)
    _tell(groups, as_json)
    tell(f"{output}: {counted(sum(len(group.members) for group in groups), 'member')}")


@portfolio.command()
def show(
    path: Annotated[
        Path | None,
        typer.Argument(help="A portfolio's file; default: GEMMTUNE_PORTFOLIO's or the shipped one."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a portfolio's groups: their members, the problems that they were built from, and where the times
    came from."""
    found: Portfolio = file.chosen(path or Settings().portfolio)
    _tell(found.groups, as_json)
    for note in found.notes:
        tell(f"note: {note}", "yellow")


def _tell(groups: Sequence[Group], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "vendor": group.vendor, "target": group.target, "types": group.types,
            "members": len(group.members), "problems": group.observed, "within": group.within,
            "sources": list(group.sources),
        }
        for group in groups
    ]  # fmt: skip
    if as_json:
        print_json({"groups": rows})
        return
    shown = plain_table("target", "types", "members", "problems", "within", "sources", title="Portfolio")
    for row in rows:
        shown.add_row(
            row["target"], row["types"], str(row["members"]), str(row["problems"]), f"{row['within']:.1%}",
            "\n".join(row["sources"]),
        )  # fmt: skip
    out.print(shown)


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.add_typer(portfolio, name="portfolio")
