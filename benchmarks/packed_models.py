"""Models whose quantised weights are packed at load: the problems that they record, and what packing takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import gemmtune.torch
import torch

from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from benchmarks.client_torch import wait
from benchmarks.client_torch_model import Step
from benchmarks.cuda_tuned import say


def recorded(model: Any, batches: Sequence[int], device: Any, group: int) -> list[GemmProblem]:
    """Quantises the model in groups of `group` elements of k. The products by quantised weights that
    record(prepacked=True, fuse=True) sees in a decode step at each batch; each is followed by the same of weights
    as they are stored."""
    gemmtune.torch.quantize_model(model, group_size=group)
    found: dict[GemmProblem, None] = {}
    for batch in batches:
        with torch.no_grad():
            step = Step(model, batch, device)  # its prompt is no part of a decode step
            with gemmtune.torch.record(device.type, model=model, fuse=True, prepacked=True) as recording:
                step()
        for wire in recording.problems():
            if wire.get("prepacked"):
                problem = problem_from_wire({name: value for name, value in wire.items() if name != "count"})
                found |= {problem: None, replace(problem, prepacked=False): None}
    return list(found)


@contextmanager
def packed(
    model: Any, applied: Callable[[], AbstractContextManager[Any]], device: Any, said: dict[str, Any]
) -> Iterator[Any]:
    """What `applied` returns, with packed copies of the model's weights. `said` gets the seconds of packing all, the bytes of
    the copies, and the number of modules that have one."""
    modules = [one for one in model.modules() if isinstance(one, gemmtune.torch.QuantizedLinear)]
    with applied() as handle:
        try:
            seconds, names = seconds_of(device, lambda: gemmtune.torch.prepack_model(model))
            said |= {"seconds": seconds, "bytes": handle.packed_bytes, "modules": len(names)}
            say(f"packed {len(names)} modules, {handle.packed_bytes / 2**20:.1f} MiB, in {seconds:.3f} s")
            yield handle
        finally:
            for one in modules:
                one.drop_packed()


def seconds_of(device: Any, run: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call took with what it queued on the device, and what it returned."""
    wait(device)
    begin = time.perf_counter()
    found = run()
    wait(device)
    return time.perf_counter() - begin, found
