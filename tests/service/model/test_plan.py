"""A model as it is run: its problems by tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from backends.errors import InvalidProblem, ReadError
from backends.problem import from_linear
from service.formats import ReadOptions
from service.model.plan import read_model

MODELS = Path(__file__).parents[2] / "data" / "models"
LLAMA = MODELS / "llama-3-8b.json"


def test_problems_are_grouped_by_tokens_with_their_calls() -> None:
    plan = read_model(LLAMA, ReadOptions("", 8, (64, 1)))
    found = plan.by_tokens()
    assert list(found) == [1, 64]
    calls = {(item.problem.m, item.problem.k): item.count for item in found[1]}
    assert calls == {(768, 4096): 32, (4096, 512): 32, (3584, 4096): 32, (4096, 1792): 32, (16032, 4096): 1}
    assert sum(plan.counts.values()) == 2 * sum(calls.values())


def test_logits_are_no_part_of_a_long_prefill() -> None:
    found = read_model(LLAMA, ReadOptions("", 1, (1024, 2048))).by_tokens()
    assert len(found[1024]) == len(found[2048]) + 1


def test_with_both_kinds_of_layers_a_forward_pass_has_either() -> None:
    plan = read_model(LLAMA, ReadOptions("", 1, (1, 8), layers="both"))
    fused, split = plan.ways["fused"], plan.ways["split"]
    assert fused.counts == read_model(LLAMA, ReadOptions("", 1, (1, 8))).counts
    assert plan.counts.keys() == fused.counts.keys() | split.counts.keys()
    shared = from_linear(8, 4096, 14336, "bf16")
    assert plan.counts[shared.id] == fused.counts[shared.id] == split.counts[shared.id] == 32
    assert split.counts[from_linear(8, 1024, 4096, "bf16").id] == 64, "keys and values"
    merged = {(one.names, one.tokens): one for one in plan.merges}
    one = merged[(("q_proj", "k_proj", "v_proj"), 8)]
    assert one.fused == from_linear(8, 6144, 4096, "bf16")
    assert one.parts == tuple(from_linear(8, n, 4096, "bf16") for n in (4096, 1024, 1024))
    assert len(merged) == 4


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def test_the_plan_of_a_program_that_packs_quantised_weights(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(LLAMA.read_text()), "quantization_config": AWQ}))
    stored = read_model(path, ReadOptions("", 1, (1, 8), layers="both"))
    plan = stored.prepacked()
    for one in (plan, *plan.ways.values()):
        assert {item.problem.weight_only for item in one.problems} == {True, False}, "lm_head has 16 bits"
        assert all(item.problem.prepacked == item.problem.weight_only for item in one.problems)
    assert sum(plan.counts.values()) == sum(stored.counts.values())
    assert plan.ways["split"].by_tokens().keys() == {1, 8}
    for merge in plan.merges:
        assert merge.fused.id in plan.ways["fused"].counts
        assert all(part.prepacked and part.id in plan.ways["split"].counts for part in merge.parts)
    with pytest.raises(InvalidProblem, match=r"none of the 5 problems of llama-3-8b has such weights: leave"):
        read_model(LLAMA, ReadOptions("", 1, (1,))).prepacked()


def test_a_folder_is_its_config_and_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3-8B"
    folder.mkdir()
    shutil.copy(LLAMA, folder / "config.json")
    assert read_model(folder, ReadOptions("", 1, (1,))).name == "Llama-3-8B"
    assert read_model(LLAMA, ReadOptions("", 1, (1,))).name == "llama-3-8b"


def test_some_of_the_problems_keep_their_counts() -> None:
    plan = read_model(LLAMA, ReadOptions("", 1, (1,)))
    wanted = plan.problems[1]
    assert plan.some([wanted.problem]).problems == [wanted]


@pytest.mark.parametrize(
    ("values", "tp", "words"),
    [
        ({"architectures": ["CobolForCausalLM"], "model_type": "cobol"}, 1, "CobolForCausalLM"),
        ({}, 3, "cannot be divided among 3 devices"),
        ({"quantization_config": {"quant_method": "hqq"}}, 1, "'hqq' is not supported"),
    ],
    ids=["architecture", "devices", "quantisation"],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, values: dict[str, object], tp: int, words: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(LLAMA.read_text()), **values}))
    with pytest.raises(ReadError, match=words):
        read_model(path, ReadOptions("", tp, (1,)))


def test_a_file_that_is_no_config_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hello": 1}')
    with pytest.raises(ReadError, match=r"config\.json describes no model: no config\.json of a model"):
        read_model(path, ReadOptions("", 1, (1,)))
