"""A layer of experts as vLLM and SGLang run it on one device, and the names that both give it.

A layer has two products, gate and up together and then down, of rows that are sorted by expert:

    gate_up_proj   x[rows, hidden] w[experts, 2 size, hidden]^T
    down_proj      x[rows, size]   w[experts, hidden, size]^T

Both frameworks call its sizes E (experts on the device) and N (intermediate size on the device). A token has
`top_k` rows, in all; where devices share the experts, a device has the rows of its own experts only: on the
average tokens * top_k / expert_parallel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from backends.errors import InvalidProblem, ReadError
from backends.grouping import MOST_GROUPS, SCALED_TYPES, TYPES
from backends.kernels.triton.moe_untuned import BLOCK_SCALES, HALVES, ROW_SCALES
from backends.problem import GemmProblem, from_linear
from backends.problem_rules import MAX_SIZE
from service.formats.core.base import ReadOptions, printable
from service.formats.vllm.device_fp8 import fp8_of

#: A layer's products.
GATE_UP, DOWN = PRODUCTS = ("gate_up_proj", "down_proj")
#: The distribution of rows for which products of files and models are tuned: that of vLLM's own script.
ROUTING = "uniform"
#: Scaled weights share a scale by so many elements each way.
BLOCK = 128
_KEY = re.compile(r"experts\.[a-z_]+ E=([0-9]{1,4}),N=([0-9]{1,10}),top_k=([0-9]{1,4}),tokens=([0-9]{1,10})")
_NAME = re.compile(
    r"E=([0-9]{1,19}),N=([0-9]{1,19}),device_name=([^,=/\\\[\]]{1,100}?)"
    r"((?:,[a-z_]{1,40}=(?:\[[0-9, ]{1,40}\]|[A-Za-z0-9_]{1,40}?))*)(_down)?\.json"
)
_OPTION = re.compile(r",([a-z_]+)=(\[[0-9, ]+\]|[A-Za-z0-9_]+)")
#: Options of a name that say how weights and rows are stored, and the one that says who multiplies.
_STORED, _BACKEND = ("dtype", "block_shape", "per_channel_quant"), "backend"
#: What a file's name looks like.
EXAMPLE_NAME = "E=128,N=768,device_name=NVIDIA_H200.json"


@dataclass(frozen=True)
class ExpertLayer:
    """`experts` experts of intermediate size `size` on a device, for a hidden size of `hidden`. `top_k`:
    experts of a token, among those of all `expert_parallel` devices. `dtype`: of weights and rows; 8-bit
    floats have scales of 128x128 and 1x128 blocks, or with `row_scales` of rows, and results of type
    `output`. `weights`: arguments of from_linear() of quantised weights, beside rows of `dtype`. Raises
    ReadError for sizes that no layer has."""

    experts: int
    size: int
    hidden: int
    top_k: int
    expert_parallel: int = 1
    dtype: str = "bf16"
    output: str = "bf16"
    weights: tuple[tuple[str, Any], ...] = ()
    row_scales: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.experts <= MOST_GROUPS:
            raise ReadError(f"a layer of {self.experts} experts on a device: 1 to {MOST_GROUPS} are known")
        for name, size in (("intermediate size", self.size), ("hidden size", self.hidden)):
            if not 1 <= size <= MAX_SIZE:
                raise ReadError(f"the {name} of a layer of experts is from 1 to {MAX_SIZE}, not {size}")
        every = self.experts * self.expert_parallel
        if not 1 <= self.top_k <= every:
            raise ReadError(f"a token has {self.top_k} experts (top_k), and the layer has {every} in all")
        *others, last = known = (*TYPES, *SCALED_TYPES)
        if self.dtype not in known:
            text = f"{', '.join(others)} or {last}"
            raise ReadError(f"grouped products are of {text}, not {printable(self.dtype, 40)}")
        if self.dtype in SCALED_TYPES and not self.row_scales and self.size % BLOCK:
            raise ReadError(
                f"an intermediate size of {self.size} on a device cuts a block of {BLOCK} scaled weights; "
                "share the experts among fewer devices"
            )

    def rows(self, tokens: int) -> int:
        """Rows of a device for so many tokens."""
        return max(1, -(-tokens * self.top_k // self.expert_parallel))

    def problem(self, product: str, tokens: int) -> GemmProblem:
        """One of the layer's products. Raises ReadError where it has more rows than a problem can."""
        n, k = (2 * self.size, self.hidden) if product == GATE_UP else (self.hidden, self.size)
        scaled: dict[str, Any] = dict(self.weights)
        if self.dtype in SCALED_TYPES:
            of_rows, of_weights = ("outer", "outer") if self.row_scales else ("block_1x128", "block_128x128")
            scaled = {"scale_a": of_rows, "scale_b": of_weights, "dtype_d": self.output}
        try:
            return from_linear(
                self.rows(tokens), n, k, self.dtype, groups=self.experts, routing=ROUTING, **scaled
            )
        except InvalidProblem as error:
            raise ReadError(f"{tokens} tokens make no product of experts: {error}") from None

    def key(self, product: str, tokens: int) -> str:
        """The name of a product, by which an export knows its tokens."""
        return f"experts.{product} E={self.experts},N={self.size},top_k={self.top_k},tokens={tokens}"


@dataclass(frozen=True)
class KeyedCall:
    """What a key of ExpertLayer.key() says."""

    experts: int
    size: int
    top_k: int
    tokens: int

    @classmethod
    def of(cls, key: str) -> KeyedCall | None:
        """Parses a key, also behind its model's hash; None for another one."""
        match = _KEY.fullmatch(key.rpartition(": ")[2])
        return None if match is None else cls(*(int(part) for part in match.groups()))


@dataclass(frozen=True)
class ExpertFile:
    """What the name of a configuration's file says. `options`: such as dtype=fp8_w8a8. `down`: SGLang's
    file for the second product alone."""

    experts: int
    size: int
    device_name: str
    options: tuple[tuple[str, str], ...]
    down: bool

    @classmethod
    def of(cls, path: str) -> ExpertFile | None:
        """Parses the last part of a path; None for a name that is none."""
        match = _NAME.fullmatch(re.split(r"[/\\]", path)[-1])
        if match is None:
            return None
        experts, size, device, options, down = match.groups()
        return cls(int(experts), int(size), device, tuple(_OPTION.findall(options)), down is not None)

    @property
    def kind(self) -> str | None:
        """How weights and rows are stored, one of moe_untuned.KINDS; None for what gemmtune does not have.
        vLLM's names do not tell scales of rows from one scale a matrix, and SGLang's do
        (per_channel_quant=True); both run one kernel, and gemmtune has the first."""
        said = {name: of.replace(" ", "") for name, of in self.options if name in _STORED}
        dtype, per_channel = said.pop("dtype", None), said.pop("per_channel_quant", None)
        if dtype is None:
            return HALVES if not said and per_channel is None else None
        if dtype != "fp8_w8a8" or per_channel not in (None, "True"):
            return None
        if not said:
            return ROW_SCALES
        return BLOCK_SCALES if per_channel is None and said["block_shape"] == f"[{BLOCK},{BLOCK}]" else None

    def fault(self) -> str | None:
        """Why the layer's products are none that gemmtune has, or None."""
        said = dict(self.options)
        if self.kind is None:
            options = ", ".join(f"{name}={said[name]}" for name in _STORED if name in said)
            return (
                f"experts of {options}: gemmtune has grouped products of {' and '.join(TYPES)} (no dtype in "
                f"the name), and of fp8_w8a8 with scales of blocks [{BLOCK},{BLOCK}] or of rows (no "
                "block_shape in it)"
            )
        unknown = [name for name in said if name not in (*_STORED, _BACKEND)]
        if unknown:
            return f"{unknown[0]}={said[unknown[0]]} in its name is unknown"
        if said.get(_BACKEND, "triton") != "triton":
            return (
                f"{_BACKEND}={said[_BACKEND]} in its name: only configurations of Triton's kernel are known"
            )
        return None

    def layer(self, options: ReadOptions) -> ExpertLayer:
        """The layer, with what its name does not say from the options. Raises ReadError, which says which
        one to give, and UnreadError for a device whose 8-bit float its name does not tell."""
        missing = [
            text
            for text, value in (
                ("hidden_size (--hidden-size)", options.hidden_size), ("top_k (--top-k)", options.top_k),
            )
            if value is None
        ]  # fmt: skip
        if missing:
            raise ReadError(
                f"E={self.experts},N={self.size} names a layer of experts by its experts and their size "
                f"alone: give {' and '.join(missing)}, or lay the model's config.json beside the file"
            )
        kind = self.kind
        dtype = options.dtype or TYPES[0] if kind == HALVES else fp8_of(self.device_name)[0]
        return ExpertLayer(
            self.experts, self.size, options.hidden_size or 0, options.top_k or 0, options.expert_parallel,
            dtype, row_scales=kind == ROW_SCALES,
        )  # fmt: skip
