"""Rows into tuned configurations of vLLM's and SGLang's block-fp8 Triton GEMM: a tar of JSON files.

The archive is unpacked over the folder that the package is installed in (site-packages): each framework
looks its files up beside its own code, and nowhere else.

    vllm/model_executor/layers/quantization/utils/configs/N=..,K=..,device_name=..,dtype=fp8_w8a8,...json
    sglang/srt/layers/quantization/configs/N=..,K=..,device_name=..,dtype=fp8_w8a8,...json

A file replaces what the framework has for that weight, its built-in default included: a call of any M takes
the entry whose M is nearest. So tune every M that will be called, and write with ties=default: where nothing
beat the framework's own configuration, it writes that configuration. Both frameworks read the files only
where they run their Triton kernel (not where DeepGEMM, CUTLASS or AITER serves the layer).

Source: as block_fp8.py says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from backends.environment import Environment
from backends.export_targets import EXPORT_TARGETS
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats.core.export import ExportOptions, ExportReport, ExportRow
from service.formats.core.override import (
    Keyed,
    OmittedError,
    UnnamedError,
    best_named,
    with_environments,
)
from service.formats.core.row_text import Texts
from service.formats.core.tar_text import closing, member
from service.formats.vllm.block_fp8 import (
    BLOCK,
    FAMILY,
    block_problem,
    parameters_fault,
)
from service.formats.vllm.device_fp8 import fp8_on
from service.formats.vllm.device_name import DEVICE_NAME, product_of
from service.formats.vllm.options import check_options
from service.formats.vllm.parameters import HIP_PARAMETERS, PARAMETERS, entry_text, file_text

_TARGETS = (EXPORT_TARGETS["block-fp8"],)
#: The fields of a problem, apart from its sizes, that are the same for every call of the kernel.
_FORM = attrgetter(
    "batch", "trans_a", "trans_b", "dtype_c", "dtype_d", "compute", "alpha", "beta", "activation", "bias",
    "scale_a", "scale_b", "scale_d", "scale_dtype", "alignment", "fast_accumulation",
)  # fmt: skip


@dataclass(frozen=True)
class _BlockFp8:
    """What the two writers share. `stack` is the framework's name, and `folder` is where it looks, relative
    to site-packages; `separator` follows the comma of the block shape in a file's name; `steps` are the
    values of BLOCK_SIZE_K that the framework runs unchanged."""

    name: str
    description: str
    stack: str
    folder: str
    separator: str
    steps: tuple[int, ...]
    media_type: str = "application/x-tar"
    suffix: str = ".tar"
    targets: tuple[str, ...] = ()
    key_formats: tuple[str, ...] = ()

    @property
    def example(self) -> str:
        """The path of one file in the archive, and its text."""
        entry = dict(zip(PARAMETERS, (16, 64, 128, 16, 4, 3), strict=True))
        solution = Solution(FAMILY, 1, entry)
        text = file_text([entry_text(16, solution.parameters)])
        return f"{self.path(2048, 4096, 'NVIDIA H200')}\n{text}"

    def path(self, n: int, k: int, product: str) -> str:
        """The path in the archive of the file for a weight [n,k]."""
        shape = f"[{BLOCK},{self.separator}{BLOCK}]"
        device = product.replace(" ", "_")
        return f"{self.folder}/N={n},K={k},device_name={device},dtype=fp8_w8a8,block_shape={shape}.json"

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """A tar archive of one file for each N and K. Raises ExportRefused."""
        check_options(self.name, f"{self.stack}'s block-fp8 kernel", (DEVICE_NAME,), options)
        rows, options = with_environments(rows, options)
        return _Archive(self, options, product_of(self.stack, options)).write(rows, report)


@dataclass(frozen=True)
class VllmBlockFp8(_BlockFp8):
    """The registry's entry for vLLM."""

    name: str = "vllm-block-fp8"
    description: str = "vLLM's block-fp8 configurations: a tar to unpack over site-packages"
    stack: str = "vLLM"
    folder: str = "vllm/model_executor/layers/quantization/utils/configs"
    separator: str = ""
    steps: tuple[int, ...] = (16, 32, 64, BLOCK)


@dataclass(frozen=True)
class SglangBlockFp8(_BlockFp8):
    """The registry's entry for SGLang. Its newer releases raise a smaller BLOCK_SIZE_K to the whole block of
    a scale, so such an entry would run another kernel than the one that was measured."""

    name: str = "sglang-block-fp8"
    description: str = "SGLang's block-fp8 configurations: a tar to unpack over site-packages"
    stack: str = "SGLang"
    folder: str = "sglang/srt/layers/quantization/configs"
    separator: str = " "
    steps: tuple[int, ...] = (BLOCK,)


# ---- rows ----------------------------------------------------------------------------------------


@dataclass
class _Archive:
    """One archive being written: rows by weight [n,k], then by M."""

    stack: _BlockFp8
    options: ExportOptions
    product: str
    _files: dict[tuple[int, int], Keyed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._dtype = fp8_on(self.options.device.arch)
        self._form = _FORM(block_problem(16, BLOCK, BLOCK, self._dtype))
        self._places: Texts[Environment] = Texts(lambda environment: str(environment.device_class))

    def write(self, rows: Iterable[ExportRow], report: ExportReport) -> Iterator[str]:
        for row in rows:
            try:
                self._put(*best_named(row, _TARGETS, self._checked, report), report)
            except OmittedError as reason:
                report.omit(str(reason), row.problem)
        written = 0
        for (n, k), keyed in sorted(self._files.items()):
            # Of two equally near entries the framework takes the first: the smaller M.
            entries = sorted(keyed.texts(), key=lambda text: int(text.split('"', 2)[1]))
            piece = member(self.stack.path(n, k, self.product), file_text(entries))
            written += len(piece)
            yield piece
        yield closing(written)

    def _checked(self, row: ExportRow) -> Solution:
        """The solution to write for the row. Raises OmittedError."""
        place = self._places.of(row.environment)
        if place != str(self.options.device):
            raise OmittedError(f"measured on {place}: the file is for {self.options.device}")
        solution = self._solution(row)
        if solution.family != FAMILY:
            raise UnnamedError(
                f"solutions of family {solution.family} have no name in {self.stack.stack}'s files; known: "
                f"{FAMILY}"
            )
        self._check_problem(row.problem)
        self._check_parameters(solution)
        return solution

    def _put(self, row: ExportRow, solution: Solution, report: ExportReport) -> None:
        p = row.problem
        keyed = self._files.get((p.m, p.k))
        if keyed is None:
            what = f"{self.stack.stack} tells entries apart by N, K, M and the device only"
            keyed = self._files[p.m, p.k] = Keyed(report, what)
        keyed.put(str(p.n), row, entry_text(p.n, solution.parameters))

    def _solution(self, row: ExportRow) -> Solution:
        """The solution to write for the row's M. Raises OmittedError for a row that gives none."""
        if row.judgement in ("WIN", ""):
            return row.solution
        if row.judgement not in ("TIE", "LOSS"):
            raise OmittedError(f"judgement {row.judgement!r} is none that a configuration could follow")
        if self.options.ties == "omit":
            raise OmittedError(
                f"{row.judgement}: left out, so its M takes the nearest entry of its file if there is one "
                "(ties=default writes the framework's own configuration out)"
            )
        if row.baseline is None:
            raise OmittedError(f"{row.judgement}: nothing is said of its baseline but a name")
        return row.baseline

    def _check_problem(self, p: GemmProblem) -> None:
        if (p.dtype_a, p.dtype_b) != (self._dtype, self._dtype) and {p.dtype_a, p.dtype_b} <= {
            "fp8_e4m3",
            "fp8_e4m3_fnuz",
        }:
            raise OmittedError(f"its 8-bit float is not the {self._dtype} that {self.stack.stack} uses there")
        packed = p.lda == p.ldb == p.k and p.ldc == p.ldd == p.m
        if _FORM(p) != self._form or not packed or p.dtype_a != self._dtype or p.dtype_b != self._dtype:
            raise OmittedError(
                f"its problem is none of the kernel's: x[M,K] times w[N,K] transposed, packed, "
                f"{self._dtype} to bf16, scales of 1x{BLOCK} and {BLOCK}x{BLOCK}"
            )

    def _check_parameters(self, solution: Solution) -> None:
        fault = parameters_fault(solution.parameters)
        if fault is not None:
            raise UnnamedError(f"the kernel does not take its parameters: {fault}")
        if self.options.device.vendor != "hip" and not solution.parameters.keys() <= set(PARAMETERS):
            raise UnnamedError(f"{' and '.join(HIP_PARAMETERS)} are parameters for AMD devices only")
        step = solution.parameters["BLOCK_SIZE_K"]
        if step not in self.stack.steps:
            known = ", ".join(str(size) for size in self.stack.steps)
            raise UnnamedError(f"{self.stack.stack} does not run BLOCK_SIZE_K {step} as it is, only {known}")
