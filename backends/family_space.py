"""The space of a family for one problem: every combination of its parameters' values, addressed by an index.

A space holds no list of its members: an index is a number in mixed radix, whose digits are places among the
parameters' values. A space of any size costs nothing until a member is asked for.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from math import prod
from random import Random

from backends.solution import Parameter, Solution

#: Up to this size a permutation is a shuffled list, of which every order is equally likely.
SHUFFLED = 4096
#: Members that are counted between two looks at the clock.
COUNTED = 64
#: Rounds of the network that permutes indices. Four make every bit of an index depend on every other.
_ROUNDS = 4
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Axis:
    """A parameter with its values, in order; or several parameters with their joint values, where only some
    combinations exist."""

    names: tuple[str, ...]
    values: tuple[tuple[Parameter, ...], ...]

    @cached_property
    def places(self) -> Mapping[tuple[tuple[type, Parameter], ...], int]:
        """Typed values -> place. Typed, because True == 1."""
        return {_typed(row): place for place, row in enumerate(self.values)}


def _typed(row: Iterable[Parameter]) -> tuple[tuple[type, Parameter], ...]:
    return tuple((type(value), value) for value in row)


@dataclass(frozen=True)
class ParameterGrid:
    """Every combination of the axes' values. The last axis varies fastest."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, choices: Mapping[str, Iterable[Parameter]]) -> ParameterGrid:
        """The grid of independent parameters."""
        return cls(tuple(Axis((name,), tuple((one,) for one in values)) for name, values in choices.items()))

    @cached_property
    def size(self) -> int:
        """Number of combinations; 1 without an axis."""
        return prod(len(axis.values) for axis in self.axes)

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        sizes = [len(axis.values) for axis in self.axes]
        return tuple(prod(sizes[place + 1 :]) for place in range(len(sizes)))

    def values(self, index: int) -> dict[str, Parameter]:
        """The parameters of a combination. Raises IndexError."""
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is not in a space of {self.size} combinations")
        found: dict[str, Parameter] = {}
        for axis, stride in zip(self.axes, self._strides, strict=True):
            place, index = divmod(index, stride)
            found.update(zip(axis.names, axis.values[place], strict=True))
        return found

    def index(self, values: Mapping[str, Parameter]) -> int | None:
        """The index of a combination; None if the grid does not have it."""
        if len(values) != sum(len(axis.names) for axis in self.axes):
            return None
        total = 0
        for axis, stride in zip(self.axes, self._strides, strict=True):
            if any(name not in values for name in axis.names):
                return None
            place = axis.places.get(_typed(values[name] for name in axis.names))
            if place is None:
                return None
            total += place * stride
        return total

    def steps(self, index: int) -> Iterator[int]:
        """The combinations that differ on one axis by one step: the axes in order, the lower place first."""
        for axis, stride in zip(self.axes, self._strides, strict=True):
            place = index // stride % len(axis.values)
            if place > 0:
                yield index - stride
            if place + 1 < len(axis.values):
                yield index + stride


@dataclass(frozen=True)
class Count:
    """How many members of a space are legal. `whole`: all combinations were looked at; else `legal` counts
    those of the first `seen`."""

    legal: int
    seen: int
    whole: bool


class FamilySpace(ABC):
    """A family's space for one problem. Its members are the legal combinations; `size` counts all of them,
    legal or not, and so bounds the number of members."""

    family: str
    #: Indices that an iteration looks at in one call of members().
    batch: int = 1

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of indices."""

    @abstractmethod
    def at(self, index: int) -> Solution | None:
        """The member with this index; None if the combination is illegal. Raises IndexError."""

    @abstractmethod
    def index(self, solution: Solution) -> int | None:
        """The index of a solution; None if no index stands for it. Does not check whether it is legal."""

    @abstractmethod
    def steps(self, index: int) -> Iterator[int]:
        """The indices near this one, legal or not."""

    def members(self, indices: Sequence[int]) -> list[Solution | None]:
        """at() for several indices; cheaper where a call to a device process is needed for each."""
        return [self.at(index) for index in indices]

    def neighbours(self, origin: int | Solution) -> Iterator[Solution]:
        """Members one step from an index or a solution; none of a solution that has no index."""
        index = origin if isinstance(origin, int) else self.index(origin)
        if index is not None:
            yield from (one for one in self.members(list(self.steps(index))) if one is not None)

    def __contains__(self, solution: object) -> bool:
        return isinstance(solution, Solution) and self.index(solution) is not None

    def __iter__(self) -> Iterator[Solution]:
        """Members by index."""
        return self.along(range(self.size))

    def along(self, indices: Iterable[int]) -> Iterator[Solution]:
        """The members among these indices, in their order."""
        rest = iter(indices)
        while some := list(islice(rest, self.batch)):
            yield from (found for found in self.members(some) if found is not None)

    def drawn(self, seed: int) -> Iterator[Solution | None]:
        """shuffled() with None for every illegal index, so that who draws can say how many to look at: of
        some spaces one index in a thousand is legal, or none."""
        rest = permuted(self.size, seed)
        while some := list(islice(rest, self.batch)):
            yield from self.members(some)

    def shuffled(self, seed: int) -> Iterator[Solution]:
        """Members in an order drawn from the seed, each once: a sample without replacement, however large the
        space is."""
        return self.along(permuted(self.size, seed))

    def count(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> Count:
        """Counts members for at most `seconds`."""
        end, legal, seen = clock() + seconds, 0, 0
        while seen < self.size and clock() <= end:
            some = range(seen, min(seen + max(self.batch, COUNTED), self.size))
            legal += sum(found is not None for found in self.members(some))
            seen += len(some)
        return Count(legal, seen, seen == self.size)


class GridSpace(FamilySpace):
    """A grid of parameters of which `make` gives the member, or None for an illegal combination. `version`
    and `build` are those of the family's solutions."""

    def __init__(
        self,
        family: str,
        version: int,
        build: str | None,
        grid: ParameterGrid,
        make: Callable[[dict[str, Parameter]], Solution | None],
    ) -> None:
        self.family, self.grid = family, grid
        self._identity, self._make = (family, version, build), make

    @property
    def size(self) -> int:
        """See FamilySpace."""
        return self.grid.size

    def at(self, index: int) -> Solution | None:
        """See FamilySpace."""
        return self._make(self.grid.values(index))

    def index(self, solution: Solution) -> int | None:
        """See FamilySpace."""
        if (solution.family, solution.version, solution.build) != self._identity:
            return None
        return self.grid.index(solution.parameters)

    def steps(self, index: int) -> Iterator[int]:
        """See FamilySpace."""
        return self.grid.steps(index)


class ListedSpace(FamilySpace):
    """A space that is a list, such as a library's solutions by their numbers: nothing is near anything."""

    def __init__(self, family: str, listed: Iterable[Solution]) -> None:
        self.family = family
        self.listed = tuple({solution.id: solution for solution in listed}.values())
        self._indices = {solution.id: place for place, solution in enumerate(self.listed)}

    @property
    def size(self) -> int:
        """See FamilySpace."""
        return len(self.listed)

    def at(self, index: int) -> Solution | None:
        """See FamilySpace."""
        if not 0 <= index < len(self.listed):
            raise IndexError(f"index {index} is not in a list of {len(self.listed)}")
        return self.listed[index]

    def index(self, solution: Solution) -> int | None:
        """See FamilySpace."""
        return self._indices.get(solution.id)

    def steps(self, index: int) -> Iterator[int]:
        """See FamilySpace."""
        return iter(())


class JoinedSpace(FamilySpace):
    """Several spaces of one family, one after another. They share no member."""

    def __init__(self, family: str, parts: Iterable[FamilySpace]) -> None:
        self.family = family
        self._parts = tuple(parts)
        self._starts = tuple(accumulate((part.size for part in self._parts), initial=0))

    @property
    def size(self) -> int:
        """See FamilySpace."""
        return self._starts[-1]

    def _part(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is not in a space of {self.size} combinations")
        return bisect_right(self._starts, index) - 1

    def at(self, index: int) -> Solution | None:
        """See FamilySpace."""
        part = self._part(index)
        return self._parts[part].at(index - self._starts[part])

    def index(self, solution: Solution) -> int | None:
        """See FamilySpace."""
        for part, start in zip(self._parts, self._starts, strict=False):
            if (found := part.index(solution)) is not None:
                return start + found
        return None

    def steps(self, index: int) -> Iterator[int]:
        """See FamilySpace."""
        part = self._part(index)
        start = self._starts[part]
        return (start + step for step in self._parts[part].steps(index - start))


class WrappedSpace(FamilySpace):
    """Another family's space whose members this family runs in its own way: `wrap` makes a solution of this
    family of one of the other, or None; `unwrap` is its inverse."""

    def __init__(
        self,
        family: str,
        inner: FamilySpace,
        wrap: Callable[[Solution], Solution | None],
        unwrap: Callable[[Solution], Solution | None],
    ) -> None:
        self.family, self.batch = family, inner.batch
        self._inner, self._wrap, self._unwrap = inner, wrap, unwrap

    @property
    def size(self) -> int:
        """See FamilySpace."""
        return self._inner.size

    def at(self, index: int) -> Solution | None:
        """See FamilySpace."""
        return self.members([index])[0]

    def members(self, indices: Sequence[int]) -> list[Solution | None]:
        """See FamilySpace."""
        found = self._inner.members(indices)
        return [None if one is None else self._wrap(one) for one in found]

    def index(self, solution: Solution) -> int | None:
        """See FamilySpace."""
        inner = self._unwrap(solution) if solution.family == self.family else None
        return None if inner is None else self._inner.index(inner)

    def steps(self, index: int) -> Iterator[int]:
        """See FamilySpace."""
        return self._inner.steps(index)


def permuted(size: int, seed: int) -> Iterator[int]:
    """Every number below `size` once, in an order drawn from the seed. Beyond SHUFFLED it takes no memory: a
    Feistel network permutes the numbers below a power of four, and a number that is not below `size` is
    permuted again."""
    if size <= SHUFFLED:
        order = list(range(size))
        Random(seed).shuffle(order)
        yield from order
        return
    half = ((size - 1).bit_length() + 1) // 2
    low = 2**half - 1
    keys = [_mixed(_mixed(seed) + number) for number in range(_ROUNDS)]
    for number in range(size):
        found = number
        while True:
            left, right = found >> half, found & low
            for key in keys:
                left, right = right, left ^ (_mixed(right ^ key) & low)
            found = left << half | right
            if found < size:
                break
        yield found


def _mixed(value: int) -> int:
    """The finalizer of SplitMix64, which spreads every bit over all others."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
