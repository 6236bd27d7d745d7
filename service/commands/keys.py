"""The commands keys create, list and revoke, on this machine's database."""

from __future__ import annotations

from typing import Annotated

import typer

from db import keys as rows
from db.engine import reading, writing
from db.fleet import NoSuchName
from service import keys
from service.audit import REFUSED, audited, without_secrets
from service.commands.common import Json, out, print_json, tell
from service.settings import Settings
from service.startup import open_database
from service.text_table import plain_table
from tuners.policy import read_bytes

commands = typer.Typer(help="API keys of the service: make, list and revoke them.", no_args_is_help=True)
_DAY = 86400.0


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is, or for what: shown in lists and logs.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help=f"What it may do (repeat): {', '.join(keys.SCOPES)}. tune and import include read."
        ),
    ],
    days: Annotated[float, typer.Option(help="Days until it expires; 0: never.")] = 365.0,
    requests_per_second: Annotated[
        int | None, typer.Option(min=1, help="Instead of GEMMTUNE_KEY_REQUESTS_PER_SECOND.")
    ] = None,
    queued_jobs: Annotated[
        int | None, typer.Option(min=0, help="Instead of GEMMTUNE_KEY_QUEUED_JOBS.")
    ] = None,
    urgent_jobs: Annotated[
        int | None, typer.Option(min=0, help="Instead of GEMMTUNE_KEY_URGENT_JOBS.")
    ] = None,
    upload_bytes: Annotated[
        str | None, typer.Option(help="Instead of GEMMTUNE_KEY_UPLOAD_BYTES: bytes, or e.g. 32MiB.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key. It is printed once: only its hash is stored."""
    size = None if upload_bytes is None else read_bytes(upload_bytes, "--upload-bytes")
    given = (requests_per_second, queued_jobs, urgent_jobs, size)
    limits = {name: value for name, value in zip(keys.LIMITS, given, strict=True) if value is not None}
    settings = Settings()
    engine = open_database(settings)
    named = [f"{limit}={value}" for limit, value in limits.items()]
    detail = " ".join([f"scopes={','.join(scope)}", f"days={days:g}", *named])
    with audited(settings, "keys create", name, detail, refusals=(keys.KeyRefused,)) as change:
        with writing(engine) as connection:
            token = keys.create(connection, name, scope, days * _DAY if days else None, limits)
        key_id = token.split("_")[1]
        change.detail = f"id={key_id} {detail}"
    engine.dispose()
    if as_json:
        print_json({"id": key_id, "name": name, "scopes": sorted(set(scope)), "key": token})
    else:
        out.print(token, markup=False, highlight=False, soft_wrap=True)
        tell(f"key {key_id} of scope {', '.join(scope)}; it is not shown again")


@commands.command(name="list")
def list_keys(as_json: Json = False) -> None:
    """List the keys: their ids, names, scopes and expiry, never the keys themselves."""
    engine = open_database(Settings())
    with reading(engine) as connection:
        found = rows.keys(connection)
    engine.dispose()
    if as_json:
        names = ("id", "name", "scopes", "limits", "created_at", "expires_at", "revoked_at")
        print_json({"keys": [{name: row[name] for name in names} for row in found]})
        return
    table = plain_table("id", "name", "scopes", "created", "expires", "revoked")
    for row in found:
        times = (row["created_at"], row["expires_at"] or "never", row["revoked_at"] or "")
        table.add_row(row["id"], row["name"], ", ".join(row["scopes"]), *(text[:16] for text in times))
    out.print(table)


@commands.command()
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as listed.")]) -> None:
    """Revoke a key and every login with it, for good. Servers follow within a second."""
    settings = Settings()
    engine = open_database(settings)
    with audited(settings, "keys revoke", key_id) as change:
        with writing(engine) as connection:
            done = rows.revoke(connection, key_id)
        if not done:
            change.result = REFUSED
    engine.dispose()
    if not done:
        shown = without_secrets(key_id)[:60]
        raise NoSuchName(f"there is no key {shown!r} to revoke; list them: gemmtune keys list")
    tell(f"key {key_id} is revoked")


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.add_typer(commands, name="keys")
