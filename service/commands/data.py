"""The commands best and import, on this machine's database or through a service with --server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.table import Table
from sqlalchemy import Engine

from backends.counted import counted
from backends.environment import DeviceClass
from backends.errors import UnknownDevice
from backends.wire import problem_from_wire
from db import queries
from db.classes import Classes, classes
from db.engine import reading
from service import best as lookups
from service import imports, report
from service.audit import audited
from service.commands.common import (
    FAILED,
    Device,
    Ep,
    HiddenSize,
    Json,
    Layers,
    MaxWorkspace,
    Mode,
    Server,
    Tokens,
    TopK,
    Tp,
    expert_options,
    input_path,
    out,
    print_json,
    tell,
    tell_rejected,
    token_counts,
    workspace_limit,
)
from service.commands.grouping import Groups, Routing
from service.commands.grouping import routing as routing_of
from service.commands.weights import (
    DtypeB,
    DtypeD,
    Prepacked,
    PrepackedFile,
    ScaleA,
    ScaleB,
    ScaleD,
    ScaleDtype,
    ZeroB,
    scaling_of,
)
from service.formats import READERS, ReadOptions
from service.formats.core.base import printable
from service.formats.core.reading import told
from service.formats.vllm.beside import with_folder
from service.freshness import Freshness
from service.remote import Remote
from service.settings import Settings
from service.startup import open_database
from tuners.budget import Budget
from tuners.decide import DecisionRule
from tuners.packed import PackingCost
from tuners.policy import MeasurementPolicy
from tuners.tuning_settings import TuningSettings

#: Rejected lines that are printed one by one.
_SHOWN = 20


def best(
    m: Annotated[int, typer.Option(help="Rows of the row-major output.")],
    n: Annotated[int, typer.Option(help="Columns of the row-major output.")],
    k: Annotated[int, typer.Option(help="Length of the dot products.")],
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, ... (default fp32)")] = None,
    dtype_b: DtypeB = None,
    scale_a: ScaleA = None,
    scale_b: ScaleB = None,
    scale_d: ScaleD = None,
    scale_dtype: ScaleDtype = None,
    zero_b: ZeroB = None,
    prepacked: Prepacked = False,
    groups: Groups = None,
    routing: Routing = None,
    dtype_c: Annotated[str | None, typer.Option(help="Output type, where it differs.")] = None,
    dtype_d: DtypeD = None,
    compute: Annotated[str | None, typer.Option(help="Compute type, where it differs.")] = None,
    batch: Annotated[int | None, typer.Option(help="Strided batch.")] = None,
    trans_a: Annotated[bool, typer.Option("--trans-a", help="A is stored transposed.")] = False,
    trans_b: Annotated[bool, typer.Option("--trans-b", help="B is stored transposed (F.linear).")] = False,
    beta: Annotated[float | None, typer.Option(help="Scales C, which is added.")] = None,
    epilogue: Annotated[
        str | None, typer.Option(help="none, bias, relu, gelu, silu, bias_relu, ..., swiglu")
    ] = None,
    device: Device = None,
    mode: Mode = None,
    cache: Annotated[str | None, typer.Option(help="Measured with cold or warm operands.")] = None,
    max_workspace: MaxWorkspace = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Deterministic only.")] = False,
    family: Annotated[list[str] | None, typer.Option(help="Only these families (repeat).")] = None,
    imported: Annotated[
        bool, typer.Option("--imported", help="Also what imported files and pre-tuned tables claim.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show the best known way to run a problem. Exit code 1: nothing is known."""
    fields = {
        "m": m, "n": n, "k": k, "dtype": dtype, "dtype_b": dtype_b, "dtype_c": dtype_c, "dtype_d": dtype_d,
        "compute": compute,
        "batch": batch, "trans_a": trans_a or None, "trans_b": trans_b or None, "beta": beta,
        "epilogue": epilogue, "scaling": scaling_of(scale_a, scale_b, scale_d, scale_dtype, zero_b),
        "groups": groups, "routing": routing_of(routing), "prepacked": prepacked or None,
    }  # fmt: skip
    wire = {name: value for name, value in fields.items() if value is not None}
    limit = workspace_limit(max_workspace)
    filters = lookups.Filters(limit, deterministic, frozenset(family) if family else None)
    settings = Settings()
    if server is None:
        answer = _best_here(settings, wire, device or settings.chosen_device, mode, cache, filters, imported)
    else:
        with Remote(server) as remote:
            asked = {
                name: json.dumps(value)
                if isinstance(value, dict)
                else ",".join(map(str, value))
                if isinstance(value, list)
                else value
                for name, value in wire.items()
            }
            answer = remote.get(
                "/v1/solutions/best", **asked, device=device, mode=mode, cache=cache,
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
    selector: str | None,
    mode: str | None,
    cache: str | None,
    filters: lookups.Filters,
    imported: bool,
) -> Any:
    problem = problem_from_wire(wire)
    with reading(open_database(settings)) as connection:
        device = classes(connection).resolve(selector)
        policy = MeasurementPolicy.of(device.vendor, mode, cache=cache or MeasurementPolicy.cache)
        asked = lookups.Asked(device, policy.id, filters, imported, Freshness.of(connection, str(device)))
        found = queries.best_documents(connection, [problem.id], str(device), policy.id)
        return orjson.loads(lookups.answer(connection, asked, problem, found.get(problem.id)))


def _show_best(answer: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    solution = answer.get("solution")
    match = answer["match"]
    if match == "nearest":
        regret = answer.get("transfer_regret")
        known = (
            "never measured"
            if regret is None
            else f"{regret['median']:.1%} (median, 80th percentile {regret['p80']:.1%}, of {regret['pairs']})"
        )
        match += f", distance {answer['distance']:.2f} doublings, transfer regret {known}"
        if answer["provenance"]["kind"] == "pretuned":
            match += f", of the pre-tuned table {answer['provenance']['source']}, not measured here"
    rows = [("match", match)]
    rows += [(what, json.dumps(answer[what])) for what in ("asked", "problem") if what in answer]
    rows += [("device class", answer["device_class"])] if "device_class" in answer else []
    if solution is not None:
        rows += [("solution", solution["id"]), ("family", solution["family"])]
        rows += [("parameters", json.dumps(solution["parameters"]))]
        rows += [("workspace", f"{solution['workspace_bytes']} bytes")]
    if answer.get("packing"):
        rows += [("packed weights", report.packing_text(PackingCost.from_dict(answer["packing"])))]
    if answer.get("seconds") is not None:
        rows += [("time", report.time_text(answer["seconds"]))]
    if answer.get("judgement") and answer.get("baseline"):
        gain = answer["speedup"]["mid"]
        rows += [("verdict", f"{answer['judgement']}, {gain:.2f}x over {answer['baseline']['name']}")]
    rows += [("stale", answer["stale"])] if answer.get("stale") else []
    rows += [("reason", answer["reason"])] if answer.get("reason") else []
    rows += [("note", note) for note in answer.get("notes", [])]
    for name, text in rows:
        table.add_row(name, str(text))
    out.print(table, markup=False)


def import_file(
    file: Annotated[Path, typer.Argument(help="The file; - reads standard input.")],
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
    tp: Tp = None,
    tokens: Tokens = None,
    layers: Layers = None,
    ep: Ep = None,
    hidden_size: HiddenSize = None,
    top_k: TopK = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of a model's weights and activations, where not its own.")
    ] = None,
    prepacked: PrepackedFile = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Store a file's problems, and what it claims or measured. Exit code 1: every line was rejected."""
    ladder, experts = token_counts(tokens), expert_options(ep, hidden_size, top_k)
    shown, file = file, input_path(file)
    given: dict[str, Any] = {name: value for name, value in experts.items() if value is not None}
    options = ReadOptions(file.name, tp or 1, ladder, dtype, layers or "fused", **given)
    options = with_folder(file, options)
    waiting = None
    if server is not None:
        with Remote(server) as remote:
            answer = remote.upload(
                f"/v1/imports/{format_name or 'auto'}", file, device=device, tune=tune or None,
                source=file.name, tensor_parallel=tp,
                tokens=None if tokens is None else list(ladder), dtype=dtype, layers=layers,
                expert_parallel=ep, hidden_size=options.hidden_size, top_k=options.top_k,
                prepacked=prepacked or None,
            )  # fmt: skip
            if tune and (answer.get("tuning") or {}).get("id"):
                waiting = _idle_class(remote.get(f"/v1/tunings/{answer['tuning']['id']}"), remote)
    else:
        answer, waiting = _import_here(file, format_name, device, tune, options, prepacked)
    if as_json:
        print_json(answer)
    else:
        _show_import(answer)
    if waiting is not None:
        tell(
            f"no worker serves {waiting}: jobs wait for one (gemmtune worker --device {waiting})",
            "yellow",
        )
    if answer["rejected"]:
        tell_rejected(len(answer["rejected"]) + answer["rejected_more"], shown)
        if not (answer["problems"] or answer["claims"]["stored"] or answer["sessions"]["stored"]):
            raise typer.Exit(FAILED)


def _idle_class(tuning: Any, remote: Remote) -> str | None:
    """The tuning's device class, if the service says that none of its workers lives."""
    name = str(tuning["device_class"])
    rows = remote.get("/v1/devices")["classes"]
    return None if any(row["id"] == name and row["workers"] for row in rows) else name


def _import_here(
    file: Path, format_name: str | None, device: str | None, tune: bool, options: ReadOptions, prepacked: bool
) -> tuple[Any, str | None]:
    """The answer, and the class that the tuning waits for, if no worker serves it."""
    settings = Settings()
    engine = open_database(settings)
    waiting = None
    if tune:  # before anything is stored
        with reading(engine) as connection:
            known = classes(connection)
        target = _workable(known, device or settings.device)
        waiting = None if target in known.live else str(target)
    with told(printable(str(file))):
        stream = file.open("rb")
    with stream, audited(settings, "import", file.name) as change:
        done = imports.import_file(
            engine, stream, str(file), format_name, device, file.name, options, prepacked
        )
        answer = done.to_dict()
        stored = [f"{what}={answer[what]['stored']}" for what in ("claims", "sessions")]
        change.detail = " ".join([f"problems={len(answer['problems'])}", *stored])
        if tune:
            answer["tuning"] = _submitted(settings, engine, target, done)
            change.detail += f" tuning={answer['tuning']['id']}"
    return answer, waiting


def _submitted(
    settings: Settings, engine: Engine, target: DeviceClass, done: imports.ImportAnswer
) -> dict[str, Any]:
    from service.tunings import open_tunings  # noqa: PLC0415  (the job engine)

    tunings = open_tunings(engine, settings)
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
    return {"id": created.id, "total": created.total}


def _workable(known: Classes, selector: str) -> DeviceClass:
    """The class whose workers tune. Raises UnknownDevice, which says that there is no worker."""
    try:
        return known.workable(selector)
    except UnknownDevice as error:
        said = UnknownDevice(selector, error.available)
        said.args = (
            f"no worker serves {selector!r}, nothing was imported: start one (gemmtune worker --device "
            f"{selector}), or tune on this machine without one (gemmtune tune FILE)",
        )
        raise said from error


def _show_import(answer: dict[str, Any]) -> None:
    for row in answer["rejected"][:_SHOWN]:
        tell(f"line {row['line']}: {row['reason']}", "yellow")
    out.print(
        f"{counted(len(answer['problems']), 'problem')} from a file of format {answer['format']}",
        markup=False,
    )
    for what in ("claims", "sessions"):
        kept = answer[what]
        if any(kept[name] for name in ("stored", "known", "skipped")):
            words = (
                f"{what}: {kept['stored']} stored, {kept['known']} known already, {kept['skipped']} left out"
            )
            out.print("; ".join([words, *kept["reasons"]]), markup=False)
    if (answer.get("tuning") or {}).get("id"):
        out.print(
            f"tuning {answer['tuning']['id']}: {counted(answer['tuning']['total'], 'problem')}", markup=False
        )


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command()(best)
    app.command(name="import")(import_file)
