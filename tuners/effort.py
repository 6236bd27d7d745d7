"""How much a tuning spends on a problem, by name: sets of the budget's and the decision rule's options.

One table gives the values, their checks and the texts of the command line, the HTTP interface and the
documentation. An option that is given by itself replaces the effort's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backends.errors import InvalidProblem
from tuners.budget import Budget
from tuners.decide import DecisionRule


@dataclass(frozen=True)
class Effort:
    """`seconds`: of measuring a problem; None: the caller's default. `candidates`: screened at most; None:
    any number. `max_rounds`: of a final. `confidence`: of a verdict. `bounded`: a final ends with the budget,
    decided or not. `purpose` says what it is for."""

    name: str
    purpose: str
    seconds: float | None
    candidates: int | None
    max_rounds: int
    confidence: float
    bounded: bool = False

    def __post_init__(self) -> None:
        self.budget(DEFAULT_SECONDS)
        self.rule(DecisionRule.margin)

    def budget(
        self,
        default_seconds: float,
        seconds: float | None = None,
        candidates: int | None = None,
        stop_at_roofline: float | None = None,
        stop_at_regret: float | None = None,
    ) -> Budget:
        """The budget; options that are not None replace the effort's, and `default_seconds` stands for
        seconds that neither gives. Raises InvalidProblem."""
        own = default_seconds if self.seconds is None else self.seconds
        try:
            return Budget(
                own if seconds is None else seconds,
                self.candidates if candidates is None else candidates,
                stop_at_roofline=stop_at_roofline,
                stop_at_regret=stop_at_regret,
                bounded=self.bounded,
            )
        except ValueError as error:
            raise InvalidProblem(str(error)) from error

    def rule(self, margin: float) -> DecisionRule:
        """The decision rule with this margin. Raises InvalidProblem."""
        try:
            return DecisionRule(margin=margin, confidence=self.confidence, max_rounds=self.max_rounds)
        except ValueError as error:
            raise InvalidProblem(str(error)) from error


#: Seconds of measuring a problem where neither a request nor a setting gives any.
DEFAULT_SECONDS = Budget.seconds

_EFFORTS = (
    Effort("quick", "a first look", 1.0, None, 24, 0.99, bounded=True),
    Effort("normal", "the default", None, None, DecisionRule.max_rounds, DecisionRule.confidence),
    Effort("thorough", "what is kept for long", 30.0, None, 200, 0.999),
)

#: Every effort by name, the cheapest first.
EFFORTS: Mapping[str, Effort] = {effort.name: effort for effort in _EFFORTS}
NORMAL = EFFORTS["normal"]


def effort_of(name: str | None) -> Effort:
    """The effort of a name; None: normal. Raises InvalidProblem, which lists the names."""
    if name is None:
        return NORMAL
    if name not in EFFORTS:
        raise InvalidProblem(f"effort {name!r} is unknown; known: {', '.join(EFFORTS)}", "effort")
    return EFFORTS[name]


def effort_help() -> str:
    """One line that describes every effort, for a command's help."""
    return "; ".join(f"{one.name}: {_seconds(one)}, {one.purpose}" for one in _EFFORTS)


def effort_table() -> str:
    """The efforts as a Markdown table, as docs/concepts.md has it."""
    lines = [
        "| effort | measuring a problem | candidates | rounds of a final | open final | confidence | for |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one.name}` | {_seconds(one)} | {one.candidates or 'any number'} | at most {one.max_rounds} | "
        f"{'ends with the budget' if one.bounded else 'goes on'} | {one.confidence:.1%} | {one.purpose} |"
        for one in _EFFORTS
    ]
    return "\n".join(lines)


def _seconds(one: Effort) -> str:
    return f"{one.seconds:g} s" if one.seconds is not None else f"{DEFAULT_SECONDS:g} s unless set"
