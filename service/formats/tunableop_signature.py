"""The two signatures that TunableOp files are keyed by, read and built, in column-major BLAS terms.

Their grammar grew with PyTorch (the forms are in tunableop.py). What a key does not record is taken as:
alpha 1, beta 0, batches packed one after another, leading dimensions packed, tensor scales in fp32, no
fast accumulation, no bias of a scaled GEMM, no activation. A problem whose own values differ from these
has no key. Source: aten/src/ATen/cuda/tunable/{GemmCommon,TunableGemm}.h of PyTorch 2.4 to 2.15.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backends.problem import GemmProblem, from_blas
from service.formats.base import printable

#: Type names of operator signatures -> (storage, compute; None is the storage's own default).
_TYPES: dict[str, tuple[str, str | None]] = {
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
_FP8 = {name: storage for name, (storage, _) in _TYPES.items() if name.startswith("Float8_")}
#: Type names inside parameter signatures are c10::ScalarType names, which capitalise Float.
_PLAIN = {"Float": "fp32", "float": "fp32", "Half": "fp16", "BFloat16": "bf16"}
_SCALES = {
    "Float": "fp32",
    "float": "fp32",
    "Float8_e8m0fnu": "fp8_e8m0",
    "Float8_e4m3fn": "fp8_e4m3",
}
#: Names that PyTorch may write and that no GEMM here has.
_UNSUPPORTED = ("Float4_e2m1fn_x2", "Float8_e8m0fnu", "unknown")
_SCALING_TYPES = {"0": "tensor", "1": "outer"}
#: What ends the parameters of an fp32 GEMM that is computed in bf16x9.
_COMPUTE = ("compute", "bf16x9", "r")

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
    if types == "bfx9" and fields.next_is(_COMPUTE[0]):
        for label in _COMPUTE:
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
    # PyTorch's operator knows N and T alone: a conjugated operand is a T there and a c here.
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
        # PyTorch records the stride of a single column as it comes and mends it only in the call to
        # BLAS. Nothing reads it, so it is never too small.
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
        if name not in _FP8:
            raise BadLineError(
                f"type {name} of {side} is not an 8-bit float, as a scaled GEMM's must be: {', '.join(_FP8)}"
            )
    outputs = _PLAIN | _FP8
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
    for side, known in (("a", _FP8), ("b", _FP8), ("c", _PLAIN | _FP8)):
        if fields.choice(side, known) != types[side]:
            raise BadLineError(f"type {side} of the parameters is not the operator's")
    scales = {fields.choice(side, _SCALES) for side in ("as", "bs")}
    if len(scales) > 1:
        raise BadLineError(f"scales of two types ({', '.join(sorted(scales))}) are not supported")
    modes = {f"scale_{side}": fields.choice(f"{side}st", _SCALING_TYPES) for side in "ab"}
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
    return {"bias": fields.choice("bias", {"None": "", **_PLAIN}) or None}


def _type(name: str) -> tuple[str, str | None]:
    if name in _TYPES:
        return _TYPES[name]
    if name in _UNSUPPORTED:
        raise BadLineError(f"type {name} is not supported; supported: {', '.join(_TYPES)}")
    raise BadLineError(f"unknown type name {quote(name)}; known: {', '.join(_TYPES)}")


def quote(text: str) -> str:
    return f"'{printable(text, 40)}{'...' if len(text) > 40 else ''}'"


# ---- from a problem to its key -------------------------------------------------------------------


@dataclass(frozen=True)
class Grammar:
    """What a version's keys record: leading dimensions; of a scaled GEMM its row scaling and bias (short),
    all its types and scalings (long), or neither (none); the operators and type names that it has."""

    leading_dimensions: bool = True
    scaled: str = "short"
    and_bias: bool = True
    tf32: bool = True
    bf16x9: bool = False


class NoKeyError(Exception):
    """No key says this problem; the message is the reason, the same for all problems of that kind."""


_NAMES = {(storage, compute): name for name, (storage, compute) in _TYPES.items()}
_DEFAULT_COMPUTE = {"fp64": "fp64", "complex128": "fp64"}
_SCALAR_NAMES = {"fp32": "Float", "fp16": "Half", "bf16": "BFloat16"}
_SCALAR_NAMES |= {storage: name for name, storage in _FP8.items()}
_SCALE_NAMES = {"fp32": "Float", "fp8_e8m0": "Float8_e8m0fnu", "fp8_e4m3": "Float8_e4m3fn"}
_SCALING_NUMBERS = {mode: number for number, mode in _SCALING_TYPES.items()}
_MODES = ("tensor", "outer")


def build_key(p: GemmProblem, grammar: Grammar) -> str:
    """`<operator signature>,<parameter signature>`; parse_key() reads the same problem back. Raises
    NoKeyError exactly where no key of this grammar would."""
    _check_unrecorded(p)
    letters = p.trans_a + p.trans_b
    parameters = f"{letters.lower()}_{p.m}_{p.n}_{p.k}"
    scaled = p.scale_dtype is not None
    if p.batch > 1:
        parameters += f"_B_{p.batch}"
    if grammar.leading_dimensions:
        parameters += f"_ld_{p.lda}_{p.ldb}_{p.ldd}"
    elif p.ldd != p.m or p.lda != _shape_a(p)[0] or p.ldb != _shape_b(p)[0]:
        raise NoKeyError("its leading dimensions are padded, and keys before torch 2.7 do not record them")
    upper = letters.replace("C", "T")
    if scaled:
        types = "_".join(_type_name(p, kind, grammar) for kind in (p.dtype_a, p.dtype_b, p.dtype_d))
        return f"ScaledGemmTunableOp_{types}_{upper},{parameters}{_scaled_fields(p, grammar)}"
    if p.dtype_b != p.dtype_a or p.dtype_d != p.dtype_a:
        raise NoKeyError("its operands have several types, which only the keys of scaled GEMMs record")
    op = "Gemm" if p.batch == 1 else "GemmStridedBatched"
    if p.bias is not None:
        op = "GemmAndBias"
        if p.batch > 1 or p.bias != p.dtype_a:
            raise NoKeyError("TunableOp adds a bias to one GEMM at a time, in the type of its operands")
        if not grammar.and_bias:
            raise NoKeyError("TunableOp has GEMMs with a bias from torch 2.5 on")
    compute = "_" + "_".join(_COMPUTE) if p.compute == "bf16x9" else ""
    return f"{op}TunableOp_{_type_name(p, p.dtype_a, grammar)}_{upper},{parameters}{compute}"


def _check_unrecorded(p: GemmProblem) -> None:
    """What no key records must be as parse_key() takes it."""
    if p.alpha != "one" or p.beta != "zero":
        raise NoKeyError(
            "TunableOp's keys say nothing of alpha and beta, so only alpha 1 and beta 0 are safe"
        )
    if p.activation != "none":
        raise NoKeyError("TunableOp's keys say nothing of an activation")
    if p.bias is not None and p.bias_axis != "m":
        raise NoKeyError("TunableOp's bias lies along the rows of a column-major output")
    if p.fast_accumulation and p.scale_dtype is None:
        raise NoKeyError("fast accumulation is recorded for scaled GEMMs only")
    if p.alignment != 16:
        raise NoKeyError("TunableOp's keys say nothing of alignments below 16 bytes")
    if p.batch > 1 and (
        p.stride_d != p.ldd * p.n
        or p.stride_a != p.lda * _shape_a(p)[1]
        or p.stride_b != p.ldb * _shape_b(p)[1]
    ):
        raise NoKeyError(
            "its batches are not packed one after another, and TunableOp's keys record no strides"
        )


def _shape_a(p: GemmProblem) -> tuple[int, int]:
    return (p.m, p.k) if p.trans_a == "N" else (p.k, p.m)


def _shape_b(p: GemmProblem) -> tuple[int, int]:
    return (p.k, p.n) if p.trans_b == "N" else (p.n, p.k)


def _type_name(p: GemmProblem, storage: str, grammar: Grammar) -> str:
    compute = None if p.compute == _DEFAULT_COMPUTE.get(storage, "fp32") else p.compute
    if (compute == "tf32" and not grammar.tf32) or (compute == "bf16x9" and not grammar.bf16x9):
        raise NoKeyError(f"this torch has no type name for {compute}")
    name = _NAMES.get((storage, compute))
    if name is None:
        raise NoKeyError(f"TunableOp has no type name for {storage} computed in {p.compute}")
    return name


def _scaled_fields(p: GemmProblem, grammar: Grammar) -> str:
    types = (p.dtype_a, p.dtype_b)
    if p.batch > 1 or not all(kind in _FP8.values() for kind in types) or p.dtype_d not in _SCALAR_NAMES:
        raise NoKeyError("TunableOp's scaled GEMMs are single ones of 8-bit floats")
    if p.scale_a not in _MODES or p.scale_b not in _MODES:
        raise NoKeyError("TunableOp's scaled GEMMs have one scale a tensor or one a row; no blocks")
    if p.bias is not None and p.bias not in _PLAIN.values():
        raise NoKeyError("TunableOp's biases are fp32, fp16 or bf16")
    bias = "None" if p.bias is None else _SCALAR_NAMES[p.bias]
    modes = (_SCALING_NUMBERS[p.scale_a], _SCALING_NUMBERS[p.scale_b])
    if grammar.scaled == "long":
        names = [_SCALAR_NAMES[kind] for kind in (*types, p.dtype_d)]
        scale = _SCALE_NAMES[p.scale_dtype or "fp32"]
        return (
            f"_a_{names[0]}_b_{names[1]}_c_{names[2]}_as_{scale}_bs_{scale}_ast_{modes[0]}_bst_{modes[1]}"
            f"_dscale_{int(p.scale_d == 'tensor')}_fast_{int(p.fast_accumulation)}_bias_{bias}"
        )
    if p.scale_dtype != "fp32" or p.scale_d != "none" or p.fast_accumulation or len(set(modes)) > 1:
        raise NoKeyError(
            "its scaling (scale types, output scale, fast accumulation, A's and B's apart) is recorded by "
            "CUDA builds from torch 2.15 on only"
        )
    if grammar.scaled == "short":
        return f"_rw_{modes[0]}_bias_{bias}"
    if p.bias is not None or p.scale_a != "tensor":
        raise NoKeyError("scaled GEMMs with a bias or row scales are recorded from torch 2.7 on only")
    return ""


def fits(key: str, grammar: Grammar) -> bool:
    """Whether a key text (two signatures) is one that a version of this grammar may ask for."""
    operator, _, parameters = key.partition(",")
    if ("_ld_" in parameters) != grammar.leading_dimensions:
        return False
    if operator.startswith("ScaledGemm"):
        return _scaled_form(parameters) == grammar.scaled
    if operator.startswith("GemmAndBias") and not grammar.and_bias:
        return False
    if "_bfx9_" in operator:
        return grammar.bf16x9 and parameters.endswith("_".join(_COMPUTE))
    return "_tf32_" not in operator or grammar.tf32


def _scaled_form(parameters: str) -> str:
    if "_ast_" in parameters:
        return "long"
    if "_rw_" in parameters:
        return "short" if "_bias_" in parameters else "no release's"
    return "none"
