"""How far one token's products can go: what a launch that reads the weights, and does nothing else, takes.

Every weight is read by kernels of many grids, block sizes, loads in flight and with or without the first ones
ahead of the launch's turn; the fastest is timed as candidates are, in a graph over cold operands, beside the
default. A product that multiplies what it reads takes longer, whatever it does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import product as combinations
from typing import Any

from backends.cuda.driver import on_heels
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.registry import FoundDevice, backend
from benchmarks.cuda_floor import seconds
from benchmarks.cuda_tuned import kernel_cache, say
from benchmarks.report import geometric_mean
from tuners.ceilings import Ceilings
from tuners.measure import OperandSets
from tuners.policy import MeasurementPolicy
from tuners.roofline import bound

_THREADS, _IN_FLIGHT, _AHEAD = (128, 256, 512), (1, 2, 4, 8), (0, 1)
#: Blocks a multiprocessor; None: as many as have no second turn.
_BLOCKS = (1, 2, 4, 8, 16, None)
#: Samples of every kernel, and how many of the fastest are timed again.
_FIRST, _AGAIN = 3, 4


def reading(
    found: FoundDevice, shapes: Sequence[tuple[str, GemmProblem]], ceilings: Ceilings
) -> dict[str, Any]:
    """The limits of named products of one column."""
    device = backend(found.backend).open(found.index, kernel_cache())
    rows = [_one(name, problem, device, ceilings, found) for name, problem in shapes]
    return {
        "what": "the least time of a launch that reads the weights and does nothing else, beside the default's",
        "limit_geometric_mean": geometric_mean([row["limit"] for row in rows]), "rows": rows,
    }  # fmt: skip


def _one(
    name: str, problem: GemmProblem, device: Any, ceilings: Ceilings, found: FoundDevice
) -> dict[str, Any]:
    sets = OperandSets(device, problem, MeasurementPolicy.of(found.environment.vendor), 0)
    sink = device.allocate(16)
    words = layouts(problem)["a"].bytes // 16
    weights = [operands.a for operands in sets.sets]
    tried = [
        (seconds(device, launches, _FIRST), index, launches, how)
        for index, (launches, how) in enumerate(_kernels(device, weights, words, sink.address))
    ]
    best = min((seconds(device, launches), how) for _, _, launches, how in sorted(tried)[:_AGAIN])
    baseline = backend(found.backend).baselines(problem, found.environment)[0]
    default = device.load(problem, baseline.solution, None)
    space = device.allocate(max(default.workspace_bytes, 1))
    theirs = seconds(device, [default.bind(operands, space.address) for operands in sets.sets])
    for held in (sets, sink, space):
        held.free()
    row = {
        "name": name, "m": problem.n, "n": problem.m, "k": problem.k, "baseline": baseline.name,
        "default_us": theirs * 1e6, "reading_us": best[0] * 1e6, "kernel": best[1],
        "bound_us": bound(problem, ceilings).seconds * 1e6, "limit": theirs / best[0], "tried": len(tried),
    }  # fmt: skip
    say(f"{name}: {row['default_us']:.2f} us; reading alone {row['reading_us']:.2f} us ({best[1]})")
    return row


def _kernels(
    device: Any, weights: Sequence[int], words: int, sink: int
) -> Iterator[tuple[list[Launch | None], str]]:
    """(a launch for every operand set, the kernel in words)"""
    for threads, in_flight, ahead in combinations(_THREADS, _IN_FLIGHT, _AHEAD):
        defines = {"IN_FLIGHT": str(in_flight), "AHEAD": str(ahead)}
        function = device.function("bandwidth.cu", "read_words", defines)
        once = -(-words // (threads * in_flight))
        for blocks in dict.fromkeys(min(once, (each or once) * device.units) for each in _BLOCKS):
            launches: list[Launch | None] = []
            for address in weights:
                arguments = function.pack(
                    ctypes.c_void_p(address), ctypes.c_uint64(words), ctypes.c_void_p(sink)
                )
                launches.append(on_heels(function, device, (blocks, 1, 1), (threads, 1, 1), arguments))
            said = f"{blocks} blocks of {threads} threads, {in_flight} loads each{', ahead' * ahead}"
            yield launches, said
