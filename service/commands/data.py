"""The commands best, import and export, on this machine's database or through a service with --server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.table import Table

from backends.environment import resolve
from backends.errors import InvalidProblem, StorageError
from backends.wire import problem_from_wire
from db import queries
from db.engine import reading
from service import best as lookups
from service import exports, imports, report
from service.commands.common import (
    BAD_INPUT,
    FAILED,
    PARTLY,
    Device,
    Json,
    MaxWorkspace,
    Mode,
    Server,
    out,
    print_json,
    tell,
    token_ladder,
    workspace_limit,
)
from service.formats import READERS, WRITERS, ExportRefused, ReadOptions
from service.formats.core.base import printable
from service.formats.core.reading import told
from service.remote import Remote
from service.settings import Settings
from service.startup import open_database
from tuners.budget import Budget
from tuners.decide import DecisionRule
from tuners.policy import MeasurementPolicy
from tuners.tuning_settings import TuningSettings

#: Rejected lines that are printed one by one.
_SHOWN = 20


def best(
    m: Annotated[int, typer.Option(help="Rows of the row-major output.")],
    n: Annotated[int, typer.Option(help="Columns of the row-major output.")],
    k: Annotated[int, typer.Option(help="Length of the dot products.")],
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, ... (default fp32)")] = None,
    dtype_c: Annotated[str | None, typer.Option(help="Output type, where it differs.")] = None,
    compute: Annotated[str | None, typer.Option(help="Compute type, where it differs.")] = None,
    batch: Annotated[int | None, typer.Option(help="Strided batch.")] = None,
    trans_a: Annotated[bool, typer.Option("--trans-a", help="A is stored transposed.")] = False,
    trans_b: Annotated[bool, typer.Option("--trans-b", help="B is stored transposed (F.linear).")] = False,
    epilogue: Annotated[str | None, typer.Option(help="none, bias, relu, gelu, silu, bias_relu, ...")] = None,
    device: Device = None,
    mode: Mode = None,
    cache: Annotated[str | None, typer.Option(help="Measured with cold or warm operands.")] = None,
    max_workspace: MaxWorkspace = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Deterministic only.")] = False,
    family: Annotated[list[str] | None, typer.Option(help="Only these families (repeat).")] = None,
    imported: Annotated[bool, typer.Option("--imported", help="Also what imported files claim.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show the best known way to run a problem. Exit code 1: nothing is known."""
    fields = {
        "m": m, "n": n, "k": k, "dtype": dtype, "dtype_c": dtype_c, "compute": compute, "batch": batch,
        "trans_a": trans_a or None, "trans_b": trans_b or None, "epilogue": epilogue,
    }  # fmt: skip
    wire = {name: value for name, value in fields.items() if value is not None}
    limit = workspace_limit(max_workspace)
    filters = lookups.Filters(limit, deterministic, frozenset(family) if family else None)
    settings = Settings()
    if server is None:
        answer = _best_here(settings, wire, device or settings.device, mode, cache, filters, imported)
    else:
        with Remote(server) as remote:
            answer = remote.get(
                "/v1/solutions/best", **wire, device=device, mode=mode, cache=cache,
                max_workspace=limit, deterministic=deterministic or None,
                families=",".join(family) if family else None, imported=imported or None,
            )  # fmt: skip
    if as_json:
        print_json(answer)
    else:
        _show_best(answer)
    if answer.get("solution") is None and answer["match"] == "default":
        raise typer.Exit(FAILED)


def _best_here(
    settings: Settings,
    wire: dict[str, Any],
    selector: str,
    mode: str | None,
    cache: str | None,
    filters: lookups.Filters,
    imported: bool,
) -> Any:
    problem = problem_from_wire(wire)
    with reading(open_database(settings)) as connection:
        device = resolve(selector, queries.known_classes(connection))
        policy = MeasurementPolicy.of(device.vendor, mode, cache=cache or MeasurementPolicy.cache)
        asked = lookups.Asked(device, policy.id, filters, imported)
        found = queries.best_documents(connection, [problem.id], str(device), policy.id)
        return orjson.loads(lookups.answer(connection, asked, problem, found.get(problem.id)))


def _show_best(answer: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    solution = answer.get("solution")
    match = answer["match"]
    if match == "nearest":
        regret = answer.get("transfer_regret")
        known = (
            "never measured" if regret is None else f"{regret['median']:.1%} (median of {regret['pairs']})"
        )
        match += f", distance {answer['distance']:.2f} doublings, transfer regret {known}"
    rows = [("match", match)]
    rows += [(what, json.dumps(answer[what])) for what in ("asked", "problem") if what in answer]
    rows += [("device class", answer["device_class"])] if "device_class" in answer else []
    if solution is not None:
        rows += [("solution", solution["id"]), ("family", solution["family"])]
        rows += [("parameters", json.dumps(solution["parameters"]))]
        rows += [("workspace", f"{solution['workspace_bytes']} bytes")]
    if answer.get("seconds") is not None:
        rows += [("time", report.time_text(answer["seconds"]))]
    if answer.get("judgement") and answer.get("baseline"):
        gain = answer["speedup"]["mid"]
        rows += [("verdict", f"{answer['judgement']}, {gain:.2f}x over {answer['baseline']['name']}")]
    rows += [("reason", answer["reason"])] if answer.get("reason") else []
    rows += [("note", note) for note in answer.get("notes", [])]
    for name, text in rows:
        table.add_row(name, str(text))
    out.print(table, markup=False)


def import_file(
    file: Annotated[Path, typer.Argument(help="The file.")],
    format_name: Annotated[
        str | None, typer.Option("--format", help=f"One of {', '.join(READERS)}; found out if not given.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Whose results the file's are: a selector, or a class vendor:arch:product:units."),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Also have its problems tuned by the service.")
    ] = False,
    tp: Annotated[
        int, typer.Option("--tp", help="Of a model's config.json: devices that share each layer.")
    ] = 1,
    tokens: Annotated[
        str | None,
        typer.Option(help="Of a model's config.json: rows of activations, such as 1,16,2048."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of a model's weights and activations, where not its own.")
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Store a file's problems, and what it claims or measured. Exit code 3: some lines were rejected."""
    ladder = token_ladder(tokens)
    if server is not None:
        with Remote(server) as remote:
            answer = remote.upload(
                f"/v1/imports/{format_name or 'auto'}", file, device=device, tune=tune or None,
                source=file.name, tensor_parallel=tp if tp != 1 else None,
                tokens=None if tokens is None else list(ladder), dtype=dtype,
            )  # fmt: skip
    else:
        answer = _import_here(file, format_name, device, tune, ReadOptions(file.name, tp, ladder, dtype))
    if as_json:
        print_json(answer)
    else:
        _show_import(answer)
    if answer["rejected"]:
        kept = answer["problems"] or answer["claims"]["stored"] or answer["sessions"]["stored"]
        raise typer.Exit(PARTLY if kept else BAD_INPUT)


def _import_here(
    file: Path, format_name: str | None, device: str | None, tune: bool, options: ReadOptions
) -> Any:
    settings = Settings()
    engine = open_database(settings)
    with told(printable(str(file))):
        stream = file.open("rb")
    with stream:
        done = imports.import_file(engine, stream, str(file), format_name, device, file.name, options)
    answer = done.to_dict()
    if tune:
        from service.tunings import open_tunings  # noqa: PLC0415  (the job engine)

        tunings = open_tunings(engine, settings)
        target = imports.import_class(engine, device or settings.device)
        created = tunings.submit(
            target,
            TuningSettings(
                MeasurementPolicy.of(target.vendor),
                Budget(settings.seconds_per_problem),
                rule=DecisionRule(margin=settings.margin),
            ),
            imports.distinct(done.read),
        )  # fmt: skip
        tunings.close()
        answer["tuning"] = {"id": created.id, "total": created.total}
    return answer


def _show_import(answer: dict[str, Any]) -> None:
    for row in answer["rejected"][:_SHOWN]:
        tell(f"line {row['line']}: {row['reason']}", "yellow")
    out.print(f"{len(answer['problems'])} problems from a file of format {answer['format']}", markup=False)
    for what in ("claims", "sessions"):
        kept = answer[what]
        if any(kept[name] for name in ("stored", "known", "skipped")):
            words = (
                f"{what}: {kept['stored']} stored, {kept['known']} known already, {kept['skipped']} left out"
            )
            out.print("; ".join([words, *kept["reasons"]]), markup=False)
    if answer["rejected"]:
        count = len(answer["rejected"]) + answer["rejected_more"]
        more = f"; the first {_SHOWN} are listed" if count > _SHOWN else ""
        out.print(f"{count} lines rejected{more}", style="yellow", markup=False)
    if (answer.get("tuning") or {}).get("id"):
        out.print(f"tuning {answer['tuning']['id']}: {answer['tuning']['total']} problems", markup=False)


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
    imported: Annotated[bool, typer.Option("--imported", help="Also what imported files claim.")] = False,
    formats: Annotated[bool, typer.Option("--list", help="List the formats and their targets.")] = False,
    server: Server = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print list or report as JSON.")] = False,
) -> None:
    """Write the best known solutions of a device class as a file that a framework loads. What was written,
    and what was left out and why, is reported on standard error."""
    if formats:
        _list_formats(as_json)
        return
    if format_name is None:
        raise InvalidProblem(f"name a format: {', '.join(WRITERS)}; --list tells what each is for")
    settings = Settings()
    asked = {
        "device": device or settings.device, "target": target, "ties": ties, "policy": policy,
        "validator": validator or None, "imported": imported or None,
        "max_workspace": workspace_limit(max_workspace),
    }  # fmt: skip
    if server is not None:
        with Remote(server) as remote:
            path = f"/v1/exports/{format_name}"
            _write(output, remote.download(path, **asked))
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


def _written(report: dict[str, Any]) -> str:
    """How many rows were written, and what they are worth."""
    text, gain = f"{report['written']} rows written", report["gain"]
    if gain is None:
        return text
    return (
        f"{text}, geometric mean {gain['geometric_mean']:.3f}x; over all {gain['problems']} problems "
        f"{gain['all_problems']:.3f}x, {gain['with_bundle']:.3f}x with a bundle"
    )


def _export_here(settings: Settings, format_name: str, output: Path | None, asked: dict[str, Any]) -> Any:
    engine = open_database(settings)
    validators = {}
    for text in asked["validator"] or []:
        key, colon, value = text.partition(":")
        if not colon or not key or key in validators:
            raise InvalidProblem(f"--validator {text!r}: it must be KEY:VALUE, each key once")
        validators[key] = value
    with reading(engine) as connection:
        device = resolve(asked["device"], queries.known_classes(connection))
    chosen = exports.Selection(
        device, asked["policy"] or MeasurementPolicy.of(device.vendor).id, bool(asked["imported"]),
        asked["target"], asked["ties"], validators, asked["max_workspace"],
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

    _write(output, pieces())
    return made.report.figures()


def _write(output: Path | None, pieces: Iterator[bytes]) -> None:
    """Writes to a file, whole or not at all, or to standard output."""
    if output is None:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    fresh = output.with_name(f".{output.name}.part")
    try:
        with fresh.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        fresh.replace(output)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _list_formats(as_json: bool) -> None:
    rows = [
        {"name": w.name, "description": w.description, "targets": list(w.targets), "media_type": w.media_type}
        for w in WRITERS.values()
    ]
    if as_json:
        print_json({"formats": rows})
        return
    table = Table("format", "what it is", "targets")
    for row in rows:
        table.add_row(str(row["name"]), str(row["description"]), "\n".join(row["targets"]))
    out.print(table)


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command()(best)
    app.command(name="import")(import_file)
    app.command()(export)
