"""How far padding can go: what copying misaligned operands costs by itself, beside a product at its bound.

For every misaligned shape of a list: the copies in, the copy of D back, the fastest of cuBLASLt's products
of the copies, and the default's call, each timed by itself in a graph over cold operands (of copies in each launch's
blocks are placed as the one before ends, as a product's are). A padded product takes at least the copies in and the
product's bound, whatever multiplies and stores D where it belongs; by cuBLASLt, about as long as all three. And with
whatever copies: each of its launches takes at least what a launch takes that copies 16 bytes, and what it
moves takes at least as long as the memory's measured speed of copying says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from backends.cuda.driver import on_heels
from backends.cuda.padded import PaddedCublasLt, copied, misaligned, padded_twin
from backends.errors import IllegalSolution, LaunchError
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.protocol import Device, Launch
from backends.registry import FoundDevice, backend
from benchmarks.cuda_tuned import kernel_cache, say
from benchmarks.report import geometric_mean
from tuners.ceilings import Ceilings
from tuners.measure import OperandSets
from tuners.policy import MeasurementPolicy
from tuners.roofline import bound

_SAMPLES, _FIRST = 9, 3
#: Listed candidates that are looked through for the fastest product.
_PRODUCTS = 192


class _Step:
    """A launch of a padded product by itself."""

    workspace_bytes = 0
    partial_sums = 1

    def bind(self, operands: object, workspace: int) -> Launch:
        raise RuntimeError("its launches are bound already")

    def prepare(self) -> None:
        """Nothing."""


def floor(
    found: FoundDevice, shapes: Sequence[tuple[str, GemmProblem]], ceilings: Ceilings
) -> dict[str, Any]:
    """The limits of padding over named problems (those that are aligned are left out)."""
    device = backend(found.backend).open(found.index, kernel_cache())
    rows = [_one(name, p, device, ceilings, found) for name, p in shapes if misaligned(p)]
    return {
        "what": "least time of a padded product: its inputs' copies by themselves and the product at its bound",
        "limit_geometric_mean": geometric_mean([row["limit"] for row in rows]),
        "ideal_geometric_mean": geometric_mean([row["ideal_limit"] for row in rows]), "rows": rows,
    }  # fmt: skip


def _one(
    name: str, problem: GemmProblem, device: Device, ceilings: Ceilings, found: FoundDevice
) -> dict[str, Any]:
    family = PaddedCublasLt()
    policy = MeasurementPolicy.of(found.environment.vendor)
    sets = OperandSets(device, problem, policy, 0)
    solution = next(s for s in family.listed(problem, device, None) if s.parameters["pad"] == "all")
    kernel = family.load(problem, solution, None, device)
    workspace = device.allocate(kernel.workspace_bytes)
    steps = [kernel.steps(operands, workspace.address) for operands in sets.sets]
    into, back = (seconds(device, [one[part] for one in steps]) for part in ("into", "back"))
    product = _product(device, problem, sets)
    baseline = backend(found.backend).baselines(problem, found.environment)[0]
    default = device.load(problem, baseline.solution, None)
    space = device.allocate(max(default.workspace_bytes, 64))
    theirs = seconds(device, [default.bind(operands, space.address) for operands in sets.sets])
    least, launch = bound(problem, ceilings).seconds, seconds(device, _least_launches(device, space.address))
    names = copied(problem, "all")
    ideal = max(least, launch)
    for part in ([name for name in names if name != "d"], [name for name in names if name == "d"]):
        moving = _moved(problem, part) / ceilings.copy_bytes_per_second
        ideal += max(moving, launch) if part else 0.0
    for held in (sets, workspace, space):
        held.free()
    row = {
        "name": name, "m": problem.n, "n": problem.m, "k": problem.k, "baseline": baseline.name,
        "default_us": theirs * 1e6, "copies_in_us": into * 1e6, "copy_back_us": back * 1e6,
        "product_bound_us": least * 1e6, "limit": theirs / (into + least),
        "product_us": product * 1e6, "library_limit": theirs / (into + back + product),
        "launch_us": launch * 1e6, "ideal_us": ideal * 1e6, "ideal_limit": theirs / ideal,
    }  # fmt: skip
    say(f"{name}: {row['default_us']:.1f} us; padded at least {(into + least) * 1e6:.1f} us")
    say(f"{name}: by cuBLASLt about {(into + back + product) * 1e6:.1f} us")
    return row


def _moved(problem: GemmProblem, names: Iterable[str]) -> int:
    """Bytes that copying these operands reads and writes."""
    own, ours = layouts(problem), layouts(padded_twin(problem, "all"))
    return sum(own[name].bytes + ours[name].bytes for name in names)


def _least_launches(device: Any, address: int) -> list[Launch]:
    """Launches that copy 16 bytes, at `address`."""
    function = device.function("bandwidth.cu", "copy_words", {})
    source, target = ctypes.c_void_p(address), ctypes.c_void_p(address + 32)
    packed = function.pack(source, target, ctypes.c_uint64(1))
    return [on_heels(function, device, (1, 1, 1), (32, 1, 1), packed)] * 2


def _product(device: Device, problem: GemmProblem, sets: OperandSets) -> float:
    """Median seconds of the fastest of what cuBLASLt lists for the copies, by itself."""
    family, found = PaddedCublasLt(), []
    for solution in islice(family.listed(problem, device, None), _PRODUCTS):
        if solution.parameters["pad"] != "all":
            continue
        try:
            kernel = family.load(problem, solution, None, device)
        except (IllegalSolution, LaunchError):  # as in a search
            continue
        workspace = device.allocate(kernel.workspace_bytes)
        steps = [kernel.steps(operands, workspace.address) for operands in sets.sets]
        if (into := steps[0]["into"]) is not None:
            into()  # numbers to multiply
        found.append(seconds(device, [one["product"] for one in steps], _FIRST))
        workspace.free()
    return min(found)


def seconds(device: Device, launches: Sequence[Launch | None], samples: int = _SAMPLES) -> float:
    """Median seconds a launch, by graphs of them; 0 where there is nothing to launch."""
    some = [launch for launch in launches if launch is not None]
    if not some:
        return 0.0
    some *= max(1, 64 // len(some))
    series = device.series(_Step(), some, "graph", some[-1])
    times = sorted(series.sample().seconds for _ in range(samples))
    series.close()
    return times[len(times) // 2]
