"""The commands report and diff, on this machine's database or through a service with --server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from backends.errors import InvalidProblem
from db import worth
from db.classes import classes
from db.engine import now, reading
from service.commands.common import Device, Json, Server, print_json, tell, write_file
from service.diff import compare_named
from service.remote import Remote
from service.settings import Settings
from service.startup import open_database
from service.worth import LISTED, worth_report
from service.worth_page import worth_page
from service.worth_text import diff_text, worth_text
from tuners.policy import MeasurementPolicy

Policy = Annotated[
    str | None, typer.Option(help="A measurement policy's id; default: that of a tuning without options.")
]


def report(
    device: Device = None,
    list_name: Annotated[
        str | None,
        typer.Option(
            "--list",
            help="Only problems of the imported files with this source, or of the tuning with this id.",
        ),
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only problems that this family won.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Only problems with A of this type.")] = None,
    policy: Policy = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Untuned problems and stale rows that are listed.")
    ] = LISTED,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write it as one HTML file with charts, such as report.html."),
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show what tuning is worth on a device class: seconds saved, speed-ups, what to tune next, and rows
    that are stale.

    Times are weighted by the calls that imported files and tunings count. Savings of untuned problems are
    estimates."""
    if server is None:
        settings = Settings()
        answer = _report_here(
            settings,
            device or settings.chosen_device,
            list_name,
            family,
            dtype,
            policy,
            limit,
            output is not None,
        )
    else:
        asked = {"list": list_name, "family": family, "dtype": dtype, "policy": policy, "limit": limit}
        asked["detail"] = output is not None or None
        with Remote(server) as remote:
            answer = remote.get("/v1/reports/worth", device=device, **asked)
    if output is not None:
        write_file(output, iter([worth_page(answer, now()).encode()]))
        if str(output) != "-":
            tell(f"wrote {output}, {output.stat().st_size:,} bytes")
    if as_json:
        print_json(answer)
    elif output is None:
        typer.echo(worth_text(answer))


def diff(
    before: Annotated[str, typer.Argument(help="An environment's id, or the hash at its end.")],
    after: Annotated[str, typer.Argument(help="A later environment of the same device class.")],
    policy: Policy = None,
    limit: Annotated[int, typer.Option(min=1, help="Winners that are listed; --json lists all.")] = LISTED,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show what became of the winners of one environment in another: kept, beaten, broken, retired, or not
    measured there yet. `gemmtune report --json` names present environments, `gemmtune devices --json` this
    machine's, and GET /v1/environments all."""
    if server is None:
        with reading(open_database(Settings())) as connection:
            answer = compare_named(connection, before, after, policy)
    else:
        asked = {"before": before, "after": after, "policy": policy}
        with Remote(server) as remote:
            answer = remote.get("/v1/diff", **asked)
            answer["items"] = list(remote.pages("/v1/diff", "items", "cursor", **asked))
            del answer["next_cursor"]
    if as_json:
        print_json(answer)
    else:
        typer.echo(diff_text(answer, limit))


def _report_here(
    settings: Settings, selector: str | None, list_name: str | None, family: str | None, dtype: str | None,
    policy: str | None, limit: int, detail: bool,
) -> dict[str, Any]:  # fmt: skip
    with reading(open_database(settings)) as connection:
        device = classes(connection).resolve(selector)
        problems = None
        if list_name is not None:
            problems = worth.find_list(connection, list_name)
            if problems is None:
                raise InvalidProblem(
                    f"there is no list {list_name!r}: give the name under which a file was imported, or a "
                    "tuning's id"
                )
        policy_id = policy or MeasurementPolicy.of(device.vendor).id
        return worth_report(
            connection, worth.Scope(str(device), policy_id, problems, family, dtype), limit, detail
        )


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command()(report)
    app.command()(diff)
