"""The selftest command: checks a device of this machine and writes a report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from errno import EISDIR
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.status import Status

from backends.cache import BinaryCache
from backends.canonical import slug
from backends.errors import AmbiguousDevice, InvalidProblem, StorageError, UnknownDevice
from backends.registry import BACKENDS, FoundDevice, matching_devices
from backends.registry import devices as find_devices
from service.commands.common import FAILED, INTERRUPTED, Index, OwnDevice, err, out
from service.device_lock import DeviceLock, locks_folder
from service.selftest_tuning import TuningPart
from service.settings import Settings
from tuners.selftest.candidates import CandidatesPart
from tuners.selftest.contract import ContractPart
from tuners.selftest.device import DeviceUnderTest
from tuners.selftest.probe import ProbePart
from tuners.selftest.program import program
from tuners.selftest.report import CheckStatus, Report, Section
from tuners.selftest.run import SECONDS, Part, run_parts
from tuners.selftest.text import render, summary
from tuners.selftest.timing import TimingPart

#: Suffixes that FILE may have; the report is written with each.
_SUFFIXES = (".json", ".txt")
_LIBRARY_SHARE = 0.25


def selftest(
    device: OwnDevice = None,
    index: Index = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write FILE.json and FILE.txt; default: gemmtune-selftest-DEVICE here.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="Time budget. What does not fit is named in the report.")
    ] = SECONDS,
    family: Annotated[
        list[str] | None, typer.Option(help="Only candidates of these families (repeat the option).")
    ] = None,
) -> None:
    """Check that a device of this machine works with gemmtune, in ten minutes, and write a report.

    It lists the device and its libraries, checks memory and the device's reference, and times launches and
    clocks. It tunes one small problem, exports the result and reads it back. It counts every library's
    solutions by type and layout and verifies a sample of them. It compiles and verifies candidates of every
    kernel family over types, transposes, ragged sizes, scalars, epilogues and splits.

    The report has two files, JSON with everything and a plain text. It names the device and its UUID, its
    driver and its libraries. Send both files if something failed. Ctrl-C writes what there is. No setting of
    the device is changed, and nothing is stored in the database.

    Exit code 1: something failed; 2: there is no such device, or it is in use."""
    settings = Settings()
    selector = device or settings.device
    paths = _paths(output or Path(f"gemmtune-selftest-{slug(selector)}"))
    report = Report(program(), selector, seconds)
    try:
        candidates = matching_devices(selector, index)
    except (UnknownDevice, AmbiguousDevice) as error:
        _absent(report, error, paths)
        raise
    with DeviceLock.first_free(locks_folder(settings), candidates) as lock:
        _on(lock.device, settings, report, paths, family)
    _tell(report, paths)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.status is CheckStatus.FAIL:
        raise typer.Exit(FAILED)


def parts(families: tuple[str, ...] | None) -> list[Part]:
    """Every part: short ones first, and last the one that gets what time is left."""
    return [
        ProbePart(),
        ContractPart(),
        TimingPart(),
        TuningPart(families),
        CandidatesPart(libraries=True, share=_LIBRARY_SHARE, only=families),
        CandidatesPart(libraries=False, share=1.0, only=families),
    ]


def _on(
    found: FoundDevice, settings: Settings, report: Report, paths: list[Path], family: list[str] | None
) -> None:
    report.environment, report.index = found.environment, found.index
    with (
        DeviceUnderTest(found, BinaryCache(settings.cache_dir / "kernels")) as device,
        err.status("starting") as status,
    ):
        known = device.backend.families()
        for name in family or ():
            if name not in known:
                raise InvalidProblem(
                    f"family {name!r} is unknown to {found.backend}; known: {', '.join(known)}"
                )
        chosen = tuple(family) if family else None
        run_parts(report, parts(chosen), device, lambda made: _save(made, paths), _watching(status))


def _watching(status: Status) -> Callable[[Section], None]:
    def watch(section: Section) -> None:
        counts = section.counts
        counted = ", ".join(f"{count} {name}" for name, count in counts.items())
        status.update(f"{section.title}: {counted}")

    return watch


def _absent(report: Report, error: UnknownDevice | AmbiguousDevice, paths: list[Path]) -> None:
    """Writes the report of a device that is not there: what the backends said."""
    vendor = report.selector.strip().lower().partition(":")[0]
    _, notes = find_devices(vendor if vendor in BACKENDS else None)
    report.notes, report.complete = tuple(notes), True
    for part in parts(None):
        section = Section(part.name, part.title, complete=True)
        section.absent(part.name, str(error))
        report.sections.append(section)
    _save(report, paths)
    _tell(report, paths)


def _paths(given: Path) -> list[Path]:
    """The report's files. Raises StorageError now, not after ten minutes."""
    base = given.with_suffix("") if given.suffix in _SUFFIXES else given
    paths = [base.with_name(base.name + suffix) for suffix in _SUFFIXES]
    for path in paths:
        fresh = _fresh(path)
        try:
            fresh.write_bytes(b"")
            fresh.unlink()
            if path.is_dir():
                raise IsADirectoryError(EISDIR, "it is a folder")
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror or error}; name another file"
            ) from error
    return paths


def _fresh(path: Path) -> Path:
    """The file that is renamed into place once it is whole."""
    return path.with_name(f".{path.name}.part")


def _save(report: Report, paths: list[Path]) -> None:
    """Writes both files, each whole or not at all."""
    values = _finite(report.to_dict())
    texts = json.dumps(values, indent=1, allow_nan=False) + "\n", render(values)
    for path, text in zip(paths, texts, strict=True):
        fresh = _fresh(path)
        try:
            fresh.write_text(text)
            fresh.replace(path)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            fresh.unlink(missing_ok=True)


def _finite(value: Any) -> Any:
    """JSON has no infinity: null."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tell(report: Report, paths: list[Path]) -> None:
    """Prints the summary and where the files are."""
    for text in (summary(_finite(report.to_dict())), f"written: {paths[0]} and {paths[1]}"):
        out.print(text, markup=False, highlight=False, soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(selftest)
