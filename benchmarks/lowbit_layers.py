"""The linear layers whose low-bit products are measured: of dense models, as tensor parallelism shares them.

Sizes are of the published config.json files (tests/data/models); which layers are fused and shared is as in
service/formats/model/layers.py, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

#: The end of a kind's name whose weights are packed beforehand.
PREPACKED = "_prepacked"
#: Name, n and k of y[m,n] = x[m,k] w[n,k]^T.
Layer = tuple[str, int, int]


class Model(Protocol):
    """A model's linear layers."""

    def layers(self, devices: int) -> Sequence[Layer]:
        """One device's share, of so many devices."""


@dataclass(frozen=True)
class Dense:
    """A decoder with grouped-query attention and a gated MLP."""

    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head: int = 128

    def layers(self, devices: int) -> Sequence[Layer]:
        """See Model. Key and value heads that are fewer than the devices are on several."""
        queries = self.heads // devices * self.head
        keys = max(1, self.key_heads // devices) * self.head
        return (
            ("qkv", queries + 2 * keys, self.hidden), ("o", self.hidden, queries),
            *_mlp(self.hidden, self.intermediate, devices),
        )  # fmt: skip


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention, and the gated MLP of the layers that have no experts."""

    hidden: int
    intermediate: int
    heads: int
    query_rank: int
    key_rank: int
    nope: int
    rope: int
    value: int

    def layers(self, devices: int) -> Sequence[Layer]:
        """See Model. What reads the hidden states is whole on every device."""
        heads = self.heads // devices
        return (
            ("fused_qkv_a", self.query_rank + self.key_rank + self.rope, self.hidden),
            ("q_b", heads * (self.nope + self.rope), self.query_rank),
            ("kv_b", heads * (self.nope + self.value), self.key_rank),
            ("o", self.hidden, heads * self.value),
            *_mlp(self.hidden, self.intermediate, devices),
        )


@dataclass(frozen=True)
class Expert:
    """The layers of one expert, on one device alone."""

    hidden: int
    intermediate: int

    def layers(self, devices: int) -> Sequence[Layer]:
        """See Model."""
        return _mlp(self.hidden, self.intermediate, 1) if devices == 1 else ()


def _mlp(hidden: int, intermediate: int, devices: int) -> tuple[Layer, Layer]:
    mine = intermediate // devices
    return ("gate_up", 2 * mine, hidden), ("down", hidden, mine)


MODELS: dict[str, Model] = {
    "llama-3-8b": Dense(4096, 14336, 32, 8),
    "qwen3-8b": Dense(4096, 12288, 32, 8),
    "qwen3-14b": Dense(5120, 17408, 40, 8),
    "qwen3-32b": Dense(5120, 25600, 64, 8),
    "llama-3-70b": Dense(8192, 28672, 64, 8),
    "deepseek-v3": Latent(7168, 18432, 128, 1536, 512, 128, 64, 128),
}
#: Checkpoints in MXFP4 alone: of other kinds they are not measured.
MX_MODELS: dict[str, Model] = {"gpt-oss-20b": Expert(2880, 2880)}
#: How many devices share a layer.
DEVICES = (1, 8)
