"""A Hugging Face model's config.json: the GEMMs of its linear layers, on one of the devices that share it.

    {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, ..., "torch_dtype": "bfloat16"}

Each entry is one layer at one number of tokens: y[M, N] = x[M, K] @ w[N, K].T (+ bias), row-major. Its key is
the layer's name in vLLM, its count how often a forward pass on one device calls it. ReadOptions say on how
many devices (`tensor_parallel`), for which M (`tokens`) and, if not as the checkpoint is, in what type
(`dtype`). `gemmtune model` tunes them and writes the file that a program loads.

* `layers` is "fused", as vLLM and SGLang run them (qkv_proj, gate_up_proj, a padded lm_head); "split", as
  transformers does (q_proj, k_proj, v_proj, gate_proj, up_proj, the vocabulary as it is); or "both": each
  layer of either. Phi-3, GPT-2 and GPT-NeoX are fused in transformers too.
* Logits are computed of the last token of each sequence only, so lm_head has the M up to LOGIT_ROWS, the most
  sequences that vLLM runs at once by default (vllm/engine/arg_utils.py: 256, or 1024 on large devices);
  beyond that M is a prefill's, which asks for lm_head with one row a sequence.
* The bias of a row-parallel layer is added on the first device alone (vLLM and SGLang, RowParallelLinear),
  before the sum over devices: with several devices it is two problems, with and without.
* Layers of a checkpoint of GPTQ, AWQ, compressed-tensors or DeepSeek's blocks are as it stores them:
  quantised weights beside 16-bit activations, int8 rows, 8-bit floats in rows, tensors or blocks, MXFP4.
  What has no problem is refused by its name (act-order, NVFP4, settings of single modules); `dtype` bf16
  tunes the layers unquantised.
* Attention itself runs in fused kernels, not in GEMMs; MLA's kv_b_proj is called at prefill only.
* Routed experts are two grouped products a layer, gate and up together, then down, of tokens *
  num_experts_per_tok rows with uniform routing. Their keys name the tokens, for an export that needs them.
  `expert_parallel` devices share them, whole ones each: a device then has its own experts' part of all rows.
  Else `tensor_parallel` devices share each expert, as any MLP. Only experts of bf16, fp16 or 8-bit
  floats with scales of blocks or rows, without biases, and of 4-bit weights in groups of k are grouped
  products: others are left out, as is what else is no single GEMM, and reported as a rejected line, once per
  kind. Biases of gpt-oss's experts, which are MXFP4, are added to their rows afterwards.

A file that is no JSON, or no config.json, is one rejected line. A model whose layers are not known for
certain, or that the devices do not divide, raises ReadError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from backends.canonical import short_hash
from backends.errors import InvalidProblem, ReadError
from backends.grouping import SCALED_TYPE, SCALED_TYPES, SCALES, TYPES
from backends.problem import GemmProblem
from backends.quantisation import GROUPS, ZERO_ROWS
from service.formats.core.base import (
    DEFAULTS,
    Declaration,
    Entry,
    Header,
    ReadOptions,
    Rejected,
    decode_lines,
    rejected,
)
from service.formats.core.json_text import BadJsonError, BrokenError, Document, decode, kind_of
from service.formats.model.architectures import architecture_of
from service.formats.model.dtypes import Types, types_of
from service.formats.model.fields import Fields, shown
from service.formats.model.layers import ROW, Linear, Parallel, RoutedExperts
from service.formats.vllm.experts import BLOCK, PRODUCTS, ExpertLayer

#: Longest line in bytes, like a document's (json_text.MAX_ITEM): the longest published ones list every layer.
MAX_DOCUMENT = 2**20
#: Most sequences in one forward pass; each needs one row of logits.
LOGIT_ROWS = 1024
#: The name of the model's hash in the file's header.
MODEL = "model"
_NAMES = ("architectures", "model_type")
_SIZES = ("hidden_size", "n_embd", "text_config")
_NAMED = re.compile(r'"(?:architectures|model_type)"\s*:')
_SIZED = re.compile(r'"(?:hidden_size|n_embd|text_config)"\s*:')
#: Parts of a multimodal model that are not read.
_TOWERS = ("vision_config", "audio_config")


@dataclass(frozen=True)
class ModelConfig:
    """The format's entry in the registry."""

    name: str = "model-config"
    declares: ClassVar[Declaration] = Declaration(
        options=("tensor_parallel", "tokens", "dtype", "layers", "expert_parallel", "top_k")
    )
    description: str = "a Hugging Face model's config.json: the GEMMs of its layers, sharded as vLLM does"
    example: str = (
        '{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4096,'
        '"intermediate_size":14336,"num_attention_heads":32,"num_key_value_heads":8,"num_hidden_layers":32,'
        '"vocab_size":128256,"torch_dtype":"bfloat16"}'
    )
    max_line: int = MAX_DOCUMENT

    def detect(self, head: bytes) -> bool:
        """Whether the file begins as a JSON object that names a model's class or type, and a size."""
        text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").lstrip(" \t\r\n")
        if text[:1] != "{":
            return False
        try:
            return _is_config(decode(text))
        except BadJsonError:  # cut short, by the head's length or in the file
            named = _NAMED.search(text) is not None and _SIZED.search(text) is not None
            return named and kind_of(head) != "journal"

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected | Header]:
        """The layers on one device, in the checkpoint's own type, at the usual numbers of tokens."""
        return self.read_told(lines, DEFAULTS)

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Entry | Rejected | Header]:
        """The hash that tells the model from others, and the layers of the model run as `options` say. Raises
        ReadError for a model that is not supported, cannot be divided among the devices, or has no known
        type."""
        document = Document(decode_lines(lines, MAX_DOCUMENT))
        try:
            if not document.peek():
                return
            value = document.value()
            if document.peek():
                raise BrokenError(document.line, "something follows the end of the document")
        except BrokenError as error:
            yield rejected(error.line, error, error.text)
            return
        except BadJsonError as error:
            yield rejected(document.line, error)
            return
        if not _is_config(value):
            named, sized = " or ".join(_NAMES), " or ".join(_SIZES)
            reason = f"no config.json of a model, which is an object with {named}, and {sized}"
            yield rejected(1, reason, shown(value))
            return
        # (Most files of models are called config.json.)
        yield Header({MODEL: short_hash(value)})
        yield from _layers(Fields(value), options)


def _is_config(value: object) -> bool:
    return (
        isinstance(value, dict)
        and any(name in value for name in _NAMES)
        and any(name in value for name in _SIZES)
    )


def _layers(document: Fields, options: ReadOptions) -> Iterator[Entry | Rejected]:
    architecture, text = architecture_of(document)
    tp = Parallel(options.tensor_parallel, options.expert_parallel)
    types = types_of(document, text, architecture, options.dtype)
    model = architecture.layers(text, tp)
    linears = [one for linear in model.linears for one in _ways(linear, options.layers)]
    for linear in linears:
        types.check(linear, tp)
    if options.expert_parallel > 1 and model.experts is None:
        raise ReadError(f"expert_parallel {options.expert_parallel}: this model has no routed experts")
    found = [] if model.experts is None else [_expert_layer(model.experts, types, options)]
    left_out = [one for one in found if isinstance(one, str)]
    for reason in (*model.left_out, *left_out, *_towers(document)):
        yield rejected(1, reason)
    for linear in linears:
        for tokens in _tokens(linear, options):
            # Both are one problem if the bias is added after the GEMM, as with block scales.
            made = dict.fromkeys(_problem(types, linear, tokens, bias) for bias in _biases(linear, tp))
            for problem in made:
                yield Entry(1, problem, linear.name, linear.calls)
    for layer in found:
        if model.experts is None or isinstance(layer, str):
            continue
        for tokens in dict.fromkeys(options.tokens):
            for product in PRODUCTS:
                key = layer.key(product, tokens)
                yield Entry(1, layer.problem(product, tokens), key, model.experts.calls)


def _expert_layer(experts: RoutedExperts, types: Types, options: ReadOptions) -> ExpertLayer | str:
    """The experts of a device, or why they are no grouped products. Raises ReadError for a layer that cannot
    be."""
    top_k = options.top_k if options.top_k is not None else experts.top_k
    kind, weights, scales = types.expert_rows, types.expert_weights, types.expert_scales
    row_scales = scales == SCALES[1]
    if weights is not None:
        group = GROUPS[weights["scale_b"]]
    if types.stored is not None and weights is None and scales is None:
        why = "are quantised, as the other layers are"
        if types.stored.inputs in SCALED_TYPES:
            why = (
                f"are {types.stored.inputs} with other scales than those of blocks, or of rows on both sides"
            )
    elif experts.bias and weights is None:
        why = "have biases"
    elif weights is not None and (experts.size % group or experts.hidden % group):
        why = f"cut a group of {group} quantised weights"
    elif weights is not None and weights.get("zero_b") == "uint4" and experts.hidden % ZERO_ROWS:
        why = f"have rows that are no multiple of {ZERO_ROWS}, whose zero points are stored together"
    elif kind not in (*TYPES, *SCALED_TYPES):
        why = f"are {kind}"
    elif scales is not None and not row_scales and experts.size % BLOCK:
        why = f"cut a block of {BLOCK} scaled weights"
    elif top_k is None:
        why = "have no num_experts_per_tok in the config.json: write it there, or give top_k"
    else:
        return ExpertLayer(
            experts.experts, experts.size, experts.hidden, top_k, experts.expert_parallel, kind, types.own,
            tuple((weights or {}).items()), row_scales,
        )  # fmt: skip
    return (
        f"the routed experts of {experts.calls} layers ({experts.experts} of intermediate size "
        f"{experts.size} on a device) {why}; grouped products are of {', '.join(TYPES)} or "
        f"{SCALED_TYPE} without biases, or of 4-bit weights in groups: they are left out"
    )


def _ways(linear: Linear, layers: str) -> list[Linear]:
    """A layer as it is fused, as transformers runs it, or both: once where these are the same."""
    return {
        "fused": [linear],
        "split": linear.one_by_one(),
        "both": [linear, *(one for one in linear.one_by_one() if one != linear)],
    }[layers]


def _tokens(linear: Linear, options: ReadOptions) -> list[int]:
    """The numbers of tokens that a layer has."""
    most = LOGIT_ROWS if linear.name == "lm_head" else None
    return [tokens for tokens in dict.fromkeys(options.tokens) if most is None or tokens <= most]


@dataclass(frozen=True)
class Merge:
    """Layers that run one by one (`parts`), and the one GEMM that they are if they are `fused`: `calls` times
    in a forward pass of `tokens` tokens."""

    names: tuple[str, ...]
    tokens: int
    fused: GemmProblem
    parts: tuple[GemmProblem, ...]
    calls: int


def merges_of(document: Mapping[str, Any], options: ReadOptions) -> list[Merge]:
    """The layers of a model that transformers runs one by one and others fuse. Raises ReadError."""
    fields = Fields(document)
    architecture, text = architecture_of(fields)
    types = types_of(fields, text, architecture, options.dtype)
    found = []
    for linear in architecture.layers(text, Parallel(options.tensor_parallel)).linears:
        parts = linear.one_by_one()
        if len(parts) < 2:
            continue
        names = tuple(part.name for part in parts)
        for tokens in _tokens(linear, options):
            fused, *split = (_problem(types, one, tokens, one.bias) for one in (linear, *parts))
            found.append(Merge(names, tokens, fused, tuple(split), linear.calls))
    return found


def _biases(linear: Linear, tp: Parallel) -> tuple[bool, ...]:
    """Whether a device adds the bias: both ways if only the first device does."""
    return (True, False) if linear.bias and linear.split == ROW and tp.devices > 1 else (linear.bias,)


def _problem(types: Types, linear: Linear, tokens: int, bias: bool) -> GemmProblem:
    try:
        return types.problem(linear, tokens, bias)
    except InvalidProblem as error:
        raise ReadError(f"{linear.name} is no GEMM that can be run: {error}; check the config.json") from None


def _towers(document: Fields) -> Iterator[str]:
    for name in _TOWERS:
        if document.get(name) is not None:
            yield f"{name}: only the language model's layers are read; send the others' shapes as CSV or JSON"
