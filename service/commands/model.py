"""The model command: from a model's config.json to the file that its program loads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.cache import BinaryCache
from backends.counted import counted
from backends.environment import DeviceClass, Environment
from backends.errors import InvalidProblem
from backends.registry import matching_devices
from db.classes import classes
from db.engine import reading
from service import bundle_download, report
from service.bundles import Workshop
from service.commands.campaigns import Asked, Done, tune_here, tune_there
from service.commands.common import (
    FAILED,
    INTERRUPTED,
    OK,
    Effort,
    Ep,
    Index,
    Json,
    MaxWorkspace,
    OwnDevice,
    Server,
    Tokens,
    Tp,
    compile_progress,
    err,
    input_path,
    out,
    print_json,
    tell,
    tell_rejected,
    token_counts,
    workspace_limit,
)
from service.commands.export import validators_of
from service.commands.weights import PrepackedFile
from service.formats import WRITERS, ReadOptions
from service.formats.core.export import ComparesCandidates, ExportRefused, ExportReport, ExportRow
from service.installed_torch import ask
from service.model.gain import TokenGain, gains_of
from service.model.outputs import OUTPUTS, output_for, plan_for
from service.model.plan import ModelPlan, check_not_hub, read_model
from service.model.request import Fetch, Output, Request, Written, check_folder
from service.model.rows import HereRows, RowSource, ThereRows, measured_here
from service.pretuned import tables_with
from service.progress import duration_text
from service.remote import Remote, class_of
from service.settings import Settings
from service.startup import open_database
from tuners.budget import Search
from tuners.effort import effort_of
from tuners.policy import MeasurementPolicy


def _checked(config: Path) -> Path:
    check_not_hub(config)
    return config


def model(
    config: Annotated[
        Path,
        typer.Argument(
            help="A model's config.json, or the folder that holds it; - reads standard input.",
            callback=_checked,  # before a missing option is: it says what to do instead
        ),
    ],
    output: Annotated[str, typer.Option("--for", help=f"What loads the file: {', '.join(OUTPUTS)}.")],
    folder: Annotated[
        Path, typer.Option("-o", "--output", help="The folder that the files are written to.")
    ] = Path("gemmtune-model"),
    tp: Tp = None,
    ep: Ep = None,
    tokens: Tokens = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="fused as vLLM runs them, split as transformers does, or both; default: both for torch, "
            "else fused."
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the model's weights and activations, where not its own.")
    ] = None,
    prepacked: PrepackedFile = False,
    device: OwnDevice = None,
    index: Index = None,
    target: Annotated[
        str | None,
        typer.Option(help="The torch that reads the file, such as torch-2.15+cuda; a bundle's architecture."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", help="The interpreter whose torch reads the file; default: this one."),
    ] = None,
    validator: Annotated[list[str] | None, typer.Option(help="KEY:VALUE of the target (repeat).")] = None,
    max_workspace: MaxWorkspace = None,
    effort: Effort = None,
    seconds: Annotated[
        float | None, typer.Option(help="Measuring budget a problem; default: the effort's.")
    ] = None,
    candidates: Annotated[int | None, typer.Option(help="Candidates of a problem at most.")] = None,
    total_seconds: Annotated[
        float | None, typer.Option(help="Budget of the whole run; what does not fit stays unknown.")
    ] = None,
    tune: Annotated[bool, typer.Option(help="Tune what is unknown; --no-tune writes what is known.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is known already.")] = False,
    server: Server = None,
    progress: Annotated[bool, typer.Option(help="Show the progress.")] = True,
    as_json: Json = False,
) -> None:
    """Tune a model's linear layers and write the file that its program loads: what is unknown is tuned, and
    the lines to paste and the expected gain are printed.

    A row that is known for the device class and the installed libraries is not tuned again (--force tunes
    it). The gain of a number of tokens is that of the GEMMs of one forward pass on one device, each layer
    weighted by its calls, from stored verdicts of what the file carries."""
    settings = Settings()
    if layers is None:
        layers = OUTPUTS[output].layers if output in OUTPUTS else "fused"
    config = input_path(config)
    told = ReadOptions(
        "", 1 if tp is None else tp, token_counts(tokens), dtype, layers, 1 if ep is None else ep
    )
    plan = read_model(config, told)
    limit = workspace_limit(max_workspace)
    options = _Options(
        settings, plan, device or settings.chosen_device, index, effort, seconds, candidates, total_seconds,
        force, silent=not progress or as_json,
    )  # fmt: skip
    with ExitStack() as stack:
        remote = None if server is None else stack.enter_context(Remote(server))
        place = _there(remote, options) if remote is not None else _here(options, tune)
        chosen = output_for(output, place.device)
        plan = plan_for(chosen, plan, prepacked)
        options = replace(options, plan=plan)
        given = validators_of(validator or ())
        if chosen.by_torch:
            target, given = _reader(target, python, given)
        elif python is not None:
            raise InvalidProblem(
                f"--python names the torch that reads a file; none reads that of --for {output}"
            )
        workshop = Workshop(BinaryCache(settings.cache_dir / "kernels"), settings.max_compiles)
        request = Request(
            plan, place.device, folder, workshop, target, given, limit, place.environments,
            None if server is None else _fetch_from(server, place),
        )  # fmt: skip
        chosen.check(request)
        check_folder(folder)
        place = replace(place, source=_source(place, chosen, remote))
        done, elsewhere = _tuned(options, place, tune)
        if done is not None and done.interrupted is not None:
            tell(f"interrupted; {done.interrupted}", "yellow")
            raise typer.Exit(INTERRUPTED)
        rows = place.source.rows(place.device, place.policy.id, plan.counts)
    try:
        with compile_progress("writing the file", silent=options.silent) as progressing:
            compiling = replace(workshop, progress=progressing)
            written, refused = chosen.write(replace(request, workshop=compiling), rows), None
    except ExportRefused as error:
        written, refused = None, str(error)
    ratios = {} if written is None else written.report.ratios
    # Verdicts of grouped products are against torch's calls, which no program with experts' files runs.
    gains = {} if chosen.products == "experts" else gains_of(plan, rows, ratios, merging=chosen.merging)
    if as_json:
        print_json({**_json(request, chosen, written, gains, done), "pretuned": elsewhere})
    else:
        _show(request, chosen, written, gains, done, elsewhere)
    if refused is not None or (done is not None and (done.lost or _failed(done))):
        if refused is not None:
            tell(f"error: {refused}", "red")
        if done is not None and done.lost:
            tell(f"error: {done.lost}; what was measured is kept: run the same command again to go on", "red")
        raise typer.Exit(FAILED)
    tell_rejected(len(plan.read.rejected), config)
    raise typer.Exit(OK)


#: Statuses of a worker that takes jobs.
_ALIVE = ("idle", "measuring")


@dataclass(frozen=True)
class _Options:
    settings: Settings
    plan: ModelPlan
    selector: str | None
    index: int | None
    effort: str | None
    seconds: float | None
    candidates: int | None
    total_seconds: float | None
    force: bool
    silent: bool


@dataclass(frozen=True)
class _Place:
    """Where problems are tuned and rows are read: a service or this machine, and the environments in which
    problems are tuned now (empty: nothing is tuned, or nothing was yet)."""

    device: DeviceClass
    policy: MeasurementPolicy
    source: RowSource
    server: str | None = None
    environments: tuple[Environment, ...] = ()


def _here(options: _Options, tune: bool) -> _Place:
    """This machine. Raises UnknownDevice, AmbiguousDevice."""
    engine, selector = open_database(options.settings), options.selector or options.settings.device
    environments: tuple[Environment, ...] = ()
    if tune:
        environments = (matching_devices(selector, options.index)[0].environment,)
        device = environments[0].device_class
    else:
        with reading(engine) as connection:
            device = classes(connection).resolve(selector)
    return _Place(device, MeasurementPolicy.of(device.vendor), HereRows(engine), environments=environments)


def _there(remote: Remote, options: _Options) -> _Place:
    """A service. Raises ServiceError, UnknownDevice, AmbiguousDevice, InvalidProblem."""
    if options.index is not None or options.total_seconds is not None:
        raise InvalidProblem("--index and --total-seconds are for tuning here, not with --server")
    there = remote.get("/v1/devices")
    device = class_of(options.selector, there["classes"])
    known = list(remote.pages("/v1/environments", "items", "cursor", device=str(device)))
    working = {row["environment_id"] for row in there["workers"] if row["status"] in _ALIVE}
    # Without a worker the problems wait for one; the last environment is the best guess of its libraries.
    current = [row for row in known if row["id"] in working] or known[-1:]
    environments = tuple(Environment.from_dict(row["environment"]) for row in reversed(current))
    return _Place(device, MeasurementPolicy.of(device.vendor), ThereRows(remote), remote.server, environments)


def _fetch_from(server: str, place: _Place) -> Fetch:
    """The service compiles a bundle, so that this machine needs no compiler."""

    def fetch(path: Path, target: str, problem_ids: frozenset[str]) -> None:
        with Remote(server) as remote, compile_progress("the service builds the bundle") as building:
            bundle_download.fetch(
                remote, path, building, problem_ids, device=str(place.device), target=target,
                policy=place.policy.id,
            )  # fmt: skip

    return fetch


def _source(place: _Place, chosen: Output, remote: Remote | None) -> RowSource:
    if remote is not None or chosen.format_name is None or not isinstance(place.source, HereRows):
        return place.source
    writer = WRITERS[chosen.format_name]
    families = writer.candidate_families if isinstance(writer, ComparesCandidates) else ()
    return HereRows(place.source.engine, writer.key_formats, families)


def _reader(target: str | None, python: str | None, given: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The torch that reads the file, and its validators. Raises InvalidProblem, NoTorch."""
    if target is not None:
        if python is not None:
            raise InvalidProblem(f"--target {target} and --python {python} both name the reader: give one")
        return target, given
    torch = ask(python or sys.executable)
    tell(f"for {torch.text}")
    return torch.target, {**torch.validators_for("tunableop"), **given}


# ---- tuning --------------------------------------------------------------------------------------


def _tuned(options: _Options, place: _Place, tune: bool) -> tuple[Done | None, Mapping[str, int]]:
    """Tunes what is unknown; None where nothing was to be tuned. Without tuning also the shipped tables that
    have kernels for what is unknown, with the number of its problems."""
    plan = options.plan
    known = {row.problem.id for row in _known(options, place)}
    unknown = [item.problem for item in plan.problems if options.force or item.problem.id not in known]
    if not options.silent:
        every = counted(len(plan.problems), "problem")
        tell(f"{plan.name}: {every}, {len(plan.problems) - len(unknown)} of them known")
    if not tune:
        return None, tables_with(frozenset(problem.id for problem in unknown), place.device)
    if not unknown:
        return None, {}
    level = effort_of(options.effort)
    budget = level.budget(options.settings.seconds_per_problem, options.seconds, options.candidates)
    if not options.silent:
        least = duration_text(budget.seconds * len(unknown))
        tell(f"tuning {counted(len(unknown), 'problem')} for {budget.seconds:g} s each: at least {least}")
    asked = Asked(
        plan.some(unknown), options.selector, options.index, None, {}, budget, Search(),
        level.rule(options.settings.margin), level.name, options.force, None, options.total_seconds, None,
        options.silent, command="model", subject=plan.name,
    )  # fmt: skip
    if place.server is None:
        return tune_here(options.settings, asked), {}
    return tune_there(place.server, asked), {}


def _known(options: _Options, place: _Place) -> Sequence[ExportRow]:
    rows = place.source.rows(place.device, place.policy.id, options.plan.counts)
    current = place.environments
    return [row for row in rows if not current or any(measured_here(row, one) for one in current)]


def _failed(done: Done) -> bool:
    return any(result.verdict is None for result in done.results)


# ---- what is printed -----------------------------------------------------------------------------

#: Way to run the layers -> gains by tokens.
_Gains = Mapping[str, Sequence[TokenGain]]


def _json(
    request: Request, chosen: Output, written: Written | None, gains: _Gains, done: Done | None
) -> dict[str, Any]:
    figures = ExportReport().figures() if written is None else written.report.figures()
    return {
        "model": request.plan.name,
        "tensor_parallel": request.plan.devices,
        "device_class": str(request.device),
        "for": chosen.name,
        "target": request.target,
        "files": [] if written is None else [str(path) for path in written.files],
        "language": chosen.language,
        "lines": [] if written is None else list(written.lines),
        "notes": [] if written is None else list(written.notes),
        "layers": request.plan.layers,
        "tokens": [{"layers": way, **gain.to_dict()} for way, of in gains.items() for gain in of],
        "tuned": 0 if done is None else len(done.results),
        "failed": [] if done is None else _errors(done),
        "skipped": 0 if done is None else len(done.skipped),
        **figures,
        "rejected": [{"line": r.line, "reason": r.reason} for r in request.plan.read.rejected],
    }


def _errors(done: Done) -> list[dict[str, Any]]:
    return [
        {"problem_id": result.problem.id, "error": result.error}
        for result in done.results
        if result.verdict is None
    ]


def _show(
    request: Request,
    chosen: Output,
    written: Written | None,
    gains: _Gains,
    done: Done | None,
    elsewhere: Mapping[str, int],
) -> None:
    for row in request.plan.read.rejected:
        tell(f"left out: {row.reason}", "yellow")
    for failed in [] if done is None else _errors(done):
        tell(f"no verdict: {failed['problem_id']}: {failed['error']}", "yellow")
    if done is not None and done.skipped:
        skipped = counted(len(done.skipped), "problem was", "problems were")
        tell(f"{skipped} not tuned: {done.skipped[0].reason}", "yellow")
    for way, of in gains.items():
        err.print(report.gain_table(way if len(gains) > 1 else None, of))
    for name, count in elsewhere.items():
        have = "has" if count == 1 else "have"
        tell(
            f"{count} of the unknown problems {have} kernels that won in the shipped table {name}: "
            f"gemmtune bundle --pretuned {name} -o {name}.gtb"
        )
    if written is None:
        return
    for reason, count in written.report.omitted.items():
        tell(f"{counted(count, 'row')} left out: {reason}", "yellow")
    if written.report.tune_again:
        count = written.report.tune_again
        tell(f"{count} of them were not judged for this file: --force tunes them again", "yellow")
    for path in written.files:
        tell(f"wrote {path}")
    for note in written.notes:
        tell(f"note: {note}")
    for line in written.lines:  # on standard output alone, so that a shell can read them
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(model)
