"""Which rows a file for a framework takes: those that were judged against what the framework runs."""

from __future__ import annotations

import pytest

from backends.export_targets import EXPORT_TARGETS
from backends.solution import Solution
from service.formats.core.export import ExportReport, ExportRow
from service.formats.core.override import OmittedError, best_named
from tests.service.formats.made import CUBLASLT, row


def named(made: ExportRow, *targets: str) -> str:
    """What is written of the row, for these targets."""
    chosen = [EXPORT_TARGETS[name] for name in targets]
    return best_named(made, chosen, lambda one: one.solution.family, ExportReport())[1]


@pytest.mark.parametrize("family", ["torch", "cublaslt-heuristic"])
@pytest.mark.parametrize("judgement", ["WIN", "TIE", "LOSS"])
def test_a_row_that_was_judged_against_what_torch_runs_is_written(family: str, judgement: str) -> None:
    made = row(judgement=judgement, baseline=Solution(family, 1, {}))
    assert named(made, "cublaslt", "cublaslt-1mib") == CUBLASLT.family


@pytest.mark.parametrize("family", ["cublaslt", "rocblas-default", "openblas_upcast", "naive"])
def test_a_row_that_was_judged_against_another_baseline_is_omitted_with_its_name(family: str) -> None:
    made = row(baseline=Solution(family, 1, {}), baseline_name="another call")
    with pytest.raises(OmittedError, match="judged against another call, which the file's programs do not"):
        named(made, "cublaslt", "cublaslt-1mib")
    assert named(made, "bundle") == CUBLASLT.family, "no framework's"


def test_a_claim_that_nobody_judged_is_written_as_before() -> None:
    made = row(baseline=Solution("openblas", 1, {}), judgement="", provenance="imported")
    assert named(made, "cublaslt") == CUBLASLT.family
    assert named(row(baseline=None), "cublaslt") == CUBLASLT.family
