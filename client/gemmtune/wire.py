"""The wire form of a problem, as people write it: {"m": 16, "n": 4096, "k": 4096, "dtype": "bf16"}.

Row-major unless "layout" is "col". The service has the same parser in backends/wire.py; a test compares both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.errors import ProblemError
from gemmtune.problem import from_column_major, from_row_major, output_type, renamed
from gemmtune.weights import GROUPS

_PLAIN = ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd", "dtype_b", "dtype_c", "dtype_d",
          "compute", "alpha", "beta", "alignment", "fast_accumulation", "groups", "routing",
          "prepacked")  # fmt: skip
FIELDS = (
    *_PLAIN, "dtype", "dtype_a", "trans_a", "trans_b", "epilogue", "scaling", "strides", "layout",
)  # fmt: skip
_ACTIVATIONS = ("none", "relu", "gelu", "silu", "swiglu")
_EPILOGUES = (*_ACTIVATIONS, "bias", *(f"bias_{name}" for name in _ACTIVATIONS[1:-1]))
_SCALINGS = ("tensor", "row", "block_1x128", "block_128x128", "block_32", "block_1x32", "block_1x64")


def canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    """The canonical problem of a wire form. Raises ProblemError, which names the field at fault."""
    given = {name: value for name, value in values.items() if value is not None}
    for name in values:
        if name not in FIELDS:
            raise ProblemError(f"unknown field {name!r}; known: {', '.join(sorted(FIELDS))}", str(name))
    for name in ("m", "n", "k"):
        if name not in given:
            raise ProblemError(f"{name} is missing", name)
    if "dtype" in given and "dtype_a" in given:
        raise ProblemError("give dtype or dtype_a, not both", "dtype_a")
    call: dict[str, Any] = {name: given[name] for name in _PLAIN if name in given}
    call["dtype_a"] = given.get("dtype", given.get("dtype_a", "fp32"))
    for name in ("trans_a", "trans_b"):
        if name in given:
            call[name] = _trans(given[name], name)
    layout = given.get("layout", "row")
    if layout not in ("row", "col"):
        raise ProblemError(f"layout {layout!r} is unknown; known: row, col", "layout")
    call |= _strides(given.get("strides")) | _epilogue(given.get("epilogue"), call)
    call |= _scaling(given.get("scaling"))
    call = {name: value for name, value in call.items() if value is not None}
    try:
        return from_column_major(**call) if layout == "col" else from_row_major(**call)
    except ProblemError as error:
        if error.field in ("dtype_a", "dtype_b") and error.field not in given:
            raise renamed(error, "dtype") from None
        raise


def _trans(value: object, name: str) -> str:
    if isinstance(value, bool):
        return "T" if value else "N"
    if isinstance(value, str) and value.upper() in ("N", "T", "C"):
        return value.upper()
    raise ProblemError(f"{name} must be true, false, N, T or C, not {value!r}", name)


def _strides(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not set(value) <= set("abcd"):
        raise ProblemError(
            f"strides must have a, b, c, d (elements between batches), not {value!r}", "strides"
        )
    return {f"stride_{side}": stride for side, stride in value.items() if stride is not None}


def _epilogue(value: object, call: Mapping[str, Any]) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str) and value in _EPILOGUES:
        has_bias = value.startswith("bias")
        activation = value.removeprefix("bias").removeprefix("_") or "none"
        return {"activation": activation, "bias": output_type(call) if has_bias else None}
    if isinstance(value, Mapping) and set(value) <= {"activation", "bias", "bias_axis"}:
        bias = value.get("bias")
        kind = output_type(call) if bias is True else None if bias is False else bias
        return {"activation": value.get("activation"), "bias_axis": value.get("bias_axis"), "bias": kind}
    raise ProblemError(
        f"epilogue must be one of {', '.join(_EPILOGUES)}, or have activation, bias and bias_axis, "
        f"not {value!r}",
        "epilogue",
    )


def _scaling(value: object) -> dict[str, Any]:
    if value is None or value == "none":
        return {}
    if isinstance(value, str) and value in _SCALINGS:
        return dict.fromkeys(("scale_a", "scale_b"), _scale(value))
    if isinstance(value, Mapping) and set(value) <= {"a", "b", "d", "dtype", "zero_a", "zero_b"}:
        found = {f"scale_{side}": _scale(value[side]) for side in "abd" if value.get(side) is not None}
        zeros = {name: value.get(name) for name in ("zero_a", "zero_b")}
        return found | zeros | {"scale_dtype": value.get("dtype")}
    raise ProblemError(
        f"scaling must be one of {', '.join(_SCALINGS)}, or have a, b, d, dtype, zero_a and zero_b, not "
        f"{value!r}",
        "scaling",
    )


#: Other names of scales: one a row; one a group of k of a weight matrix.
_MODES = {"row": "outer", **{f"group_{size}": name for name, size in GROUPS.items()}}


def _scale(mode: object) -> object:
    return _MODES.get(mode, mode) if isinstance(mode, str) else mode
