"""The solution names of TunableOp results files, read and written.

    Default                                  the framework's own call
    Gemm_Rocblas_<index>                     may be negative
    Gemm_Hipblaslt_<index>                   from torch 2.7; Gemm_Hipblaslt_<TN>_<index> before
    Gemm_Cublaslt_id_<>_tile_<>_stages_<>_splitk_<>_red_<>_swizzle_<>_custom_<>_inner_<>_cluster_<>

The last exists from torch 2.14 on CUDA. It has the nine attributes of a cublasLtMatmulAlgo_t. torch sets them
on a new algorithm and checks it before use, so a row may name any legal configuration, not only those that
torch searches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from backends.solution import Solution
from service.formats.tunableop.signature import BadLineError, quote

DEFAULT = "Default"
#: Library families -> the validator that names their build.
BUILD_OF: Mapping[str, str] = {
    "rocblas": "ROCBLAS_VERSION",
    "hipblaslt": "HIPBLASLT_VERSION",
    "cublaslt": "CUBLASLT_VERSION",
}

#: cuBLASLt's attributes: the label in the name, the parameter here, the first value that is too large. No
#: value is negative, except splitk -1, which leaves the split of k to the library.
_ATTRIBUTES = (
    ("id", "algo_id", 2**31),
    ("tile", "tile_id", 2**32),
    ("stages", "stages_id", 2**32),
    ("splitk", "splitk_num", 2**31),
    ("red", "reduction_scheme", 2**32),
    ("swizzle", "cta_swizzling", 2**32),
    ("custom", "custom_option", 2**32),
    ("inner", "inner_shape_id", 2**16),
    ("cluster", "cluster_shape_id", 2**16),
)
_INT = "(0|-?[1-9][0-9]{0,18})"
_ROCBLAS = re.compile(f"Gemm_Rocblas_{_INT}")
_HIPBLASLT = re.compile(f"Gemm_Hipblaslt_(?:([NTC]{{2}})_)?{_INT}")
_CUBLASLT = re.compile("Gemm_Cublaslt" + "".join(f"_{label}_{_INT}" for label, _, _ in _ATTRIBUTES))
_FORMS = "Default, Gemm_Rocblas_<index>, Gemm_Hipblaslt_<index>, Gemm_Cublaslt_id_<id>_tile_<id>_..."


def parse_solution(name: str, layout: str, validators: Mapping[str, str]) -> Solution | None:
    """The solution of a row whose operator ends in `layout`; None is the default. Raises BadLineError."""
    if name == DEFAULT:
        return None
    if found := _ROCBLAS.fullmatch(name):
        return _indexed("rocblas", name, found[1], validators)
    if found := _HIPBLASLT.fullmatch(name):
        if found[1] is not None and found[1] != layout:
            raise BadLineError(f"solution {quote(name)} is for {found[1]}, but the operator says {layout}")
        return _indexed("hipblaslt", name, found[2], validators)
    if found := _CUBLASLT.fullmatch(name):
        values = {}
        for (label, parameter, end), text in zip(_ATTRIBUTES, found.groups(), strict=True):
            values[parameter] = int(text)
            first = _first(parameter)
            if not first <= values[parameter] < end:
                raise BadLineError(f"{label} {text} of solution {quote(name)} is not within [{first}, {end})")
        return Solution("cublaslt", 1, values, validators.get(BUILD_OF["cublaslt"]))
    raise BadLineError(f"unknown solution {quote(name)}; known forms: {_FORMS}")


def _indexed(family: str, name: str, text: str, validators: Mapping[str, str]) -> Solution:
    index = int(text)
    if not -(2**31) <= index < 2**31:
        raise BadLineError(f"the index of solution {quote(name)} does not fit 32 bits")
    return Solution(family, 1, {"solution_index": index}, validators.get(BUILD_OF[family]))


def solution_name(solution: Solution, layout: str | None = None) -> str | None:
    """The name of a library's solution; None if it lacks the parameters that a name is made of. `layout` is
    the operator's if the names of hipBLASLt's solutions repeat it, else None."""
    if solution.family == "cublaslt":
        values = [solution.parameters.get(parameter) for _, parameter, _ in _ATTRIBUTES]
        if len(solution.parameters) != len(_ATTRIBUTES) or not all(
            _is_int(value) and _first(parameter) <= value < end  # type: ignore[operator]
            for value, (_, parameter, end) in zip(values, _ATTRIBUTES, strict=True)
        ):
            return None
        labelled = zip(_ATTRIBUTES, values, strict=True)
        return "Gemm_Cublaslt" + "".join(f"_{label}_{value}" for (label, _, _), value in labelled)
    index = solution.parameters.get("solution_index")
    if len(solution.parameters) != 1 or not _is_int(index):
        return None
    if solution.family == "rocblas":
        return f"Gemm_Rocblas_{index}"
    return f"Gemm_Hipblaslt_{index}" if layout is None else f"Gemm_Hipblaslt_{layout}_{index}"


def _first(parameter: str) -> int:
    return -1 if parameter == "splitk_num" else 0


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
