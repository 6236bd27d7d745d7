"""torch's calls for grouped products, each timed by itself in a CUDA graph over different weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from backends.environment import Environment
from backends.gpu.torch_grouped_weights import WEIGHT_CALLS, weight_steps
from backends.gpu.torch_scaled_grouped import SCALED_CALLS, scaled_rule, scaled_steps
from backends.grouping import draws_of, ends_of, gated, routing_of_draw, scaled_blocks, spans_of
from backends.problem import GemmProblem
from backends.quantisation import groups_of
from backends.registry import FoundDevice
from benchmarks.graph_time import graph_us

#: Bytes of weights that a graph of torch's calls walks, so that each call finds its own cold; calls at most.
_WALKED, _MOST_CALLS = 2**28, 16

Call = Callable[[Any, GemmProblem, Mapping[str, Any]], Callable[[], Any]]


def torch_times(found: FoundDevice, p: GemmProblem) -> dict[str, Any]:
    """Microseconds of torch's calls, of a named routing the mean over its draws. A call that torch refuses is
    its message."""
    import torch  # noqa: PLC0415  (optional)

    device, own = torch.device("cuda", found.index), dict[str, Any]()
    draws = [replace(p, routing=routing_of_draw(p, draw)) for draw in range(draws_of(p))]
    for name, call in calls(p, found.environment).items():
        try:
            own[name] = fmean(_graph_us(torch, device, one, call) for one in draws)
        except Exception as error:  # whatever torch raises: the other rows go on
            own[name], own[f"{name}_error"] = None, f"{type(error).__name__}: {error}"[:300]
        torch.cuda.empty_cache()
    return own


def calls(p: GemmProblem, environment: Environment) -> dict[str, Call]:
    """The name of a figure -> torch's call that takes the problem."""
    if gated(p):
        return {
            f"{name}{how}_us": _gated(call, compiled)
            for how, compiled in (("", False), ("_compiled", True))
            for name, call in (("grouped_mm", _grouped_mm), ("loop", _loop))
        }
    if p.dtype_a == "bf16":
        return {"grouped_mm_us": _grouped_mm, "loop_us": _loop}
    if p.weight_only:
        return {f"{name}_us": _dequantised(name) for name in WEIGHT_CALLS}
    return {f"{name}_us": _scaled(name) for name in SCALED_CALLS if scaled_rule(p, name, environment) is None}


def _grouped_mm(torch: Any, p: GemmProblem, given: Mapping[str, Any]) -> Callable[[], Any]:
    x, weights, offsets = given["b"], given["a"].transpose(-2, -1), given["offsets"]
    return lambda: torch._grouped_mm(x, weights, offs=offsets)


def _loop(torch: Any, p: GemmProblem, given: Mapping[str, Any]) -> Callable[[], Any]:
    x, w, out = given["b"], given["a"], given["d"]
    parts = [(x[start:end], w[group].t(), out[start:end]) for group, start, end in spans_of(p)]

    def call() -> None:
        for left, right, to in parts:
            torch.mm(left, right, out=to)

    return call


def _gated(product: Call, compiled: bool) -> Call:
    """A product, and silu(gate) * up of it: two operations, or one kernel that torch.compile makes of them."""

    def made(torch: Any, p: GemmProblem, given: Mapping[str, Any]) -> Callable[[], Any]:
        multiply = product(torch, p, given)

        def activation(hidden: Any) -> Any:
            gate, up = hidden.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up

        finish = torch.compile(activation, dynamic=False) if compiled else activation

        def call() -> Any:
            found = multiply()
            return finish(given["d"] if found is None else found)

        return call

    return made


def _scaled(name: str) -> Call:
    def made(torch: Any, p: GemmProblem, given: Mapping[str, Any]) -> Callable[[], Any]:
        steps = scaled_steps(torch, p, name, given)

        def call() -> None:
            for step in steps:
                step()

        return call

    return made


def _dequantised(name: str) -> Call:
    def made(torch: Any, p: GemmProblem, given: Mapping[str, Any]) -> Callable[[], Any]:
        steps = weight_steps(torch, p, name, given)

        def call() -> None:
            for step in steps:
                step()

        return call

    return made


def _graph_us(torch: Any, device: Any, p: GemmProblem, of: Call) -> float:
    """All operands but the weights are shared by the graph's calls."""
    size = p.groups * p.m * p.k * (2 if p.dtype_a == "bf16" else 1)
    if p.weight_only:  # the buffers that each call dequantises into
        size = p.groups * p.m * p.k * 7
    count = max(1, min(_MOST_CALLS, -(-_WALKED // p.bytes_read)))
    count = max(1, min(count, int(0.5 * torch.cuda.mem_get_info(device)[0] / size)))
    shared = _operands(torch, device, p)
    weights = [_weights(torch, device, p) for _ in range(count)]
    return graph_us(torch, [of(torch, p, {**shared, "a": one}) for one in weights])


def _weights(torch: Any, device: Any, p: GemmProblem) -> Any:
    if p.dtype_a == "bf16":
        return torch.empty(p.groups, p.m, p.k, device=device, dtype=torch.bfloat16).normal_()
    if p.weight_only:
        return torch.randint(0, 256, (p.groups, p.m, p.k // 2), device=device, dtype=torch.uint8)
    out = torch.empty(p.groups, p.m, p.k, device=device, dtype=torch.float8_e4m3fn)
    for one in out:  # as fp32 all of them may not fit
        one.copy_(torch.randn(p.m, p.k, device=device).to(out.dtype))
    return out


def _operands(torch: Any, device: Any, p: GemmProblem) -> dict[str, Any]:
    kind = torch.bfloat16 if p.dtype_b == "bf16" else torch.float8_e4m3fn
    found = {
        "b": torch.randn(p.n, p.k, device=device).to(kind),
        "d": torch.empty(p.n, p.m, device=device, dtype=torch.bfloat16),
        "offsets": torch.tensor(ends_of(p), device=device),
    }
    if p.weight_only:
        along_k = groups_of(p)
        shape = (p.groups, p.m, along_k)
        if p.mx:
            found["scale_a"] = torch.randint(125, 129, shape, device=device, dtype=torch.uint8)
        else:
            found["scale_a"] = (torch.rand(shape, device=device) + 0.5).to(torch.bfloat16)
        if p.zero_a == "uint4":
            words = (p.groups, p.m // 8, 4 * along_k)
            found["zero_a"] = torch.randint(0, 256, words, device=device, dtype=torch.uint8)
    elif kind is not torch.bfloat16:
        blocks, along_k = scaled_blocks(p), -(-p.k // 128)
        of_w = (p.groups, -(-p.m // 128), along_k) if blocks else (p.groups, p.m)
        found["scale_a"] = torch.rand(of_w, device=device) + 0.5
        found["scale_b"] = torch.rand((p.n, along_k) if blocks else (p.n,), device=device) + 0.5
    return found
