"""Tuned configurations of vLLM's and SGLang's block-fp8 Triton GEMM, read.

One JSON file a weight, block shape and device; what it is about stands in its name only:

    N=2048,K=4096,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json
    {"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 16,
           "num_warps": 4, "num_stages": 3}, "16": {...}, ...}

(SGLang writes `[128, 128]`.) Row-major: x[M,K] times w[N,K] transposed, a scale for 128 elements of a row of
x and one for 128 x 128 elements of w. A key is M; the framework takes the entry whose M is nearest. The file
has no times. It does not say the output's type either: both frameworks serve such models in bf16.

A file whose name begins with E= is one of the fused mixture of experts, read as [fused-moe](#fused-moe).
A whole folder is read at once where each file follows a line with its name, as `tail -v -n +1 N=*.json`
prints them: `==> N=2048,K=4096,....json <==`.

Source: get_w8a8_block_fp8_configs and its kernel in vLLM (vllm/model_executor/layers/quantization/utils/
fp8_utils.py) and SGLang (python/sglang/srt/layers/quantization/fp8_kernel.py), and the scripts that tune
them (benchmarks/kernels/benchmark_w8a8_block_fp8.py, benchmark/kernels/quantization/
tuning_block_wise_kernel.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from backends.errors import InvalidProblem, ReadError
from backends.problem import GemmProblem, from_linear
from backends.problem_rules import MAX_SIZE
from backends.solution import Solution
from service.formats.core.base import (
    DEFAULTS,
    Claim,
    Declaration,
    Entry,
    Found,
    Header,
    ReadOptions,
    Rejected,
    decode_lines,
    printable,
    rejected,
)
from service.formats.core.json_text import BadJsonError, BrokenError, Document
from service.formats.vllm import fused_moe
from service.formats.vllm.beside import is_config, told_by
from service.formats.vllm.device_fp8 import fp8_of
from service.formats.vllm.files import BadEntryError, Files, UnreadError
from service.formats.vllm.parameters import kernel_fault

FAMILY = "triton-block-fp8"
#: Elements of k that share a scale. The kernel applies one scale per step, so a step may not span two.
BLOCK = 128

_EXAMPLE_NAME = "N=2048,K=4096,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"
_NAME = re.compile(
    r"N=([0-9]{1,19}),K=([0-9]{1,19}),device_name=([^,=/\[\]]{1,100}),dtype=([A-Za-z0-9_]{1,40}),"
    r"block_shape=\[([0-9]{1,9}), ?([0-9]{1,9})\]\.json"
)
_SEEN = re.compile(
    rb"(?:\xef\xbb\xbf)?[ \t\r\n]*"
    rb"(?:==> [^\r\n=]{0,1000}N=[0-9]{1,19},K=[0-9]{1,19},"
    rb"device_name=[^\r\n<]{1,300}\.json <=="
    rb'|\{[ \t\r\n]*"(?:[0-9]{1,19}|triton_version)"[ \t\r\n]*:[ \t\r\n]*'
    rb'(?:"[^"\r\n]{1,40}"[ \t\r\n]*,[ \t\r\n]*"[0-9]{1,19}"[ \t\r\n]*:[ \t\r\n]*)?'
    rb'\{[ \t\r\n]*"(?:BLOCK_SIZE_|GROUP_SIZE_|num_|SPLIT_K|waves_per_eu|matrix_instr_nonkdim|kpack))'
)
_M = re.compile("[0-9]{1,19}")
#: Claims, and problems, that are cached.
_REMEMBERED = 4096
_EXPERTS_TOLD = (
    "a configuration of the fused mixture of experts: name the file E=..,N=..,device_name=..json, as the "
    "framework does"
)


@dataclass(frozen=True)
class BlockFp8:
    """The format's entry in the registry of readers."""

    name: str = "block-fp8"
    declares: ClassVar[Declaration] = Declaration(options=("file_name", *fused_moe.OPTIONS))
    description: str = "vLLM's and SGLang's block-fp8 configurations, N=..,K=..,device_name=..,....json"
    example: str = (
        f"==> {_EXAMPLE_NAME} <==\n"
        '{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 16, '
        '"num_warps": 4, "num_stages": 3},\n'
        ' "256": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, '
        '"num_warps": 4, "num_stages": 2}}'
    )

    def detect(self, head: bytes) -> bool:
        """Whether the first line names such a file, or the first entry of an object is a configuration."""
        return _SEEN.match(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Like read_told() for a file without a known name: only name lines in it say what follows."""
        return self.read_told(lines, DEFAULTS)

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Found]:
        """Yields a header with the parts of the name, then a claim for every M, with the line on which its
        entry ends. Raises ReadError if neither `options.file_name` nor a line names the file, and for a file
        that is not one of block-fp8."""
        known = _Known()
        for start, name, rest in Files(decode_lines(lines)):
            if isinstance(start, Rejected):
                yield start
                continue
            try:
                if is_config(name):
                    options = told_by(Document(rest, start), options)
                    continue
                shown = options.file_name if name is None else name
                if fused_moe.is_named(shown):
                    yield from fused_moe.entries(shown, Document(rest, start), options)
                    continue
                about = _About.of(shown)
                yield about.header
                yield from _entries(_Memory(about, known), Document(rest, start))
            except UnreadError as error:
                if name is None:
                    raise ReadError(str(error)) from None
                yield rejected(start, error, name)
            except BrokenError as broken:
                yield rejected(broken.line, broken, broken.text)


# ---- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _About:
    """What a file's name says."""

    n: int
    k: int
    device_name: str
    dtype: str
    arch: str
    header: Header

    @classmethod
    def of(cls, name: str) -> _About:
        """Parses a file's name. Raises UnreadError."""
        name = re.split(r"[/\\]", name)[-1]
        shown = printable(name)
        match = _NAME.fullmatch(name)
        if match is None:
            wrong = f"the name '{shown}' does not say" if name else "no name says"
            raise UnreadError(
                f"{wrong} the N, K, device, type and block shape of these block-fp8 configurations; name the "
                f"file as the framework looks it up, such as {_EXAMPLE_NAME}"
            )
        n, k, device_name, dtype, block_n, block_k = match.groups()
        if dtype != "fp8_w8a8":
            raise UnreadError(f"{shown} is of dtype {dtype}: only fp8_w8a8 is read")
        if (int(block_n), int(block_k)) != (BLOCK, BLOCK):
            raise UnreadError(
                f"{shown} has scales for blocks of {int(block_n)} x {int(block_k)}: only {BLOCK} x {BLOCK} "
                "can be expressed"
            )
        for size, label in ((n, "N"), (k, "K")):
            if not 1 <= int(size) <= MAX_SIZE:
                raise UnreadError(f"{shown}: {label} must be from 1 to {MAX_SIZE}")
        said = {"N": str(int(n)), "K": str(int(k)), "device_name": device_name, "dtype": dtype}
        storage, arch = fp8_of(device_name)
        return cls(int(n), int(k), device_name, storage, arch, Header(said))


# ---- entries -------------------------------------------------------------------------------------


def _entries(memory: _Memory, document: Document) -> Iterator[Found]:
    """The members of one file's object. Raises BrokenError, and UnreadError for another kernel's file."""
    document.take("{")
    if document.peek() == "}":
        document.take("}")
    else:
        while True:
            key = document.value() if document.peek() == '"' else document.take('"')
            document.take(":")
            yield _entry(memory, document, str(key))
            if document.take(",", "}") == "}":
                break
    if document.peek():
        raise BrokenError(document.line, "something follows the end of the object; nothing after it was read")


def _entry(memory: _Memory, document: Document, key: str) -> Entry | Rejected:
    if key == "triton_version":
        raise UnreadError(f"triton_version stands in the file: this is {_EXPERTS_TOLD}")
    try:
        value = document.value()
        problem, claim = memory.read(key, value)
    except BrokenError:
        raise
    except (BadEntryError, BadJsonError, InvalidProblem) as error:
        return rejected(document.line, error, key)
    return Entry(document.line, problem, "", claim=claim)


@dataclass
class _Known:
    """Claims and problems that the files of a stream share."""

    claims: dict[tuple[object, ...], Claim] = field(default_factory=dict)
    problems: dict[tuple[int, int, int, str], GemmProblem] = field(default_factory=dict)


@dataclass
class _Memory:
    """The state of reading a file: the Ms so far, and the cache of all files."""

    about: _About
    _known: _Known
    _seen: set[int] = field(default_factory=set)

    def read(self, key: str, value: object) -> tuple[GemmProblem, Claim]:
        """Raises BadEntryError or InvalidProblem."""
        if _M.fullmatch(key) is None or not 1 <= int(key) <= MAX_SIZE:
            raise BadEntryError(
                f"key {printable(key, 40)!r} is no M: it must be a whole number from 1 to {MAX_SIZE}"
            )
        m = int(key)
        if m in self._seen:
            raise BadEntryError(f"M {m} stands twice; the framework takes the last, so give it once")
        claim = self._claim(value)
        problem = self._problem(m, self.about.n, self.about.k, self.about.dtype)
        self._seen.add(m)
        return problem, claim

    def _problem(self, *said: *tuple[int, int, int, str]) -> GemmProblem:
        problems = self._known.problems
        problem = problems.get(said)
        if problem is None:
            if len(problems) >= _REMEMBERED:
                problems.clear()
            problem = problems[said] = block_problem(*said)
        return problem

    def _claim(self, value: object) -> Claim:
        if not isinstance(value, dict):
            raise BadEntryError("an entry must be an object of the kernel's parameters")
        claims, plain = self._known.claims, (self.about.arch, *value.items())
        # true would match a cached 1, and a list cannot be hashed: both are refused below.
        whole = all(type(part) is int for part in value.values())
        claim = claims.get(plain) if whole else None
        if claim is None:
            fault = parameters_fault(value)
            if fault is not None:
                raise BadEntryError(fault)
            if len(claims) >= _REMEMBERED:
                claims.clear()
            solution = Solution(FAMILY, 1, dict(value))
            claim = claims[plain] = Claim(
                solution, None, arch=self.about.arch, product=self.about.device_name
            )
        return claim


def weight_of(name: str) -> tuple[int, int, str]:
    """N, K and the 8-bit float of the weight that a file's name is about. Raises UnreadError."""
    about = _About.of(name)
    return about.n, about.k, about.dtype


def block_problem(m: int, n: int, k: int, dtype: str) -> GemmProblem:
    """x[m,k] times w[n,k] transposed, as vLLM and SGLang call it. Raises InvalidProblem."""
    return from_linear(
        m, n, k, dtype, dtype_d="bf16", scale_a=f"block_1x{BLOCK}", scale_b=f"block_{BLOCK}x{BLOCK}"
    )


def parameters_fault(parameters: Mapping[str, object]) -> str | None:
    """Why the kernel cannot run with these parameters or would compute something else; None if it can."""
    if "SPLIT_K" in parameters:
        return f"SPLIT_K is a parameter of {_EXPERTS_TOLD}"
    fault = kernel_fault(parameters, "the block-fp8 kernel")
    step = parameters.get("BLOCK_SIZE_K")
    if fault is None and isinstance(step, int) and BLOCK % step:
        return f"BLOCK_SIZE_K is {step}; the kernel applies one scale a step, so it must divide {BLOCK}"
    return fault
