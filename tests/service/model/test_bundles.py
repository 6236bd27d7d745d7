"""The outputs that a bundle's writer makes possible."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from service.formats.core.export import ExportRow, Gain
from service.model.bundles import bundle_outputs
from service.model.gain import ModelReport
from service.model.outputs import Request
from tests.service.formats import made
from tests.service.model.test_outputs import asked, rows


def write(path: Path, request: Request, found: Sequence[ExportRow], report: ModelReport) -> None:
    path.write_text(str(request.device))
    for row in found[1:]:
        report.wrote(Gain.of(row))
    report.omit("the first has no kernel of our own", found[0].problem)


def test_a_bundle_and_a_torch_program_have_one_file(tmp_path: Path) -> None:
    bundle, torch = bundle_outputs(write)
    for output in (bundle, torch):
        request = asked(tmp_path, made.CPU)
        assert "cpu" in output.vendors
        output.check(request)
        written = output.write(request, rows(request))
        assert written.files == (tmp_path / "llama-3-8b.gtb",)
        assert len(written.report.ratios) == len(request.plan.problems) - 1
        program = ast.parse("\n".join(written.lines))
        loads = [node.value for node in ast.walk(program) if isinstance(node, ast.Constant)]
        assert str(written.files[0]) in loads
    assert len(torch.write(request, rows(request)).lines) == 5
