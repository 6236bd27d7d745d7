"""The cells of our own CSV: numbers, names, and texts that no spreadsheet runs as formulas."""

from __future__ import annotations

from backends.environment import Environment
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats.core.export import ExportRow
from service.formats.core.row_text import Texts, dumps, problem_text
from tuners.policy import MeasurementPolicy

#: What a text that a spreadsheet runs as a formula begins with, and the mark that keeps it from that.
FORMULAS = tuple("=+-@'")


def problem_cells(p: GemmProblem) -> str:
    """The column-major problem as its row-major twin, in the order of csv_table.PROBLEM_COLUMNS. Cells are
    numbers and names, so none needs quotes; None is an empty cell."""
    alpha, beta = p.scalars
    axis = "" if p.bias_axis is None else "n" if p.bias_axis == "m" else "m"
    scaling = ",".join(scale or "" for scale in (p.scale_b, p.scale_a, p.scale_d, p.scale_dtype))
    return (
        f"{p.n},{p.m},{p.k},{p.dtype_b},{p.batch},{p.trans_b},{p.trans_a},{p.ldb},{p.lda},{p.ldc},{p.ldd},"
        f"{p.stride_b},{p.stride_a},{p.stride_c},{p.stride_d},"
        f"{p.dtype_a},{p.dtype_c},{p.dtype_d},{p.compute},{alpha},{beta},"
        f"{p.activation},{p.bias or ''},{axis},{scaling},{p.alignment},{str(p.fast_accumulation).lower()}"
    )


class ResultCells:
    """A row's cells in the order of csv_table.RESULT_COLUMNS; the cells of values that rows share are made
    once."""

    def __init__(self) -> None:
        self._environments: Texts[Environment] = Texts(lambda e: f"{cell(str(e.device_class))},{cell(e.id)}")
        self._policies: Texts[MeasurementPolicy] = Texts(lambda policy: cell(policy.id))
        self._solutions: Texts[Solution] = Texts(_solution_cells)
        self._baselines: Texts[Solution] = Texts(lambda solution: cell(solution.id))

    def of(self, row: ExportRow) -> str:
        """The cells of a row."""
        low, mid, high = map(_figure, row.speedup or (None, None, None))
        baseline = "" if row.baseline is None else self._baselines.of(row.baseline)
        return (
            f"{row.count},{cell(problem_text(row.problem)[0])},{self._environments.of(row.environment)},"
            f"{self._policies.of(row.policy)},{self._solutions.of(row.solution)},"
            f"{baseline},{cell(row.baseline_name)},{row.judgement},"
            f"{_figure(row.seconds)},{_figure(row.baseline_seconds)},{low},{mid},{high},{row.rounds},"
            f"{cell(row.session or '')},{cell(row.decided_at or '')},{row.provenance},{cell(row.source)}"
        )


def _figure(value: float | None) -> float | str:
    return "" if value is None else value


def _solution_cells(solution: Solution) -> str:
    """The cells from `solution` to `deterministic`. Parameters are JSON, whose brace starts no formula."""
    deterministic = "" if solution.deterministic is None else str(solution.deterministic).lower()
    texts = (solution.family, str(solution.version), dumps(dict(solution.parameters)), solution.build or "")
    cells = (*texts, solution.id, str(solution.workspace_bytes), deterministic)
    return ",".join(map(cell, cells))


def cell(text: str) -> str:
    """A text as a cell: no formula, no line break, quoted where necessary."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    if text[:1] in FORMULAS:
        text = f"'{text}"
    if "," in text or '"' in text:
        text = '"' + text.replace('"', '""') + '"'
    return text
