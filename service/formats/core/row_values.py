"""Reads rows of gemmtune's own exports back from plain JSON values and checks every type and id."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from backends.environment import Environment
from backends.errors import InvalidProblem
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats.core.export import (
    IMPORTED,
    MEASURED,
    ExportRow,
    ModelLayer,
    Speedup,
    TargetRow,
)
from service.formats.core.row_text import problem_text
from tuners.decide import Judgement
from tuners.policy import MeasurementPolicy

#: Values of one kind that are cached.
_REMEMBERED = 1024
_T = TypeVar("_T")


class BadRowError(ValueError):
    """The values are not a row of an export; the message is the reason."""


class Rows:
    """Reads rows back; values that rows share are built once."""

    def __init__(self) -> None:
        self._environments: dict[str, tuple[Any, Environment]] = {}
        self._policies: dict[str, tuple[Any, MeasurementPolicy]] = {}
        self._solutions: dict[str, tuple[Any, Solution]] = {}

    def row(self, values: Mapping[str, Any]) -> ExportRow:
        """One row. Raises BadRowError (InvalidProblem for its problem), which names the value at fault."""
        problem = GemmProblem.from_dict(_mapping(values, "problem"))
        _same_id(values, "problem_id", problem_text(problem)[0])
        return ExportRow(
            problem=problem,
            keys=_keys(values.get("keys", [])),
            count=_integer(values, "count"),
            environment=self._shared(values, "environment", self._environments, environment_from),
            policy=self._shared(values, "policy", self._policies, policy_from),
            solution=self._shared(values, "solution", self._solutions, solution_from),
            baseline=None
            if "baseline" in values and values["baseline"] is None
            else self._shared(values, "baseline", self._solutions, solution_from),
            baseline_name=_text(values, "baseline_name"),
            judgement=judgement_from(values.get("judgement")),
            seconds=seconds_from(values.get("seconds"), "seconds"),
            baseline_seconds=seconds_from(values.get("baseline_seconds"), "baseline_seconds"),
            speedup=speedup_from(values.get("speedup")),
            rounds=_integer(values, "rounds"),
            session=None if values.get("session") is None else _text(values, "session"),
            decided_at=None if values.get("decided_at") is None else _text(values, "decided_at"),
            provenance=provenance_from(values.get("provenance")),
            source=_text(values, "source"),
            targets=self._targets(values),
            targets_judged=_boolean(values, "targets_judged") if "targets" in values else False,
            models=_models(values.get("models", [])),
        )

    def _targets(self, values: Mapping[str, Any]) -> dict[str, TargetRow]:
        named = _mapping(values, "targets") if "targets" in values else {}
        return {name: self._target(_mapping(named, name)) for name in named}

    def _target(self, values: Mapping[str, Any]) -> TargetRow:
        seconds = seconds_from(values.get("seconds"), "seconds")
        baseline_seconds = seconds_from(values.get("baseline_seconds"), "baseline_seconds")
        speedup = speedup_from(values.get("speedup"))
        if seconds is None or baseline_seconds is None or speedup is None:
            raise BadRowError("a target's seconds, baseline_seconds and speedup must be given")
        return TargetRow(
            solution=self._shared(values, "solution", self._solutions, solution_from),
            judgement=judgement_from(values.get("judgement")),
            seconds=seconds,
            baseline_seconds=baseline_seconds,
            speedup=speedup,
            rounds=_integer(values, "rounds"),
            session=_text(values, "session"),
            decided_at=_text(values, "decided_at"),
            proven=_boolean(values, "proven"),
        )

    def _shared(
        self,
        values: Mapping[str, Any],
        name: str,
        known: dict[str, tuple[Any, _T]],
        make: Callable[[Mapping[str, Any]], _T],
    ) -> _T:
        plain = _mapping(values, name)
        mark = str(plain.get("id") or values.get(f"{name}_id"))
        found = known.get(mark)
        if found is None or found[0] != plain:
            made = make(plain)
            _same_id(values, f"{name}_id", getattr(made, "id"))  # noqa: B009  (each of the kinds has one)
            if len(known) >= _REMEMBERED:
                known.clear()
            found = known[mark] = (plain, made)
        return found[1]


def environment_from(values: Mapping[str, Any]) -> Environment:
    """Environment.from_dict() with every type checked. Raises BadRowError."""
    try:
        found = Environment.from_dict(values)
        numbers = (found.units, found.memory_bytes)
        texts = (
            found.vendor,
            found.arch,
            found.product,
            found.uuid,
            found.partition,
            found.driver,
            found.runtime,
        )
        libraries = found.libraries
        if not isinstance(libraries, dict) or not all(isinstance(v, str) for v in libraries.values()):
            raise BadRowError("environment: libraries must be an object of texts")
        if not all(isinstance(text, str) for text in texts):
            raise BadRowError("environment: one of its texts is none")
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
            raise BadRowError("environment: units and memory_bytes must be integers from 0")
        _ = found.device_class  # raises ValueError for bad parts
        return found
    except (TypeError, ValueError) as error:
        raise BadRowError(
            f"environment: {error}".replace("environment: environment: ", "environment: ")
        ) from None


def policy_from(values: Mapping[str, Any]) -> MeasurementPolicy:
    """MeasurementPolicy.from_dict(). Raises BadRowError."""
    try:
        return MeasurementPolicy.from_dict(values)
    except (InvalidProblem, TypeError) as error:
        raise BadRowError(f"policy: {error}") from None


def solution_from(values: Mapping[str, Any]) -> Solution:
    """Solution.from_dict() with every type checked. Raises BadRowError."""
    try:
        found = Solution.from_dict(values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRowError(f"solution: {error}") from None
    size = found.workspace_bytes
    if isinstance(size, bool) or not isinstance(size, int):
        raise BadRowError(f"solution: workspace_bytes must be an integer, not {size!r}")
    if not isinstance(found.build, str | None) or not isinstance(found.deterministic, bool | None):
        raise BadRowError(
            "solution: build must be a text and deterministic true or false, where they are known"
        )
    return found


def judgement_from(value: object) -> str:
    """WIN, TIE, LOSS or "". Raises BadRowError."""
    known = ("", *(j.value for j in Judgement))
    if value not in known:
        raise BadRowError(f"judgement {value!r} is unknown; known: {', '.join(known[1:])} and an empty text")
    return str(value)


def provenance_from(value: object) -> str:
    """measured or imported. Raises BadRowError."""
    if value not in (MEASURED, IMPORTED):
        raise BadRowError(f"provenance {value!r} is unknown; known: {MEASURED}, {IMPORTED}")
    return str(value)


def seconds_from(value: object, name: str) -> float | None:
    """A positive number, or None. Raises BadRowError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise BadRowError(f"{name} must be a number above 0, not {value!r}")
    return float(value)


def speedup_from(value: object) -> Speedup | None:
    """low, mid and high of an object, or None. Raises BadRowError."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"low", "mid", "high"}:
        raise BadRowError(f"speedup must be an object with low, mid and high, not {value!r}")
    low, mid, high = (seconds_or_zero(value[name], f"speedup {name}") for name in ("low", "mid", "high"))
    if mid is None:
        raise BadRowError("speedup mid is missing")
    return low, mid, high


def seconds_or_zero(value: object, name: str) -> float | None:
    """A number from 0, or None. Raises BadRowError."""
    return 0.0 if value == 0 and not isinstance(value, bool) else seconds_from(value, name)


def _keys(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise BadRowError("keys must be a list of texts")
    return tuple(value)


def _models(value: object) -> tuple[ModelLayer, ...]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise BadRowError("models must be a list of objects")
    return tuple(
        ModelLayer(
            _text(one, "model"), _integer(one, "tensor_parallel"), _text(one, "layer"), _integer(one, "calls")
        )
        for one in value
    )


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    if not isinstance(found, Mapping):
        raise BadRowError(f"{name} is missing, or no object")
    return found


def _integer(values: Mapping[str, Any], name: str) -> int:
    found = values.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**63:
        raise BadRowError(f"{name} must be an integer from 0, not {found!r}")
    return found


def _boolean(values: Mapping[str, Any], name: str) -> bool:
    found = values.get(name)
    if not isinstance(found, bool):
        raise BadRowError(f"{name} must be true or false, not {found!r}")
    return found


def _text(values: Mapping[str, Any], name: str) -> str:
    found = values.get(name)
    if not isinstance(found, str):
        raise BadRowError(f"{name} must be a text, not {found!r}")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise BadRowError(f"{name} {found!r} holds half a surrogate pair") from None
    return found


def _same_id(values: Mapping[str, Any], name: str, right: str) -> None:
    """Raises BadRowError if a stored id is not that of the stored content."""
    if name in values and values[name] != right:
        raise BadRowError(f"{name} {values[name]!r} does not belong to its content ({right!r})")
