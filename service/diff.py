"""What became of old winners in another environment: another driver, library, framework or kernel version.

Environments of one class that differ in nothing but the device count as one: their verdicts are compared
together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection

from backends.environment import Environment
from backends.errors import InvalidProblem
from db import diff, environments, worth
from service.formats.core.row_text import problem_wire
from service.stored_problems import stored_problem
from tuners.policy import MeasurementPolicy


class Fate(StrEnum):
    """Of a winner in the later environment. kept: it won again, or ties with the winner. beaten: it ran, and
    another candidate or the default was chosen. broken: it failed. retired: it could not be tried, because
    the library's build or the kernel's version no longer has it. pending: the problem has no verdict there
    yet."""

    KEPT = "kept"
    BEATEN = "beaten"
    BROKEN = "broken"
    RETIRED = "retired"
    PENDING = "pending"


@dataclass(frozen=True)
class Group:
    """The environments of a class that have the same software: the one that was named, and all ids."""

    device_class_id: str
    named: Environment
    ids: tuple[str, ...]


def find_group(connection: Connection, name: str, parameter: str) -> Group:
    """The group of an environment's id, or of the hash at its end. Raises InvalidProblem for the parameter
    if there is none, or if there are several."""
    found = diff.find_environments(connection, name)
    if len(found) != 1:
        known = "is known" if not found else f"alone is meant: {', '.join(one[0] for one in found)} match"
        raise InvalidProblem(
            f"no environment {name!r} {known}; GET /v1/environments and `gemmtune devices --json` name them",
            parameter,
        )
    ((_, class_id, content),) = found
    named = Environment.from_dict(content)
    same = [
        one
        for one, values in environments.class_environments(connection, class_id).items()
        if not named.changes(Environment.from_dict(values))
    ]
    return Group(class_id, named, tuple(same))


def compare_named(connection: Connection, before: str, after: str, policy_id: str | None) -> dict[str, Any]:
    """compare() for environments by name, under a policy or their vendor's default one. Raises
    InvalidProblem."""
    first, second = (
        find_group(connection, name, what) for name, what in ((before, "before"), (after, "after"))
    )
    return compare(connection, first, second, policy_id or MeasurementPolicy.of(first.named.vendor).id)


def compare(connection: Connection, before: Group, after: Group, policy_id: str) -> dict[str, Any]:
    """Every winner of `before` with its fate in `after`, as plain JSON values (report_answers.Diff), in the
    order of the earlier verdicts. Raises InvalidProblem for groups of two device classes."""
    if before.device_class_id != after.device_class_id:
        raise InvalidProblem(
            f"environments of {before.device_class_id} and {after.device_class_id} cannot be compared: give "
            "two of one device class",
            "after",
        )
    earlier = diff.verdicts(connection, before.ids, policy_id)
    later = diff.verdicts(connection, after.ids, policy_id)
    won = {name: row for name, row in earlier.items() if row["judgement"] == "WIN"}
    fates = _fates(connection, won, later)
    contents = worth.problem_contents(connection, list(won))
    order = sorted(won, key=lambda name: int(won[name]["number"]))
    items = [
        {
            "number": won[name]["number"],
            "problem_id": name,
            "problem": problem_wire(stored_problem(name, contents[name])),
            "fate": fates[name][0].value,
            "reason": fates[name][1],
            "before": _side(won[name]),
            "after": _side(later[name]) if name in later else None,
        }
        for name in order
    ]
    counted = Counter(one["fate"] for one in items)
    return {
        "device_class": before.device_class_id,
        "policy_id": policy_id,
        "before": list(before.ids),
        "after": list(after.ids),
        "changes": before.named.changes(after.named),
        "counts": {fate.value: counted[fate.value] for fate in Fate},
        "items": items,
    }


def _side(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("session_id", "judgement", "winner_id", "seconds", "baseline_name", "baseline_seconds")
    return {**{name: row[name] for name in names}, "speedup": row["speedup"]}


def _fates(
    connection: Connection, won: Mapping[str, Mapping[str, Any]], later: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[Fate, str]]:
    """Problem id -> the winner's fate, and why."""
    builds = diff.builds_of(connection, won.values())
    same = {name: builds.get(row["winner_id"], [row["winner_id"]]) for name, row in won.items()}
    open_ones = [name for name in won if name in later and not _kept(same[name], later[name])]
    found = diff.outcomes(
        connection,
        [later[name]["session_id"] for name in open_ones],
        sorted({one for name in open_ones for one in same[name]}),
    )
    fates = {}
    for name in won:
        if name not in later:
            fates[name] = Fate.PENDING, "not measured there yet"
        elif name not in open_ones:
            won_again = later[name]["winner_id"] in same[name]
            fates[name] = Fate.KEPT, "won again" if won_again else "ties with the winner"
        else:
            row = later[name]
            fates[name] = _fate([found.get((row["session_id"], one)) for one in same[name]], won[name], row)
    return fates


def _kept(same: Sequence[str], row: Mapping[str, Any]) -> bool:
    """Whether the winner won again, or ties with a winner; beside a default that stays it has lost."""
    return row["winner_id"] in same or (
        row["judgement"] == "WIN" and not set(same).isdisjoint(row["tie_set"])
    )


def _fate(
    seen: Sequence[tuple[str, float | None] | None], old: Mapping[str, Any], row: Mapping[str, Any]
) -> tuple[Fate, str]:
    outcomes = [one for one in seen if one is not None]
    if not outcomes:
        what = f"{old['family']} {old['version']}" + (f", build {old['build']}" if old["build"] else "")
        return Fate.RETIRED, f"{what} could not be tried"
    if all(status not in diff.TIMED for status, _ in outcomes):
        return Fate.BROKEN, outcomes[0][0]
    by = row["winner_id"] if row["judgement"] == "WIN" else f"the default, {row['baseline_name']}"
    return Fate.BEATEN, f"by {by}"
