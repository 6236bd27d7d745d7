"""The commands provenance list and delete, on this machine's database or through a service with --server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from db import provenance as rows
from db.engine import reading, writing
from service.audit import REFUSED, audited
from service.commands.common import BAD_INPUT, Json, Server, out, print_json, tell
from service.remote import Remote
from service.routes.views import provenance_view
from service.settings import Settings
from service.startup import open_database
from service.text_table import plain_table

commands = typer.Typer(help="Imported files: list them, and remove what one brought.", no_args_is_help=True)
_MOST = 2**31


@commands.command(name="list")
def list_provenance(server: Server = None, as_json: Json = False) -> None:
    """List the files that were imported, and what each brought."""
    found: list[dict[str, Any]]
    if server is None:
        engine = open_database(Settings())
        with reading(engine) as connection:
            found = [provenance_view(row) for row in rows.provenances(connection, 0, _MOST)]
        engine.dispose()
    else:
        with Remote(server) as remote:
            found = list(remote.pages("/v1/provenance", "items", "cursor"))
    if as_json:
        print_json({"provenance": found})
        return
    table = plain_table("number", "source", "kind, format", "device class", "brought", "first import")
    for row in found:
        counts = (("sessions", row["sessions"]), ("claims", row["claims"]), ("names", row["keys"]))
        table.add_row(
            str(row["number"]), row["source"], f"{row['kind']}, {row['format']}", row["device_class"] or "",
            ", ".join(f"{count} {what}" for what, count in counts if count), row["created_at"][:10],
        )  # fmt: skip
    out.print(table)


@commands.command()
def delete(number: Annotated[int, typer.Argument(help="As listed.")], server: Server = None) -> None:
    """Remove what a file brought: its claims, its names of problems, its measurements and verdicts."""
    if server is not None:
        with Remote(server) as remote:
            remote.delete(f"/v1/provenance/{number}")
    else:
        settings = Settings()
        engine = open_database(settings)
        with audited(settings, "provenance delete", str(number)) as change:
            with writing(engine) as connection:
                done = rows.remove(connection, number)
            if not done:
                change.result = REFUSED
        engine.dispose()
        if not done:
            tell(f"error: there is no provenance {number}; list them: gemmtune provenance list", "red")
            raise typer.Exit(BAD_INPUT)
    tell(f"provenance {number} is removed")


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.add_typer(commands, name="provenance")
