"""Candidates of the 128 fixed shapes, in the order in which a search tries them, as digests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from tests.golden import access

DATA = Path(__file__).parent.parent / "data" / "golden"
PROBLEMS, RECORD = DATA / "problems.jsonl", DATA / "candidates.json"
#: Where candidates are listed: two of NVIDIA's, the CPU, and AMD's.
ARCHS = ("sm_80", "sm_90", "cpu", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
#: Ids that a record keeps beside the digest, to read a difference by.
_SHOWN = 2


def problems() -> list[tuple[str, GemmProblem]]:
    """(name, problem): the 128 fixed shapes in bf16."""
    rows = [json.loads(line) for line in PROBLEMS.read_text().splitlines()]
    return [(row.pop("name"), problem_from_wire(row)) for row in rows]


def listed(arch: str, problem: GemmProblem) -> dict[str, list[Any]]:
    """Family -> [how many candidates, a digest of their ids in order, the first ids]."""
    environment, found = access.environment_of(arch), {}
    for name, family in access.families_of(arch).items():
        if family.supports(problem):
            ids = [solution.id for solution in family.solutions(problem, environment)]
            digest = sha256("\n".join(ids).encode()).hexdigest()[:16]
            found[name] = [len(ids), digest, *islice(ids, _SHOWN)]
    return {name: entry for name, entry in found.items() if entry[0]}


@contextmanager
def own_order() -> Iterator[None]:
    """Triton's candidates in the order of our own model, whatever is installed."""
    before = access.nvidia_prior.build
    access.nvidia_prior.build = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        access.nvidia_prior.build = before


def record() -> dict[str, dict[str, dict[str, list[Any]]]]:
    """Architecture -> problem's name -> what listed() gives."""
    with own_order():
        return {arch: {name: listed(arch, one) for name, one in problems()} for arch in ARCHS}
