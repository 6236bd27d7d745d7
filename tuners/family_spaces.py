"""The whole spaces of a problem's families, by name; each is made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from backends.environment import Environment
from backends.family_space import FamilySpace, ListedSpace, WrappedSpace
from backends.problem import GemmProblem
from backends.protocol import Device, DeviceListedFamily, DeviceSpacedFamily, Family, SpacedFamily
from backends.solution import Solution
from tuners.policy import MeasurementPolicy

#: Indices that are sent to the device process in one call.
BATCH = 256


class FamilySpaces(Mapping[str, FamilySpace]):
    """Family name -> its space, in the order in which a search takes turns."""

    def __init__(self, names: Sequence[str] = (), make: Callable[[str], FamilySpace] | None = None) -> None:
        self._names, self._make = tuple(names), make
        self._made: dict[str, FamilySpace] = {}

    def __getitem__(self, name: str) -> FamilySpace:
        if name not in self._names or self._make is None:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def family_space(
    family: Family,
    problem: GemmProblem,
    environment: Environment,
    max_workspace_bytes: int | None = None,
    device: Device | None = None,
) -> FamilySpace:
    """A family's space for a problem: its own, or its list where that is all there is. A DeviceListedFamily
    needs the open `device`; without one its space has the members of solutions() only, usually none."""
    if device is not None and isinstance(family, DeviceSpacedFamily):
        return family.space_on(problem, device, max_workspace_bytes)
    if device is not None and isinstance(family, DeviceListedFamily):
        return ListedSpace(family.name, family.enumerate_on(problem, device, max_workspace_bytes))
    if isinstance(family, SpacedFamily):
        return family.space(problem, environment)
    return ListedSpace(family.name, family.solutions(problem, environment))


def restricted(space: FamilySpace, policy: MeasurementPolicy, excluded: frozenset[str]) -> FamilySpace:
    """The space without the members that a policy rules out or whose ids are `excluded`."""
    limit = policy.max_workspace_bytes

    def allowed(one: Solution) -> Solution | None:
        fits = limit is None or one.workspace_bytes <= limit
        sure = bool(one.deterministic) or not policy.deterministic_only
        return one if fits and sure and one.id not in excluded else None

    return WrappedSpace(space.family, space, allowed, lambda one: one)


class DeviceSpace(FamilySpace):
    """A space that only the device process can look into. `call` passes the name of a method of the space
    there with its argument and returns its answer, lists for iterators."""

    batch = BATCH

    def __init__(self, family: str, call: Callable[..., Any]) -> None:
        self.family, self._call = family, call
        self._size: int | None = None

    @property
    def size(self) -> int:
        """See FamilySpace."""
        if self._size is None:
            self._size = int(self._call("size"))
        return self._size

    def at(self, index: int) -> Solution | None:
        """See FamilySpace."""
        return self.members([index])[0]

    def members(self, indices: Sequence[int]) -> list[Solution | None]:
        """See FamilySpace."""
        found: list[Solution | None] = self._call("members", list(indices))
        return found

    def index(self, solution: Solution) -> int | None:
        """See FamilySpace."""
        found: int | None = self._call("index", solution)
        return found

    def steps(self, index: int) -> Iterator[int]:
        """See FamilySpace."""
        found: list[int] = self._call("steps", index)
        return iter(found)
