"""Writes rows into the override file of one hipBLASLt build.

The library looks a row up by layout letters, types, compute type, m, n, k and batch (ROCm 6.4: of the types
of A and B only A's), and uses it for every call with that key that the solution supports: padded or not, with
any epilogue, scalars and scales. So only rows of plain GEMMs are written. A row with a bias, an activation, a
beta, padding or broadcast batches is left out, because it would be used for calls on which it was never
measured. Calls of 8-bit floats have scales, so one scale per tensor counts as plain there.

Also left out, because the file cannot name them:
- 8-bit floats in ROCm 6.4, where the build decides which format f8_r is;
- tf32 in ROCm 6.4, whose file takes a storage type as compute type;
- OCP 8-bit floats on gfx94x, which has only FNUZ ones;
- fp16 as a compute type, and complex types, which no release up to ROCm 7.2 reads.
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

#: The columns that hipblaslt-bench writes. ROCm 6.4 takes them by position, ROCm 7 by name.
COLUMNS = (
    "transA", "transB", "grouped_gemm", "batch_count", "m", "n", "k", "alpha", "lda", "stride_a", "beta",
    "ldb", "stride_b", "ldc", "stride_c", "ldd", "stride_d", "a_type", "b_type", "c_type", "d_type",
    "compute_type", "scaleA", "scaleB", "scaleC", "scaleD", "amaxD", "activation_type", "bias_vector",
    "bias_type", "rotating_buffer", "hipblaslt-Gflops", "hipblaslt-GB/s", "us", "solution_index",
    "gcnArchName", "CUs",
)  # fmt: skip
#: The accepted targets, as shown to users.
FORMS = (
    "rocm-6.4: rows of 37 fields, by position",
    "rocm-7.<minor>: a header before each row, by name",
)
_TARGET = re.compile(r"rocm-(?:6\.4|7\.[0-9]{1,2})")
_READER = "hipBLASLt's override file"
_TARGETS = (EXPORT_TARGETS["hipblaslt"],)
_SAYS: Mapping[str, override.Says] = {
    "HIPBLASLT_VERSION": override.library("hipblaslt"),
    "GCN_ARCH_NAME": override.arch,
    "CU_COUNT": override.units,
}
#: hipblasLtGetVersion() (major * 100000 + minor * 100 + patch) and hipblasLtGetGitRevision().
_BUILD = re.compile(r"([0-9]{1,9})-([^\s,]{1,100})")
#: hipBLASLt 1.0 came with ROCm 7.0.
_ROCM_7 = 100_000
#: Architectures whose 8-bit floats are FNUZ.
FNUZ_ARCH = "gfx94"
#: Lines per piece of text.
_LINES = 256
_NAMES = {storage: name for name, storage in TYPES.items() if not name.endswith("_c")}
_COMPUTE = {"fp32": "f32_r", "tf32": "xf32_r", "fp64": "f64_r", "int32": "i32_r"}
_SCALES = {"none": "0", "tensor": "1"}
_WIDER = "hipBLASLt's key records no {}, so that it would be used for calls without"


@dataclass
class Sheet:
    """One file being written."""

    by_name: bool
    revision: str
    validators: Validators
    workspace_limit: int | None

    @classmethod
    def open(cls, rows: Iterable[ExportRow], options: ExportOptions) -> tuple[Sheet, Iterable[ExportRow]]:
        """The sheet for the options, and all the rows again. Raises ExportRefused."""
        forms, target = "; ".join(FORMS), options.target
        if target is None:
            raise ExportRefused(f"{_READER} is written for one ROCm: give its target, one of: {forms}")
        if _TARGET.fullmatch(target) is None:
            raise ExportRefused(f"target {target!r} is none of: {forms}")
        override.refuse_ties(options, _READER)
        rows, options = with_environments(rows, options)
        validators = Validators.settle(_READER, "hip", _SAYS, options)
        build = validators.values["HIPBLASLT_VERSION"]
        found = _BUILD.fullmatch(build)
        if found is None:
            raise ExportRefused(
                f"HIPBLASLT_VERSION {build!r} is not <version>-<git revision>, such as 100202-dabb6df2b9: "
                "the library uses no file that lacks its revision"
            )
        by_name = target != "rocm-6.4"
        if (int(found[1]) >= _ROCM_7) != by_name:
            raise ExportRefused(
                f"HIPBLASLT_VERSION {build} is not of target {target}: hipBLASLt counts from "
                f"{_ROCM_7} since ROCm 7.0, and each side passes over the other's rows"
            )
        return cls(by_name, found[2], validators, options.workspace_limit), rows

    def write(self, rows: Iterable[ExportRow], report: ExportReport) -> Iterator[str]:
        """Yields the text in pieces; its first lines even if no row is written."""
        keyed = Keyed(report, "hipBLASLt's key records sizes, types and layout letters alone")
        for row in rows:
            try:
                keyed.put(*best_named(row, _TARGETS, self._keyed, report)[1])
            except OmittedError as reason:
                report.omit(str(reason), row.problem)
        values = self.validators.values
        note = build_note("hipBLASLt", *(values[key] for key in _SAYS))
        header = ",".join(COLUMNS)
        piece = [f"Git Version: {self.revision}\n{note}\n"]
        for number, text in enumerate(keyed.texts()):
            # ROCm 6.4 cannot read the header and skips it; it is written once, for people.
            piece.append(f"{header}\n{text}\n" if self.by_name or not number else f"{text}\n")
            if len(piece) >= _LINES:
                yield "".join(piece)
                piece.clear()
        yield "".join(piece)

    def _keyed(self, row: ExportRow) -> tuple[str, ExportRow, str]:
        """The library's key of the row, the row, and its text. Raises OmittedError."""
        self.validators.check(row.environment)
        override.check_judgement(row)
        override.check_family(row, families_of(_TARGETS), _READER)
        build = self.validators.values["HIPBLASLT_VERSION"]
        if row.solution.build != self.revision:  # an imported file may give the revision alone
            override.check_build(row, "hipblaslt", build)
        index = _index(row)
        if self.workspace_limit is not None and row.solution.workspace_bytes > self.workspace_limit:
            raise UnnamedError(
                f"needs more workspace than the {self.workspace_limit} bytes that were allowed"
            )
        p = row.problem
        _check_plain(p)
        types, compute = self._types(p)
        letters = (p.trans_a, p.trans_b)
        sizes = (p.batch, p.m, p.n, p.k)
        told_apart = types[:3] if self.by_name else (types[0], types[2])
        key = (*letters, *sizes, *told_apart, compute)
        return " ".join(map(str, key)), row, self._text(row, index, types, compute)

    def _types(self, p: GemmProblem) -> tuple[tuple[str, str, str, str], str]:
        """Names of the four types and of the compute type. Raises OmittedError."""
        kinds, arch = (p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_d), self.validators.values["GCN_ARCH_NAME"]
        for kind in kinds:
            if kind not in _NAMES:
                raise OmittedError(f"{_READER} has no name for type {kind}")
            if kind.startswith("fp8") and not self.by_name:
                raise OmittedError("which 8-bit float f8_r is in ROCm 6.4 depends on how it was built")
            if kind in ("fp8_e4m3", "fp8_e5m2") and arch.startswith(FNUZ_ARCH):
                raise OmittedError(f"8-bit floats of {FNUZ_ARCH}x are FNUZ: {kind} is none of its types")
        if p.compute not in _COMPUTE or (p.compute == "tf32" and not self.by_name):
            raise OmittedError(f"{_READER} of this ROCm has no name for compute type {p.compute}")
        a, b, c, d = (_NAMES[kind] for kind in kinds)
        return (a, b, c, d), _COMPUTE[p.compute]

    def _text(self, row: ExportRow, index: int, types: tuple[str, ...], compute: str) -> str:
        p = row.problem
        stride_a = p.lda * (p.k if p.trans_a == "N" else p.m)
        stride_b = p.ldb * (p.n if p.trans_b == "N" else p.k)
        stride_d = p.ldd * p.n
        scales = (_SCALES[p.scale_a], _SCALES[p.scale_b], 0, _SCALES[p.scale_d])
        gflops, gigabytes, microseconds = _figures(p, row.seconds)
        values = self.validators.values
        cells = (
            p.trans_a, p.trans_b, 0, p.batch, p.m, p.n, p.k, f"{p.scalars[0]:g}", p.lda, stride_a, 0,
            p.ldb, stride_b, p.ldc, stride_d, p.ldd, stride_d, *types, compute, *scales, 0, "none", 0,
            "f32_r", 0, gflops, gigabytes, microseconds, index, values["GCN_ARCH_NAME"], values["CU_COUNT"],
        )  # fmt: skip
        return ",".join(map(str, cells))


def _index(row: ExportRow) -> int:
    index = row.solution.parameters.get("solution_index")
    if len(row.solution.parameters) != 1 or isinstance(index, bool) or not isinstance(index, int):
        raise UnnamedError("a hipblaslt solution without the index that the file names it by")
    if not 0 < index < 2**31:
        raise UnnamedError("hipBLASLt reads a solution_index from 1 to 2147483647 alone")
    return index


def _check_plain(p: GemmProblem) -> None:
    """Raises OmittedError for what the key does not record and a plain GEMM does not have."""
    if p.bias is not None:
        raise OmittedError(_WIDER.format("bias"))
    if p.activation != "none":
        raise OmittedError(_WIDER.format("activation"))
    if p.beta != "zero":
        raise OmittedError(_WIDER.format("beta"))
    if p.lda != (p.m if p.trans_a == "N" else p.k) or p.ldb != (p.k if p.trans_b == "N" else p.n):
        raise OmittedError(_WIDER.format("leading dimensions") + " padding")
    if p.ldd != p.m:
        raise OmittedError(_WIDER.format("leading dimensions") + " padding")
    packed = (p.m * p.k, p.k * p.n, p.m * p.n)
    if p.batch > 1 and (p.stride_a, p.stride_b, p.stride_d) != packed:
        raise OmittedError("its batches are not packed one after another, and the key records no strides")
    if p.alignment != 16:
        raise OmittedError("the key records no alignment, and it was measured below 16 bytes")
    if p.fast_accumulation:
        raise OmittedError("hipBLASLt has no fast accumulation")
    scales = {p.scale_a, p.scale_b, p.scale_d}
    if scales != {"none"} and not p.dtype_a.startswith("fp8"):
        raise OmittedError(_WIDER.format("scales"))
    if not scales <= set(_SCALES) or p.scale_dtype not in (None, "fp32"):
        raise OmittedError("the key records no scales, and it has others than one fp32 a tensor")


def _figures(p: GemmProblem, seconds: float | None) -> tuple[str, str, str]:
    """Gflops, GB/s and microseconds, 0 where they are not known."""
    if seconds is None or not seconds > 0:
        return "0", "0", "0"
    moved = p.bytes_read + p.bytes_written
    return f"{p.flops / seconds / 1e9:.6g}", f"{moved / seconds / 1e9:.6g}", f"{seconds * 1e6:.6g}"
