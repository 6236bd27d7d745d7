"""A solution's compiled kernels: resolves which problem, architecture and device a request means, and builds
the package, with a limit on concurrent compiles."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.packages import package
from backends.problem import GemmProblem
from backends.solution import Solution
from db import queries
from db.solutions import Use, uses
from service import errors
from service.settings import Settings

#: A refusal lists at most this many choices.
_LISTED = 20


@dataclass(frozen=True)
class Chosen:
    """What to compile: a solution for a problem and an architecture; `units` is the number of multiprocessors
    if a launch depends on it."""

    solution: Solution
    problem: GemmProblem
    arch: str
    units: int | None

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.solution.id}-{self.arch}.zip"


def choose(
    connection: Connection, solution_id: str, problem_id: str | None, arch: str | None, units: int | None
) -> Chosen:
    """Resolves a request; what it leaves out is taken from where the solution was measured. Raises NoBinary,
    and Refused if that gives several choices or none."""
    row = queries.solution(connection, solution_id)
    if row is None:
        raise errors.not_found("solution", solution_id)
    names = ("family", "version", "parameters", "build")
    solution = Solution(**{name: row[name] for name in names})
    package.family_of(solution)
    if arch is not None:
        _known(arch)
    found = uses(connection, solution_id)
    problem = _problem(connection, problem_id or _only_problem(solution_id, found))
    arch = arch or _only_arch(solution_id, found)
    if package.follows_units(solution):
        return Chosen(solution, problem, arch, units or _only_units(solution_id, arch, found))
    return Chosen(solution, problem, arch, None)


def _known(arch: str) -> None:
    if arch not in GPU_TARGETS:
        known = ", ".join(GPU_TARGETS)
        raise errors.bad_parameter("arch", f"{arch[:40]!r} is no architecture of ours; known: {known}")


def _problem(connection: Connection, problem_id: str) -> GemmProblem:
    row = queries.problem(connection, problem_id)
    if row is None:
        raise errors.not_found("problem", problem_id)
    return GemmProblem.from_dict(row["content"])


def _only_problem(solution_id: str, found: Sequence[Use]) -> str:
    """The only problem that the solution is best for; if it is best for none, the only one that it was
    measured for. Raises Refused."""
    names = _distinct(use.problem_id for use in found if use.best)
    what = "is the best for"
    if not names:
        names, what = _distinct(use.problem_id for use in found), "was measured for"
    if len(names) != 1:
        raise errors.open_choice("problem", f"{solution_id} {what} {_several(names, 'problems')}", names)
    return names[0]


def _only_arch(solution_id: str, found: Sequence[Use]) -> str:
    names = _distinct(use.device_class.arch for use in found)
    if len(names) != 1:
        raise errors.open_choice(
            "arch", f"{solution_id} was measured on {_several(names, 'architectures')}", names
        )
    _known(names[0])
    return names[0]


def _only_units(solution_id: str, arch: str, found: Sequence[Use]) -> int:
    """Multiprocessors of the devices, of the architecture with any suffix, that the solution was measured on.
    Raises Refused for several counts or none."""
    row = GPU_TARGETS[arch]
    sizes = _distinct(
        str(use.device_class.units) for use in found if GPU_TARGETS.get(use.device_class.arch) is row
    )
    if len(sizes) != 1:
        where = f"devices of {row.name} with {', '.join(sizes)}" if sizes else f"no device of {row.name}"
        raise errors.open_choice(
            "units",
            f"a launch of {solution_id} depends on the device's multiprocessors, and it was measured on "
            f"{where}",
            sizes,
        )
    return int(sizes[0])


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _several(names: Sequence[str], what: str) -> str:
    if not names:
        return f"no {what}"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)} {what}: {', '.join(names[:_LISTED])}{more}"


class Binaries:
    """Packages from the cache, or compiled: at most `settings.max_compiles` at a time."""

    def __init__(self, settings: Settings) -> None:
        #: The compiled kernels on disk.
        self.cache = BinaryCache(settings.cache_dir / "kernels")
        self._most = settings.max_compiles
        self._places = threading.Semaphore(self._most)

    @property
    def background_places(self) -> int:
        """How many places work in the background takes at most: requests keep one where there are more."""
        return max(1, self._most - 1)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Waits for a place and holds it: for work in the background."""
        with self._places:
            yield

    def package(self, chosen: Chosen) -> bytes:
        """The zip. Raises what package.build() raises, and Refused (503) if all places are taken: requests do
        not wait for a place, because waiting requests could take every thread."""
        if not self._places.acquire(blocking=False):
            raise errors.busy(
                "as many kernels are being compiled as may be at a time, "
                f"{self._most} (GEMMTUNE_MAX_COMPILES)"
            )
        try:
            return package.build(chosen.problem, chosen.solution, chosen.arch, chosen.units, self.cache)
        finally:
            self._places.release()
