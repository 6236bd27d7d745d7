"""Parses the query string of a lookup for the best solution: strictly, and fast enough for every lookup."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import orjson

from backends.environment import VENDORS
from backends.errors import InvalidProblem
from backends.grouping import given_counts
from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from service import errors, schemas
from service.best import Filters
from service.deps import refuse_names
from service.formats.core.json_text import BadJsonError, decode
from service.formats.core.row_text import problem_text
from tuners.policy import MeasurementPolicy

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,4})?")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Question:
    """A parsed query. `selector` None is the service's default device. `policy_ids` is the policy's id by
    vendor of the device, because a query is parsed, and cached, before its device is known."""

    problem: GemmProblem
    problem_id: str
    selector: str | None
    policy_ids: Mapping[str, str]
    filters: Filters
    imported: bool


# ---- from text to values -------------------------------------------------------------------------


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"must be an integer, not {text!r}")
    return int(text)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"must be a number, not {text!r}")
    return float(text)


def _bool(text: str) -> bool:
    if text not in _BOOLS:
        raise ValueError(f"must be true, false, 1 or 0, not {text!r}")
    return _BOOLS[text]


def _transposed(text: str) -> bool | str:
    return _BOOLS.get(text, text)


def _name_or_object(text: str) -> Any:
    return _object(text) if text.startswith("{") else text


def _object(text: str) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"must be a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, not {text!r}")
    try:
        decode(text)  # refuses duplicate names
    except BadJsonError as error:
        raise ValueError(f"must be a JSON object ({error})") from None
    return value


def _text(text: str) -> str:
    return text


def _routing(text: str) -> str | list[int]:
    counts = given_counts(text)
    return text if counts is None else counts


#: A problem's fields as query parameters.
_FIELDS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd", "alignment", "groups"), _integer),
    **dict.fromkeys(("dtype", "dtype_a", "dtype_b", "dtype_c", "dtype_d", "compute", "layout"), _text),
    **dict.fromkeys(("alpha", "beta"), _number),
    **dict.fromkeys(("trans_a", "trans_b"), _transposed),
    **dict.fromkeys(("epilogue", "scaling"), _name_or_object),
    "strides": _object,
    "routing": _routing,
    **dict.fromkeys(("fast_accumulation", "prepacked"), _bool),
}


def _bytes(text: str) -> int:
    value = _integer(text)
    if not 0 <= value <= schemas.INT64:
        raise ValueError(f"must be an integer from 0, not {text!r}")
    return value


def _families(text: str) -> frozenset[str]:
    names = text.split(",")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"must be names of families, separated by commas, not {text!r}")
    return frozenset(names)


_OTHERS: dict[str, Callable[[str], Any]] = {
    "device": _text,
    "policy": _text,
    "mode": _text,
    "cache": _text,
    "max_workspace": _bytes,
    "deterministic": _bool,
    "families": _families,
    "imported": _bool,
}
PARAMETERS = frozenset(_FIELDS) | frozenset(_OTHERS)


def read_question(query: bytes) -> Question:
    """The parsed query string. Raises 422 with every parameter at fault."""
    # Models ask for the same shapes again and again: queries are cached, except long ones.
    return _kept(query) if len(query) <= _LONGEST_KEPT else _read(query)


def _read(query: bytes) -> Question:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    given = dict(pairs)
    if len(given) != len(pairs) or not given.keys() <= PARAMETERS:
        refuse_names([name for name, _ in pairs], PARAMETERS)
    wire: dict[str, Any] = {}
    others: dict[str, Any] = {}
    faults: list[errors.Part] = []
    for name, text in pairs:
        try:
            if name in _FIELDS:
                wire[name] = _FIELDS[name](text)
            else:
                others[name] = _OTHERS[name](text)
        except ValueError as error:
            faults.append({"parameter": name, "detail": f"{name} {error}"})
    if faults:
        raise errors.invalid(faults)
    problem = problem_from_wire(wire)
    return Question(
        problem,
        problem_text(problem)[0],
        others.get("device"),
        _policies_of(others.get("policy"), others.get("mode"), others.get("cache")),
        _NONE
        if not (others.keys() & {"max_workspace", "deterministic", "families"})
        else Filters(others.get("max_workspace"), others.get("deterministic", False), others.get("families")),
        others.get("imported", False),
    )


_NONE = Filters()
_LONGEST_KEPT = 500
_kept = lru_cache(maxsize=8192)(_read)


@lru_cache(maxsize=1000)
def _policies_of(policy: str | None, mode: str | None, cache: str | None) -> Mapping[str, str]:
    return {vendor: policy_of(policy, mode, cache, vendor) for vendor in VENDORS}


def policy_of(policy: str | None, mode: str | None, cache: str | None, vendor: str) -> str:
    """The id of the requested policy on a device of `vendor`: given by its id, or by mode and cache. Raises
    InvalidProblem."""
    if policy is not None:
        if mode is not None or cache is not None:
            raise InvalidProblem("give policy, or mode and cache, not both", "policy")
        if not _NAME.fullmatch(policy):
            raise InvalidProblem(f"policy {policy[:80]!r} is no policy's id", "policy")
        return policy
    return MeasurementPolicy.of(vendor, mode, cache="cold" if cache is None else cache).id
