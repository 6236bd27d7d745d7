"""Quantised checkpoints: the problems of their layers, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import ReadError
from backends.problem import GemmProblem, from_linear
from tests.service.formats.model.test_config import config, entries

GPTQ = {
    "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
    "damp_percent": 0.1, "checkpoint_format": "gptq", "lm_head": False, "true_sequential": True,
    "static_groups": False, "model_file_base_name": "model", "pack_dtype": "int32",
    "meta": {"quantizer": ["gptqmodel:2.2"]}, "dynamic": {},
}  # fmt: skip
AWQ = {
    "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
    "modules_to_not_convert": None,
}  # fmt: skip
INT4 = {
    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "actorder": None,
    "dynamic": False, "observer": "minmax", "observer_kwargs": {}, "block_structure": None,
}  # fmt: skip
INT8 = {**INT4, "num_bits": 8, "strategy": "channel", "group_size": None}
FP8 = {**INT8, "type": "float"}
TOKEN = {**INT8, "strategy": "token", "dynamic": True}
FLOAT_TOKEN = {**TOKEN, "type": "float"}


def compressed(weights: Any, inputs: Any = None, **changed: Any) -> dict[str, Any]:
    group = {
        "targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None,
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": group}, "kv_cache_scheme": None, "quantization_status": "compressed",
        "global_compression_ratio": 1.5, **changed,
    }  # fmt: skip


def layers(quantised: Any, name: str = "llama-3-8b", **how: Any) -> dict[str, GemmProblem]:
    found = entries(config(name, quantization_config=quantised), **how)
    return {part.key: part.problem for part in found}


def down(**options: Any) -> GemmProblem:
    """Llama-3-8B's down_proj for one token."""
    return from_linear(1, 4096, 14336, options.pop("dtype_a", "bf16"), **options)


#: DeepSeek's blocks.
BLOCKS = compressed(
    {**FP8, "strategy": "block", "block_structure": [128, 128]},
    {**FLOAT_TOKEN, "strategy": "group", "group_size": 128},
    format="float-quantized",
)
WEIGHTS = {"scale_dtype": "bf16", "dtype_b": "uint4", "scale_b": "block_1x128"}
BOTH = {"dtype_d": "bf16", "scale_a": "outer", "scale_b": "outer"}


@pytest.mark.parametrize(
    ("quantised", "wanted"),
    [
        (GPTQ, down(**WEIGHTS, zero_b="eight")),
        ({**GPTQ, "sym": False}, down(**WEIGHTS, zero_b="uint4")),
        ({**GPTQ, "group_size": -1, "desc_act": True},
         down(**WEIGHTS | {"scale_b": "outer"}, zero_b="eight")),
        ({**GPTQ, "desc_act": True, "static_groups": True}, down(**WEIGHTS, zero_b="eight")),
        ({**GPTQ, "bits": 8, "group_size": 32},
         down(**WEIGHTS | {"dtype_b": "int8", "scale_b": "block_1x32"})),
        (AWQ, down(**WEIGHTS, zero_b="uint4")),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False, "version": "GEMV"},
         down(**WEIGHTS | {"scale_b": "block_1x64"}, zero_b="eight")),
        (compressed(INT4), down(**WEIGHTS, zero_b="eight")),
        (compressed({**INT4, "symmetric": False, "actorder": "weight"}), down(**WEIGHTS, zero_b="uint4")),
        (compressed(INT8), down(**WEIGHTS | {"dtype_b": "int8", "scale_b": "outer"})),
        (compressed({**INT4, "type": "float", "group_size": 32}, format="mxfp4-pack-quantized"),
         down(dtype_b="fp4_e2m1", scale_b="block_1x32", scale_dtype="fp8_e8m0")),
        (compressed(FP8, format="float-quantized"),
         down(**WEIGHTS | {"dtype_b": "fp8_e4m3", "scale_b": "outer"})),
        (compressed({**FP8, "strategy": "tensor"}),
         down(**WEIGHTS | {"dtype_b": "fp8_e4m3", "scale_b": "tensor"})),
        (compressed({**FP8, "strategy": "block", "block_structure": [128, 128]}),
         down(**WEIGHTS | {"dtype_b": "fp8_e4m3", "scale_b": "block_128x128"})),
        (compressed(INT8, TOKEN, format="int-quantized"), down(dtype_a="int8", **BOTH)),
        (compressed(FP8, FLOAT_TOKEN, format="float-quantized"), down(dtype_a="fp8_e4m3", **BOTH)),
        (compressed({**FP8, "strategy": "tensor"}, {**FP8, "strategy": "tensor"}, format="naive-quantized"),
         down(dtype_a="fp8_e4m3", **BOTH | {"scale_a": "tensor", "scale_b": "tensor"})),
        (BLOCKS, down(dtype_a="fp8_e4m3", **BOTH | {"scale_a": "block_1x128", "scale_b": "block_128x128"})),
    ],
)  # fmt: skip
def test_layers_are_as_they_are_stored(quantised: Any, wanted: GemmProblem) -> None:
    """Logits are not."""
    found = layers(quantised)
    assert found["down_proj"] == wanted
    assert {found[name].dtype_a for name in ("qkv_proj", "o_proj", "gate_up_proj")} == {wanted.dtype_a}
    assert found["lm_head"] == from_linear(1, 128256, 4096, "bf16")


def test_biases_and_scales_are_of_the_models_type() -> None:
    """Of Qwen's qkv_proj alone; a bias is added after products that are scaled by blocks."""
    found = layers(GPTQ, "qwen2.5-7b", tp=2)
    assert (found["qkv_proj"].bias, found["o_proj"].bias) == ("bf16", None)
    half = entries(config("llama-3-8b", torch_dtype="float16", quantization_config=AWQ))
    assert {(part.problem.dtype_b, part.problem.scale_dtype) for part in half if part.key != "lm_head"} == {
        ("fp16", "fp16")
    }
    assert layers(BLOCKS, "qwen2.5-7b")["qkv_proj"].bias is None
    assert layers(compressed(INT8, TOKEN), "qwen2.5-7b")["qkv_proj"].bias == "bf16"
    alone = compressed({**FP8, "strategy": "block", "block_structure": [128, 128]})
    assert layers(alone, "qwen2.5-7b")["qkv_proj"].bias == "bf16"


def test_floats_of_amds_format() -> None:
    quantised = compressed(FP8, FLOAT_TOKEN)
    assert layers(quantised, dtype="fp8_e4m3_fnuz")["o_proj"].dtype_a == "fp8_e4m3_fnuz"
    assert layers(quantised, dtype="bf16")["o_proj"].scale_dtype is None
    assert layers(GPTQ, dtype="fp16")["o_proj"].dtype_a == "fp16"


def test_modules_that_are_never_quantised_may_be_named() -> None:
    other = ["re:visual.*", "re:.*mlp.gate$", "model.layers.99.mlp.down_proj"]
    for named in (["lm_head"], ["re:.*lm_head"], other):
        assert layers(compressed(INT4, ignore=named))["o_proj"].dtype_a == "uint4"
    routed = layers({**AWQ, "modules_to_not_convert": ["gate"]}, "qwen3-30b-a3b")
    assert routed["gate"].dtype_a == "bf16"


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen1.5-moe-a2.7b"])
def test_a_router_whose_name_is_that_of_a_longer_one_is_no_router_alone(model: str) -> None:
    """compressed-tensors' patterns match the beginnings of names, and AWQ's list parts of them: "gate" is
    gate_proj, too, where the model has one."""
    for quantised in (
        compressed(INT4, ignore=["re:.*mlp.gate"]), compressed(INT4, ignore=["re:.*gate.*"]),
        {**AWQ, "modules_to_not_convert": ["gate"]},
    ):  # fmt: skip
        with pytest.raises(ReadError, match="leaving single layers as they were is not supported"):
            layers(quantised, model)
    only = compressed(INT4, ignore=["re:.*mlp.gate$", "model.layers.0.mlp.gate", "re:.*lm_head"])
    assert layers(only, model)["o_proj"].dtype_a == "uint4"


@pytest.mark.parametrize(
    ("quantised", "words"),
    [
        ({**GPTQ, "desc_act": True}, "desc_act True permutes the activations (act-order)"),
        ({**GPTQ, "bits": 3}, "bits 3 is not supported, but 4 and 8"),
        ({**GPTQ, "bits": 8, "sym": False}, "8 bits have no zero points here"),
        ({**GPTQ, "group_size": 256}, "groups of 256 are not supported, but 32, 64, 128 and rows"),
        ({**GPTQ, "dynamic": {"-:.*down": {}}}, "dynamic an object of 1 has settings of single modules"),
        ({**GPTQ, "lm_head": True}, "lm_head True quantises the logits"),
        ({**GPTQ, "rotation": "hadamard"}, "quantization_config has 'rotation', which is unknown"),
        ({**AWQ, "version": "marlin"}, "version 'marlin' is not supported"),
        ({**AWQ, "bits": 8}, "bits 8 is not supported, but 4"),
        ({**AWQ, "modules_to_not_convert": ["model.layers.0.self_attn"]}, "leaving single layers as they"),
        (compressed(INT4, ignore=["re:.*self_attn.*"]), "names 're:.*self_attn.*': leaving single layers"),
        (compressed({**INT4, "actorder": "group"}), "actorder 'group' permutes the activations"),
        (compressed({**INT4, "type": "float", "group_size": 16, "strategy": "tensor_group"}), "is NVFP4"),
        (compressed({**INT4, "type": "float", "group_size": 16}), "is NVFP4"),
        (compressed({**FP8, "num_bits": 6}), "type 'float' of 6 bits beside 16-bit activations is not"),
        (compressed({**FP8, "strategy": "group", "group_size": 128}), "weights.strategy 'group'"),
        (compressed({**FP8, "strategy": "block", "block_structure": [64, 64]}), "weights.block_structure"),
        (compressed({**FP8, "symmetric": False}), "weights.symmetric False has zero points"),
        (compressed(INT4, TOKEN), "num_bits 4 beside quantised activations"),
        (compressed(INT8, {**TOKEN, "symmetric": False}), "activations.symmetric False has zero points"),
        (compressed(FP8, TOKEN), "type 'int' beside weights of 'float'"),
        (compressed({**INT8, "strategy": "group", "group_size": 128}, TOKEN), "weights.strategy 'group'"),
        (compressed({**INT4, "strategy": "block"}), "weights.strategy 'block' is not supported"),
        (compressed(INT4, transform_config={"config_groups": {}}), "transforms activations"),
        (compressed(INT4, sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config.format 'sparse"),
        (compressed(INT4, config_groups={}), "config_groups a list of 0 must be one group"),
        (compressed(INT4, config_groups={"a": {"targets": ["re:.*down"]}}), "must be Linear alone"),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_refused_by_its_name(quantised: Any, words: str) -> None:
    with pytest.raises(ReadError) as caught:
        layers(quantised)
    assert words in str(caught.value)
    assert "give a dtype (bf16, fp16, fp32, tf32) to tune the unquantised layers" in str(caught.value)


def test_types_and_models_that_have_no_such_layers() -> None:
    with pytest.raises(ReadError, match="multiplied by bf16 or fp16, not by fp32"):
        entries(config("llama-3-8b", torch_dtype="float32", quantization_config=GPTQ))
    with pytest.raises(ReadError, match="dtype fp8_e4m3 is how no layer of this model is stored"):
        layers(GPTQ, dtype="fp8_e4m3")
    with pytest.raises(ReadError, match="'gptq' is not supported for GptOss"):
        layers(GPTQ, "gpt-oss-20b")


def test_a_share_that_cuts_a_group_is_refused() -> None:
    """Llama's 14336 among 32 devices is 448."""
    with pytest.raises(ReadError, match="k 448 on each of 32 devices is no multiple of the scales' groups"):
        layers(GPTQ, tp=32)
    with pytest.raises(ReadError, match="cuts 128 that are stored together; give a smaller tensor_parallel"):
        layers(BLOCKS, tp=32)
