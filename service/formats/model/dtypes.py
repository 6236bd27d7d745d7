"""The types in which a model's linear layers are computed: its own, or as a quantised checkpoint stores them.

A checkpoint's own type is `torch_dtype` or `dtype`. Checkpoints of GPTQ, AWQ and compressed-tensors are read
by stored.py. DeepSeek's blocks (quant_method fp8, weight_block_size [128, 128]) have fp32 scales per 1 x 128
block of activations and per 128 x 128 block of weights; the output has the checkpoint's own type, and a bias
is added afterwards. gpt-oss's MXFP4 applies to its experts only. Routers and logits are not quantised.

Source: vLLM, vllm/model_executor/layers/quantization/fp8.py, mxfp4.py and utils/fp8_utils.py
(validate_fp8_block_shape).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from backends.dtypes import dtype as dtype_of
from backends.errors import InvalidProblem, ReadError
from backends.grouping import QUANTISED_TYPES, SCALED_TYPES, SCALES
from backends.problem import GemmProblem, from_linear
from backends.quantisation import GROUPS
from service.formats.model.architectures import Architecture
from service.formats.model.fields import INSTEAD, Fields, shown
from service.formats.model.layers import COLUMN, ROW, Linear, Parallel
from service.formats.model.stored import METHODS, Stored, left_as_they_were, stored_of

#: Unquantised types that may be requested; a checkpoint's own type is one of them.
PLAIN = ("bf16", "fp16", "fp32", "tf32")
_ADVICE = f"give a dtype ({', '.join(PLAIN)}) to tune the unquantised layers, or {INSTEAD}"
_OWN = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
#: 8-bit floats in which a checkpoint's blocks may be computed; MI300 has its own (FNUZ).
_BLOCKS = ("fp8_e4m3", "fp8_e4m3_fnuz")
_BLOCK = 128
#: Arguments of from_linear() for weights of MXFP4.
_MXFP4 = {"dtype_b": "fp4_e2m1", "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"}
_QUANTISATIONS = ("quantization_config", "compression_config", "quantization")
#: Fields that an fp8 quantisation may have. All are checked, so that they do not change the problems.
_FP8 = {
    "quant_method", "activation_scheme", "fmt", "weight_block_size", "modules_to_not_convert",
    "ignored_layers", "scale_fmt",
}  # fmt: skip
#: Modules that a list of unquantised modules may name: never quantised, or no part of what is read here.
_NEVER = ("lm_head", "gate", "shared_expert_gate", "router", "embed_tokens")
_ELSEWHERE = ("visual", "vision_tower", "vision_model", "multi_modal_projector", "mtp")


@dataclass(frozen=True)
class Types:
    """`own` is the model's type; `blocks` is the 8-bit float of block-scaled layers, if there are any;
    `stored` how another quantisation stores layers; `quantised_experts` is the type of routed experts that
    alone are quantised."""

    own: str
    blocks: str | None = None
    stored: Stored | None = None
    quantised_experts: str = ""

    @property
    def expert_scales(self) -> tuple[str, str] | None:
        """Scales of the weights and rows of routed experts of 8-bit floats, one of grouping.SCALES; None for
        other experts."""
        if self.blocks is not None:
            return SCALES[0]
        if self.stored is None or self.stored.inputs not in SCALED_TYPES:
            return None
        options = dict(self.stored.options)
        found = options.get("scale_b"), options.get("scale_a")
        return next((known for known in SCALES if known == found), None)

    @property
    def expert_rows(self) -> str:
        """The type of routed experts' rows: the weights' where these are 8-bit floats, else the model's."""
        if self.blocks is not None:
            return self.blocks
        stored = self.stored if self.expert_scales is not None else None
        return self.own if stored is None or stored.inputs is None else stored.inputs

    @property
    def expert_weights(self) -> dict[str, Any] | None:
        """Arguments of from_linear() of routed experts whose weights are quantised to 4 bits, in groups of k;
        None if they are not."""
        if self.quantised_experts:
            return dict(_MXFP4)
        if self.stored is None or self.stored.inputs is not None:
            return None
        found = dict(self.stored.options)
        if found.get("dtype_b") not in QUANTISED_TYPES or found["scale_b"] not in GROUPS:
            return None
        return found | {"scale_dtype": found["scale_dtype"] or self.own}

    def check(self, linear: Linear, tp: Parallel) -> None:
        """Raises ReadError if sharding or fusing the layer would cut a block of scaled weights."""
        if self.stored is not None and not linear.plain:
            self.stored.check(
                linear, tp, f"give a smaller tensor_parallel, or {_ADVICE.removeprefix('give ')}"
            )
        if self.blocks is None or linear.plain:
            return
        shared = tp.devices > 1
        sizes = [linear.k] if linear.split == ROW and shared else []
        # Where every device has all of n, the last of the fused layers may end within a block.
        sizes += linear.parts if linear.split == COLUMN and shared else linear.parts[:-1]
        for size in sizes:
            if size % _BLOCK:
                raise ReadError(
                    f"{linear.name}: a share of {size} on each of {tp.devices} devices cuts a block of "
                    f"{_BLOCK} scaled weights; give a smaller tensor_parallel, or a dtype such as bf16 for "
                    "the unquantised layers"
                )

    def problem(self, linear: Linear, tokens: int, bias: bool) -> GemmProblem:
        """One call of the layer. Raises InvalidProblem for sizes out of a problem's range."""
        if self.stored is not None and not linear.plain:
            return self.stored.problem(linear, tokens, self.own, bias)
        if self.blocks is not None and not linear.plain:
            return from_linear(
                tokens, linear.n, linear.k, self.blocks, dtype_d=self.own,
                scale_a="block_1x128", scale_b="block_128x128",
            )  # fmt: skip
        kind = "fp32" if self.own == "tf32" else self.own
        return from_linear(tokens, linear.n, linear.k, self.own, bias=kind if bias else None)


def types_of(document: Fields, text: Fields, architecture: Architecture, asked: str | None) -> Types:
    """The types of a model; the dtype `asked` takes precedence if it is given. Raises ReadError."""
    kind = _asked(asked)
    if kind in PLAIN:
        return Types(kind)
    quantised = _quantisation(document, text)
    method = None if quantised is None else quantised.text("quant_method")
    if quantised is None:
        if kind is not None:
            raise ReadError(f"dtype {kind} is how no layer of this model is stored; {_ADVICE}")
        return Types(_own(document, text))
    if method == "mxfp4" and "mxfp4" in architecture.quantised and kind is None:
        return Types(_own(document, text, "bf16"), quantised_experts="mxfp4")
    if method in METHODS and "fp8" in architecture.quantised:
        own, read = _own(document, text), _layers_read(architecture, text)
        for field in ("modules_to_not_convert", "ignore"):
            left_as_they_were(quantised, field, text, _ADVICE, read, _is_elsewhere)
        return Types(own, stored=stored_of(quantised, text, own, kind, _ADVICE))
    if method != "fp8" or "fp8" not in architecture.quantised:
        raise ReadError(
            f"{quantised.name('quant_method')} {shown(method)} is not supported for {architecture.name}"
            f"{'' if kind is None else f' with dtype {kind}'}; {_ADVICE}"
        )
    _check_fp8(quantised, text)
    own = _own(document, text)
    if own == "fp32":
        raise ReadError(f"blocks of 8-bit floats are not known to make fp32; {_ADVICE}")
    return Types(own, kind or _BLOCKS[0])


def _asked(asked: str | None) -> str | None:
    if asked is None:
        return None
    known = f"known: {', '.join((*PLAIN, *_BLOCKS))} (the last two for a checkpoint that is scaled by blocks)"
    if asked.strip().lower() == "tf32":
        return "tf32"
    try:
        kind = dtype_of(asked).name
    except InvalidProblem:
        raise ReadError(f"dtype {shown(asked)} is unknown; {known}") from None
    if kind not in (*PLAIN, *_BLOCKS):
        raise ReadError(f"dtype {kind} does not say how a model's layers are scaled; {known}")
    return kind


def _own(document: Fields, text: Fields, default: str | None = None) -> str:
    """The type that the file states; a text_config's takes precedence over the document's."""
    for fields in (text, document):
        stated = {value for name in ("dtype", "torch_dtype") if (value := fields.text(name)) is not None}
        if len(stated) > 1:
            raise ReadError(
                f"{fields.name('dtype')} and {fields.name('torch_dtype')} differ; give a dtype "
                f"({', '.join(PLAIN)})"
            )
        for value in stated:
            kind = _OWN.get(value.removeprefix("torch."))
            if kind is None:
                raise ReadError(f"torch_dtype {shown(value)} is not supported; {_ADVICE}")
            return kind
    if default is None:
        raise ReadError(f"the file has no torch_dtype; give a dtype ({', '.join(PLAIN)})")
    return default


def _quantisation(document: Fields, text: Fields) -> Fields | None:
    for fields in (document, text):
        for name in _QUANTISATIONS:
            if (found := fields.inner(name)) is not None:
                return found
    return None


def _block_text(quantised: Fields) -> str:
    size = quantised.get("weight_block_size")
    return str(size) if isinstance(size, list) and len(size) <= 2 else shown(size)


def _check_fp8(quantised: Fields, text: Fields) -> None:
    """Raises ReadError unless all layers that can have them have DeepSeek's blocks."""
    expected = {"activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0"}
    for name, value in expected.items():
        found = quantised.get(name)
        if found != value and (found is not None or name == "activation_scheme"):
            raise ReadError(f"{quantised.name(name)} {shown(found)} is not supported; {_ADVICE}")
    if quantised.wholes("weight_block_size") != [_BLOCK, _BLOCK]:
        raise ReadError(
            f"{quantised.name('weight_block_size')} {_block_text(quantised)} is not supported; {_ADVICE}"
        )
    unknown = [name for name in quantised.names() if name not in _FP8]
    if unknown:
        where = quantised.name("").rstrip(".")
        raise ReadError(
            f"{where} has {shown(unknown[0])}, which is unknown and may change the problems; {_ADVICE}"
        )
    layers = text.whole("num_hidden_layers")
    for field in ("modules_to_not_convert", "ignored_layers"):
        for module in quantised.texts(field) or ():
            if not _is_elsewhere(module, layers):
                raise ReadError(
                    f"{quantised.name(field)} names {shown(module)}: leaving single layers as they were is "
                    f"not supported; {_ADVICE}"
                )


def _layers_read(architecture: Architecture, text: Fields) -> frozenset[str]:
    """The last part of the names of all linear layers that a quantisation is of, fused and apart."""
    linears = architecture.layers(text, Parallel(1)).linears
    names = [name for one in linears if not one.plain for name in (one.name, *dict(one.separate))]
    return frozenset(name.rpartition(".")[2] for name in names)


def _is_elsewhere(module: str, layers: int, longer: Collection[str] = ()) -> bool:
    """Whether a module's type does not matter here: not read, never quantised, or beyond the last layer.
    `longer`: names of layers that are meant, too, if they begin with the module's own."""
    parts = module.split(".")
    never = parts[-1] in _NEVER and not any(name.startswith(parts[-1]) for name in longer)
    if never or parts[-1].endswith("norm") or any(part in _ELSEWHERE for part in parts):
        return True
    at = parts.index("layers") + 1 if "layers" in parts[:-1] else 0
    # Multi-token prediction is stored as layers after the last.
    return bool(at) and parts[at].isascii() and parts[at].isdigit() and int(parts[at][:9]) >= layers
