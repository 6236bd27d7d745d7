"""The functions of the self-test that run in the device process (device_calls.run)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise, repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES, to_host
from backends.environment import Environment
from backends.errors import DeviceError, DeviceLost, DeviceMemoryExceeded, GemmtuneError, LaunchError
from backends.operands import Operands, as_product, layouts
from backends.problem import GemmProblem, from_mm
from backends.protocol import Buffer, Device, DeviceListedFamily, Launch, NotedFamily
from backends.reference_protocol import DeviceReference
from backends.solution import Solution
from tuners.device_process import DeviceProcess, Task
from tuners.reference import error_bound

#: Candidates of a list that are kept, evenly spaced; neighbours of the first that are added.
LISTED, NEIGHBOURS = 64, 8
#: Launches per repetition of a launch's host time, and in a burst: a burst is small enough that the device's
#: queue never fills up and stalls the host.
CALLS, BURST, REPETITIONS = 512, 64, 7
#: Seconds for which launches are repeated, about: on a host a launch takes as long as its GEMM.
LAUNCHING_SECONDS = 1.0
#: Readings of a clock whose smallest difference is its resolution.
READINGS = 10_000
#: One-launch samples on the device's own clock.
SAMPLES = 48
#: Input types for which the device's reference is compared with numpy.
REFERENCE_TYPES = ("fp64", "fp32", "fp16", "bf16", "int8")
#: Largest relative Frobenius error between two float64 products of the same inputs, which differ in the order
#: of sums of at most 131 terms.
REFERENCE_ERROR = 1e-13

# ---- candidates ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enumerated:
    """A family's candidates for a problem: how many there are, a sample of them, and the family's notes."""

    total: int
    solutions: tuple[Solution, ...]
    notes: tuple[str, ...]


def enumerated(process: DeviceProcess, name: str, problem: GemmProblem, most: int = LISTED) -> Enumerated:
    """Lists a family's candidates on the open device: `most` evenly spaced ones, and a few neighbours of the
    first. Raises LaunchError for what a library raises, and GemmtuneError as the family does."""
    try:
        return _enumerated(process, name, problem, most)
    except GemmtuneError:
        raise
    except Exception as error:  # a binding's own exception may not survive the way to the parent
        raise LaunchError(f"{type(error).__name__}: {error}") from error


def _enumerated(process: DeviceProcess, name: str, problem: GemmProblem, most: int) -> Enumerated:
    family, here = process.families[name], process.device.environment
    found: list[Solution] = []
    near: list[Solution] = []
    if isinstance(family, DeviceListedFamily):
        found = list(family.enumerate_on(problem, process.device, None))
        if found:
            near = list(islice(family.neighbours_on(problem, found[0], process.device, None), NEIGHBOURS))
    found = found or list(family.solutions(problem, here))
    notes = family.notes(problem, here) if isinstance(family, NotedFamily) else ()
    return Enumerated(len(found), (*evenly(found, most), *near), tuple(notes))


def evenly(found: Sequence[Solution], most: int) -> list[Solution]:
    """At most `most` of the list, the first one among them, evenly spaced."""
    step = max(1, -(-len(found) // max(1, most)))
    return list(found[::step])


# ---- the contract --------------------------------------------------------------------------------


def contract(process: DeviceProcess, name: str, probed: Environment) -> str:
    """Runs one check of CONTRACT: what is wrong, "" if nothing. Raises DeviceError if the device is lost."""
    try:
        return CONTRACT[name](process, probed)
    except DeviceError:
        raise
    except Exception as error:  # the check failed, whatever a library raised
        return f"{type(error).__name__}: {error}"


def _same_environment(process: DeviceProcess, probed: Environment) -> str:
    here = process.device.environment.to_dict()
    differ = [name for name, value in probed.to_dict().items() if here[name] != value]
    differences = [f"{name}: probed {getattr(probed, name)}, opened {here[name]}" for name in differ]
    return "; ".join(differences)


def _memory(process: DeviceProcess, _: Environment) -> str:
    data = np.arange(200, dtype=np.uint8)
    with _buffer(process.device, 1000) as buffer:
        buffer.upload(np.zeros(1000, np.uint8))
        buffer.upload(data, 17)
        found = buffer.download(16, 202)
    wrong = int(np.count_nonzero(found != np.concatenate([[0], data, [0]])))
    return f"{wrong} of 202 bytes are not those that were written" if wrong else ""


def _too_large(process: DeviceProcess, probed: Environment) -> str:
    size = 8 * probed.memory_bytes
    try:
        process.device.allocate(size).free()
    except DeviceMemoryExceeded:
        return ""
    return f"{size} bytes could be allocated of {probed.memory_bytes}"


def _free_memory(process: DeviceProcess, probed: Environment) -> str:
    free, cache = process.device.free_bytes, process.device.cache_bytes
    if not 0 < free <= probed.memory_bytes:
        return f"{free} bytes are free of {probed.memory_bytes}"
    return "" if cache > 0 else f"the last-level cache has {cache} bytes"


def _beyond(process: DeviceProcess, _: Environment) -> str:
    try:
        process.backend.open(999, process.cache)
    except DeviceLost:
        return ""
    return "device 999 could be opened"


def _unknown_family(process: DeviceProcess, _: Environment) -> str:
    try:
        process.device.load(from_mm(4, 4, 4), Solution("nobody", 1, {}), None)
    except LaunchError:
        return ""
    return "a candidate of an unknown family was loaded"


#: Check -> function. The names are part of the report.
CONTRACT: Mapping[str, Callable[[DeviceProcess, Environment], str]] = {
    "the opened device is the probed one": _same_environment,
    "memory keeps what is written": _memory,
    "sizes of memory and cache": _free_memory,
    "too large an allocation is refused": _too_large,
    "a device beyond the last is refused": _beyond,
    "an unknown family is refused": _unknown_family,
}


@contextmanager
def _buffer(device: Device, size: int) -> Iterator[Buffer]:
    buffer = device.allocate(size)
    try:
        yield buffer
    finally:
        buffer.free()


def reference(process: DeviceProcess, dtype: str) -> str:
    """Compares the device's reference with numpy's float64 product of the same inputs, and has it compare a
    right D and one with a wrong element. What is wrong, "" if nothing. Raises DeviceError if the device is
    lost."""
    device = process.device
    if device.reference is None:
        return "this device has no reference"
    try:
        return _reference(device, device.reference, from_mm(37, 29, 131, dtype, trans_b="T"))
    except DeviceError:
        raise
    except Exception as error:  # a compiler or a launch failed
        return f"{type(error).__name__}: {error}"


def _reference(device: Device, judge: DeviceReference, p: GemmProblem) -> str:
    shapes, buffers = layouts(p), dict[str, Buffer]()
    try:
        for name, layout in shapes.items():
            buffers[name] = device.allocate(layout.bytes)
        buffers["expected"], buffers["tolerance"] = (device.allocate(size * p.m * p.n) for size in (8, 4))
        at = {name: buffer.address for name, buffer in buffers.items()}
        for seed, name in enumerate(("a", "b")):
            judge.draw(shapes[name], at[name], seed, "normal")
        bound = error_bound(p, "normal")
        judge.compute(p, Operands.at(at, p.scalars), bound, at["expected"], at["tolerance"])
        host = {
            name: shapes[name].view(
                buffers[name].download(0, shapes[name].bytes).view(shapes[name].dtype.storage)
            )
            for name in ("a", "b")
        }
        left, right = as_product(p, host["a"].astype(np.float64), host["b"].astype(np.float64))
        product = np.matmul(left, right)
        expected = buffers["expected"].download(0, 8 * p.m * p.n).view(np.float64).reshape(product.shape)
        size = float(np.linalg.norm(product))
        error = float(np.linalg.norm(expected - product)) / size if size else float("inf")
        if not error <= REFERENCE_ERROR:
            return f"relative error {error:.3g} of its float64 product of {p.slug}, at most {REFERENCE_ERROR}"
        right_d = to_host(product, DTYPES[p.dtype_d])
        wrong_d = right_d.copy()
        wrong_d[0, 5, 7] = to_host(np.array([product[0, 5, 7] + 64.0]), DTYPES[p.dtype_d])[0]
        for values, bad, first in ((right_d, 0, None), (wrong_d, 1, (0, 5, 7))):
            _put(buffers["d"], p, values)
            found = judge.compare(p, at["d"], at["expected"], at["tolerance"])
            if (found.bad, found.first) != (bad, first):
                return (
                    f"{found.bad} wrong elements found, first {found.first}; there are {bad}, first {first}"
                )
        return ""
    finally:
        for buffer in buffers.values():
            buffer.free()


def _put(buffer: Buffer, p: GemmProblem, values: npt.NDArray[Any]) -> None:
    layout = layouts(p)["d"]
    raw = np.zeros(layout.bytes, np.uint8)
    layout.view(raw.view(layout.dtype.storage))[...] = values
    buffer.upload(raw)


# ---- timing --------------------------------------------------------------------------------------


def host_seconds(
    launch: Callable[[], object],
    synchronize: Callable[[], object],
    calls: int = CALLS,
    burst: int = BURST,
    repetitions: int = REPETITIONS,
) -> list[float]:
    """Seconds of host time per call, one value per repetition, after an untimed burst. Synchronisations lie
    between bursts and are not in the time."""
    found = []
    for turn in range(repetitions + 1):
        spent = 0.0
        for _ in range(1 if turn == 0 else max(1, calls // burst)):
            synchronize()
            begin = time.perf_counter()
            for _ in repeat(None, burst):
                launch()
            spent += time.perf_counter() - begin
        synchronize()
        if turn:
            found.append(spent / (burst * max(1, calls // burst)))
    return found


def launch_seconds(
    process: DeviceProcess, task: Task, solution: Solution, binary: str | None
) -> dict[str, float]:
    """Host seconds of a launch of a candidate on bound operands: {"median", "least", "most"} of the
    repetitions. Raises GemmtuneError."""
    with _bound(process, task, solution, binary) as launch:
        begin = time.perf_counter()
        launch()
        process.device.synchronize()
        whole = max(time.perf_counter() - begin, 1e-9)
        calls = max(1, min(CALLS, int(LAUNCHING_SECONDS / (REPETITIONS + 1) / whole)))
        found = host_seconds(launch, process.device.synchronize, calls, min(BURST, calls))
    return {"median": median(found), "least": min(found), "most": max(found)}


def clocks(process: DeviceProcess, task: Task, solution: Solution, binary: str | None) -> dict[str, Any]:
    """The resolution of the host's clock and, where the device times its own work, of the device's clock:
    the smallest difference between two readings, in seconds; and the median of a sample with one launch.
    Raises GemmtuneError."""
    readings = [time.perf_counter_ns() for _ in range(READINGS)]
    steps = [later - earlier for earlier, later in pairwise(readings) if later > earlier]
    found: dict[str, Any] = {"host_resolution_seconds": min(steps) * 1e-9 if steps else None}
    if process.device.traits.own_clock:
        kernel = process.load(task.problem, solution, {} if binary is None else {task.problem.id: binary})
        with _bound(process, task, solution, binary) as launch:
            series = process.device.series(kernel, [launch], "eager", [launch])
            try:
                samples = sorted(series.sample().seconds for _ in range(SAMPLES))
            finally:
                series.close()
        between = [later - earlier for earlier, later in pairwise(samples) if later > earlier]
        found["device_resolution_seconds"] = min(between) if between else None
        found["one_launch_seconds"] = median(samples)
    return found


@contextmanager
def _bound(process: DeviceProcess, task: Task, solution: Solution, binary: str | None) -> Iterator[Launch]:
    """The candidate bound to the task's first operand set, launched once. Raises GemmtuneError."""
    sets = process.open(task).sets
    kernel = process.device.load(task.problem, solution, None if binary is None else Path(binary))
    with _buffer(process.device, max(1, kernel.workspace_bytes)) as workspace:
        launch = kernel.bind(sets.of(kernel, 0), workspace.address)
        kernel.prepare()
        launch()
        process.device.synchronize()
        yield launch
        process.device.synchronize()


def bandwidths(process: DeviceProcess) -> dict[str, Any]:
    """Read and copy bandwidth in bytes/s, and the method. Raises GemmtuneError."""
    process.close()
    found = process.device.bandwidths()
    if not (found.read > 0 and found.copy > 0):
        raise GemmtuneError(f"a bandwidth is not above 0: read {found.read}, copy {found.copy} bytes/s")
    return {"read": found.read, "copy": found.copy, "method": found.method}
