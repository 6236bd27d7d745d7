"""The list of low-bit products: every kind's problem, its rows, and the bound by its own type's ceilings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.lowbit import (
    BYTE_TOKENS,
    KINDS,
    MX_KIND,
    TOKENS,
    Case,
    by_model,
    cases,
    ceilings_by_type,
    ratios,
    summary,
    tokens_of,
)
from benchmarks.lowbit_calls import _CALLS
from benchmarks.lowbit_layers import DEVICES, MODELS, MX_MODELS, PREPACKED
from service.formats.model.architectures import architecture_of
from service.formats.model.fields import Fields
from service.formats.model.layers import Parallel
from tuners.ceilings import Ceilings
from tuners.roofline import bound


def test_every_kind_has_its_problems() -> None:
    found = list(cases(list(KINDS), ("llama-3-8b",), None))
    assert len(found) == 4 * sum(len(tokens_of(kind)) for kind in KINDS)
    assert (tokens_of("w4a16"), tokens_of("w8a8_fp8_rows")) == (TOKENS, BYTE_TOKENS)
    assert {one.problem.id for one in found} == {one.words()["problem"] for one in found}
    assert set(_CALLS) == {kind.removesuffix(PREPACKED) for kind in KINDS}
    assert {one.kind for one in found if one.problem.prepacked} == {
        kind for kind in KINDS if kind.endswith(PREPACKED)
    }
    assert {one.m for one in cases(["w8a8_int8_rows"], ("llama-3-8b",), [2, 3])} == {2, 3}


def test_layers_of_mxfp4_alone() -> None:
    """gpt-oss's k of 2880 is of no whole groups of 128."""
    found = list(cases(list(KINDS), tuple(MX_MODELS), [1]))
    assert [(one.kind, one.n, one.k) for one in found] == [
        (kind, n, 2880) for kind in (MX_KIND, MX_KIND + PREPACKED) for n in (5760, 2880)
    ]
    assert all(one.problem.mx for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_is_of_the_input_type(kind: str) -> None:
    """Of a type that could not be measured there is none."""
    case = Case(kind, "m", "l", 8, 256, 512)
    measured = ceilings_by_type([case], lambda of: Ceilings(4e12, 4e12, {of: 1e15}))
    (found,) = measured.values()
    assert found is not None
    assert bound(case.problem, found).binds == "memory"
    assert ceilings_by_type([case], lambda of: None) == {case.problem.input_type: None}


def test_ratios_are_over_our_best() -> None:
    found = ratios({"best_us": 2.0, "default_us": 4.0, "torch_fast_us": 3.0, "bound_us": 1.0})
    assert found["over_default"] == 2.0
    assert found["over_torch_fast"] == 1.5
    assert found["over_torch"] is None
    assert found["share_of_bound"] == 0.5


CONFIGS = Path(__file__).parent.parent / "data" / "models"
#: Layers of a config.json that are no low-bit products here: of routed or shared experts, and plain ones.
_OTHERS = ("lm_head", "shared_experts.")


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_layers_are_those_of_the_models_configuration(model: str, devices: int) -> None:
    document = Fields(json.loads((CONFIGS / f"{model}.json").read_text()))
    architecture, text = architecture_of(document)
    read = {
        (one.name.removesuffix("_proj"), one.n, one.k)
        for one in architecture.layers(text, Parallel(devices)).linears
        if one.name != "gate" and not one.name.startswith(_OTHERS)
    }
    assert set(MODELS[model].layers(devices)) == read


def test_every_product_has_a_problem() -> None:
    found = list(cases(list(KINDS), [*MODELS, *MX_MODELS], None, DEVICES))
    sizes = {(one.kind, one.m, one.n, one.k): one for one in found}
    assert len(sizes) < len(found), "models share layers"
    assert len({one.problem.id for one in sizes.values()}) == len(sizes)
    assert {one.tp for one in found if one.model in MX_MODELS} == {1}
    assert {one.tp for one in found if one.model == "qwen3-14b"} == {1, 8}
    quick = list(cases(list(KINDS), ("llama-3-8b",), None))
    assert quick == [one for one in found if (one.model, one.tp) == ("llama-3-8b", 1)]


def test_means_are_of_products_and_of_models() -> None:
    """A layer that two models have counts once among all, and in each of the models."""
    shared = {"kind": "w4a16", "m": 8, "n": 4096, "k": 4096, "best_us": 1.0, "over_bf16": 2.0}
    rows = [
        {**shared, "model": "qwen3-8b", "tp": 1},
        {**shared, "model": "llama-3-8b"},
        {**shared, "model": "llama-3-8b", "tp": 8, "n": 512, "over_bf16": 8.0},
        {**shared, "model": "llama-3-8b", "tp": 8, "n": 768, "best_us": None},
    ]
    (every,) = summary(rows)
    assert (every["rows"], every["over_bf16"]) == (2, pytest.approx(4.0))
    assert [(one["model"], one["tp"], one["rows"], one["over_bf16"]) for one in by_model(rows)] == [
        ("llama-3-8b", 1, 1, pytest.approx(2.0)),
        ("llama-3-8b", 8, 1, pytest.approx(8.0)),
        ("qwen3-8b", 1, 1, pytest.approx(2.0)),
    ]
    assert every["over_torch"] is None
