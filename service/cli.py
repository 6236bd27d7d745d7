"""The command line: thin commands over the tuner.

Exit codes: 0 done; 1 some problem has no verdict; 2 bad input, nothing done; 3 done, but some lines of
the input were rejected; 130 interrupted.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from backends.cache import BinaryCache
from backends.errors import GemmtuneError, InvalidProblem
from backends.registry import devices as find_devices
from backends.registry import find_device
from backends.wire import problem_from_wire, problem_to_wire
from db.tunings import new_id
from service import cli_service, report
from service.device_lock import DeviceLock
from service.formats import FORMATS, read_file
from service.formats.base import Imported, ImportedProblem
from service.progress import CampaignProgress
from service.requests import request_content
from service.settings import Settings
from service.startup import open_database
from service.store import DirectStore
from tuners.campaign import Campaign, Finished, Result, Skipped
from tuners.ceilings import CeilingStore
from tuners.decide import DecisionRule
from tuners.journal import Journal
from tuners.policy import MeasurementPolicy
from tuners.runner import DeviceRunner
from tuners.session import Budget, Search

OK, FAILED, BAD_INPUT, PARTLY, INTERRUPTED = 0, 1, 2, 3, 130

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None,
)  # fmt: skip
#: Without a terminal there is no width to fit: tables keep their lines whole.
_out = Console(width=None if sys.stdout.isatty() else 140)
_err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
FormatName = Annotated[
    str | None,
    typer.Option("--format", help=f"Format of FILE ({', '.join(FORMATS)}); detected if not given."),
]


cli_service.add_to(app)


def main() -> None:
    """Entry point of the gemmtune command: errors become one line and an exit code."""
    try:
        app()
    except GemmtuneError as error:
        _fail(str(error))
    except ValidationError as error:
        first = error.errors()[0]
        name = "GEMMTUNE_" + "_".join(str(part) for part in first["loc"]).upper()
        _fail(f"setting {name}: {first['msg']} (it is {first['input']!r})")
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        sys.stderr.close()
        sys.exit(FAILED)


def _fail(message: str) -> None:
    _err.print(f"error: {message}", style="red", highlight=False, markup=False)
    sys.exit(BAD_INPUT)


@app.command()
def devices(
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure ceilings now: reading, copying, multiplying fp32."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the devices of this machine, what runs on them, and their measured ceilings."""
    settings = Settings()
    found, notes = find_devices()
    store = CeilingStore(settings.cache_dir / "ceilings")
    ceilings = {}
    for row, device in enumerate(found):
        if measure:
            with DeviceRunner(device, BinaryCache(settings.cache_dir / "kernels")) as runner:
                fresh = runner.ceilings(["fp32"])
                known = store.get(device.environment)
                store.put(device.environment, fresh if known is None else known.merged(fresh))
        ceilings[row] = store.get(device.environment)
    if as_json:
        rows = [
            {
                "selector": str(device.environment.device_class),
                "environment": device.environment.to_dict(),
                "ceilings": None if ceilings[row] is None else vars(ceilings[row]),
            }
            for row, device in enumerate(found)
        ]
        _print_json({"devices": rows, "notes": notes})
        return
    _out.print(report.devices_table(found, ceilings))
    for note in notes:
        _out.print(f"note: {note}", style="yellow", markup=False)


@app.command()
def problems(
    file: Annotated[Path, typer.Argument(help="A file of problems.")],
    format_name: FormatName = None,
    as_json: Json = False,
) -> None:
    """List the problems in FILE with their call counts, and every line that could not be read."""
    read = read_file(file, format_name)
    if as_json:
        _print_json(_imported_json(read))
    else:
        if read.problems:
            _out.print(report.problems_table(read.problems))
        if read.rejected:
            _out.print(report.rejected_table(read.rejected))
        _out.print(f"{len(read.problems)} problems in {read.lines} lines of {read.format}")
    raise typer.Exit(_input_code(read))


@app.command()
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
    device: Annotated[str | None, typer.Option(help="Device selector, e.g. cpu or cuda:sm_90.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Measuring budget a problem.")] = None,
    total_seconds: Annotated[
        float | None, typer.Option(help="Budget of the whole run; what does not fit is skipped.")
    ] = None,
    max_gflop: Annotated[
        float | None, typer.Option(help="Skip (and count) problems over this many GFLOP.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="exhaustive or random.")] = "exhaustive",
    seed: Annotated[int, typer.Option(help="Of inputs and of the search.")] = 0,
    family: Annotated[list[str] | None, typer.Option(help="Only these families (repeat the option).")] = None,
    mode: Annotated[str, typer.Option(help="eager or graph.")] = "eager",
    cache: Annotated[str, typer.Option(help="cold or warm operands.")] = "cold",
    max_workspace: Annotated[int | None, typer.Option(help="Workspace limit, bytes.")] = None,
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
    progress: Annotated[bool, typer.Option(help="Show a progress bar on a terminal.")] = True,
    as_json: Json = False,
) -> None:
    """Tune one problem (--m --n --k ...) or every problem of FILE on a device of this machine.

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
            _print_json(_imported_json(read))
        elif read.rejected:
            _out.print(report.rejected_table(read.rejected))
        raise InvalidProblem(f"no problem to tune in {file}")
    found = find_device(device or settings.device)
    try:
        budget = Budget(settings.seconds_per_problem if seconds is None else seconds)
        rule = DecisionRule(margin=settings.margin if margin is None else margin)
    except ValueError as error:
        raise InvalidProblem(str(error)) from error
    policy = MeasurementPolicy(
        mode=mode, cache=cache, max_workspace_bytes=max_workspace, deterministic_only=deterministic,
        memory_share=memory_share,
    )  # fmt: skip
    search = Search(strategy, seed, tuple(family) if family else None)
    ceilings = CeilingStore(settings.cache_dir / "ceilings")
    problems = [item.problem for item in read.problems]
    journal = Journal(output) if output else None
    store = journal or DirectStore(
        open_database(settings), problems, found.environment, policy,
        request_content(budget, search, rule), seed, new_id("forced") if force else "",
    )  # fmt: skip
    results: list[Result] = []
    skipped: list[Skipped] = []
    with (
        DeviceLock(settings.cache_dir / "locks", found),
        DeviceRunner(found, BinaryCache(settings.cache_dir / "kernels")) as runner,
    ):
        campaign = Campaign(
            runner, problems, policy, budget, search, rule, store,
            lambda dtypes: ceilings.obtain(runner.environment, dtypes, runner.ceilings),
            total_seconds=total_seconds, max_flops=None if max_gflop is None else max_gflop * 1e9,
        )  # fmt: skip
        previous = signal.signal(signal.SIGINT, lambda *_: campaign.stop())
        silent = not progress or as_json
        try:
            with CampaignProgress(_err, len(read.problems), silent) as bar:
                for event in campaign.run():
                    bar.follow(event)
                    if isinstance(event, Finished):
                        results.append(event.result)
                    elif isinstance(event, Skipped):
                        skipped.append(event)
        finally:
            signal.signal(signal.SIGINT, previous)
            if journal is not None:
                journal.close()
            _show(read, results, skipped, found.environment.to_dict(), policy, as_json)
    if campaign.stopped:
        _err.print("interrupted; run the same command again to go on", style="yellow", markup=False)
        raise typer.Exit(INTERRUPTED)
    failed = any(result.verdict is None for result in results)
    raise typer.Exit(FAILED if failed else _input_code(read))


def _input(file: Path | None, format_name: str | None, one: dict[str, Any]) -> Imported:
    if file is not None and one:
        raise InvalidProblem(f"give a file or one problem, not both ({file} and --{next(iter(one))})")
    if file is not None:
        return read_file(file, format_name)
    if not one:
        raise InvalidProblem("nothing to tune: name a file, or give --m, --n and --k")
    problem = problem_from_wire(one)
    return Imported("command line", [ImportedProblem(problem, 1, (problem.slug,))], [], 1)


def _show(
    read: Imported,
    results: Sequence[Result],
    skipped: Sequence[Skipped],
    environment: dict[str, Any],
    policy: MeasurementPolicy,
    as_json: bool,
) -> None:
    counts = {item.problem.id: item.count for item in read.problems}
    if as_json:
        _print_json(
            {
                **_imported_json(read),
                "environment": environment,
                "policy": policy.to_dict(),
                "results": [{**r.to_dict(), "wire": problem_to_wire(r.problem)} for r in results],
                "skipped": [{"problem_id": s.problem.id, "reason": s.reason} for s in skipped],
            }
        )
        return
    if read.rejected:
        _out.print(report.rejected_table(read.rejected))
    if results:
        _out.print(report.verdicts_table(results, counts))
        _out.print(report.summary(results, counts), markup=False)
        for note in sorted({note for result in results for note in result.notes}):
            _out.print(f"note: {note}", style="dim", markup=False)
    for reason in dict.fromkeys(s.reason for s in skipped):
        count = sum(s.reason == reason for s in skipped)
        _out.print(
            f"skipped {count} of {len(read.problems)} problems: {reason}",
            style="yellow",
            markup=False,
        )


def _imported_json(read: Imported) -> dict[str, Any]:
    return {
        "format": read.format,
        "problems": [
            {**problem_to_wire(i.problem), "id": i.problem.id, "count": i.count} for i in read.problems
        ],
        "rejected": [{"line": r.line, "reason": r.reason} for r in read.rejected],
    }


def _input_code(read: Imported) -> int:
    if not read.rejected:
        return OK
    return PARTLY if read.problems else BAD_INPUT


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=1, default=dict)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
