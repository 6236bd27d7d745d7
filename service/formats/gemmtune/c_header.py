"""Rows into one C header, for programs that choose kernels with a dispatch of their own.

The header holds a constant table, sorted, and functions that find a problem's row in it (c_header_text.py):

    gemmtune_problem problem = gemmtune_packed(GEMMTUNE_TRANS_T, GEMMTUNE_TRANS_N, 14336, 16, 4096,
        GEMMTUNE_DTYPE_BF16, GEMMTUNE_DTYPE_BF16, GEMMTUNE_COMPUTE_FP32);
    const gemmtune_row *row = gemmtune_lookup(&problem);
    if (row != NULL) {
        const gemmtune_solution *solution = gemmtune_solution_of(row);  /* solution->solution_index ... */
    }

Each solution says its family and the build of its library, which the program must compare with the one that
it runs. A problem has one row. Without a target nothing is left out but problems that the struct has no field
for: those with zero points, groups or prepacked weights. With an export target each row has the best solution
that the target can name, for a program that calls one library, or launches only our kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from backends.environment import Environment
from backends.export_targets import EXPORT_TARGETS, targets_of
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core.override import (
    Keyed,
    OmittedError,
    UnnamedError,
    best_named,
    check_judgement,
)
from service.formats.core.row_text import Texts, beyond_tables, unwritten
from service.formats.gemmtune.c_header_text import (
    ATTRIBUTES,
    DECLARATIONS,
    FIELDS,
    FUNCTIONS,
    literal,
    remark,
)
from tuners.policy import MeasurementPolicy

#: Families whose solutions are an index into their library's own list.
_INDEXED = ("rocblas", "hipblaslt")
#: Most environments, and most policies, that the header's comment names; and rows per piece of text.
_NAMED, _LINES = 32, 512
_SHARED = "a problem has one row in the header, whatever policy and environment it was measured in"
_values = attrgetter(*FIELDS)
#: Placeholder member of an empty table: C has no empty arrays.
_NO_SOLUTION = '    {"", "", "{}", "", ' + ", ".join(["0"] * (6 + len(ATTRIBUTES))) + "}"
_NO_ROW = "    {{" + ", ".join(["0"] * len(FIELDS)) + "}, 0, 0, 0.0, 0.0}"


@dataclass(frozen=True)
class CHeader:
    """The registry's entry."""

    name: str = "c-header"
    description: str = "a C99 and C++ header with a sorted table and a lookup, for a dispatch of one's own"
    example: str = (
        "const gemmtune_row *row = gemmtune_lookup(&problem);\n"
        "const gemmtune_solution *solution = gemmtune_solution_of(row);\n"
    )
    media_type: str = "text/x-c"
    suffix: str = ".h"
    targets: tuple[str, ...] = tuple(f"{name}: {one.reader}" for name, one in EXPORT_TARGETS.items())
    key_formats: tuple[str, ...] = ()

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """Yields the header in pieces. With ties=default, a TIE or a LOSS gets a row with its baseline.
        Raises ExportRefused."""
        if options.validators:
            raise ExportRefused(f"{self.name} is for no one stack: leave out validators")
        known = [target.name for target in targets_of(options.device.vendor)]
        if options.target is not None and options.target not in known:
            raise ExportRefused(
                f"target {options.target!r} is no export target of {options.device.vendor} devices; known: "
                f"{', '.join(known)}"
            )
        return _Header(options, report).write(rows)


@dataclass
class _Header:
    """One header being written."""

    options: ExportOptions
    report: ExportReport
    _solutions: dict[str, tuple[int, str]] = field(default_factory=dict)
    _environments: dict[str, None] = field(default_factory=dict)
    _policies: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places: Texts[Environment] = Texts(lambda environment: str(environment.device_class))
        self._named: Texts[Environment] = Texts(_environment_text)
        self._policy: Texts[MeasurementPolicy] = Texts(lambda policy: policy.id)
        self._identities: Texts[Solution] = Texts(lambda solution: solution.id)

    def write(self, rows: Iterable[ExportRow]) -> Iterator[str]:
        """Yields every piece. The table is sorted, so the first piece comes after the last row was read."""
        keyed = Keyed(self.report, _SHARED)
        asked = self.options.target
        targets = () if asked is None else (EXPORT_TARGETS[asked],)
        for row in rows:
            try:
                written, (numbers, text) = best_named(row, targets, self._text, self.report)
            except OmittedError as reason:
                self.report.omit(str(reason), row.problem)
                continue
            keyed.put(numbers, written, text)
            self._environments.setdefault(self._named.of(row.environment))
            self._policies.setdefault(self._policy.of(row.policy))
        # A row's text begins with its problem's numbers, by which the rows are sorted.
        table = sorted(keyed.texts(), key=lambda text: [*map(int, text[: text.index("}")].split(","))])
        yield self._comment(len(table)) + DECLARATIONS
        yield f"#define GEMMTUNE_DEVICE {literal(str(self.options.device))}\n"
        yield f"#define GEMMTUNE_ROWS ((size_t){len(table)})\n\n"
        yield "static const gemmtune_solution gemmtune_solutions[] = {\n"
        yield from _listed([text for _, text in self._solutions.values()] or [_NO_SOLUTION])
        yield "};\n\nstatic const gemmtune_row gemmtune_rows[] = {\n"
        yield from _listed([f"    {{{{{text}" for text in table] or [_NO_ROW])
        yield "};\n\n" + FUNCTIONS + "#endif /* GEMMTUNE_TABLE_H */\n"

    def _text(self, row: ExportRow) -> tuple[str, str]:
        """The numbers of the row's problem, and its member of the table. Raises OmittedError."""
        place = self._places.of(row.environment)
        if place != str(self.options.device):
            raise OmittedError(f"measured on {place}: the header is for {self.options.device}")
        stands = row.judgement in ("TIE", "LOSS")
        if not (stands and self.options.ties == "default"):
            check_judgement(row)
        fault = unwritten(row, self.options.workspace_limit)
        if fault is not None:
            raise UnnamedError(fault)
        lacking = beyond_tables(row.problem)
        if lacking is not None:
            raise OmittedError(f"the header has no field for {lacking}: export json or jsonl for such rows")
        chosen = row.baseline if stands else row.solution
        if chosen is None:
            raise OmittedError(f"{row.judgement}: nothing is said of its baseline but a name")
        target = None if self.options.target is None else EXPORT_TARGETS[self.options.target]
        if target is not None and not stands and not target.names(chosen):
            raise UnnamedError(f"solutions of family {chosen.family} are none of target {target.name}")
        index = self._index(chosen)
        seconds = row.baseline_seconds if stands else row.seconds
        numbers = ", ".join(map(str, problem_numbers(row.problem)))
        text = f"{numbers}}}, {index}, {int(stands)}, {seconds or 0.0!r}, {row.baseline_seconds or 0.0!r}}}"
        return numbers, text

    def _index(self, solution: Solution) -> int:
        """The solution's index in its table. Raises OmittedError for a solution that C cannot hold."""
        identity = self._identities.of(solution)
        # Workspace and determinism are not part of a solution's id, and differ between problems.
        identity += f" {solution.workspace_bytes} {solution.deterministic}"
        known = self._solutions.get(identity)
        if known is None:
            known = self._solutions[identity] = (len(self._solutions), _solution_text(solution))
        return known[0]

    def _comment(self, count: int) -> str:
        policies, environments = _first(self._policies), _first(self._environments)
        lines = [
            f"The fastest known ways to run {count} GEMMs on {self.options.device}, as tuned by gemmtune.",
            "",
            f"Rows {count}, sorted by problem, field by field in the order of gemmtune_problem.",
            *(f"Policy {policy}" for policy in policies),
            *(f"Measured on {environment}" for environment in environments),
            "A TIE or a LOSS against the default "
            + ("has baseline_stands = 1." if self.options.ties == "default" else "has no row."),
        ]
        text = "".join(f" * {remark(line)}".rstrip() + "\n" for line in lines)
        return f"/*\n{text} */\n#ifndef GEMMTUNE_TABLE_H\n#define GEMMTUNE_TABLE_H\n\n"


def problem_numbers(problem: GemmProblem) -> list[int]:
    """A problem as the numbers of its C struct, in order."""
    return [
        int(value) if numbers is None else numbers[value]
        for value, numbers in zip(_values(problem), FIELDS.values(), strict=True)
    ]


def _solution_text(solution: Solution) -> str:
    """One member of the table of solutions. Raises OmittedError."""
    values = solution.parameters
    try:
        texts = [
            literal(text)
            for text in (
                solution.id,
                solution.family,
                json.dumps(dict(values), separators=(",", ":")),
                solution.build or "",
            )
        ]
    except ValueError:
        raise OmittedError("its parameters or its build make no C string (too long, or a NUL)") from None
    index = values.get("solution_index") if solution.family in _INDEXED else None
    attributes = [values.get(name) for name in ATTRIBUTES.values()] if solution.family == "cublaslt" else []
    has_index = _fits(index)
    has_cublaslt = bool(attributes) and all(_fits(value) for value in attributes)
    if not _fits(solution.version) or solution.workspace_bytes >= 2**63:
        raise OmittedError("the version or the workspace of its solution fits no C integer")
    deterministic = -1 if solution.deterministic is None else int(solution.deterministic)
    numbers = [
        solution.workspace_bytes,
        index if has_index else 0,
        solution.version,
        deterministic,
        int(has_index),
        int(has_cublaslt),
        *(attributes if has_cublaslt else [0] * len(ATTRIBUTES)),
    ]
    return "    {" + ", ".join((*texts, *map(str, numbers))) + "}"


def _fits(value: object) -> bool:
    """Whether it is a 32-bit integer above -2**31, which has no literal in C and which no library uses."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**31) < value < 2**31


def _environment_text(environment: Environment) -> str:
    libraries = ", ".join(f"{name} {build}" for name, build in sorted(environment.libraries.items()))
    return f"{environment.product}, driver {environment.driver}, runtime {environment.runtime}: {libraries}"


def _first(named: Iterable[str]) -> list[str]:
    """The first _NAMED texts, and how many more there are."""
    listed = list(named)
    rest = len(listed) - _NAMED
    return listed if rest <= 0 else [*listed[:_NAMED], f"(and {rest} more)"]


def _listed(members: list[str]) -> Iterator[str]:
    """The members of an initialiser, in pieces of _LINES."""
    for at in range(0, len(members), _LINES):
        end = "\n" if at + _LINES >= len(members) else ",\n"
        yield ",\n".join(members[at : at + _LINES]) + end
