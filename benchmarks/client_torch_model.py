"""One decode step of a transformers model by torch and by the rows of a bundle. No service is needed.

    python -m benchmarks.client_torch_model BUNDLE [--model llama-3-8b qwen3-14b] [--batch 1 8] [--compile default]
    python -m benchmarks.client_torch_model --record problems.jsonl --model mixtral-4-layers --batch 8

Random bf16 weights, a StaticCache, one decode step captured in a CUDA graph; replays are timed by events. Ways:
torch, apply(), apply(fuse=True), enable() and torch again; with --compile also torch.compile in each of the named
modes, by itself, under apply() and under apply(fuse=True). Experts of a mixture are grouped products, which enable()
serves; such models also run with use_moe(), by itself and under enable(). --record writes the problems of the steps instead, for `gemmtune tune`.
Ways are timed one after another, each with a graph of its own: fused weights lie elsewhere, and a graph must
not outlive what it reads. Logits are compared with those of the same weights in fp32 (--no-fp32 leaves that
out: it takes twice the model's memory). `--model tiny` on a CPU tries the script, without graphs.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import gemmtune
import gemmtune.torch
import torch

from benchmarks.client_torch import wait
from benchmarks.cuda_tuned import machine, say
from benchmarks.report import RESULTS, write

#: The shapes of the published configurations; name -> (class of the configuration, its arguments).
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-3-8b": ("LlamaConfig", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    }),
    "qwen3-14b": ("Qwen3Config", {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6,
    }),
    "qwen3-30b-a3b-8-layers": ("Qwen3MoeConfig", {
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 8,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "vocab_size": 151936, "rms_norm_eps": 1e-6, "norm_topk_prob": True,
    }),
    "mixtral-4-layers": ("MixtralConfig", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
        "rms_norm_eps": 1e-5,
    }),
    "tiny-mixture": ("MixtralConfig", {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 128,
    }),
    "tiny": ("LlamaConfig", {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128,
    }),
}  # fmt: skip
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")
#: Tokens in the cache before the step, and the cache's length.
_FILLED, _LENGTH = 32, 256
_REPLAYS, _ROUNDS = 20, 9
#: Prompts whose logits are compared with fp32.
_PROMPTS = 5


def library() -> Any:
    """transformers, which only this benchmark needs. Raises SystemExit without it."""
    try:
        return import_module("transformers")
    except ImportError:
        sys.exit("transformers is not installed: pip install transformers")


def build(name: str, device: Any) -> Any:
    """A model with random weights in bf16."""
    transformers = library()
    kind, arguments = MODELS[name]
    config = getattr(transformers, kind)(max_position_embeddings=4096, **arguments)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    return model.to(torch.bfloat16).eval().requires_grad_(False)


class Step:
    """Decode steps after a prompt: each call is the next one, of the same tokens. Its inputs live as long as
    it does, as a graph needs."""

    def __init__(
        self,
        model: Any,
        batch: int,
        device: Any,
        call: Callable[..., Any] | None = None,
        prompt_seed: int = 0,
    ) -> None:
        torch.manual_seed(batch * _PROMPTS + prompt_seed)
        self._call = model if call is None else call
        self.cache = library().StaticCache(config=model.config, max_cache_len=_LENGTH)
        vocabulary = model.config.vocab_size
        prompt = torch.randint(0, vocabulary, (batch, _FILLED), device=device)
        self.ids = torch.randint(0, vocabulary, (batch, 1), device=device)
        self.position = torch.tensor([_FILLED], device=device)
        model(input_ids=prompt, past_key_values=self.cache, use_cache=True,
              cache_position=torch.arange(_FILLED, device=device))  # fmt: skip

    def __call__(self) -> Any:
        """The logits [batch, vocabulary]."""
        found = self._call(
            input_ids=self.ids, past_key_values=self.cache, use_cache=True, cache_position=self.position,
            position_ids=self.position.expand(self.ids.shape[0], 1),
        )  # fmt: skip
        return found.logits[:, -1]


def milliseconds(step: Step, device: Any) -> float:
    """Median time of a step: replays of a graph on a GPU, calls on a CPU."""
    if device.type == "cpu":
        step()
        times = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e3)
        return median(times)
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
    wait(device)
    times = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(_REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / _REPLAYS)
    return median(times)


@contextmanager
def compiled(model: Any, mode: str) -> Iterator[Callable[..., Any]]:
    """The model under torch.compile in one of its modes."""
    torch._dynamo.reset()
    try:
        yield torch.compile(model, mode=mode)
    finally:
        torch._dynamo.reset()


@contextmanager
def enabled(table: Any) -> Iterator[Any]:
    """enable(), with every kernel loaded: a graph captures any of them at its first call."""
    with gemmtune.torch.enable(table) as handle:
        handle.load()
        yield handle


@contextmanager
def whole_layers(model: Any, table: Any | None) -> Iterator[Any]:
    """use_moe(), under enable() if there is a table."""
    with gemmtune.torch.use_moe(model), nullcontext() if table is None else enabled(table) as handle:
        yield handle


def has_experts(model: Any) -> bool:
    """Whether use_moe() takes the model."""
    try:
        gemmtune.torch.use_moe(model).restore()
    except gemmtune.torch.ServingError:
        return False
    return True


def recorded(names: Sequence[str], batches: Sequence[int], device: Any) -> Any:
    """The products of a decode step of each model at each batch size."""
    recording = gemmtune.torch.record(device.type)
    for name in names:
        model = build(name, device)
        for batch in batches:
            step = Step(model, batch, device)
            with recording, torch.no_grad():
                step()
    return recording


def logits_of(model: Any, batch: int, device: Any, call: Callable[..., Any] | None = None) -> list[Any]:
    """The logits of the first step after each of the prompts, in fp32."""
    return [Step(model, batch, device, call, seed)().float() for seed in range(_PROMPTS)]


def distance(logits: Sequence[Any], exact: Sequence[Any] | None) -> dict[str, float] | None:
    """How far logits are from those in fp32: the largest difference, and the root mean square of all, over
    that of the logits; the largest of the prompts."""
    if exact is None:
        return None
    off = [one - other for one, other in zip(logits, exact, strict=True)]
    return {
        "most": max(float(one.abs().max()) for one in off),
        "rms": max(
            float(one.square().mean().sqrt() / other.square().mean().sqrt())
            for one, other in zip(off, exact, strict=True)
        ),
    }


def in_fp32(model: Any, batches: Sequence[int], device: Any) -> dict[int, list[Any]]:
    """The logits of every batch with the same weights in fp32."""
    exact_model = copy.deepcopy(model).float()
    found = {batch: logits_of(exact_model, batch, device) for batch in batches}
    del exact_model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def outside_torch(device: Any) -> int:
    """Bytes of the device that are in use and not of torch's allocator; 0 on a CPU."""
    if device.type == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def measured(name: str, table: Any, device: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every batch: times and distances of each way."""
    model = build(name, device)
    found = []
    ways: list[tuple[str, Callable[[], AbstractContextManager[Any]], str | None]] = [
        ("torch", nullcontext, None),
        ("apply", lambda: gemmtune.torch.apply(model, table), None),
        ("apply, fused", lambda: gemmtune.torch.apply(model, table, fuse=True), None),
        ("enable", lambda: enabled(table), None),
        ("torch again", nullcontext, None),
    ]
    if has_experts(model):
        ways[-1:-1] = [
            ("use_moe", lambda: whole_layers(model, None), None),
            ("enable, use_moe", lambda: whole_layers(model, table), None),
        ]
    for mode in options.compile:
        ways += [
            (f"torch.compile, {mode}", nullcontext, mode),
            (f"torch.compile, {mode}, apply", lambda: gemmtune.torch.apply(model, table), mode),
            (f"torch.compile, {mode}, fused", lambda: gemmtune.torch.apply(model, table, fuse=True), mode),
        ]
    with torch.no_grad():
        exact = {} if options.no_fp32 else in_fp32(model, options.batch, device)
        for batch in options.batch:
            values: dict[str, Any] = {"model": name, "batch": batch}
            for way, used, mode in ways:
                before = outside_torch(device)
                with used() as handle, gemmtune.torch.report() as count:
                    if mode is not None:
                        with compiled(model, mode) as call:
                            taken = milliseconds(Step(model, batch, device, call), device)
                            logits = [] if options.no_fp32 else logits_of(model, batch, device, call)
                    else:
                        taken = milliseconds(Step(model, batch, device), device)
                        logits = [] if options.no_fp32 else logits_of(model, batch, device)
                    held, taken_outside = count.report().memory, outside_torch(device) - before
                values[way] = {"milliseconds": taken, "to_fp32": distance(logits, exact.get(batch))}
                if handle is not None:
                    lines = [line for line in count.report().lines if line.hit and line.m == batch]
                    if isinstance(handle, gemmtune.torch.Applied):
                        values[way] |= {"modules": handle.modules, "fused": handle.fused}
                    values[way] |= {
                        "memory_bytes": {
                            "binaries": held.modules, "workspaces": held.workspaces,
                            "argument_blocks": held.argument_blocks, "device": taken_outside,
                        },
                        "hits": [[line.n, line.k, line.speedup] for line in lines],
                    }  # fmt: skip
                gc.collect()
                say(f"{name} batch {batch:3} {way:48} {taken:8.3f} ms")
            base = min(values[one]["milliseconds"] for one in ("torch", "torch again"))
            for way, _, _ in ways:
                values[way]["speedup"] = base / values[way]["milliseconds"]
            found.append(values)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("--record", type=Path, help="write the products of the steps as problems, and end")
    parser.add_argument("--model", nargs="+", choices=tuple(MODELS), default=["llama-3-8b", "qwen3-14b"])
    parser.add_argument("--batch", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument(
        "--compile", nargs="+", choices=COMPILE_MODES, default=[], help="torch.compile too, in these modes"
    )
    parser.add_argument("--no-fp32", action="store_true", help="no logits in fp32 to compare with")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    if options.record is not None:
        found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        count = recorded(options.model, options.batch, found).write(options.record)
        say(f"{count} problems: {options.record}")
        return
    if options.bundle is None:
        parser.error("give a bundle, or --record FILE")
    table = gemmtune.load(options.bundle)
    vendor = table.device.vendor
    device = torch.device("cpu") if vendor == "cpu" else torch.device("cuda", 0)
    rows = []
    for name in options.model:
        rows += measured(name, table, device, options)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    figures = {
        "what": "one decode step in a CUDA graph; speedup: the faster of torch's two times over each way's",
        "bundle": table.digest, "torch": str(torch.__version__), "transformers": library().__version__,
        "filled": _FILLED, "cache": _LENGTH, "rows": rows,
    }  # fmt: skip
    write("client-torch-model", machine(vendor, 1)[0].environment, figures, options.output)


if __name__ == "__main__":
    main()
