"""First products of experts with their activation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backends.problem import from_linear
from service.formats import ReadOptions
from service.gated_products import gated_products
from service.model.outputs import OUTPUTS, plan_for
from service.model.plan import read_model

MODELS = Path(__file__).parents[1] / "data" / "models"
MIXTRAL = MODELS / "mixtral-8x7b.json"


def test_the_first_product_of_each_number_of_tokens_has_one_with_the_activation() -> None:
    found = gated_products(read_model(MIXTRAL, ReadOptions("", 2, (1, 512))).problems)
    assert [one.problem for one in found] == [
        from_linear(tokens * 2, 2 * 7168, 4096, "bf16", groups=8, activation="swiglu") for tokens in (1, 512)
    ]
    assert [one.count for one in found] == [0, 0], "a forward pass has either"
    assert found[1].keys == ("experts.gate_up_proj_swiglu E=8,N=7168,top_k=2,tokens=512",)


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "llama-3-8b"])
def test_other_types_and_dense_layers_have_none(name: str) -> None:
    assert gated_products(read_model(MODELS / f"{name}.json", ReadOptions("", 1, (8,))).problems) == []


def test_a_problem_without_the_readers_name_has_none() -> None:
    (first, *_) = [
        one for one in read_model(MIXTRAL, ReadOptions("", 1, (8,))).problems if one.problem.groups
    ]
    assert gated_products([first]) != []
    assert gated_products([replace(first, keys=("mine.jsonl",))]) == []


@pytest.mark.parametrize(("output", "more"), [("torch", 1), ("bundle", 1), ("vllm-moe", 0), ("tunableop", 0)])
def test_programs_that_load_our_own_kernels_have_both(output: str, more: int) -> None:
    plan = read_model(MIXTRAL, ReadOptions("", 1, (512,)))
    found = plan_for(OUTPUTS[output], plan, prepacked=False)
    assert sum(one.problem.activation == "swiglu" for one in found.problems) == more
    counted = {one.problem.id for one in found.problems if one.count}
    assert counted == set(plan.of(OUTPUTS[output].products).counts), "expected gains stay as they are"
    assert list(found.by_tokens()) == [512]
