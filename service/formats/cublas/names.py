"""Translates CUDA's names of types, compute types and transposes in the logs of cuBLAS and cuBLASLt.

The logs write an enumerator without its library's prefix (cuBLASLt: R_16BF, COMPUTE_32F, OP_T) or with it and
its value (cuBLAS: CUDA_R_16BF(14)). Source: cublas_api.h, cublasLt.h and library_types.h of CUDA 13.
"""

from __future__ import annotations

import re

from service.formats.tunableop.signature import BadLineError, quote

_TYPES = {
    "R_64F": "fp64",
    "R_32F": "fp32",
    "R_16F": "fp16",
    "R_16BF": "bf16",
    "R_8F_E4M3": "fp8_e4m3",
    "R_8F_E5M2": "fp8_e5m2",
    "R_8I": "int8",
    "R_32I": "int32",
    "C_32F": "complex64",
    "C_64F": "complex128",
}
#: The pedantic and the fast fp16 and bf16 compute types are left out: no problem here has them.
_COMPUTE = {
    "COMPUTE_64F": "fp64",
    "COMPUTE_32F": "fp32",
    "COMPUTE_32F_FAST_TF32": "tf32",
    "COMPUTE_32F_EMULATED_16BFX9": "bf16x9",
    "COMPUTE_16F": "fp16",
    "COMPUTE_32I": "int32",
}
_TRANSPOSES = {"OP_N": "N", "OP_T": "T", "OP_C": "C"}
_NUMBER = re.compile("0|[1-9][0-9]*")


def type_name(text: str, what: str) -> str:
    """The storage type of a cudaDataType. Raises BadLineError."""
    return choice(_TYPES, text, what)


def compute_name(text: str) -> str:
    """The compute type of a cublasComputeType_t. Raises BadLineError."""
    return choice(_COMPUTE, text, "computeType")


def transpose(text: str, what: str) -> str:
    """N, T or C. Raises BadLineError."""
    return choice(_TRANSPOSES, text, what)


def choice(known: dict[str, str], text: str, what: str) -> str:
    """known[text]. Raises BadLineError."""
    if text not in known:
        raise BadLineError(f"{what} {quote(text)} is not supported; known: {', '.join(known)}")
    return known[text]


def number(text: str, what: str) -> int:
    """A decimal from 0 that fits a signed 64-bit integer. Raises BadLineError."""
    if _NUMBER.fullmatch(text) is None:
        if _NUMBER.fullmatch(text.removeprefix("-")):
            raise BadLineError(f"{what} {quote(text)} is negative")
        raise BadLineError(f"{what} {quote(text)} is not a whole number")
    if len(text) > 19 or int(text) >= 2**63:
        raise BadLineError(f"{what} {quote(text)} does not fit 64 bits")
    return int(text)


def alignment(addresses: list[int]) -> int:
    """The largest power of two, at most 16 bytes, of which every address is a multiple."""
    least = 16
    for address in addresses:
        while address % least:
            least //= 2
    return least
