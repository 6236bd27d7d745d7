"""Tuned configurations of vLLM's and SGLang's fused mixture of experts, read.

One JSON file a layer of experts and device; what it is about stands in its name only:

    E=128,N=768,device_name=NVIDIA_H200.json
    {"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
           "num_warps": 4, "num_stages": 4}, "16": {...}, ...}

E is the number of experts on a device, N their intermediate size there. A key is a number of tokens; the
framework takes the entry whose number is nearest, for both products of the layer (gate and up, then down). So
an entry is a claim about two grouped products. How many rows these have and how long they are the name does
not say: `top_k` and `hidden_size` do, and `expert_parallel` where devices share the experts. The model's
`config.json` says the first two, too: before the others in one stream (below), or, for the command line, in
the file's folder.

Experts of 8-bit floats say so in the name, in vLLM's and in SGLang's spelling:

    E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json       scales of blocks
    E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json
    E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json                             scales of rows
    E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json

The name without `block_shape` is also that of experts with one scale a matrix, which one kernel multiplies
too; it is read as scales of rows. On MI300 the 8-bit float is e4m3 FNUZ. A step along k beyond a block of
scales is read as the whole block, since vLLM runs it so. Other types and other blocks are not read.

SGLang's file for the second product alone (`_down` at the end) is a claim about that product only. There
SGLang takes BLOCK_SIZE_M from the layer's other file. Entries with `"USE_TMA": true` load by descriptors,
which the kernel of these claims does not, and are left out.

`backend=triton` in the name changes nothing; another backend's file is not read. Newer files have the Triton
release as `triton_version`, and `"SPLIT_K": 1`, which changes nothing.

A whole folder is read at once where each file follows a line with its name, as `tail -v -n +1 config.json
E=*.json` prints them.

Source: get_moe_configs, get_config_file_name and fused_moe_kernel in vLLM
(vllm/model_executor/layers/fused_moe/fused_moe.py) and SGLang (fused_moe_triton_config.py), and
benchmarks/kernels/benchmark_moe.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from backends.errors import ReadError
from backends.kernels.triton.moe_untuned import BLOCK_SCALES, HALVES
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
from service.formats.vllm.beside import is_config, told_by
from service.formats.vllm.device_fp8 import fp8_of
from service.formats.vllm.experts import BLOCK, DOWN, EXAMPLE_NAME, PRODUCTS, ExpertFile, ExpertLayer
from service.formats.vllm.files import BadEntryError, Files, UnreadError
from service.formats.vllm.parameters import kernel_fault

FAMILY = "triton-fused-moe"
#: The fields of ReadOptions that say what a name does not.
OPTIONS = ("hidden_size", "top_k", "expert_parallel", "dtype")
_NAMED = re.compile(r"(?:.*[/\\])?E=[0-9]+,N=[0-9]+,[^/\\]*", re.DOTALL)
_SEEN = re.compile(
    rb"(?:\xef\xbb\xbf)?[ \t\r\n]*(?:==> [^\r\n=<]{0,1000}config\.json <==[^=]{0,32768})?"
    rb"==> [^\r\n=]{0,1000}E=[0-9]{1,19},N=[0-9]{1,19},device_name=[^\r\n<]{1,300}\.json <=="
)
_TOKENS = re.compile("[0-9]{1,10}")
#: Parameters that change nothing with one value, and why another one is refused.
_UNCHANGING = (
    ("SPLIT_K", 1, "only 1, which changes nothing, is known"),
    ("USE_TMA", False, "descriptors are no part of the kernel that gemmtune measures; only False is read"),
)


@dataclass(frozen=True)
class FusedMoe:
    """The format's entry in the registry of readers."""

    name: str = "fused-moe"
    declares: ClassVar[Declaration] = Declaration(options=("file_name", *OPTIONS))
    description: str = "vLLM's and SGLang's fused-MoE configurations, E=..,N=..,device_name=...json"
    example: str = (
        "==> config.json <==\n"
        '{"model_type": "qwen3_moe", "hidden_size": 2048, "num_experts": 128, "num_experts_per_tok": 8}\n'
        f"==> {EXAMPLE_NAME} <==\n"
        '{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, '
        '"num_warps": 4, "num_stages": 4},\n'
        ' "1024": {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8, '
        '"num_warps": 4, "num_stages": 3}}'
    )

    def detect(self, head: bytes) -> bool:
        """Whether the first line names such a file. One without such a line looks like a block-fp8 file,
        whose reader goes by the name too."""
        return _SEEN.match(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Like read_told() without options: a layer's hidden size and top_k are then not known."""
        return self.read_told(lines, DEFAULTS)

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Found]:
        """Yields a header with the parts of the name, then a claim for both products of every number of
        tokens, with the line on which its entry ends. Raises ReadError if neither `options.file_name` nor a
        line names the file, and where an option is missing."""
        for start, name, rest in Files(decode_lines(lines)):
            if isinstance(start, Rejected):
                yield start
                continue
            try:
                if is_config(name):
                    options = told_by(Document(rest, start), options)
                else:
                    shown = options.file_name if name is None else name
                    yield from entries(shown, Document(rest, start), options)
            except UnreadError as error:
                if name is None:
                    raise ReadError(str(error)) from None
                yield rejected(start, error, name)
            except BrokenError as broken:
                yield rejected(broken.line, broken, broken.text)


def is_named(name: str) -> bool:
    """Whether a file's name begins as such a file's."""
    return _NAMED.fullmatch(name) is not None


def entries(name: str, document: Document, options: ReadOptions) -> Iterator[Found]:
    """The header and the entries of one file. Raises UnreadError for a name that cannot be used and where an
    option is missing, BrokenError for the rest of a damaged file."""
    about = ExpertFile.of(name)
    if about is None:
        wrong = f"the name '{printable(name)}' does not say" if name else "no name says"
        raise UnreadError(
            f"{wrong} the E, N and device of these configurations of experts; name the file as the framework "
            f"looks it up, such as {EXAMPLE_NAME}"
        )
    if (fault := about.fault()) is not None:
        raise UnreadError(f"{printable(name)}: {fault}")
    try:
        file = _File(about, about.layer(options))
    except ReadError as error:
        raise UnreadError(str(error)) from None
    said = {"E": str(about.experts), "N": str(about.size), "device_name": about.device_name}
    yield Header(said | dict(about.options))
    document.take("{")
    if document.peek() == "}":
        document.take("}")
    else:
        seen: set[int] = set()
        while True:
            key = str(document.value() if document.peek() == '"' else document.take('"'))
            document.take(":")
            yield from _entry(file, document, key, seen)
            if document.take(",", "}") == "}":
                break
    if document.peek():
        raise BrokenError(document.line, "something follows the end of the object; nothing after it was read")


@dataclass(frozen=True)
class _File:
    """What a file's name says, and the layer that it is about."""

    about: ExpertFile
    layer: ExpertLayer

    @property
    def products(self) -> tuple[str, ...]:
        """The layer's products that an entry is a claim about."""
        return (DOWN,) if self.about.down else PRODUCTS

    def claim(self, value: object) -> Claim:
        """Raises BadEntryError."""
        scaled = self.about.kind != HALVES
        arch = fp8_of(self.about.device_name)[1] if scaled else ""
        return Claim(_solution(value, self.about.kind), None, arch=arch, product=self.about.device_name)


def _entry(file: _File, document: Document, key: str, seen: set[int]) -> Iterator[Found]:
    try:
        value = document.value()
        if key == "triton_version":
            return
        tokens = _tokens(key, seen)
        claim = file.claim(value)
        problems = [file.layer.problem(product, tokens) for product in file.products]
    except BrokenError:
        raise
    except (BadEntryError, BadJsonError, ReadError) as error:
        yield rejected(document.line, error, key)
        return
    seen.add(tokens)
    for product, problem in zip(file.products, problems, strict=True):
        yield Entry(document.line, problem, file.layer.key(product, tokens), claim=claim)


def _tokens(key: str, seen: set[int]) -> int:
    if _TOKENS.fullmatch(key) is None or not 1 <= int(key) < 2**31:
        raise BadEntryError(
            f"key {printable(key, 40)!r} is no number of tokens: it must be a whole number from 1 to "
            f"{2**31 - 1}"
        )
    if int(key) in seen:
        raise BadEntryError(f"{int(key)} tokens stand twice; the framework takes the last, so give it once")
    return int(key)


def _solution(value: object, kind: str | None) -> Solution:
    if not isinstance(value, dict):
        raise BadEntryError("an entry must be an object of the kernel's parameters")
    for name, only, why in _UNCHANGING:
        given = value.get(name, only)
        if given != only or type(given) is not type(only):
            raise BadEntryError(f"{name} is {printable(repr(given), 40)}; {why}")
    ignored = {name for name, _, _ in _UNCHANGING}
    parameters = {name: of for name, of in value.items() if name not in ignored}
    fault = kernel_fault(parameters, "the fused mixture of experts")
    if fault is not None:
        raise BadEntryError(fault)
    if kind == BLOCK_SCALES:
        parameters["BLOCK_SIZE_K"] = min(parameters["BLOCK_SIZE_K"], BLOCK)
    return Solution(FAMILY, 1, parameters)
