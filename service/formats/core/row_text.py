"""Rows of gemmtune's own exports as JSON text.

An export may hold a hundred thousand rows. So values that many rows share are turned into text once, and a
problem's wire form is built by rules, without the trial parses that backends.wire makes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

import orjson

from backends.dtypes import COMPUTE_FOR, OUTPUTS_FOR
from backends.environment import Environment
from backends.grouping import given_counts
from backends.problem import OPTIONAL, GemmProblem
from backends.solution import Solution
from service.formats.core.export import ExportRow, ModelLayer, Speedup, TargetRow
from tuners.policy import MeasurementPolicy

#: Values of one kind whose text is cached.
_REMEMBERED = 1024
_PROBLEM_FIELDS = tuple(f.name for f in fields(GemmProblem) if f.name not in OPTIONAL)
#: Fields of problems that tables with a fixed list of fields lack, and what they say.
_OPTIONAL_WORDS = {"zero_a": "zero points", "groups": "groups", "prepacked": "prepacked weights"}
#: The members of a layer in a row.
LAYER_FIELDS = tuple(f.name for f in fields(ModelLayer))
_problem_values = attrgetter(*_PROBLEM_FIELDS)
_T = TypeVar("_T")


# ---- problems ------------------------------------------------------------------------------------


def problem_fields(problem: GemmProblem) -> dict[str, Any]:
    """The same as problem.to_dict()."""
    found = dict(zip(_PROBLEM_FIELDS, _problem_values(problem), strict=True))
    if problem.zero_a != "none":  # a document leaves out what there is none of
        found["zero_a"] = problem.zero_a
    if problem.groups:
        found |= {"groups": problem.groups, "routing": problem.routing}
    if problem.prepacked:
        found["prepacked"] = True
    return found


def problem_text(problem: GemmProblem) -> tuple[str, str]:
    """(id, canonical JSON); the id contains the hash of this text."""
    text = orjson.dumps(problem_fields(problem), option=orjson.OPT_SORT_KEYS)
    known = vars(problem).get("id")
    if known is None:
        known = f"{problem.slug}-{hashlib.sha256(text).hexdigest()[:12]}"
    return known, text.decode()


def problem_wire(p: GemmProblem) -> dict[str, Any]:
    """The same as backends.wire.problem_to_wire()."""
    alpha, beta = p.scalars
    out: dict[str, Any] = {"m": p.n, "n": p.m, "k": p.k, "dtype": p.dtype_b}
    if p.batch > 1:
        out["batch"] = p.batch
    for name, letter in (("trans_a", p.trans_b), ("trans_b", p.trans_a)):
        if letter != "N":
            out[name] = True if letter == "T" else "C"
    if p.groups:
        counts = given_counts(p.routing)
        out |= {"groups": p.groups, "routing": p.routing if counts is None else counts}
    if p.bias is not None or p.activation != "none":
        out["epilogue"] = p.epilogue
        if p.bias and (p.bias != p.dtype_d or p.bias_axis != "m"):
            axis = "n" if p.bias_axis == "m" else "m"
            out["epilogue"] = {"activation": p.activation, "bias": p.bias, "bias_axis": axis}
    if p.scale_dtype is not None:
        out["scaling"] = {"a": p.scale_b, "b": p.scale_a, "d": p.scale_d, "dtype": p.scale_dtype}
        if p.zero_a != "none":
            out["scaling"]["zero_b"] = p.zero_a
    if p.prepacked:
        out["prepacked"] = True
    if alpha != 1.0:
        out["alpha"] = alpha
    if beta != 0.0:
        out["beta"] = beta
    return out | _beyond_defaults(p)


def _beyond_defaults(p: GemmProblem) -> dict[str, Any]:
    """The fields that differ from the defaults of a packed row-major call."""
    rows_a, columns_a = (p.m, p.k) if p.trans_a == "N" else (p.k, p.m)
    rows_b, columns_b = (p.k, p.n) if p.trans_b == "N" else (p.n, p.k)
    same_c = p.dtype_c == p.dtype_d
    fields_and_defaults = (
        ("dtype_b", p.dtype_a, p.dtype_b),
        ("dtype_c", p.dtype_c, p.dtype_d),
        ("dtype_d", p.dtype_d, OUTPUTS_FOR[p.input_type][0] if same_c else p.dtype_c),
        ("compute", p.compute, COMPUTE_FOR[p.input_type][0]),
        ("lda", p.ldb, rows_b),
        ("ldb", p.lda, rows_a),
        ("ldc", p.ldc, p.ldd),
        ("ldd", p.ldd, p.rows_d if p.ldc == p.ldd else p.ldc),
        ("alignment", p.alignment, 16),
        ("fast_accumulation", p.fast_accumulation, False),
    )
    out: dict[str, Any] = {name: value for name, value, default in fields_and_defaults if value != default}
    if p.batch > 1:
        strides = {"a": p.stride_b, "b": p.stride_a, "c": p.stride_c, "d": p.stride_d}
        packed_d = p.ldd * p.n
        if strides != {"a": p.ldb * columns_b, "b": p.lda * columns_a, "c": packed_d, "d": packed_d}:
            out["strides"] = strides
    if p.groups and p.stride_a != p.lda * columns_a:
        out["strides"] = {"a": p.stride_b, "b": p.stride_a, "c": p.stride_c, "d": p.stride_d}
    return out


# ---- rows to text --------------------------------------------------------------------------------


def dumps(value: Any) -> str:
    """Compact JSON of plain values."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a lone surrogate, as from a file name that is not UTF-8: escaped, not encoded
        return json.dumps(value, separators=(",", ":"), allow_nan=False)


class Texts(Generic[_T]):
    """Caches the text of values that recur as the same object."""

    def __init__(self, make: Callable[[_T], str]) -> None:
        self._make = make
        self._known: dict[int, tuple[_T, str]] = {}

    def of(self, value: _T) -> str:
        """The text of a value, made once per object."""
        known = self._known.get(id(value))
        if known is None or known[0] is not value:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[id(value)] = (value, self._make(value))
        return known[1]


class RowTexts:
    """Rows as one JSON object each, without line breaks."""

    def __init__(self) -> None:
        self._environments: Texts[Environment] = Texts(_environment_text)
        self._policies: Texts[MeasurementPolicy] = Texts(_policy_text)
        self._solutions: Texts[Solution] = Texts(lambda solution: dumps(solution.to_dict()))

    def _baseline(self, row: ExportRow) -> str:
        return "null" if row.baseline is None else self._solutions.of(row.baseline)

    def _targets(self, row: ExportRow) -> str:
        """The members about targets, with a comma each; nothing if there is nothing to say of them."""
        if not row.targets and not row.targets_judged:
            return ""
        members = {
            name: {"solution": orjson.Fragment(self._solutions.of(one.solution)), **_target_figures(one)}
            for name, one in row.targets.items()
        }
        return f'"targets":{dumps(members)},"targets_judged":{dumps(row.targets_judged)},'

    def text(self, row: ExportRow) -> str:
        """The row's JSON; row_from_plain() reads it back."""
        problem_id, problem = problem_text(row.problem)
        figures = dumps(
            {
                "baseline_name": row.baseline_name,
                "judgement": row.judgement,
                "seconds": row.seconds,
                "baseline_seconds": row.baseline_seconds,
                "speedup": _speedup(row.speedup),
                "rounds": row.rounds,
                "session": row.session,
                "decided_at": row.decided_at,
                "provenance": row.provenance,
                "source": row.source,
                "count": row.count,
                "keys": row.keys,
            }
        )
        return (
            f'{{"problem_id":"{problem_id}","wire":{dumps(problem_wire(row.problem))},'
            f'"solution":{self._solutions.of(row.solution)},"baseline":{self._baseline(row)},'
            f"{figures[1:-1]},{_models(row)}{self._targets(row)}{self._policies.of(row.policy)},{self._environments.of(row.environment)},"
            f'"problem":{problem}}}'
        )


def _models(row: ExportRow) -> str:
    """The member about models, with a comma; nothing if none is known."""
    named = [{name: getattr(layer, name) for name in LAYER_FIELDS} for layer in row.models]
    return f'"models":{dumps(named)},' if named else ""


def _speedup(speedup: Speedup | None) -> dict[str, float | None] | None:
    return None if speedup is None else {"low": speedup[0], "mid": speedup[1], "high": speedup[2]}


def _target_figures(one: TargetRow) -> dict[str, Any]:
    return {
        "judgement": one.judgement,
        "seconds": one.seconds,
        "baseline_seconds": one.baseline_seconds,
        "speedup": _speedup(one.speedup),
        "rounds": one.rounds,
        "session": one.session,
        "decided_at": one.decided_at,
        "proven": one.proven,
    }


def _environment_text(environment: Environment) -> str:
    values = dumps(environment.to_dict())
    return (
        f'"device":{dumps(str(environment.device_class))},"environment_id":{dumps(environment.id)},'
        f'"environment":{values}'
    )


def _policy_text(policy: MeasurementPolicy) -> str:
    return f'"policy_id":{dumps(policy.id)},"policy":{dumps(policy.to_dict())}'


def beyond_tables(problem: GemmProblem) -> str | None:
    """What a problem says that a table with a fixed list of fields cannot hold; None: it holds all of it."""
    return next(
        (what for name, what in _OPTIONAL_WORDS.items() if getattr(problem, name) != OPTIONAL[name]), None
    )


def unwritten(row: ExportRow, workspace_limit: int | None) -> str | None:
    """Why a row is left out: a figure that is not finite, which JSON cannot express, or more workspace than
    the limit. None: the row is written."""
    figures = (row.seconds, row.baseline_seconds, *(row.speedup or ()))
    if not all(figure is None or math.isfinite(figure) for figure in figures):
        return "one of its figures is not finite"
    if workspace_limit is not None and row.solution.workspace_bytes > workspace_limit:
        return f"needs more workspace than the {workspace_limit} bytes that it may use"
    return None
