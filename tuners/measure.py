"""Timing a candidate: rotating operand sets, enough launches a sample, disturbed samples set aside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from backends.errors import DeviceMemoryExceeded
from backends.operands import Operands, layouts, operand_bytes
from backends.problem import GemmProblem
from backends.protocol import Buffer, Device, Kernel, Launch, Sample
from tuners.inputs import draw
from tuners.policy import MeasurementPolicy

#: Cold rotation exceeds this many last-level caches, within MAX_SETS operand sets.
COLD_CACHES = 3
MAX_SETS = 128
#: A sample runs at least this long where one launch is shorter; its clock costs some 100 ns.
SAMPLE_SECONDS = 1e-3
MAX_LAUNCHES = 4096
#: Longer launches are not warmed up: waking threads is noise of a millionth to them.
WARM_BELOW_SECONDS = 10e-3
#: Random elements drawn once a type; operands are filled from it at random offsets.
_POOL = 2**20
_ALIGN = 64


def working_bytes(problem: GemmProblem) -> int:
    """Bytes that measuring one problem needs besides rotation: one set, the verifier's image and buffers,
    and the float64 reference with its temporaries."""
    shape = layouts(problem)
    wide = sum(8 * layout.copies * layout.columns * layout.rows for layout in shape.values())
    outputs = 8 * problem.batch * problem.m * problem.n
    return 4 * operand_bytes(problem) + wide + 4 * outputs


@dataclass(frozen=True)
class Rotation:
    """How cold a measurement was: operand sets in rotation, the bytes they span, and whether that exceeds
    the caches by COLD_CACHES."""

    sets: int
    bytes: int
    cold: bool


class OperandSets:
    """The operand sets that timed launches rotate among, filled with random values."""

    def __init__(self, device: Device, problem: GemmProblem, policy: MeasurementPolicy, seed: int) -> None:
        allowed = policy.memory_share * device.free_bytes
        needed = working_bytes(problem)
        if needed > allowed:
            raise DeviceMemoryExceeded(
                f"{problem.slug} needs about {needed / 2**20:,.0f} MiB to run and verify; "
                f"{policy.memory_share:.0%} of the free memory is {allowed / 2**20:,.0f} MiB "
                "(free some, make the problem smaller, or raise memory_share)"
            )
        shape = layouts(problem)
        places, end = {}, 0
        for name, layout in shape.items():
            places[name] = end
            end += ceil(layout.bytes / _ALIGN) * _ALIGN + _ALIGN
        count = 1
        if policy.cache == "cold":
            count = min(MAX_SETS, ceil(COLD_CACHES * device.cache_bytes / end) + 1)
            count = max(1, min(count, int((allowed - needed) // end)))
        self.rotation = Rotation(count, count * end, count * end >= COLD_CACHES * device.cache_bytes)
        self._buffer = device.allocate(count * end)
        self._turn = 0
        rng = np.random.default_rng(seed)
        pools: dict[str, npt.NDArray[np.uint8]] = {}
        self.sets = []
        for index in range(count):
            at = {name: index * end + place for name, place in places.items()}
            for name, layout in shape.items():
                kind = layout.dtype
                if kind.name not in pools:
                    pools[kind.name] = draw(rng, _POOL, kind, policy.distribution).view(np.uint8)
                _fill(self._buffer, at[name], layout.bytes, pools[kind.name], kind.bytes, rng)
            address = {name: self._buffer.address + place for name, place in at.items()}
            alpha, beta = problem.scalars
            self.sets.append(
                Operands(
                    address["a"],
                    address["b"],
                    address.get("c", 0),
                    address["d"],
                    address.get("bias", 0),
                    alpha,
                    beta,
                )
            )

    def free(self) -> None:
        """Gives the memory back."""
        self._buffer.free()

    def launches(self, bound: list[Launch], count: int) -> list[Launch]:
        """`count` launches, going on round the sets where the last sample stopped."""
        start, self._turn = self._turn, (self._turn + count) % len(bound)
        return [bound[(start + i) % len(bound)] for i in range(count)]


def _fill(
    buffer: Buffer,
    offset: int,
    size: int,
    pool: npt.NDArray[np.uint8],
    element: int,
    rng: np.random.Generator,
) -> None:
    done = 0
    while done < size:
        start = int(rng.integers(0, _POOL // 2)) * element
        part = pool[start : start + min(pool.size - start, size - done)]
        buffer.upload(part, offset + done)
        done += part.size


@dataclass
class Timer:
    """A loaded candidate bound to every operand set."""

    device: Device
    kernel: Kernel
    operands: OperandSets
    bound: list[Launch]
    mode: str
    seconds: float = 0.0

    @classmethod
    def of(
        cls,
        device: Device,
        kernel: Kernel,
        operands: OperandSets,
        mode: str,
        workspace: Callable[[int], int],
    ) -> Timer:
        """Binds the kernel; `workspace(bytes)` gives the address of enough device memory."""
        address = workspace(kernel.workspace_bytes)
        return cls(device, kernel, operands, [kernel.bind(o, address) for o in operands.sets], mode)

    def sample(self, warm: bool = True) -> Sample:
        """One sample of as many launches as fill SAMPLE_SECONDS; the first call sizes it. `warm` False: the
        same candidate ran a moment ago."""
        if not self.seconds:
            self.seconds = self._run(1, warm=True).seconds
            if self.seconds < SAMPLE_SECONDS / 10:  # one launch alone says little of a short one
                self.seconds = self._run(10, warm=False).seconds
        count = max(1, min(MAX_LAUNCHES, ceil(SAMPLE_SECONDS / max(self.seconds, 1e-9))))
        return self._run(count, warm and self.seconds < WARM_BELOW_SECONDS)

    def _run(self, count: int, warm: bool) -> Sample:
        launches = self.operands.launches(self.bound, count + 1)
        # The warm-up runs on the set before the timed ones, which stay as cold as the rotation makes them.
        return self.device.sample(self.kernel, launches[1:], self.mode, launches[0] if warm else None)
