"""Tokens per second of a transformers model's decode step: torch's own, and with the rows of a bundle.

    python decode_step.py config.json files/Llama-3-8B.gtb [--batch 1] [--json FILE]

Only the config is read: weights are random, in bf16, which changes no time. The step is captured in a CUDA
graph, as serving engines do. The last line says which of the two is faster, and by how much.
"""

import argparse
import gc
import json
from pathlib import Path
from statistics import median
from typing import Any

import gemmtune
import gemmtune.torch
import torch
import transformers

CACHE_LENGTH, PROMPT_LENGTH = 256, 32


def build(path: Path) -> Any:
    """The model that a config.json, or the folder that holds it, describes."""
    path = path / "config.json" if path.is_dir() else path
    config = transformers.AutoConfig.for_model(**json.loads(path.read_text()))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def tokens_per_second(model: Any, batch: int) -> float:
    """Of one decode step after a short prompt: the median of nine times twenty replays of its graph."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=CACHE_LENGTH)
    ids = torch.ones(batch, PROMPT_LENGTH, dtype=torch.long, device="cuda")
    position = torch.tensor([PROMPT_LENGTH], device="cuda")
    model(
        input_ids=ids,
        past_key_values=cache,
        use_cache=True,
        cache_position=torch.arange(PROMPT_LENGTH, device="cuda"),
    )

    def step() -> Any:
        return model(
            input_ids=ids[:, :1], past_key_values=cache, use_cache=True, cache_position=position,
            position_ids=position.expand(batch, 1),
        ).logits  # fmt: skip

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    times: list[float] = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(20):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 20 / 1e3)
    return batch / median(times)


def main() -> None:
    """Times both and prints them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("bundle")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    model = build(options.config)
    table = gemmtune.load(options.bundle)
    with torch.no_grad():
        before = tokens_per_second(model, options.batch)
        gc.collect()
        with gemmtune.torch.apply(model, table, fuse=True), gemmtune.torch.report() as count:
            after = tokens_per_second(model, options.batch)
            memory = count.report().memory
        gc.collect()
        before = max(
            before, tokens_per_second(model, options.batch)
        )  # the better of two, so as not to flatter
    print(count.report())
    print(f"torch {before:.1f} tokens/s, gemmtune {after:.1f} tokens/s: {after / before:.3f}x")
    if options.json:
        figures = {"torch": before, "gemmtune": after, "memory_bytes": memory.total}
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
