"""What writers of override files share: which rows a target may be given, and which of several that it takes
for one.

An override file is loaded by a library or a framework that checks little of it or nothing. So the text of
each validator (a library's build, the arch, the number of compute units) is settled before the first row:
from the request, else from the environments that the rows were measured in. A row that was measured under
another is left out, and so is one whose verdict is no WIN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from backends.environment import Environment
from backends.problem import GemmProblem
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow

#: The text of a validator in an environment; None where it does not tell.
Says = Callable[[Environment], str | None]

#: Environments whose judgement is remembered.
_REMEMBERED = 256


def with_environments(
    rows: Iterable[ExportRow], options: ExportOptions
) -> tuple[Iterable[ExportRow], ExportOptions]:
    """The options with the first row's environment where they name none, and all the rows again."""
    if options.environments:
        return rows, options
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return rows, options
    return chain((first,), rows), replace(options, environments=(first.environment,))


class OmittedError(Exception):
    """The row is left out; the message is the reason, and is the same for all rows like it. `kept` is the
    problem whose row stands for it in the file, where there is one."""

    def __init__(self, reason: str, kept: GemmProblem | None = None) -> None:
        super().__init__(reason)
        self.kept = kept


def library(name: str) -> Says:
    """The build of a library."""
    return lambda environment: environment.libraries.get(name)


def arch(environment: Environment) -> str | None:
    """gfx942, sm_90: without features."""
    return environment.arch.partition(":")[0] or None


def units(environment: Environment) -> str | None:
    """Compute units."""
    return str(environment.units)


@dataclass
class Validators:
    """What the rows of one file must have been measured under."""

    vendor: str
    values: Mapping[str, str]
    says: Mapping[str, Says]
    _judged: dict[int, tuple[Environment, str | None]] = field(default_factory=dict)

    @classmethod
    def settle(cls, reader: str, vendor: str, says: Mapping[str, Says], options: ExportOptions) -> Validators:
        """The values that were given, else what the newest environment says. `reader` is what loads the file,
        as messages call it. Raises ExportRefused for an unknown validator, another vendor's device, an arch
        or a number of units that the device class contradicts, and for a value that nobody says."""
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
        """Raises OmittedError where nothing that was measured there holds for the target."""
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
    """A GCN arch without its features, which a device class does not tell; another value as it is."""
    return value.partition(":")[0] if key == "GCN_ARCH_NAME" else value


def check_build(row: ExportRow, family: str, wanted: str) -> None:
    """Raises OmittedError where the row's solution is not of the library's build that the file is for: its
    index would be another kernel there."""
    build = row.solution.build
    if build is None:
        raise OmittedError(f"the {family} build of its solution is not known: the file is for {wanted}")
    if build != wanted:
        raise OmittedError(f"its solution is of {family} {build}: the file is for {wanted}")


def check_family(row: ExportRow, families: Iterable[str], reader: str) -> None:
    """Raises OmittedError where the target cannot express the row's solution."""
    known = tuple(families)
    if row.solution.family not in known:
        raise OmittedError(
            f"solutions of family {row.solution.family} have no name in {reader}; known: {', '.join(known)}"
        )


def check_judgement(row: ExportRow) -> None:
    """Raises OmittedError for a row that shows nothing faster than the stack's own default."""
    if row.judgement in ("TIE", "LOSS"):
        raise OmittedError(f"{row.judgement}: the stack's default stays")
    if row.judgement not in ("WIN", ""):
        raise OmittedError(f"judgement {row.judgement!r} is none that an override could follow")


def refuse_ties(options: ExportOptions, reader: str) -> None:
    """Raises ExportRefused where rows for TIE and LOSS are asked of a format that cannot name a default."""
    if options.ties != "omit":
        raise ExportRefused(
            f"{reader} has no row for its own default: leave ties out, and what is no WIN is omitted"
        )


@dataclass
class Keyed:
    """Rows by what the target tells them apart by. Of rows that share a key the one with most calls stands,
    then the one whose alpha is 1, then the one that takes longest (there is most to win), then the first; the
    others are told of in the report. `what` says what the target's key leaves out."""

    report: ExportReport
    what: str
    _held: dict[str, tuple[int, bool, float, GemmProblem, str]] = field(default_factory=dict)

    def put(self, key: str, row: ExportRow, text: str) -> None:
        """A row and its text in the file."""
        plain = row.problem.alpha == "one"  # what nearly every call scales by
        weight = (row.count, plain, row.baseline_seconds or row.seconds or 0.0)
        held = self._held.get(key)
        if held is not None:
            reason = f"{self.what}: of rows that share a key the one with most calls stands"
            if weight <= held[:3]:
                self.report.omit(reason, row.problem, held[3])
                return
            self.report.omit(reason, held[3], row.problem)
        self._held[key] = (*weight, row.problem, text)

    def texts(self) -> Iterator[str]:
        """What stands, in the order in which the keys came; counted as written."""
        for *_, text in self._held.values():
            self.report.written += 1
            yield text
