"""Times a candidate: rotating operand sets, enough launches per sample, disturbed samples marked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.errors import DeviceMemoryExceeded, LaunchError
from backends.grouping import draws_of, ends_of, gated
from backends.kernels.prepacked import REPLACED, most_packed_bytes
from backends.operands import Layout, Operands, layouts, operand_bytes
from backends.problem import GemmProblem
from backends.protocol import Buffer, Device, Kernel, Launch, Sample, Series
from tuners.inputs import draw, fixed_operand, operand_distribution
from tuners.packed import PACKING, PackedCopies, PackingCost, copy_bytes, prepacked
from tuners.policy import MeasurementPolicy

#: Cold rotation spans more than this many times the last-level cache, with at most MAX_SETS operand sets.
COLD_CACHES = 3
MAX_SETS = 128
#: With packed copies in place of stored weights the rotation is still cold if it spans so many caches: a
#: screening's half of it then still exceeds the cache. A copy is about as large as the weights.
PACKED_COLD_CACHES = 2
#: Packed copies that a verifier holds at a time. On the device: the candidate's and the first of its layout;
#: on the host also how the candidate's was when it was packed, and how it is after the product.
DEVICE_COPIES, HOST_COPIES = 2, 4
#: Least duration of a sample in a final.
SAMPLE_SECONDS = 1e-3
#: Launches shorter than this are sized by timing several (MeasurementTraits.sizing_launches).
SIZED_BY_ONE = 1e-4
#: A sample covers whole rounds over all operand sets if a round takes at most ROUND_SHARE times the least
#: duration of a sample, or in a screening MeasurementTraits.screening_round_seconds if that is set.
ROUND_SHARE = 4.0
MAX_LAUNCHES = 4096
#: A sample of a graph whose launches take less than this share of the sized time is taken again with more of
#: them: sizing queues launches one by one, so that those of a library wait for the host.
RESIZED = 0.8
#: Most untimed launches before those of a graph.
MAX_LEAD = 64
#: Launches at least this long are not warmed up: the time to wake threads is negligible beside them.
WARM_BELOW_SECONDS = 10e-3
#: Number of random elements drawn once per type; operands are filled from them at random offsets.
_POOL = 2**20
#: Alignment of a GPU's allocator, in bytes; vendors' heuristics take alignment into account.
_ALIGN = 256


def working_bytes(problem: GemmProblem, device_reference: bool) -> int:
    """Bytes that measuring one problem needs in addition to the rotation: one operand set, the verifier's
    images and buffers, and the float64 reference with its temporaries; less with a device reference
    (verify_device.py). Of prepacked weights also one packed copy to time, and the verifier's, of one layout:
    at most, since no solution has named it yet."""
    shape, packed = layouts(problem), most_packed_bytes(problem)
    if device_reference:
        d = shape["d"].bytes
        inputs = sum(layout.bytes for layout in shape.values()) - d
        held = (1 + DEVICE_COPIES) * packed
        product = 12 * problem.m * problem.n if gated(problem) else 0  # before its rows are gated
        return 3 * inputs + 3 * d + 12 * problem.batch * problem.rows_d * problem.n + product + held
    wide = sum(8 * layout.copies * layout.columns * layout.rows for layout in shape.values())
    outputs = 8 * problem.batch * problem.m * problem.n
    return 4 * operand_bytes(problem) + wide + 4 * outputs + (1 + HOST_COPIES) * packed


@dataclass(frozen=True)
class Rotation:
    """How cold a measurement was: the operand sets in rotation, the bytes that they span, and whether that is
    at least COLD_CACHES times the last-level cache."""

    sets: int
    bytes: int
    cold: bool


class OperandSets:
    """The operand sets among which timed launches rotate, filled with random values. Of a grouped product
    that stands for several draws of its routing, sets differ in their draw too: there are as many as bring
    each draw together with each copy of the matrices, which `rotation` counts. Of kernels that read packed
    weights each copy of the matrices has its own packed copy, from the first use of the layout on."""

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
            # Addresses have the alignment that the problem promises and no more: libraries depend on it.
            askew = max(problem.alignment, layout.dtype.bytes) if problem.alignment < 16 else 0
            places[name] += askew
            end += ceil((layout.bytes + askew) / _ALIGN) * _ALIGN + _ALIGN
        self.draws = draws_of(problem)
        packed = most_packed_bytes(problem)  # a set may have one copy beside it
        count = 1
        # Of a grouped product a launch reads the weights of some groups only.
        touched = min(end, problem.bytes_read + problem.bytes_written) if problem.groups else end
        if policy.cache == "cold":
            count = ceil(COLD_CACHES * device.cache_bytes / touched) + 1
            if count > self.draws:  # the fewer sets bring each draw together with each copy
                count = ceil(count / self.draws) * self.draws
            count = min(MAX_SETS, count)
            count = max(1, min(count, int((allowed - needed) // (end + packed))))
        cold = count * touched >= COLD_CACHES * device.cache_bytes
        self.rotation = Rotation(count, count * touched, cold)
        apart = ceil(4 * problem.groups / _ALIGN) * _ALIGN  # of two draws' ends
        self._buffer = device.allocate(count * end + (self.draws - 1) * apart)
        self._device, self._share = device, policy.memory_share
        self._touched = touched - sum(shape[name].bytes for name in REPLACED if name in shape)
        # `needed` has one operand set and one packed copy in it already.
        self._left = int(allowed) - needed - (count - 1) * end + packed
        self._packed: dict[str, PackedCopies] = {}
        self._turn = 0
        self.sets: list[Operands] = []
        try:
            copies = self._fill(device, problem, policy, seed, places, end)
            for draw in range(1, self.draws):
                self._buffer.upload(ends_of(problem, draw).view(np.uint8), count * end + (draw - 1) * apart)
            for index in range(lcm(count, self.draws)):
                address, draw = copies[index % count], index % self.draws
                if draw:
                    later = self._buffer.address + count * end + (draw - 1) * apart
                    address = {**address, "offsets": later}
                self.sets.append(Operands.at(address, problem.scalars, draw))
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
    ) -> list[dict[str, int]]:
        """The addresses of each copy's operands."""
        shape, copies = layouts(problem), []
        fill = _HostFill(self._buffer, policy, seed) if device.reference is None else None
        for index in range(self.rotation.sets):
            address = {name: self._buffer.address + index * end + place for name, place in places.items()}
            for turn, (name, layout) in enumerate(shape.items()):
                fixed = fixed_operand(name, problem)
                if fixed is not None:
                    self._buffer.upload(fixed.view(np.uint8), index * end + places[name])
                elif fill is not None:
                    fill(index * end + places[name], layout)
                elif device.reference is not None:
                    kind = operand_distribution(name, policy.distribution, problem)
                    own_seed = (seed << 16) + index * len(shape) + turn
                    device.reference.draw(layout, address[name], own_seed, kind)
            copies.append(address)
        return copies

    def free(self) -> None:
        """Frees the memory."""
        for copies in self._packed.values():
            copies.free()
        self._packed.clear()
        self._buffer.free()

    def packed(self, kernel: Kernel) -> PackedCopies | None:
        """The packed copies that a kernel reads; None if it reads the weights as they are stored. The first
        kernel of a layout packs them. Raises DeviceMemoryExceeded if they do not fit, LaunchError."""
        packing = prepacked(kernel)
        if packing is None or packing.layout is None:
            return None
        if packing.layout not in self._packed:
            size = copy_bytes(packing, self.rotation.sets)
            if size > self._left:
                raise DeviceMemoryExceeded(
                    f"packed copies in layout {packing.layout} need {size / 2**20:,.0f} MiB; of "
                    f"{self._share:.0%} of the free memory, operands and other layouts leave "
                    f"{max(0, self._left) / 2**20:,.0f} MiB (free some, or raise memory_share)"
                )
            made = PackedCopies(self._device, kernel, packing, self.sets[: self.rotation.sets])
            self._packed[packing.layout] = made
            self._left -= size
        found = self._packed[packing.layout]
        if found.bytes != packing.packed_bytes:
            raise LaunchError(
                f"its packed copy in layout {packing.layout} has {packing.packed_bytes} bytes, that of "
                f"another kernel {found.bytes}: a layout's name must say everything that places a byte"
            )
        return found

    def of(self, kernel: Kernel, number: int) -> Operands:
        """Set `number` as the kernel takes it: with a packed copy if it reads one. See packed()."""
        copies, found = self.packed(kernel), self.sets[number]
        return (
            found
            if copies is None
            else replace(found, packed=copies.addresses[number % len(copies.addresses)])
        )

    def cold(self, kernel: Kernel) -> bool:
        """Whether the rotation is cold for a kernel, which may read packed copies."""
        copies = self.packed(kernel)
        if copies is None or not self.rotation.cold:
            return self.rotation.cold
        spanned = self.rotation.sets * (self._touched + copies.bytes)
        return spanned >= PACKED_COLD_CACHES * self._device.cache_bytes

    def turns(self, count: int) -> list[int]:
        """The sets of the next `count` launches, continuing round-robin from the previous call."""
        start, self._turn = self._turn, (self._turn + count) % len(self.sets)
        return [(start + i) % len(self.sets) for i in range(count)]


class _HostFill:
    """Fills operands with copies from a pool of random elements, at random offsets."""

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
    """A loaded candidate. It is bound to an operand set when it first runs on it, since most candidates of a
    screening run on few sets."""

    device: Device
    kernel: Kernel
    operands: OperandSets
    workspace: int
    mode: str
    seconds: float = 0.0
    _bound: dict[int, Launch] = field(default_factory=dict)
    _series: dict[tuple[int, int, int], Series] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        device: Device,
        kernel: Kernel,
        operands: OperandSets,
        mode: str,
        workspace: Callable[[int], int],
    ) -> Timer:
        """`workspace(bytes)` returns the address of that much device memory. Packs the weights if the
        candidate reads packed ones that are not there yet: no sample has packing in it. Raises
        DeviceMemoryExceeded, LaunchError."""
        operands.packed(kernel)
        return cls(device, kernel, operands, workspace(kernel.workspace_bytes), mode)

    def _launch(self, number: int) -> Launch:
        """The candidate bound to one of the operand sets."""
        if number not in self._bound:
            self._bound[number] = self.kernel.bind(self.operands.of(self.kernel, number), self.workspace)
        return self._bound[number]

    def size(self, warm: bool = True) -> Sample:
        """Times a few launches and stores the seconds per launch."""
        sized = self._once(1, warm)
        if sized.seconds < SIZED_BY_ONE:
            sized = self._once(self.device.traits.sizing_launches, warm=False)
        self.seconds = sized.seconds
        return sized

    def sample(self, warm: bool = True, screening: bool = False) -> Sample:
        """Takes one sample, with as many launches as the device's traits require; the first call sizes it.
        `warm`: run a warm-up launch first; not needed if the same candidate ran a moment ago."""
        if not self.seconds:
            self.size()
        plan = self._plan(screening)
        while True:
            taken = self._take(plan, warm and self.seconds < WARM_BELOW_SECONDS)
            if self.mode != "graph" or taken.seconds >= RESIZED * self.seconds:
                return taken
            self.seconds, before = taken.seconds, plan
            plan = self._plan(screening)
            if plan == before:
                return taken
            if before in self._series:
                self._series.pop(before).close()

    def _plan(self, screening: bool) -> tuple[int, int, int]:
        """A sample's number of launches, the sets among which they rotate, and the launches of its lead."""
        traits = self.device.traits
        wanted = traits.sample_seconds[0 if screening else 1]
        count = max(1, min(MAX_LAUNCHES, ceil(wanted / max(self.seconds, 1e-9))))
        sets, longest = len(self.operands.sets), ROUND_SHARE * wanted
        if screening and traits.screening_round_seconds is not None:
            longest = traits.screening_round_seconds
            if self.operands.cold(self.kernel):  # half of three times the cache size still exceeds the cache
                draws = self.operands.draws
                sets = ceil(sets / (2 * draws)) * draws
        if sets * self.seconds <= longest or count >= sets or self.operands.draws > 1:
            # Of draws in any case: candidates are compared by the same ones.
            count = ceil(count / sets) * sets
        lead = 1 if self.mode != "graph" else ceil(traits.lead_seconds / max(self.seconds, 1e-9))
        return count, sets, max(1, min(MAX_LEAD, lead))

    def _take(self, plan: tuple[int, int, int], warm: bool) -> Sample:
        count, sets, lead = plan
        if count < sets:  # launches are so long that the next sample continues with other sets
            return self._once(count, warm, self.mode)
        if plan not in self._series:
            # Whole rounds, so that repeating the series stays as cold as the rotation.
            once_round = [self._launch(number) for number in range(sets)]
            launches, before = once_round * (count // sets), [(at - lead) % sets for at in range(lead)]
            self._series[plan] = self.device.series(
                self.kernel, launches, self.mode, [once_round[number] for number in before]
            )
        return self._series[plan].sample(warm)

    def _once(self, count: int, warm: bool, mode: str = "eager") -> Sample:
        launches = [self._launch(number) for number in self.operands.turns(count + 1)]
        # The warm-up runs on the set before the timed ones, so these stay as cold as the rotation allows.
        series = self.device.series(self.kernel, launches[1:], mode, launches[:1] if warm else ())
        try:
            return series.sample(warm)
        finally:
            series.close()

    def packing(self, again: bool = False) -> dict[str, Any]:
        """The evidence of what packing costs (packed.py); empty for a candidate that reads the weights as
        they are stored. `again`: timed by this candidate's own packing kernel, instead of by that of the
        first candidate with its layout."""
        packing, copies = prepacked(self.kernel), self.operands.packed(self.kernel)
        if packing is None or copies is None:
            return {}
        seconds = copies.time(self.kernel, packing) if again else copies.seconds
        warm = self.operands.rotation.cold and not self.operands.cold(self.kernel)
        found: dict[str, Any] = {PACKING: PackingCost.of(packing, seconds).to_dict()}
        return found | ({"packed_copies_fit_the_cache": True} if warm else {})

    def close(self) -> None:
        """Releases the series made for its samples."""
        for series in self._series.values():
            series.close()
        self._series.clear()
