"""The section of docs/performance.md about low-bit products, from the results of benchmarks.lowbit that exist."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bounds import LAUNCH_US
from benchmarks.cells import percent, source, table, times
from benchmarks.lowbit import by_model
from benchmarks.lowbit_layers import DEVICES, MODELS

#: Result -> what it measured.
RESULTS: Mapping[str, str] = {
    "lowbit": "Every kind, Llama-3 8B on one device",
    "lowbit-decode": "16-bit activations, 1 to 512 rows, the portfolio compiled beforehand but not told to searches",
    "lowbit-prepacked": "16-bit activations, weights packed beforehand, the portfolio compiled and told to searches",
    "lowbit-cold": "16-bit activations, 1 to 128 rows, nothing compiled beforehand",
    "lowbit-w8a16-prepacked": "8-bit weights packed beforehand",
    "lowbit-prefill": "16-bit activations, as many rows as prompts, the portfolio told to searches",
    "lowbit-prefill-cold": "16-bit activations, as many rows as prompts, nothing compiled beforehand",
    "lowbit-mxfp4": "4-bit weights, MXFP4 among them",
    "lowbit-bytes": "8-bit activations, scales of rows and columns, the portfolio told to searches",
    "lowbit-blocks": "8-bit floats with scales of blocks, the portfolio told to searches",
    "lowbit-tensor": "8-bit floats with one scale an operand, the portfolio told to searches",
    "lowbit-h200-prepacked": "An H200: 16-bit activations, weights packed beforehand, about a second of measuring",
    "lowbit-h200-few": "An H200: 4-bit weights packed beforehand, 1 and 2 rows, two seconds of measuring, `packed-imma` among the families",
    "lowbit-h200-w4a16": "An H200: 4-bit weights packed beforehand, 1, 8 and 32 rows of Llama-3 and Qwen3, two seconds of measuring",
    "lowbit-h200-many": "An H200: 16-bit activations, 128 and 4096 rows, a second of measuring with the default's calls in it",
    "lowbit-h200-w8a16-m128": "An H200: 8-bit weights, 128 rows, four seconds of measuring with the default's calls in it",
    "lowbit-h200-bytes": "An H200: 8-bit activations, scales of rows and columns, about a second of measuring",
    "lowbit-h200-fp8-rows": "An H200: 8-bit floats with scales of rows and columns, Llama-3 and Qwen3, two seconds of measuring",
    "lowbit-h200-blocks": "An H200: 8-bit floats with scales of blocks, a second of measuring",
    "lowbit-h200-tensor": "An H200: 8-bit floats with one scale an operand, a second of measuring",
    "lowbit-h200-tp8": "An H200: tensor parallelism of 8, about a second of measuring",
    "lowbit-tp8": "8-bit activations, tensor parallelism of 8, the portfolio told to searches",
}
_HEADS = (
    "kind", "model", "tensor parallelism", "rows", "layers", "over torch's call", "over the default",
    "over torch.mm of bf16", "of the bound", "at the bound over the default", "over torch.mm",
)  # fmt: skip


def section(results: Path) -> str:
    """Geometric means of every model and tensor parallelism; "" where there is no result."""
    parts = []
    for name, title in RESULTS.items():
        path = results / f"{name}.json"
        if path.exists():
            document = json.loads(path.read_text())
            lines = [_line(one) for one in by_model(document["rows"])]
            part = "" if document["complete"] else _partial(document)
            part += "The portfolio was compiled beforehand.\n\n" if document.get("precompile") else ""
            parts.append(f"### {title}\n\n{part}{table(_HEADS, lines)}\n{source(document)}\n")
    if not parts:
        return ""
    head = (
        "## Low-bit products\n\nGeometric means over a model's linear layers as tensor parallelism shares them, cold "
        "weights: the time of torch's own call for the type, of the default (that call with its result copied to D) and "
        "of torch.mm with bf16 weights, over that of the tuning's winner; and the share of the bound, the time to read and "
        "write at the measured bandwidth. *At the bound*: what "
        f"would be gained by a launch that takes {LAUNCH_US} us longer than the bound, as one does that reads the bytes and does "
        "nothing else on an H200 (`cuda-reading.json`). What has no line was not measured yet: `python -m benchmarks.lowbit` has the layers "
        f"of {', '.join(MODELS)} with tensor parallelism of {' and '.join(map(str, DEVICES))}.\n\n"
    )
    return head + "\n".join(parts)


def _line(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        one["kind"], one["model"], str(one["tp"]), str(one["m"]), str(one["rows"]), times(one["over_torch"]),
        times(one["over_default"]), times(one["over_bf16"]), percent(one["share_of_bound"]),
        times(one["most_over_default"]), times(one["most_over_bf16"]),
    )  # fmt: skip


def _partial(document: Mapping[str, Any]) -> str:
    return f"{len(document['rows'])} of {document['rows_wanted']} products were measured.\n\n"
