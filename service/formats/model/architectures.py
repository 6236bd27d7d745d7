"""The supported model classes, and the linear layers of each.

A class is found by its name in `architectures`, by which vLLM picks its implementation, or else by
`model_type`. For a multimodal model the `text_config` is read, and its model_type decides. Layers have the
biases on which the model's definitions in vLLM (vllm/model_executor/models/<name>.py) and in transformers
(src/transformers/models/<name>) agree; a field that makes them differ is refused. Layers that only some runs
have (multi-token prediction, adapters) are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from backends.errors import ReadError
from service.formats.model.fields import INSTEAD, Fields, shown
from service.formats.model.layers import (
    Heads,
    Linear,
    Parallel,
    RoutedExperts,
    attention,
    delta_net,
    even_head,
    gated_mlp,
    head_size,
    latent_attention,
    lm_head,
    plain_mlp,
    routed_experts,
    router,
)

#: No decoder has more layers than this, and a loop over them stays short.
MAX_LAYERS = 10_000


@dataclass(frozen=True)
class Model:
    """A model's linear layers on one device, and its routed experts; `left_out` describes what else it
    computes (no single GEMM)."""

    linears: list[Linear]
    left_out: list[str] = field(default_factory=list)
    experts: RoutedExperts | None = None


@dataclass(frozen=True)
class Experts:
    """A mixture of experts. `count` and `size`: the config fields with the number of experts and the width of
    one. `every_layer`: all layers have experts; otherwise decoder_sparse_step and mlp_only_layers decide.
    `shared`: one more expert is shared by all tokens. `router` and `bias`: the router's name, and whether it
    has a bias."""

    count: str = "num_experts"
    size: str = "moe_intermediate_size"
    every_layer: bool = False
    shared: bool = False
    router: str = "gate"
    bias: bool = False


@dataclass(frozen=True)
class Decoder:
    """A decoder of attention and a gated MLP: qkv_proj, o_proj, gate_up_proj, down_proj, lm_head.

    A bias is True, False, or the name of the config field that decides. `head_dim` is "own" (the field is
    required), "even" (always hidden_size / num_attention_heads; another value is refused) or "either" (the
    field if it is set, else that quotient). `keys_as_queries`: num_key_value_heads defaults to
    num_attention_heads. `false` and `true` are fields that must have that value if they are set. `defaults`
    are the values of missing fields. `delta_net`: some layers are gated delta nets instead of attention;
    `delta_separate`: transformers runs their fused projections one by one. `fused`: transformers fuses
    qkv_proj and gate_up_proj, too.
    """

    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    head_dim: str = "either"
    keys_as_queries: bool = False
    false: tuple[str, ...] = ()
    true: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)
    experts: Experts | None = None
    delta_net: bool = False
    delta_separate: bool = False
    fused: bool = False

    def __call__(self, given: Fields, tp: Parallel) -> Model:
        """The layers. Raises ReadError for a field that is missing, wrong or cannot be divided."""
        fields = given.with_defaults(self.defaults)
        fields.must_be(False, *self.false)
        fields.must_be(True, *self.true)
        hidden = fields.whole("hidden_size")
        layers = fields.whole("num_hidden_layers", most=MAX_LAYERS)
        recurrent = _recurrent(fields, layers) if self.delta_net else 0
        linears: list[Linear] = []
        if layers > recurrent:
            linears += attention(
                hidden,
                self._heads(fields),
                tp,
                layers - recurrent,
                qkv_bias=_bias(fields, self.qkv_bias),
                o_bias=_bias(fields, self.o_bias),
                fused=self.fused,
            )
        if recurrent:
            linears += delta_net(fields, tp, recurrent, separate=self.delta_separate)
        routed: RoutedExperts | None = None
        sparse = 0 if self.experts is None else _sparse_layers(fields, self.experts, layers)
        if layers > sparse:
            size, bias = fields.whole("intermediate_size"), _bias(fields, self.mlp_bias)
            what, dense = "intermediate_size", layers - sparse
            linears += gated_mlp(hidden, size, what, tp, dense, bias=bias, fused=self.fused)
        if sparse and self.experts is not None:
            linears += _experts(fields, self.experts, tp, sparse)
            routed = _routed(
                fields, self.experts.count, self.experts.size, tp, sparse, bias=self.experts.bias
            )
        linears.append(lm_head(hidden, fields.whole("vocab_size"), tp))
        return Model(linears, experts=routed)

    def _heads(self, fields: Fields) -> Heads:
        queries = fields.whole("num_attention_heads")
        keys = fields.whole("num_key_value_heads", queries if self.keys_as_queries else None)
        size = head_size(fields, required=self.head_dim == "own")
        if self.head_dim == "even" and size != (even := even_head(fields.whole("hidden_size"), queries)):
            raise ReadError(
                f"{fields.name('head_dim')} {size} is not hidden_size / num_attention_heads ({even}), as "
                f"this model's class has it; {INSTEAD}"
            )
        gated = self.delta_net and fields.flag("attn_output_gate", True)
        return Heads(queries, keys, size, 2 if gated else 1)


def _bias(fields: Fields, rule: bool | str) -> bool:
    return fields.flag(rule, False) if isinstance(rule, str) else rule


def _recurrent(fields: Fields, layers: int) -> int:
    """Gated delta net layers: those in layer_types, else all but every full_attention_interval-th."""
    types = fields.texts("layer_types")
    if types is None:
        interval = fields.whole("full_attention_interval", 4)
        return layers - layers // interval
    if len(types) != layers:
        raise ReadError(
            f"{fields.name('layer_types')} has {len(types)} entries for num_hidden_layers {layers}"
        )
    unknown = [kind for kind in types if kind not in ("linear_attention", "full_attention")]
    if unknown:
        raise ReadError(
            f"{fields.name('layer_types')} names {shown(unknown[0])}, which is not supported; {INSTEAD}"
        )
    return types.count("linear_attention")


def _sparse_layers(fields: Fields, experts: Experts, layers: int) -> int:
    """The number of layers with a mixture of experts."""
    if experts.every_layer:
        return layers
    if not fields.whole(experts.count, least=0):
        return 0
    step, dense = fields.whole("decoder_sparse_step", 1), set(fields.wholes("mlp_only_layers"))
    return sum(index not in dense and (index + 1) % step == 0 for index in range(layers))


def _experts(fields: Fields, experts: Experts, tp: Parallel, calls: int) -> list[Linear]:
    """The linear layers of a mixture of experts: the router, and the expert that all tokens share."""
    hidden = fields.whole("hidden_size")
    found = [
        router(hidden, fields.whole(experts.count), calls, bias=experts.bias, name=experts.router),
    ]
    shared = "shared_expert_intermediate_size"
    if experts.shared and (size := fields.whole(shared, least=0)):
        found += gated_mlp(hidden, size, shared, tp, calls, prefix="shared_expert.")
        found.append(router(hidden, 1, calls, name="shared_expert_gate"))
    return found


def _routed(
    fields: Fields, count: str, size: str, tp: Parallel, layers: int, *, bias: bool = False
) -> RoutedExperts:
    name = "num_experts_per_tok"
    top_k = None if fields.get(name) is None else fields.whole(name)
    hidden = fields.whole("hidden_size")
    return routed_experts(hidden, fields.whole(count), fields.whole(size), size, top_k, tp, layers, bias=bias)


def _deepseek(fields: Fields, tp: Parallel) -> Model:
    """Multi-head latent attention; first dense layers, then experts, the shared ones as one MLP."""
    fields.must_be(False, "attention_bias", "index_topk", "moe_router_dtype", "mlp_bias")
    hidden = fields.whole("hidden_size")
    layers = fields.whole("num_hidden_layers", most=MAX_LAYERS)
    first, step = fields.whole("first_k_dense_replace", least=0), fields.whole("moe_layer_freq", 1)
    sparse = sum(index >= first and index % step == 0 for index in range(layers))
    linears = latent_attention(fields, tp, layers)
    routed: RoutedExperts | None = None
    if layers > sparse:
        size = fields.whole("intermediate_size")
        linears += gated_mlp(hidden, size, "intermediate_size", tp, layers - sparse)
    if sparse:
        linears.append(router(hidden, fields.whole("n_routed_experts"), sparse))
        if (shared := fields.whole_or_null("n_shared_experts")) is not None:
            size, what = shared * fields.whole("moe_intermediate_size"), "the shared experts' size"
            linears += gated_mlp(hidden, size, what, tp, sparse, prefix="shared_experts.")
        routed = _routed(fields, "n_routed_experts", "moe_intermediate_size", tp, sparse)
    linears.append(lm_head(hidden, fields.whole("vocab_size"), tp))
    return Model(linears, experts=routed)


def _gpt2(fields: Fields, tp: Parallel) -> Model:
    """All layers but the logits have a bias. Conv1D is a linear layer whose weights vLLM transposes."""
    fields.must_be(False, "add_cross_attention")
    hidden, queries = fields.whole("n_embd"), fields.whole("n_head")
    layers = fields.whole("n_layer", most=MAX_LAYERS)
    heads = Heads(queries, queries, even_head(hidden, queries))
    inner = fields.whole("n_inner", 4 * hidden)
    linears = attention(
        hidden, heads, tp, layers, qkv_bias=True, o_bias=True, names=("attn.c_attn", "attn.c_proj"),
        fused=True,
    )  # fmt: skip
    linears += plain_mlp(hidden, inner, "n_inner", tp, layers, ("mlp.c_fc", "mlp.c_proj"))
    return Model([*linears, lm_head(hidden, fields.whole("vocab_size"), tp)])


def _gpt_neox(fields: Fields, tp: Parallel) -> Model:
    """As many key heads as query heads; the MLP has biases, and attention unless attention_bias is false."""
    hidden, queries = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    layers = fields.whole("num_hidden_layers", most=MAX_LAYERS)
    heads = Heads(queries, queries, even_head(hidden, queries))
    bias = fields.flag("attention_bias", True)
    linears = attention(
        hidden, heads, tp, layers, qkv_bias=bias, o_bias=bias, names=("query_key_value", "dense"),
        fused=True,
    )  # fmt: skip
    inner, names = fields.whole("intermediate_size"), ("dense_h_to_4h", "dense_4h_to_h")
    linears += plain_mlp(hidden, inner, "intermediate_size", tp, layers, names)
    return Model([*linears, lm_head(hidden, fields.whole("vocab_size"), tp)])


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """A model class: its name, the model types of its configs and of text_configs, and its layers.
    `quantised` are the quantisations whose effect on its layers is known (see dtypes.py)."""

    name: str
    model_types: tuple[str, ...]
    layers: Callable[[Fields, Parallel], Model]
    quantised: tuple[str, ...] = ("fp8",)


_NO_BIAS = ("attention_bias", "mlp_bias", "bias", "qkv_bias")
#: Defaults of transformers' Gemma3TextConfig (configuration_gemma3.py) that google/gemma-3's files rely on.
_GEMMA3 = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "LlamaForCausalLM",
        ("llama",),
        Decoder(
            "attention_bias", "attention_bias", "mlp_bias", keys_as_queries=True, false=("bias", "qkv_bias")
        ),
    ),
    Architecture("MistralForCausalLM", ("mistral",), Decoder(false=_NO_BIAS)),
    Architecture(
        "MixtralForCausalLM",
        ("mixtral",),
        Decoder(false=_NO_BIAS, experts=Experts("num_local_experts", "intermediate_size", every_layer=True)),
    ),
    Architecture("Phi3ForCausalLM", ("phi3",), Decoder(keys_as_queries=True, false=_NO_BIAS, fused=True)),
    Architecture(
        "Qwen2ForCausalLM",
        ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        Decoder(True, head_dim="even", true=("qkv_bias",)),
    ),
    Architecture(
        "Qwen2MoeForCausalLM",
        ("qwen2_moe",),
        Decoder(True, head_dim="even", true=("qkv_bias",), experts=Experts(shared=True)),
    ),
    Architecture("Qwen3ForCausalLM", ("qwen3", "qwen3_vl_text"), Decoder(head_dim="own", false=_NO_BIAS)),
    Architecture(
        "Qwen3MoeForCausalLM",
        ("qwen3_moe",),
        Decoder(head_dim="own", false=_NO_BIAS, experts=Experts()),
    ),
    Architecture(
        "Qwen3NextForCausalLM",
        ("qwen3_next",),
        Decoder(
            head_dim="own",
            delta_net=True,
            false=_NO_BIAS,
            experts=Experts(shared=True),
        ),
        (),
    ),
    Architecture(
        "Qwen3_5ForCausalLM",
        ("qwen3_5_text",),
        Decoder(head_dim="own", delta_net=True, delta_separate=True, false=_NO_BIAS),
        (),
    ),
    Architecture(
        "Qwen3_5MoeForCausalLM",
        ("qwen3_5_moe_text",),
        Decoder(
            head_dim="own",
            delta_net=True,
            delta_separate=True,
            false=_NO_BIAS,
            experts=Experts(shared=True, every_layer=True),
        ),
        (),
    ),
    Architecture("GemmaForCausalLM", ("gemma",), Decoder(head_dim="own", false=_NO_BIAS)),
    Architecture(
        "Gemma2ForCausalLM", ("gemma2",), Decoder("attention_bias", "attention_bias", head_dim="own")
    ),
    Architecture(
        "Gemma3ForCausalLM",
        ("gemma3_text",),
        Decoder("attention_bias", "attention_bias", head_dim="own", defaults=_GEMMA3),
    ),
    Architecture(
        "GptOssForCausalLM",
        ("gpt_oss",),
        Decoder(
            True,
            True,
            head_dim="own",
            true=("attention_bias",),
            experts=Experts(
                "num_local_experts", "intermediate_size", every_layer=True, router="router", bias=True
            ),
        ),
        ("mxfp4",),
    ),
    Architecture("DeepseekV2ForCausalLM", ("deepseek_v2",), _deepseek),
    Architecture("DeepseekV3ForCausalLM", ("deepseek_v3", "kimi_k2"), _deepseek),
    Architecture("GPT2LMHeadModel", ("gpt2",), _gpt2, ()),
    Architecture("GPTNeoXForCausalLM", ("gpt_neox",), _gpt_neox, ()),
)
_BY_NAME = {known.name: known for known in ARCHITECTURES}
_BY_TYPE = {kind: known for known in ARCHITECTURES for kind in known.model_types}
#: Suffix of multimodal classes, whose language model is a class of the table.
_WRAPPER = "ForConditionalGeneration"


def architecture_of(document: Fields) -> tuple[Architecture, Fields]:
    """The model's class, and the fields that describe its language model. Raises ReadError."""
    names, text = document.texts("architectures"), document.inner("text_config")
    name = names[0] if names else None
    if name in _BY_NAME and text is None:
        return _BY_NAME[name], document
    described = document if text is None else text
    kind = described.text("model_type")
    if name is not None and name not in _BY_NAME and not name.endswith(_WRAPPER):
        raise _unknown("architectures", name)
    if kind not in _BY_TYPE:
        raise _unknown(described.name("model_type"), kind)
    return _BY_TYPE[kind], described


def _unknown(field_name: str, value: str | None) -> ReadError:
    known = ", ".join(known.name for known in ARCHITECTURES)
    return ReadError(
        f"{field_name} {shown(value)} is no model whose layers are known; {INSTEAD}. Known: {known}"
    )
