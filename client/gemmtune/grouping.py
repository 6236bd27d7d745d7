"""Grouped products: rows sorted by group, each group multiplied by its own weights. The service has the same
rules in backends/grouping.py; a test compares both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gemmtune.errors import ProblemError
from gemmtune.values import check_size
from gemmtune.weights import GROUPS, is_weight

#: The named distributions of rows over groups, the most groups and rows, the types of the operands.
_ROUTINGS, _MOST_GROUPS, _MOST_ROWS, _TYPES = ("uniform", "skewed"), 1023, 2**31 - 1, ("bf16", "fp16")
#: The type of operands with scales, the scales of the weights and of the rows, and the outputs.
_SCALED_TYPES = ("fp8_e4m3", "fp8_e4m3_fnuz")
_SCALES = (("block_128x128", "block_1x128"), ("outer", "outer"))
_SCALED_OUTPUTS = ("bf16", "fp16", "fp32")
#: Types of quantised weights, beside rows of _TYPES.
_WEIGHT_TYPES = ("int4", "uint4", "fp4_e2m1")
#: A count as text: as JSON writes it, and of no more digits than 2^31 - 1 has.
_COUNT = re.compile("0|[1-9][0-9]{0,9}")


def grouping(groups: int, routing: str | Sequence[int] | None) -> dict[str, Any]:
    """The fields of a grouped product; none without groups."""
    check_size(groups, "groups", _MOST_GROUPS, least=0)
    if groups == 0:
        if routing not in (None, "none"):
            raise ProblemError(f"routing {routing}: only a grouped product has one; give groups", "routing")
        return {}
    if isinstance(routing, (list, tuple)):
        for count in routing:
            check_size(count, "routing", _MOST_ROWS, least=0)
        routing = ",".join(map(str, routing))
    return {"groups": groups, "routing": "uniform" if routing is None else routing}


def check_groups(p: Mapping[str, Any]) -> None:
    """Checks what grouped products alone have."""
    groups, routing = p.get("groups", 0), p.get("routing")
    if not groups:
        if p["activation"] == "swiglu":
            raise ProblemError("activation swiglu: only a grouped product has it; give groups", "activation")
        return
    quantised = p["dtype_a"] in _WEIGHT_TYPES and is_weight(p["dtype_a"], p["dtype_b"])
    one_type = p["dtype_a"] in (*_TYPES, *_SCALED_TYPES) and p["dtype_b"] == p["dtype_a"]
    if not (one_type or quantised) or p["compute"] != "fp32":
        raise ProblemError(
            f"groups {groups}: grouped products are of {', '.join((*_TYPES, *_SCALED_TYPES))}, or of weights "
            f"of {', '.join(_WEIGHT_TYPES)} by bf16 or fp16, in fp32, not {p['dtype_a']} x {p['dtype_b']}",
            "groups",
        )
    plain = {
        "trans_a": "T", "trans_b": "N", "batch": 1, "alpha": "one", "beta": "zero", "bias": None,
        "scale_d": "none",
    }  # fmt: skip
    unscaled = {"scale_a": "none", "scale_b": "none"} if p["dtype_a"] in _TYPES else {}
    for name, needed in (plain | unscaled).items():
        if p[name] != needed:
            raise ProblemError(f"{name} {p[name]}: grouped products have {needed}", name)
    _check_activation(p)
    if quantised and p["scale_a"] not in GROUPS:
        raise ProblemError(
            f"scale_a {p['scale_a']}: quantised weights of grouped products have scales of groups of k: "
            f"{', '.join(GROUPS)}",
            "scale_a",
        )
    if not unscaled and not quantised:
        _check_scales(p)
    if p["stride_a"] < p["lda"] * (p["m"] - 1) + p["k"]:
        raise ProblemError(f"stride_a {p['stride_a']} makes the weights of groups overlap", "stride_a")
    if routing in _ROUTINGS:
        return
    parts = routing.split(",") if isinstance(routing, str) else []
    if not parts or not all(map(_COUNT.fullmatch, parts)):
        raise ProblemError(
            f"routing {routing!r} is unknown; known: {', '.join(_ROUTINGS)}, or counts", "routing"
        )
    if len(parts) != groups or sum(map(int, parts)) != p["n"]:
        raise ProblemError(
            f"routing has {len(parts)} counts of {sum(map(int, parts))} rows for {groups} groups of {p['n']}",
            "routing",
        )


def _check_activation(p: Mapping[str, Any]) -> None:
    """None, or swiglu: silu of the first half of the weights' rows times the second half."""
    if p["activation"] == "none":
        return
    if p["activation"] != "swiglu":
        raise ProblemError(
            f"activation {p['activation']}: grouped products have no activation but swiglu", "activation"
        )
    if p["dtype_a"] not in _TYPES or p["dtype_b"] != p["dtype_a"]:
        raise ProblemError(
            f"activation swiglu: grouped products of {' or '.join(_TYPES)} have it, not of {p['dtype_a']} x "
            f"{p['dtype_b']}",
            "activation",
        )
    if p["m"] % 2:
        raise ProblemError(
            f"activation swiglu: half of the {p['m']} rows of weights are the gate's, so their number must "
            "be even",
            "activation",
        )


def _check_scales(p: Mapping[str, Any]) -> None:
    if (p["scale_a"], p["scale_b"]) not in _SCALES or p["scale_dtype"] != "fp32":
        raise ProblemError(
            f"grouped products of {p['dtype_a']} have fp32 scales of blocks (block_128x128 of weights with "
            f"block_1x128 of the rows) or of both's rows (outer), not {p['scale_a']} with {p['scale_b']} of "
            f"{p['scale_dtype']}",
            "scale_a",
        )
    if p["dtype_d"] not in _SCALED_OUTPUTS:
        raise ProblemError(
            f"dtype_d {p['dtype_d']}: grouped products of {p['dtype_a']} have outputs of "
            f"{', '.join(_SCALED_OUTPUTS)}",
            "dtype_d",
        )
    if p["fast_accumulation"]:
        raise ProblemError(
            "fast_accumulation true: sums of grouped products are added in fp32", "fast_accumulation"
        )
