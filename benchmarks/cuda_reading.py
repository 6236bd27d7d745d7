"""How far products can go: what a launch that moves their operands, and does nothing else, takes.

Reading: one token's weights, by kernels of many grids, block sizes, loads in flight and with or without the first
ones ahead of the launch's turn; the fastest is timed as candidates are, in a graph over cold operands, beside the
default, and once more with a word that every block stores at its end. Moving: A and B are read once, and all of D is
written, by kernels of as many kinds, with most of D stored before what was read is there or behind it. A product that
multiplies what it reads takes longer, whatever it does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
#: Samples of every kernel, how many of the fastest are timed again, and by how many samples.
FIRST, AGAIN, LAST = 3, 4, 9


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


def moving(
    found: FoundDevice, shapes: Sequence[tuple[str, GemmProblem]], ceilings: Ceilings
) -> dict[str, Any]:
    """The limits of named products of two operands: the longer of moving and of multiplying."""
    device = backend(found.backend).open(found.index, kernel_cache())
    rows = [_moved(name, problem, device, ceilings, found) for name, problem in shapes]
    return {
        "what": "the least time of a launch that reads A and B, writes D and does nothing else, beside the default's",
        "limit_geometric_mean": geometric_mean([row["limit"] for row in rows]), "rows": rows,
    }  # fmt: skip


@dataclass(frozen=True, order=True)
class _Reader:
    """A kernel that reads, and its grid."""

    threads: int
    in_flight: int
    ahead: int
    blocks: int

    def __str__(self) -> str:
        ahead = ", ahead" if self.ahead else ""
        return f"{self.blocks} blocks of {self.threads} threads, {self.in_flight} loads each{ahead}"


@dataclass(frozen=True, order=True)
class _Mover(_Reader):
    """One that stores, too; `early`: most of it while its first loads are on their way."""

    early: int = 0

    def __str__(self) -> str:
        return super().__str__() + (", storing early" if self.early else "")


def _one(
    name: str, problem: GemmProblem, device: Any, ceilings: Ceilings, found: FoundDevice
) -> dict[str, Any]:
    sets = OperandSets(device, problem, MeasurementPolicy.of(found.environment.vendor), 0)
    words = layouts(problem)["a"].bytes // 16
    weights = [operands.a for operands in sets.sets]
    readers = list(_readers(words, device.units))
    sink = device.allocate(4 * max(reader.blocks for reader in readers))

    def timed(reader: _Reader, store: int, samples: int) -> float:
        launches = _launches(device, reader, store, weights, words, sink.address)
        return seconds(device, launches, samples)

    tried = sorted((timed(reader, 0, FIRST), reader) for reader in readers)
    best, reader = min((timed(reader, 0, LAST), reader) for _, reader in tried[:AGAIN])
    storing = min(timed(reader, 1, LAST) for _, reader in tried[:AGAIN])
    baseline = backend(found.backend).baselines(problem, found.environment)[0]
    default = device.load(problem, baseline.solution, None)
    space = device.allocate(max(default.workspace_bytes, 1))
    theirs = seconds(device, [default.bind(operands, space.address) for operands in sets.sets])
    for held in (sets, sink, space):
        held.free()
    row = {
        "name": name, "m": problem.n, "n": problem.m, "k": problem.k, "baseline": baseline.name,
        "default_us": theirs * 1e6, "reading_us": best * 1e6, "storing_us": storing * 1e6, "kernel": str(reader),
        "bound_us": bound(problem, ceilings).seconds * 1e6, "limit": theirs / best, "tried": len(tried),
    }  # fmt: skip
    say(
        f"{name}: {row['default_us']:.2f} us; reading alone {row['reading_us']:.2f} us, and storing "
        f"{row['storing_us']:.2f} us ({reader})"
    )
    return row


def _moved(
    name: str, problem: GemmProblem, device: Any, ceilings: Ceilings, found: FoundDevice
) -> dict[str, Any]:
    sets = OperandSets(device, problem, MeasurementPolicy.of(found.environment.vendor), 0)
    words = {which: layout.bytes // 16 for which, layout in layouts(problem).items()}
    movers = list(_movers(words["a"] + words["b"], words["d"], device.units))

    def timed(mover: _Mover, samples: int) -> float:
        defines = {name: str(getattr(mover, name.lower())) for name in ("IN_FLIGHT", "AHEAD", "EARLY")}
        function = device.function("bandwidth.cu", "move_words", defines)
        launches: list[Launch | None] = []
        for one in sets.sets:
            sizes = zip((one.a, one.b, one.d), ("a", "b", "d"), strict=True)
            packed = function.pack(
                *(
                    part
                    for at, which in sizes
                    for part in (ctypes.c_void_p(at), ctypes.c_uint64(words[which]))
                )
            )
            launches.append(on_heels(function, device, (mover.blocks, 1, 1), (mover.threads, 1, 1), packed))
        return seconds(device, launches, samples)

    tried = sorted((timed(mover, FIRST), mover) for mover in movers)
    best, mover = min((timed(mover, LAST), mover) for _, mover in tried[:AGAIN])
    baseline = backend(found.backend).baselines(problem, found.environment)[0]
    default = device.load(problem, baseline.solution, None)
    space = device.allocate(max(default.workspace_bytes, 1))
    theirs = seconds(device, [default.bind(operands, space.address) for operands in sets.sets])
    for held in (sets, space):
        held.free()
    limits = bound(problem, ceilings)
    row = {
        "name": name, "m": problem.n, "n": problem.m, "k": problem.k, "baseline": baseline.name,
        "default_us": theirs * 1e6, "moving_us": best * 1e6, "multiplying_us": limits.compute_seconds * 1e6,
        "kernel": str(mover), "limit": theirs / max(best, limits.compute_seconds), "tried": len(tried),
    }  # fmt: skip
    say(f"{name}: {row['default_us']:.2f} us; moving {row['moving_us']:.2f} us ({mover})")
    return row


def _readers(words: int, units: int) -> Iterator[_Reader]:
    for threads, in_flight, ahead in combinations(_THREADS, _IN_FLIGHT, _AHEAD):
        once = -(-words // (threads * in_flight))
        for blocks in dict.fromkeys(min(once, (each or once) * units) for each in _BLOCKS):
            yield _Reader(threads, in_flight, ahead, blocks)


def _movers(read: int, written: int, units: int) -> Iterator[_Mover]:
    """Grids of which no block has neither a word to read nor one to write."""
    for one, early in combinations(_readers(max(read, written), units), (0, 1)):
        yield _Mover(one.threads, one.in_flight, one.ahead, one.blocks, early)


def _launches(
    device: Any, reader: _Reader, store: int, weights: Sequence[int], words: int, sink: int
) -> list[Launch | None]:
    """One for every operand set."""
    defines = {"IN_FLIGHT": str(reader.in_flight), "AHEAD": str(reader.ahead), "STORE": str(store)}
    function = device.function("bandwidth.cu", "read_words", defines)
    grid, block = (reader.blocks, 1, 1), (reader.threads, 1, 1)
    found: list[Launch | None] = []
    for address in weights:
        packed = function.pack(ctypes.c_void_p(address), ctypes.c_uint64(words), ctypes.c_void_p(sink))
        found.append(on_heels(function, device, grid, block, packed))
    return found
