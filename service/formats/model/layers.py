"""The linear layers of a decoder on one device: which are fused, sharded or replicated.

y[M, n] = x[M, k] @ w[n, k].T, where M is the tokens of a forward pass. Each of `devices` tensor-parallel
devices has

    an equal share of n    qkv_proj, gate_up_proj, q_b_proj, kv_b_proj, lm_head ("n": column parallel)
    an equal share of k    o_proj, down_proj                                    ("k": row parallel)
    the whole layer        routers, and MLA's first projections                 ("": replicated)

Query heads are sharded. Key and value heads are too, unless there are fewer of them than devices: then each
device has one, and several devices have the same. A vocabulary is padded to a multiple of 64 before it is
sharded.

transformers runs most fused layers one by one: Linear.separate.

Source: vLLM's linear.py (QKVParallelLinear, MergedColumnParallelLinear, RowParallelLinear) and
vocab_parallel_embedding.py (DEFAULT_VOCAB_PADDING_SIZE) in vllm/model_executor/layers; SGLang's layers of the
same names do the same. transformers' layers: src/transformers/models/<name>/modeling_<name>.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from backends.errors import ReadError
from service.formats.model.fields import Fields

_PADDING = 64
REPLICATED, COLUMN, ROW = "", "n", "k"


@dataclass(frozen=True)
class Linear:
    """One kind of linear layer as one device computes it: w[n, k], `calls` times per forward pass.

    `parts` are the output sizes of the layers that are fused into it, and n is their sum; `split` says which
    of n and k is sharded; a `plain` layer is never quantised. `separate`: the layers that transformers runs
    instead, each with its output size; empty where it runs this one.
    """

    name: str
    parts: tuple[int, ...]
    k: int
    calls: int
    split: str = REPLICATED
    bias: bool = False
    plain: bool = False
    separate: tuple[tuple[str, int], ...] = ()

    @property
    def n(self) -> int:
        """The output size of all layers that are fused into it."""
        return sum(self.parts)

    def one_by_one(self) -> list[Linear]:
        """The layers as transformers runs them."""
        if not self.separate:
            return [self]
        return [replace(self, name=name, parts=(size,), separate=()) for name, size in self.separate]


@dataclass(frozen=True)
class Parallel:
    """Tensor parallelism: `devices` share each layer. `expert_devices` share the routed experts, whole ones
    each (expert parallelism)."""

    devices: int
    expert_devices: int = 1

    @property
    def expert_shards(self) -> int:
        """Devices that share one expert: those of its tensor parallelism that expert parallelism leaves, as
        vLLM (all of a layer's devices) and SGLang (any divisor of them) do. Raises ReadError."""
        if self.devices % self.expert_devices and self.expert_devices % self.devices:
            raise ReadError(
                f"expert_parallel {self.expert_devices} and tensor_parallel {self.devices}: one must divide "
                "the other"
            )
        return max(1, self.devices // self.expert_devices)

    def share(self, size: int, what: str) -> int:
        """One device's share of `size`. Raises ReadError, which calls it `what`, if it cannot be divided."""
        if size % self.devices:
            raise ReadError(
                f"{what} {size} cannot be divided among {self.devices} devices; "
                "give a tensor_parallel that divides it"
            )
        return size // self.devices

    def repeated_share(self, heads: int, what: str) -> int:
        """One device's share of key-value heads. If there are fewer heads than devices it is one head, which
        other devices have too. Raises ReadError."""
        if heads >= self.devices:
            return self.share(heads, what)
        if self.devices % heads:
            raise ReadError(
                f"{what} {heads} cannot be repeated on {self.devices} devices; "
                "give a tensor_parallel that divides it or is a multiple of it"
            )
        return 1


def head_size(fields: Fields, *, required: bool = False) -> int:
    """Elements of a head: head_dim, or hidden_size / num_attention_heads if missing and not `required`."""
    if not required and fields.get("head_dim") is None:
        return even_head(fields.whole("hidden_size"), fields.whole("num_attention_heads"))
    return fields.whole("head_dim")


def even_head(hidden: int, heads: int) -> int:
    """Elements of a head if the heads divide the hidden size evenly. Raises ReadError if they do not."""
    if hidden % heads:
        raise ReadError(f"a hidden size of {hidden} cannot be divided among {heads} attention heads")
    return hidden // heads


@dataclass(frozen=True)
class Heads:
    """Attention heads of the whole model: `queries` query heads, `keys` key heads and as many value heads, of
    `size` elements. `outputs` is 2 if a gate of the output is projected with each query head, else 1."""

    queries: int
    keys: int
    size: int
    outputs: int = 1


def attention(
    hidden: int,
    heads: Heads,
    tp: Parallel,
    calls: int,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    names: tuple[str, str] = ("qkv_proj", "o_proj"),
    fused: bool = False,
) -> list[Linear]:
    """The projections around attention: the fused query, key and value projection, and the output's.
    `fused`: transformers fuses the first three, too."""
    queries = tp.share(heads.queries, "num_attention_heads") * heads.size
    keys = tp.repeated_share(heads.keys, "num_key_value_heads") * heads.size
    parts = (queries * heads.outputs, keys, keys)
    separate = tuple(zip(("q_proj", "k_proj", "v_proj"), parts, strict=True))
    return [
        Linear(names[0], parts, hidden, calls, COLUMN, qkv_bias, separate=() if fused else separate),
        Linear(names[1], (hidden,), queries, calls, ROW, o_bias),
    ]


def gated_mlp(
    hidden: int, size: int, what: str, tp: Parallel, calls: int, *, bias: bool = False, prefix: str = "",
    fused: bool = False,
) -> list[Linear]:  # fmt: skip
    """The fused gate and up projection, and the down projection; `what` is the config's name of `size`.
    `fused`: transformers fuses the first two, too."""
    mine = tp.share(size, what)
    parts = (mine, mine)
    separate = ((f"{prefix}gate_proj", mine), (f"{prefix}up_proj", mine))
    return [
        Linear(
            f"{prefix}gate_up_proj", parts, hidden, calls, COLUMN, bias, separate=() if fused else separate
        ),
        Linear(f"{prefix}down_proj", (hidden,), mine, calls, ROW, bias),
    ]


def plain_mlp(
    hidden: int, size: int, what: str, tp: Parallel, calls: int, names: tuple[str, str]
) -> list[Linear]:
    """An MLP without a gate, with biases."""
    mine = tp.share(size, what)
    return [
        Linear(names[0], (mine,), hidden, calls, COLUMN, bias=True),
        Linear(names[1], (hidden,), mine, calls, ROW, bias=True),
    ]


def latent_attention(fields: Fields, tp: Parallel, calls: int) -> list[Linear]:
    """MLA's projections. The two that read the hidden states are fused into one GEMM and replicated; V2-Lite
    has no compressed query, so its two are separate. kv_b_proj is called at prefill only: decoding multiplies
    its halves into the query and the output by batched GEMMs, which are not linear layers."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    nope, rope = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim")
    value, latent = fields.whole("v_head_dim"), fields.whole("kv_lora_rank")
    compressed = fields.whole_or_null("q_lora_rank")
    mine = tp.share(heads, "num_attention_heads")
    if compressed is None:
        first = [
            Linear("q_proj", (mine * (nope + rope),), hidden, calls, COLUMN),
            Linear("kv_a_proj_with_mqa", (latent + rope,), hidden, calls),
        ]
    else:
        first = [
            Linear(
                "fused_qkv_a_proj", (compressed, latent + rope), hidden, calls,
                separate=(("q_a_proj", compressed), ("kv_a_proj_with_mqa", latent + rope)),
            ),
            Linear("q_b_proj", (mine * (nope + rope),), compressed, calls, COLUMN),
        ]  # fmt: skip
    return [
        *first,
        Linear("kv_b_proj", (mine * (nope + value),), latent, calls, COLUMN),
        Linear("o_proj", (hidden,), mine * value, calls, ROW),
    ]


def delta_net(fields: Fields, tp: Parallel, calls: int, *, separate: bool) -> list[Linear]:
    """The projections of a gated delta net, the linear attention of Qwen3-Next and Qwen3.5. `separate`:
    transformers runs four of them, as in Qwen3.5, where vLLM has two."""
    hidden = fields.whole("hidden_size")
    keys = tp.share(fields.whole("linear_num_key_heads"), "linear_num_key_heads")
    values = tp.share(fields.whole("linear_num_value_heads"), "linear_num_value_heads")
    key = keys * fields.whole("linear_key_head_dim")
    value = values * fields.whole("linear_value_head_dim")
    return [
        Linear(
            "in_proj_qkvz", (key, key, value, value), hidden, calls, COLUMN,
            separate=(("in_proj_qkv", 2 * key + value), ("in_proj_z", value)) if separate else (),
        ),
        Linear(
            "in_proj_ba", (values, values), hidden, calls, COLUMN,
            separate=(("in_proj_b", values), ("in_proj_a", values)) if separate else (),
        ),
        Linear("out_proj", (hidden,), value, calls, ROW),
    ]  # fmt: skip


@dataclass(frozen=True)
class RoutedExperts:
    """The routed experts of `calls` layers: each runs two grouped products a forward pass. `experts` and
    `size` are a device's, where `expert_parallel` devices share them. `bias`: the experts have biases, which
    no grouped product has. `top_k`: None where the file does not say it."""

    experts: int
    size: int
    hidden: int
    top_k: int | None
    expert_parallel: int
    calls: int
    bias: bool = False


def routed_experts(
    hidden: int, count: int, size: int, what: str, top_k: int | None, tp: Parallel, calls: int, *,
    bias: bool = False,
) -> RoutedExperts:  # fmt: skip
    """A device's share of the routed experts: whole ones where devices share them, else a part of each;
    `what` is the config's name of `size`. Raises ReadError if they cannot be shared."""
    shards = tp.expert_shards
    if count % tp.expert_devices:
        raise ReadError(
            f"{count} experts cannot be divided among {tp.expert_devices} devices; give an expert_parallel "
            "that divides them"
        )
    mine = Parallel(shards).share(size, what)
    return RoutedExperts(count // tp.expert_devices, mine, hidden, top_k, tp.expert_devices, calls, bias)


def router(hidden: int, experts: int, calls: int, *, bias: bool = False, name: str = "gate") -> Linear:
    """The layer that scores a token for each expert: replicated, and in the model's own type."""
    return Linear(name, (experts,), hidden, calls, bias=bias, plain=True)


def lm_head(hidden: int, vocabulary: int, tp: Parallel) -> Linear:
    """The logits of the padded vocabulary; the weights are the embedding table if the two are tied.
    transformers does not pad it; where devices cannot divide it, the first has the larger share."""
    padded = -(-vocabulary // _PADDING) * _PADDING
    mine = tp.share(padded, f"vocab_size {vocabulary}, padded to")
    unpadded = -(-vocabulary // tp.devices)
    separate = () if unpadded == mine else (("lm_head", unpadded),)
    return Linear("lm_head", (mine,), hidden, 1, COLUMN, plain=True, separate=separate)
