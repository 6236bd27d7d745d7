"""The tune command: on a device of this machine, or through a service."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.cache import BinaryCache
from backends.environment import DeviceClass
from backends.errors import DeviceLost, InvalidProblem
from backends.registry import FoundDevice, matching_devices
from backends.wire import problem_from_wire, problem_to_wire
from db.tunings import new_id
from service import follow, report
from service.commands.common import (
    FAILED,
    INTERRUPTED,
    Effort,
    FormatName,
    Index,
    Json,
    MaxWorkspace,
    Mode,
    OwnDevice,
    Server,
    StopAtRoofline,
    err,
    imported_json,
    input_code,
    out,
    print_json,
    workspace_limit,
)
from service.device_lock import DeviceLock, locks_folder
from service.formats import read_file
from service.formats.core.base import Imported, ImportedProblem
from service.progress import CampaignProgress
from service.remote import Remote
from service.settings import Settings
from service.startup import open_database
from service.store import DirectStore
from tuners.budget import Budget, Search
from tuners.campaign import Campaign, CampaignLimits, Finished, Skipped
from tuners.ceilings import CeilingStore
from tuners.decide import DecisionRule
from tuners.device_client import DeviceClient
from tuners.effort import effort_of
from tuners.journal import Journal
from tuners.policy import MeasurementPolicy
from tuners.session_store import Result
from tuners.strategies import STRATEGIES
from tuners.tuning_settings import TuningSettings


def tune(
    file: Annotated[
        Path | None, typer.Argument(help="A file of problems; without it, give --m --n --k.")
    ] = None,
    m: Annotated[int | None, typer.Option(help="Rows of the row-major output.")] = None,
    n: Annotated[int | None, typer.Option(help="Columns of the row-major output.")] = None,
    k: Annotated[int | None, typer.Option(help="Length of the dot products.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="fp32, bf16, fp16, fp64, int8, ... (default fp32)")
    ] = None,
    dtype_c: Annotated[str | None, typer.Option(help="Output type, where it differs.")] = None,
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
    epilogue: Annotated[str | None, typer.Option(help="none, bias, relu, gelu, silu, bias_relu, ...")] = None,
    layout: Annotated[str | None, typer.Option(help="row (default) or col.")] = None,
    format_name: FormatName = None,
    device: OwnDevice = None,
    index: Index = None,
    effort: Effort = None,
    seconds: Annotated[
        float | None, typer.Option(help="Measuring budget a problem; default: the effort's.")
    ] = None,
    stop_at_roofline: StopAtRoofline = None,
    candidates: Annotated[int | None, typer.Option(help="Candidates of a problem at most.")] = None,
    total_seconds: Annotated[
        float | None, typer.Option(help="Budget of the whole run; what does not fit is skipped.")
    ] = None,
    max_gflop: Annotated[
        float | None, typer.Option(help="Skip (and count) problems over this many GFLOP.")
    ] = None,
    strategy: Annotated[str, typer.Option(help=f"{' or '.join(STRATEGIES)}.")] = Search.strategy,
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
        "m": m, "n": n, "k": k, "dtype": dtype, "dtype_c": dtype_c, "compute": compute, "batch": batch,
        "trans_a": trans_a or None, "trans_b": trans_b or None, "lda": lda, "ldb": ldb, "ldc": ldc,
        "alpha": alpha, "beta": beta, "epilogue": epilogue, "layout": layout,
    }  # fmt: skip
    read = _input(file, format_name, {name: value for name, value in one.items() if value is not None})
    if not read.problems:
        if as_json:
            print_json(imported_json(read))
        elif read.rejected:
            out.print(report.rejected_table(read.rejected))
        raise InvalidProblem(f"no problem to tune in {file}")
    level = effort_of(effort)
    budget = level.budget(settings.seconds_per_problem, seconds, candidates, stop_at_roofline)
    rule = level.rule(settings.margin if margin is None else margin)
    policy = {
        "cache": cache, "max_workspace_bytes": workspace_limit(max_workspace),
        "deterministic_only": deterministic, "memory_share": memory_share,
    }  # fmt: skip
    search = Search(strategy, seed, tuple(family) if family else None)
    asked = _Asked(
        read, device or settings.device, index, mode, policy, budget, search, rule, level.name, force, output,
        total_seconds, max_gflop, silent=not progress or as_json,
    )  # fmt: skip
    done = _here(settings, asked) if server is None else _there(server, asked)
    _show(read, done, as_json)
    if done.lost is not None:
        err.print(f"error: {done.lost}", style="red", highlight=False, markup=False, soft_wrap=True)
        err.print("what was measured is kept: run the same command again to go on", markup=False)
        raise typer.Exit(FAILED)
    if done.interrupted is not None:
        err.print(f"interrupted; {done.interrupted}", style="yellow", markup=False)
        raise typer.Exit(INTERRUPTED)
    failed = any(result.verdict is None for result in done.results)
    raise typer.Exit(FAILED if failed else input_code(read))


@dataclass(frozen=True)
class _Asked:
    """The command's options, as values; `options` are the policy's options other than its mode."""

    read: Imported
    device: str
    index: int | None
    mode: str | None
    options: dict[str, Any]
    budget: Budget
    search: Search
    rule: DecisionRule
    effort: str
    force: bool
    output: Path | None
    total_seconds: float | None
    max_gflop: float | None
    silent: bool

    def policy(self, vendor: str) -> MeasurementPolicy:
        """The policy on a device of this vendor."""
        return MeasurementPolicy.of(vendor, self.mode, **self.options)


@dataclass
class _Done:
    """The outcome of the command; `interrupted` says how to go on, `lost` why the device was lost."""

    where: dict[str, Any]
    policy: MeasurementPolicy
    results: list[Result] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    interrupted: str | None = None
    lost: str | None = None


def _here(settings: Settings, asked: _Asked) -> _Done:
    candidates = matching_devices(asked.device, asked.index)
    policy = asked.policy(candidates[0].environment.vendor)
    with DeviceLock.first_free(locks_folder(settings), candidates) as lock:
        return _on(lock.device, settings, asked, policy)


def _on(found: FoundDevice, settings: Settings, asked: _Asked, policy: MeasurementPolicy) -> _Done:
    ceilings = CeilingStore(settings.cache_dir / "ceilings")
    problems = [item.problem for item in asked.read.problems]
    journal = Journal(asked.output) if asked.output else None
    store = journal or DirectStore(open_database(settings), new_id("forced") if asked.force else "")
    tuning = TuningSettings(policy, asked.budget, asked.search, asked.rule)
    limits = CampaignLimits(asked.total_seconds, None if asked.max_gflop is None else asked.max_gflop * 1e9)
    done = _Done(found.environment.to_dict(), policy)
    with DeviceClient(found, BinaryCache(settings.cache_dir / "kernels")) as runner:
        campaign = Campaign(
            runner, problems, tuning, store,
            lambda dtypes: ceilings.obtain(runner.environment, dtypes, runner.ceilings), limits,
        )  # fmt: skip
        previous = signal.signal(signal.SIGINT, lambda *_: campaign.stop())
        try:
            with CampaignProgress(err, len(problems), asked.silent) as bar:
                for event in campaign.run():
                    bar.follow(event)
                    if isinstance(event, Finished):
                        done.results.append(event.result)
                    elif isinstance(event, Skipped):
                        done.skipped.append(event)
        except DeviceLost as error:
            done.lost = str(error)
        finally:
            signal.signal(signal.SIGINT, previous)
            if journal is not None:
                journal.close()
    if campaign.stopped:
        done.interrupted = "run the same command again to go on"
    return done


def _there(server: str, asked: _Asked) -> _Done:
    if asked.output is not None or asked.total_seconds is not None:
        raise InvalidProblem("--output and --total-seconds are for tuning here, not with --server")
    if asked.index is not None:
        raise InvalidProblem("--index is for tuning here: a service's workers share a device class's jobs")
    # If no mode was given, the service chooses it: it knows the device.
    policy = asked.policy("cpu")
    chosen = {name: v for name, v in policy.to_dict().items() if name != "mode" or asked.mode is not None}
    done, kept = _Done({}, policy), []
    for index, item in enumerate(asked.read.problems):
        if asked.max_gflop is not None and item.problem.flops > asked.max_gflop * 1e9:
            reason = f"over the limit of {asked.max_gflop:g} GFLOP"
            done.skipped.append(Skipped(index, item.problem, reason))
        else:
            kept.append((item.problem, item.count))
    if not kept:
        raise InvalidProblem(f"no problem is left to tune: {done.skipped[0].reason}")
    options = {
        "device": asked.device, "policy": chosen, "rule": {"margin": asked.rule.margin},
        "budget": {
            "seconds_per_problem": asked.budget.seconds, "candidates": asked.budget.candidates,
            "effort": asked.effort, "stop_at_roofline": asked.budget.stop_at_roofline,
        },
        "force": asked.force,
        "search": {**vars(asked.search), "families": asked.search.families},
    }  # fmt: skip

    def say(text: str) -> None:
        if not asked.silent:
            err.print(text, markup=False, highlight=False)

    with Remote(server) as remote:
        created = follow.submit(remote, kept, options)
        done.policy = asked.policy(DeviceClass.parse(created["device_class"]).vendor)
        done.where = {"device_class": created["device_class"], "tuning_id": created["id"]}
        try:
            done.results = follow.follow(remote, created, say)
        except KeyboardInterrupt:
            done.interrupted = f"the tuning goes on: {server}{created['links']['self']}"
    return done


def _input(file: Path | None, format_name: str | None, one: dict[str, Any]) -> Imported:
    if file is not None and one:
        raise InvalidProblem(f"give a file or one problem, not both ({file} and --{next(iter(one))})")
    if file is not None:
        return read_file(file, format_name)
    if not one:
        raise InvalidProblem("nothing to tune: name a file, or give --m, --n and --k")
    problem = problem_from_wire(one)
    return Imported("command line", [ImportedProblem(problem, 1, (problem.slug,))], [], 1)


def _show(read: Imported, done: _Done, as_json: bool) -> None:
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
            f"skipped {count} of {len(read.problems)} problems: {reason}",
            style="yellow",
            markup=False,
        )


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(tune)
