"""Verifies candidates on devices that have their own reference; only the results are copied to the host.

As in tuners/verify.py, operands lie between poisoned guard bands, the output starts as poison, every element
is compared with a float64 reference, and everything but D and the workspace must stay unchanged. Each run has
its own output, so that the runs' bits can be compared; inputs are checked once, after the last run. Weights
are packed once for all runs of a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from backends.dtypes import DTYPES
from backends.errors import DeviceMemoryExceeded, IllegalSolution
from backends.kernels.prepacked import REPLACED
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Buffer, Device, Kernel, PrepackedKernel
from backends.reference_protocol import Comparison, DeviceReference
from tuners.inputs import Case, fixed_operand, operand_distribution, scaled_down
from tuners.packed import (
    CHANGED_COPY,
    OUTSIDE_COPY,
    READS_STORED,
    aligned,
    copy_bytes,
    other_copy,
    packing_operands,
    prepacked,
)
from tuners.reference import error_bound
from tuners.verify import GUARD, POISON, Finding, Verifier, changed_input, wrong

#: Assumed largest magnitude of a prefix of a sum, in standard deviations.
PREFIX_DEVIATIONS = 4.0


def make_verifier(device: Device) -> Verifier | DeviceVerifier:
    """The device's verifier: a DeviceVerifier if it has its own reference, else a Verifier."""
    return Verifier(device) if device.reference is None else DeviceVerifier(device)


@dataclass
class _Block:
    """An operand between its guard bands. `start` is the address of the first band, `address` that of the
    first element."""

    buffer: Buffer
    start: int
    layout: Layout

    @property
    def address(self) -> int:
        return self.start + GUARD

    @property
    def size(self) -> int:
        return self.layout.bytes + 2 * GUARD

    @property
    def poison(self) -> int:
        return self.layout.dtype.poison


@dataclass
class _Bench:
    """A case laid out on the device: the inputs, copies of them (guard bands included), the reference, and
    one output per run."""

    inputs: dict[str, _Block] = field(default_factory=dict)
    images: dict[str, _Block] = field(default_factory=dict)
    outputs: list[_Block] = field(default_factory=list)
    #: layout -> the packed copy of the weights, as it was packed first.
    copies: dict[str, Buffer] = field(default_factory=dict)
    expected: Buffer | None = None
    tolerance: Buffer | None = None
    #: Root mean square of the expected values, computed on demand.
    deviation: float | None = None
    #: Whether the candidate has been launched and may have written anywhere.
    launched: bool = False

    def reference(self) -> tuple[int, int]:
        """Addresses of the expected values and of the tolerances."""
        if self.expected is None or self.tolerance is None:
            raise RuntimeError("the case is not laid out")
        return self.expected.address, self.tolerance.address

    def pairs(self) -> list[tuple[int, int, int]]:
        """Each input, its copy, and their bytes, as DeviceReference.differing() takes them."""
        return [(block.start, self.images[name].start, block.size) for name, block in self.inputs.items()]

    def free(self) -> None:
        """Frees all buffers."""
        for block in (*self.inputs.values(), *self.images.values(), *self.outputs):
            block.buffer.free()
        for buffer in (*self.copies.values(), self.expected, self.tolerance):
            if buffer is not None:
                buffer.free()


@dataclass(frozen=True)
class _Copy:
    """A packed copy of `size` bytes between its guard bands. `address` is that of its first byte, `image`
    that of the same bytes kept apart. `hidden`: the inputs that hold poison while a product reads the
    copy. `differs`: other bytes than a kernel of the layout packed before."""

    address: int
    size: int
    image: int
    hidden: tuple[str, ...] = ()
    differs: bool = False

    def bands(self) -> list[tuple[int, int]]:
        """Addresses and sizes of the guard bands."""
        return [(self.address - GUARD, GUARD), (self.address + self.size, GUARD)]


class DeviceVerifier:
    """Runs candidates on cases, in buffers that timed launches never use. Has the methods of Verifier. A case
    takes device memory for its inputs twice, one output per run, 12 bytes per element of D, and a packed copy
    for each layout of packed weights."""

    def __init__(self, device: Device) -> None:
        if device.reference is None:
            raise ValueError("this device has no reference of its own")
        self._device = device
        self._reference: DeviceReference = device.reference
        self._kept: dict[tuple[str, int, str], _Bench] = {}
        #: What all candidates share: the workspace, and the packed copy of those that read one.
        self._shared: dict[str, Buffer] = {}

    def forget(self) -> None:
        """Frees the cases that are kept laid out, the workspace and the packed copy (when the problem
        changes)."""
        for bench in self._kept.values():
            bench.free()
        self._kept.clear()
        for buffer in self._shared.values():
            buffer.free()
        self._shared.clear()

    def check(self, kernel: Kernel, case: Case, keep: bool = True, runs: int = 2) -> Finding:
        """Runs `kernel` (loaded for the case's problem) `runs` times, then checks every result. `keep` keeps
        the case laid out for the next candidate, also if this one was refused before it was launched.
        Exceptions of a launch propagate, including those that the device reports later."""
        bench = self._kept.pop(_key(case), None) or self._make(case)
        try:
            finding = self._run(kernel, case.problem, bench, runs)
        except BaseException as error:
            refused = isinstance(error, (IllegalSolution, DeviceMemoryExceeded)) and not bench.launched
            if keep and refused:
                self._kept[_key(case)] = bench
            else:
                bench.free()
            raise
        if keep and not finding.wrong:
            self._kept[_key(case)] = bench
        else:  # a wrong candidate may have written anywhere, so the case must be laid out again
            bench.free()
        return finding

    def lay_out(self, case: Case) -> None:
        """Computes a case's reference and keeps it laid out, ahead of the first check."""
        if _key(case) not in self._kept:
            self._kept[_key(case)] = self._make(case)

    def _make(self, case: Case) -> _Bench:
        p, device, bench = case.problem, self._reference, _Bench()
        distribution = scaled_down(case.distribution, p)
        try:
            for number, (name, layout) in enumerate(layouts(p).items()):
                if name == "d":
                    continue
                block = bench.inputs[name] = self._block(p, layout)
                device.fill(block.start, block.size, block.poison)
                seed = case.seed * 16 + number
                fixed = fixed_operand(name, p)
                if fixed is not None:
                    block.buffer.upload(fixed.view(np.uint8), block.address - block.buffer.address)
                else:
                    device.draw(layout, block.address, seed, operand_distribution(name, distribution, p))
                image = bench.images[name] = self._block(p, layout)
                device.copy(image.start, block.start, block.size)
            elements = p.rows_d * p.n * p.batch
            bench.expected = self._device.allocate(8 * elements)
            bench.tolerance = self._device.allocate(4 * elements)
            at = {name: block.address for name, block in bench.inputs.items()}
            bound = error_bound(p, case.distribution)
            device.compute(p, Operands.at(at, p.scalars), bound, *bench.reference())
        except BaseException:
            bench.free()
            raise
        return bench

    def _block(self, p: GemmProblem, layout: Layout) -> _Block:
        """Allocates an operand with guard bands. Its alignment is what the problem promises and no more, but
        at least an element's size, since GPUs cannot load misaligned elements."""
        shift = max(p.alignment, layout.dtype.bytes)
        buffer = self._device.allocate(layout.bytes + 2 * GUARD + 2 * shift)
        return _Block(buffer, buffer.address + shift, layout)

    def _run(self, kernel: Kernel, p: GemmProblem, bench: _Bench, runs: int) -> Finding:
        bench.launched = False
        while len(bench.outputs) < runs:
            bench.outputs.append(self._block(p, layouts(p)["d"]))
        packing = prepacked(kernel)
        if packing is None:
            return self._launched(kernel, p, bench, runs)
        copy = self._pack(kernel, packing, p, bench)
        if isinstance(copy, Finding):
            return copy
        stored = [(bench.inputs[name], bench.images[name]) for name in copy.hidden]
        for block, _ in stored:
            self._reference.fill(block.start, block.size, block.poison)
        finding = self._launched(kernel, p, bench, runs, copy)
        for block, image in stored:
            self._reference.copy(block.start, image.start, block.size)
        if not finding.wrong and copy.differs:
            return wrong(other_copy(packing.layout), finding.repeatable)
        if finding.wrong in ("", CHANGED_COPY):
            return finding
        again = self._launched(kernel, p, bench, 1, replace(copy, hidden=()))
        return finding if again.wrong else replace(finding, wrong=READS_STORED)

    def _launched(
        self, kernel: Kernel, p: GemmProblem, bench: _Bench, runs: int, copy: _Copy | None = None
    ) -> Finding:
        """Launches the product and checks every result. With a packed copy it reads that."""
        device, size, outputs = self._reference, kernel.workspace_bytes, bench.outputs[:runs]
        workspace = self._held("workspace", size + 2 * GUARD)
        device.fill(workspace, size + 2 * GUARD, outputs[0].poison)
        at = {name: block.address for name, block in bench.inputs.items()}
        for number, output in enumerate(outputs):
            device.fill(output.start, output.size, output.poison)
            if number:  # the guard bands are not filled again, so that they show writes of earlier runs
                device.fill(workspace + GUARD, size, output.poison)
            operands = Operands.at(at | {"d": output.address}, p.scalars)
            if copy is not None:
                operands = replace(operands, packed=copy.address)
            kernel.prepare()
            kernel.bind(operands, workspace + GUARD)()
            bench.launched = True
        allowance = self._allowance(kernel.partial_sums, p, bench)
        around = [(workspace, GUARD), (workspace + GUARD + size, GUARD)]
        return self._checked(p, bench, outputs, around, allowance, copy)

    def _pack(
        self, kernel: Kernel, packing: PrepackedKernel, p: GemmProblem, bench: _Bench
    ) -> _Copy | Finding:
        """Packs the weights; a Finding if that changed anything but the copy."""
        device, size, layout = self._reference, packing.packed_bytes, str(packing.layout)
        start = aligned(self._held("packed copy", copy_bytes(packing) + 2 * GUARD))
        at = {name: block.address for name, block in bench.inputs.items()}
        launch = packing.pack(packing_operands(Operands.at(at, p.scalars), start + GUARD))
        first = layout not in bench.copies
        if first:
            bench.copies[layout] = self._device.allocate(size)
        elif bench.copies[layout].size != size:
            return wrong(other_copy(layout))
        hidden = tuple(name for name in REPLACED if name in bench.inputs)
        copy = _Copy(start + GUARD, size, bench.copies[layout].address, hidden)
        device.fill(start, size + 2 * GUARD, POISON)
        bench.launched = True  # a case whose packing fails is laid out again
        kernel.prepare()
        launch()
        if first:
            device.copy(copy.image, copy.address, size)
        *changed, differ = device.differing([*bench.pairs(), (copy.address, copy.image, size)])
        for name, count in zip(bench.inputs, changed, strict=True):
            if count:
                return wrong(f"packing {changed_input(name)}")
        if any(device.other_than(copy.bands(), POISON)):
            return wrong(OUTSIDE_COPY)
        if differ:  # the product's launch is compared with its own copy
            device.copy(copy.image, copy.address, size)
        return replace(copy, differs=bool(differ))

    def _allowance(self, partial_sums: int, p: GemmProblem, bench: _Bench) -> tuple[float, float]:
        """What rounding partial sums to D's type adds to the tolerance. Each of s roundings has an error of
        up to u |prefix of the sum|; together they amount to sqrt(s) u times PREFIX_DEVIATIONS standard
        deviations. The deviation is doubled, since relu may have zeroed half of the values that it is
        estimated from."""
        if partial_sums <= 1:
            return 0.0, 0.0
        if bench.deviation is None:
            found = self._reference.compare(p, bench.outputs[0].address, *bench.reference())
            bench.deviation = found.reference_norm / max(found.elements, 1) ** 0.5
        factor = PREFIX_DEVIATIONS * partial_sums**0.5 * DTYPES[p.dtype_d].unit_roundoff
        return factor, 2 * factor * bench.deviation

    def _held(self, what: str, size: int) -> int:
        """The address of at least `size` bytes for one purpose, shared by all candidates."""
        if what in self._shared and self._shared[what].size < size:
            self._shared.pop(what).free()
        if what not in self._shared:
            self._shared[what] = self._device.allocate(size)
        return self._shared[what].address

    def _checked(
        self,
        p: GemmProblem,
        bench: _Bench,
        outputs: list[_Block],
        around: list[tuple[int, int]],
        allowance: tuple[float, float],
        copy: _Copy | None,
    ) -> Finding:
        device, first = self._reference, outputs[0]
        found = device.compare(p, first.address, *bench.reference(), allowance)
        pairs = bench.pairs()
        pairs += [(first.address, other.address, first.layout.bytes) for other in outputs[1:]]
        counts = device.differing(pairs)
        changed, differ = counts[: len(bench.inputs)], counts[len(bench.inputs) :]
        repeatable = None if not differ else not any(differ)
        for name, count in zip(bench.inputs, changed, strict=True):
            hidden = copy is not None and name in copy.hidden
            if self._overwritten(bench.inputs[name]) if hidden else count:
                return wrong(changed_input(name), repeatable)
        for other, count in zip(outputs[1:], differ, strict=True):
            if count and not found.bad:
                again = device.compare(p, other.address, *bench.reference(), allowance)
                found = again if again.bad or again.worst > found.worst else found
        relative = found.error_norm / found.reference_norm if found.reference_norm else found.error_norm
        if copy is not None:
            touched = device.differing([(copy.address, copy.image, copy.size)])
            if any([*touched, *device.other_than(copy.bands(), POISON)]):
                return Finding(CHANGED_COPY, np.inf, relative, 1.0, repeatable)
        if found.bad:
            return Finding(_off(found), found.worst, relative, 1.0, repeatable)
        for place, count in self._outside(outputs, around):
            if count:
                return Finding(f"wrote outside its {place}", np.inf, relative, 1.0, repeatable)
        return Finding("", found.worst, relative, 1.0, repeatable)

    def _overwritten(self, block: _Block) -> bool:
        """Whether an operand that was filled with poison holds anything else."""
        return any(self._reference.other_than([(block.start, block.size)], block.poison))

    def _outside(self, outputs: list[_Block], around: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
        """Counts the bytes written around or between D's elements, and around the workspace."""
        for output in outputs:  # the other bytes, padding and guard bands, must still be poison
            self._reference.draw(output.layout, output.address, 0, "poison")
        ranges = [*((output.start, output.size) for output in outputs), *around]
        places = ["output"] * len(outputs) + ["workspace"] * len(around)
        return list(zip(places, self._reference.other_than(ranges, outputs[0].poison), strict=True))


def _key(case: Case) -> tuple[str, int, str]:
    return case.problem.id, case.seed, case.distribution


def _off(found: Comparison) -> str:
    if found.first is None:
        raise RuntimeError(f"{found.bad} elements are off, and none is the first")
    batch, column, row = found.first
    return (
        f"{found.bad} of {found.elements} elements are off; first D[{row},{column}] of batch {batch}: "
        f"{found.value:g}, expected {found.expected:g} within {found.tolerance:.3g}"
    )
