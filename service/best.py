"""The best known solution of a problem: measured for it, or for a near one, or claimed by an import, or none.

An exact answer is the stored document as it is. This module searches for the others: a solution that meets
the client's filters, an imported claim, and a near problem with a solution that is legal for the requested
problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from math import ceil, gcd
from typing import Any

import orjson
from sqlalchemy import Connection

from backends import registry
from backends.environment import DeviceClass, Environment
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.protocol import Family
from backends.solution import Solution
from backends.wire import problem_from_wire
from db import exported, neighbours, queries
from service.formats.core.row_text import problem_wire
from service.freshness import Freshness
from service.nearness import Place, doubt, spread

#: How many of the nearest problems with equally aligned operands are tried; among how many of the nearest
#: those are looked for; how many notes explain rejections.
MAX_TRIED, MAX_SEEN, MAX_NOTES = 16, 96, 3

#: Kind of provenance -> what makes the claim, where it is no ordinary file.
_SAYS = {"pretuned": "a pre-tuned table"}


@dataclass(frozen=True)
class Filters:
    """Requirements that a solution must meet."""

    max_workspace: int | None = None
    deterministic: bool = False
    families: frozenset[str] | None = None

    def __bool__(self) -> bool:
        return self.max_workspace is not None or self.deterministic or self.families is not None

    def admit(self, solution: Mapping[str, Any] | None, share: Fraction = Fraction(1)) -> bool:
        """Whether the solution (None: the framework's default, of which nothing is known) meets the filters,
        even if its workspace grows by the factor `share`."""
        if solution is None:
            return not self
        if self.max_workspace is not None:
            size = solution["workspace_bytes"]
            if max(size, ceil(size * share)) > self.max_workspace:
                return False
        if self.deterministic and solution["deterministic"] is not True:
            return False
        return self.families is None or solution["family"] in self.families


@dataclass(frozen=True)
class Asked:
    """What a request says besides its problem."""

    device: DeviceClass
    policy_id: str
    filters: Filters = field(default_factory=Filters)
    imported: bool = False
    freshness: Freshness = field(default_factory=Freshness)


def exact(document: str, freshness: Freshness) -> bytes:
    """A stored document as an answer, in JSON text."""
    reason = _stale(orjson.loads(document), freshness)
    stale = b"" if reason is None else b'"stale":' + orjson.dumps(reason) + b","
    return b'{"match":"exact",' + stale + document[1:].encode()


def _stale(document: Mapping[str, Any], freshness: Freshness) -> str | None:
    solution = document["solution"]
    return freshness.stale(document["environment_id"], solution["family"], solution["version"])


def answer(
    connection: Connection, asked: Asked, problem: GemmProblem, document: str | None, near: bool = True
) -> bytes:
    """The answer as JSON text. `document` is the problem's own best document, if any; `near` False skips near
    problems."""
    if document is not None and not asked.filters:
        return exact(document, asked.freshness)
    return orjson.dumps(_Search(connection, asked, problem).run(document, near))


class _Search:
    """The search for one problem's answer; its notes say why better matches were rejected."""

    def __init__(self, connection: Connection, asked: Asked, problem: GemmProblem) -> None:
        self._connection, self._asked, self._problem = connection, asked, problem
        self._notes: list[str] = []
        self._environments: dict[str, Environment] = {}

    def run(self, document: str | None, near: bool) -> dict[str, Any]:
        own = None if document is None else self._chosen(orjson.loads(document))
        if own is not None:
            return {"match": "exact", **self._stale(own), **own}
        if document is not None:
            self._notes.append("what was measured for the problem itself does not meet the filters")
        claim = self._claim() if self._asked.imported else None
        if claim is not None:
            return claim
        if not near:
            self._notes.append(
                "near problems were not looked up: too many in one request (GEMMTUNE_MAX_NEAR)"
            )
        found = self._nearest() if near else None
        if found is None:
            self._notes += self._known_elsewhere()
        return found or {
            "match": "default",
            "solution": None,
            "reason": f"nothing that fits was measured for {self._problem.slug} or near it on "
            f"{self._asked.device} under {self._asked.policy_id}",
            **self._question(),
        }

    def _question(self) -> dict[str, Any]:
        return {
            "problem_id": self._problem.id,
            "asked": problem_wire(self._problem),
            "device_class": str(self._asked.device),
            "policy_id": self._asked.policy_id,
            "notes": self._notes,
        }

    def _stale(self, document: Mapping[str, Any]) -> dict[str, str]:
        """The answer's field `stale`, where the document is."""
        reason = _stale(document, self._asked.freshness)
        return {} if reason is None else {"stale": reason}

    # ---- filters -----------------------------------------------------------------------------------

    def _chosen(self, document: dict[str, Any], share: Fraction = Fraction(1)) -> dict[str, Any] | None:
        """The document if its winner meets the filters, else the document of the fastest alternative that
        does; None if none does."""
        filters = self._asked.filters
        if filters.admit(document["solution"], share):
            return document
        winner = document["solution"]["id"]
        rows = queries.alternatives(self._connection, document["session_id"])
        for row in rows:
            if row["solution_id"] != winner and filters.admit(row["solution"], share):
                own = {name: value for name, value in document.items() if name != "packing"}
                return (
                    own
                    | _packing(rows, row["solution_id"])
                    | {
                        "solution": row["solution"],
                        "seconds": row["seconds"],
                        "judgement": None,
                        "speedup": None,
                        "roofline": None,
                        "tie_set": [],
                        "reason": "the fastest measured that meets the filters; "
                        f"the winner {winner} does not",
                        "alternative": True,
                        "verified": "one seed",
                        "phase": row["phase"],
                    }
                )
        return None

    # ---- imported ----------------------------------------------------------------------------------

    def _claim(self) -> dict[str, Any] | None:
        rows = exported.claim_rows(self._connection, str(self._asked.device), [self._problem.id])
        for row in rows:
            solution = None if row["solution_id"] is None else _claimed_solution(row)
            if row["policy_id"] in ("", self._asked.policy_id) and self._asked.filters.admit(solution):
                kind = row["provenance_kind"]
                self._notes += self._elsewhere(row)
                return {
                    "match": "imported",
                    "solution": solution,
                    "seconds": row["seconds"],
                    "provenance": {"kind": kind, "source": row["source"], "format": row["format"]},
                    "reason": f"{_SAYS.get(kind, 'an imported file')} says so; it was not measured here",
                    **self._question(),
                }
        return None

    def _elsewhere(self, row: Mapping[str, Any]) -> list[str]:
        """Where a pre-tuned table's row was measured: on which class, with which libraries."""
        environment_id = (row["content"] or {}).get("environment_id")
        if row["provenance_kind"] != "pretuned" or environment_id is None:
            return []
        found = self._environment(environment_id)
        builds = [f"{name} {build}" for name, build in sorted(found.libraries.items())]
        where = ", ".join([*builds, *([f"driver {found.driver}"] if found.driver else [])])
        return [f"measured elsewhere, on another {found.device_class} with {where}"]

    def _known_elsewhere(self) -> list[str]:
        """A note if a pre-tuned table has a row for the problem, which is served only where asked for."""
        if self._asked.imported:
            return []
        rows = exported.claim_rows(self._connection, str(self._asked.device), [self._problem.id])
        names = [row["source"] for row in rows if row["provenance_kind"] == "pretuned"]
        asked = "imported=true, or --imported on the command line"
        return [f"known elsewhere: the pre-tuned table {names[0]} has it ({asked})"] if names else []

    # ---- near --------------------------------------------------------------------------------------

    def _nearest(self) -> dict[str, Any] | None:
        families = self._families()
        if families is None:
            return None
        near = self._near()
        served = [name for name, place in near.items() if place.served]
        if near and not served:
            name, place = next(iter(near.items()))
            self._note(f"{name}: {place.too_far}")
        size = _written(self._problem)
        for problem_id, problem, stored in islice(self._aligned(served), MAX_TRIED):
            document = self._chosen(stored, Fraction(size, _written(problem)))
            if document is None:
                self._note(f"{problem_id}: nothing there meets the filters")
                continue
            fault = self._fault(document, families)
            if fault is not None:
                self._note(f"{problem_id}: {fault}")
                continue
            others = [other for other in list(near)[:MAX_TRIED] if other != problem_id]
            regret = self._regret(document["solution"]["id"], others)
            fault = doubt(document, near[problem_id], regret)
            if fault is not None:
                self._note(f"{problem_id}: {fault}")
                continue
            if document["solution"]["workspace_bytes"]:
                self._notes.append(f"workspace_bytes is what the solution took for {problem_id}")
            if document.get("packing"):
                self._notes.append(f"packing is what the solution took for {problem_id}")
            return {
                "match": "nearest",
                "asked": problem_wire(self._problem),
                "asked_id": self._problem.id,
                "distance": round(near[problem_id].distance, 4),
                "transfer_regret": regret,
                **self._stale(document),
                **document,
                "notes": self._notes,
            }
        return None

    def _aligned(self, problem_ids: list[str]) -> Iterator[tuple[str, GemmProblem, dict[str, Any]]]:
        """The near problems (among the first MAX_SEEN) with operands aligned like the requested problem's,
        with their documents: a kernel tuned for better aligned operands cannot read the requested ones."""
        here, noted = _alignments(self._problem), False
        for start in range(0, min(len(problem_ids), MAX_SEEN), MAX_TRIED):
            part = problem_ids[start : start + MAX_TRIED]
            documents = queries.best_documents(
                self._connection, part, str(self._asked.device), self._asked.policy_id
            )
            for problem_id in part:
                if problem_id not in documents:
                    continue
                document = orjson.loads(documents[problem_id])
                problem = problem_from_wire(document["problem"])
                if _alignments(problem) == here:
                    yield problem_id, problem, document
                    continue
                if not noted:  # once: it may apply to all of them
                    self._note(f"{problem_id}: its operands are aligned to other bytes than those asked for")
                noted = True

    def _note(self, text: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(text)

    def _families(self) -> Mapping[str, Family] | None:
        vendor = self._asked.device.vendor
        if vendor in registry.BACKENDS:
            return registry.backend(vendor).families()
        self._notes.append(
            f"near problems were not looked up: the backend {vendor} is not part of this installation, so "
            "nothing can say what is legal there"
        )
        return None

    def _near(self) -> dict[str, Place]:
        """Near problems, the nearest first."""
        p = self._problem
        where = neighbours.Where(str(self._asked.device), self._asked.policy_id, p.kind)
        return {
            row.problem_id: Place(distance, (row.m, row.k) == (p.m, p.k), p.n)
            for distance, row in neighbours.around(self._connection, where, p, MAX_SEEN)
            if row.problem_id != p.id and distance <= neighbours.FARTHEST
        }

    def _fault(self, document: Mapping[str, Any], families: Mapping[str, Family]) -> str | None:
        """Why the near problem's solution cannot run the requested problem; None if it can."""
        values = document["solution"]
        family = families.get(values["family"])
        if family is None:
            return f"the family {values['family']} is not part of this installation"
        if not family.supports(self._problem):
            return f"{family.name} does not support the problem"
        environment = self._environment(document["environment_id"])
        try:
            return family.illegal(self._problem, Solution.from_dict(values), environment)
        except (KeyError, TypeError, ValueError) as error:  # parameters of another version of the family
            return f"{family.name} cannot judge its parameters ({error})"

    def _environment(self, environment_id: str) -> Environment:
        found = self._environments.get(environment_id)
        if found is None:
            contents = queries.environment_contents(self._connection, [environment_id])
            found = self._environments[environment_id] = Environment.from_dict(contents[environment_id])
        return found

    def _regret(self, solution_id: str, problem_ids: list[str]) -> dict[str, Any] | None:
        """By what share the solution was slower than the best in sessions of near problems; None if it was
        not measured there."""
        rows = neighbours.transfer(
            self._connection, solution_id, problem_ids, str(self._asked.device), self._asked.policy_id
        )
        return spread([row["seconds"] / row["best"] - 1 for row in rows if row["best"]])


def _packing(rows: Iterable[Mapping[str, Any]], solution_id: str) -> dict[str, Any]:
    """The field `packing` of a solution that reads a packed copy, from its outcomes in a session."""
    own = (row["evidence"].get("packing") for row in rows if row["solution_id"] == solution_id)
    found = next(filter(None, own), None)
    return {} if found is None else {"packing": found}


def _written(problem: GemmProblem) -> int:
    """Elements of the output: a workspace for partial sums grows with them."""
    return problem.m * problem.n * problem.batch


def _alignments(problem: GemmProblem) -> dict[str, int]:
    """The alignment of each matrix's columns in the whole batch, in bytes, at most 16."""
    found = layouts(problem)
    return {
        name: gcd(
            problem.alignment,
            found[name].ld * found[name].dtype.bytes,
            found[name].stride * found[name].dtype.bytes,
        )
        for name in ("a", "b", "c", "d")
        if name in found
    }


def _claimed_solution(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("family", "version", "parameters", "build", "workspace_bytes", "deterministic")
    return {"id": row["solution_id"], **{name: row[name] for name in names}}
