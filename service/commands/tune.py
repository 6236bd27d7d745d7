"""The tune command: on a device of this machine, or through a service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.counted import counted
from backends.errors import InvalidProblem
from backends.wire import problem_from_wire, problem_to_wire
from service import report
from service.commands.campaigns import Asked, Done, tune_here, tune_there
from service.commands.common import (
    FAILED,
    INTERRUPTED,
    OK,
    Effort,
    Ep,
    FormatName,
    HiddenSize,
    Index,
    Json,
    Layers,
    MaxWorkspace,
    Mode,
    OwnDevice,
    Server,
    StopAtRegret,
    StopAtRoofline,
    Tokens,
    TopK,
    Tp,
    err,
    expert_options,
    imported_json,
    input_path,
    out,
    print_json,
    read_input,
    tell_rejected,
    workspace_limit,
)
from service.commands.grouping import Groups, Routing
from service.commands.grouping import routing as routing_of
from service.commands.weights import (
    DtypeB,
    DtypeD,
    PrepackedFile,
    ScaleA,
    ScaleB,
    ScaleD,
    ScaleDtype,
    ZeroB,
    scaling_of,
)
from service.formats.core.base import Imported, ImportedProblem
from service.prepacking import prepack
from service.settings import Settings
from tuners.budget import Search
from tuners.campaign_shares import check_seconds
from tuners.effort import effort_of
from tuners.strategies import STRATEGIES


def tune(
    file: Annotated[
        Path | None,
        typer.Argument(help="A file of problems (- reads standard input); without it, give --m --n --k."),
    ] = None,
    m: Annotated[int | None, typer.Option(help="Rows of the row-major output.")] = None,
    n: Annotated[int | None, typer.Option(help="Columns of the row-major output.")] = None,
    k: Annotated[int | None, typer.Option(help="Length of the dot products.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="fp32, bf16, fp16, fp64, int8, ... (default fp32); of a model: where not its own."),
    ] = None,
    dtype_b: DtypeB = None,
    scale_a: ScaleA = None,
    scale_b: ScaleB = None,
    scale_d: ScaleD = None,
    scale_dtype: ScaleDtype = None,
    zero_b: ZeroB = None,
    prepacked: PrepackedFile = False,
    groups: Groups = None,
    routing: Routing = None,
    dtype_c: Annotated[str | None, typer.Option(help="Output type, where it differs.")] = None,
    dtype_d: DtypeD = None,
    compute: Annotated[
        str | None, typer.Option(help="Compute type, where it differs from the default.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Strided batch.")] = None,
    trans_a: Annotated[bool, typer.Option("--trans-a", help="A is stored transposed.")] = False,
    trans_b: Annotated[bool, typer.Option("--trans-b", help="B is stored transposed (F.linear).")] = False,
    lda: Annotated[int | None, typer.Option(help="Leading dimension of A, elements.")] = None,
    ldb: Annotated[int | None, typer.Option(help="Leading dimension of B, elements.")] = None,
    ldc: Annotated[int | None, typer.Option(help="Leading dimension of the output, elements.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Scales the product.")] = None,
    beta: Annotated[float | None, typer.Option(help="Scales C, which is added.")] = None,
    epilogue: Annotated[
        str | None, typer.Option(help="none, bias, relu, gelu, silu, bias_relu, ..., swiglu")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="row (default) or col.")] = None,
    format_name: FormatName = None,
    tp: Tp = None,
    tokens: Tokens = None,
    layers: Layers = None,
    ep: Ep = None,
    hidden_size: HiddenSize = None,
    top_k: TopK = None,
    device: OwnDevice = None,
    index: Index = None,
    effort: Effort = None,
    seconds: Annotated[
        float | None, typer.Option(help="Measuring budget a problem; default: the effort's.")
    ] = None,
    stop_at_roofline: StopAtRoofline = None,
    stop_at_regret: StopAtRegret = None,
    candidates: Annotated[int | None, typer.Option(help="Candidates of a problem at most.")] = None,
    total_seconds: Annotated[
        float | None, typer.Option(help="Budget of the whole run; what does not fit is skipped.")
    ] = None,
    campaign_seconds: Annotated[
        float | None,
        typer.Option(
            help="Measuring budget of all problems together, shared by their calls and expected gains; what "
            "is tuned already in a current environment is left out."
        ),
    ] = None,
    max_gflop: Annotated[
        float | None, typer.Option(help="Skip (and count) problems over this many GFLOP.")
    ] = None,
    strategy: Annotated[str, typer.Option(help=f"{' or '.join(STRATEGIES)}.")] = Search.strategy,
    strategy_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the strategy (repeat; docs/strategies.md)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of inputs and of the search.")] = 0,
    family: Annotated[list[str] | None, typer.Option(help="Only these families (repeat the option).")] = None,
    mode: Mode = None,
    cache: Annotated[str, typer.Option(help="cold or warm operands.")] = "cold",
    max_workspace: MaxWorkspace = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Deterministic solutions only.")
    ] = False,
    memory_share: Annotated[float, typer.Option(help="Share of free memory that a problem may take.")] = 0.5,
    margin: Annotated[float | None, typer.Option(help="Least relative gain of a WIN.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is known already.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Keep every outcome in this file (JSON lines) and not in the database."),
    ] = None,
    server: Server = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar on a terminal.")] = True,
    as_json: Json = False,
) -> None:
    """Tune one problem (--m --n --k ...) or every problem of FILE on a device of this machine: the first of
    its class that no other process uses.

    Every outcome is stored as it comes: run the same command again to go on. What the same request has
    measured in the same environment is shown, not measured again (--force measures)."""
    settings = Settings()
    one = {
        "m": m, "n": n, "k": k, "dtype": dtype, "dtype_b": dtype_b, "dtype_c": dtype_c, "dtype_d": dtype_d,
        "compute": compute,
        "batch": batch,
        "trans_a": trans_a or None, "trans_b": trans_b or None, "lda": lda, "ldb": ldb, "ldc": ldc,
        "alpha": alpha, "beta": beta, "epilogue": epilogue, "layout": layout,
        "scaling": scaling_of(scale_a, scale_b, scale_d, scale_dtype, zero_b), "groups": groups,
        "routing": routing_of(routing), "prepacked": (prepacked and file is None) or None,
    }  # fmt: skip
    fields = {name: value for name, value in one.items() if value is not None}
    experts = expert_options(ep, hidden_size, top_k)
    read = _input(file, format_name, fields, tp, tokens, layers, experts)
    rejected = len(read.rejected) + read.rejected_more
    if not read.problems and rejected:
        if as_json:
            print_json(imported_json(read))
        else:
            out.print(report.rejected_table(read.rejected))
        tell_rejected(rejected, file)
        raise typer.Exit(FAILED)
    if not read.problems:
        raise InvalidProblem(f"no problem to tune in {file}")
    if file is not None and prepacked:
        read = prepack(read, file)
    if campaign_seconds is not None:
        if output is not None or seconds is not None:
            raise InvalidProblem(
                "--campaign-seconds shares its seconds by what the database knows: give it without --output "
                "and --seconds"
            )
        check_seconds(campaign_seconds)
    level = effort_of(effort)
    budget = level.budget(settings.seconds_per_problem, seconds, candidates, stop_at_roofline, stop_at_regret)
    rule = level.rule(settings.margin if margin is None else margin)
    policy = {
        "cache": cache, "max_workspace_bytes": workspace_limit(max_workspace),
        "deterministic_only": deterministic, "memory_share": memory_share,
    }  # fmt: skip
    known = STRATEGIES.get(strategy)  # an unknown one is refused where the tuning starts
    given = known.options.parse(strategy_option or ()) if known else {}
    search = Search(strategy, seed, tuple(family) if family else None, given)
    asked = Asked(
        read, device or settings.chosen_device, index, mode, policy, budget, search, rule, level.name, force,
        output, total_seconds, max_gflop, silent=not progress or as_json, campaign_seconds=campaign_seconds,
        source=None if file is None else input_path(file).name,
    )  # fmt: skip
    done = tune_here(settings, asked) if server is None else tune_there(server, asked)
    _show(read, done, as_json)
    tell_rejected(rejected, file)
    if done.lost is not None:
        err.print(f"error: {done.lost}", style="red", highlight=False, markup=False, soft_wrap=True)
        err.print("what was measured is kept: run the same command again to go on", markup=False)
        raise typer.Exit(FAILED)
    if done.interrupted is not None:
        err.print(f"interrupted; {done.interrupted}", style="yellow", markup=False)
        raise typer.Exit(INTERRUPTED)
    failed = any(result.verdict is None for result in done.results)
    raise typer.Exit(FAILED if failed else OK)


def _input(
    file: Path | None, format_name: str | None, one: dict[str, Any], tp: int | None, tokens: str | None,
    layers: str | None, experts: Mapping[str, int | None],
) -> Imported:  # fmt: skip
    if file is not None:
        dtype = one.pop("dtype", None)  # also an option of files that do not say it
        if one:
            raise InvalidProblem(f"give a file or one problem, not both ({file} and --{next(iter(one))})")
        return read_input(file, format_name, tp, tokens, dtype, layers, experts)
    if not one:
        raise InvalidProblem("nothing to tune: name a file, or give --m, --n and --k")
    for name, value in (("--tp", tp), ("--tokens", tokens), ("--layers", layers)):
        if value is not None:
            raise InvalidProblem(f"{name} is of a model's config.json, not of one problem: name the file")
    if any(value is not None for value in experts.values()):
        raise InvalidProblem("--ep, --hidden-size and --top-k are of layers of experts: name their file")
    problem = problem_from_wire(one)
    return Imported("command line", [ImportedProblem(problem, 1, (problem.slug,))], [], 1)


def _show(read: Imported, done: Done, as_json: bool) -> None:
    results, skipped, environment = done.results, done.skipped, done.where
    counts = {item.problem.id: item.count for item in read.problems}
    if as_json:
        print_json(
            {
                **imported_json(read),
                "environment": environment,
                "policy": done.policy.to_dict(),
                "results": [{**r.to_dict(), "wire": problem_to_wire(r.problem)} for r in results],
                "skipped": [{"problem_id": s.problem.id, "reason": s.reason} for s in skipped],
            }
        )
        return
    if read.rejected:
        out.print(report.rejected_table(read.rejected))
    if results:
        out.print(report.verdicts_table(results, counts))
        out.print(report.summary(results, counts), markup=False)
        for note in sorted({note for result in results for note in result.notes}):
            out.print(f"note: {note}", style="dim", markup=False)
    for reason in dict.fromkeys(s.reason for s in skipped):
        count = sum(s.reason == reason for s in skipped)
        out.print(
            f"skipped {count} of {counted(len(read.problems), 'problem')}: {reason}",
            style="yellow",
            markup=False,
        )


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(tune)
