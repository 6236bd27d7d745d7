"""The export command, on this machine's database or through a service with --server."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.counted import counted
from backends.errors import InvalidProblem
from db.classes import classes
from db.engine import reading
from service import exports
from service.commands.common import (
    Device,
    MaxWorkspace,
    Server,
    out,
    print_json,
    tell,
    workspace_limit,
    write_file,
)
from service.commands.measurements import export_measurements
from service.formats import WRITERS, ExportRefused
from service.installed_torch import InstalledTorch, ask
from service.measured import Asked
from service.remote import Remote
from service.settings import Settings
from service.startup import open_database
from service.text_table import plain_table
from tuners.policy import MeasurementPolicy

Here = Annotated[
    bool,
    typer.Option("--here", help="The reader is the torch of this interpreter: its target and validators."),
]
Python = Annotated[
    str | None,
    typer.Option("--python", help="The reader is the torch of this interpreter (a path), as with --here."),
]


def export(
    format_name: Annotated[str | None, typer.Argument(help="The file's format; --list names them.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; default: print it.")
    ] = None,
    device: Device = None,
    target: Annotated[str | None, typer.Option(help="Who reads it, e.g. torch-2.15+rocm.")] = None,
    ties: Annotated[str, typer.Option(help="TIE and LOSS rows: omit, or default (explicit rows).")] = "omit",
    policy: Annotated[
        str | None, typer.Option(help="Measurement policy's id; default: the device's.")
    ] = None,
    validator: Annotated[list[str] | None, typer.Option(help="KEY:VALUE of the target (repeat).")] = None,
    max_workspace: MaxWorkspace = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Experts of a token: of rows of experts without tokens.")
    ] = None,
    imported: Annotated[bool, typer.Option("--imported", help="Also what imported files claim.")] = False,
    here: Here = False,
    python: Python = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="Of measurements: jsonl (default), csv or parquet; else by FILE's name."
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of measurements: with A of this type.")] = None,
    problem: Annotated[str | None, typer.Option(help="Of measurements: of the problem with this id.")] = None,
    family: Annotated[str | None, typer.Option(help="Of measurements: of this family.")] = None,
    tuning: Annotated[str | None, typer.Option(help="Of measurements: of the tuning with this id.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Of measurements: stored at this date or time (ISO 8601) or later.")
    ] = None,
    formats: Annotated[bool, typer.Option("--list", help="List the formats and their targets.")] = False,
    server: Server = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print list or report as JSON.")] = False,
) -> None:
    """Write the best known solutions of a device class as a file that a framework loads. What was written,
    and what was left out and why, is reported on standard error.

    `gemmtune export measurements -o FILE.parquet` writes every stored outcome of every candidate instead, for
    analysis, and a data card beside it (FILE.parquet.md); without --device of every class."""
    if formats:
        _list_formats(as_json)
        return
    if format_name is None:
        raise InvalidProblem(
            f"name a format: {', '.join(WRITERS)}, or measurements; --list tells what each is for"
        )
    chosen: dict[str, Any] = {
        "dtype": dtype, "problem": problem, "family": family, "tuning": tuning, "since": since,
    }  # fmt: skip
    if format_name == "measurements":
        unused = {"--target": target, "--validator": validator, "--max-workspace": max_workspace,
                  "--top-k": top_k, "--imported": imported, "--here": here, "--python": python}  # fmt: skip
        _refuse(unused, "it is for files that a framework loads, not for measurements")
        asked_for = Asked(device=device, policy=policy, **chosen)
        export_measurements(file_format, output, asked_for, server, as_json)
        return
    _refuse({"--format": file_format, **{f"--{name}": value for name, value in chosen.items()}},
            "it is for measurements (gemmtune export measurements)")  # fmt: skip
    settings = Settings()
    given = validators_of(validator or ())
    torch = installed_torch(format_name, here, python, target)
    if torch is not None:
        target, given = torch.target, {**torch.validators_for(format_name), **given}
        tell(f"for {torch.text}")
    asked = {
        "device": device or settings.chosen_device, "target": target, "ties": ties, "policy": policy,
        "validator": [f"{key}:{value}" for key, value in given.items()] or None, "imported": imported or None,
        "max_workspace": workspace_limit(max_workspace), "top_k": top_k,
    }  # fmt: skip
    if server is not None:
        with Remote(server) as remote:
            path = f"/v1/exports/{format_name}"
            write_file(output, remote.download(path, **asked))
            report = remote.get(path, **asked, report=True)
    else:
        report = _export_here(settings, format_name, output, asked)
    if as_json and output is not None:
        print_json(report)
        return
    tell(_written(report))
    for reason, omitted in report["omitted"].items():
        count = omitted["count"] if isinstance(omitted, dict) else omitted
        tell(f"{count} left out: {reason}", "yellow")
    if report["tune_again"]:
        tell(
            f"{report['tune_again']} of them won with solutions that the file cannot name, and what it can "
            "name was not judged: tune again (tune --force)",
            "yellow",
        )
    if report["one_seed"]:
        tell(f"{report['one_seed']} written on the evidence of one seed: tune again (tune --force)", "yellow")
    for text, slugs in report.get("rests_on", {}).items():
        tell(f"{len(slugs)} written by {text}")
    for reason, count in report.get("stale", {}).items():
        tell(f"{count} written are stale ({reason}): tune again", "yellow")


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raises InvalidProblem for an option that was given and has no use."""
    for name, value in options.items():
        if value:
            raise InvalidProblem(f"leave {name} out: {why}")


def validators_of(texts: Iterable[str]) -> dict[str, str]:
    """The values of --validator by their keys. Raises InvalidProblem."""
    found: dict[str, str] = {}
    for text in texts:
        key, colon, value = text.partition(":")
        if not colon or not key or key in found:
            raise InvalidProblem(f"--validator {text!r}: it must be KEY:VALUE, each key once")
        found[key] = value
    return found


def installed_torch(
    format_name: str, here: bool, python: str | None, target: str | None
) -> InstalledTorch | None:
    """The torch that --here or --python name; None where neither is given. Raises InvalidProblem for a format
    that torch does not load and for a target beside them, NoTorch."""
    if not here and python is None:
        return None
    if target is not None:
        raise InvalidProblem(f"--target {target} and --here or --python both name the reader: give one")
    targets = WRITERS[format_name].targets if format_name in WRITERS else ("torch-",)
    if not any(form.startswith("torch-") for form in targets):
        raise InvalidProblem(
            f"--here and --python name the torch that reads it, and none reads {format_name}"
        )
    return ask(python or sys.executable)


def _written(report: dict[str, Any]) -> str:
    """How many rows were written, and what they are worth."""
    text, gain = f"{counted(report['written'], 'row')} written", report["gain"]
    if gain is None:
        return text
    return (
        f"{text}, geometric mean {gain['geometric_mean']:.3f}x; "
        f"over all {counted(gain['problems'], 'problem')} "
        f"{gain['all_problems']:.3f}x, {gain['with_bundle']:.3f}x with a bundle"
    )


def _export_here(settings: Settings, format_name: str, output: Path | None, asked: dict[str, Any]) -> Any:
    exports.writer(format_name)  # a misspelt format is named before a device is looked for
    engine = open_database(settings)
    validators = validators_of(asked["validator"] or ())
    with reading(engine) as connection:
        device = classes(connection).resolve(asked["device"])
    chosen = exports.Selection(
        device, asked["policy"] or MeasurementPolicy.of(device.vendor).id, bool(asked["imported"]),
        asked["target"], asked["ties"], validators, asked["max_workspace"], asked["top_k"],
    )  # fmt: skip
    made = exports.open_export(engine, format_name, chosen)
    taken = exports.until_written(made)
    if not made.report.written:
        raise ExportRefused(exports.nothing_reason(engine, chosen, made.report))

    def pieces() -> Iterator[bytes]:
        for piece in taken:
            yield piece.encode()
        for piece in made.pieces:
            yield piece.encode()

    write_file(output, pieces())
    return made.report.figures()


def _list_formats(as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"name": w.name, "description": w.description, "targets": list(w.targets), "media_type": w.media_type}
        for w in WRITERS.values()
    ]
    rows.append(
        {"name": "measurements", "description": "Every stored outcome of every candidate, for analysis",
         "targets": [], "media_type": "application/x-ndjson"}
    )  # fmt: skip
    if as_json:
        print_json({"formats": rows})
        return
    table = plain_table("format", "what it is", "targets")
    for row in rows:
        table.add_row(str(row["name"]), str(row["description"]), "\n".join(row["targets"]))
    out.print(table)


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(export)
