"""What output formats share: the rows that are written, the options of an export, and its report.

A writer takes plain rows one by one and yields text piece by piece: its memory is bounded by the distinct
keys of the file, not by the length of its text. A row that the target cannot use is left out and counted
with its reason; only an export whose options make no sense is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from statistics import median
from typing import Any, Protocol, runtime_checkable

from backends.environment import DeviceClass, Environment
from backends.errors import GemmtuneError
from backends.export_targets import BUNDLE
from backends.problem import GemmProblem
from backends.solution import Solution
from tuners.policy import MeasurementPolicy

#: What an override file has for a TIE or a LOSS: nothing, or a row that names the target's own default.
TIES = ("omit", "default")
#: Provenances of a row.
MEASURED, IMPORTED = "measured", "imported"
#: Most example problems per reason of a report, and most distinct reasons.
MAX_EXAMPLES = 3
MAX_REASONS = 100
_OTHERS = "other reasons"

Speedup = tuple[float | None, float, float | None]


class ExportRefused(GemmtuneError, ValueError):
    """The export as asked for cannot be written: the message says what is wrong and what to give."""


@dataclass(frozen=True, slots=True)
class TargetRow:
    """The best candidate of an export target (backends/export_targets.py) for a row's problem, and its
    verdict; the fields are those of ExportRow. `proven` is false for a candidate that was verified on one
    seed only: its session ended before targets were judged, and its final decided later."""

    solution: Solution
    judgement: str
    seconds: float
    baseline_seconds: float
    speedup: Speedup
    rounds: int
    session: str
    decided_at: str
    proven: bool
    stale: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredCandidate:
    """A candidate that the session of a row verified and timed. `screened`: the median of its screening.
    `proven`: it was verified on as many seeds as a winner. `raced`: round -> seconds, where it stayed in the
    session's latest final, whose rounds timed its candidates in turn. One of the two is there."""

    solution: Solution
    screened: float | None
    proven: bool
    raced: Mapping[int, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The median of its latest samples."""
        return median(self.raced.values()) if self.raced else self.screened or inf


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """A linear layer that is a row's problem: how often a forward pass of the model calls it on each of
    `tensor_parallel` devices."""

    model: str
    tensor_parallel: int
    layer: str
    calls: int


@dataclass(frozen=True, slots=True)
class ExportRow:
    """The best known way to run one problem on one device class under one policy.

    `keys`: the tool's own texts for the problem, kept when it was imported from one of the writer's
    `key_formats`. `count`: calls, 0 if not known. `solution` is the winner (for a TIE or a LOSS the baseline
    itself); `baseline` is None if an imported file gives at most its name. `judgement`: WIN, TIE, LOSS, or ""
    for an imported row. `speedup`: low, mid, high of baseline time over winner time; an open end is None.
    `decided_at`: ISO 8601. `source`: where the row came from, such as the name of an imported file.
    `targets`: export target -> its best candidate. `targets_judged`: the session judged targets, so that one
    that is missing is known to have no candidate. `proven`: the solution was verified on five seeds.
    `models`: of a pre-tuned table's row, the layers that are its problem. `candidates`: those of the families
    that the writer compares (ComparesCandidates). `rests_on`: what shows a judgement that a writer derived
    itself, from several rows; "" for a session's own. `stale`: why what was measured may no longer hold, or
    "".
    """

    problem: GemmProblem
    keys: tuple[str, ...]
    count: int
    environment: Environment
    policy: MeasurementPolicy
    solution: Solution
    baseline: Solution | None
    baseline_name: str
    judgement: str
    seconds: float | None
    baseline_seconds: float | None
    speedup: Speedup | None
    rounds: int
    session: str | None
    decided_at: str | None
    provenance: str = MEASURED
    source: str = ""
    targets: Mapping[str, TargetRow] = field(default_factory=dict)
    targets_judged: bool = False
    proven: bool = True
    models: tuple[ModelLayer, ...] = ()
    candidates: tuple[MeasuredCandidate, ...] = ()
    rests_on: str = ""
    stale: str = ""

    def of_target(self, name: str) -> ExportRow | None:
        """The row with a target's best candidate as its solution; None if the target has none."""
        found = self.targets.get(name)
        if found is None:
            return None
        return replace(
            self, solution=found.solution, judgement=found.judgement, seconds=found.seconds,
            baseline_seconds=found.baseline_seconds, speedup=found.speedup, rounds=found.rounds,
            session=found.session, decided_at=found.decided_at, proven=found.proven, stale=found.stale,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gain:
    """What one row of a file is worth: its `ratio` (baseline time over time, 1 where the default stays), and
    that of the best kernel of our own for its problem (`bundle`). None for a row that no session judged.
    `workspace_bytes` is what its solution needs; `rests_on` and `stale` are ExportRow's."""

    problem: GemmProblem
    ratio: float | None
    bundle: float
    proven: bool
    workspace_bytes: int
    rests_on: str = ""
    stale: str = ""

    @classmethod
    def of(cls, row: ExportRow) -> Gain:
        """The row's gain."""
        if row.provenance != MEASURED:
            return cls(row.problem, None, 1.0, True, row.solution.workspace_bytes)
        ratio = _ratio(row.judgement, row.speedup)
        workspace = row.solution.workspace_bytes
        bundle = _bundle_ratio(row)
        return cls(row.problem, ratio, bundle, row.proven, workspace, row.rests_on, row.stale)


def _ratio(judgement: str, speedup: Speedup | None) -> float:
    return speedup[1] if judgement == "WIN" and speedup is not None else 1.0


def _bundle_ratio(row: ExportRow) -> float:
    best = row.targets.get(BUNDLE.name)
    if best is not None:
        return _ratio(best.judgement, best.speedup)
    return _ratio(row.judgement, row.speedup) if BUNDLE.names(row.solution) else 1.0


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export.

    `target`: the software that will load the file, in one of the writer's `targets` forms. `validators`:
    values of the file's header, which take precedence over those of the environments. `environments`: those
    that the rows were measured in, newest first; if there are none, the first row's is used.
    `workspace_limit`: bytes of workspace that a solution may use, in place of the target's own limit.
    `top_k`: experts of a token, for rows of experts that do not know their tokens.
    """

    device: DeviceClass
    target: str | None = None
    ties: str = "omit"
    validators: Mapping[str, str] = field(default_factory=dict)
    environments: tuple[Environment, ...] = ()
    workspace_limit: int | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.top_k is not None and not 1 <= self.top_k < 2**31:
            raise ExportRefused(f"top_k must be experts of a token, from 1, not {self.top_k}")
        if self.ties not in TIES:
            raise ExportRefused(f"ties {self.ties!r} is unknown; known: {', '.join(TIES)}")
        if self.workspace_limit is not None and self.workspace_limit < 0:
            raise ExportRefused(f"workspace_limit must be bytes from 0, not {self.workspace_limit}")


@dataclass
class ExportReport:
    """Filled while an export is written, and complete after its last piece: the number of rows `written`,
    the rows `omitted` by reason, and the slugs of a few problems as `examples` (also of the problem whose row
    is written instead, if there is one).

    `tune_again` counts rows that are omitted because the file cannot name the winner and no session judged
    what it can name. `one_seed` counts written rows whose solution was verified on one seed only. `rests_on`
    has the slugs of written rows by what shows a judgement that the writer derived from several rows. `stale`
    counts written rows by what has changed since they were measured.
    """

    written: int = 0
    omitted: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    tune_again: int = 0
    one_seed: int = 0
    rests_on: dict[str, list[str]] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    #: Measured problems, and the sums of logarithms: of their best rows with a bundle alone and with both, of
    #: the written rows.
    _problems: int = 0
    _judged: int = 0
    _log_written: float = 0.0
    _log_bundle: float = 0.0

    def omit(self, reason: str, problem: GemmProblem, kept: GemmProblem | None = None) -> None:
        """Counts a row that is left out. `kept` is the problem whose row is written instead, if the target
        cannot distinguish the two."""
        if reason not in self.omitted and len(self.omitted) >= MAX_REASONS:
            reason = _OTHERS
        self.omitted[reason] = self.omitted.get(reason, 0) + 1
        named = self.examples.setdefault(reason, [])
        if len(named) < MAX_EXAMPLES:
            named.append(problem.slug if kept is None else f"{problem.slug} ({kept.slug} stands for it)")

    def measured(self, row: ExportRow) -> None:
        """Counts a measured row that the writer is given."""
        self._problems += 1
        self._log_bundle += log(_bundle_ratio(row))

    def wrote(self, gain: Gain) -> None:
        """Counts a row that is written."""
        self.written += 1
        self.one_seed += not gain.proven
        if gain.rests_on:
            self.rests_on.setdefault(gain.rests_on, []).append(gain.problem.slug)
        if gain.stale:
            reason = gain.stale if gain.stale in self.stale or len(self.stale) < MAX_REASONS else _OTHERS
            self.stale[reason] = self.stale.get(reason, 0) + 1
        if gain.ratio is not None:
            self._judged += 1
            self._log_written += log(gain.ratio)
            # The file and a bundle together: of each problem the faster of the two.
            self._log_bundle += log(max(gain.ratio, gain.bundle)) - log(gain.bundle)

    def gain(self) -> dict[str, Any] | None:
        """Geometric means of baseline time over time, from the stored verdicts: of the written rows, of all
        measured problems (1 where the default stays), and of these with a bundle of our own kernels beside
        the file. None if no measured row is written."""
        if not self._judged:
            return None
        problems = max(self._problems, self._judged)
        return {
            "rows": self._judged,
            "geometric_mean": exp(self._log_written / self._judged),
            "problems": problems,
            "all_problems": exp(self._log_written / problems),
            "with_bundle": exp(self._log_bundle / problems),
        }

    def figures(self) -> dict[str, Any]:
        """to_dict(), and what the file is worth: {"gain", "tune_again", "one_seed", "rests_on", "stale"}."""
        return {
            **self.to_dict(),
            "gain": self.gain(),
            "tune_again": self.tune_again,
            "one_seed": self.one_seed,
            "rests_on": {text: list(slugs) for text, slugs in self.rests_on.items()},
            "stale": dict(self.stale),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: {"written", "omitted": {reason: {"count", "examples"}}}."""
        return {
            "written": self.written,
            "omitted": {
                reason: {"count": count, "examples": list(self.examples.get(reason, ()))}
                for reason, count in self.omitted.items()
            },
        }


class Writer(Protocol):
    """One output format."""

    @property
    def name(self) -> str:
        """What a user types to choose it."""

    @property
    def description(self) -> str:
        """One line: which tool loads it, and how."""

    @property
    def media_type(self) -> str:
        """The text's media type, without a character set (it is UTF-8)."""

    @property
    def suffix(self) -> str:
        """The suffix of a file's name, with its dot."""

    @property
    def example(self) -> str:
        """A short example of the text."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The accepted forms of target names, each with a description; empty: the format takes no target."""

    @property
    def key_formats(self) -> tuple[str, ...]:
        """The input formats whose keys are this tool's own (see ExportRow.keys)."""

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """Yields the text in pieces. Options are checked at the call, before the first piece. Raises
        ExportRefused."""


@runtime_checkable
class ComparesCandidates(Protocol):
    """A writer that chooses among all candidates of some families, not only the best of each row. It takes
    top_k, which tells the tokens of rows of experts."""

    @property
    def candidate_families(self) -> tuple[str, ...]:
        """The families whose candidates its rows must have."""
