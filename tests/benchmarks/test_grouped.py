"""The list of grouped products, and what is made of their times."""

from __future__ import annotations

from typing import Any

import pytest

from backends.environment import Environment
from benchmarks.grouped import KINDS, LAYERS, MODELS, TOKENS, Case, cases, over_bf16, ratios, summary
from benchmarks.grouped_calls import calls


def test_every_product_of_a_layer_once_with_few_tokens_first() -> None:
    found = list(cases(tuple(MODELS), TOKENS, ("uniform", "skewed")))
    assert len(found) == len(set(found)) == len(MODELS) * len(LAYERS) * len(TOKENS) * 2
    assert [one.tokens for one in found] == sorted(one.tokens for one in found)
    sizes = {(one.model, one.layer): (one.problem.m, one.problem.k, one.problem.groups) for one in found}
    assert sizes["mixtral-8x7b", "gate_up"] == (28672, 4096, 8)
    assert sizes["deepseek-v3", "down"] == (7168, 2048, 256)
    assert sizes["qwen3-30b-a3b", "gate_up"] == (1536, 2048, 128)


def test_kinds_are_of_the_same_product() -> None:
    found = list(cases(("deepseek-v3",), (8,), ("uniform",), tuple(KINDS)))
    plain = [kind for kind in KINDS if kind != "bf16_swiglu"]
    assert [one.kind for one in found] == [*KINDS, *plain], "down has no activation"
    first = next(one.problem for one in found if one.kind == "bf16_swiglu")
    assert (first.m, first.rows_d, first.ldd, first.activation) == (4096, 2048, 2048, "swiglu")
    found = [one for one in found if one.kind in plain]
    assert {(one.problem.m, one.problem.k) for one in found[:5]} == {(4096, 7168)}
    assert [(one.problem.dtype_a, one.problem.scale_a, one.problem.dtype_d) for one in found[:5]] == [
        ("bf16", "none", "bf16"), ("fp8_e4m3", "block_128x128", "bf16"), ("fp8_e4m3", "outer", "bf16"),
        ("uint4", "block_1x128", "bf16"), ("fp4_e2m1", "block_1x32", "bf16"),
    ]  # fmt: skip
    oss = [Case("gpt-oss-20b", "gate_up", 64, "uniform", kind).problem for kind in ("w4a16", "mxfp4")]
    assert [(p.n, p.m, p.k, p.groups, p.scale_a) for p in oss] == [(256, 5760, 2880, 32, "block_1x32")] * 2


def test_every_kind_has_calls_of_torchs_to_compare_with() -> None:
    here = Environment(
        "cuda", "sm_90", "NVIDIA H100", 132, 2**36, "GPU-1", libraries={"torch": "2.11.0+cu130"}
    )
    for case in cases(tuple(MODELS), (8,), ("uniform",), tuple(KINDS)):
        dequantised = ["dequantise_grouped_mm_us", "dequantise_loop_us"]
        names = {
            "bf16": ["grouped_mm_us", "loop_us"],
            "bf16_swiglu": ["grouped_mm_us", "loop_us", "grouped_mm_compiled_us", "loop_compiled_us"],
            "fp8_blocks": ["scaled_loop_us"], "w4a16": dequantised,
            "mxfp4": dequantised,
        }  # fmt: skip
        if case.kind.startswith("fp8") and case.model.startswith("gpt-oss"):
            continue  # 2880 is no multiple of torch's blocks
        assert list(calls(case.problem, here)) == names.get(
            case.kind, ["scaled_grouped_mm_us", "scaled_loop_us"]
        )


def test_times_are_over_those_of_bf16() -> None:
    case = {"model": "mixtral-8x7b", "layer": "down", "tokens": 1, "routing": "uniform"}
    bf16, fp8 = {**case, "kind": "bf16", "best_us": 18.0}, {**case, "kind": "fp8_blocks", "best_us": 10.0}
    assert over_bf16(fp8, [bf16]) == pytest.approx(1.8)
    assert over_bf16(bf16, [bf16]) is None
    assert over_bf16({**fp8, "tokens": 8}, [bf16]) is None
    assert over_bf16(fp8, [{**bf16, "best_us": None}]) is None


def test_a_row_says_how_rows_are_distributed() -> None:
    words = Case("qwen3-30b-a3b", "down", 1, "skewed").words()
    assert (words["m"], words["n"], words["k"]) == (8, 2048, 768)
    assert (words["active"], words["most_rows"]) == (8, 1)


def test_ratios_are_over_the_best_of_torchs_calls() -> None:
    found: dict[str, Any] = {
        "best_us": 10.0, "grouped_mm_us": 20.0, "loop_us": 15.0, "default_us": 22.0, "reading_us": 9.0,
        "bound_us": 9.5, "defaults": {"grouped_mm": 22.0, "loop": 14.0},
    }  # fmt: skip
    assert ratios(found) == {
        "torch_us": 15.0, "over_torch": 1.5, "over_default": 2.2, "over_defaults": 1.4,
        "share_of_reading": 0.9, "share_of_bound": 0.95,
    }  # fmt: skip
    failed = ratios({"error": "no default"})
    assert set(failed.values()) == {None}


def test_means_of_models_and_tokens() -> None:
    rows = [
        {"model": "mixtral-8x7b", "kind": "bf16", "tokens": tokens, "best_us": 1.0, "over_torch": ratio}
        for tokens, ratio in ((1, 2.0), (8, 8.0))
    ]
    found = {one["tokens"]: one for one in summary([*rows, {**rows[0], "best_us": None}])}
    assert (found[None]["least_over_torch"], found[None]["rows"]) == (2.0, 2)
    assert found[None]["over_torch"] == pytest.approx(4.0)
    assert found[8]["over_torch"] == pytest.approx(8.0)
