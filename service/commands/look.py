"""Commands that only look: devices, problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.cache import BinaryCache
from backends.counted import counted
from backends.errors import GemmtuneError
from backends.registry import FoundDevice
from backends.registry import devices as find_devices
from service import report
from service.commands.common import (
    BAD_INPUT,
    FormatName,
    Json,
    Layers,
    Tokens,
    Tp,
    imported_json,
    input_code,
    out,
    print_json,
    read_input,
    tell,
    tell_rejected,
)
from service.settings import Settings
from tuners.ceilings import CeilingStore
from tuners.device_client import DeviceClient

commands = typer.Typer(invoke_without_command=True)


@commands.callback()
def devices(
    context: typer.Context,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure ceilings now: reading, copying, multiplying fp32."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the devices of this machine, what runs on them, their measured ceilings, and which of them differ
    from their class."""
    if context.invoked_subcommand is not None:
        return
    settings = Settings()
    found, notes = find_devices()
    store = CeilingStore(settings.cache_dir / "ceilings")
    ceilings = {}
    for row, device in enumerate(found):
        if measure:
            with DeviceClient(device, BinaryCache(settings.cache_dir / "kernels")) as runner:
                fresh = runner.ceilings(["fp32"])
                known = store.get(device.environment)
                store.put(device.environment, fresh if known is None else known.merged(fresh))
        ceilings[row] = store.get(device.environment)
    outliers, unread = _outliers(settings, found)
    notes = [*notes, *unread]
    if as_json:
        rows = [
            {
                "selector": str(device.environment.device_class),
                "index": device.index,
                "environment_id": device.environment.id,
                "environment": device.environment.to_dict(),
                "ceilings": None if ceilings[row] is None else vars(ceilings[row]),
                "outlier": outliers.get(device.environment.uuid),
            }
            for row, device in enumerate(found)
        ]
        print_json({"devices": rows, "notes": notes})
        return
    out.print(report.devices_table(found, ceilings))
    for uuid, one in outliers.items():
        notes.append(f"{uuid}: {one['reason']}; its results are kept apart since {one['since']}")
    for note in notes:
        out.print(f"note: {note}", style="yellow", markup=False)


def _outliers(
    settings: Settings, found: Sequence[FoundDevice]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The devices that differ from their class, and a note if the database could not be asked for them."""
    from service.outliers import outliers_here  # noqa: PLC0415  (a database, which not every machine has)

    try:
        return outliers_here(settings, [device.environment for device in found]), []
    except GemmtuneError as error:
        return {}, [f"whether a device differs from its class is not known: {error}"]


@commands.command()
def forget(
    device_class: Annotated[str, typer.Argument(metavar="CLASS", help="A whole device class, as listed.")],
) -> None:
    """Forget a device class of the database that no worker serves any more: selectors do not mean it, until a
    worker registers it again. What was measured on it stays."""
    from db import classes  # noqa: PLC0415  (devices are listed without a database)
    from db.engine import writing  # noqa: PLC0415
    from service.audit import REFUSED, audited  # noqa: PLC0415
    from service.startup import open_database  # noqa: PLC0415

    settings = Settings()
    engine = open_database(settings)
    with audited(settings, "devices forget", device_class, refusals=(classes.ClassInUse,)) as change:
        with writing(engine) as connection:
            done = classes.forget(connection, device_class)
        if not done:
            change.result = REFUSED
    engine.dispose()
    if not done:
        tell(f"error: there is no device class {device_class!r}", "red")
        raise typer.Exit(BAD_INPUT)
    tell(f"{device_class} is forgotten")


def problems(
    file: Annotated[Path, typer.Argument(help="A file of problems; - reads standard input.")],
    format_name: FormatName = None,
    tp: Tp = None,
    tokens: Tokens = None,
    layers: Layers = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of a model's weights and activations, where not its own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the problems in FILE with their call counts, and every line that could not be read."""
    read = read_input(file, format_name, tp, tokens, dtype, layers)
    if as_json:
        print_json(imported_json(read))
    else:
        if read.problems:
            out.print(report.problems_table(read.problems))
        if read.rejected:
            out.print(report.rejected_table(read.rejected))
        out.print(
            f"{counted(len(read.problems), 'problem')} in {counted(read.lines, 'line')} of {read.format}"
        )
    tell_rejected(len(read.rejected) + read.rejected_more, file)
    raise typer.Exit(input_code(read))


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.add_typer(commands, name="devices")
    app.command()(problems)
