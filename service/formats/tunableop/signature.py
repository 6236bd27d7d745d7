"""Reads the two signatures that TunableOp files are keyed by as problems in column-major BLAS terms.

Their grammar grew with PyTorch (the forms are in reader.py). What a key does not record is assumed: alpha 1,
beta 0, batches packed one after another, packed leading dimensions, tensor scales in fp32, no fast
accumulation, no bias of a scaled GEMM, no activation. A problem with other values has no key (key.py).

Source: aten/src/ATen/cuda/tunable/{GemmCommon,TunableGemm}.h of PyTorch 2.4 to 2.15.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from backends.problem import GemmProblem, from_blas
from service.formats.core.base import printable

#: Type names of operator signatures -> (storage type, compute type; None: the storage type's default).
TYPES: dict[str, tuple[str, str | None]] = {
    "float": ("fp32", None),
    "tf32": ("fp32", "tf32"),
    "bfx9": ("fp32", "bf16x9"),
    "double": ("fp64", None),
    "Half": ("fp16", None),
    "BFloat16": ("bf16", None),
    "c10::complex<float>": ("complex64", None),
    "c10::complex<double>": ("complex128", None),
    "Float8_e4m3fn": ("fp8_e4m3", None),
    "Float8_e5m2": ("fp8_e5m2", None),
    "Float8_e4m3fnuz": ("fp8_e4m3_fnuz", None),
    "Float8_e5m2fnuz": ("fp8_e5m2_fnuz", None),
}
#: The 8-bit floats among them, which scaled GEMMs multiply.
FP8 = {name: storage for name, (storage, _) in TYPES.items() if name.startswith("Float8_")}
#: Type names inside parameter signatures are c10::ScalarType names, which capitalise Float.
PLAIN = {"Float": "fp32", "float": "fp32", "Half": "fp16", "BFloat16": "bf16"}
_SCALES = {
    "Float": "fp32",
    "float": "fp32",
    "Float8_e8m0fnu": "fp8_e8m0",
    "Float8_e4m3fn": "fp8_e4m3",
}
#: Type names that PyTorch may write but no problem here has.
_UNSUPPORTED = ("Float4_e2m1fn_x2", "Float8_e8m0fnu", "unknown")
#: Scaling types, as numbers -> scale modes.
SCALING_TYPES = {"0": "tensor", "1": "outer"}
#: The fields that end the parameters of an fp32 GEMM that is computed in bf16x9.
COMPUTE = ("compute", "bf16x9", "r")

_OPERATORS = ("GemmStridedBatched", "GemmAndBias", "ScaledGemm", "Gemm")
_OPERATOR = re.compile(rf"({'|'.join(_OPERATORS)})TunableOp_(.*)_([A-Za-z]+)")
_TYPE = r"(Float[0-9]+_[a-z0-9]+(?:_x2)?|(?!Float[0-9])[^_]+)"
_THREE_TYPES = re.compile(f"{_TYPE}_{_TYPE}_{_TYPE}")
_NUMBER = re.compile("[1-9][0-9]*")


class BadLineError(Exception):
    """The line cannot be read; the message is the reason."""


@lru_cache(maxsize=2**15)  # logs and tuned files repeat their signatures
def parse_key(operator: str, parameters: str) -> GemmProblem:
    """The problem of two signatures. Raises BadLineError or InvalidProblem."""
    op, types, layout = operator_parts(operator)
    fields = _Fields(parameters)
    call = _layout(layout, fields.take("the layout letters"))
    call |= {name: fields.number(name) for name in ("m", "n", "k")}
    if op == "GemmStridedBatched":
        fields.expect("B")
        call["batch"] = fields.number("batch")
    call |= _leading_dimensions(fields, call)
    call |= _scaled(types, fields, "lda" in call) if op == "ScaledGemm" else _plain(types, op)
    if types == "bfx9" and fields.next_is(COMPUTE[0]):
        for label in COMPUTE:
            fields.expect(label)
    fields.end()
    return from_blas(**call)


def operator_parts(operator: str) -> tuple[str, str, str]:
    """(operator, type names, layout letters) of an operator signature. Raises BadLineError."""
    match = _OPERATOR.fullmatch(operator)
    if match is None:
        known = ", ".join(f"{name}TunableOp_" for name in _OPERATORS)
        raise BadLineError(
            f"no operator signature: {quote(operator)}; it is one of {known}, types and a layout such as _TN"
        )
    op, types, layout = match.groups()
    return op, types, layout


# ---- the fields of a parameter signature ---------------------------------------------------------


class _Fields:
    """The `_`-separated fields of a parameter signature, taken from the left."""

    def __init__(self, text: str) -> None:
        self._left = text.split("_")[::-1]

    def take(self, what: str) -> str:
        if not self._left:
            raise BadLineError(f"the parameters are cut short: {what} is missing")
        return self._left.pop()

    def left(self) -> bool:
        return bool(self._left)

    def next_is(self, label: str) -> bool:
        return self.left() and self._left[-1] == label

    def expect(self, label: str) -> None:
        found = self.take(f"_{label}_")
        if found != label:
            raise BadLineError(f"expected _{label}_ in the parameters, found {quote(found)}")

    def number(self, what: str) -> int:
        """A positive decimal that fits a signed 64-bit integer, as PyTorch prints one."""
        text = self.take(what)
        if _NUMBER.fullmatch(text) is None:
            if text == "*":
                raise BadLineError(
                    f"{what} is *: the row stands for many shapes, and says of none how fast it is"
                )
            if text == "0":
                raise BadLineError(f"{what} is 0; it must be at least 1")
            if _NUMBER.fullmatch(text.removeprefix("-")):
                raise BadLineError(f"{what} {quote(text)} is negative; it must be at least 1")
            raise BadLineError(f"{what} {quote(text)} is not a whole number")
        if len(text) > 19 or int(text) >= 2**63:
            raise BadLineError(f"{what} {quote(text)} does not fit 64 bits")
        return int(text)

    def choice(self, label: str, known: dict[str, str]) -> str:
        """The value of `_<label>_<value>`; a value may itself hold underscores."""
        self.expect(label)
        text = self.take(f"the value of {label}")
        while text not in known and self._left and any(k.startswith(f"{text}_") for k in known):
            text += "_" + self._left.pop()
        if text not in known:
            raise BadLineError(f"{label} {quote(text)} is not supported; known: {', '.join(known)}")
        return known[text]

    def flag(self, label: str) -> bool:
        return self.choice(label, {"0": "0", "1": "1"}) == "1"

    def end(self) -> None:
        if self._left:
            raise BadLineError(f"{quote('_'.join(reversed(self._left)))} is left over after the parameters")


# ---- from fields to the arguments of a BLAS call -------------------------------------------------


def _layout(upper: str, lower: str) -> dict[str, Any]:
    if re.fullmatch("[NTC]{2}", upper) is None:
        raise BadLineError(f"layout {quote(upper)} of the operator is not NN, NT, TN or TT")
    if re.fullmatch("[ntc]{2}", lower) is None:
        raise BadLineError(f"the parameters start with {quote(lower)}, not with two of the letters n, t, c")
    # PyTorch's operator knows only N and T: a conjugated operand is T there and c in the parameters.
    if any(
        up not in (low.upper(), low.upper().replace("C", "T")) for up, low in zip(upper, lower, strict=True)
    ):
        raise BadLineError(f"the operator says {upper}, but its parameters say {lower}")
    return {"trans_a": lower[0].upper(), "trans_b": lower[1].upper()}


def _leading_dimensions(fields: _Fields, call: dict[str, Any]) -> dict[str, Any]:
    if not fields.next_is("ld"):
        return {}
    fields.expect("ld")
    m, n, k = call["m"], call["n"], call["k"]
    shapes = {
        "lda": (m, k) if call["trans_a"] == "N" else (k, m),
        "ldb": (k, n) if call["trans_b"] == "N" else (n, k),
        "ldc": (m, n),
    }
    found = {}
    for name, (rows, columns) in shapes.items():
        found[name] = fields.number(name)
        # PyTorch records the stride of a single column unchanged and corrects it only in the call to
        # BLAS. No implementation reads it, so a value below the number of rows is raised to it.
        if columns == 1:
            found[name] = max(found[name], rows)
    return found


def _plain(type_name: str, op: str) -> dict[str, Any]:
    storage, compute = _type(type_name)
    bias = storage if op == "GemmAndBias" else None
    return {"dtype_a": storage, "dtype_d": storage, "compute": compute, "bias": bias}


def _scaled(types: str, fields: _Fields, has_ld: bool) -> dict[str, Any]:
    match = _THREE_TYPES.fullmatch(types)
    if match is None:
        raise BadLineError(f"{quote(types)} is not the three type names of a scaled GEMM")
    names = match.groups()
    a, b, d = (_type(name)[0] for name in names)
    for side, name in zip("AB", names[:2], strict=True):
        if name not in FP8:
            raise BadLineError(
                f"type {name} of {side} is not an 8-bit float, as a scaled GEMM's must be: {', '.join(FP8)}"
            )
    outputs = PLAIN | FP8
    if names[2] not in outputs:
        raise BadLineError(f"type {names[2]} of the output is not supported; known: {', '.join(outputs)}")
    call: dict[str, Any] = {
        "dtype_a": a,
        "dtype_b": b,
        "dtype_d": d,
        "scale_a": "tensor",
        "scale_b": "tensor",
    }
    if fields.next_is("rw"):
        if fields.flag("rw"):
            call |= {"scale_a": "outer", "scale_b": "outer"}
        return call | (_bias(fields) if fields.left() else {})
    if not fields.left():
        return call
    if not has_ld:
        fields.expect("ld")
    return call | _scaled_options(fields, {"a": a, "b": b, "c": d})


def _scaled_options(fields: _Fields, types: dict[str, str]) -> dict[str, Any]:
    for side, known in (("a", FP8), ("b", FP8), ("c", PLAIN | FP8)):
        if fields.choice(side, known) != types[side]:
            raise BadLineError(f"type {side} of the parameters is not the operator's")
    scales = {fields.choice(side, _SCALES) for side in ("as", "bs")}
    if len(scales) > 1:
        raise BadLineError(f"scales of two types ({', '.join(sorted(scales))}) are not supported")
    modes = {f"scale_{side}": fields.choice(f"{side}st", SCALING_TYPES) for side in "ab"}
    scale_d = "tensor" if fields.flag("dscale") else "none"
    fast = fields.flag("fast")
    return {
        **modes,
        "scale_d": scale_d,
        "scale_dtype": scales.pop(),
        "fast_accumulation": fast,
        **_bias(fields),
    }


def _bias(fields: _Fields) -> dict[str, Any]:
    return {"bias": fields.choice("bias", {"None": "", **PLAIN}) or None}


def _type(name: str) -> tuple[str, str | None]:
    if name in TYPES:
        return TYPES[name]
    if name in _UNSUPPORTED:
        raise BadLineError(f"type {name} is not supported; supported: {', '.join(TYPES)}")
    raise BadLineError(f"unknown type name {quote(name)}; known: {', '.join(TYPES)}")


def quote(text: str) -> str:
    """A text of a file in quotes for a message, printable, cut at 40 characters."""
    return f"'{printable(text, 40)}{'...' if len(text) > 40 else ''}'"
