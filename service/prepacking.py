"""Problems of a program that packs its quantised weights once, at load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backends.errors import InvalidProblem
from backends.problem import GemmProblem
from service.formats.core.base import Imported, ImportedProblem, printable


def packable(problem: GemmProblem) -> bool:
    """Whether a program may pack the problem's weights: they are quantised, and not of groups."""
    return problem.weight_only and not problem.groups


def prepacked(problem: GemmProblem) -> GemmProblem:
    """The problem of a program that packs its weights; the problem itself where there is nothing to pack."""
    return replace(problem, prepacked=True) if packable(problem) else problem


def ids_packed_or_not(read: Imported) -> frozenset[str]:
    """The ids of a file's problems, and of the same for a program that packs its weights."""
    found = [item.problem for item in read.problems]
    return frozenset(problem.id for one in found for problem in (one, prepacked(one)))


def prepack(read: Imported, source: object) -> Imported:
    """What a file held, with its products by quantised weights as those of a program that packs these. A
    problem that it then has twice counts once, with the calls of both. Raises InvalidProblem, which names
    `source`, where no problem has weights to pack, or where the file holds nothing; a file whose every line
    was rejected stays as it is, and its rejected lines say why."""
    if not read.problems:
        if read.rejected:
            return read
        raise InvalidProblem(
            f"prepacked packs quantised weights, and {printable(str(source))} holds no problem: leave it out",
            "prepacked",
        )
    if not any(packable(item.problem) for item in read.problems):
        count = len(read.problems)
        grouped = any(item.problem.weight_only for item in read.problems)
        why = ", and quantised weights of groups are read as they are stored" if grouped else ""
        raise InvalidProblem(
            f"prepacked packs quantised weights, and none of the {count} problem{'s' * (count != 1)} of "
            f"{printable(str(source))} has such weights{why}: leave it out",
            "prepacked",
        )
    return replace(read, problems=_distinct(read.problems))


def _distinct(items: Iterable[ImportedProblem]) -> list[ImportedProblem]:
    found: dict[str, ImportedProblem] = {}
    for item in items:
        problem = prepacked(item.problem)
        had = found.get(problem.id)
        count, keys = (0, ()) if had is None else (had.count, had.keys)
        every = tuple(dict.fromkeys((*keys, *item.keys)))
        found[problem.id] = ImportedProblem(problem, count + item.count, every)
    return list(found.values())
