"""What vLLM and SGLang print where they have no tuned configuration: a request to tune.

    WARNING 09-24 20:53:34 [fused_moe.py:727] Using default MoE config. Performance might be sub-optimal!
        Config file not found at ['/.../fused_moe/configs/E=16,N=1536,device_name=NVIDIA_L40S.json']
    WARNING 09-24 20:53:33 [fp8_utils.py:581] Using default W8A8 Block FP8 kernel config. ... Config file not
        found at /.../N=4096,K=1024,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json

(each on one line, wherever it stands in a server's log.) The name of the file that is missing says the sizes:
E=..,N=.. a layer of experts with its two grouped products, N=..,K=.. a block-fp8 layer. Releases differ in
the words before `Config file not found at`, in how many folders follow it (a list, since vLLM looks into
VLLM_TUNED_CONFIG_FOLDER too), and SGLang names the second product's file `_down`. A name counts once, however
many processes print it. Each becomes problems at every number of `tokens`.

A layer of experts also needs `hidden_size` and `top_k`, and `expert_parallel` where devices share the
experts: see [fused-moe](#fused-moe), also for a `config.json` in the stream or in the file's folder. Other
lines are passed over.

Source: get_moe_configs in vLLM (vllm/model_executor/layers/fused_moe/fused_moe.py) and SGLang
(fused_moe_triton_config.py); get_w8a8_block_fp8_configs in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from backends.errors import InvalidProblem, ReadError
from service.formats.core.base import (
    DEFAULTS,
    Declaration,
    Entry,
    Found,
    ReadOptions,
    Rejected,
    decode_lines,
    rejected,
)
from service.formats.core.json_text import BrokenError, Document
from service.formats.vllm.beside import is_config, told_by
from service.formats.vllm.block_fp8 import block_problem, weight_of
from service.formats.vllm.experts import EXAMPLE_NAME, PRODUCTS, ExpertFile
from service.formats.vllm.files import Files, UnreadError
from service.formats.vllm.fused_moe import OPTIONS

_MARK = "Config file not found at "
_FILE = re.compile(r"(?<![A-Za-z0-9])((?:E=[0-9]+,N=|N=[0-9]+,K=)[0-9]+,device_name=[^/\\'\"]{1,300}?\.json)")
_SEEN = re.compile(rb"Config file not found at [^\r\n]{0,4000}?(?:E=[0-9]+,N|N=[0-9]+,K)=[0-9]+,device_name=")


@dataclass(frozen=True)
class VllmLog:
    """The format's entry in the registry."""

    name: str = "vllm-log"
    declares: ClassVar[Declaration] = Declaration(options=("tokens", *OPTIONS))
    description: str = "a log of vLLM or SGLang: the layers whose tuned configuration was not found"
    example: str = (
        "==> config.json <==\n"
        '{"hidden_size": 2048, "num_experts_per_tok": 8}\n'
        "==> vllm.log <==\n"
        "Using default MoE config. Performance might be sub-optimal! Config file not found at "
        f"['/opt/vllm/{EXAMPLE_NAME}']"
    )

    def detect(self, head: bytes) -> bool:
        """Whether a line says that a configuration was not found."""
        return _SEEN.search(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Like read_told() at the usual numbers of tokens."""
        return self.read_told(lines, DEFAULTS)

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Found]:
        """Yields the problems of every file that is named for the first time. A layer that cannot be tuned,
        or whose options are missing, is a rejected line."""
        named: set[object] = set()
        for start, name, rest in Files(decode_lines(lines)):
            if isinstance(start, Rejected):
                yield start
                continue
            if is_config(name):
                try:
                    options = told_by(Document(rest, start), options)
                except (UnreadError, BrokenError) as error:
                    yield rejected(start, error, name or "")
                continue
            for line in rest:
                if isinstance(line, Rejected):
                    yield line
                elif _MARK in line[1]:
                    yield from _layers(*line, options, named)


def _layers(number: int, text: str, options: ReadOptions, named: set[object]) -> Iterator[Entry | Rejected]:
    """The problems of a line's files, of which `named` were named before."""
    found = _FILE.findall(text.partition(_MARK)[2])
    if not found:
        yield rejected(number, "it names no file of tuned configurations of experts or block-fp8", text)
    for name in dict.fromkeys(found):
        experts = ExpertFile.of(name)
        # Both files of a layer are about both of its products.
        known: object = name if experts is None else (experts.experts, experts.size, experts.options)
        if known in named:
            continue
        named.add(known)
        try:
            if experts is not None:
                entries = _experts(number, experts, options)
            elif name.startswith("E="):
                raise UnreadError(f"no layer of experts has such a name; names are such as {EXAMPLE_NAME}")
            else:
                entries = _dense(number, name, options)
        except (ReadError, UnreadError, InvalidProblem) as error:
            yield rejected(number, error, name)
        else:
            yield from entries


def _experts(number: int, file: ExpertFile, options: ReadOptions) -> list[Entry]:
    if (fault := file.fault()) is not None:
        raise UnreadError(fault)
    layer = file.layer(options)
    return [
        Entry(number, layer.problem(product, tokens), layer.key(product, tokens))
        for tokens in dict.fromkeys(options.tokens)
        for product in PRODUCTS
    ]


def _dense(number: int, name: str, options: ReadOptions) -> list[Entry]:
    n, k, dtype = weight_of(name)
    return [
        Entry(number, block_problem(tokens, n, k, dtype), f"N={n},K={k}")
        for tokens in dict.fromkeys(options.tokens)
    ]
