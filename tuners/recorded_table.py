"""Recorded tables: what the candidates of some problems took on a device, for searches that are replayed.

A table is a .npz file: numpy writes and reads it, and its columns are compressed one by one. Solutions are
stored once, by family and parameter. Samples are rounded to 13 bits of mantissa (a relative 6e-5, far below
any device's noise), with their bytes in planes, which compress better.

Every row has samples of two passes over all candidates, minutes apart: a replayed search sees the first pass
only, and its regret is taken on the second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from backends.environment import Environment
from backends.errors import ReadError
from backends.outcome import Status
from backends.problem import GemmProblem
from backends.solution import Solution
from tuners.policy import MeasurementPolicy

#: Of the file's form. Another one is refused.
VERSION = 1
#: Bits of a float's mantissa that are rounded away.
_DROPPED = 10
_STATUSES = tuple(Status)


@dataclass(frozen=True)
class Row:
    """One candidate of a problem. `first` and `second`: seconds per launch in each pass; the second is empty
    if the candidate failed or was far slower than the best. `listed`: its place among the listed candidates,
    None if it is not listed. `mhz`: the device's clock after its first samples, None where none is read."""

    solution: Solution
    status: Status
    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()
    listed: int | None = None
    mhz: float | None = None

    @property
    def seconds(self) -> float | None:
        """What a search can know of it: the first pass's median."""
        return median(self.first) if self.status is Status.OK and self.first else None

    @property
    def unseen_seconds(self) -> float | None:
        """The second pass's median, which no search has seen."""
        return median(self.second) if self.status is Status.OK and self.second else None


@dataclass(frozen=True)
class RecordedProblem:
    """A problem with its rows. `baselines`: the names of its defaults and their solutions' ids, the verdict's
    first; their rows are among the others. `condition`: the device's state before and after."""

    problem: GemmProblem
    rows: tuple[Row, ...]
    baselines: tuple[tuple[str, str], ...]
    condition: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedTable:
    """`rule` says how the rows were chosen and measured, in words; `commit` which code chose them."""

    environment: Environment
    commit: str
    measured_at: str
    rule: str
    policy: MeasurementPolicy
    problems: tuple[RecordedProblem, ...]

    def save(self, path: Path) -> None:
        """Writes the table; a file of this name is replaced once the new one is whole."""
        rows = [(number, row) for number, one in enumerate(self.problems) for row in one.rows]
        solutions = _Solutions()
        indices = [solutions.index(row.solution) for _, row in rows]
        header = {
            "version": VERSION,
            "environment": self.environment.to_dict(),
            "commit": self.commit,
            "measured_at": self.measured_at,
            "rule": self.rule,
            "policy": self.policy.to_dict(),
            "problems": [
                {
                    "problem": one.problem.to_dict(),
                    "baselines": [list(pair) for pair in one.baselines],
                    "condition": dict(one.condition),
                }
                for one in self.problems
            ],
            "families": solutions.to_json(),
        }
        fresh = path.with_name(f"{path.name}.new")
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            np.savez_compressed(
                file,
                header=np.frombuffer(json.dumps(header, separators=(",", ":")).encode(), np.uint8),
                problem=np.array([number for number, _ in rows], np.uint16),
                family=np.array([family for family, _ in indices], np.uint8),
                solution=np.array([place for _, place in indices], np.uint32),
                status=np.array([_STATUSES.index(row.status) for _, row in rows], np.uint8),
                listed=np.array([-1 if row.listed is None else row.listed for _, row in rows], np.int32),
                mhz=np.array([nan if row.mhz is None else row.mhz for _, row in rows], np.float32),
                first=_planes([row.first for _, row in rows]),
                second=_planes([row.second for _, row in rows]),
            )
        os.replace(fresh, path)

    @classmethod
    def load(cls, path: Path) -> RecordedTable:
        """Raises ReadError for a file that is cut short, of another version, or none of these tables."""
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                header = json.loads(file["header"].tobytes())
                if header["version"] != VERSION:
                    raise ReadError(
                        f"{path} is a table of version {header['version']}; this gemmtune reads {VERSION}: "
                        "record it again"
                    )
                return cls._read(header, file)
        except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, BadZipFile) as error:
            if isinstance(error, ReadError):
                raise
            raise ReadError(f"cannot read {path} as a recorded table: {error}; record it again") from error

    @classmethod
    def _read(cls, header: Mapping[str, Any], file: Mapping[str, npt.NDArray[Any]]) -> RecordedTable:
        known = [_solutions(one) for one in header["families"]]
        names = ("problem", "family", "solution", "status", "listed", "mhz")
        columns = [file[name].tolist() for name in names]
        passes = [_samples(file[name]) for name in ("first", "second")]
        rows: list[list[Row]] = [[] for _ in header["problems"]]
        for number, family, place, status, listed, mhz, first, second in zip(*columns, *passes, strict=True):
            solution, at = known[family][place], None if listed < 0 else listed
            clock = None if isnan(mhz) else mhz
            rows[number].append(Row(solution, _STATUSES[status], first, second, at, clock))
        problems = tuple(
            RecordedProblem(
                GemmProblem.from_dict(one["problem"]),
                tuple(of),
                tuple((name, solution) for name, solution in one["baselines"]),
                one["condition"],
            )
            for one, of in zip(header["problems"], rows, strict=True)
        )
        environment = Environment.from_dict(header["environment"])
        policy = MeasurementPolicy.from_dict(header["policy"])
        return cls(environment, header["commit"], header["measured_at"], header["rule"], policy, problems)


class _Solutions:
    """Distinct solutions by family: columns of parameters, workspace bytes and determinism."""

    def __init__(self) -> None:
        self._families: dict[tuple[Any, ...], list[Solution]] = {}
        self._order: dict[tuple[Any, ...], int] = {}
        self._places: dict[tuple[Any, ...], int] = {}

    def index(self, solution: Solution) -> tuple[int, int]:
        """(number of the family's part, place in it)."""
        part = (solution.family, solution.version, solution.build, tuple(solution.parameters))
        members = self._families.setdefault(part, [])
        number = self._order.setdefault(part, len(self._order))
        key = (solution.id, solution.workspace_bytes, solution.deterministic)
        if key not in self._places:
            self._places[key] = len(members)
            members.append(solution)
        return number, self._places[key]

    def to_json(self) -> list[dict[str, Any]]:
        """A part for each family, version, build and set of parameters."""
        return [
            {
                "family": family, "version": version, "build": build,
                "parameters": {name: [one.parameters[name] for one in members] for name in names},
                "workspace_bytes": [one.workspace_bytes for one in members],
                "deterministic": [one.deterministic for one in members],
            }
            for (family, version, build, names), members in self._families.items()
        ]  # fmt: skip


def _solutions(part: Mapping[str, Any]) -> list[Solution]:
    names = list(part["parameters"])
    rows = zip(*part["parameters"].values(), strict=True) if names else ((),) * len(part["workspace_bytes"])
    return [
        Solution(
            part["family"], part["version"], dict(zip(names, row, strict=True)), part["build"], size, sure
        )
        for row, size, sure in zip(rows, part["workspace_bytes"], part["deterministic"], strict=True)
    ]


def _planes(samples: Sequence[Sequence[float]]) -> npt.NDArray[np.uint8]:
    """Rows of samples as bytes [4, rows, most samples of a row]: float32, NaN where a row has fewer."""
    table = np.full((len(samples), max(map(len, samples), default=0)), np.nan, np.float32)
    for row, given in zip(table, samples, strict=True):
        row[: len(given)] = given
    bits = table.view(np.uint32)
    finite = np.isfinite(table)
    bits[finite] = bits[finite] + (1 << _DROPPED - 1) >> _DROPPED << _DROPPED
    return np.ascontiguousarray(np.moveaxis(bits[..., None].view(np.uint8), -1, 0))


def _samples(planes: npt.NDArray[np.uint8]) -> list[tuple[float, ...]]:
    """The inverse of _planes()."""
    table = np.ascontiguousarray(np.moveaxis(planes, 0, -1)).view(np.float32)[..., 0]
    return [tuple(row[~np.isnan(row)].astype(float).tolist()) for row in table]
