"""A model's bundle of our own kernels, and how a torch program loads it (docs/decisions/0016).

The function that writes a bundle is given, so that compiling kernels is no part of this module:
bundle_outputs(write_bundle) makes the outputs `bundle` and `torch`, which are then entries of OUTPUTS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from service.formats.core.export import ExportRow
from service.model.gain import ModelReport
from service.model.outputs import Output, Request, Written, check_nothing

#: Writes the rows' best kernels of our own (ExportRow.of_target("bundle"), WIN only) as one file at the path.
#: The report counts each written row with wrote(Gain.of(row)), and each other one with omit(). Raises
#: ExportRefused where no row can be written, StorageError.
WriteBundle = Callable[[Path, Request, Sequence[ExportRow], ModelReport], None]

_VENDORS = ("cpu", "cuda", "hip")


def bundle_outputs(write_bundle: WriteBundle) -> tuple[Output, Output]:
    """The outputs `bundle` (for the client's load) and `torch` (the same file, and the lines of a torch
    program)."""

    def write(
        request: Request, rows: Sequence[ExportRow], lines: Callable[[Path], tuple[str, ...]]
    ) -> Written:
        report = ModelReport()
        for row in rows:
            report.measured(row)
        path = request.folder.absolute() / f"{request.plan.name}.gtb"
        write_bundle(path, request, rows, report)
        note = f"a bundle is code of {request.device}: load it from a place that only you can write"
        return Written((path,), lines(path), (note,), report)

    return (
        Output(
            "bundle", "a bundle of our own kernels", _VENDORS, check_nothing,
            lambda request, rows: write(request, rows, bundle_lines), "python",
        ),
        Output(
            "torch", "a torch program with our own kernels", _VENDORS, check_nothing,
            lambda request, rows: write(request, rows, torch_lines), "python",
        ),
    )  # fmt: skip


def bundle_lines(path: Path) -> tuple[str, ...]:
    """The lines of Python that open a bundle."""
    return (
        "import gemmtune",
        f"table = gemmtune.load({str(path)!r})",
        "loaded = table.open()",
    )


def torch_lines(path: Path) -> tuple[str, ...]:
    """The lines of Python that serve a torch model from a bundle; `model` is the loaded model, on its device
    and in its dtype."""
    return (
        "import gemmtune",
        "import gemmtune.torch",
        f"table = gemmtune.load({str(path)!r})",
        "gemmtune.torch.apply(model, table)  # before torch.compile and before CUDA graphs are captured",
        "print(gemmtune.torch.report())",
    )
