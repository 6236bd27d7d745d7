"""benchmarks/moe_layer.py: its cases and figures, the reference, and a run on a CPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise, permutations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from gemmtune.torch.grouped import few_tokens

from backends.environment import Environment
from backends.outcome import Status
from backends.problem import from_linear
from backends.solution import Solution
from benchmarks import moe_calls, moe_layer
from benchmarks.cuda_tuned import Tuned
from benchmarks.moe_calls import ANY, LAUNCHES, ROWS, Way, error, takes_two_launches, times, ways_of
from benchmarks.moe_layer import (
    MODELS,
    Case,
    cases,
    fastest,
    parsed,
    problems,
    ratios,
    reading_us,
    summary,
    tuned_layers,
    tuned_problems,
    untuned,
)
from benchmarks.moe_operands import Size, dequantised, made, reference, routed
from tuners.ceilings import Ceilings

CPU = torch.device("cpu")
H100 = Environment("cuda", "sm_90", "NVIDIA H100", 132, 2**36, "GPU-1", libraries={"triton": "3.6.0"})


def test_quick_and_a_cpu_choose_the_layers() -> None:
    every = parsed(["--json", "out.json"])
    qwen, mixtral = ("bf16", "qwen3-30b-a3b"), ("bf16", "mixtral-8x7b")
    assert (every.layers, every.tokens) == ([qwen, mixtral], [1, 2, 4, 8, 64, 512, 4096])
    assert (every.routings, every.seconds) == (["uniform", "skewed"], 3.0)
    quick = parsed(["--json", "out.json", "--quick", "--seconds", "2"])
    assert (quick.layers, quick.routings, quick.seconds) == ([qwen], ["uniform"], 2.0)
    assert parsed(["--json", "out.json", "--device", "cpu"]).layers == [("bf16", "small")]
    assert [one.tokens for one in cases(every.layers, (1, 8), every.routings)] == [1] * 4 + [8] * 4


def test_kinds_have_models_of_their_own() -> None:
    given = ["--json", "out.json", "--quick", "--kinds", "w4a16", "mxfp4"]
    four_bit = [("w4a16", "qwen3-30b-a3b"), ("mxfp4", "gpt-oss-20b")]
    assert parsed(given).layers == four_bit
    assert parsed([*given, "--device", "cpu"]).layers == [("w4a16", "small"), ("mxfp4", "small-gpt-oss")]
    assert parsed([*given, "--models", "gpt-oss-20b"]).layers == [
        ("w4a16", "gpt-oss-20b"), ("mxfp4", "gpt-oss-20b"),
    ]  # fmt: skip
    wanted = [*cases(four_bit[1:], (1, 8), ("uniform", "skewed"))]
    assert tuned_layers(wanted) == [
        ("gpt-oss-20b", 1, "mxfp4"), ("gpt-oss-20b", 1, "bf16"),
        ("gpt-oss-20b", 8, "mxfp4"), ("gpt-oss-20b", 8, "bf16"),
    ]  # fmt: skip


def test_products_of_a_layer() -> None:
    gate_up, down = problems("qwen3-30b-a3b", 8)
    assert (gate_up.n, gate_up.m, gate_up.k, gate_up.groups) == (64, 1536, 2048, 128)
    assert (down.n, down.m, down.k, down.routing) == (64, 2048, 768, "uniform")


def test_the_first_product_is_tuned_with_its_activation_too() -> None:
    found = tuned_problems("qwen3-30b-a3b", 8, "bf16")
    assert list(found) == ["gate_up", "down", "gate_up_swiglu"]
    gated = found["gate_up_swiglu"]
    assert (gated.activation, gated.m, gated.ldd) == ("swiglu", 1536, 768)
    assert from_linear(64, 1536, 2048, "bf16", groups=128, activation="swiglu") == gated
    assert list(tuned_problems("gpt-oss-20b", 8, "bf16")) == ["gate_up", "down"], "its activation is another"
    assert list(tuned_problems("qwen3-30b-a3b", 8, "w4a16")) == ["gate_up", "down"]


def test_products_of_4_bit_weights() -> None:
    gate_up, down = problems("gpt-oss-20b", 8, kind="mxfp4")
    assert (gate_up.n, gate_up.m, gate_up.k, gate_up.groups) == (32, 5760, 2880, 32)
    assert (down.m, down.k, down.dtype_a, down.dtype_b, down.dtype_d) == (
        2880,
        2880,
        "fp4_e2m1",
        "bf16",
        "bf16",
    )
    assert [one.scale_a for one in problems("qwen3-30b-a3b", 8, kind="w4a16")] == ["block_1x128"] * 2
    assert problems("gpt-oss-20b", 8, kind="w4a16")[0].scale_a == "block_1x32"


def test_vllms_configurations_are_those_of_the_tokens() -> None:
    p = problems("qwen3-30b-a3b", 64)[0]
    older, newer = (dict(one.parameters) for one in untuned(p, 64, H100))
    assert (older["BLOCK_SIZE_M"], older["BLOCK_SIZE_N"], older["BLOCK_SIZE_K"]) == (16, 32, 64)
    assert (newer["BLOCK_SIZE_M"], newer["BLOCK_SIZE_K"]) == (32, 128)


def test_tokens_have_distinct_experts_of_the_popularity() -> None:
    size = Size(16, 4, 64, 32)
    counts = {}
    for routing in ("uniform", "skewed"):
        ids = routed(torch, size, 500, routing, CPU)
        assert all(len(set(row)) == 4 for row in ids.tolist())
        counts[routing] = torch.bincount(ids.reshape(-1), minlength=16).tolist()
    assert min(counts["uniform"]) > 0.7 * 500 * 4 / 16
    assert counts["skewed"][-1] > 4 * counts["skewed"][0] > 0


def test_a_way_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = made(torch, Size(4, 2, 64, 32), 5, "uniform", CPU)
    (call, *_) = moe_calls.calls(layer)
    assert error(call(), reference(torch, layer)) < moe_calls.TOLERANCE

    def doubled(layer: Any) -> list[Callable[[], Any]]:
        return [lambda: 2 * call()]

    ways: dict[str, tuple[Way, str]] = {
        "torch": (nullcontext, ANY), "rows": (nullcontext, ROWS), "launches": (nullcontext, LAUNCHES),
    }  # fmt: skip
    us, errors, wrong = times(torch, CPU, layer, ways)
    assert set(us) == {"torch"}
    assert wrong == {
        "rows": "rows ran 0 of the two products", "launches": "the layer did not run by two launches",
    }  # fmt: skip
    monkeypatch.setattr(moe_calls, "calls", doubled)
    us, errors, wrong = times(torch, CPU, layer, ways)
    assert (us, round(errors["torch"], 1)) == ({}, 1.0)
    assert wrong["torch"].startswith("the result is off by")


@pytest.mark.parametrize(("kind", "gpt_oss"), [("w4a16", False), ("mxfp4", True), ("bf16", True)])
def test_layers_of_every_kind_are_right(kind: str, gpt_oss: bool) -> None:
    layer = made(torch, Size(4, 2, 64, 96, gpt_oss), 5, "uniform", CPU, kind, (32, 32))
    wanted = reference(torch, layer)
    assert 0.1 < wanted.std() < 10, "results are near 1"
    (call, *_) = moe_calls.calls(layer)
    assert error(call(), wanted) < moe_calls.TOLERANCE
    if kind == "bf16":
        return
    wide = dequantised(torch, layer)
    ways: dict[str, tuple[Way, str]] = {"torch": (nullcontext, ANY), "ours": (nullcontext, ANY)}
    us, errors, wrong = times(torch, CPU, layer, ways, {"torch": wide})
    assert (set(us), wrong) == ({"torch", "ours"}, {})
    assert errors["torch"] < moe_calls.TOLERANCE
    doubled = made(torch, Size(4, 2, 64, 96, gpt_oss), 6, "uniform", CPU, kind, (32, 32))
    with pytest.raises(RuntimeError, match="size of tensor"):
        times(torch, CPU, layer, ways, {"torch": doubled})


def test_the_fastest_kernel_is_the_verdicts_or_the_screenings() -> None:
    def outcome(family: str, seconds: float) -> Any:
        return SimpleNamespace(
            solution=Solution(family, 1, {}, None), samples=[seconds], status=Status.OK
        )  # fmt: skip

    ring, other = outcome("grouped-ring", 2e-5), outcome("torch-grouped", 1e-5)
    session = SimpleNamespace(verdict=None)
    tuned = Tuned(cast("Any", session), [(0.0, other), (0.1, ring)])
    assert fastest(tuned) == (ring.solution, 2e-5)
    assert fastest(Tuned(cast("Any", session), [(0.0, other)])) is None
    session.verdict = SimpleNamespace(
        targets={"bundle": SimpleNamespace(solution=ring.solution.id, seconds=3e-5)}
    )
    assert fastest(tuned) == (ring.solution, 3e-5)


def test_ratios_are_over_ours() -> None:
    us = {"ours": 10.0, "vllm": 15.0, "vllm_newer": 13.0, "torch": 20.0, "torch_steps": 30.0}
    assert ratios({**us, "launches": 12.0}) == {
        "over_vllm": 1.3, "over_torch": 2.0, "over_torch_steps": 3.0, "over_bf16": None,
        "over_products": None, "over_launches": 1.2, "over_unfused": None,
    }  # fmt: skip
    assert ratios({"ours": 10.0, "ours_bf16": 17.0})["over_bf16"] == 1.7
    assert set(ratios({"torch": 20.0}).values()) == {None}
    row = {"model": "mixtral-8x7b", "kind": "bf16", "tokens": 8, **ratios(us)}
    found = summary([row, {**row, "tokens": 1, "over_vllm": None}, {**row, "kind": "w4a16"}])
    assert [(one["model"], one["kind"], one["tokens"], one["rows"]) for one in found] == [
        ("mixtral-8x7b", "bf16", None, 2), ("mixtral-8x7b", "bf16", 1, 1), ("mixtral-8x7b", "bf16", 8, 1),
        ("mixtral-8x7b", "w4a16", None, 1), ("mixtral-8x7b", "w4a16", 8, 1),
    ]  # fmt: skip
    assert (found[0]["least_over_vllm"], found[1]["over_vllm"]) == (1.3, None)


def test_it_runs_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODELS, "small", Size(4, 2, 64, 32))
    out = str(tmp_path / "out.json")
    moe_layer.main(["--json", out, "--device", "cpu", "--tokens", "1", "3", "--routings", "skewed"])
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["complete"], len(found["rows"]), found["tuned"]) == (True, 2, [])
    assert [(one["tokens"], one["routing"]) for one in found["rows"]] == [(1, "skewed"), (3, "skewed")]
    assert all(set(one["us"]) == {"torch", "torch_steps"} and not one["wrong"] for one in found["rows"])
    assert found["what"].startswith("First both products")
    assert "written:" in capsys.readouterr().out


def test_4_bit_weights_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "small", Size(4, 2, 64, 32))
    monkeypatch.setitem(MODELS, "small-gpt-oss", Size(4, 2, 64, 32, gpt_oss=True))
    out = str(tmp_path / "out.json")
    moe_layer.main(
        ["--json", out, "--device", "cpu", "--tokens", "3", "--kinds", "w4a16", "mxfp4", "--quick"]
    )
    found = json.loads((tmp_path / "out.json").read_text())
    assert [(one["model"], one["kind"]) for one in found["rows"]] == [
        ("small", "w4a16"), ("small-gpt-oss", "mxfp4"),
    ]  # fmt: skip
    assert all(set(one["us"]) == {"torch", "torch_steps"} and not one["wrong"] for one in found["rows"])


def test_ours_is_of_the_stored_weights_and_others_of_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers that the ways get; vLLM's configurations multiply no 4-bit weights."""
    monkeypatch.setitem(MODELS, "small", Size(4, 2, 64, 32))
    given: dict[str, Any] = {}

    def seen(torch: Any, device: Any, layer: Any, ways: Any, others: Any) -> Any:
        given.update({name: others.get(name, layer).copies[0][0] for name in ways})
        return {}, {}, {}

    monkeypatch.setattr(moe_layer, "times", seen)
    loaded = {"ours": None, "vllm": None, "vllm_newer": None}
    moe_layer.measured(torch, CPU, Case("small", 2, "uniform", "w4a16"), loaded, None)
    kinds = {name: type(one).__name__ for name, one in given.items()}
    assert kinds == {
        "ours": "QuantizedExperts",
        "ours_bf16": "Tensor",
        "torch": "Tensor",
        "torch_steps": "Tensor",
    }
    given.clear()
    moe_layer.measured(torch, CPU, Case("small", 2, "uniform"), loaded, None)
    assert list(given) == ["ours", "vllm", "vllm_newer", "torch", "torch_steps"]


def test_the_weights_of_experts_without_rows_are_not_read() -> None:
    ceilings, case = Ceilings(1e12, 1e12, {"bf16": 1e15}), Case("mixtral-8x7b", 8, "uniform")
    few, all_of_them = ([16, 0, 0, 0, 0, 0, 0, 0], [2] * 8)
    a, b = (reading_us(case, counts, ceilings) for counts in (few, all_of_them))
    assert a is not None
    assert b is not None
    assert b / a == pytest.approx(8, rel=0.01)
    assert reading_us(case, few, None) is None


def test_few_tokens_are_timed_both_ways() -> None:
    loaded = {"ours": None, "vllm_newer": None}
    few = ways_of("bf16", loaded, 32, True, True)
    assert {name: path for name, (_, path) in few.items()} == {
        "ours": LAUNCHES, "products": ROWS, "vllm_newer": ROWS, "torch": ANY, "torch_steps": ANY,
    }  # fmt: skip
    unfused = ways_of("bf16", {**loaded, "unfused": None}, 64, False, True)
    assert unfused["unfused"][1] == ROWS
    more = ways_of("bf16", loaded, 64, False, True)
    assert (list(more)[:2], more["ours"][1], more["launches"][1]) == (["ours", "launches"], ROWS, LAUNCHES)
    assert "launches" not in ways_of("bf16", loaded, 65, False, True)
    with few["torch"][0]():
        assert few_tokens.most_slots(128, False) == 0
    assert few_tokens.most_slots(128, False) >= 8
    assert not takes_two_launches(made(torch, Size(4, 2, 64, 32), 1, "uniform", CPU)), "a CPU takes products"


@pytest.mark.parametrize("ways", range(1, 10))
def test_all_rows_of_a_williams_square_are_balanced(ways: int) -> None:
    """Everything once, of odd numbers twice: every pair of neighbours, and every way at every place."""
    rows = moe_calls.williams(ways)
    often = 1 + ways % 2
    pairs = Counter(pair for row in rows for pair in pairwise(row))
    assert pairs == dict.fromkeys(permutations(range(ways), 2), often)
    places = Counter(place for row in rows for place in enumerate(row))
    assert places == dict.fromkeys(product(range(ways), range(ways)), often)


@pytest.mark.parametrize("names", ["", "a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"])
def test_ways_are_timed_behind_others_alike(names: str) -> None:
    """Each once a turn, and never behind the same way twice where there are enough others."""
    order = moe_calls.order_of(list(names))
    turns = [order[at : at + len(names)] for at in range(0, len(order), max(1, len(names)))]
    assert len(turns) == (moe_calls.ROUNDS if names else 0)
    assert all("".join(sorted(turn)) == names for turn in turns)
    inside = Counter(pair for turn in turns for pair in pairwise(turn))
    assert max(inside.values(), default=0) <= (1 if len(names) >= moe_calls.ROUNDS else 2)
    if len(names) > moe_calls.ROUNDS:
        pairs = Counter(pairwise(order))
        assert set(pairs.values()) == {1}
        assert all(before != after for before, after in pairs)
    for place, name in product(range(len(names)), names if len(names) > 1 else ""):
        assert sum(turn[place] == name for turn in turns) <= moe_calls.ROUNDS / 2
