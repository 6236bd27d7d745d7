"""Portfolios as JSON files. A file of another version, a file that is cut short, and one that names a family
that is unknown here are refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backends.environment import VENDORS
from backends.errors import ReadError, StorageError
from backends.problem import GemmProblem
from backends.registry import backend
from backends.solution import Solution
from backends.wire import problem_from_wire, problem_to_wire
from tuners.portfolio.values import Group, Member, Portfolio

VERSION = 1
#: The portfolio that is shipped.
SHIPPED = Path(__file__).parents[1] / "data" / "portfolio.json"


def write(path: Path, groups: Sequence[Group], provenance: Mapping[str, str]) -> None:
    """Writes a portfolio; `provenance` says with what and when it was built. Raises StorageError."""
    content = {
        "gemmtune": "portfolio",
        "version": VERSION,
        **provenance,
        "groups": [_group_to_dict(group) for group in groups],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(content))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _text(content: Mapping[str, Any]) -> str:
    """JSON with one line for each member, so that a change of one is a change of a line."""
    lines = []
    for group in content["groups"]:
        head = json.dumps({name: value for name, value in group.items() if name != "members"})
        members = ",\n   ".join(json.dumps(member, separators=(",", ":")) for member in group["members"])
        lines.append(f'{head[:-1]}, "members": [\n   {members}]}}')
    head = json.dumps({name: value for name, value in content.items() if name != "groups"}, indent=1)
    return f'{head[:-2]},\n "groups": [\n  ' + ",\n  ".join(lines) + "]\n}\n"


def _group_to_dict(group: Group) -> dict[str, Any]:
    numbers = {problem: place for place, problem in enumerate(_problems(group))}
    return {
        "vendor": group.vendor,
        "target": group.target,
        "types": group.types,
        "observed": group.observed,
        "within": group.within,
        "sources": list(group.sources),
        "problems": [problem_to_wire(problem) for problem in numbers],
        "members": [
            {
                "solution": {
                    name: value
                    for name, value in one.solution.to_dict().items()
                    if name not in ("workspace_bytes", "deterministic")
                },
                "serves": [numbers[problem] for problem in one.problems],
            }
            for one in group.members
        ],
    }


def _problems(group: Group) -> list[GemmProblem]:
    return list(dict.fromkeys(problem for one in group.members for problem in one.problems))


def shipped() -> Portfolio:
    """The portfolio that is shipped; read once. Raises ReadError."""
    return _once(SHIPPED)


def chosen(path: Path | None) -> Portfolio:
    """The portfolio of a file, read once, or the shipped one. Raises ReadError."""
    return _once(SHIPPED if path is None else path)


@lru_cache(maxsize=4)
def _once(path: Path) -> Portfolio:
    return read(path)


def read(path: Path) -> Portfolio:
    """A portfolio. A member of an older version of its family is left out, with a note. Raises ReadError."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ReadError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, ValueError) as error:
        raise ReadError(f"{path} is no portfolio or is cut short: {error}") from error
    if not isinstance(content, dict) or content.get("gemmtune") != "portfolio":
        raise ReadError(f"{path} is no portfolio, which `gemmtune portfolio build` writes")
    if content.get("version") != VERSION:
        raise ReadError(
            f"{path} is a portfolio of version {content.get('version')!r}; this gemmtune reads {VERSION}: "
            "build it again with `gemmtune portfolio build`"
        )
    notes: list[str] = []
    try:
        groups = [_group(values, notes) for values in content["groups"]]
        rest = ("gemmtune", "version", "groups")
        provenance = {name: str(value) for name, value in content.items() if name not in rest}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ReadError(f"{path} is no whole portfolio: {type(error).__name__}: {error}") from error
    return Portfolio(groups, provenance, tuple(dict.fromkeys(notes)))


def _group(values: Mapping[str, Any], notes: list[str]) -> Group:
    problems = [problem_from_wire(wire) for wire in values["problems"]]
    vendor, members = str(values["vendor"]), []
    if vendor not in VENDORS:
        raise ValueError(f"vendor {vendor!r} is unknown; known: {', '.join(VENDORS)}")
    known = _versions(vendor)
    for row in values["members"]:
        solution = Solution.from_dict(row["solution"])
        if solution.family not in known:
            raise ValueError(f"family {solution.family!r} is unknown to {vendor}; known: {', '.join(known)}")
        here = known[solution.family]
        if here is not None and here != solution.version:
            notes.append(
                f"members of {solution.family} version {solution.version} are left out: this is {here}"
            )
            continue
        members.append(Member(solution, tuple(problems[int(number)] for number in row["serves"])))
    return Group(
        vendor, str(values["target"]), str(values["types"]), tuple(members), int(values["observed"]),
        float(values["within"]), tuple(map(str, values["sources"])),
    )  # fmt: skip


@lru_cache(maxsize=8)
def _versions(vendor: str) -> Mapping[str, int | None]:
    """Family -> its version, None if it has none of its own."""
    return {name: getattr(family, "version", None) for name, family in backend(vendor).families().items()}


def compiles(vendor: str, family: str) -> bool:
    """Whether a vendor's family is compiled. An unknown one is not."""
    return family in _compiled(vendor)


@lru_cache(maxsize=8)
def _compiled(vendor: str) -> frozenset[str]:
    return frozenset(name for name, family in backend(vendor).families().items() if family.compiles)


def observed_problems(groups: Iterable[Group]) -> int:
    """How many problems the groups were built from."""
    return sum(group.observed for group in groups)
