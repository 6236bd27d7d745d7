"""Builds the keys of TunableOp files from problems: the two signatures as a version of PyTorch writes them. A
problem has no key if signature.py would read another problem back."""

from __future__ import annotations

from dataclasses import dataclass

from backends.problem import GemmProblem
from service.formats.tunableop.signature import COMPUTE, FP8, PLAIN, SCALING_TYPES, TYPES

_NAMES = {(storage, compute): name for name, (storage, compute) in TYPES.items()}
_DEFAULT_COMPUTE = {"fp64": "fp64", "complex128": "fp64"}
_SCALAR_NAMES = {"fp32": "Float", "fp16": "Half", "bf16": "BFloat16"}
_SCALAR_NAMES |= {storage: name for name, storage in FP8.items()}
_SCALE_NAMES = {"fp32": "Float", "fp8_e8m0": "Float8_e8m0fnu", "fp8_e4m3": "Float8_e4m3fn"}
_SCALING_NUMBERS = {mode: number for number, mode in SCALING_TYPES.items()}
_MODES = ("tensor", "outer")


@dataclass(frozen=True)
class Grammar:
    """What the keys of a PyTorch version record. `scaled`: of a scaled GEMM its row scaling and bias (short),
    all its types and scalings (long), or neither (none). `and_bias`, `tf32` and `bf16x9`: the version has
    that operator or type name."""

    leading_dimensions: bool = True
    scaled: str = "short"
    and_bias: bool = True
    tf32: bool = True
    bf16x9: bool = False


class NoKeyError(Exception):
    """No key expresses this problem; the message is the reason, the same for all such problems."""


def build_key(p: GemmProblem, grammar: Grammar) -> str:
    """`<operator signature>,<parameter signature>`; parse_key() reads the same problem back. Raises
    NoKeyError if and only if no key of this grammar expresses the problem."""
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
    compute = "_" + "_".join(COMPUTE) if p.compute == "bf16x9" else ""
    return f"{op}TunableOp_{_type_name(p, p.dtype_a, grammar)}_{upper},{parameters}{compute}"


def _check_unrecorded(p: GemmProblem) -> None:
    """Raises NoKeyError if a value that no key records is not the one that parse_key() assumes."""
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
    if p.batch > 1 or not all(kind in FP8.values() for kind in types) or p.dtype_d not in _SCALAR_NAMES:
        raise NoKeyError("TunableOp's scaled GEMMs are single ones of 8-bit floats")
    if p.scale_a not in _MODES or p.scale_b not in _MODES:
        raise NoKeyError("TunableOp's scaled GEMMs have one scale a tensor or one a row; no blocks")
    if p.bias is not None and p.bias not in PLAIN.values():
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
    """Whether a PyTorch with this grammar may look up this key (two signatures)."""
    operator, _, parameters = key.partition(",")
    if ("_ld_" in parameters) != grammar.leading_dimensions:
        return False
    if operator.startswith("ScaledGemm"):
        return _scaled_form(parameters) == grammar.scaled
    if operator.startswith("GemmAndBias") and not grammar.and_bias:
        return False
    if "_bfx9_" in operator:
        return grammar.bf16x9 and parameters.endswith("_".join(COMPUTE))
    return "_tf32_" not in operator or grammar.tf32


def _scaled_form(parameters: str) -> str:
    if "_ast_" in parameters:
        return "long"
    if "_rw_" in parameters:
        return "short" if "_bias_" in parameters else "no release's"
    return "none"
