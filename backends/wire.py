"""The wire form of a problem, as users write it: {"m":16,"n":4096,"k":4096,"dtype":"bf16"} is enough.

Row-major unless "layout" is "col". Unknown fields are rejected; every error names its field. The command
line, JSON lines and HTTP all use this parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.dtypes import ACTIVATION_TYPES, FP4, OUTPUTS_FOR, dtype, is_weight_only
from backends.errors import InvalidProblem
from backends.grouping import given_counts
from backends.problem import GemmProblem, from_blas, from_mm, twin
from backends.problem_rules import ACTIVATIONS, SCALES, SWIGLU, check_flag
from backends.quantisation import GROUPS, NVFP4_SCALES

_PLAIN = ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd", "dtype_b", "dtype_c", "dtype_d",
          "compute", "alpha", "beta", "alignment", "fast_accumulation", "groups", "routing",
          "prepacked")  # fmt: skip
_STRIDES = ("a", "b", "c", "d")
FIELDS = (
    *_PLAIN,
    "dtype",
    "dtype_a",
    "trans_a",
    "trans_b",
    "epilogue",
    "scaling",
    "strides",
    "layout",
)

EPILOGUES = tuple(
    "_".join(part for part in (bias, activation if activation != "none" else "") if part) or "none"
    for bias in ("", "bias")
    for activation in ACTIVATIONS
    if not (bias and activation == SWIGLU)
)


def problem_from_wire(values: object) -> GemmProblem:
    """Parses a problem. Raises InvalidProblem naming the field at fault."""
    if not isinstance(values, Mapping):
        raise InvalidProblem(f"a problem must be an object such as {{'m': 16, ...}}, not {values!r}")
    for name in values:
        if name not in FIELDS:
            raise InvalidProblem(f"unknown field {name!r}; known: {', '.join(sorted(FIELDS))}", str(name))
    for name in ("m", "n", "k"):
        if values.get(name) is None:
            raise InvalidProblem(f"{name} is missing", name)
    call: dict[str, Any] = {name: values[name] for name in _PLAIN if values.get(name) is not None}
    if values.get("dtype") is not None and values.get("dtype_a") is not None:
        raise InvalidProblem("give dtype or dtype_a, not both", "dtype_a")
    for name in ("dtype", "dtype_a"):
        if values.get(name) is not None:
            call["dtype_a"] = values[name]
    for name in ("trans_a", "trans_b"):
        if values.get(name) is not None:
            call[name] = _trans(values[name], name)
    for name in ("fast_accumulation", "prepacked"):
        check_flag(call.get(name, False), name)
    layout = "row" if values.get("layout") is None else values["layout"]
    if layout not in ("row", "col"):
        raise InvalidProblem(f"layout {layout!r} is unknown; known: row, col", "layout")
    try:
        call |= _strides(values.get("strides")) | _epilogue(values.get("epilogue"), call)
        call |= _scaling(values.get("scaling"))
        return from_blas(**call) if layout == "col" else from_mm(**call)
    except InvalidProblem as error:
        field, text = _written(error.field, values), str(error)
        if field == "dtype" and text.startswith("dtype_a "):
            text = f"dtype{text.removeprefix('dtype_a')}"
        raise InvalidProblem(text, field) from None


def problem_to_wire(problem: GemmProblem) -> dict[str, Any]:
    """The row-major wire form with only the fields that differ from the defaults; problem_from_wire() is the
    inverse."""
    alpha, beta = problem.scalars
    call = twin({**problem.to_dict(), "alpha": alpha, "beta": beta})
    out: dict[str, Any] = {"m": call["m"], "n": call["n"], "k": call["k"], "dtype": call["dtype_a"]}
    if problem.batch > 1:
        out["batch"] = problem.batch
    for name in ("trans_a", "trans_b"):
        if call[name] != "N":
            out[name] = True if call[name] == "T" else "C"
    if problem.groups:
        counts = given_counts(problem.routing)
        out |= {"groups": problem.groups, "routing": problem.routing if counts is None else counts}
    if problem.epilogue != "none":
        out["epilogue"] = problem.epilogue
        if problem.bias and (problem.bias != problem.dtype_d or problem.bias_axis != "m"):
            out["epilogue"] = {
                "activation": problem.activation,
                "bias": problem.bias,
                "bias_axis": call["bias_axis"],
            }
    scaled = {
        "a": call["scale_a"],
        "b": call["scale_b"],
        "d": call["scale_d"],
        "dtype": call["scale_dtype"],
        **({"zero_b": call["zero_b"]} if call.get("zero_b", "none") != "none" else {}),
    }
    if problem.scale_dtype is not None:
        out["scaling"] = scaled
    if problem.prepacked:
        out["prepacked"] = True
    if alpha != 1.0:
        out["alpha"] = alpha
    if beta != 0.0:
        out["beta"] = beta
    if _same(out, problem):  # most problems are packed and have default types
        return out
    optional = {
        name: call[name]
        for name in (
            "dtype_b",
            "dtype_c",
            "dtype_d",
            "compute",
            "lda",
            "ldb",
            "ldc",
            "ldd",
            "alignment",
            "fast_accumulation",
        )
    }
    optional["strides"] = {side: call[f"stride_{side}"] for side in _STRIDES}
    full = {**out, **optional}
    for name in optional:  # leave out fields whose default gives the same problem
        rest = {key: value for key, value in full.items() if key != name}
        if _same(rest, problem):
            full = rest
    return full


def _same(values: Mapping[str, Any], problem: GemmProblem) -> bool:
    try:
        return problem_from_wire(values) == problem
    except InvalidProblem:
        return False


def _written(field: str | None, values: Mapping[str, Any]) -> str | None:
    """The wire field that holds the builder argument `field`."""
    if field == "dtype_a" and values.get("dtype_a") is None:
        return "dtype"
    if field in ("activation", "bias", "bias_axis"):
        return "epilogue"
    group = (field or "").split("_")[0]
    return {"stride": "strides", "scale": "scaling", "zero": "scaling"}.get(group, field)


def _trans(value: object, name: str) -> str:
    if isinstance(value, bool):
        return "T" if value else "N"
    if isinstance(value, str) and value.upper() in ("N", "T", "C"):
        return value.upper()
    raise InvalidProblem(f"{name} must be true, false, N, T or C, not {value!r}", name)


def _strides(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not set(value) <= set(_STRIDES):
        raise InvalidProblem(
            f"strides must be an object with a, b, c, d (elements between batches), not {value!r}",
            "strides",
        )
    given = {side: stride for side, stride in value.items() if stride is not None}
    for side, stride in given.items():
        if isinstance(stride, bool) or not isinstance(stride, int):
            raise InvalidProblem(f"strides.{side} must be an integer, not {stride!r}", "strides")
        if stride < 0:
            raise InvalidProblem(f"strides.{side} must be at least 0, not {stride}", "strides")
    return {f"stride_{side}": stride for side, stride in given.items()}


def _epilogue(value: object, call: Mapping[str, Any]) -> dict[str, Any]:
    if value is None or value == "none":
        return {}
    if isinstance(value, str):
        if value not in EPILOGUES:
            raise InvalidProblem(f"epilogue {value!r} is unknown; known: {', '.join(EPILOGUES)}", "epilogue")
        has_bias = value.split("_")[0] == "bias"
        activation = value.removeprefix("bias").strip("_") or "none"
        return {"activation": activation, "bias": _output_type(call) if has_bias else None}
    if isinstance(value, Mapping) and set(value) <= {"activation", "bias", "bias_axis"}:
        bias = value.get("bias")
        kind = _output_type(call) if bias is True else None if bias is False else bias
        out = {
            "bias": kind,
            "bias_axis": value.get("bias_axis"),
            "activation": value.get("activation"),
        }
        return {name: part for name, part in out.items() if part is not None}
    raise InvalidProblem(
        f"epilogue must be a name or an object with activation, bias and bias_axis, not {value!r}",
        "epilogue",
    )


def _output_type(call: Mapping[str, Any]) -> str:
    plain = {
        name: value for name, value in call.items() if name in ("dtype_a", "dtype_b", "dtype_c", "dtype_d")
    }
    if "dtype_a" in plain and "dtype_b" in plain:
        kinds = [dtype(plain[name], name).name for name in ("dtype_a", "dtype_b")]
        if is_weight_only(*kinds) or is_weight_only(*kinds[::-1]):  # the activations' type decides
            del plain["dtype_b"]
            plain["dtype_a"] = next(kind for kind in kinds if kind in ACTIVATION_TYPES)
    if "dtype_a" in plain and dtype(plain["dtype_a"], "dtype_a").name == FP4:  # a problem only with scales
        chosen = plain.get("dtype_d", plain.get("dtype_c"))
        name = "dtype_d" if "dtype_d" in plain else "dtype_c"
        return OUTPUTS_FOR[FP4][0] if chosen is None else dtype(chosen, name).name
    return from_blas(1, 1, 1, **plain).dtype_d


def _scaling(value: object) -> dict[str, Any]:
    if value is None or value == "none":
        return {}
    names = ("tensor", "row", *SCALES[3:], *(name for name in _MODES if name != "row"))
    if isinstance(value, str) and value in names:
        mode = _MODES.get(value, value)
        return {"scale_a": mode, "scale_b": mode}
    if isinstance(value, Mapping) and set(value) <= {"a", "b", "d", "dtype", "zero_a", "zero_b"}:
        out = {f"scale_{side}": value[side] for side in ("a", "b", "d") if value.get(side) is not None}
        for name in ("scale_a", "scale_b"):
            if isinstance(out.get(name), str) and out[name] not in (*SCALES, *_MODES, *NVFP4_SCALES):
                raise InvalidProblem(f"{name} {out[name]!r} is unknown; known: {', '.join(_SAID)}", name)
        out = {name: _MODES.get(mode, mode) if isinstance(mode, str) else mode for name, mode in out.items()}
        given = {name: value[name] for name in ("zero_a", "zero_b") if value.get(name) is not None}
        return out | given | ({"scale_dtype": value["dtype"]} if value.get("dtype") is not None else {})
    raise InvalidProblem(
        f"scaling must be one of {', '.join(names)} or an object with a, b, d, dtype, zero_a, zero_b, not "
        f"{value!r}",
        "scaling",
    )


#: Other names of scales: one a row; one a group of k of a weight matrix.
_MODES = {"row": "outer", **{f"group_{size}": name for name, size in GROUPS.items()}}
#: The names that a message lists: those that people write.
_SAID = (*(name for name in SCALES if name != "outer"), *_MODES)
