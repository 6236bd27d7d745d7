"""What writers of override files share: which rows are safe for the target, and which of several rows with
one key is written.

An override file is loaded by a library or a framework that checks little or nothing of it. So the value of
each validator (a library's build, the arch, the number of compute units) is fixed before the first row: from
the request, else from the environments that the rows were measured in. A row that was measured under another
value is left out, and so is a row whose verdict is a TIE or a LOSS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from backends.environment import Environment
from backends.export_targets import ExportTarget
from backends.problem import GemmProblem
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow, Gain

#: Returns the text of a validator in an environment; None if the environment does not say it.
Says = Callable[[Environment], str | None]

_T = TypeVar("_T")

#: Environments whose check is cached.
_REMEMBERED = 256


def with_environments(
    rows: Iterable[ExportRow], options: ExportOptions
) -> tuple[Iterable[ExportRow], ExportOptions]:
    """All the rows again, and the options, with the first row's environment if they name none."""
    if options.environments:
        return rows, options
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return rows, options
    return chain((first,), rows), replace(options, environments=(first.environment,))


class OmittedError(Exception):
    """The row is left out. The message is the reason, and is the same for all such rows, which are counted by
    it. `kept` is the problem whose row is written instead, if there is one."""

    def __init__(self, reason: str, kept: GemmProblem | None = None) -> None:
        super().__init__(reason)
        self.kept = kept


class UnnamedError(OmittedError):
    """The row is left out because the target cannot name its solution, or gives it too little workspace:
    another solution of the same problem might do."""


def best_named(
    row: ExportRow,
    targets: Iterable[ExportTarget],
    write: Callable[[ExportRow], _T],
    report: ExportReport,
) -> tuple[ExportRow, _T]:
    """The row that is written and what `write` makes of it: the winner's, else that of the fastest candidate
    that a session judged for one of the export targets. Raises OmittedError, also for a verdict against a
    baseline that the targets' programs do not run: its gain is none of theirs."""
    targets = tuple(targets)
    baseline = row.baseline
    if row.judgement and baseline and targets and not any(one.replaces(baseline.family) for one in targets):
        raise OmittedError(f"judged against {row.baseline_name}, which the file's programs do not run")
    try:
        return row, write(row)
    except UnnamedError as winner:
        judged = [found for target in targets if (found := row.of_target(target.name)) is not None]
        if not judged:
            report.tune_again += row.judgement == "WIN" and not row.targets_judged
            raise
        reason: OmittedError = winner
        for candidate in sorted(judged, key=_by_gain):
            try:
                return candidate, write(candidate)
            except OmittedError as error:
                reason = error if reason is winner else reason
        raise OmittedError(f"its winner has no name there; of the best that has one: {reason}") from None


def _by_gain(row: ExportRow) -> tuple[bool, float]:
    return row.judgement != "WIN", -row.speedup[1] if row.speedup else 0.0


def families_of(targets: Iterable[ExportTarget]) -> tuple[str, ...]:
    """The families that the targets can name, each once."""
    return tuple(dict.fromkeys(family for target in targets for family in target.families))


def library(name: str) -> Says:
    """The build of library `name`."""
    return lambda environment: environment.libraries.get(name)


def arch(environment: Environment) -> str | None:
    """The arch without its features: gfx942, sm_90."""
    return environment.arch.partition(":")[0] or None


def units(environment: Environment) -> str | None:
    """The number of compute units."""
    return str(environment.units)


@dataclass
class Validators:
    """The values under which the rows of one file must have been measured."""

    vendor: str
    values: Mapping[str, str]
    says: Mapping[str, Says]
    _judged: dict[int, tuple[Environment, str | None]] = field(default_factory=dict)

    @classmethod
    def settle(cls, reader: str, vendor: str, says: Mapping[str, Says], options: ExportOptions) -> Validators:
        """Takes each value from the request, else from the newest environment that says it, else from the
        device class. `reader` is the name in messages of the software that loads the file. Raises
        ExportRefused for an unknown validator, another vendor's device, an arch or a number of compute units
        that contradicts the device class, and a value that is missing or cannot stand in the file."""
        if options.device.vendor != vendor:
            raise ExportRefused(
                f"{reader} runs on {vendor} devices, and these rows are of {options.device} (json and csv "
                "take them)"
            )
        unknown = sorted(set(options.validators) - set(says))
        if unknown:
            raise ExportRefused(
                f"{', '.join(unknown)} is no validator of {reader}; its validators: {', '.join(says)}"
            )
        class_says = {"GCN_ARCH_NAME": options.device.arch, "CU_COUNT": str(options.device.units)}
        values: dict[str, str] = {}
        for key, source in says.items():
            told = (source(environment) for environment in options.environments)
            value = options.validators.get(key) or next((text for text in told if text), None)
            value = value or class_says.get(key)
            if value is None:
                raise ExportRefused(
                    f"{reader} needs {key}, and no environment of the rows says it: give it as a validator"
                )
            if "," in value or not value.isprintable() or value != value.strip():
                raise ExportRefused(f"{key} {value!r} cannot stand in the file")
            mine = class_says.get(key)
            if mine is not None and _plain(key, value) != mine:
                raise ExportRefused(
                    f"the target's {key} is {value}, but the rows are of {options.device}: what is fastest "
                    "there was not measured"
                )
            values[key] = value
        return cls(vendor, values, says)

    def check(self, environment: Environment) -> None:
        """Raises OmittedError if results measured in this environment do not hold for the target."""
        known = self._judged.get(id(environment))
        if known is None or known[0] is not environment:
            if len(self._judged) >= _REMEMBERED:
                self._judged.clear()
            known = self._judged[id(environment)] = (environment, self._elsewhere(environment))
        if known[1] is not None:
            raise OmittedError(known[1])

    def _elsewhere(self, environment: Environment) -> str | None:
        if environment.vendor != self.vendor:
            return f"measured on {environment.vendor}:{environment.arch}: the file is for {self.vendor}"
        for key, value in self.values.items():
            said = self.says[key](environment)
            if said is not None and _plain(key, said) != _plain(key, value):
                return f"measured under {key} {said}: the file is for {value}"
        return None


def _plain(key: str, value: str) -> str:
    """A GCN arch without its features, which a device class does not name; other values unchanged."""
    return value.partition(":")[0] if key == "GCN_ARCH_NAME" else value


def check_build(row: ExportRow, family: str, wanted: str) -> None:
    """Raises OmittedError if the row's solution is of another build of the library than the file is for,
    where its index would name another kernel."""
    build = row.solution.build
    if build is None:
        raise OmittedError(f"the {family} build of its solution is not known: the file is for {wanted}")
    if build != wanted:
        raise OmittedError(f"its solution is of {family} {build}: the file is for {wanted}")


def check_family(row: ExportRow, families: Iterable[str], reader: str) -> None:
    """Raises UnnamedError if the target has no name for the row's solution."""
    known = tuple(families)
    if row.solution.family not in known:
        raise UnnamedError(
            f"solutions of family {row.solution.family} have no name in {reader}; known: {', '.join(known)}"
        )


def check_judgement(row: ExportRow) -> None:
    """Raises OmittedError for a row whose solution is not faster than the target's own default."""
    if row.judgement in ("TIE", "LOSS"):
        raise OmittedError(f"{row.judgement}: the default stays")
    if row.judgement not in ("WIN", ""):
        raise OmittedError(f"judgement {row.judgement!r} is none that an override could follow")


def refuse_ties(options: ExportOptions, reader: str) -> None:
    """Raises ExportRefused if rows for TIE and LOSS are requested; this format cannot name a default."""
    if options.ties != "omit":
        raise ExportRefused(
            f"{reader} has no row for its own default: leave ties out, and what is no WIN is omitted"
        )


@dataclass
class Keyed:
    """Rows by the key with which the target looks them up. Of rows that share a key, the one with most calls
    is written; among equals one whose alpha is 1, then the one whose baseline takes longest (it has the most
    to gain), then the first. The report lists the others. `what` says what the target's key leaves out."""

    report: ExportReport
    what: str
    _held: dict[str, tuple[int, bool, float, GemmProblem, Gain, str]] = field(default_factory=dict)

    def put(self, key: str, row: ExportRow, text: str) -> None:
        """Adds a row with its text in the file."""
        plain = row.problem.alpha == "one"  # as in nearly every call
        weight = (row.count, plain, row.baseline_seconds or row.seconds or 0.0)
        held = self._held.get(key)
        if held is not None:
            reason = f"{self.what}: of rows that share a key the one with most calls stands"
            if weight <= held[:3]:
                self.report.omit(reason, row.problem, held[3])
                return
            self.report.omit(reason, held[3], row.problem)
        self._held[key] = (*weight, row.problem, Gain.of(row), text)

    def texts(self) -> Iterator[str]:
        """Yields the texts of the kept rows, in the order in which their keys first came, and counts them as
        written."""
        for *_, gain, text in self._held.values():
            self.report.wrote(gain)
            yield text
