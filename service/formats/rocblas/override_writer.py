"""Writes rows into the override file of one rocBLAS build.

The key of a row (see override.py) records the problem, so a row is used only where it was measured, with
three exceptions: alpha, a conjugated operand in place of a transposed one, and D's layout if it is not C's.
Rows that differ only in the first two share a key; a row of the third kind is left out. Problems for which
rocBLAS has no GEMM (bias, activation, scales, 8-bit floats, types that do not go together) are left out, and
so is tf32, which has no name in the file: rocBLAS computes in it by a mode of the handle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from backends.export_targets import EXPORT_TARGETS
from backends.problem import GemmProblem
from service.formats.core import override
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core.override import (
    Keyed,
    OmittedError,
    UnnamedError,
    Validators,
    best_named,
    families_of,
    with_environments,
)
from service.formats.core.rocm_values import TYPES, build_note

COLUMNS = (
    "transA", "transB", "M", "N", "batch_count", "K", "alpha", "beta", "lda", "ldb", "ldc",
    "input_type", "output_type", "compute_type", "solution_index",
)  # fmt: skip
STRIDED = (*COLUMNS[:11], "stride_a", "stride_b", "stride_c", *COLUMNS[11:])
#: Number of negative indices, from -1 on, that name no solution of Tensile: c_rocblas_solutions_reserved.
RESERVED = 10

#: ROCm -> its rocBLAS. ROCm 5.7, the first to read such files, is missing: there the index is zero-based, but
#: only in the file.
_ROCBLAS: Mapping[str, str] = {
    "6.0": "4.0", "6.1": "4.1", "6.2": "4.2", "6.3": "4.3", "6.4": "4.4", "7.0": "5.0", "7.1": "5.1",
    "7.2": "5.2",
}  # fmt: skip
#: The accepted targets, as shown to users.
FORMS = ("rocm-<major>.<minor>, 6.0 to 6.4 and 7.0 to 7.2: rows name Tensile's solutions",)
_TARGET = re.compile(r"rocm-([0-9]\.[0-9])")
_READER = "rocBLAS's override file"
_TARGETS = (EXPORT_TARGETS["rocblas"],)
_SAYS: Mapping[str, override.Says] = {
    "ROCBLAS_VERSION": override.library("rocblas"),
    "GCN_ARCH_NAME": override.arch,
    "CU_COUNT": override.units,
}
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\..{1,100}")
#: The last version in which each positive index is certain to be Tensile's.
_LAST_WHOLE = (4, 3)
#: Lines per piece of text.
_LINES = 256
_NAMES = {storage: name for name, storage in TYPES.items()}
#: (A and B, C and D, compute) of the GEMMs that rocBLAS has -> the compute type's name.
_GEMMS: Mapping[tuple[str, str, str], str] = {
    ("fp64", "fp64", "fp64"): "f64_r",
    ("fp32", "fp32", "fp32"): "f32_r",
    ("fp16", "fp16", "fp16"): "f16_r",
    ("fp16", "fp16", "fp32"): "f32_r",
    ("fp16", "fp32", "fp32"): "f32_r",
    ("bf16", "bf16", "fp32"): "f32_r",
    ("bf16", "fp32", "fp32"): "f32_r",
    ("int8", "int32", "int32"): "i32_r",
    ("complex64", "complex64", "fp32"): "f32_c",
    ("complex128", "complex128", "fp64"): "f64_c",
}
#: Classes of beta -> the numbers by which rocBLAS distinguishes them.
_BETA = {"zero": 0, "one": 1, "any": 2}


def is_split(build: str) -> bool:
    """Whether a build (5.2.0.dabb6df2b9) may name hipBLASLt's solutions by positive indices and Tensile's by
    negative ones; before, each index was Tensile's and positive."""
    found = _VERSION.fullmatch(build)
    return found is not None and (int(found[1]), int(found[2])) > _LAST_WHOLE


@dataclass
class Sheet:
    """One file being written."""

    validators: Validators
    workspace_limit: int | None

    @classmethod
    def open(cls, rows: Iterable[ExportRow], options: ExportOptions) -> tuple[Sheet, Iterable[ExportRow]]:
        """The sheet for the options, and all the rows again. Raises ExportRefused."""
        if options.target is None:
            raise ExportRefused(f"{_READER} is written for one ROCm: give its target, {FORMS[0]}")
        found = _TARGET.fullmatch(options.target)
        if found is None or found[1] not in _ROCBLAS:
            raise ExportRefused(f"target {options.target!r} is none of: {FORMS[0]}")
        override.refuse_ties(options, _READER)
        rows, options = with_environments(rows, options)
        validators = Validators.settle(_READER, "hip", _SAYS, options)
        build, wanted = validators.values["ROCBLAS_VERSION"], _ROCBLAS[found[1]]
        if _VERSION.fullmatch(build) is None or " " in build:
            raise ExportRefused(
                f"ROCBLAS_VERSION {build!r} is no version of rocBLAS; give what rocblas_get_version_string "
                "says, such as 5.2.0.dabb6df2b9"
            )
        if not build.startswith(f"{wanted}."):
            raise ExportRefused(
                f"ROCBLAS_VERSION {build} is not of target {options.target}, whose rocBLAS is {wanted}; name "
                "the ROCm that will load the file"
            )
        return cls(validators, options.workspace_limit), rows

    def write(self, rows: Iterable[ExportRow], report: ExportReport) -> Iterator[str]:
        """Yields the text in pieces; its first lines even if no row is written."""
        what = "rocBLAS tells rows apart neither by alpha nor conjugated operands from transposed ones"
        # Single GEMMs first, as in rocblas-gemm-tune. A single and a batched GEMM never share a key.
        sections = ((COLUMNS, Keyed(report, what)), (STRIDED, Keyed(report, what)))
        for row in rows:
            try:
                sections[row.problem.batch > 1][1].put(*best_named(row, _TARGETS, self._keyed, report)[1])
            except OmittedError as reason:
                report.omit(str(reason), row.problem)
        values = self.validators.values
        piece = [build_note("rocBLAS", *(values[key] for key in _SAYS)) + "\n"]
        for columns, keyed in sections:
            piece.append(",".join(columns) + "\n")
            for text in keyed.texts():
                piece.append(f"{text}\n")
                if len(piece) >= _LINES:
                    yield "".join(piece)
                    piece.clear()
        yield "".join(piece)

    def _keyed(self, row: ExportRow) -> tuple[str, ExportRow, str]:
        """rocBLAS's key of the row, the row, and its text. Raises OmittedError."""
        self.validators.check(row.environment)
        override.check_judgement(row)
        override.check_family(row, families_of(_TARGETS), _READER)
        override.check_build(row, "rocblas", self.validators.values["ROCBLAS_VERSION"])
        index = self._index(row)
        if self.workspace_limit is not None and row.solution.workspace_bytes > self.workspace_limit:
            raise UnnamedError(f"needs more workspace than the {self.workspace_limit} bytes it may have")
        p = row.problem
        compute = _compute(p)
        sizes = f"{p.m},{p.n},{p.batch},{p.k}"
        rest = f"{_BETA[p.beta]},{p.lda},{p.ldb},{p.ldc}"
        if p.batch > 1:
            rest += f",{p.stride_a},{p.stride_b},{p.stride_c}"
        rest += f",{_NAMES[p.dtype_a]},{_NAMES[p.dtype_d]},{compute}"
        key = f"{p.trans_a != 'N'},{p.trans_b != 'N'},{sizes},{rest}"
        return key, row, f"{p.trans_a},{p.trans_b},{sizes},{p.scalars[0]:g},{rest},{index}"

    def _index(self, row: ExportRow) -> int:
        """The index in the file for rocBLAS's own index. Raises OmittedError."""
        index = row.solution.parameters.get("solution_index")
        if len(row.solution.parameters) != 1 or isinstance(index, bool) or not isinstance(index, int):
            raise UnnamedError("a rocblas solution without the index that the file names it by")
        if not -(2**31) <= index < 2**31:
            raise UnnamedError("its solution_index does not fit 32 bits")
        if not is_split(self.validators.values["ROCBLAS_VERSION"]):
            if index <= 0:
                raise UnnamedError("this rocBLAS numbers solutions from 1; its index stands for the default")
            return index
        if index > 0:
            raise UnnamedError("a positive index may be hipBLASLt's there, and the file names Tensile's")
        if index >= -RESERVED:
            raise UnnamedError("its solution is the default or a kernel of rocBLAS's own, not one of Tensile")
        return -index - RESERVED


def _compute(p: GemmProblem) -> str:
    """The compute type's name. Raises OmittedError for a problem without a GEMM or a name in rocBLAS."""
    if p.bias is not None or p.activation != "none":
        raise OmittedError("rocBLAS has no epilogue")
    if p.scale_dtype is not None:
        raise OmittedError("rocBLAS has no scales")
    if p.dtype_b != p.dtype_a or p.dtype_c != p.dtype_d:
        raise OmittedError(f"{_READER} has one type for A and B, and one for C and D")
    compute = _GEMMS.get((p.dtype_a, p.dtype_d, p.compute))
    if compute is None:
        raise OmittedError(
            f"{_READER} has no name for {p.dtype_a} in, {p.dtype_d} out, computed in {p.compute}"
        )
    if (p.ldc, p.stride_c) != (p.ldd, p.stride_d):
        raise OmittedError("D's layout is not C's, and the key records C's alone")
    if p.alignment != 16:
        raise OmittedError("the key records no alignment, and it was measured below 16 bytes")
    return compute
