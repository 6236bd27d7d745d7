"""The report of a self-test: sections of checks, as plain JSON values with a format version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from backends.environment import Environment

#: Version of the report's format. A change of a field's name or meaning raises it; a new field does not.
FORMAT = 1


class CheckStatus(StrEnum):
    """pass: tested and right. fail: tested and not right. absent: not tested; the detail says why."""

    PASS = "pass"
    FAIL = "fail"
    ABSENT = "absent"


@dataclass(frozen=True)
class Check:
    """One tested thing. `detail`: what was found, or the error. `facts`: plain JSON values to repeat it with
    (family, parameters, problem) and to group it by (outcome)."""

    name: str
    status: CheckStatus
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"name": self.name, "status": self.status.value, "detail": self.detail, **self.facts}


@dataclass
class Section:
    """One part's checks and figures, filled while the part runs. `not_covered`: what the part would have
    tested with more time. `complete`: whether the part ended by itself."""

    name: str
    title: str
    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)
    seconds: float = 0.0
    complete: bool = False
    #: Called after every check; shows progress.
    watch: Callable[[Section], None] | None = field(default=None, repr=False)

    def add(self, check: Check) -> None:
        """Adds a check."""
        self.checks.append(check)
        if self.watch is not None:
            self.watch(self)

    def passed(self, name: str, detail: str = "", **facts: Any) -> None:
        """Adds a check that passed."""
        self.add(Check(name, CheckStatus.PASS, detail, facts))

    def failed(self, name: str, detail: str, **facts: Any) -> None:
        """Adds a check that failed."""
        self.add(Check(name, CheckStatus.FAIL, detail, facts))

    def absent(self, name: str, detail: str, **facts: Any) -> None:
        """Adds something that was not tested, and why."""
        self.add(Check(name, CheckStatus.ABSENT, detail, facts))

    @property
    def status(self) -> CheckStatus:
        """fail if a check failed, else pass if one passed, else absent."""
        return worst([check.status for check in self.checks])

    @property
    def counts(self) -> Mapping[str, int]:
        """Status -> number of checks, for every status."""
        found = Counter(check.status.value for check in self.checks)
        return {status.value: found[status.value] for status in CheckStatus}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name,
            "title": self.title,
            "status": self.status.value,
            "complete": self.complete,
            "seconds": round(self.seconds, 3),
            "counts": dict(self.counts),
            "figures": self.figures,
            "checks": [check.to_dict() for check in self.checks],
            "not_covered": self.not_covered,
        }


def worst(statuses: list[CheckStatus]) -> CheckStatus:
    """fail if there is one, else pass if there is one, else absent."""
    for status in (CheckStatus.FAIL, CheckStatus.PASS):
        if status in statuses:
            return status
    return CheckStatus.ABSENT


@dataclass
class Report:
    """A self-test of one device. `selector` is what the user named; `environment` is None where no device
    matched. `interrupted`: the user stopped it. `notes`: what the backends' probes said."""

    program: Mapping[str, str | None]
    selector: str
    budget_seconds: float
    environment: Environment | None = None
    index: int | None = None
    notes: tuple[str, ...] = ()
    sections: list[Section] = field(default_factory=list)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    interrupted: bool = False
    complete: bool = False

    @property
    def status(self) -> CheckStatus:
        """Of all sections; absent without a device, whatever else was found."""
        if self.environment is None:
            return CheckStatus.ABSENT
        return worst([section.status for section in self.sections])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        here = self.environment
        return {
            "gemmtune": "selftest",
            "version": FORMAT,
            "status": self.status.value,
            "complete": self.complete,
            "interrupted": self.interrupted,
            "program": dict(self.program),
            "started_at": self.started_at,
            "seconds": round(self.seconds, 3),
            "budget_seconds": self.budget_seconds,
            "selector": self.selector,
            "device_class": None if here is None else str(here.device_class),
            "index": self.index,
            "environment": None if here is None else here.to_dict(),
            "notes": list(self.notes),
            "sections": [section.to_dict() for section in self.sections],
        }
