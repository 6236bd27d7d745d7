"""Estimates what tuning a problem would gain, from the nearest tuned problems of the same device class.

The estimate orders work: which problems to tune next, and how a campaign's seconds are shared. It is never
served or stored as a measurement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES
from backends.problem import GemmProblem

#: Tuned problems that an estimate is taken from.
NEIGHBOURS = 3
#: Doublings of the sizes within which neighbours are taken as they are. The logarithm of a speed-up from
#: farther away shrinks in proportion: little is known there.
_NEAR = 2.0
#: Tuned problems of one kind that are looked at, at most: the time grows with them.
_MOST = 2000
#: Problems whose distances are computed at a time.
_CHUNK = 1024

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """What an estimate reads of a problem: its kind (GemmProblem.kind), the type of the row-major problem's
    A, and its sizes in column-major terms. Beside quantised weights that A is the activations, whose type is
    the one that is multiplied."""

    kind: str
    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1

    @classmethod
    def of(cls, problem: GemmProblem) -> Shape:
        """The shape of a problem."""
        return cls(problem.kind, problem.dtype_b, problem.m, problem.n, problem.k, problem.batch)


@dataclass(frozen=True)
class TunedProblem:
    """A problem with a verdict: its default's seconds, and the speed-up that the verdict gives (1 where the
    default stays)."""

    shape: Shape
    baseline_seconds: float
    speedup: float


class Basis(StrEnum):
    """What an estimate's neighbours share with the problem. kind: types, transposes, epilogue and scaling.
    dtype: the type of A. any: the device class alone."""

    KIND = "kind"
    DTYPE = "dtype"
    ANY = "any"


@dataclass(frozen=True)
class Expected:
    """An estimate: seconds of a call with the default, and the speed-up, from the nearest `neighbours` tuned
    problems, the nearest of them `distance` doublings of the sizes away."""

    baseline_seconds: float
    speedup: float
    basis: Basis
    neighbours: int
    distance: float

    @property
    def saving_seconds(self) -> float:
        """Seconds that a call would save."""
        return self.baseline_seconds * (1 - 1 / self.speedup)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "basis": self.basis.value}


class Estimator:
    """Estimates from the tuned problems of one device class under one policy."""

    def __init__(self, tuned: Iterable[TunedProblem]) -> None:
        found = [one for one in tuned if one.baseline_seconds > 0]
        self._sizes = _sizes([one.shape for one in found])
        self._bounds = _work([one.shape for one in found])
        self._seconds = np.array([one.baseline_seconds for one in found], dtype=np.float64)
        self._gains = np.log(np.array([max(1.0, one.speedup) for one in found], dtype=np.float64))
        groups: dict[tuple[Basis, str], list[int]] = defaultdict(list)
        for row, one in enumerate(found):
            for key in _keys(one.shape):
                groups[key].append(row)
        self._groups = {key: _thinned(np.array(rows), self._sizes) for key, rows in groups.items()}

    def expect(self, shapes: Sequence[Shape]) -> list[Expected | None]:
        """The estimate of each shape; None while nothing of the class is tuned. A tuned problem of equal
        sizes is its own neighbour."""
        out: list[Expected | None] = [None] * len(shapes)
        asked: dict[tuple[Basis, str], list[int]] = defaultdict(list)
        for number, shape in enumerate(shapes):
            key = next((key for key in _keys(shape) if key in self._groups), None)
            if key is not None:
                asked[key].append(number)
        for key, numbers in asked.items():
            for start in range(0, len(numbers), _CHUNK):
                part = numbers[start : start + _CHUNK]
                for number, one in zip(part, self._near(key, [shapes[i] for i in part]), strict=True):
                    out[number] = one
        return out

    def _near(self, key: tuple[Basis, str], shapes: Sequence[Shape]) -> list[Expected]:
        rows = self._groups[key]
        theirs, ours = self._sizes[rows], _sizes(shapes)
        # |a - b|^2 by one product; rounding may make a distance of 0 slightly negative.
        squares = np.sum(ours**2, axis=1)[:, None] + np.sum(theirs**2, axis=1)[None, :] - 2 * ours @ theirs.T
        count = min(NEIGHBOURS, len(rows))
        nearest = np.argpartition(squares, count - 1, axis=1)[:, :count]
        closest = np.sqrt(np.maximum(np.min(np.take_along_axis(squares, nearest, axis=1), axis=1), 0.0))
        flops, traffic = _work(shapes)
        # The rates of the fastest default bound the others: a roofline from what was measured.
        measured = self._seconds[rows]
        rates = [float(np.max(self._bounds[i, rows] / measured)) for i in range(2)]
        bound = np.maximum(flops / rates[0], traffic / rates[1])
        bounds = np.maximum(self._bounds[0, rows] / rates[0], self._bounds[1, rows] / rates[1])
        seconds = bound * np.exp(np.mean(np.log(measured / bounds)[nearest], axis=1))
        shrunk = _NEAR / np.maximum(closest, _NEAR)
        speedups = np.exp(np.mean(self._gains[rows][nearest], axis=1) * shrunk)
        return [
            Expected(float(a), float(b), key[0], count, float(c))
            for a, b, c in zip(seconds, speedups, closest, strict=True)
        ]


def _keys(shape: Shape) -> tuple[tuple[Basis, str], ...]:
    return (Basis.KIND, shape.kind), (Basis.DTYPE, shape.dtype), (Basis.ANY, "")


def _thinned(rows: npt.NDArray[np.int64], sizes: Array) -> npt.NDArray[np.int64]:
    """At most _MOST of the rows, evenly spread over them in the order of their sizes."""
    if len(rows) <= _MOST:
        return rows
    ordered = rows[np.lexsort(sizes[rows].T)]
    return ordered[np.linspace(0, len(ordered) - 1, _MOST).astype(np.int64)]


def _sizes(shapes: Sequence[Shape]) -> Array:
    """log2 of m, n, k and batch, one row for each shape."""
    rows = [(one.m, one.n, one.k, one.batch) for one in shapes]
    found: Array = np.log2(np.array(rows, dtype=np.float64).reshape(len(rows), 4))
    return found


def _work(shapes: Sequence[Shape]) -> Array:
    """FLOPs, and bytes of the operands with all of them in the type of A: two rows."""
    return np.array(
        [
            [2.0 * one.m * one.n * one.k * one.batch for one in shapes],
            [
                float(one.m * one.k + one.k * one.n + one.m * one.n) * one.batch * DTYPES[one.dtype].bytes
                for one in shapes
            ],
        ]
    )
