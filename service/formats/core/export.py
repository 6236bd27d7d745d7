"""What every output format shares: the rows it writes, what was asked of it, and the report it fills.

A writer is handed plain rows one by one and hands back text piece by piece: its memory is bounded by the
distinct keys of the file, not by its text. What the target cannot use is left out, counted, with its
reason; only an export that makes no sense as asked is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from backends.environment import DeviceClass, Environment
from backends.errors import GemmtuneError
from backends.problem import GemmProblem
from backends.solution import Solution
from tuners.policy import MeasurementPolicy

#: What an override file does with a TIE or a LOSS: nothing, or a row that names the stack's default.
TIES = ("omit", "default")
#: Provenances of a row.
MEASURED, IMPORTED = "measured", "imported"
#: Problems named for each reason of a report, and reasons told apart.
MAX_EXAMPLES = 3
MAX_REASONS = 100
_OTHERS = "other reasons"

Speedup = tuple[float | None, float, float | None]


class ExportRefused(GemmtuneError, ValueError):
    """The export as asked for cannot be written: the message says what is wrong and what to give."""


@dataclass(frozen=True, slots=True)
class ExportRow:
    """The best known way to run one problem on one device class under one policy.

    `keys`: the tool's own texts for the problem, kept when it was imported from one of the writer's
    `key_formats`. `count`: calls, 0 is not known. `solution` is the winner (with a TIE or a LOSS the baseline
    itself); `baseline` is None where an imported file says at most its name. `judgement`: WIN, TIE, LOSS, or
    "" for an imported row. `speedup`: low, mid, high of baseline time over winner time; an open end is None.
    `decided_at`: ISO 8601. `source` says where a row came from,
    such as an imported file's name.
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


@dataclass(frozen=True)
class ExportOptions:
    """What was asked for.

    `target`: the stack that will load the file, in one of the writer's `targets` forms. `validators`: values
    of the file's header, which win over what the environments say. `environments`: those the rows were
    measured in, the newest first; without them the first row's is taken. `workspace_limit`: bytes that a
    solution may use in the target, where the target's own default is not to be assumed.
    """

    device: DeviceClass
    target: str | None = None
    ties: str = "omit"
    validators: Mapping[str, str] = field(default_factory=dict)
    environments: tuple[Environment, ...] = ()
    workspace_limit: int | None = None

    def __post_init__(self) -> None:
        if self.ties not in TIES:
            raise ExportRefused(f"ties {self.ties!r} is unknown; known: {', '.join(TIES)}")
        if self.workspace_limit is not None and self.workspace_limit < 0:
            raise ExportRefused(f"workspace_limit must be bytes from 0, not {self.workspace_limit}")


@dataclass
class ExportReport:
    """Filled while an export is written, and whole once its last piece is: rows `written`, and rows
    `omitted`, counted by reason, with the slugs of a few problems as `examples` (where another row stands for
    one in the file, that row's problem as well)."""

    written: int = 0
    omitted: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def omit(self, reason: str, problem: GemmProblem, kept: GemmProblem | None = None) -> None:
        """Counts a row that was left out, for `kept` where the target tells the two not apart."""
        if reason not in self.omitted and len(self.omitted) >= MAX_REASONS:
            reason = _OTHERS
        self.omitted[reason] = self.omitted.get(reason, 0) + 1
        named = self.examples.setdefault(reason, [])
        if len(named) < MAX_EXAMPLES:
            named.append(problem.slug if kept is None else f"{problem.slug} ({kept.slug} stands for it)")

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
        """Of the text, without a character set (it is UTF-8)."""

    @property
    def suffix(self) -> str:
        """Of a file's name, with its dot."""

    @property
    def example(self) -> str:
        """A short text of this form."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The forms of target names it accepts, each described; empty: it needs none."""

    @property
    def key_formats(self) -> tuple[str, ...]:
        """The input formats whose kept keys are this tool's own (see ExportRow.keys)."""

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """Pieces of the text. Options are checked at the call, before any piece: raises ExportRefused."""
