"""The command lint: checks other tools' tables before the tools load them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.counted import counted
from backends.errors import InvalidProblem, ReadError
from service.commands.common import FAILED, OK, Json, input_path, out, print_json, tell, write_file
from service.formats.aiter.lint import Finding, Tables
from service.formats.core.base import printable, split_lines
from service.formats.core.reading import told

lint = typer.Typer(help="Check other tools' tables before they load them.", no_args_is_help=True)

#: Findings that are printed one by one.
_SHOWN = 100


@lint.callback()
def _group() -> None:
    """Check other tools' tables before they load them."""


@lint.command(name="aiter")
def lint_aiter(
    files: Annotated[list[Path], typer.Argument(help="Tuned tables that AITER loads together.")],
    device: Annotated[
        str | None,
        typer.Option(help="Their device, as ARCH or ARCH:UNITS: rows of others are reported."),
    ] = None,
    merge: Annotated[
        Path | None,
        typer.Option(help="Write one table of all, with the faster of duplicates."),
    ] = None,
    merged: Annotated[
        Path | None, typer.Option(help="A table that was merged from FILES: report the rows that it lacks.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check AITER's tuned tables as AITER merges them: duplicate keys, at which it raises; malformed lines;
    columns that only some have; rows of other devices; rows that a merge lost. Exit code 1: something was
    found that AITER ends or misbehaves at."""
    tables = _read(files)
    findings = tables.findings(_device(device))
    if merged is not None:
        findings = sorted([*findings, *tables.lost(_read([merged]))])
    remaining = [one for one in findings if one.fatal]
    written = None
    if merge is not None:
        bad = [one for one in remaining if one.kind == "malformed"]
        if bad:
            _show(findings, as_json, len(tables.rows), None)
            raise ReadError(
                f"{merge} was not written: {counted(len(bad), 'line')} of the tables cannot be read, and "
                "would be lost; mend or delete them"
            )
        kinds = tables.operators()
        if len(kinds) > 1:
            raise ReadError(
                f"{merge} was not written: the tables are of several operators ({'; '.join(kinds)}); merge "
                "those of one"
            )
        unplaced = tables.without_arch()
        if unplaced:
            raise ReadError(
                f"{merge} was not written: nothing says the arch of {counted(len(unplaced), 'row')}, the "
                f"first in {unplaced[0].place}; give their table a column gfx"
            )
        written = _merge(tables, merge)
        remaining = [one for one in remaining if one.kind == "lost"]
    _show(findings, as_json, len(tables.rows), written)
    raise typer.Exit(FAILED if remaining else OK)


def _read(files: list[Path]) -> Tables:
    tables = Tables()
    for file in dict.fromkeys(files):
        with told(printable(str(file))), input_path(file).open("rb") as stream:
            tables.add(str(file), split_lines(stream))
    return tables


def _merge(tables: Tables, merge: Path) -> dict[str, Any]:
    """Writes the merged table, reads it again and checks that no key of the sources is missing."""
    write_file(merge, (line.encode() for line in tables.merged()))
    again = _read([merge])
    lost = [*tables.lost(again), *again.findings()]
    fatal = [one for one in lost if one.fatal]
    if fatal:
        raise ReadError(f"{merge} is not what its sources say ({fatal[0].text}): do not use it")
    return {"path": str(merge), "rows": len(again.rows)}


def _device(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    arch, _, units = text.removeprefix("hip:").partition(":")
    units = units.rpartition(":")[2]  # a whole device class names the product between the two
    if not arch.startswith("gfx") or (units and not units.isdigit()):
        raise InvalidProblem(f"--device {text[:80]!r} must be such as gfx942 or gfx942:304")
    return arch, units


def _show(findings: list[Finding], as_json: bool, rows: int, written: dict[str, Any] | None) -> None:
    if as_json:
        print_json({"rows": rows, "findings": [one.to_dict() for one in findings], "merged": written})
        return
    for one in findings[:_SHOWN]:
        line = f"{one.file}:{one.line}: {one.kind}: {one.text}"
        out.print(line, style="red" if one.fatal else "yellow", markup=False, highlight=False, soft_wrap=True)
    if len(findings) > _SHOWN:
        out.print(f"... and {len(findings) - _SHOWN} more (--json lists all)")
    kinds = Counter(one.kind for one in findings)
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing found"
    tell(f"{counted(rows, 'row')}: {said}")
    if written is not None:
        tell(f"{counted(written['rows'], 'row')} written to {written['path']}")


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.add_typer(lint, name="lint")
