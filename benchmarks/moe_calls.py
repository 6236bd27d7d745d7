"""Whole layers of a mixture of experts in torch: operands, a reference in float64, and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Any
from unittest import mock

from backends.grouping import SKEW
from benchmarks.graph_time import graph_us

#: Copies of a layer's weights, which the calls of a graph take in turns, so that they are cold; and how often each is
#: taken by a call of few tokens, so that starting the graph counts for little.
COPIES, TURNS, FEW_TOKENS = 3, 4, 64
#: The most that a result may be off, as a share of the reference's norm: a few times what rounding to bf16 between
#: the products and after them takes.
TOLERANCE = 0.01
#: Calls on a CPU, which has no graphs.
_CPU_CALLS = 5


@dataclass(frozen=True)
class Size:
    """A layer: experts, experts of a token, hidden size and an expert's intermediate size."""

    experts: int
    top: int
    hidden: int
    inter: int


@dataclass(frozen=True)
class Layer:
    """Operands of calls that differ in the weights alone."""

    x: Any
    weights: Any
    ids: Any
    copies: Sequence[tuple[Any, Any]]

    @property
    def turns(self) -> int:
        """How often a graph takes each copy."""
        return TURNS if len(self.x) <= FEW_TOKENS else 1


def routed(torch: Any, size: Size, tokens: int, routing: str, device: Any) -> Any:
    """The experts of every token, distinct, int64 [tokens, top]: the largest of the experts' log popularity and
    Gumbel noise. Popularity is that of backends/grouping.py."""
    random = torch.Generator(device).manual_seed(1)
    ranks = [NormalDist().inv_cdf((rank + 0.5) / size.experts) for rank in range(size.experts)]
    popular = torch.tensor(ranks, device=device) * (SKEW if routing == "skewed" else 0.0)
    noise = torch.rand(tokens, size.experts, generator=random, device=device).clamp(1e-9, 1 - 1e-7)
    return (popular - (-noise.log()).log()).topk(size.top).indices


def made(torch: Any, size: Size, tokens: int, routing: str, device: Any) -> Layer:
    """Random operands in bf16, of a size that keeps results near 1."""
    random = torch.Generator(device).manual_seed(2)

    def normal(*shape: int, scale: float) -> Any:
        out = torch.empty(shape, device=device, dtype=torch.bfloat16)
        return out.normal_(generator=random).mul_(scale)

    copies = [
        (
            normal(size.experts, 2 * size.inter, size.hidden, scale=size.hidden**-0.5),
            normal(size.experts, size.hidden, size.inter, scale=size.inter**-0.5),
        )
        for _ in range(COPIES)
    ]
    weights = torch.rand(tokens, size.top, generator=random, device=device).softmax(-1)
    ids = routed(torch, size, tokens, routing, device)
    return Layer(normal(tokens, size.hidden, scale=1.0), weights, ids, copies)


def reference(torch: Any, layer: Layer) -> Any:
    """The layer's result of the first copy in float64, expert by expert."""
    gate_up, down = layer.copies[0]
    out = torch.zeros(layer.x.shape, dtype=torch.float64, device=layer.x.device)
    for expert in range(len(gate_up)):
        tokens, place = (layer.ids == expert).nonzero(as_tuple=True)
        if len(tokens):
            gate, up = (layer.x[tokens].double() @ gate_up[expert].double().t()).chunk(2, -1)
            found = (torch.nn.functional.silu(gate) * up) @ down[expert].double().t()
            out.index_add_(0, tokens, found * layer.weights[tokens, place].double()[:, None])
    return out


def error(found: Any, wanted: Any) -> float:
    """The norm of the difference over the norm of the reference."""
    return float((found.double() - wanted).norm() / wanted.norm())


def calls(layer: Layer) -> list[Callable[[], Any]]:
    """moe() with each copy of the weights in turn."""
    import gemmtune.torch  # noqa: PLC0415

    def call(gate_up: Any, down: Any) -> Callable[[], Any]:
        return lambda: gemmtune.torch.moe(layer.x, gate_up, down, layer.weights, layer.ids)

    return [call(*one) for one in layer.copies] * layer.turns


def time_us(torch: Any, device: Any, every: Sequence[Callable[[], Any]]) -> float:
    """Microseconds of a call, in a CUDA graph on a GPU."""
    if device.type == "cuda":
        return graph_us(torch, every)
    times = []
    for call in [*every, *every][:_CPU_CALLS]:
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e6)
    return median(times)


def steps_us(torch: Any, device: Any, layer: Layer) -> dict[str, float]:
    """Microseconds of what is between the products, each alone, where the client has kernels for it."""
    from gemmtune.torch.grouped import glue  # noqa: PLC0415

    gate_up, _ = layer.copies[0]
    experts, rows = len(gate_up), layer.ids.numel()
    if not glue.runs(layer.x):
        return {}
    hidden = torch.randn(rows, gate_up.shape[1], device=device).to(torch.bfloat16)
    out = torch.randn(rows, layer.x.shape[1], device=device).to(torch.bfloat16)
    _, _, ends, place = glue.rows_of_experts(layer.x, layer.ids, experts, False)
    steps: dict[str, Callable[[], Any]] = {
        "rows": lambda: glue.rows_of_experts(layer.x, layer.ids, experts, False),
        "activation": lambda: glue.activation(hidden, ends, False),
        "sum": lambda: glue.weighted_sum(out, place, layer.weights, torch.bfloat16),
    }
    return {name: time_us(torch, device, [step] * COPIES * TURNS) for name, step in steps.items()}


# ---- ways ----------------------------------------------------------------------------------------


@contextmanager
def by_table(table: Any) -> Iterator[None]:
    """moe()'s products by the rows of a table, their kernels loaded."""
    import gemmtune.torch  # noqa: PLC0415

    with gemmtune.torch.enable(table) as enabled:
        enabled.load()
        yield


@contextmanager
def by_torchs_steps() -> Iterator[None]:
    """moe() without kernels of ours: torch's products, and torch's operations between them."""
    from gemmtune.torch.grouped import glue  # noqa: PLC0415

    with mock.patch.object(glue, "runs", return_value=False):
        yield


Way = Callable[[], AbstractContextManager[None]]


def times(
    torch: Any, device: Any, layer: Layer, ways: dict[str, tuple[Way, bool]]
) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Name of a way -> microseconds, errors, and why a way was not timed. A way is checked before it is timed: its
    result, and, where the flag says so, that rows of a table ran both products. Ways are timed one after another, then
    in the opposite order; a way's time is the mean of both."""
    import gemmtune.torch  # noqa: PLC0415

    every, wanted = calls(layer), reference(torch, layer)
    errors: dict[str, float] = {}
    wrong: dict[str, str] = {}
    for name, (way, by_rows) in ways.items():
        with way(), gemmtune.torch.report() as count:
            errors[name] = error(every[0](), wanted)
        report = count.report()
        if not errors[name] < TOLERANCE:
            wrong[name] = f"the result is off by {errors[name]:.3g} of its norm"
        elif by_rows and (report.hits, report.misses) != (2, 0):
            wrong[name] = f"rows ran {report.hits} of the two products"
    turns: dict[str, list[float]] = {name: [] for name in ways if name not in wrong}
    for name in [*turns, *reversed(turns)]:
        with ways[name][0]():
            turns[name].append(time_us(torch, device, every))
    return {name: sum(both) / 2 for name, both in turns.items()}, errors, wrong
