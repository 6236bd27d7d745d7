"""A program: runs the Triton kernels of a layer of experts through Triton's interpreter, on the CPU.

It prints a line of JSON for each check: {"check": name, "wrong": words or ""}. Needs TRITON_INTERPRET=1 and
torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from gemmtune.torch import moe
from gemmtune.torch.grouped import blocks, glue
from gemmtune.torch.grouped.layer import sorted_rows
from torch._dynamo.backends.debugging import aot_eager

from tests.backends.kernels.triton.interpreted import mend_interpreter

#: A check -> (tokens, chosen, experts, type of the ids, how many ids of 10 are of no expert, whether all are
#: of one expert).
ROUTINGS: dict[str, tuple[int, int, int, Any, int, bool]] = {
    "one token": (1, 8, 32, torch.int64, 0, False),
    "one id": (1, 1, 1, torch.int32, 0, False),
    "ragged, some of no expert": (33, 3, 7, torch.int32, 3, False),
    "a whole round": (128, 8, 16, torch.int64, 0, False),
    "several rounds": (150, 8, 5, torch.int32, 2, False),
    "one expert has all": (40, 2, 9, torch.int64, 0, True),
    "none has any": (5, 2, 4, torch.int64, 10, False),
    "blocks": (513, 8, 2, torch.int64, 2, False),
    "small blocks": (45, 6, 33, torch.int32, 2, False),
    "small blocks, one expert has all": (33, 8, 3, torch.int64, 0, True),
    "small blocks, many experts": (50, 8, 40, torch.int64, 1, False),
}


def ids_of(tokens: int, chosen: int, experts: int, kind: Any, none: int, alone: bool) -> Any:
    random = torch.Generator().manual_seed(tokens)
    found = torch.randint(0, experts, (tokens, chosen), generator=random, dtype=kind)
    if alone:
        found.fill_(experts - 1)
    lost = torch.randint(0, 10, found.shape, generator=random) < none
    # Far beyond the experts, where its type has room: what is cut to 32 bits would be an expert.
    far = experts if kind is torch.int32 else 2**32
    strange = torch.where(torch.arange(found.numel()).view(found.shape) % 2 == 0, -1, far).to(kind)
    return torch.where(lost, strange, found)


def routing(name: str) -> str:
    """Bitwise the torch operations' results."""
    sizes: dict[str, Any] = {"_FEW": 256, "_BLOCK": 64, "_CHUNK": 128}
    with patch.multiple(glue, **sizes) if "small" in name else nullcontext():
        return _routing(name)


def _routing(name: str) -> str:
    ids, experts = ids_of(*ROUTINGS[name]), ROUTINGS[name][2]
    assert ("blocks" in name) == (ids.numel() > glue._FEW)
    found = glue.route(ids, experts)
    rows, ends, place, _ = sorted_rows(ids, experts)
    for what, one, expected in zip(("ends", "rows", "place"), found, (ends, rows, place), strict=True):
        if one.dtype != expected.dtype or not torch.equal(one, expected):
            return (
                f"{what} are {one.dtype} {one.tolist()[:20]}, not {expected.dtype} {expected.tolist()[:20]}"
            )
    strided = ids.t().contiguous().t()
    return "" if torch.equal(glue.route(strided, experts)[2], place) else "ids that are not packed"


def rows_of(width: int, kind: Any) -> Iterator[str]:
    """The gather, SiLU and the sum, of 13 rows of which two are of no expert."""
    random = torch.Generator().manual_seed(width)
    tokens, chosen, experts = 5, 3, 4
    ids = torch.randint(0, experts, (tokens, chosen), generator=random)
    ids[1, 1], ids[3, 0] = -1, experts
    ends, rows, place = glue.route(ids, experts)
    used = int(ends[-1])
    x = torch.randn(width, tokens, generator=random).to(kind).t()  # not packed
    yield "" if torch.equal(glue.gather(x, rows, ends)[:used], x[rows][:used]) else "gathered rows"

    both = (torch.randn(tokens * chosen, 2 * width, generator=random) * 4).to(kind)
    both[0, 0] = -300.0  # silu(-300) is 0
    gate, up = both.double().chunk(2, dim=-1)
    exact = torch.nn.functional.silu(gate) * up
    found = glue.silu_mul(both, ends)[:used].double()
    # One rounding, and the last bits of an fp32 exponential: half a unit of the type and a little.
    unit = torch.finfo(kind).eps
    error = ((found - exact[:used]).abs() - 0.501 * unit * exact[:used].abs()).max()
    yield "" if error <= torch.finfo(kind).tiny * unit else f"SiLU is off by {error}"

    y = torch.randn(tokens * chosen, width, generator=random).to(kind)
    y[used:] = float("nan")
    weights = torch.rand(tokens, chosen, generator=random)
    weights[1, 1] = float("inf")
    here = (ids >= 0) & (ids < experts)
    parts = torch.where(here[..., None], y[place].double() * weights[..., None].double(), 0.0)
    total, size = parts.sum(1), parts.abs().sum(1)
    found = glue.weighted_sum(y, place, ids, weights, experts)
    # fp32 sums of three, then one rounding.
    right = (found.double() - total).abs() <= 0.5 * unit * total.abs() + 2**-22 * size + 1e-7
    yield "" if right.all() else f"{int((~right).sum())} sums are off"


def blocks_of(width: int, kind: Any) -> Iterator[str]:
    """Rows as 8-bit floats, against torch's operations."""
    random = torch.Generator().manual_seed(width)
    ids = torch.randint(0, 4, (5, 3), generator=random)
    ids[1, 1] = -1
    ends, rows, _ = glue.route(ids, 4)
    used = int(ends[-1])
    x = (torch.randn(5, width, generator=random) * torch.logspace(-4, 3, 5)[:, None]).to(kind)
    x[2, :130] = 0.0
    found, scales = blocks.gather_by_kernel(x, rows, ends)
    expected, wanted = blocks.gather_by_torch(x, rows, ends)
    same = torch.equal(found.view(torch.uint8)[:used], expected.view(torch.uint8)[:used])
    yield "" if same else "gathered rows"
    yield "" if torch.equal(scales[:used], wanted[:used]) else "their scales"
    both = (torch.randn(15, 2 * width, generator=random) * 4).to(kind)
    found, scales = blocks.silu_by_kernel(both, ends)
    expected, wanted = blocks.silu_by_torch(both, ends)
    apart = (found.float() != expected.float())[:used].float().mean()
    yield "" if apart < 0.005 else f"{apart} of SiLU's are others"
    yield "" if torch.allclose(scales[:used], wanted[:used], rtol=1e-6) else "SiLU's scales"
    gate, up = both.double().chunk(2, dim=-1)
    exact = (torch.nn.functional.silu(gate) * up)[:used]
    whole = scales.double().repeat_interleave(128, 1)[:used, :width]
    # Half a unit of 3 bits, or of the smallest number; and the last bits of fp32.
    bound = torch.maximum(exact.abs() / 16, whole * 2**-10) * 1.00001
    yield "" if bool(((found[:used].double() * whole - exact).abs() <= bound).all()) else "SiLU is off"


def layer(compiled: bool, small: bool = False) -> str:
    """A whole layer, against torch's operations. `small`: of 8-bit floats."""
    torch.manual_seed(1)
    experts, width, inner, tokens, chosen = 5, 48, 32, 7, 2
    x = torch.randn(tokens, width, dtype=torch.bfloat16)
    gate_up = torch.randn(experts, 2 * inner, width, dtype=torch.bfloat16) / 8
    down = torch.randn(experts, width, inner, dtype=torch.bfloat16) / 8
    weights, ids = torch.softmax(torch.randn(tokens, experts), -1).topk(chosen)
    ids[0], ids[1, 0] = -1, experts
    given: tuple[Any, ...] = (x, gate_up, down, weights, ids)
    if small:
        e4m3, scales = torch.float8_e4m3fn, torch.rand(experts, 1, 1) + 0.5
        given = (x, gate_up.to(e4m3), down.to(e4m3), weights, ids, scales, scales)
    expected = moe(*given).float()
    library = torch.library.Library("gemmtune", "IMPL")
    launched = []

    def told(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            launched.append(name)
            return run(*given)

        return call

    for name, run in (
        ("moe_route", glue.route), ("moe_gather", glue.gather), ("moe_silu_mul", glue.silu_mul),
        ("moe_sum", glue.weighted_sum),
        ("moe_gather_blocks", blocks.gather_by_kernel), ("moe_silu_blocks", blocks.silu_by_kernel),
    ):  # fmt: skip
        library.impl(name, told(name, run), "CPU", allow_override="blocks" in name)
    with patch.object(glue, "_DEVICE", "cpu"):
        call = torch.compile(moe, backend=aot_eager, fullgraph=True) if compiled else moe
        found = call(*given).float()
    library._destroy()
    between = ["moe_gather_blocks", "moe_silu_blocks"] if small else ["moe_gather", "moe_silu_mul"]
    if launched != ["moe_route", *between, "moe_sum"]:
        return f"launched {launched}"
    if not torch.equal(found[0], torch.zeros(width)):
        return "a token without experts"
    return "" if torch.allclose(found, expected, rtol=0.02, atol=0.01) else f"{found}, not {expected}"


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    for name in ROUTINGS:
        yield name, lambda name=name: routing(name)  # type: ignore[misc]
    for width in (48, 77, 1100):
        for kind in (torch.bfloat16, torch.float16)[: 2 if width == 77 else 1]:
            yield (
                f"rows of {width} {kind}",
                lambda width=width, kind=kind: "; ".join(  # type: ignore[misc]
                    filter(None, rows_of(width, kind))
                ),
            )
    yield "a layer", lambda: layer(False)
    yield "a compiled layer", lambda: layer(True)
    for width, kind in ((16, torch.float16), (200, torch.bfloat16)):
        yield (
            f"8-bit rows of {width} {kind}",
            lambda width=width, kind=kind: "; ".join(  # type: ignore[misc]
                filter(None, blocks_of(width, kind))
            ),
        )
    yield "an 8-bit layer", lambda: layer(False, small=True)
    yield "a compiled 8-bit layer", lambda: layer(True, small=True)


def main() -> None:
    """Runs every check."""
    mend_interpreter()
    for name, check in checks():
        print(json.dumps({"check": name, "wrong": check()}), flush=True)


if __name__ == "__main__":
    main()
