"""Whole layers of experts of transformers' models by moe()."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import ServingError, experts_from_gpt_oss, use_moe
from gemmtune.torch.grouped import transformers_experts

from tests.client.torch.grouped.test_docs import example

pytestmark = [pytest.mark.torch, pytest.mark.transformers]

HIDDEN, INTER, EXPERTS, LAYERS = 64, 32, 4, 2


@pytest.fixture(scope="module", autouse=True)
def library() -> Any:
    """transformers, imported once: it warns of what it does itself."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
        from transformers.integrations import moe  # noqa: F401
    transformers.logging.set_verbosity_error()
    return transformers


def made(library: Any, kind: str) -> Any:
    """A small model of a kind, of random weights."""
    sizes: dict[str, Any] = {
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "vocab_size": 128,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "num_experts_per_tok": 2,
    }  # fmt: skip
    configs: dict[str, dict[str, Any]] = {
        "Mixtral": {"num_local_experts": EXPERTS, "intermediate_size": INTER},
        "Qwen3Moe": {"num_experts": EXPERTS, "moe_intermediate_size": INTER, "intermediate_size": 64},
        "GptOss": {"num_local_experts": EXPERTS, "intermediate_size": INTER, "swiglu_limit": 7.0},
    }
    torch.manual_seed(0)
    config = getattr(library, f"{kind}Config")(**sizes, **configs[kind])
    model = library.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    for name, one in model.named_parameters():
        if "experts" in name:
            one.data.normal_(0, 0.1 if "bias" in name else HIDDEN**-0.5)
    return model


@pytest.fixture(params=["Mixtral", "Qwen3Moe", "GptOss"])
def model(request: pytest.FixtureRequest, library: Any) -> Any:
    return made(library, request.param)


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(9)[None] * 7).logits.double()


def off(found: Any, wanted: Any) -> float:
    return float((found - wanted).norm() / wanted.norm())


def test_models_compute_the_same(model: Any) -> None:
    wanted, before = logits(model), model.get_experts_implementation()
    parameters = {name: one.clone() for name, one in model.named_parameters()}
    with use_moe(model) as used, gemmtune.torch.report() as count:
        assert len(used.layers) == LAYERS
        assert model.config._experts_implementation == transformers_experts.NAME
        assert off(logits(model), wanted) < 0.02
    calls = {(line.n, line.calls) for line in count.report().lines if "groups" in line.dtype}
    assert calls == {(2 * INTER, LAYERS), (HIDDEN, LAYERS)}
    assert model.get_experts_implementation() == before
    assert off(logits(model), wanted) < 0.02
    used.restore()
    assert all(torch.equal(parameters[name], one) for name, one in model.named_parameters())
    assert not any(hasattr(one, "gemmtune_moe") for one in model.modules())


def test_weights_lie_as_grouped_kernels_read_them(library: Any) -> None:
    model = made(library, "GptOss")
    with (
        use_moe(model) as used,
        mock.patch.object(transformers_experts, "moe", wraps=gemmtune.torch.moe) as ran,
    ):
        logits(model)
    (_, gate_up, down, _, _), options = ran.call_args
    assert gate_up.is_contiguous()
    assert down.is_contiguous()
    assert gate_up.data_ptr() == used.layers[-1].gate_up_proj.data_ptr(), "nothing is copied for a call"
    assert options["activation"] == "swigluoai"
    assert options["interleaved"]


def test_gradients_flow(library: Any) -> None:
    model = made(library, "Mixtral")
    found = {}
    for how in (None, use_moe):
        model.zero_grad()
        with use_moe(model) if how else torch.enable_grad():
            model(torch.arange(9)[None] * 7).logits.float().square().mean().backward()
        found[how] = model.model.layers[0].mlp.experts.gate_up_proj.grad.double()
    assert off(found[use_moe], found[None]) < 0.05


def test_experts_of_4_bits_take_the_place_of_a_modules_own(library: Any) -> None:
    model = made(library, "GptOss")
    generator, experts = torch.Generator().manual_seed(1), {}
    for number, layer in enumerate(model.model.layers):
        own, tensors = layer.mlp.experts, {}
        for part, rows, columns in (("gate_up_proj", 2 * INTER, HIDDEN), ("down_proj", HIDDEN, INTER)):
            shape = EXPERTS, rows, columns // 32
            tensors[f"{part}_blocks"] = torch.randint(
                0, 256, (*shape, 16), dtype=torch.uint8, generator=generator
            )
            tensors[f"{part}_scales"] = torch.randint(121, 124, shape, dtype=torch.uint8, generator=generator)
            tensors[f"{part}_bias"] = getattr(own, f"{part}_bias").detach()
        name = f"model.layers.{number}.mlp.experts"
        experts[name] = experts_from_gpt_oss(tensors)
        for part, packed in (("gate_up_proj", "gate_up"), ("down_proj", "down")):
            floats = experts[name][packed].dequantize().to(torch.bfloat16)
            getattr(own, part).data = floats.transpose(1, 2).contiguous()
    wanted = logits(model)
    for layer in model.model.layers:
        layer.mlp.experts.gate_up_proj.data.fill_(float("nan"))
    with use_moe(model, experts):
        assert off(logits(model), wanted) < 0.02


def last(model: Any) -> Any:
    return model.model.layers[-1].mlp.experts


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.float(), "gate_up_proj is torch.float32"),
        (lambda one: setattr(last(one), "act_fn", torch.nn.GELU()), "layers.1.*its gate is"),
        (lambda one: setattr(last(one), "has_gate", False), "layers.1.*has no gate"),
        (lambda one: setattr(last(one), "act_fn", None), "its gate raised TypeError"),
        (lambda one: delattr(last(one), "down_proj"), "down_proj is torch.float32 .0.;"),
    ],
)
def test_what_moe_does_not_compute_is_refused(library: Any, change: Any, words: str) -> None:
    model = made(library, "Qwen3Moe")
    change(model)
    with pytest.raises(ServingError, match=words):
        use_moe(model)
    assert model.config._experts_implementation != transformers_experts.NAME
    assert not any(hasattr(one, "gemmtune_moe") for one in model.modules())


def test_experts_of_other_names_and_sizes_are_refused(library: Any) -> None:
    model = made(library, "GptOss")
    name, weight = "model.layers.0.mlp.experts", torch.zeros(EXPERTS, 2 * INTER, HIDDEN)
    for given, words in (
        ({"model.layers.7.mlp.experts": {}}, "no experts are named 'model.layers.7.mlp.experts'"),
        ({name: {}}, "are nothing; they must be"),
        ({name: {"gate_up": weight, "down": weight, "x": weight}}, "but x, weights and ids"),
        ({name: {"gate_up": weight, "down": weight}}, "down of .* is .*; down_proj is"),
    ):
        with pytest.raises(ServingError, match=words):
            use_moe(model, given)


def test_the_example_of_the_page(library: Any) -> None:
    model = made(library, "Qwen3Moe")
    loading = SimpleNamespace(from_pretrained=lambda *_, **__: model)
    ours = SimpleNamespace(torch=SimpleNamespace(use_moe=use_moe, enable=lambda _: nullcontext()))
    names = {
        "AutoModelForCausalLM": loading, "gemmtune": ours, "table": None,
        "inputs": {"input_ids": torch.arange(5)[None]},
    }  # fmt: skip
    with torch.no_grad(), mock.patch.object(transformers_experts, "moe", wraps=gemmtune.torch.moe) as ran:
        exec(example(2), names)
    assert ran.call_count == LAYERS


def test_a_model_without_such_experts_is_refused() -> None:
    with pytest.raises(ServingError, match="Linear has no experts"):
        use_moe(torch.nn.Linear(2, 2))


def test_a_model_that_use_moe_has_not_seen_is_refused(library: Any) -> None:
    with use_moe(made(library, "Mixtral")):
        other = made(library, "Mixtral")
        other.set_experts_implementation(transformers_experts.NAME)
        with pytest.raises(ServingError, match="call use_moe"):
            logits(other)


def test_without_transformers_the_error_says_so() -> None:
    with (
        mock.patch.dict("sys.modules", {"transformers.integrations.moe": None}),
        pytest.raises(ServingError, match="transformers 5"),
    ):
        use_moe(torch.nn.Linear(2, 2))
