"""Verifies candidates on devices that have their own reference; only the results are copied to the host.

As in tuners/verify.py, operands lie between poisoned guard bands, the output starts as poison, every element
is compared with a float64 reference, and everything but D and the workspace must stay unchanged. Each run has
its own output, so that the runs' bits can be compared; inputs are checked once, after the last run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from backends.dtypes import DTYPES
from backends.errors import DeviceMemoryExceeded, IllegalSolution
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Buffer, Device, Kernel
from backends.reference_protocol import Comparison, DeviceReference
from tuners.inputs import Case, fixed_operand, operand_distribution, scaled_down
from tuners.reference import error_bound
from tuners.verify import GUARD, Finding, Verifier

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

    def free(self) -> None:
        """Frees all buffers."""
        for block in (*self.inputs.values(), *self.images.values(), *self.outputs):
            block.buffer.free()
        for buffer in (self.expected, self.tolerance):
            if buffer is not None:
                buffer.free()


class DeviceVerifier:
    """Runs candidates on cases, in buffers that timed launches never use. Has the methods of Verifier. A case
    takes device memory for its inputs twice, one output per run, and 12 bytes per element of D."""

    def __init__(self, device: Device) -> None:
        if device.reference is None:
            raise ValueError("this device has no reference of its own")
        self._device = device
        self._reference: DeviceReference = device.reference
        self._kept: dict[tuple[str, int, str], _Bench] = {}
        self._workspace: Buffer | None = None

    def forget(self) -> None:
        """Frees the cases that are kept laid out, and the workspace (when the problem changes)."""
        for bench in self._kept.values():
            bench.free()
        self._kept.clear()
        if self._workspace is not None:
            self._workspace.free()
            self._workspace = None

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
            elements = p.m * p.n * p.batch
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
        device, size = self._reference, kernel.workspace_bytes
        bench.launched = False
        while len(bench.outputs) < runs:
            bench.outputs.append(self._block(p, layouts(p)["d"]))
        outputs = bench.outputs[:runs]
        workspace = self._workspace_of(size + 2 * GUARD)
        device.fill(workspace, size + 2 * GUARD, outputs[0].poison)
        at = {name: block.address for name, block in bench.inputs.items()}
        for number, output in enumerate(outputs):
            device.fill(output.start, output.size, output.poison)
            if number:  # the guard bands are not filled again, so that they show writes of earlier runs
                device.fill(workspace + GUARD, size, output.poison)
            kernel.prepare()
            kernel.bind(Operands.at(at | {"d": output.address}, p.scalars), workspace + GUARD)()
            bench.launched = True
        allowance = self._allowance(kernel.partial_sums, p, bench)
        around = [(workspace, GUARD), (workspace + GUARD + size, GUARD)]
        return self._checked(p, bench, outputs, around, allowance)

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

    def _workspace_of(self, size: int) -> int:
        """The address of a workspace of at least `size` bytes, shared by all candidates."""
        if self._workspace is None or self._workspace.size < size:
            if self._workspace is not None:
                self._workspace.free()
                self._workspace = None
            self._workspace = self._device.allocate(size)
        return self._workspace.address

    def _checked(
        self,
        p: GemmProblem,
        bench: _Bench,
        outputs: list[_Block],
        around: list[tuple[int, int]],
        allowance: tuple[float, float],
    ) -> Finding:
        device, first = self._reference, outputs[0]
        found = device.compare(p, first.address, *bench.reference(), allowance)
        pairs = [(block.start, bench.images[name].start, block.size) for name, block in bench.inputs.items()]
        pairs += [(first.address, other.address, first.layout.bytes) for other in outputs[1:]]
        counts = device.differing(pairs)
        changed, differ = counts[: len(bench.inputs)], counts[len(bench.inputs) :]
        repeatable = None if not differ else not any(differ)
        for name, count in zip(bench.inputs, changed, strict=True):
            if count:
                text = f"changed its input {name} or the bytes around it"
                return Finding(text, np.inf, np.inf, 0.0, repeatable)
        for other, count in zip(outputs[1:], differ, strict=True):
            if count and not found.bad:
                again = device.compare(p, other.address, *bench.reference(), allowance)
                found = again if again.bad or again.worst > found.worst else found
        relative = found.error_norm / found.reference_norm if found.reference_norm else found.error_norm
        if found.bad:
            return Finding(_off(found), found.worst, relative, 1.0, repeatable)
        for place, count in self._outside(outputs, around):
            if count:
                return Finding(f"wrote outside its {place}", np.inf, relative, 1.0, repeatable)
        return Finding("", found.worst, relative, 1.0, repeatable)

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
