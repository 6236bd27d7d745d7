"""The device process's side of the checks for kernels that cheat: runs launches and hands back raw bytes.

It decides nothing. The parent draws the same inputs from the seeds, computes the references, and compares
(checks.py): nothing that a user's code may have changed in this process takes part in that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.operands import Operands, as_product, layouts
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import Buffer, Device, Kernel, Launch
from backends.solution import Solution
from backends.user_kernels.module import references_of
from tuners import device_calls
from tuners.device_process import Binaries, DeviceProcess, Task
from tuners.inputs import host_inputs, physical
from tuners.packed import aligned, copy_bytes, packing_operands, prepacked

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

#: The evidence that an audit's report is in.
REPORT = "report"
#: Captured before a user's code is imported.
_sleep = time.sleep


@dataclass(frozen=True)
class Contents:
    """The contents of an operand set: drawn from a seed, with one element of the row-major A replaced if
    `changed` is its (row, column)."""

    seed: int
    distribution: str
    changed: tuple[int, int] | None = None

    def inputs(self, problem: GemmProblem) -> dict[str, Array]:
        """The operands as arrays [copies, columns, rows]."""
        found = host_inputs(problem, self.seed, self.distribution)
        if self.changed is not None:
            change_one(problem, found, self.changed)
        return found


@dataclass(frozen=True)
class AuditRequest:
    """What to run on `problem`: `first` are launched once, untimed; then the same launches are timed with the
    contents `then` at the same addresses. `window`: seconds after which the outputs are read again. `pairs`:
    how often launches on new and on unchanged contents are compared; 0 for never."""

    problem: GemmProblem
    first: tuple[Contents, ...]
    then: tuple[Contents, ...]
    changed: Contents | None = None
    window: float = 0.05
    pairs: int = 0
    mode: str = "eager"


@dataclass(frozen=True)
class AuditReport:
    """The outputs, as the bytes of D: right after the timed launches, after the window where that differs,
    and of the first set after one element was replaced. `fresh` and `repeated`: seconds per launch on
    contents that were never seen, and on unchanged ones; `repeatable`: whether these gave the same bits.
    `replaced`: functions that the user's code
    replaced."""

    early: tuple[Bytes, ...]
    late: tuple[Bytes | None, ...]
    changed: Bytes | None
    fresh: tuple[float, ...] = ()
    repeated: tuple[float, ...] = ()
    repeatable: bool | None = None
    replaced: tuple[str, ...] = ()


def change_one(problem: GemmProblem, inputs: Mapping[str, Array], at: tuple[int, int]) -> None:
    """Replaces an element of the first matrix of the row-major A by the largest magnitude in A, with the
    other sign: every element of that row of D moves by more than its tolerance."""
    left = as_product(problem, inputs["a"], inputs["b"])[0]
    wide = left[0].astype(np.float64)
    largest = float(np.max(np.abs(wide))) or 1.0
    if left.dtype.kind == "i":
        largest = min(largest, float(np.iinfo(left.dtype).max))
    left[0][at] = np.asarray(-largest if wide[at] > 0 else largest).astype(left.dtype)


class _Bench:
    """Operand sets at fixed addresses, each with a launch."""

    def __init__(self, device: Device, kernel: Kernel, problem: GemmProblem, sets: int) -> None:
        self._device, self._problem = device, problem
        self._buffers: list[Buffer] = []
        self.launches: list[Launch] = []
        self._sets: list[dict[str, Buffer]] = []
        shift = problem.alignment
        #: Packs a set's weights, for a kernel that reads a packed copy.
        self._packs: list[Launch] = []
        workspace, packing = self._allocate(kernel.workspace_bytes + 256).address, prepacked(kernel)
        for _ in range(sets):
            made = {name: self._allocate(one.bytes + 2 * shift) for name, one in layouts(problem).items()}
            self._sets.append(made)
            at = {name: buffer.address + shift for name, buffer in made.items()}
            operands = Operands.at(at, problem.scalars)
            if packing is not None:
                packed = aligned(self._allocate(copy_bytes(packing)).address)
                self._packs.append(packing.pack(packing_operands(operands, packed)))
                operands = replace(operands, packed=packed)
            self.launches.append(kernel.bind(operands, workspace))

    def _allocate(self, size: int) -> Buffer:
        self._buffers.append(self._device.allocate(size))
        return self._buffers[-1]

    def fill(self, number: int, inputs: Mapping[str, Array]) -> None:
        """Writes a set's inputs, packs its weights if the kernel reads them so, and writes poison to its
        output."""
        for name, layout in layouts(self._problem).items():
            image = physical(layout, inputs.get(name), 0, layout.dtype.poison)
            self._sets[number][name].upload(image, self._problem.alignment)
        if self._packs:
            self._packs[number]()
            self._device.synchronize()

    def output(self, number: int) -> Bytes:
        """The bytes of a set's output as they are now."""
        size = layouts(self._problem)["d"].bytes
        return self._sets[number]["d"].download(self._problem.alignment, size)

    def free(self) -> None:
        """Frees the memory, once nothing uses it."""
        self.launches.clear()
        self._packs.clear()
        for buffer in self._buffers:
            buffer.free()


def audit(task: Task, solution: Solution, binaries: Binaries, request: AuditRequest) -> Outcome:
    """Runs an audit; the outcome's evidence has the report, or what the candidate raised."""

    def run() -> Outcome:
        process = device_calls.opened(task)
        report = _audited(process, solution, binaries, request)
        return Outcome(solution, Phase.SCREEN, Status.OK, (), {REPORT: report})

    return device_calls.guarded(Phase.SCREEN, solution, run)


def _audited(
    process: DeviceProcess, solution: Solution, binaries: Binaries, request: AuditRequest
) -> AuditReport:
    problem, device = request.problem, process.device
    path = Path(next(iter(binaries.values())))  # one source for every problem
    kernel = device.load(problem, solution, path)
    bench = _Bench(device, kernel, problem, len(request.first))
    try:
        for number, contents in enumerate(request.first):
            bench.fill(number, contents.inputs(problem))
        kernel.prepare()
        for launch in bench.launches:
            launch()
        device.synchronize()
        series = device.series(kernel, bench.launches, request.mode)
        try:
            for number, contents in enumerate(request.then):
                bench.fill(number, contents.inputs(problem))
            series.sample(warm=False)
            early = tuple(map(bench.output, range(len(request.then))))
            _sleep(request.window)
            late = tuple(map(bench.output, range(len(request.then))))
            differ = [not np.array_equal(a, b) for a, b in zip(early, late, strict=True)]
            changed = None
            if request.changed is not None and not any(differ):
                bench.fill(0, request.changed.inputs(problem))
                series.sample(warm=False)
                changed = bench.output(0)
        finally:
            series.close()
        fresh: tuple[float, ...] = ()
        repeated: tuple[float, ...] = ()
        repeatable: bool | None = None
        if request.pairs and not any(differ):
            fresh, repeated, repeatable = _compared(device, kernel, bench, request)
        references = references_of(path)
        return AuditReport(
            early,
            tuple(b if other else None for b, other in zip(late, differ, strict=True)),
            changed, fresh, repeated, repeatable, () if references is None else tuple(references.replaced()),
        )  # fmt: skip
    finally:
        _sleep(request.window)  # a thread that is late writes to memory that is still there
        bench.free()


def _compared(
    device: Device, kernel: Kernel, bench: _Bench, request: AuditRequest
) -> tuple[tuple[float, ...], tuple[float, ...], bool]:
    """Seconds of a launch on contents that were never seen, and of the next one on the same contents, written
    again: both begin in the same state of the caches. The last set's launch before each wakes threads."""
    problem, fresh, repeated = request.problem, list[float](), list[float]()
    inputs = request.then[0].inputs(problem)
    rows, depth = as_product(problem, inputs["a"], inputs["b"])[0].shape[1:]
    rng, repeatable = np.random.default_rng(request.then[0].seed), True
    series = device.series(kernel, bench.launches[:1], request.mode, bench.launches[-1:])
    try:
        for _ in range(request.pairs):
            change_one(problem, inputs, (int(rng.integers(rows)), int(rng.integers(depth))))
            outputs = []
            for taken in (fresh, repeated):
                bench.fill(0, inputs)
                taken.append(series.sample().seconds)
                outputs.append(bench.output(0))
            repeatable = repeatable and bool(np.array_equal(outputs[0], outputs[1]))
    finally:
        series.close()
    return tuple(fresh), tuple(repeated), repeatable


def clocked(task: Task, solution: Solution, binaries: Binaries, launches: int) -> Outcome:
    """Times so many launches as one sample. The evidence has the seconds of all of them, as this process
    reports them; the parent knows how long the call took."""

    def run() -> Outcome:
        process = device_calls.opened(task)
        kernel = process.load(task.problem, solution, binaries)
        bench = _Bench(process.device, kernel, task.problem, 1)
        try:
            bench.fill(0, Contents(task.seed, "normal").inputs(task.problem))
            series = process.device.series(kernel, bench.launches * launches, "eager")
            try:
                taken = series.sample(warm=False)
            finally:
                series.close()
        finally:
            bench.free()
        evidence = {"claimed": taken.seconds * taken.launches}
        return Outcome(solution, Phase.SCREEN, Status.OK, (), evidence)

    return device_calls.guarded(Phase.SCREEN, solution, run)
