"""The client's operators of grouped and 8-bit products against torch's own calls, by a bundle of the tuned rows.

    python -m benchmarks.client_operators problems > problems.jsonl
    gemmtune tune problems.jsonl --device cuda
    gemmtune bundle -o operators.gtb --device cuda
    python -m benchmarks.client_operators run operators.gtb --json OUT

`problems` prints one layer of Qwen3-30B-A3B (128 experts, top 8) at 8, 64 and 512 tokens, uniform routing, and 8-bit
products of Llama-3-8B's layers at 8 rows. `run` calls each in a CUDA graph, alternating, in torch and with the table in
use: `ratio` is torch's time over ours; `error` the largest difference over the largest value of torch's result. `moe` is
the whole layer (gather, both products, silu, weighted scatter) with uniformly drawn experts. Weights are cold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from backends.grouping import counts_of
from backends.problem import GemmProblem, from_linear
from backends.registry import find_device
from backends.wire import problem_to_wire
from benchmarks.graph_time import graph_us
from benchmarks.report import write

EXPERTS, CHOSEN, HIDDEN, INTERMEDIATE = 128, 8, 2048, 768
TOKENS = (8, 64, 512)
#: n, k of y[8, n] = x[8, k] w[n, k]^T.
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
ROWS = 8
#: Copies of a layer's weights that calls take in turns, so that they are cold.
COPIES = 3


def grouped_problems() -> Iterator[tuple[str, int, GemmProblem]]:
    """Name, tokens and problem of the layer's two products."""
    for tokens in TOKENS:
        for name, n, k in (("gate_up", 2 * INTERMEDIATE, HIDDEN), ("down", HIDDEN, INTERMEDIATE)):
            yield name, tokens, from_linear(tokens * CHOSEN, n, k, "bf16", groups=EXPERTS, routing="uniform")


def scaled_problems() -> Iterator[GemmProblem]:
    """With scales of rows and columns into bf16."""
    for kind in ("fp8_e4m3", "int8"):
        for n, k in LAYERS:
            yield from_linear(ROWS, n, k, kind, dtype_d="bf16", scale_a="outer", scale_b="outer")


def compared(
    torch: Any, table: Any, theirs: Sequence[Callable[[], Any]], ours: Sequence[Callable[[], Any]]
) -> Any:
    """Both times, their ratio and the error."""
    import gemmtune.torch  # noqa: PLC0415

    expected = theirs[0]().float()
    before = graph_us(torch, theirs)
    with gemmtune.torch.enable(table) as enabled:
        enabled.load()
        found = ours[0]().float()
        own = graph_us(torch, ours)
    after = graph_us(torch, theirs)
    torch_us = (before + after) / 2
    error = float((found - expected).abs().max() / expected.abs().max())
    return {"torch_us": torch_us, "ours_us": own, "ratio": torch_us / own, "error": error}


def grouped_rows(torch: Any, table: Any) -> Iterator[dict[str, Any]]:
    """grouped_mm against torch._grouped_mm."""
    import gemmtune.torch  # noqa: PLC0415

    for name, tokens, p in grouped_problems():
        counts = torch.tensor(counts_of(p), dtype=torch.int32, device="cuda")
        ends = counts.cumsum(0).to(torch.int32)
        x = torch.randn(p.n, p.k, device="cuda", dtype=torch.bfloat16)
        made = [torch.randn(EXPERTS, p.m, p.k, device="cuda", dtype=torch.bfloat16) for _ in range(COPIES)]
        theirs = [partial(torch._grouped_mm, x, w.transpose(1, 2), offs=ends) for w in made]
        ours = [partial(gemmtune.torch.grouped_mm, x, w, ends) for w in made]
        yield {
            "operator": "grouped_mm",
            "layer": name,
            "tokens": tokens,
            **compared(torch, table, theirs, ours),
        }


def moe_rows(torch: Any, table: Any) -> Iterator[dict[str, Any]]:
    """A whole layer: the same operator without a table is torch's grouped calls."""
    import gemmtune.torch  # noqa: PLC0415

    for tokens in TOKENS:
        x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        ids = torch.rand(tokens, EXPERTS, device="cuda").topk(CHOSEN).indices
        weights = torch.rand(tokens, CHOSEN, device="cuda").softmax(-1)
        made = [
            (
                torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN, device="cuda", dtype=torch.bfloat16) * 0.02,
                torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, device="cuda", dtype=torch.bfloat16) * 0.02,
            )
            for _ in range(COPIES)
        ]
        calls = [partial(gemmtune.torch.moe, x, gate_up, down, weights, ids) for gate_up, down in made]
        yield {"operator": "moe", "tokens": tokens, **compared(torch, table, calls, calls)}


def scaled_rows(torch: Any, table: Any) -> Iterator[dict[str, Any]]:
    """linear_w8a8 against torch._scaled_mm, and for int8 against itself without a table: torch._int_mm and
    scaling."""
    import gemmtune.torch  # noqa: PLC0415

    for p in scaled_problems():
        m, n, k = p.n, p.m, p.k
        x = _bytes(torch, p.dtype_a, m, k)
        scale_x, scale_w = (torch.rand(rows, 1, device="cuda") + 0.5 for rows in (m, n))
        weights = [_bytes(torch, p.dtype_a, n, k) for _ in range(max(COPIES, 2**28 // (n * k)))]
        ours = [partial(gemmtune.torch.linear_w8a8, x, w, scale_x, scale_w) for w in weights]
        theirs = ours
        if p.dtype_a != "int8":
            scaled = partial(torch._scaled_mm, scale_a=scale_x, scale_b=scale_w.t(), out_dtype=torch.bfloat16)
            theirs = [partial(scaled, x, w.t()) for w in weights]
        row = compared(torch, table, theirs, ours)
        yield {"operator": "linear_w8a8", "dtype": p.dtype_a, "m": m, "n": n, "k": k, **row}


def _bytes(torch: Any, dtype: str, rows: int, k: int) -> Any:
    if dtype == "int8":
        return torch.randint(-127, 128, (rows, k), device="cuda", dtype=torch.int8)
    return torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)


def run(options: argparse.Namespace) -> None:
    """Prints and writes the rows."""
    import gemmtune  # noqa: PLC0415
    import torch  # noqa: PLC0415

    torch.manual_seed(0)
    table, rows = gemmtune.load(options.bundle), []
    for kind in (grouped_rows, moe_rows, scaled_rows):
        for row in kind(torch, table):
            rows.append(row)
            print(json.dumps(row), flush=True)
    found = find_device("cuda").environment
    document = {
        "what": (__doc__ or "").split("\n\n")[-1].strip(),
        "table_rows": len(table.rows),
        "rows": rows,
    }
    write(options.json.stem, found, document, options.json.parent)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_operators", description=__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("problems").set_defaults(run=lambda _: _print_problems())
    of_run = commands.add_parser("run")
    of_run.add_argument("bundle")
    of_run.add_argument("--json", type=Path, required=True)
    of_run.set_defaults(run=run)
    options = parser.parse_args()
    options.run(options)


def _print_problems() -> None:
    for p in (*(p for _, _, p in grouped_problems()), *scaled_problems()):
        print(json.dumps(problem_to_wire(p)))


if __name__ == "__main__":
    main()
