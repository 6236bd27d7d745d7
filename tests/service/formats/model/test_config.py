"""Models' config.json: published ones against their stacks' layers, sharing out, types, and bad files."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ReadError
from backends.problem import GemmProblem, from_linear
from service.formats import Entry, Imported, ReadOptions, Rejected
from service.formats.core import base, reading
from service.formats.core.base import Header
from service.formats.model.architectures import ARCHITECTURES, MAX_LAYERS
from service.formats.model.config import LOGIT_ROWS, MAX_DOCUMENT, ModelConfig
from tests.service.formats.made import outcomes

READER = ModelConfig()
MODELS = Path(__file__).parents[3] / "data" / "models"
ROOT = Path(__file__).parents[4]


def config(name: str, **changed: Any) -> dict[str, Any]:
    """A published model's fields, some changed; `...` leaves one out."""
    values = json.loads((MODELS / f"{name}.json").read_text()) | changed
    return {field: value for field, value in values.items() if value is not ...}


def found(values: object, tp: int = 1, tokens: tuple[int, ...] = (1,), dtype: str | None = None) -> list[Any]:
    lines = json.dumps(values, indent=1).encode().split(b"\n")
    return list(READER.read_told(lines, ReadOptions(tensor_parallel=tp, tokens=tokens, dtype=dtype)))


def entries(
    values: object, tp: int = 1, tokens: tuple[int, ...] = (1,), dtype: str | None = None
) -> list[Entry]:
    kept = [part for part in found(values, tp, tokens, dtype) if isinstance(part, Entry)]
    assert all((entry.line, entry.claim) == (1, None) for entry in kept)
    return kept


def shapes(parts: Iterable[Entry]) -> dict[str, tuple[int, int, int]]:
    """Key -> (N, K, count) of the linear layers: N is the column-major m of x @ w.T."""
    linear = (part for part in parts if not part.problem.groups)
    return {part.key: (part.problem.m, part.problem.k, part.count) for part in linear}


def routed(parts: Iterable[Entry]) -> dict[str, tuple[int, int, int, int, int]]:
    """Key -> (experts, rows, N, K, count) of the routed experts' products."""
    found = [part for part in parts if part.problem.groups]
    assert {part.problem.routing for part in found} <= {"uniform"}
    return {
        part.key: (part.problem.groups, part.problem.n, part.problem.m, part.problem.k, part.count)
        for part in found
    }


def left_out(name: str) -> list[str]:
    parts = [part for part in found(config(name)) if isinstance(part, Rejected)]
    assert all((part.line, part.text) == (1, "") for part in parts)
    return [part.reason for part in parts]


def refusal(values: object, **how: Any) -> str:
    with pytest.raises(ReadError) as caught:
        found(values, **how)
    assert str(caught.value).isprintable()
    return str(caught.value)


def imported(raw: bytes, **how: Any) -> Imported:
    return reading.read_stream(
        io.BytesIO(raw), "config.json", {READER.name: READER}, options=ReadOptions(**how)
    )


def read_or_refused(lines: list[bytes], options: ReadOptions) -> list[Any]:
    """What is found; nothing where the file is refused with a message that may be printed."""
    try:
        return list(READER.read_told(lines, options))
    except ReadError as error:
        said = str(error)
    assert said.isprintable()
    return []


# ---- published models ----------------------------------------------------------------------------

#: (N, K, calls a forward pass) of each layer, on one device.
PUBLISHED: dict[str, dict[str, tuple[int, int, int]]] = {
    "qwen3-8b": {
        "qkv_proj": (6144, 4096, 36), "o_proj": (4096, 4096, 36), "gate_up_proj": (24576, 4096, 36),
        "down_proj": (4096, 12288, 36), "lm_head": (151936, 4096, 1),
    },
    "qwen3-14b": {
        "qkv_proj": (7168, 5120, 40), "o_proj": (5120, 5120, 40), "gate_up_proj": (34816, 5120, 40),
        "down_proj": (5120, 17408, 40), "lm_head": (151936, 5120, 1),
    },
    "qwen3-32b": {
        "qkv_proj": (10240, 5120, 64), "o_proj": (5120, 8192, 64), "gate_up_proj": (51200, 5120, 64),
        "down_proj": (5120, 25600, 64), "lm_head": (151936, 5120, 1),
    },
    "mistral-7b-v0.3": {
        "qkv_proj": (6144, 4096, 32), "o_proj": (4096, 4096, 32), "gate_up_proj": (28672, 4096, 32),
        "down_proj": (4096, 14336, 32), "lm_head": (32768, 4096, 1),
    },
    "llama-3-8b": {
        "qkv_proj": (6144, 4096, 32), "o_proj": (4096, 4096, 32), "gate_up_proj": (28672, 4096, 32),
        "down_proj": (4096, 14336, 32), "lm_head": (128256, 4096, 1),
    },
    "llama-3-70b": {
        "qkv_proj": (10240, 8192, 80), "o_proj": (8192, 8192, 80), "gate_up_proj": (57344, 8192, 80),
        "down_proj": (8192, 28672, 80), "lm_head": (128256, 8192, 1),
    },
    "llama-3.1-405b": {
        "qkv_proj": (18432, 16384, 126), "o_proj": (16384, 16384, 126),
        "gate_up_proj": (106496, 16384, 126), "down_proj": (16384, 53248, 126),
        "lm_head": (128256, 16384, 1),
    },
    "deepseek-v3": {
        "fused_qkv_a_proj": (2112, 7168, 61), "q_b_proj": (24576, 1536, 61), "kv_b_proj": (32768, 512, 61),
        "o_proj": (7168, 16384, 61), "gate_up_proj": (36864, 7168, 3), "down_proj": (7168, 18432, 3),
        "gate": (256, 7168, 58), "shared_experts.gate_up_proj": (4096, 7168, 58),
        "shared_experts.down_proj": (7168, 2048, 58), "lm_head": (129280, 7168, 1),
    },
    "deepseek-v2-lite": {
        "q_proj": (3072, 2048, 27), "kv_a_proj_with_mqa": (576, 2048, 27), "kv_b_proj": (4096, 512, 27),
        "o_proj": (2048, 2048, 27), "gate_up_proj": (21888, 2048, 1), "down_proj": (2048, 10944, 1),
        "gate": (64, 2048, 26), "shared_experts.gate_up_proj": (5632, 2048, 26),
        "shared_experts.down_proj": (2048, 2816, 26), "lm_head": (102400, 2048, 1),
    },
    "mistral-nemo-12b": {
        "qkv_proj": (6144, 5120, 40), "o_proj": (5120, 4096, 40), "gate_up_proj": (28672, 5120, 40),
        "down_proj": (5120, 14336, 40), "lm_head": (131072, 5120, 1),
    },
    "mixtral-8x7b": {
        "qkv_proj": (6144, 4096, 32), "o_proj": (4096, 4096, 32), "gate": (8, 4096, 32),
        "lm_head": (32000, 4096, 1),
    },
    "phi-3-mini": {
        "qkv_proj": (9216, 3072, 32), "o_proj": (3072, 3072, 32), "gate_up_proj": (16384, 3072, 32),
        "down_proj": (3072, 8192, 32), "lm_head": (32064, 3072, 1),
    },
    "qwen2.5-7b": {
        "qkv_proj": (4608, 3584, 28), "o_proj": (3584, 3584, 28), "gate_up_proj": (37888, 3584, 28),
        "down_proj": (3584, 18944, 28), "lm_head": (152064, 3584, 1),
    },
    "qwen1.5-moe-a2.7b": {
        "qkv_proj": (6144, 2048, 24), "o_proj": (2048, 2048, 24), "gate": (60, 2048, 24),
        "shared_expert.gate_up_proj": (11264, 2048, 24), "shared_expert.down_proj": (2048, 5632, 24),
        "shared_expert_gate": (1, 2048, 24), "lm_head": (151936, 2048, 1),
    },
    "qwen3-0.6b": {
        "qkv_proj": (4096, 1024, 28), "o_proj": (1024, 2048, 28), "gate_up_proj": (6144, 1024, 28),
        "down_proj": (1024, 3072, 28), "lm_head": (151936, 1024, 1),
    },
    "qwen3-30b-a3b": {
        "qkv_proj": (5120, 2048, 48), "o_proj": (2048, 4096, 48), "gate": (128, 2048, 48),
        "lm_head": (151936, 2048, 1),
    },
    "qwen3-next-80b-a3b": {
        "qkv_proj": (9216, 2048, 12), "o_proj": (2048, 4096, 12), "in_proj_qkvz": (12288, 2048, 36),
        "in_proj_ba": (64, 2048, 36), "out_proj": (2048, 4096, 36), "gate": (512, 2048, 48),
        "shared_expert.gate_up_proj": (1024, 2048, 48), "shared_expert.down_proj": (2048, 512, 48),
        "shared_expert_gate": (1, 2048, 48), "lm_head": (151936, 2048, 1),
    },
    "qwen3.5-27b": {
        "qkv_proj": (14336, 5120, 16), "o_proj": (5120, 6144, 16), "in_proj_qkvz": (16384, 5120, 48),
        "in_proj_ba": (96, 5120, 48), "out_proj": (5120, 6144, 48), "gate_up_proj": (34816, 5120, 64),
        "down_proj": (5120, 17408, 64), "lm_head": (248320, 5120, 1),
    },
    "gemma-7b": {
        "qkv_proj": (12288, 3072, 28), "o_proj": (3072, 4096, 28), "gate_up_proj": (49152, 3072, 28),
        "down_proj": (3072, 24576, 28), "lm_head": (256000, 3072, 1),
    },
    "gemma-2-9b": {
        "qkv_proj": (8192, 3584, 42), "o_proj": (3584, 4096, 42), "gate_up_proj": (28672, 3584, 42),
        "down_proj": (3584, 14336, 42), "lm_head": (256000, 3584, 1),
    },
    "gemma-3-4b": {
        "qkv_proj": (4096, 2560, 34), "o_proj": (2560, 2048, 34), "gate_up_proj": (20480, 2560, 34),
        "down_proj": (2560, 10240, 34), "lm_head": (262208, 2560, 1),
    },
    "gpt-oss-20b": {
        "qkv_proj": (5120, 2880, 24), "o_proj": (2880, 4096, 24), "router": (32, 2880, 24),
        "lm_head": (201088, 2880, 1),
    },
    "gpt2": {
        "attn.c_attn": (2304, 768, 12), "attn.c_proj": (768, 768, 12), "mlp.c_fc": (3072, 768, 12),
        "mlp.c_proj": (768, 3072, 12), "lm_head": (50304, 768, 1),
    },
    "gpt-neox-20b": {
        "query_key_value": (18432, 6144, 44), "dense": (6144, 6144, 44), "dense_h_to_4h": (24576, 6144, 44),
        "dense_4h_to_h": (6144, 24576, 44), "lm_head": (50432, 6144, 1),
    },
}  # fmt: skip
#: What is added: a bias of each layer named, or of none.
BIASES = {
    "qwen2.5-7b": {"qkv_proj"},
    "qwen1.5-moe-a2.7b": {"qkv_proj"},
    "gpt-oss-20b": {"qkv_proj", "o_proj", "router"},
    "gpt2": {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"},
    "gpt-neox-20b": {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"},
}
DTYPES = {"gpt2": "fp16", "gpt-neox-20b": "fp16", "gemma-2-9b": "fp32"}


def test_every_published_model_is_here_and_every_class_but_one() -> None:
    assert {path.stem for path in MODELS.iterdir()} == PUBLISHED.keys()
    read = {config(name)["architectures"][0] for name in PUBLISHED}
    known = {architecture.name for architecture in ARCHITECTURES}
    # Two are the language models of multimodal ones, one is Qwen3.5's with experts.
    assert known - read == {"Gemma3ForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_layer_by_layer(name: str) -> None:
    every = entries(config(name), tokens=(5,), dtype="fp16" if name == "gpt2" else None)
    read = [part for part in every if not part.problem.groups]
    assert shapes(read) == PUBLISHED[name]
    assert len(read) == len(PUBLISHED[name])
    assert {part.key for part in read if part.problem.bias} == BIASES.get(name, set())
    kind = DTYPES.get(name, "bf16")
    for part in read:
        n, k, _ = PUBLISHED[name][part.key]
        bias = kind if part.problem.bias else None
        if name == "deepseek-v3" and part.key not in ("gate", "lm_head"):
            expected = from_linear(
                5, n, k, "fp8_e4m3", dtype_d="bf16", scale_a="block_1x128", scale_b="block_128x128"
            )
        else:
            expected = from_linear(5, n, k, kind, bias=bias)
        assert part.problem == expected


#: (N, K, calls) of the layers that transformers runs in place of fused ones.
SPLIT: dict[str, dict[str, tuple[int, int, int]]] = {
    "llama-3-8b": {
        "q_proj": (4096, 4096, 32), "k_proj": (1024, 4096, 32), "v_proj": (1024, 4096, 32),
        "gate_proj": (14336, 4096, 32), "up_proj": (14336, 4096, 32),
    },
    "deepseek-v3": {
        "q_a_proj": (1536, 7168, 61), "kv_a_proj_with_mqa": (576, 7168, 61), "gate_proj": (18432, 7168, 3),
        "up_proj": (18432, 7168, 3), "shared_experts.gate_proj": (2048, 7168, 58),
        "shared_experts.up_proj": (2048, 7168, 58),
    },
    "qwen2.5-7b": {
        "q_proj": (3584, 3584, 28), "k_proj": (512, 3584, 28), "v_proj": (512, 3584, 28),
        "gate_proj": (18944, 3584, 28), "up_proj": (18944, 3584, 28),
    },
    "qwen3-next-80b-a3b": {
        "q_proj": (8192, 2048, 12), "k_proj": (512, 2048, 12), "v_proj": (512, 2048, 12),
        "shared_expert.gate_proj": (512, 2048, 48), "shared_expert.up_proj": (512, 2048, 48),
    },
    "qwen3.5-27b": {
        "q_proj": (12288, 5120, 16), "k_proj": (1024, 5120, 16), "v_proj": (1024, 5120, 16),
        "in_proj_qkv": (10240, 5120, 48), "in_proj_z": (6144, 5120, 48), "in_proj_b": (48, 5120, 48),
        "in_proj_a": (48, 5120, 48), "gate_proj": (17408, 5120, 64), "up_proj": (17408, 5120, 64),
    },
    "gpt-oss-20b": {"q_proj": (4096, 2880, 24), "k_proj": (512, 2880, 24), "v_proj": (512, 2880, 24)},
    "phi-3-mini": {},
    "gpt2": {"lm_head": (50257, 768, 1)},
}  # fmt: skip
#: The fused layers that these replace.
REPLACED = ("qkv_proj", "gate_up_proj", "fused_qkv_a_proj", "in_proj_qkvz", "in_proj_ba", "lm_head")


@pytest.mark.parametrize("name", SPLIT)
def test_a_model_as_transformers_runs_it(name: str) -> None:
    def read(layers: str) -> list[Entry]:
        dtype = "fp16" if name == "gpt2" else None
        options = ReadOptions(tokens=(5,), dtype=dtype, layers=layers)
        parts = READER.read_told([json.dumps(config(name)).encode()], options)
        return [part for part in parts if isinstance(part, Entry)]

    fused, split = shapes(read("fused")), shapes(read("split"))
    assert fused == PUBLISHED[name]
    assert {key: shape for key, shape in split.items() if fused.get(key) != shape} == SPLIT[name]
    if name == "qwen3-next-80b-a3b":
        assert split["in_proj_qkvz"] == fused["in_proj_qkvz"], "transformers has these fused"
    for key in fused.keys() - split.keys():
        assert key.rpartition(".")[2] in REPLACED
    assert sum(n * k * calls for n, k, calls in split.values()) == pytest.approx(
        sum(n * k * calls for n, k, calls in fused.values()), rel=1e-2
    ), "the same work, but for a padded vocabulary"
    both = read("both")
    assert {(part.key, part.problem) for part in both} == {
        (part.key, part.problem) for part in (*read("fused"), *read("split"))
    }
    assert len(both) == len({(part.key, part.problem) for part in both}), "shared layers once"


def test_split_layers_keep_biases_blocks_and_shares() -> None:
    qwen = READER.read_told(
        [json.dumps(config("qwen2.5-7b")).encode()],
        ReadOptions(tensor_parallel=4, tokens=(1,), layers="split"),
    )
    found = {part.key: part.problem for part in qwen if isinstance(part, Entry)}
    assert (found["q_proj"].m, found["k_proj"].m, found["k_proj"].bias) == (896, 128, "bf16")
    blocks = READER.read_told(
        [json.dumps(config("deepseek-v3")).encode()], ReadOptions(tokens=(1,), layers="split")
    )
    scaled = {part.key: part.problem for part in blocks if isinstance(part, Entry)}
    assert scaled["kv_a_proj_with_mqa"].scale_a == "block_128x128"


def test_layers_are_fused_split_or_both() -> None:
    with pytest.raises(ReadError, match="layers must be one of fused, split, both, not mixed"):
        ReadOptions(layers="mixed")


def test_a_problem_field_by_field() -> None:
    # The weight's rows are the outputs, so x @ w.T is BLAS's TN with m outputs and n tokens.
    p = entries(config("qwen2.5-7b"), tokens=(16,))[0].problem
    assert (p.m, p.n, p.k, p.batch, p.trans_a, p.trans_b) == (4608, 16, 3584, 1, "T", "N")
    assert (p.lda, p.ldb, p.ldc, p.ldd) == (3584, 3584, 4608, 4608)
    assert (p.dtype_a, p.dtype_b, p.dtype_d, p.compute) == ("bf16", "bf16", "bf16", "fp32")
    assert (p.alpha, p.beta, p.activation, p.bias, p.bias_axis) == ("one", "zero", "none", "bf16", "m")
    blocks = entries(config("deepseek-v3"), tokens=(16,))[0].problem
    assert (blocks.scale_a, blocks.scale_b, blocks.scale_d) == ("block_128x128", "block_1x128", "none")
    assert (blocks.scale_dtype, blocks.bias, blocks.fast_accumulation) == ("fp32", None, False)
    assert (blocks.dtype_a, blocks.dtype_b, blocks.dtype_d) == ("fp8_e4m3", "fp8_e4m3", "bf16")


#: Models of the benchmarks' list of shapes, and the devices that share them there.
BENCHED = {
    "llama3-8b": ("llama-3-8b", 1),
    "llama3-70b-tp8": ("llama-3-70b", 8),
    "deepseek-v3-tp8": ("deepseek-v3", 8),
    "qwen-27b-tp2": ("qwen3.5-27b", 2),
}


def test_the_benchmarks_shapes_are_those_of_the_models() -> None:
    listed: dict[str, set[tuple[int, int]]] = {}
    for part in json.loads((ROOT / "benchmarks" / "shapes.json").read_text()).values():
        for shape in part if isinstance(part, list) else ():
            listed.setdefault(shape["name"].split("/")[0], set()).add((shape["n"], shape["k"]))
    for name, (model, devices) in BENCHED.items():
        made = {(n, k) for n, k, _ in shapes(entries(config(model), devices)).values()}
        assert listed[name] <= made
    routers = shapes(entries(config("deepseek-v3")))["gate"], shapes(entries(config("llama-3-8b")))["lm_head"]
    assert listed["router-and-head"] == {(n, k) for n, k, _ in routers}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3-8b", []),
        ("mixtral-8x7b", []),
        ("deepseek-v3", []),
        ("gpt-oss-20b", []),
        ("gemma-3-4b", ["vision_config: only the language model's layers are read"]),
    ],
)
def test_what_is_left_out_is_said(name: str, expected: list[str]) -> None:
    reasons = left_out(name)
    assert len(reasons) == len(expected)
    assert all(reason.startswith(start) for reason, start in zip(reasons, expected, strict=True))


# ---- routed experts ------------------------------------------------------------------------------


def test_routed_experts_are_two_grouped_products() -> None:
    for name, dtype, size, expected in (
        ("mixtral-8x7b", None, "E=8,N=14336,top_k=2", ((8, 10, 28672, 4096, 32), (8, 10, 4096, 14336, 32))),
        ("qwen3-30b-a3b", None, "E=128,N=768,top_k=8", ((128, 40, 1536, 2048, 48), (128, 40, 2048, 768, 48))),
        # Its first three layers are dense, and each expert layer has a shared expert beside the routed ones.
        ("deepseek-v3", "bf16", "E=256,N=2048,top_k=8",
         ((256, 40, 4096, 7168, 58), (256, 40, 7168, 2048, 58))),
    ):  # fmt: skip
        read = entries(config(name), tokens=(5,), dtype=dtype)
        gate_up, down = (f"experts.{product} {size},tokens=5" for product in ("gate_up_proj", "down_proj"))
        assert routed(read) == dict(zip((gate_up, down), expected, strict=True))
        assert {part.problem.dtype_a for part in read if part.problem.groups} == {"bf16"}
    stored = entries(config("deepseek-v3"), tokens=(5,))
    kinds = {(p.dtype_a, p.dtype_d, p.scale_a, p.scale_b)
             for p in (part.problem for part in stored) if p.groups}  # fmt: skip
    assert kinds == {("fp8_e4m3", "bf16", "block_128x128", "block_1x128")}
    assert routed(stored) == routed(entries(config("deepseek-v3"), tokens=(5,), dtype="bf16"))
    plain = entries(config("deepseek-v3"), dtype="bf16")
    assert shapes(plain)["shared_experts.down_proj"] == (7168, 2048, 58)
    assert routed(entries(config("llama-3-8b"))) == {}


#: gpt-oss's published sizes: of the 20b's config.json, and what the 120b's says otherwise.
GPT_OSS = {"gpt-oss-20b": {}, "gpt-oss-120b": {"num_local_experts": 128, "num_hidden_layers": 36}}


@pytest.mark.parametrize("name", GPT_OSS)
def test_experts_of_mxfp4_are_grouped_products(name: str) -> None:
    """Their biases are added afterwards. Of other layers nothing is quantised."""
    values = config("gpt-oss-20b", **GPT_OSS[name])
    read = entries(values, tokens=(3,))
    groups, calls = (32, 24) if name == "gpt-oss-20b" else (128, 36)
    known = f"E={groups},N=2880,top_k=4,tokens=3"
    assert routed(read) == {
        f"experts.gate_up_proj {known}": (groups, 12, 5760, 2880, calls),
        f"experts.down_proj {known}": (groups, 12, 2880, 2880, calls),
    }
    experts = [part.problem for part in read if part.problem.groups]
    weights = {"dtype_b": "fp4_e2m1", "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"}
    assert experts[0] == from_linear(12, 5760, 2880, "bf16", groups=groups, **weights)
    assert {part.problem.dtype_a for part in read if not part.problem.groups} == {"bf16"}
    half = entries(values, 2, tokens=(3,))
    assert {one[2:4] for one in routed(half).values()} == {(2880, 2880), (2880, 1440)}
    shared = list(
        READER.read_told([json.dumps(values).encode()], ReadOptions(tensor_parallel=8, tokens=(3,)))
    )
    (reason,) = [part.reason for part in shared if isinstance(part, Rejected)]
    assert "size 360 on a device) cut a group of 32 quantised weights" in reason


@pytest.mark.parametrize(
    ("quantised", "weights"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
         {"dtype_b": "uint4", "scale_b": "block_1x64", "zero_b": "uint4"}),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
         {"dtype_b": "uint4", "scale_b": "block_1x128", "zero_b": "eight"}),
    ],
)  # fmt: skip
def test_experts_of_4_bits_are_grouped_products(quantised: Any, weights: dict[str, Any]) -> None:
    read = entries(config("qwen3-30b-a3b", quantization_config=quantised), tokens=(2,))
    problems = [part.problem for part in read if part.problem.groups]
    assert problems == [
        from_linear(16, n, k, "bf16", groups=128, scale_dtype="bf16", **weights)
        for n, k in ((1536, 2048), (2048, 768))
    ]
    eight = {"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True}
    parts = found(config("qwen3-30b-a3b", quantization_config=eight))
    (reason,) = [part.reason for part in parts if isinstance(part, Rejected)]
    assert "are quantised, as the other layers are" in reason


def by_8_bits(weights: str, inputs: str) -> dict[str, Any]:
    """compressed-tensors' 8-bit floats, by strategies of the weights and of the inputs."""
    sides = {
        name: {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, **more}
        for name, strategy, more in (
            ("weights", weights, {"block_structure": [128, 128]} if weights == "block" else {}),
            ("input_activations", inputs, {"group_size": 128} if inputs == "group" else {}),
        )
    }
    groups = {"group_0": {"targets": ["Linear"], **sides}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


@pytest.mark.parametrize("dtype", [None, "fp8_e4m3_fnuz"])
@pytest.mark.parametrize(
    ("strategies", "scales"),
    [
        (("channel", "token"), {"scale_a": "outer", "scale_b": "outer"}),
        (("block", "group"), {"scale_a": "block_1x128", "scale_b": "block_128x128"}),
    ],
)
def test_experts_of_8_bit_floats_are_grouped_products(
    strategies: tuple[str, str], scales: dict[str, Any], dtype: str | None
) -> None:
    values = config("qwen3-30b-a3b", quantization_config=by_8_bits(*strategies))
    read = entries(values, tokens=(2,), dtype=dtype)
    experts = [part for part in read if part.problem.groups]
    assert [part.problem for part in experts] == [
        from_linear(16, n, k, dtype or "fp8_e4m3", groups=128, dtype_d="bf16", **scales)
        for n, k in ((1536, 2048), (2048, 768))
    ]
    assert experts[0].key == "experts.gate_up_proj E=128,N=768,top_k=8,tokens=2"


def test_experts_of_8_bit_floats_with_other_scales_are_left_out() -> None:
    for strategies in (("tensor", "tensor"), ("channel", "tensor"), ("tensor", "token")):
        parts = found(config("qwen3-30b-a3b", quantization_config=by_8_bits(*strategies)))
        (reason,) = [part.reason for part in parts if isinstance(part, Rejected)]
        assert "are fp8_e4m3 with other scales than those of blocks, or of rows on both sides" in reason
        assert not any(part.problem.groups for part in parts if isinstance(part, Entry))


def test_they_are_the_same_however_linear_layers_run() -> None:
    values = json.dumps(config("mixtral-8x7b")).encode()
    counts = {}
    for layers in ("fused", "split", "both"):
        read = imported(values, layers=layers, tokens=(1,))
        counts[layers] = [item.count for item in read.problems if item.problem.groups]
    assert counts == {layers: [32, 32] for layers in counts}


@pytest.mark.parametrize(
    ("tp", "ep", "experts", "size", "rows"),
    [(1, 1, 8, 14336, 8), (8, 1, 8, 1792, 8), (8, 8, 1, 14336, 1), (8, 2, 4, 3584, 4), (1, 4, 2, 14336, 2)],
)
def test_devices_share_each_expert_or_have_whole_ones(
    tp: int, ep: int, experts: int, size: int, rows: int
) -> None:
    """8 rows of 4 tokens: a device that has some experts has their part of all rows."""
    lines = [json.dumps(config("mixtral-8x7b")).encode()]
    told = ReadOptions(tensor_parallel=tp, expert_parallel=ep, tokens=(4,))
    parts = [part for part in READER.read_told(lines, told) if isinstance(part, Entry)]
    name = f"E={experts},N={size},top_k=2,tokens=4"
    assert routed(parts) == {
        f"experts.gate_up_proj {name}": (experts, rows, 2 * size, 4096, 32),
        f"experts.down_proj {name}": (experts, rows, 4096, size, 32),
    }


@pytest.mark.parametrize(
    ("name", "changed", "how", "words"),
    [
        ("mixtral-8x7b", {}, {"expert_parallel": 3}, "8 experts cannot be divided among 3 devices"),
        ("mixtral-8x7b", {}, {"tensor_parallel": 4, "expert_parallel": 8, "top_k": 9}, "9 experts (top_k)"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, {}, "a token has 9 experts (top_k), and"),
        ("mixtral-8x7b", {"num_experts_per_tok": "x"}, {}, "num_experts_per_tok must be a whole number"),
        ("mixtral-8x7b", {"num_local_experts": 4096}, {}, "a layer of 4096 experts on a device: 1 to 1023"),
        ("qwen3-30b-a3b", {"moe_intermediate_size": 770}, {"tensor_parallel": 4}, "_size 770"),
        ("qwen3-30b-a3b", {}, {"tokens": (2**31 - 1,)}, "tokens make no product of experts"),
        ("llama-3-8b", {}, {"expert_parallel": 2}, "this model has no routed experts"),
        ("qwen3-30b-a3b", {}, {"tensor_parallel": 4, "expert_parallel": 32, "dtype": "x"}, "dtype 'x'"),
        ("mixtral-8x7b", {}, {"tensor_parallel": 8, "expert_parallel": 3}, "one must divide the other"),
    ],
)  # fmt: skip
def test_experts_that_cannot_be_shared(
    name: str, changed: dict[str, Any], how: dict[str, Any], words: str
) -> None:
    lines = [json.dumps(config(name, **changed)).encode()]
    with pytest.raises(ReadError) as caught:
        list(READER.read_told(lines, ReadOptions(**{"tokens": (1,), **how})))
    assert words in str(caught.value)


def test_experts_of_an_unknown_number_are_left_out_unless_it_is_given() -> None:
    values = config("mixtral-8x7b", num_experts_per_tok=...)
    (reason,) = [part.reason for part in found(values) if isinstance(part, Rejected)]
    assert "have no num_experts_per_tok in the config.json: write it there, or give top_k" in reason
    lines = [json.dumps(values).encode()]
    parts = READER.read_told(lines, ReadOptions(tokens=(1,), top_k=2))
    assert len(routed(part for part in parts if isinstance(part, Entry))) == 2


def test_experts_with_biases_or_in_single_precision_are_left_out() -> None:
    for name, dtype, words in (("gpt-oss-20b", "bf16", "have biases"), ("mixtral-8x7b", "fp32", "are fp32")):
        parts = found(config(name), dtype=dtype)
        assert any(words in part.reason for part in parts if isinstance(part, Rejected))
        assert not any(part.problem.groups for part in parts if isinstance(part, Entry))


# ---- sharing out ---------------------------------------------------------------------------------


def test_key_heads_are_repeated_when_devices_outnumber_them() -> None:
    per_device = {tp: shapes(entries(config("llama-3-70b"), tp)) for tp in (1, 2, 8, 16, 64)}
    assert [per_device[tp]["qkv_proj"][0] for tp in per_device] == [10240, 5120, 1280, 768, 384]
    assert [per_device[tp]["o_proj"][1] for tp in per_device] == [8192, 4096, 1024, 512, 128]
    assert [per_device[tp]["gate_up_proj"][0] for tp in per_device] == [57344, 28672, 7168, 3584, 896]
    assert [per_device[tp]["down_proj"][1] for tp in per_device] == [28672, 14336, 3584, 1792, 448]
    assert [per_device[tp]["lm_head"][0] for tp in per_device] == [128256, 64128, 16032, 8016, 2004]


def test_what_every_device_has_whole() -> None:
    one, eight = (shapes(entries(config("deepseek-v3"), tp)) for tp in (1, 8))
    assert {key for key in one if one[key] == eight[key]} == {"fused_qkv_a_proj", "gate"}
    for key, (n, k, calls) in eight.items():
        if key not in ("fused_qkv_a_proj", "gate"):
            assert (n * 8, k, calls) == one[key] or (n, k * 8, calls) == one[key]
    lite = [shapes(entries(config("deepseek-v2-lite"), tp)) for tp in (1, 2)]
    assert [layers["kv_a_proj_with_mqa"][0] for layers in lite] == [576, 576]
    assert [layers["q_proj"][0] for layers in lite] == [3072, 1536]
    moe = shapes(entries(config("qwen3-next-80b-a3b"), 2))
    assert (moe["qkv_proj"], moe["gate"], moe["shared_expert_gate"]) == (
        (4608, 2048, 12), (512, 2048, 48), (1, 2048, 48),
    )  # fmt: skip
    assert (moe["in_proj_qkvz"][0], moe["in_proj_ba"][0], moe["out_proj"][1]) == (6144, 32, 2048)


def test_a_vocabulary_is_padded_before_it_is_shared_out() -> None:
    assert shapes(entries(config("gpt2"), dtype="fp16"))["lm_head"][0] == 50304
    assert shapes(entries(config("gpt2"), 4, dtype="fp16"))["lm_head"][0] == 12576
    assert shapes(entries(config("llama-3-8b", vocab_size=1)))["lm_head"][0] == 64


def test_one_device_adds_the_bias_of_a_layer_whose_k_is_shared_out() -> None:
    one, two = (
        [part for part in entries(config("gpt-oss-20b"), tp) if not part.problem.groups] for tp in (1, 2)
    )
    assert [(part.key, part.problem.bias) for part in one] == [
        ("qkv_proj", "bf16"), ("o_proj", "bf16"), ("router", "bf16"), ("lm_head", None),
    ]  # fmt: skip
    assert [(part.key, part.problem.bias, part.count) for part in two] == [
        ("qkv_proj", "bf16", 24), ("o_proj", "bf16", 24), ("o_proj", None, 24), ("router", "bf16", 24),
        ("lm_head", None, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tp", "message"),
    [
        ("llama-3-8b", 3, "num_attention_heads 32 cannot be divided among 3 devices; give a tensor_parallel"),
        ("qwen2.5-7b", 7, "num_key_value_heads 4 cannot be repeated on 7 devices; give a tensor_parallel"),
        ("llama-3-8b", 64, "num_attention_heads 32 cannot be divided among 64 devices"),
        ("deepseek-v3", 256, "num_attention_heads 128 cannot be divided among 256 devices"),
        ("qwen3.5-27b", 24, "linear_num_key_heads 16 cannot be divided among 24 devices"),
    ],
)
def test_devices_that_do_not_divide_a_model(name: str, tp: int, message: str) -> None:
    assert message in refusal(config(name), tp=tp)


def test_sizes_that_the_devices_do_not_divide() -> None:
    values = config("gpt2", torch_dtype="float16")
    assert shapes(entries(values, 12))["mlp.c_fc"] == (256, 768, 12)
    said = refusal(values | {"vocab_size": 50000}, tp=12)
    assert "vocab_size 50000, padded to 50048 cannot be divided among 12 devices" in said
    assert "n_inner 100 cannot be divided among 12 devices" in refusal(values | {"n_inner": 100}, tp=12)
    said = refusal(config("deepseek-v3", moe_intermediate_size=100), tp=8)
    assert "the shared experts' size 100 cannot be divided among 8 devices" in said


@given(
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.sampled_from([64, 128]), st.integers(1, 64),
    st.sampled_from([1, 2, 4, 8, 16]),
)  # fmt: skip
def test_the_devices_together_do_the_whole_model(
    queries: int, keys: int, hidden: int, head: int, inner: int, tp: int
) -> None:
    values = config(
        "llama-3-8b", hidden_size=64 * hidden, num_attention_heads=queries * keys * tp, head_dim=head,
        num_key_value_heads=keys * tp, intermediate_size=inner * tp, vocab_size=64 * inner * tp,
    )  # fmt: skip
    whole, mine = shapes(entries(values)), shapes(entries(values, tp))
    for key in ("qkv_proj", "gate_up_proj", "lm_head"):
        assert (mine[key][0] * tp, mine[key][1]) == whole[key][:2]
    for key in ("o_proj", "down_proj"):
        assert (mine[key][0], mine[key][1] * tp) == whole[key][:2]


# ---- tokens --------------------------------------------------------------------------------------


def test_logits_are_of_one_row_a_sequence() -> None:
    tokens = (1, LOGIT_ROWS, LOGIT_ROWS + 1, 8192, 1)
    read = entries(config("llama-3-8b"), tokens=tokens)
    rows = {key: [p.problem.n for p in read if p.key == key] for key in ("qkv_proj", "lm_head")}
    assert rows == {"qkv_proj": [1, 1024, 1025, 8192], "lm_head": [1, 1024]}
    usual = [part for part in READER.read([READER.example.encode()]) if isinstance(part, Entry)]
    assert {part.problem.n for part in usual} == set(base.TOKENS)


def test_equal_problems_of_several_layers_keep_every_key() -> None:
    values = config("llama-3-8b", num_key_value_heads=32, intermediate_size=6144, hidden_size=4096)
    result = imported(json.dumps(values).encode(), tokens=(4,))
    assert result.format == "model-config"
    both = [(item.keys, item.count) for item in result.problems if len(item.keys) > 1]
    assert both == [(("qkv_proj", "gate_up_proj"), 64)]
    assert (result.rejected, result.lines) == ([], 1)


# ---- types ---------------------------------------------------------------------------------------


def kinds(values: object, **how: Any) -> set[tuple[str, str, str | None]]:
    return {(p.problem.dtype_a, p.problem.dtype_d, p.problem.scale_dtype) for p in entries(values, **how)}


def test_the_checkpoints_type_and_one_that_is_asked_for() -> None:
    assert kinds(config("llama-3-8b")) == {("bf16", "bf16", None)}
    assert kinds(config("llama-3-8b", torch_dtype=..., dtype="float16")) == {("fp16", "fp16", None)}
    assert kinds(config("llama-3-8b", torch_dtype="torch.float32")) == {("fp32", "fp32", None)}
    assert kinds(config("llama-3-8b"), dtype="half") == {("fp16", "fp16", None)}
    assert kinds(config("deepseek-v3"), dtype="bf16") == {("bf16", "bf16", None)}
    assert kinds(config("gpt-oss-20b")) == {("bf16", "bf16", None), ("fp4_e2m1", "bf16", "fp8_e8m0")}
    tf32 = entries(config("qwen2.5-7b"), dtype="TF32")[0].problem
    assert tf32 == from_linear(1, 4608, 3584, "tf32", bias="fp32")
    assert "the file has no torch_dtype; give a dtype (bf16, fp16, fp32, tf32)" in refusal(config("gpt2"))
    assert "torch_dtype 'auto' is not supported" in refusal(config("llama-3-8b", torch_dtype="auto"))
    assert "dtype and torch_dtype differ" in refusal(config("llama-3-8b", dtype="float16"))
    assert "dtype 'bf17' is unknown; known: bf16" in refusal(config("llama-3-8b"), dtype="bf17")
    assert "dtype int8 does not say how a model's" in refusal(config("llama-3-8b"), dtype="int8")
    assert "dtype fp8_e4m3 is how no layer" in refusal(config("llama-3-8b"), dtype="fp8_e4m3")


def test_a_text_configs_own_type_goes_first() -> None:
    text = config("gemma-3-4b")["text_config"] | {"torch_dtype": "float16"}
    assert kinds(config("gemma-3-4b", text_config=text)) == {("fp16", "fp16", None)}


BLOCKS = {"activation_scheme": "dynamic", "quant_method": "fp8", "weight_block_size": [128, 128]}


def test_blocks_of_8_bit_floats() -> None:
    v3 = kinds(config("deepseek-v3"))
    assert v3 == {("fp8_e4m3", "bf16", "fp32"), ("bf16", "bf16", None)}
    fnuz = kinds(config("deepseek-v3"), dtype="fp8_e4m3_fnuz")
    assert fnuz == {("fp8_e4m3_fnuz", "bf16", "fp32"), ("bf16", "bf16", None)}
    assert kinds(config("deepseek-v3", quantization_config={**BLOCKS, "scale_fmt": "ue8m0"})) == v3
    said = refusal(config("deepseek-v3", torch_dtype="float32"))
    assert said.startswith("blocks of 8-bit floats are not known to make fp32; give a dtype")
    # Its bias is added afterwards, and so there is one problem a layer also with several devices.
    listed = [
        "lm_head", "model.layers.0.input_layernorm", "model.layers.3.mlp.gate", "model.layers.28.eh_proj",
        "model.visual.blocks.0.attn.qkv",
    ]  # fmt: skip
    quantised = {**BLOCKS, "modules_to_not_convert": listed}
    qwen = entries(config("qwen2.5-7b", quantization_config=quantised), 2)
    assert [(part.key, part.problem.bias, part.problem.scale_dtype) for part in qwen] == [
        ("qkv_proj", None, "fp32"), ("o_proj", None, "fp32"), ("gate_up_proj", None, "fp32"),
        ("down_proj", None, "fp32"), ("lm_head", None, None),
    ]  # fmt: skip
    moe = entries(config("qwen3-30b-a3b", quantization_config=BLOCKS))
    assert {part.key for part in moe if part.problem.scale_dtype is None} == {"gate", "lm_head"}


@pytest.mark.parametrize(
    ("name", "quantised", "message"),
    [
        ("llama-3-8b", {"quant_method": "hqq", "bits": 4}, "quantization_config.quant_method 'hqq' is"),
        ("llama-3-8b", {"bits": 4}, "quantization_config.quant_method None is not supported for Llama"),
        ("llama-3-8b", {"quant_method": "mxfp4"}, "quant_method 'mxfp4' is not supported for Llama"),
        ("gpt-oss-20b", BLOCKS, "quant_method 'fp8' is not supported for GptOss"),
        ("qwen3.5-27b", BLOCKS, "quant_method 'fp8' is not supported for Qwen3_5"),
        ("llama-3-8b", BLOCKS | {"weight_block_size": None}, "weight_block_size None is not supported"),
        ("llama-3-8b", BLOCKS | {"weight_block_size": [64, 64]}, "weight_block_size [64, 64] is not"),
        ("llama-3-8b", BLOCKS | {"weight_block_size": "128"}, "must be a list of whole numbers, not '1"),
        ("llama-3-8b", BLOCKS | {"activation_scheme": "static"}, "activation_scheme 'static' is not"),
        ("llama-3-8b", BLOCKS | {"fmt": "e5m2"}, "quantization_config.fmt 'e5m2' is not supported"),
        ("llama-3-8b", BLOCKS | {"x\x1b": 1}, "quantization_config has 'x\\x1b', which is unknown"),
        ("llama-3-8b", BLOCKS | {"ignored_layers": ["model.layers.0.mlp.down_proj"]},
         "names 'model.layers.0.mlp.down_proj': leaving single layers as they were"),
        ("llama-3-8b", "fp8", "quantization_config must be an object, not 'fp8'"),
    ],
)  # fmt: skip
def test_quantisations_that_are_not_certain(name: str, quantised: Any, message: str) -> None:
    said = refusal(config(name, quantization_config=quantised))
    assert message in said
    if not isinstance(quantised, str) and not isinstance(quantised.get("weight_block_size"), str):
        assert "give a dtype (bf16, fp16, fp32, tf32) to tune the unquantised layers, or send" in said
    assert kinds(config(name, quantization_config=quantised), dtype="bf16") == {("bf16", "bf16", None)}


@pytest.mark.parametrize(
    ("name", "tp", "changed", "message"),
    [
        ("llama-3-8b", 32, {}, "gate_up_proj: a share of 448 on each of 32 devices cuts a block of 128"),
        ("llama-3-8b", 8, {"head_dim": 24}, "qkv_proj: a share of 96 on each of 8 devices"),
        ("deepseek-v3", 128, {"qk_nope_head_dim": 64, "v_head_dim": 64}, "o_proj: a share of 64 on each"),
        ("deepseek-v3", 1, {"q_lora_rank": 1500}, "fused_qkv_a_proj: a share of 1500 on each of 1 devices"),
    ],
)
def test_blocks_that_the_devices_would_cut(name: str, tp: int, changed: Any, message: str) -> None:
    said = refusal(config(name, quantization_config=BLOCKS, **changed), tp=tp)
    assert message in said
    assert "give a smaller tensor_parallel, or a dtype such as bf16" in said
    assert entries(config(name, quantization_config=BLOCKS, **changed), tp, dtype="bf16")


# ---- fields --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("llama-3-8b", {"hidden_size": None}, "hidden_size is missing; write it into the config.json"),
        ("llama-3-8b", {"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ("llama-3-8b", {"vocab_size": 0}, "vocab_size must be a whole number from 1 to 2147483647, not 0"),
        ("llama-3-8b", {"vocab_size": 2**63}, "vocab_size must be a whole number from 1 to 2147483647"),
        ("llama-3-8b", {"hidden_size": "4096"}, "hidden_size must be a whole number from 1 to 2147483647"),
        ("llama-3-8b", {"hidden_size": True}, "hidden_size must be a whole number"),
        ("llama-3-8b", {"hidden_size": 4096.0}, "hidden_size must be a whole number"),
        ("llama-3-8b", {"hidden_size": [4096]}, "not a list of 1"),
        ("llama-3-8b", {"hidden_size": 4095}, "a hidden size of 4095 cannot be divided among 32 attention"),
        ("llama-3-8b", {"intermediate_size": 2**31 - 1}, "gate_up_proj is no GEMM that can be run: n"),
        ("llama-3-8b", {"num_hidden_layers": MAX_LAYERS + 1}, "from 1 to 10000, not 10001"),
        ("llama-3-8b", {"attention_bias": 1}, "attention_bias must be true or false, not 1"),
        ("llama-3-8b", {"bias": True}, "bias True changes this model's layers in a way that is"),
        ("llama-3-8b", {"torch_dtype": {}}, "torch_dtype must be a text, not an object of 0"),
        ("llama-3-8b", {"architectures": "Llama"}, "architectures must be a list of texts, not 'Llama'"),
        ("llama-3-8b", {"architectures": ["LlamaForSequenceClassification"]},
         "architectures 'LlamaForSequenceClassification' is no model whose layers are known; send"),
        ("llama-3-8b", {"architectures": ["x\x1b[31m"]}, "architectures 'x\\x1b[31m' is no model"),
        ("llama-3-8b", {"architectures": None, "model_type": "mamba"}, "model_type 'mamba' is no model"),
        ("llama-3-8b", {"architectures": [], "model_type": None}, "model_type None is no model"),
        ("mistral-nemo-12b", {"num_key_value_heads": None}, "num_key_value_heads is missing"),
        ("mistral-nemo-12b", {"attention_bias": True}, "attention_bias True changes this model's layers"),
        ("qwen2.5-7b", {"head_dim": 64}, "head_dim 64 is not hidden_size / num_attention_heads (128), as"),
        ("qwen2.5-7b", {"qkv_bias": False}, "qkv_bias False changes this model's layers"),
        ("qwen3-0.6b", {"head_dim": None}, "head_dim is missing"),
        ("qwen3-0.6b", {"attention_bias": True}, "attention_bias True changes this model's layers"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [True]}, "mlp_only_layers must be a list of whole numbers"),
        ("qwen3-30b-a3b", {"num_experts": ...}, "num_experts is missing"),
        ("gpt-oss-20b", {"attention_bias": False}, "attention_bias False changes this model's layers"),
        ("deepseek-v3", {"index_topk": 2048}, "index_topk 2048 changes this model's layers"),
        ("deepseek-v3", {"moe_router_dtype": "float32"}, "moe_router_dtype 'float32' changes this model's"),
        ("deepseek-v3", {"moe_layer_freq": [0, 1]}, "moe_layer_freq must be a whole number from 1"),
        ("deepseek-v3", {"q_lora_rank": ...}, "q_lora_rank is missing"),
        ("deepseek-v3", {"n_shared_experts": ...}, "n_shared_experts is missing"),
        ("qwen3-next-80b-a3b", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for num"),
        ("qwen3-next-80b-a3b", {"layer_types": ["mamba"] * 48}, "layer_types names 'mamba', which is not"),
        ("gemma-3-4b", {"text_config": []}, "text_config must be an object, not a list of 0"),
        ("gemma-3-4b", {"text_config": {"model_type": "gemma3n_text"}}, "model_type 'gemma3n_text' is no"),
        ("gemma-3-4b", {"text_config": {"model_type": "gemma3_text"}}, "text_config.hidden_size is missing"),
        ("gemma-3-4b", {"architectures": ["InternVLChatModel"]}, "architectures 'InternVLChatModel' is no"),
        ("gpt2", {"add_cross_attention": True, "torch_dtype": "float16"}, "add_cross_attention True changes"),
    ],
)  # fmt: skip
def test_fields_that_are_missing_wrong_or_not_understood(name: str, changed: Any, message: str) -> None:
    assert message in refusal(config(name, **changed))


def test_fields_that_change_the_layers() -> None:
    biased = entries(config("llama-3-8b", attention_bias=True, mlp_bias=True))
    assert {part.key for part in biased if part.problem.bias} == {
        "qkv_proj", "o_proj", "gate_up_proj", "down_proj",
    }  # fmt: skip
    assert shapes(entries(config("llama-3-8b", num_key_value_heads=None)))["qkv_proj"][0] == 3 * 4096
    assert shapes(entries(config("gpt2", n_inner=1000), dtype="fp16"))["mlp.c_fc"][0] == 1000
    neox = entries(config("gpt-neox-20b", attention_bias=False))
    assert {part.key for part in neox if part.problem.bias} == {"dense_h_to_4h", "dense_4h_to_h"}
    ungated = shapes(entries(config("qwen3-next-80b-a3b", attn_output_gate=False)))
    assert ungated["qkv_proj"][0] == (16 + 2 + 2) * 256
    mixed = shapes(entries(config("qwen3-30b-a3b", mlp_only_layers=[0, 1, 5], decoder_sparse_step=2)))
    assert (mixed["gate"][2], mixed["gate_up_proj"]) == (22, (12288, 2048, 26))
    dense = entries(config("qwen3-30b-a3b", num_experts=0))
    assert shapes(dense).keys() == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"}
    alone = shapes(entries(config("deepseek-v3", n_shared_experts=None, moe_layer_freq=2)))
    assert "shared_experts.down_proj" not in alone
    assert (alone["gate"][2], alone["gate_up_proj"][2]) == (29, 32)
    unshared = shapes(entries(config("qwen1.5-moe-a2.7b", shared_expert_intermediate_size=0)))
    assert unshared.keys() == {"qkv_proj", "o_proj", "gate", "lm_head"}
    recurrent = shapes(entries(config("qwen3-next-80b-a3b", layer_types=["linear_attention"] * 48)))
    assert "qkv_proj" not in recurrent
    assert recurrent["out_proj"][2] == 48


def test_a_model_is_known_by_its_class_or_by_its_type() -> None:
    llama = entries(config("llama-3-8b"))
    assert entries(config("llama-3-8b", architectures=...)) == llama
    assert entries(config("llama-3-8b", model_type=...)) == llama
    assert entries(config("llama-3-8b", model_type="a fork's own")) == llama
    kimi = config("deepseek-v3", model_type="kimi_k2")
    assert entries(kimi) == entries(config("deepseek-v3"))
    text = {field: value for field, value in config("llama-3-8b").items() if field != "architectures"}
    wrapped = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": text}
    assert entries(wrapped) == llama
    flat = config("qwen2.5-7b", architectures=["Qwen2VLForConditionalGeneration"], model_type="qwen2_vl")
    assert entries(flat) == entries(config("qwen2.5-7b"))
    moe = config("qwen3-next-80b-a3b", architectures=["Qwen3_5MoeForCausalLM"], mlp_only_layers=[0])
    assert shapes(entries(moe)) == shapes(entries(config("qwen3-next-80b-a3b")))


# ---- files ---------------------------------------------------------------------------------------


def reason(raw: bytes) -> tuple[int, str]:
    (part,) = outcomes(READER, raw)
    assert isinstance(part, Rejected), part
    assert part.text.isprintable()
    return part.line, part.reason


def test_files_as_they_are_written() -> None:
    expected = outcomes(READER, READER.example)
    assert expected
    text = json.dumps(json.loads(READER.example), indent=2)
    for raw in (text, text.replace("\n", "\r\n") + "\r\n\r\n", f"\ufeff{text}\n", f"\n\n  {text}"):
        assert outcomes(READER, raw) == expected
    assert outcomes(READER, "") == outcomes(READER, "\n \r\n") == []


@pytest.mark.parametrize(
    ("raw", "line", "why"),
    [
        (b"{\n", 1, "the document is cut short; nothing after it was read"),
        (b'{"hidden_size": 1,\n"hidden_size": 2}', 2, "the name 'hidden_size' stands twice in one object"),
        (b'{"a": NaN}', 1, "NaN is no JSON number"),
        (b'{"a": 99999999999999999999999}', 1, "number 99999999999999999999999 does not fit 64 bits"),
        (b'{"a":\n1,}', 2, "no JSON: "),
        (b"{}\n{}", 2, "something follows the end of the document"),
        (b'{"a": 1}\0', 1, "NUL byte at byte 9: this is not text"),
        (b'{\n"a": "\xff"}', 2, "is not UTF-8"),
        (b"hello", 1, "no JSON: "),
        (b"[1, 2]", 1, "no config.json of a model, which is an object with architectures or model_type"),
        (b'{"m":16,"n":4096,"k":4096,"dtype":"bf16"}', 1, "no config.json of a model"),
        (b'{"model_type": "llama"}', 1, "no config.json of a model"),
        (b'{"a":' * 100_000, 1, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, 1, "nested too deeply"),
        (b"GemmTunableOp_Half_TN,tn_1_2_3", 1, "no JSON: "),
    ],
)
def test_files_that_are_no_config(raw: bytes, line: int, why: str) -> None:
    found_at, said = reason(raw)
    assert why in said
    assert found_at == line


def test_a_document_is_bounded() -> None:
    long = json.dumps(config("llama-3-8b", padding="x" * MAX_DOCUMENT))
    assert f"the line is longer than {MAX_DOCUMENT} bytes" in reason(long.encode())[1]
    many = json.dumps(config("llama-3-8b", padding=["xxxxxxxx"] * 100_000), indent=1)
    assert f"an item of over {MAX_DOCUMENT} characters" in reason(many.encode())[1]
    kept = json.dumps(config("llama-3-8b", padding=["xxxxxxxx"] * 50_000), indent=1)
    assert outcomes(READER, kept)[1:] == outcomes(READER, READER.example)[1:], "but for the hash"

    def endless() -> Iterable[bytes]:
        yield b'{"a": ['
        while True:
            yield b"1," * 1000

    tracemalloc.start()
    try:
        (part,) = READER.read(endless())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(part, Rejected)
    assert peak < 32_000_000


def test_detection() -> None:
    for name in PUBLISHED:
        raw = json.dumps(config(name), indent=2).encode()
        assert READER.detect(raw)
        assert READER.detect(b"\xef\xbb\xbf\r\n " + raw)
        assert READER.detect(raw[:-2])
    assert READER.detect(json.dumps(config("llama-3-8b", padding="x" * base.HEAD)).encode()[: base.HEAD])
    text = READER.example
    for raw in (
        b"", b"\0" * 100, b"{}", b"[]",
        b'{"model_type": "llama"}', b'{"hidden_size": 4096}', b"m,n,k,dtype\n",
        f"[{text}]".encode(), text.encode("utf-16"), b'{"m":1,"n":2,"k":3,"dtype":"fp32"}',
        b'{"problems":[{"m":1}], "about":"architectures, model_type, hidden_size"}',
        b'{"type":"start","session":"x","start":{}}\n' + text.encode(),
    ):  # fmt: skip
        assert not READER.detect(raw)


def test_no_changed_file_raises_anything_but_a_read_error() -> None:
    rng = random.Random("model-config")
    bits = [b"\0", b'"', b"{", b"]", b",", b"-", b"9" * 30, b"\xff", b"NaN", b"null", b"true", b"1e9", b"[1]"]
    good = [json.dumps(config(name)).encode() for name in PUBLISHED]
    read = 0
    for _ in range(4000):
        raw = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(raw))
            raw[at : at + rng.randint(0, 4)] = rng.choice([*bits, bytes([rng.randrange(256)])])
        parts = read_or_refused([bytes(raw)], ReadOptions(tensor_parallel=2, tokens=(3,)))
        read += any(isinstance(part, Entry) for part in parts)
        for part in parts:
            assert isinstance(part, Entry | Rejected | Header)
            if isinstance(part, Rejected):
                assert part.reason
                assert (part.reason + part.text).isprintable()
    assert read > 100


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5000) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from(sorted(PUBLISHED)), st.data(), st.integers(1, 9))
def test_any_value_of_any_field_is_read_or_refused(name: str, data: st.DataObject, tp: int) -> None:
    values = config(name)
    values[data.draw(st.sampled_from(sorted(values)))] = data.draw(JSON)
    options = ReadOptions(tensor_parallel=tp, tokens=(2,), dtype="bf16" if data.draw(st.booleans()) else None)
    parts = read_or_refused([json.dumps(values).encode()], options)
    problems = [part.problem for part in parts if isinstance(part, Entry)]
    assert all(isinstance(problem, GemmProblem) for problem in problems)
    assert all(problem.n == 2 or problem.groups for problem in problems)
