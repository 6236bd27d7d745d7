"""The judge command: the user's own kernel, on a device of this machine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from backends.cache import BinaryCache
from backends.errors import InvalidProblem
from backends.registry import matching_devices
from backends.user_kernels.source import read_kernel
from backends.wire import problem_to_wire
from service import report
from service.audit import audited
from service.commands.common import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    OK,
    PARTLY,
    Effort,
    FormatName,
    Index,
    Json,
    Mode,
    OwnDevice,
    Tokens,
    Tp,
    err,
    input_code,
    out,
    print_json,
    tell,
)
from service.device_lock import DeviceLock, locks_folder
from service.judging import Judging
from service.settings import Settings
from service.shapes import NAMED, read_shapes
from service.startup import open_database
from tuners.budget import Search
from tuners.decide import Judgement
from tuners.effort import effort_of
from tuners.judge.client import HANG_SECONDS, PRINTED, JudgeClient
from tuners.judge.result import Compared, Judged
from tuners.policy import MeasurementPolicy
from tuners.tuning_settings import TuningSettings

_COLORS = {"right": "green", "wrong": "red", "failed": "red", "unsupported": "yellow"}


def judge(
    kernel: Annotated[Path, typer.Argument(help="The kernel: .py, .cpp or .cu (docs/judge.md).")],
    shapes: Annotated[
        str, typer.Option(help=f"The problems: {' or '.join(NAMED)}, or a file of any format.")
    ],
    family_of: Annotated[str, typer.Option(help="What the kernel computes.")] = "gemm",
    device: OwnDevice = None,
    index: Index = None,
    format_name: FormatName = None,
    tp: Tp = None,
    tokens: Tokens = None,
    dtype: Annotated[str | None, typer.Option(help="Type of a model's problems, where not its own.")] = None,
    effort: Effort = None,
    seconds: Annotated[
        float | None, typer.Option(help="Measuring budget a problem; default: the effort's.")
    ] = None,
    mode: Mode = None,
    cache: Annotated[str, typer.Option(help="cold or warm operands.")] = "cold",
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a call of the kernel is taken to hang.")
    ] = HANG_SECONDS,
    seed: Annotated[int, typer.Option(help="Of the inputs.")] = 0,
    server: Annotated[
        str | None, typer.Option(help="Refused: a service takes no code. A kernel is judged here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge a kernel of your own: verified on every problem as our own are, checked for cheats, and raced
    against the default and the best known solution. Exit code 0: right on every problem.

    The kernel runs in a process of its own, with your rights: judge only code that you would run. Results are
    stored in this machine's database as of provenance judged:NAME, and never served as the best."""
    if server is not None:
        raise InvalidProblem(
            "--server: a service takes no code from anybody; run gemmtune judge on the machine with the "
            "device"
        )
    if not timeout > 0:
        raise InvalidProblem(f"--timeout must be above 0 seconds, not {timeout}")
    settings = Settings()
    source = read_kernel(kernel, family_of)
    read = read_shapes(shapes, tp, tokens, dtype, format_name)
    if not read.problems:
        if read.rejected:
            out.print(report.rejected_table(read.rejected))
        raise InvalidProblem(f"no problem to judge the kernel on in {shapes}")
    level = effort_of(effort)
    devices = matching_devices(device or settings.device, index)
    asked = TuningSettings(
        MeasurementPolicy.of(devices[0].environment.vendor, mode, cache=cache),
        level.budget(settings.seconds_per_problem, seconds), Search("exhaustive", seed),
        level.rule(settings.margin),
    )  # fmt: skip
    done: list[Judged] = []
    engine = open_database(settings)
    with DeviceLock.first_free(locks_folder(settings), devices) as lock:
        binaries = BinaryCache(settings.cache_dir / "kernels")
        with (
            audited(settings, "judge", source.name, f"sha256={source.digest}") as change,
            JudgeClient(lock.device, binaries, source, timeout) as client,
        ):
            judging = Judging(client, engine, asked)
            previous = signal.signal(signal.SIGINT, lambda *_: judging.stop())
            try:
                for number, item in enumerate(read.problems):
                    if judging.stopped:
                        break
                    said = f"{number + 1} of {len(read.problems)}: {report.problem_text(item.problem)}"
                    with err.status(said):
                        done += [one for one in judging.run(item.problem) if isinstance(one, Judged)]
            finally:
                signal.signal(signal.SIGINT, previous)
            change.detail += f" problems={len(done)}"
    environment = lock.device.environment
    if as_json:
        print_json(
            {
                "kernel": source.name, "sha256": source.digest, "solution": client.solution.to_dict(),
                "provenance": f"judged:{source.name}", "environment": environment.to_dict(),
                "policy": asked.policy.to_dict(),
                "results": [{**one.to_dict(), "wire": problem_to_wire(one.problem)} for one in done],
                "rejected": [{"line": r.line, "reason": r.reason} for r in read.rejected],
            }
        )  # fmt: skip
    else:
        if read.rejected:
            out.print(report.rejected_table(read.rejected))
        _show(source.name, done)
    if judging.stopped:
        tell("interrupted; what was judged is kept", "yellow")
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(_code(done) or input_code(read))


def _code(done: list[Judged]) -> int:
    """FAILED for a problem on which the kernel is not right, PARTLY for one that it does not take, BAD_INPUT
    if it takes none."""
    statuses = {one.status for one in done}
    if statuses & {"wrong", "failed"}:
        return FAILED
    if statuses == {"unsupported"}:
        return BAD_INPUT
    return PARTLY if "unsupported" in statuses else OK


def _show(name: str, done: list[Judged]) -> None:
    table = Table(title=f"Judged: {name}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("problem (row-major m x n x k)")
    table.add_column("result", no_wrap=True)
    for column in ("time", "default", "against the default", "against the best known"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in done:
        right = one.status == "right"
        table.add_row(
            report.problem_text(one.problem), Text(one.status, _COLORS[one.status]),
            report.time_text(one.seconds) if right and one.seconds is not None else "",
            report.time_text(one.default.seconds) if one.default is not None else "",
            _ratio(one.default), _ratio(one.best),
        )  # fmt: skip
    out.print(table)
    counts = {status: sum(one.status == status for one in done) for status in _COLORS}
    out.print(", ".join(f"{count} {status}" for status, count in counts.items() if count), markup=False)
    for one in done:
        if one.status != "right" or one.default is None:
            out.print(f"{report.problem_text(one.problem)}: {one.text}", markup=False, soft_wrap=True)
    for text in _remarks(done):
        out.print(f"note: {text}", style="dim", markup=False, soft_wrap=True)


def _ratio(compared: Compared | None) -> str:
    if compared is None:
        return ""
    gain = compared.speedup
    known = gain.low > float("-inf") and gain.high < float("inf")
    interval = f" ({gain.low:.2f}-{gain.high:.2f})" if known else ""
    return f"{gain.mid:.2f}x{interval} {compared.judgement.value}"


def _remarks(done: list[Judged]) -> list[str]:
    """What the kernel printed, where it is not deterministic, and the sessions' notes, each once."""
    found: list[str] = []
    for one in done:
        printed: dict[str, Any] = one.evidence.get("printed") or {}
        if printed:
            kept = min(printed["bytes"], PRINTED)
            found.append(
                f"the kernel printed {printed['bytes']:,} bytes; the first {kept:,} are stored, beginning "
                f"{printed['first'][:60]!r}"
            )
        if one.deterministic is False:
            found.append(
                f"{report.problem_text(one.problem)}: two runs on the same input gave different bits"
            )
        found += one.notes
        if one.default is not None and one.default.judgement is Judgement.TIE and one.text:
            found.append(f"{report.problem_text(one.problem)}: {one.text}")
    return list(dict.fromkeys(found))


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(judge)
