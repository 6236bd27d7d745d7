"""Writes rows into the results file that one torch build loads.

A key that was kept at import is written unchanged if the target may look it up: TunableOp records the leading
dimension of a single column unchanged, so the key built from the problem may be another one. Of rows that
share a key, the first wins, as in torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from backends.environment import Environment
from backends.errors import InvalidProblem
from backends.problem import GemmProblem
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow, Gain
from service.formats.core.override import OmittedError, UnnamedError, best_named, with_environments
from service.formats.tunableop.key import Grammar, NoKeyError, build_key, fits
from service.formats.tunableop.signature import BadLineError, parse_key
from service.formats.tunableop.solution import BUILD_OF, DEFAULT, solution_name
from service.formats.tunableop.target import Target, build_text, contradicts, parse_target, settle

#: Lines per piece of text, and how many environments' checks and solutions' names are cached.
_LINES, _ENVIRONMENTS, _NAMES = 256, 256, 4096
_SAME_KEY = "a row before it has the same key, and torch uses the first (the best one is to come first)"
_CALLERS = {"WIN": False, "": False, "TIE": True, "LOSS": True}


@dataclass
class Sheet:
    """One file being written."""

    target: Target
    validators: Mapping[str, str]
    ties: str
    workspace_limit: int | None
    _grammar: Grammar = field(init=False)
    _written: dict[str, GemmProblem] = field(default_factory=dict)
    _judged: dict[int, tuple[Environment, str | None]] = field(default_factory=dict)
    _names: dict[tuple[str, str | None], str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._grammar = self.target.grammar

    @classmethod
    def open(cls, rows: Iterable[ExportRow], options: ExportOptions) -> tuple[Sheet, Iterable[ExportRow]]:
        """The sheet for the options, and all the rows again. Raises ExportRefused."""
        target = parse_target(options.target)
        rows, options = with_environments(rows, options)
        try:
            target, validators = settle(target, options, options.environments)
        except ExportRefused as error:
            if options.device.vendor == target.vendor:
                raise
            raise ExportRefused(
                f"{target.text} reads results of {target.vendor} devices, and these are of {options.device} "
                f"(json and csv take them); {error}"
            ) from None
        return cls(target, validators, options.ties, options.workspace_limit), rows

    def write(self, rows: Iterable[ExportRow], report: ExportReport) -> Iterator[str]:
        """Yields the text in pieces; the header even if no row is written."""
        piece = [f"Validator,{key},{value}\n" for key, value in self.validators.items()]
        for row in rows:
            try:
                written, lines = best_named(row, self.target.export_targets, self._lines, report)
                piece += lines
                report.wrote(Gain.of(written))
            except OmittedError as reason:
                report.omit(str(reason), row.problem, reason.kept)
            except NoKeyError as reason:
                report.omit(str(reason), row.problem)
            if len(piece) >= _LINES:
                yield "".join(piece)
                piece.clear()
        yield "".join(piece)

    def _lines(self, row: ExportRow) -> list[str]:
        self._check_environment(row.environment)
        default = _CALLERS.get(row.judgement)
        if default is None:
            raise OmittedError(f"judgement {row.judgement!r} is none that an override could follow")
        if default and self.ties == "omit":
            raise OmittedError(f"{row.judgement}: the default stays (ties=default writes it out)")
        keys = self._keys(row)
        name = DEFAULT if default else self._solution(row, keys[0])
        seconds = row.baseline_seconds if default else row.seconds
        fresh = [key for key in keys if key not in self._written]
        if not fresh:
            raise OmittedError(_SAME_KEY, self._written[keys[0]])
        self._written.update(dict.fromkeys(fresh, row.problem))
        time = "" if seconds is None else f",{seconds * 1e3:.6g}"
        return [f"{key},{name}{time}\n" for key in fresh]

    # ---- where it was measured -------------------------------------------------------------------

    def _check_environment(self, environment: Environment) -> None:
        known = self._judged.get(id(environment))
        if known is None or known[0] is not environment:
            if len(self._judged) >= _ENVIRONMENTS:
                self._judged.clear()
            known = self._judged[id(environment)] = (environment, self._elsewhere(environment))
        if known[1] is not None:
            raise OmittedError(known[1])

    def _elsewhere(self, environment: Environment) -> str | None:
        """Why results measured in this environment do not hold for the target; None if they do."""
        where = f"measured on {environment.vendor}:{environment.arch}"
        if environment.vendor not in ("cuda", "hip"):
            return f"{where}: TunableOp runs on GPUs"
        if environment.vendor != self.target.vendor:
            return f"{where}: the file is for {self.target.text}"
        for key, value in self.validators.items():
            said = None if key == "PT_VERSION" else contradicts(environment, key, value)
            if said is not None:
                return f"measured under {key} {said}: the file is for {value}"
        return None

    # ---- its key ---------------------------------------------------------------------------------

    def _keys(self, row: ExportRow) -> list[str]:
        """The kept keys that the target may look up, else the one built from the problem."""
        if not row.keys:
            return [build_key(row.problem, self._grammar)]
        # A kept key is mostly equal to the built one, and comparing is far cheaper than parsing it.
        try:
            built = build_key(row.problem, self._grammar)
        except NoKeyError:
            built = None
        kept = {",".join(text.split(",", 2)[:2]): None for text in row.keys}
        fitting = [key for key in kept if key == built or self._fits(key, row)]
        return fitting or [build_key(row.problem, self._grammar)]

    def _fits(self, key: str, row: ExportRow) -> bool:
        try:
            return fits(key, self._grammar) and parse_key(*key.split(",")) == row.problem
        except (BadLineError, InvalidProblem, TypeError):
            return False

    # ---- its solution ----------------------------------------------------------------------------

    def _solution(self, row: ExportRow, key: str) -> str:
        solution, target = row.solution, self.target
        family = solution.family
        if family not in target.families:
            known = ", ".join(target.families) or "none; it fails at an unknown one, so Default alone is safe"
            raise UnnamedError(f"solutions of family {family} have no name in {target.text}; known: {known}")
        operator = key.partition("TunableOp_")[0]
        if family == "rocblas" and operator in ("GemmAndBias", "ScaledGemm"):
            raise UnnamedError(f"{operator}TunableOp has no rocBLAS solutions")
        if family == "hipblaslt" and row.problem.dtype_a.startswith("complex"):
            raise UnnamedError("TunableOp has no hipBLASLt solutions of complex GEMMs")
        self._check_build(family, solution.build)
        self._check_workspace(row)
        layout = key.partition(",")[0][-2:] if target.named_by_layout else None
        named = (solution.id, layout)
        if named not in self._names:
            if len(self._names) >= _NAMES:
                self._names.clear()
            self._names[named] = solution_name(solution, layout)
        name = self._names[named]
        if name is None:
            raise UnnamedError(f"a {family} solution without the parameters that TunableOp names it by")
        return name

    def _check_build(self, family: str, build: str | None) -> None:
        validator = BUILD_OF[family]
        wanted = self.validators[validator]
        if build is None:
            raise UnnamedError(f"the {family} build of its solution is not known: the file is for {wanted}")
        if build_text(family, build) != wanted:
            raise UnnamedError(f"its solution is of {family} {build}: the file is for {wanted}")

    def _check_workspace(self, row: ExportRow) -> None:
        limit = self.workspace_limit
        if limit is None:
            limit = self.target.workspace(row.environment.arch)
        if limit is not None and row.solution.workspace_bytes > limit:
            raise UnnamedError(
                f"needs more workspace than the {limit} bytes that {self.target.text} gives; raise "
                "CUBLASLT_WORKSPACE_SIZE (KiB) there and name the new limit here"
            )
