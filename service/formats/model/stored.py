"""Checkpoints of GPTQ, AWQ and compressed-tensors: the problems of their linear layers, as kernels read them.

* gptq: 4 bits, or 8 if symmetric, in groups of 32, 64 or 128 or with a scale a row, without act-order. * awq:
4 bits of versions gemm and gemv. * compressed-tensors: integers of 4 or 8 bits, fp8_e4m3 and MXFP4 beside
16-bit activations (pack-quantized, int-quantized, float-quantized, mxfp4-pack-quantized); int8 or 8-bit
floats on both sides with scales of rows, tensors or, for floats, DeepSeek's blocks (int-quantized,
float-quantized, naive-quantized).

Scales of weights alone are loaded in the model's type, and MXFP4's are e8m0. Routers and logits are not
quantised. What would change the problems and cannot be expressed is refused by its name: act-order, settings
of single modules, NVFP4, 4-bit weights beside 8-bit activations.

Source: vLLM, vllm/model_executor/layers/quantization/gptq_marlin.py, awq_marlin.py and compressed_tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from backends.dtypes import FP8_WEIGHT
from backends.errors import ReadError
from backends.problem import GemmProblem, from_linear
from backends.quantisation import GROUPS, SQUARE, ZERO_ROWS
from service.formats.model.fields import Fields, shown
from service.formats.model.layers import COLUMN, ROW, Linear, Parallel

#: Methods that are read here.
METHODS = ("gptq", "awq", "compressed-tensors")
_GROUP_NAMES = {size: name for name, size in GROUPS.items()}
_BLOCK = 128
#: Fields that do not change the problems: how weights were found, and what loads them.
_GPTQ = {
    "quant_method", "bits", "group_size", "sym", "desc_act", "lm_head", "checkpoint_format", "dynamic",
    "meta", "true_sequential", "static_groups", "damp_percent", "damp_auto_increment", "model_name_or_path",
    "model_file_base_name", "pack_dtype", "mse", "dataset", "tokenizer", "batch_size", "pad_token_id",
    "cache_block_outputs", "block_name_to_quantize", "module_name_preceding_first_block", "model_seqlen",
    "modules_in_block_to_quantize", "max_input_length", "use_cuda_fp16", "use_exllama", "disable_exllama",
    "exllama_config", "backend", "is_marlin_format", "quant_type",
}  # fmt: skip
_AWQ = {
    "quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version",
    "modules_to_not_convert", "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config",
}  # fmt: skip
_COMPRESSED = {
    "quant_method", "format", "config_groups", "ignore", "kv_cache_scheme", "quantization_status",
    "global_compression_ratio", "sparsity_config", "transform_config", "version",
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """How all linear layers but routers and logits are stored. `options`: arguments of from_linear. `inputs`:
    the 8-bit type of activations, None for the model's own. `group`: elements of k that share a scale, 0 for
    a row. `rows`: of which n is a multiple; `fused_rows`: and each of fused layers but the last."""

    options: tuple[tuple[str, Any], ...]
    inputs: str | None = None
    group: int = 0
    rows: int = 1
    fused_rows: int = 1

    def check(self, linear: Linear, tp: Parallel, advice: str) -> None:
        """Raises ReadError if a device's share of the layer cuts a group, or rows that are stored
        together."""
        shared = f"on each of {tp.devices} devices"
        if self.group and linear.k % self.group:
            raise ReadError(
                f"{linear.name}: k {linear.k} {shared} is no multiple of the scales' groups of {self.group}; "
                f"{advice}"
            )
        sizes = [linear.n] if self.rows > 1 else []
        if self.fused_rows > 1:
            split = tp.devices > 1
            sizes += linear.parts if linear.split == COLUMN and split else linear.parts[:-1]
            sizes += [linear.k] if linear.split == ROW and split else []
        for size in sizes:
            if size % max(self.rows, self.fused_rows):
                raise ReadError(
                    f"{linear.name}: {size} {shared} cuts {max(self.rows, self.fused_rows)} that are stored "
                    f"together; {advice}"
                )

    def problem(self, linear: Linear, tokens: int, own: str, bias: bool) -> GemmProblem:
        """One call of the layer. Raises InvalidProblem."""
        options = dict(self.options)
        # It is added after products whose operands both are scaled by blocks.
        if bias and (self.fused_rows == 1 or self.inputs is None):
            options["bias"] = own
        if self.inputs is not None:
            options["dtype_d"] = own
        elif options["scale_dtype"] is None:
            options["scale_dtype"] = own
        return from_linear(tokens, linear.n, linear.k, self.inputs or own, **options)


class _Reader:
    """One quantization_config; `advice` is how every refusal ends."""

    def __init__(self, fields: Fields, own: str, kind: str | None, advice: str) -> None:
        self.fields, self.own, self.kind, self.advice = fields, own, kind, advice

    def refused(
        self, field: str, value: object, why: str = "is not supported", of: Fields | None = None
    ) -> ReadError:
        return ReadError(f"{(of or self.fields).name(field)} {shown(value)} {why}; {self.advice}")

    def known(self, names: set[str]) -> None:
        """Refuses fields that may mean anything."""
        for name in self.fields.names():
            if name not in names:
                where = self.fields.name("").rstrip(".")
                raise ReadError(
                    f"{where} has {shown(name)}, which is unknown and may change the problems; {self.advice}"
                )

    def sixteen_bits(self) -> None:
        """Raises ReadError unless weights are multiplied by bf16 or fp16, of the model's own type."""
        if self.own not in ("bf16", "fp16"):
            raise ReadError(
                f"quantised weights are multiplied by bf16 or fp16, not by {self.own}; {self.advice}"
            )
        if self.kind is not None:
            raise ReadError(f"dtype {self.kind} is how no layer of this model is stored; {self.advice}")

    def integers(self, bits: int, group: int, symmetric: bool, where: str) -> Stored:
        """Weights of 4 or 8 bits; `group` -1 is a row. `where` names the field of the bits."""
        self.sixteen_bits()
        if group != -1 and group not in _GROUP_NAMES:
            raise ReadError(
                f"groups of {group} are not supported, but 32, 64, 128 and rows (-1); {self.advice}"
            )
        scale = "outer" if group == -1 else _GROUP_NAMES[group]
        options: dict[str, Any] = {"scale_b": scale, "scale_dtype": None}
        if bits == 8 and symmetric:
            return Stored((*options.items(), ("dtype_b", "int8")), group=max(group, 0))
        if bits != 4:
            has = (
                "8 bits have no zero points here"
                if bits == 8
                else f"{where} {bits} is not supported, but 4 and 8"
            )
            raise ReadError(f"{has}; {self.advice}")
        zero = "eight" if symmetric else "uint4"
        return Stored(
            (*options.items(), ("dtype_b", "uint4"), ("zero_b", zero)), None, max(group, 0),
            1 if symmetric else ZERO_ROWS,
        )  # fmt: skip


def stored_of(fields: Fields, text: Fields, own: str, kind: str | None, advice: str) -> Stored:
    """How a checkpoint of one of METHODS stores its layers. `kind`: an 8-bit type to compute floats in
    instead of fp8_e4m3. Raises ReadError."""
    reader = _Reader(fields, own, kind, advice)
    method = fields.text("quant_method")
    return {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed}[str(method)](reader, text)


def left_as_they_were(
    fields: Fields, field: str, text: Fields, advice: str, read: Collection[str],
    elsewhere: Callable[[str, int, Collection[str]], bool],
) -> None:  # fmt: skip
    """Raises ReadError if a list of unquantised modules names one that is read: `elsewhere` says of a name,
    the number of layers and what longer names are meant, too, whether it does not matter. Patterns ("re:...")
    are taken by the name in them; without "$" at the end one means longer names as well, and so does a name
    in AWQ's list, which is of parts of names. `read`: the names of the layers that are read."""
    layers = text.whole("num_hidden_layers")
    for module in fields.texts(field) or ():
        pattern = module.startswith("re:")
        plain = module.removeprefix("re:").strip("^$").replace(r"\.", ".").replace(".*", ".").strip(".")
        plain = ".".join(part for part in plain.split(".") if part)
        begins = field == "modules_to_not_convert" or (pattern and not module.endswith("$"))
        if not elsewhere(plain, layers, read if begins else ()):
            raise ReadError(
                f"{fields.name(field)} names {shown(module)}: leaving single layers as they were is not "
                f"supported; {advice}"
            )


def _gptq(reader: _Reader, text: Fields) -> Stored:
    fields = reader.fields
    reader.known(_GPTQ)
    group = _group_size(fields, "group_size")
    if fields.flag("desc_act", False) and group != -1 and not fields.flag("static_groups", False):
        raise reader.refused("desc_act", True, "permutes the activations (act-order), which no problem has")
    for name in ("dynamic", "modules_in_block_to_quantize"):
        if fields.get(name):
            raise reader.refused(
                name, fields.get(name), "has settings of single modules, which are not supported"
            )
    if fields.flag("lm_head", False):
        raise reader.refused("lm_head", True, "quantises the logits, which is not supported")
    return reader.integers(fields.whole("bits"), group, fields.flag("sym", True), fields.name("bits"))


def _awq(reader: _Reader, text: Fields) -> Stored:
    fields = reader.fields
    reader.known(_AWQ)
    version = fields.text("version")
    if version is not None and version.lower() not in ("gemm", "gemv"):
        raise reader.refused("version", version)
    bits = fields.whole("bits" if fields.get("bits") is not None else "w_bit")
    group = _group_size(fields, "group_size" if fields.get("group_size") is not None else "q_group_size")
    if bits != 4:
        raise ReadError(f"{fields.name('bits')} {bits} is not supported, but 4; {reader.advice}")
    return reader.integers(bits, group, not fields.flag("zero_point", True), fields.name("bits"))


def _group_size(fields: Fields, field: str) -> int:
    """A whole number, by default 128, or -1 for a row."""
    return -1 if fields.get(field) == -1 else fields.whole(field, 128)


# ---- compressed-tensors --------------------------------------------------------------------------


def _compressed(reader: _Reader, text: Fields) -> Stored:
    fields = reader.fields
    reader.known(_COMPRESSED)
    sparse = fields.inner("sparsity_config")
    if sparse is not None and sparse.names() and sparse.text("format") not in (None, "dense"):
        raise reader.refused("sparsity_config.format", sparse.text("format"))
    rotated = fields.inner("transform_config")
    if rotated is not None and rotated.names():
        raise reader.refused(
            "transform_config", rotated.names(), "transforms activations, which no problem has"
        )
    groups = fields.inner("config_groups")
    names = [] if groups is None else groups.names()
    if groups is None or len(names) != 1:
        raise reader.refused(
            "config_groups", names, "must be one group: settings of single modules are not supported"
        )
    group = groups.inner(names[0])
    if group is None or group.texts("targets") != ["Linear"]:
        targets = None if group is None else group.get("targets")
        raise reader.refused(f"config_groups.{names[0]}.targets", targets, "must be Linear alone")
    if group.get("output_activations") is not None:
        raise reader.refused(f"config_groups.{names[0]}.output_activations", "set")
    weights, inputs = group.inner("weights"), group.inner("input_activations")
    if weights is None:
        raise reader.refused(f"config_groups.{names[0]}.weights", None)
    return _weights_alone(reader, weights) if inputs is None else _both(reader, weights, inputs)


def _weights_alone(reader: _Reader, weights: Fields) -> Stored:
    bits, kind, strategy = weights.whole("num_bits"), weights.text("type"), weights.text("strategy")
    form = reader.fields.text("format")
    if kind == "float" and bits == 4:
        if strategy != "group" or weights.whole("group_size") != GROUPS["block_1x32"]:
            raise reader.refused(
                "strategy", strategy, f"of 4-bit floats ({form}) is NVFP4, which is not supported", weights
            )
        reader.sixteen_bits()
        options = {"dtype_b": "fp4_e2m1", "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"}
        return Stored(tuple(options.items()), group=GROUPS["block_1x32"])
    if kind == "float" and bits == 8:
        return _floats_alone(reader, weights)
    if kind != "int":
        raise reader.refused(
            "type", kind, f"of {bits} bits beside 16-bit activations is not supported", weights
        )
    if weights.text("actorder") not in (None, "weight", "static"):
        raise reader.refused(
            "actorder", weights.text("actorder"), "permutes the activations, which no problem has", weights
        )
    symmetric = weights.flag("symmetric", True)
    if strategy == "channel":
        return reader.integers(bits, -1, symmetric, weights.name("num_bits"))
    if strategy != "group":
        raise reader.refused("strategy", strategy, of=weights)
    return reader.integers(bits, weights.whole("group_size"), symmetric, weights.name("num_bits"))


def _floats_alone(reader: _Reader, weights: Fields) -> Stored:
    """Weights of fp8_e4m3 beside 16-bit activations."""
    reader.sixteen_bits()
    if not weights.flag("symmetric", True):
        raise reader.refused("symmetric", False, "has zero points, which 8-bit floats have not", weights)
    strategy = weights.text("strategy")
    scale = {"channel": "outer", "tensor": "tensor", "block": SQUARE}.get(strategy or "")
    if scale is None:
        raise reader.refused("strategy", strategy, of=weights)
    options = (("scale_b", scale), ("scale_dtype", None), ("dtype_b", FP8_WEIGHT))
    if scale != SQUARE:
        return Stored(options)
    if weights.wholes("block_structure") != [_BLOCK] * 2:
        raise reader.refused("block_structure", weights.get("block_structure"), of=weights)
    return Stored(options, group=_BLOCK, fused_rows=_BLOCK)


def _both(reader: _Reader, weights: Fields, inputs: Fields) -> Stored:
    """Weights and activations of 8 bits."""
    for side in (weights, inputs):
        if side.whole("num_bits") != 8:
            raise reader.refused(
                "num_bits", side.whole("num_bits"), "beside quantised activations is not supported", side
            )
        if not side.flag("symmetric", True):
            raise reader.refused(
                "symmetric", False, "has zero points, which products of 8 bits have not", side
            )
    kind = weights.text("type")
    if kind not in ("int", "float") or inputs.text("type") != kind:
        raise reader.refused(
            "type", inputs.text("type"), f"beside weights of {shown(kind)} is not supported", inputs
        )
    if kind == "int" and reader.kind is not None:
        raise ReadError(f"dtype {reader.kind} is how no layer of this model is stored; {reader.advice}")
    dtype = "int8" if kind == "int" else reader.kind or "fp8_e4m3"
    of_weights, of_inputs = weights.text("strategy"), inputs.text("strategy")
    blocks = kind == "float" and of_weights == "block" and of_inputs == "group"
    if blocks and weights.wholes("block_structure") == [_BLOCK] * 2 and inputs.whole("group_size") == _BLOCK:
        return Stored((("scale_a", "block_1x128"), ("scale_b", "block_128x128")), dtype, fused_rows=_BLOCK)
    scales: Mapping[str | None, str] = {"token": "outer", "channel": "outer", "tensor": "tensor"}
    if of_inputs not in ("token", "tensor"):
        raise reader.refused("strategy", of_inputs, of=inputs)
    if of_weights not in ("channel", "tensor"):
        raise reader.refused("strategy", of_weights, of=weights)
    return Stored((("scale_a", scales[of_inputs]), ("scale_b", scales[of_weights])), dtype)
