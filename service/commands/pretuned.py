"""The commands pretuned list, install and export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.counted import counted
from backends.environment import DeviceClass
from backends.errors import ReadError
from db.classes import classes
from db.engine import reading
from service import pretuned as tables
from service.audit import audited
from service.commands.common import (
    FAILED,
    Device,
    Json,
    Server,
    err,
    input_path,
    out,
    print_json,
    tell,
    tell_rejected,
    write_file,
)
from service.formats.core.export import ExportRefused, ExportRow
from service.imports import PRETUNED
from service.model.rows import HereRows, ThereRows
from service.pretuned_models import ModelLayers
from service.remote import Remote, class_of
from service.settings import Settings
from service.startup import open_database
from service.text_table import plain_table
from tuners.policy import MeasurementPolicy

pretuned = typer.Typer(
    help="Tables of results that were measured elsewhere: list, install, write one.", no_args_is_help=True
)

Configs = Annotated[
    list[Path] | None,
    typer.Option("--config", help="A model's config.json, of which rows are layers (repeat)."),
]
Devices = Annotated[
    list[int] | None,
    typer.Option("--tp", min=1, help="Devices that share each layer (repeat); default: 1."),
]
Dtype = Annotated[str | None, typer.Option(help="The layers' type, if not the models' own, such as bf16.")]


@pretuned.command(name="list")
def list_tables(server: Server = None, as_json: Json = False) -> None:
    """List the tables that are shipped, and those that are installed in the database."""
    if server is None:
        with reading(open_database(Settings())) as connection:
            there = tables.installed(connection)
    else:
        there = _installed_there(server)
    here = [table.to_dict() for table in tables.shipped()]
    if as_json:
        print_json({"shipped": here, "installed": there})
        return
    columns = ("table", "device class", "types", "rows", "made", "commit")
    shown = plain_table(*columns, title="Shipped")
    for row in here:
        shown.add_row(
            row["name"], row["device_class"], ", ".join(row["types"]), f"{row['rows']} ({row['wins']} WIN)",
            row["made_at"][:10], row["commit"][:12],
        )  # fmt: skip
    out.print(shown)
    for row in here:
        _show_products(row)
        out.print(f"{row['name']}: measured with {row['libraries']}", markup=False, highlight=False)
        if row["models"]:
            layers = ", ".join(f"{name} {count}" for name, count in row["models"].items())
            out.print(f"{row['name']}: rows by model: {layers}", markup=False, highlight=False)
        if row["note"]:
            out.print(f"{row['name']}: {row['note']}", markup=False, highlight=False)
    if server is not None:
        known = plain_table("table", "device class", "rows", "installed", title=f"Installed at {server}")
        for row in there:
            known.add_row(row["name"], row["device_class"], str(row["rows"]), row["installed_at"][:10])
        out.print(known)
        return
    known = plain_table(*columns, "installed", title="Installed")
    for row in there:
        made = (row["made_at"][:10], row["commit"][:12], row["installed_at"][:10])
        known.add_row(row["name"], row["device_class"], ", ".join(row["types"]), str(row["rows"]), *made)
    out.print(known)
    listed = {(row["name"], row["made_at"]) for row in here}
    for row in there:
        if (row["name"], row["made_at"]) not in listed:
            _show_products(row)


def _installed_there(server: str) -> list[dict[str, Any]]:
    """The tables of a service, as it lists imported files: what their rows multiply is not among it."""
    with Remote(server) as remote:
        found = [row for row in remote.pages("/v1/provenance", "items", "cursor") if row["kind"] == PRETUNED]
    return [
        {
            "name": row["source"], "device_class": row["device_class"] or "", "rows": row["claims"],
            "sha256": row["sha256"], "installed_at": row["created_at"],
        }
        for row in found
    ]  # fmt: skip


def _show_products(row: dict[str, Any]) -> None:
    """The kinds of a table's products with the number of rows that have each, and the range of their M."""
    if row["m"] is None:
        return
    kinds = ", ".join(f"{what} {count}" for what, count in row["products"].items())
    m = f"M {row['m']['least']} to {row['m']['most']}"
    out.print(f"{row['name']}: products: {kinds}; {m}", markup=False, highlight=False)


@pretuned.command()
def install(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Shipped tables, or files; default: all shipped."),
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Make tables known to the database: as claims, which are served where asked for (best --imported) and
    never as measurements, and which a tuning of their problems on their device class tries early."""
    paths = [
        input_path(Path("-")) if name == "-" else tables.named(name) for name in names or ()
    ] or tables.shipped_files()
    if not paths:
        raise ReadError("no table is shipped with this gemmtune: name a file that `pretuned export` wrote")
    answers = []
    for path in paths:
        found = tables.read_table(path)
        if server is None:
            settings = Settings()
            engine = open_database(settings)
            with audited(settings, "pretuned install", found.name) as change:
                answer = tables.install(engine, path).to_dict()
                change.detail = f"claims={answer['claims']['stored']}"
        else:
            with Remote(server) as remote:
                answer = remote.upload("/v1/imports/jsonl", path, source=found.name)
        answers.append({"name": found.name, "device_class": str(found.device), **_kept(answer)})
    if as_json:
        print_json({"tables": answers})
    else:
        for one in answers:
            _show(one)
    rejected = {one["name"]: len(one["rejected"]) for one in answers if one["rejected"]}
    for name, count in rejected.items():
        tell_rejected(count, name)
    if rejected and not any(one["stored"] or one["known"] for one in answers):
        raise typer.Exit(FAILED)


def _kept(answer: dict[str, Any]) -> dict[str, Any]:
    claims = answer["claims"]
    return {
        **{name: claims[name] for name in ("stored", "known", "skipped", "reasons")},
        "rejected": answer["rejected"],
    }


def _show(one: dict[str, Any]) -> None:
    words = (
        f"{counted(one['stored'], 'row')} installed, {one['known']} known already, {one['skipped']} left out"
    )
    out.print(f"{one['name']} ({one['device_class']}): {'; '.join([words, *one['reasons']])}", markup=False)
    for row in one["rejected"]:
        err.print(f"line {row['line']}: {row['reason']}", style="yellow", markup=False)


@pretuned.command()
def export(
    name: Annotated[str, typer.Option(help="The table's name, such as llama-3-8b-h200.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file.")],
    device: Device = None,
    note: Annotated[str, typer.Option(help="What was searched and for how long, for its users.")] = "",
    policy: Annotated[
        str | None, typer.Option(help="Measurement policy's id; default: the device's.")
    ] = None,
    config: Configs = None,
    tp: Devices = None,
    dtype: Dtype = None,
    server: Server = None,
) -> None:
    """Write what was measured on a device class as a table that others can install. The card's UUID is left
    out. With --config each row says which layers of the models it is, and how often they are called."""
    models = _models(config, tp, dtype)
    settings = Settings()
    selector = device or settings.chosen_device
    if server is None:
        engine = open_database(settings)
        with reading(engine) as connection:
            found = classes(connection).resolve(selector)
        every = HereRows(engine).every(found, _policy(found, policy))
        count = _write(output, name, note, found, every, models)
    else:
        with Remote(server) as remote:
            rows = remote.get("/v1/devices")["classes"]
            found = class_of(selector, rows)
            every = ThereRows(remote).every(found, _policy(found, policy))
            count = _write(output, name, note, found, every, models)
    size = output.stat().st_size / count
    tell(f"{counted(count, 'row')} of {found} written to {output}, {size:.0f} bytes a row")


@pretuned.command()
def models(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A shipped table, or a file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file; the table's own is replaced.")],
    config: Configs = None,
    tp: Devices = None,
    dtype: Dtype = None,
) -> None:
    """Write a table anew with the layers that each row is, of the models of --config, and with their calls.
    Nothing else changes."""
    if not config:
        raise ReadError("name the models that the table is for: --config llama-3-8b/config.json")
    found = tables.read_table(tables.named(name))
    layers = _models(config, tp, dtype)
    lines = tables.rewrite_table(found, layers)
    write_file(output, (line.encode() for line in lines))
    known = sum(bool(layers.of(row.problem)) for row in found.rows)
    every = counted(len(found.rows), "row is a layer", "rows are layers")
    tell(f"{known} of {every} of the models; written to {output}")


def _models(configs: list[Path] | None, devices: list[int] | None, dtype: str | None) -> ModelLayers:
    return ModelLayers([input_path(path) for path in configs or ()], devices or (1,), dtype)


def _policy(device: DeviceClass, policy: str | None) -> str:
    return policy or MeasurementPolicy.of(device.vendor).id


def _write(
    output: Path, name: str, note: str, device: DeviceClass, rows: Iterable[ExportRow], models: ModelLayers
) -> int:
    """Writes the table; returns how many rows it has. Raises ExportRefused for a table without a row."""
    pieces = tables.write_table(name, device, rows, note, models)
    count = 0

    def whole() -> Iterator[bytes]:
        nonlocal count
        header, first = next(pieces), next(pieces, None)
        if first is None:
            raise ExportRefused(
                f"nothing was measured on {device} under this policy: there is no row to write"
            )
        yield header.encode()
        for piece in chain((first,), pieces):
            count += 1
            yield piece.encode()

    write_file(output, whole())
    return count


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.add_typer(pretuned, name="pretuned")
