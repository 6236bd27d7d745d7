"""Timing a candidate: rotating operand sets, enough launches a sample, disturbed samples set aside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import numpy.typing as npt

from backends.errors import DeviceMemoryExceeded
from backends.operands import Layout, Operands, layouts, operand_bytes
from backends.problem import GemmProblem
from backends.protocol import Buffer, Device, Kernel, Launch, Sample, Series
from tuners.inputs import draw
from tuners.policy import MeasurementPolicy

#: Cold rotation exceeds this many last-level caches, within MAX_SETS operand sets.
COLD_CACHES = 3
MAX_SETS = 128
#: A sample in a final runs at least this long.
SAMPLE_SECONDS = 1e-3
#: A launch shorter than this is sized by several (MeasurementTraits.sizing_launches).
SIZED_BY_ONE = 1e-4
#: A sample goes once round all the sets where that takes at most so many times what it must last, or in a
#: screening MeasurementTraits.screening_round_seconds.
ROUND_SHARE = 4.0
MAX_LAUNCHES = 4096
#: Longer launches are not warmed up: waking threads is noise of a millionth to them.
WARM_BELOW_SECONDS = 10e-3
#: Random elements drawn once a type; operands are filled from it at random offsets.
_POOL = 2**20
#: What a GPU's allocator aligns to; vendors' heuristics ask.
_ALIGN = 256


def working_bytes(problem: GemmProblem, device_reference: bool) -> int:
    """Bytes that measuring one problem needs besides rotation: one set, the verifier's images and buffers,
    and the float64 reference with its temporaries; less with a device reference (verify_device.py)."""
    shape = layouts(problem)
    if device_reference:
        d = shape["d"].bytes
        inputs = sum(layout.bytes for layout in shape.values()) - d
        return 3 * inputs + 3 * d + 12 * problem.batch * problem.m * problem.n
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
        needed = working_bytes(problem, device.traits.device_reference)
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
            # An address is aligned to what the problem promises and no more: libraries look at it.
            askew = max(problem.alignment, layout.dtype.bytes) if problem.alignment < 16 else 0
            places[name] += askew
            end += ceil((layout.bytes + askew) / _ALIGN) * _ALIGN + _ALIGN
        count = 1
        if policy.cache == "cold":
            count = min(MAX_SETS, ceil(COLD_CACHES * device.cache_bytes / end) + 1)
            count = max(1, min(count, int((allowed - needed) // end)))
        self.rotation = Rotation(count, count * end, count * end >= COLD_CACHES * device.cache_bytes)
        self._buffer = device.allocate(count * end)
        self._turn = 0
        self.sets: list[Operands] = []
        try:
            self._fill(device, problem, policy, seed, places, end)
        except BaseException:
            self._buffer.free()
            raise

    def _fill(
        self,
        device: Device,
        problem: GemmProblem,
        policy: MeasurementPolicy,
        seed: int,
        places: dict[str, int],
        end: int,
    ) -> None:
        shape = layouts(problem)
        fill = _HostFill(self._buffer, policy, seed) if device.reference is None else None
        for index in range(self.rotation.sets):
            address = {name: self._buffer.address + index * end + place for name, place in places.items()}
            for turn, (name, layout) in enumerate(shape.items()):
                if fill is not None:
                    fill(index * end + places[name], layout)
                elif device.reference is not None:
                    kind = "scale" if name.startswith("scale_") else policy.distribution
                    own_seed = (seed << 16) + index * len(shape) + turn
                    device.reference.draw(layout, address[name], own_seed, kind)
            self.sets.append(Operands.at(address, problem.scalars))

    def free(self) -> None:
        """Gives the memory back."""
        self._buffer.free()

    def turns(self, count: int) -> list[int]:
        """The sets of the next `count` launches, going on round where the last ones stopped."""
        start, self._turn = self._turn, (self._turn + count) % len(self.sets)
        return [(start + i) % len(self.sets) for i in range(count)]


class _HostFill:
    """Fills operands by copies out of a pool of random elements, at random offsets."""

    def __init__(self, buffer: Buffer, policy: MeasurementPolicy, seed: int) -> None:
        self._buffer, self._distribution = buffer, policy.distribution
        self._rng = np.random.default_rng(seed)
        self._pools: dict[str, npt.NDArray[np.uint8]] = {}

    def __call__(self, offset: int, layout: Layout) -> None:
        kind = layout.dtype
        if kind.name not in self._pools:
            self._pools[kind.name] = draw(self._rng, _POOL, kind, self._distribution).view(np.uint8)
        pool, done = self._pools[kind.name], 0
        while done < layout.bytes:
            start = int(self._rng.integers(0, _POOL // 2)) * kind.bytes
            part = pool[start : start + min(pool.size - start, layout.bytes - done)]
            self._buffer.upload(part, offset + done)
            done += part.size


@dataclass
class Timer:
    """A loaded candidate, bound to an operand set when it first runs on it: most that a screening sees run on
    few."""

    device: Device
    kernel: Kernel
    operands: OperandSets
    workspace: int
    mode: str
    seconds: float = 0.0
    _bound: dict[int, Launch] = field(default_factory=dict)
    _series: dict[tuple[int, int], Series] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        device: Device,
        kernel: Kernel,
        operands: OperandSets,
        mode: str,
        workspace: Callable[[int], int],
    ) -> Timer:
        """`workspace(bytes)` gives the address of enough device memory."""
        return cls(device, kernel, operands, workspace(kernel.workspace_bytes), mode)

    def _launch(self, number: int) -> Launch:
        """The candidate on one of the operand sets."""
        if number not in self._bound:
            self._bound[number] = self.kernel.bind(self.operands.sets[number], self.workspace)
        return self._bound[number]

    def size(self, warm: bool = True) -> Sample:
        """Runs a few times one by one, and keeps how long a launch takes."""
        sized = self._once(1, warm)
        if sized.seconds < SIZED_BY_ONE:
            sized = self._once(self.device.traits.sizing_launches, warm=False)
        self.seconds = sized.seconds
        return sized

    def sample(self, warm: bool = True, screening: bool = False) -> Sample:
        """One sample of as many launches as its device needs for one; the first call sizes it. `warm` False:
        the same candidate ran a moment ago."""
        if not self.seconds:
            self.size()
        traits = self.device.traits
        wanted = traits.sample_seconds[0 if screening else 1]
        count = max(1, min(MAX_LAUNCHES, ceil(wanted / max(self.seconds, 1e-9))))
        sets, longest = len(self.operands.sets), ROUND_SHARE * wanted
        if screening and traits.screening_round_seconds is not None:
            longest = traits.screening_round_seconds
            if self.operands.rotation.cold:  # half of what exceeds three caches still exceeds one
                sets = ceil(sets / 2)
        if sets * self.seconds <= longest or count >= sets:
            count = ceil(count / sets) * sets
        warm = warm and self.seconds < WARM_BELOW_SECONDS
        if count < sets:  # so long a launch that the next sample is to go on with other sets
            return self._once(count, warm, self.mode)
        if (count, sets) not in self._series:
            # Whole rounds: repeating it stays as cold as the rotation makes it.
            once_round = [self._launch(number) for number in range(sets)]
            launches = once_round * (count // sets)
            self._series[count, sets] = self.device.series(self.kernel, launches, self.mode, once_round[-1])
        return self._series[count, sets].sample(warm)

    def _once(self, count: int, warm: bool, mode: str = "eager") -> Sample:
        launches = [self._launch(number) for number in self.operands.turns(count + 1)]
        # The warm-up runs on the set before the timed ones, which stay as cold as the rotation makes them.
        series = self.device.series(self.kernel, launches[1:], mode, launches[0] if warm else None)
        try:
            return series.sample(warm)
        finally:
            series.close()

    def close(self) -> None:
        """Gives back what was made for its samples."""
        for series in self._series.values():
            series.close()
        self._series.clear()
