"""Writes rows into the bf16 table that AITER loads with AITER_CONFIG_GEMM_BF16.

One form serves every AITER from 2025-12 on, whose lookup has bpreshuffle: columns are identified by their
names, and releases before 2026-06 ignore `gfx`. (Until 2025-10 AITER compared each kernelName with the
library's, so nothing is written for those releases.) AITER looks a row up by the first ten columns, which are
the problem, the arch and the number of compute units; a call whose M has no row takes that of M rounded up.

The variable replaces AITER's own tables: name those too, separated by `:`. If a row of this file has the key
of a row in those, AITER keeps the one with the lower time in both files, and stops once to say so.

`tflops` and `bw` (GB/s, each operand counted once, a bias not at all) are those of gradlib's calculate_perf,
from the time in `us`. `err_ratio`, the share of elements that AITER's own check found wrong, is left empty,
as in tables that AITER ships: it is not known here, and 0.0 would say that AITER had checked. The name of a
hipBLASLt solution is left empty too: it is not known here, and AITER does not read it.

Source: ROCm/aiter, aiter/tuned_gemm.py, aiter/jit/core.py, gradlib/gradlib/GemmTuner.py,
gradlib/csrc/hipbsolgemm.cu, aiter/utility/base_tuner.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from backends.dtypes import DTYPES
from backends.export_targets import EXPORT_TARGETS
from backends.problem import GemmProblem
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core.override import (
    Keyed,
    OmittedError,
    UnnamedError,
    Validators,
    arch,
    best_named,
    check_build,
    check_family,
    check_judgement,
    families_of,
    library,
    refuse_ties,
    units,
    with_environments,
)

READER = "AITER"
HEADER = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,"
    "libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw"
)
EXAMPLE = (
    f"{HEADER}\n"
    "gfx942,304,16,8192,8192,False,torch.bfloat16,torch.bfloat16,False,False,"
    "hipblaslt,204196,0,46.1234,,,46.56,2921.34\n"
)
#: A kernel's name that can stand in a cell: no separator, and no start that a spreadsheet would run.
KERNEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,1023}")
_SAYS = {"HIPBLASLT_VERSION": library("hipblaslt"), "GCN_ARCH_NAME": arch, "CU_COUNT": units}
#: Kinds of kernels that AITER's bf16 lookup knows (solMap of aiter/tuned_gemm.py).
_OWN = {f"aiter-{kind}": kind for kind in ("asm", "flydsl", "opus", "skinny", "triton")}
_TARGETS = (EXPORT_TARGETS["hipblaslt"],)
_FAMILIES = (*families_of(_TARGETS), *_OWN)
_TYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
_PARAMETERS = {"solidx", "splitK", "kernelName"}
#: Bytes of workspace that AITER gives hipBLASLt.
_WORKSPACE = 2 * 128 * 2**20
_LINES = 256


@dataclass
class Sheet:
    """One file being written."""

    validators: Validators
    workspace_limit: int

    @classmethod
    def open(cls, rows: Iterable[ExportRow], options: ExportOptions) -> tuple[Sheet, Iterable[ExportRow]]:
        """The sheet for the options, and all the rows again. Raises ExportRefused."""
        if options.target is not None:
            raise ExportRefused(
                f"target {options.target!r}: one table serves every AITER from 2025-12 on; leave the target "
                "out, and say the library's build as the validator HIPBLASLT_VERSION"
            )
        refuse_ties(options, READER)
        rows, options = with_environments(rows, options)
        validators = Validators.settle(READER, "hip", _SAYS, options)
        limit = options.workspace_limit
        return cls(validators, _WORKSPACE if limit is None else limit), rows

    def write(self, rows: Iterable[ExportRow], report: ExportReport) -> Iterator[str]:
        """Yields the text in pieces; the header even if no row is written."""
        keyed = Keyed(report, "AITER has one row a problem, arch and number of compute units")
        for row in rows:
            try:
                written, (key, text) = best_named(row, _TARGETS, self._row, report)
            except OmittedError as reason:
                report.omit(str(reason), row.problem)
            else:
                keyed.put(key, written, text)
        piece = [f"{HEADER}\n"]
        for text in keyed.texts():
            piece.append(text)
            if len(piece) >= _LINES:
                yield "".join(piece)
                piece.clear()
        yield "".join(piece)

    def _row(self, row: ExportRow) -> tuple[str, str]:
        """A row's key, and its line. Raises OmittedError."""
        self.validators.check(row.environment)
        check_judgement(row)
        check_problem(row.problem)
        check_family(row, _FAMILIES, READER)
        kernel, name = self._hipblaslt(row) if row.solution.family == "hipblaslt" else _own(row)
        p, microseconds = row.problem, (row.seconds or 0.0) * 1e6
        shown = round(microseconds, 4)
        if not shown:
            raise OmittedError("its time is not known, by which AITER chooses between tables")
        flops = p.m * p.n * p.k * 2
        moved = (p.n * p.k + p.m * p.k) * DTYPES[p.dtype_a].bytes + p.m * p.n * DTYPES[p.dtype_d].bytes
        values = self.validators.values
        key = (
            f"{values['GCN_ARCH_NAME'].partition(':')[0]},{values['CU_COUNT']},{p.n},{p.m},{p.k},"
            f"{p.bias is not None},{_TYPES[p.dtype_a]},{_TYPES[p.dtype_d]},False,False"
        )
        tflops, bw = round(flops / (microseconds * 1e6), 2), round(moved / (microseconds * 1e-6) / 1e9, 2)
        return key, f"{key},{kernel},{shown},{name},,{tflops},{bw}\n"

    def _hipblaslt(self, row: ExportRow) -> tuple[str, str]:
        """The cells libtype, solidx and splitK, and kernelName, of a hipBLASLt solution."""
        solution = row.solution
        check_build(row, "hipblaslt", self.validators.values["HIPBLASLT_VERSION"])
        index = solution.parameters.get("solution_index")
        if len(solution.parameters) != 1 or not _is_int(index) or index < 0:  # type: ignore[operator]
            raise UnnamedError("a hipblaslt solution without an index from 0, by which AITER names it")
        if solution.workspace_bytes > self.workspace_limit:
            raise UnnamedError(
                f"needs more workspace than {self.workspace_limit} bytes (AITER gives hipBLASLt {_WORKSPACE})"
            )
        return f"hipblaslt,{index},0", ""


def check_problem(p: GemmProblem) -> None:
    """Raises OmittedError for a problem that AITER's bf16 lookup never asks for, or would confuse with
    another: its key holds only M, N, K, two types and whether there is a bias."""
    if p.dtype_a not in ("bf16", "fp16") or p.dtype_b != p.dtype_a or p.compute != "fp32":
        raise OmittedError("not of bf16 or fp16 inputs multiplied in fp32, as AITER's bf16 table is")
    if p.batch != 1 or (p.trans_a, p.trans_b) != ("T", "N"):
        raise OmittedError("no F.linear, which is all that AITER's bf16 table is for (TN, one batch)")
    if (p.lda, p.ldb, p.ldd) != (p.k, p.k, p.m):
        raise OmittedError("AITER's key has no leading dimensions: only packed problems are told apart by it")
    if p.alpha != "one" or p.beta != "zero" or p.activation != "none":
        raise OmittedError("alpha, beta or an activation, which AITER's key has not")
    if p.scale_dtype is not None:
        raise OmittedError("scales: AITER's key does not say which")
    if p.bias is not None and (p.bias_axis != "m" or p.bias != p.dtype_d):
        raise OmittedError("a bias that is not of the output's type, one value a column of F.linear's output")
    if p.alignment != 16:
        raise OmittedError("AITER's key has no alignment: torch's tensors have 16 bytes")


def _own(row: ExportRow) -> tuple[str, str]:
    """The cells libtype, solidx and splitK, and kernelName, of one of AITER's own kernels."""
    solution = row.solution
    index, split_k, name = (solution.parameters.get(key) for key in ("solidx", "splitK", "kernelName"))
    if (
        set(solution.parameters) != _PARAMETERS
        or not _is_int(index)
        or not _is_int(split_k)  # AITER converts it to int: it may not be empty
        or not isinstance(name, str)
        or KERNEL_NAME.fullmatch(name) is None
    ):
        raise UnnamedError(f"a solution of {solution.family} that is not as a table of AITER's names it")
    return f"{_OWN[solution.family]},{index},{split_k}", name


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
