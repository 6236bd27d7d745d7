"""The commands of db, which look after the database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backends.counted import counted
from db import schema
from db.best import rebuild_best
from db.engine import shown_url, writing
from service.audit import audited
from service.backup import backup
from service.commands.common import Json, out, print_json
from service.copying import copy_database
from service.retention import count_old, prune
from service.settings import Settings
from service.startup import install_tables, open_database, upgrade
from service.targets import derive_targets

database = typer.Typer(help="Look after the database.", no_args_is_help=True)


@database.command(name="upgrade")
def db_upgrade() -> None:
    """Bring the database's schema up to date (idempotent; safe while others run the same). The shipped
    pre-tuned tables are installed as claims, unless GEMMTUNE_PRETUNED=0."""
    settings = Settings()
    with audited(settings, "db upgrade") as change:
        change.subject = revision = upgrade(settings)
        out.print(f"the database's schema is at {revision}", markup=False, highlight=False)
        install_tables(settings)


@database.command(name="rebuild")
def db_rebuild() -> None:
    """Derive every best row anew from the stored verdicts."""
    settings = Settings()
    engine = open_database(settings)
    with audited(settings, "db rebuild") as change:
        with writing(engine) as connection:
            count = rebuild_best(connection, derive_targets)
        change.detail = f"rows={count}"
    engine.dispose()
    out.print(f"{counted(count, 'best row')} at schema {schema.head()}", markup=False, highlight=False)


@database.command(name="backup")
def db_backup(
    file: Annotated[Path, typer.Argument(help="Where the copy is written; it must not exist.")],
) -> None:
    """Copy a SQLite database, with what is in its write-ahead log, into FILE while the service runs."""
    size = backup(Settings(), file)
    out.print(f"{file}: {size} bytes", markup=False, highlight=False)


@database.command(name="copy")
def db_copy(
    source: Annotated[str, typer.Argument(metavar="FROM_URL", help="The database that is copied.")],
    target: Annotated[str, typer.Argument(metavar="TO_URL", help="An empty database.")],
    force: Annotated[
        bool, typer.Option("--force", help="Although servers or workers use the source: copy one moment.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy all that is stored into an empty database: sqlite:////path/to/file or
    postgresql://user:password@host/name, in either direction. Jobs that ran are queued again there."""
    said = f"from={shown_url(source)}"
    with audited(Settings(), "db copy", said, url=target) as change:
        done = copy_database(source, target, force)
        change.detail = f"rows={sum(done.rows.values())}"
    if as_json:
        print_json({"rows": done.rows, "seconds": done.seconds})
        return
    for name, count in done.rows.items():
        if count:
            out.print(f"{count:>10} {name}", markup=False, highlight=False)
    text = (
        f"{counted(sum(done.rows.values()), 'row')} copied in {done.seconds:.1f} s at schema {schema.head()}"
    )
    out.print(text, markup=False, highlight=False)


@database.command(name="prune")
def db_prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    as_json: Json = False,
) -> None:
    """Delete what is older than GEMMTUNE_RETAIN_ENGINE_DAYS, _EVENTS_DAYS and _SAMPLES_DAYS, as servers do
    every hour. Best rows, verdicts and reports stay as they are."""
    settings = Settings()
    engine = open_database(settings)
    if dry_run:
        found = count_old(settings, engine)
    else:
        with audited(settings, "db prune") as change:
            found = prune(settings, engine)
            change.detail = " ".join(f"{name}={count}" for name, count in found.items())
    engine.dispose()
    if as_json:
        print_json({"dry_run": dry_run, **found})
        return
    verb = "would be" if dry_run else "were"
    out.print(
        f"{found['engine']} calls of the job engine and {found['events']} events {verb} deleted, the samples "
        f"of {found['samples']} measurements {verb} cleared",
        markup=False, highlight=False,
    )  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.add_typer(database, name="db")
