"""The outputs that are a bundle of our own kernels: a file for the client's load(), and the lines with which
a torch program uses it (docs/decisions/0016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from backends.counted import counted
from backends.packages.bundle_file import SUFFIX, BundleFile
from service.bundles import target_of, winner, write_rows
from service.formats.core.export import ExportRefused, ExportRow, Gain
from service.model.gain import ModelReport
from service.model.request import Fetch, Output, Request, Written

_VENDORS = ("cpu", "cuda", "hip")
_REPORT = (
    "what the rows ran, and about how much time they saved: `with gemmtune.torch.report() as count:` around "
    "the model's calls, then print(count.report())"
)


def _check(request: Request) -> None:
    target_of(request.device, request.target)
    if request.validators:
        raise ExportRefused("a bundle has no validators: leave out --validator")
    if request.workspace_limit is not None:
        raise ExportRefused(
            "a bundle's kernels get the workspace that they were measured with: leave out --max-workspace"
        )


def _write(
    request: Request, rows: Sequence[ExportRow], lines: Callable[[Path, bool], tuple[str, ...]], *notes: str
) -> Written:
    """Writes the rows that kernels of our own won: compiled here, or by the service that they are read from.
    Raises ExportRefused where none can be written, StorageError, ServiceError, BundleError."""
    report = ModelReport()
    ours = []
    for row in rows:
        report.measured(row)
        if (won := winner(row, report)) is not None:
            ours.append(won)
    ours.sort(key=lambda row: row.problem.id)
    path = request.folder.absolute() / f"{request.plan.name}{SUFFIX}"
    target = target_of(request.device, request.target)
    if request.fetch is None:
        write_rows(request.device, target, ours, report, path, request.workshop)
    elif ours:
        _fetched(request.fetch, path, target, ours, report)
    if not report.written:
        if not rows:
            raise ExportRefused(
                f"nothing is known of {request.plan.name} on {request.device}: no bundle was written"
            )
        reason, count = max(report.omitted.items(), key=lambda item: item[1])
        raise ExportRefused(
            f"no bundle was written: none of {counted(len(rows), 'known row')} can be; "
            f"{count} of them: {reason}"
        )
    note = f"a bundle is code of {request.device}: load it from a place that only you can write"
    packs = any(item.problem.prepacked for item in request.plan.problems)
    return Written((path,), lines(path, packs), (note, *notes), report)


def _fetched(fetch: Fetch, path: Path, target: str, rows: Sequence[ExportRow], report: ModelReport) -> None:
    """Writes the service's bundle of the rows; the report counts those that it has."""
    fetch(path, target, frozenset(row.problem.id for row in rows))
    has = frozenset(BundleFile(path).problem_ids)
    for row in rows:
        if row.problem.id in has:
            report.wrote(Gain.of(row))
        else:
            report.omit("the service's bundle has no row of it", row.problem)


def bundle_lines(path: Path, packs: bool = False) -> tuple[str, ...]:
    """The lines of Python that open a bundle. A program that packs weights launches prepare_packing() of its
    kernels itself."""
    return (
        "import gemmtune",
        f"table = gemmtune.load({str(path)!r})",
        "loaded = table.open()",
    )


def torch_lines(path: Path, packs: bool = False) -> tuple[str, ...]:
    """The lines of Python that serve a torch model from a bundle; `model` is the loaded model, on its device
    and in its dtype, and `packs` whether it packs its quantised weights."""
    packing = ("gemmtune.torch.prepack_model(model)",) if packs else ()
    return (
        "import gemmtune",
        "import gemmtune.torch",
        f"table = gemmtune.load({str(path)!r})",
        "# Before torch.compile and before CUDA graphs are captured; applied.disable() undoes it.",
        "applied = gemmtune.torch.apply(model, table, fuse=True)",
        *packing,
    )


#: A bundle for the client, and the same file for a torch program.
BUNDLE_OUTPUTS = (
    Output(
        "bundle", "a bundle of our own kernels", _VENDORS, _check,
        lambda request, rows: _write(request, rows, bundle_lines), "python",
        products="all", packs=True,
    ),
    Output(
        "torch", "a torch program with our own kernels", _VENDORS, _check,
        lambda request, rows: _write(request, rows, torch_lines, _REPORT), "python",
        layers="both", merging=True, products="all", packs=True,
    ),
)  # fmt: skip
