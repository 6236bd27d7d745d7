"""Whole layers of a mixture of experts in torch: calls, ways of making them, and times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any
from unittest import mock

from benchmarks.graph_time import graph_us
from benchmarks.moe_operands import COPIES, TURNS, Layer, reference

#: The most that a result may be off, as a share of the reference's norm: a few times what rounding to bf16 between
#: the products and after them takes.
TOLERANCE = 0.01
#: How often each way is timed.
ROUNDS = 4
#: Calls on a CPU, which has no graphs.
_CPU_CALLS = 5


def error(found: Any, wanted: Any) -> float:
    """The norm of the difference over the norm of the reference."""
    return float((found.double() - wanted).norm() / wanted.norm())


def calls(layer: Layer) -> list[Callable[[], Any]]:
    """moe() with each copy of the weights in turn."""
    import gemmtune.torch  # noqa: PLC0415

    def call(gate_up: Any, down: Any) -> Callable[[], Any]:
        return lambda: gemmtune.torch.moe(layer.x, gate_up, down, layer.weights, layer.ids, **layer.options)

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
    from gemmtune.torch.grouped.activation import limit_of  # noqa: PLC0415

    gate_up, _ = layer.copies[0]
    experts, rows = gate_up.shape[0], layer.ids.numel()
    if not glue.runs(layer.x):
        return {}
    options = layer.options
    of_gate_up, of_down = options.get("gate_up_bias"), options.get("down_bias")
    interleaved = options.get("interleaved", False)
    limit = limit_of(options.get("activation", "silu"), options.get("swiglu_limit"))
    hidden = torch.randn(rows, gate_up.shape[1], device=device).to(torch.bfloat16)
    out = torch.randn(rows, layer.x.shape[1], device=device).to(torch.bfloat16)
    _, _, ends, place = glue.rows_of_experts(layer.x, layer.ids, experts)
    steps: dict[str, Callable[[], Any]] = {
        "rows": lambda: glue.rows_of_experts(layer.x, layer.ids, experts),
        "activation": lambda: glue.activation(hidden, ends, None, of_gate_up, interleaved, limit),
        "sum": lambda: glue.weighted_sum(out, place, layer.weights, torch.bfloat16, of_down, layer.ids),
    }
    return {name: time_us(torch, device, [step] * COPIES * TURNS) for name, step in steps.items()}


# ---- ways ----------------------------------------------------------------------------------------


@contextmanager
def by_table(table: Any, most: int | None = None) -> Iterator[None]:
    """moe()'s products by the rows of a table, their kernels loaded. `most`: of two_launches()."""
    import gemmtune.torch  # noqa: PLC0415

    with two_launches(most), gemmtune.torch.enable(table) as enabled:
        enabled.load()
        yield


@contextmanager
def two_launches(most: int | None) -> Iterator[None]:
    """moe() takes two launches, without products, up to `most` slots (tokens times experts of a token); None is what
    moe() does."""
    from gemmtune.torch.grouped import few_tokens  # noqa: PLC0415

    patched = mock.patch.object(few_tokens, "most_slots", return_value=most)
    with nullcontext() if most is None else patched:
        yield


def takes_two_launches(layer: Layer) -> bool:
    """Whether moe() does, where it runs kernels at all."""
    from gemmtune.torch.grouped import few_tokens, glue, steps  # noqa: PLC0415

    both = (steps.weights_of(one, None) for one in layer.copies[0])
    return glue.runs(layer.x) and few_tokens.takes(layer.x, layer.ids, *both)


@contextmanager
def by_torchs_steps() -> Iterator[None]:
    """moe() without kernels of ours: torch's products, and torch's operations between them."""
    from gemmtune.torch.grouped import glue  # noqa: PLC0415

    with mock.patch.object(glue, "runs", return_value=False):
        yield


#: The ways whose products are vLLM's, by the bundle that has them; and those that multiply 4-bit weights as they are
#: stored.
VLLM = ("vllm", "vllm_newer")
OF_STORED = {"ours", "products", "launches"}
#: The most slots (tokens times experts of a token) of which two launches are timed where moe() does not take them.
MOST_SLOTS = 64
#: What has to run a way.
ROWS, LAUNCHES, ANY = "rows", "launches", ""
Way = Callable[[], AbstractContextManager[None]]


def ways_of(
    kind: str, loaded: Mapping[str, Any], slots: int, few: bool, has_kernels: bool
) -> dict[str, tuple[Way, str]]:
    """Name of a way -> how it is taken, and what has to run it. `few`: moe() takes two launches."""
    ways: dict[str, tuple[Way, str]] = {}
    if "ours" in loaded:
        ways["ours"] = partial(by_table, loaded["ours"]), LAUNCHES if few else ROWS
        if few:
            ways["products"] = partial(by_table, loaded["ours"], 0), ROWS
    if not few and has_kernels and slots <= MOST_SLOTS:
        ways["launches"] = partial(two_launches, slots), LAUNCHES
    if kind == "bf16":
        if "unfused" in loaded:
            ways["unfused"] = partial(by_table, loaded["unfused"], 0), ROWS
        ways |= {name: (partial(by_table, loaded[name], 0), ROWS) for name in VLLM if name in loaded}
    elif "ours" in loaded:
        ways["ours_bf16"] = partial(by_table, loaded["ours"]), ANY
    return ways | {"torch": (partial(two_launches, 0), ANY), "torch_steps": (by_torchs_steps, ANY)}


def williams(ways: int) -> list[list[int]]:
    """The rows of a carryover-balanced (Williams) Latin square: in all rows together each number is once directly
    behind every other, and once at every place. An odd number of ways has no such square: then these are a square
    and its mirror, together twice of everything."""
    zigzag = [at // 2 + 1 if at % 2 else -(at // 2) for at in range(ways)]
    square = [[(start + step) % ways for step in zigzag] for start in range(ways)]
    return square if ways % 2 == 0 else square + [row[::-1] for row in square]


def order_of(names: Sequence[str]) -> list[str]:
    """The order in which ways are timed: each once a turn, in turns that are rows of a Williams square, because a time
    depends on what was timed directly before, and on the place. ROUNDS rows do not hold all pairs of many ways, so
    that each next row is the one that repeats the fewest, with the pair across two turns."""
    rows = williams(len(names))
    seen: Counter[tuple[int, int]] = Counter()
    left: list[list[int]] = []
    found: list[int] = []

    def repeats(row: list[int]) -> tuple[int, bool]:
        return sum(seen[pair] for pair in pairwise([*found[-1:], *row])), found[-1:] == row[:1]

    for _ in range(ROUNDS if names else 0):
        left = left or list(rows)
        row = min(left, key=repeats)
        left.remove(row)
        seen.update(pairwise([*found[-1:], *row]))
        found += row
    return [names[one] for one in found]


def times(
    torch: Any,
    device: Any,
    layer: Layer,
    ways: dict[str, tuple[Way, str]],
    others: Mapping[str, Layer] | None = None,
) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Name of a way -> microseconds, errors, and why a way was not timed. A way is checked before it is timed: its
    result, and what ran it: ROWS, both products by rows of a table, or LAUNCHES, two launches without products. A way's time is the median
    of its ROUNDS, in the order of order_of(). `others`: the layer of a way that has its weights in another
    form."""
    import gemmtune.torch  # noqa: PLC0415

    own, wanted = calls(layer), reference(torch, layer)
    every = {name: calls(others[name]) if others and name in others else own for name in ways}
    errors: dict[str, float] = {}
    wrong: dict[str, str] = {}
    for name, (way, path) in ways.items():
        with way(), gemmtune.torch.report() as count:
            errors[name] = error(every[name][0](), wanted)
        report = count.report()
        if not errors[name] < TOLERANCE:
            wrong[name] = f"the result is off by {errors[name]:.3g} of its norm"
        elif path == ROWS and (report.hits, report.misses) != (2, 0):
            wrong[name] = f"rows ran {report.hits} of the two products"
        elif path == LAUNCHES and (len(report.layers), report.misses) != (1, 0):
            wrong[name] = "the layer did not run by two launches"
    taken: dict[str, list[float]] = {name: [] for name in ways if name not in wrong}
    for name in order_of(list(taken)):
        with ways[name][0]():
            taken[name].append(time_us(torch, device, every[name]))
    return {name: median(several) for name, several in taken.items()}, errors, wrong
