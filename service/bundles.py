"""Bundles of a device class: which rows one holds, and their compiling, here or in the service's background.

A row is the verdict of the export target `bundle`, where that is a WIN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.canonical import slug
from backends.counted import counted
from backends.environment import DeviceClass
from backends.errors import (
    CompileError,
    CompilerMissing,
    GemmtuneError,
    IllegalSolution,
    LaunchError,
    NoBinary,
)
from backends.export_targets import BUNDLE
from backends.packages.bundle import BundleBuilder, Measured, Row, describe_row
from backends.packages.bundle_file import SUFFIX
from db import exported
from db.engine import reading
from service import errors, exports
from service.formats.core.export import ExportReport, ExportRow, Gain

FORMAT = "bundle"
#: What leaves a row out: it cannot be compiled here.
_LEFT_OUT = (CompilerMissing, CompileError, IllegalSolution, NoBinary, LaunchError)


class Stopped(GemmtuneError):
    """The building was stopped, because the service ends."""


@dataclass(frozen=True)
class Selection:
    """Which rows a bundle holds: of a device class, under a policy, of these problems (None: of all); and the
    architecture that its binaries are for."""

    device: DeviceClass
    policy_id: str
    target: str
    problem_ids: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return f"gemmtune-{slug(str(self.device))}{SUFFIX}"

    def export(self) -> exports.Selection:
        """The same rows as an export selects them."""
        return exports.Selection(self.device, self.policy_id)


@dataclass(frozen=True)
class Built:
    """A bundle on disk. `report`: what it holds, and what it does not, by reason."""

    path: Path
    digest: str
    report: dict[str, Any]


def target_of(device: DeviceClass, given: str | None) -> str:
    """The architecture that binaries are compiled for: the device's, or another name of it (sm_90a for
    sm_90). Raises Refused."""
    if given is None or given == device.arch:
        return device.arch
    here = GPU_TARGETS.get(device.arch)
    names = [name for name, arch in GPU_TARGETS.items() if arch is here] or [device.arch]
    if given not in names:
        raise errors.bad_parameter(
            "target", f"{given[:40]!r} is no architecture of {device}; known: {', '.join(names)}"
        )
    return given


def check_count(engine: Engine, chosen: Selection, most: int) -> int:
    """How many rows the whole class has. Raises Refused for none (404) and for more than `most` (409)."""
    with reading(engine) as connection:
        count = exported.target_wins(connection, str(chosen.device), chosen.policy_id, BUNDLE.name)
    if not count:
        raise errors.nothing_to_bundle(_nothing(engine, chosen), None)
    if count > most:
        raise errors.too_many_rows(str(chosen.device), count, most)
    return count


def _nothing(engine: Engine, chosen: Selection) -> str:
    """Why the class has no row."""
    report = ExportReport()
    for row in exports.read_rows(engine, chosen.export(), (), report):
        winner(row, report)
    return exports.nothing_reason(engine, chosen.export(), report)


def winners(rows: Iterable[ExportRow], chosen: Selection, report: ExportReport, most: int) -> list[ExportRow]:
    """The rows with a WIN of our own kernels, in the order of problem ids; the report counts the others by
    reason. Raises Refused for more than `most`."""
    found: list[ExportRow] = []
    for row in rows:
        if chosen.problem_ids is not None and row.problem.id not in chosen.problem_ids:
            continue
        report.measured(row)
        if (ours := winner(row, report)) is not None:
            found.append(ours)
    if len(found) > most:
        raise errors.too_many_rows(str(chosen.device), len(found), most)
    return sorted(found, key=lambda row: row.problem.id)


def winner(row: ExportRow, report: ExportReport) -> ExportRow | None:
    """The row of the target `bundle` if it is a WIN; otherwise the report counts it."""
    ours = row.of_target(BUNDLE.name)
    if ours is not None and ours.judgement == "WIN":
        return ours
    if ours is not None:
        report.omit(f"the best kernel of our own is a {ours.judgement}", row.problem)
    elif row.targets_judged:
        report.omit("no kernel of our own was in the final", row.problem)
    else:
        report.tune_again += 1
        report.omit("no kernel of our own was judged", row.problem)
    return None


# ---- building ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workshop:
    """How rows are compiled: the cache, how many at a time, and what each waits for (a limit on compiling).
    `progress` is told (done, of all) after each row; `stopped` says that nobody wants the bundle any more."""

    cache: BinaryCache
    workers: int = 1
    place: Callable[[], AbstractContextManager[object]] = nullcontext
    progress: Callable[[int, int], None] = lambda done, total: None
    stopped: Callable[[], bool] = lambda: False


def build(engine: Engine, chosen: Selection, most: int, path: Path, workshop: Workshop) -> Built:
    """Compiles the rows and writes the bundle to `path`. A row that cannot be compiled here is left out and
    counted. Raises Refused where no row is left (404) or there are more than `most` (409), StorageError,
    Stopped."""
    rows = exports.read_rows(engine, chosen.export(), (), ExportReport())
    return build_from(rows, chosen, most, path, workshop, lambda report: _reason(engine, chosen, report))


def build_from(
    rows: Iterable[ExportRow], chosen: Selection, most: int, path: Path, workshop: Workshop,
    why_none: Callable[[ExportReport], str],
) -> Built:  # fmt: skip
    """build() from given best rows of the device class and the policy. `why_none` says why no row is left."""
    report = ExportReport()
    digest = write_rows(
        chosen.device, chosen.target, winners(rows, chosen, report, most), report, path, workshop
    )
    if digest is None:
        raise errors.nothing_to_bundle(why_none(report), _figures(chosen, report))
    size = path.stat().st_size
    return Built(path, digest, {**_figures(chosen, report), "digest": digest, "bytes": size})


def write_rows(
    device: DeviceClass, target: str, rows: Sequence[ExportRow], report: ExportReport, path: Path,
    workshop: Workshop,
) -> str | None:  # fmt: skip
    """Compiles rows of one policy that winner() has given, and writes those that can be compiled here; the
    report counts both. Returns the bundle's digest, None where no row is left and nothing was written. Raises
    StorageError, Stopped."""
    if not rows:
        return None
    with BundleBuilder(device, rows[0].policy.id, rows[0].policy.to_dict()) as builder:
        for done, (row, made) in enumerate(_compiled(rows, target, workshop), 1):
            if isinstance(made, GemmtuneError):
                report.omit(_why(made), row.problem)
            else:
                builder.add(made)
                report.wrote(Gain.of(row))
            workshop.progress(done, len(rows))
        return builder.write(path) if report.written else None


def _compiled(
    rows: Sequence[ExportRow], target: str, workshop: Workshop
) -> Iterator[tuple[ExportRow, Row | GemmtuneError]]:
    """Each row with what it was compiled to, or why it was not, in order; a few rows ahead."""

    def one(row: ExportRow) -> Row | GemmtuneError:
        if workshop.stopped():
            raise Stopped("the service ends")
        with workshop.place():
            try:
                return describe_row(_measured(row), target, workshop.cache)
            except _LEFT_OUT as error:
                return error

    waiting: deque[tuple[ExportRow, Future[Row | GemmtuneError]]] = deque()
    pool = ThreadPoolExecutor(workshop.workers, "bundle")
    try:
        for row in rows:
            waiting.append((row, pool.submit(one, row)))
            if len(waiting) > 2 * workshop.workers:
                first, made = waiting.popleft()
                yield first, made.result()
        while waiting:
            first, made = waiting.popleft()
            yield first, made.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _measured(row: ExportRow) -> Measured:
    verdict = {
        "judgement": row.judgement,
        "seconds": row.seconds,
        "baseline_seconds": row.baseline_seconds,
        "baseline": row.baseline_name,
        "baseline_family": None if row.baseline is None else row.baseline.family,
        "speedup": list(row.speedup or ()),
        "rounds": row.rounds,
        "session": row.session,
        "decided_at": row.decided_at,
    }
    return Measured(row.problem, row.solution, row.environment, verdict)


def _why(error: GemmtuneError) -> str:
    """Why a row was left out, on one line."""
    text = str(error).partition("\n")[0]
    return f"not legal here: {text}" if isinstance(error, IllegalSolution) else f"not compiled here: {text}"


def _reason(engine: Engine, chosen: Selection, report: ExportReport) -> str:
    if chosen.problem_ids is not None and not report.omitted:
        return f"none of the {counted(len(chosen.problem_ids), 'problem')} was measured on {chosen.device}"
    return exports.nothing_reason(engine, chosen.export(), report)


def _figures(chosen: Selection, report: ExportReport) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "device_class": str(chosen.device),
        "policy_id": chosen.policy_id,
        "target": chosen.target,
        **report.figures(),
    }
