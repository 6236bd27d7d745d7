"""`gemmtune export measurements`: stored measurements as a file, and its data card beside it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from backends.errors import InvalidProblem
from db.classes import classes
from db.engine import now, reading
from db.measured import Wanted
from service import data_card
from service.commands.common import print_json, tell, write_file
from service.measured import LAST_HEADER, PATH, Asked, parts, wanted_of
from service.measured_files import KINDS
from service.remote import Remote
from service.settings import Settings
from service.startup import open_database

#: What `export` calls this file in place of a format.
NAME = "measurements"


@dataclass(frozen=True)
class Written:
    """A file that was written: its newest possible measurement, and its data card."""

    last: int
    card: str


def export_measurements(
    kind_name: str | None, output: Path | None, asked: Asked, server: str | None, as_json: bool
) -> None:
    """Writes the file, and its card to FILE.md; to standard output the file alone. Raises InvalidProblem,
    MissingExtra, ServiceError."""
    if output is not None and str(output) == "-":
        output = None
    kind_name = kind_name or _by_suffix(output)
    if kind_name not in KINDS:
        raise InvalidProblem(f"--format {kind_name[:40]!r} is unknown; known: {', '.join(KINDS)}")
    if server is None:
        KINDS[kind_name].check()
        done = _here(kind_name, output, asked)
    else:
        done = _there(server, kind_name, output, asked)
    if output is None:
        return
    card = output.with_name(f"{output.name}.md")
    write_file(card, iter([done.card.encode()]))
    if as_json:
        print_json(
            {"output": str(output), "card": str(card), "format": kind_name, "last": done.last,
             "bytes": output.stat().st_size}
        )  # fmt: skip
        return
    tell(f"wrote {output}, {output.stat().st_size:,} bytes; {_counted(done.card)}")
    tell(f"wrote {card}: its columns, counts and environments; state a licence there before you publish it")


def _by_suffix(output: Path | None) -> str:
    suffix = "" if output is None else output.suffix
    return next((kind.name for kind in KINDS.values() if kind.suffix == suffix), "jsonl")


def _counted(card: str) -> str:
    """The card's line with the counts."""
    return next(line for line in card.splitlines() if " measurements of " in line).rstrip(".")


def _here(kind_name: str, output: Path | None, asked: Asked) -> Written:
    engine = open_database(Settings())
    given = {name: value for name, value in asdict(asked).items() if value is not None}
    with reading(engine) as connection:
        known = classes(connection)
        wanted = wanted_of(connection, asked, lambda name: str(known.resolve(name)))
    if not isinstance(wanted, Wanted):
        from service import errors  # noqa: PLC0415  (loads the web framework)

        raise errors.not_found(wanted, getattr(asked, wanted)[:100])
    about = {"measurements": str(wanted.last), "selection": json.dumps(given), "written_at": now()}
    with closing(KINDS[kind_name].write(parts(engine, wanted), about)) as pieces:
        write_file(output, pieces)
    if output is None:
        return Written(wanted.last, "")
    with reading(engine) as connection:
        return Written(wanted.last, data_card.card(connection, wanted, given, now()))


def _there(server: str, kind_name: str, output: Path | None, asked: Asked) -> Written:
    given = asdict(asked)
    with Remote(server) as remote:
        with remote.streamed(PATH, {}, format=kind_name, **given) as answer:
            last = int(answer.headers[LAST_HEADER])
            write_file(output, answer.iter_bytes())
        if output is None:
            return Written(last, "")
        given = asdict(replace(asked, last=last))
        return Written(last, b"".join(remote.download(f"{PATH}/card", **given)).decode())
