"""The three ceilings of a CPU, measured: reading, copying, multiplying.

Reading and copying run over several times the last-level cache, on every core, in our own wide-load
kernels; with no compiler, in numpy reductions on threads. Multiplying is the best of every family's first
candidates on one large product. Each figure is the best of a few rounds: a ceiling is what was reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from backends.errors import CompileError, CompilerMissing, LaunchError
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_blas
from backends.protocol import Ceilings
from backends.solution import Solution

if TYPE_CHECKING:
    from backends.cpu.device import CpuDevice

_ROUNDS = 4
#: A product this large (per side) runs at the multiplying ceiling and still ends in tens of milliseconds.
PRODUCT = 1536
#: First candidates tried a family: the likeliest tiles at all cores.
_CANDIDATES = 3


def measure_ceilings(device: CpuDevice, dtypes: Sequence[str]) -> Ceilings:
    """Bytes/s of reading and copying (read + written), operations/s for each input type."""
    size = min(max(4 * device.cache_bytes, 2**26), device.free_bytes // 8)
    source, target = device.allocate(size), device.allocate(size)
    source.upload(np.random.default_rng(0).integers(0, 255, size, np.uint8))
    target.upload(np.zeros(size, np.uint8))
    threads = device.environment.units
    try:
        pool = device.runtime()
    except (CompilerMissing, CompileError):
        how = "numpy reductions and copies on threads"
        read, copy = _numpy_movers(device, size, threads)
    else:
        how = "own kernels, wide loads, all cores"

        def read() -> None:
            pool.gemmtune_read(source.address, size, threads)

        def copy() -> None:
            pool.gemmtune_copy(target.address, source.address, size, threads)

    read_rate, copy_rate = size / _best(read), 2 * size / _best(copy)
    source.free()
    target.free()
    flops = {}
    method = {"read": how, "copy": how}
    for name in dtypes:
        flops[name], method[name] = _multiply(device, name)
    return Ceilings(read_rate, copy_rate, flops, method)


def _best(run: Callable[[], object], enough: float = float("inf")) -> float:
    """Least seconds of _ROUNDS runs after a first; a first run over `enough` seconds is the answer."""
    begin = time.perf_counter()
    run()
    seconds = [time.perf_counter() - begin]
    for _ in range(_ROUNDS if seconds[0] <= enough else 0):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _numpy_movers(
    device: CpuDevice, size: int, threads: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    source = np.zeros(size // 8, np.int64)
    target = np.ones(size // 8, np.int64)
    parts = np.array_split(np.arange(source.size), threads)
    spans = [slice(part[0], part[-1] + 1) for part in parts if part.size]
    pool = ThreadPoolExecutor(threads)

    def read() -> None:
        list(pool.map(lambda span: source[span].max(), spans))

    def copy() -> None:
        list(pool.map(lambda span: np.copyto(target[span], source[span]), spans))

    return read, copy


def _multiply(device: CpuDevice, name: str) -> tuple[float, str]:
    """(operations/s, which candidate reached it) of a PRODUCT^3 product of input type `name`."""
    problem = from_blas(PRODUCT, PRODUCT, PRODUCT, name, trans_a="T")
    buffers = {key: device.allocate(layout.bytes) for key, layout in layouts(problem).items()}
    rng = np.random.default_rng(1)
    for key in ("a", "b"):
        layout = layouts(problem)[key]
        values = rng.standard_normal(layout.elements, np.float32) * (8 if name == "int8" else 1)
        buffers[key].upload(values.astype(layout.dtype.storage).view(np.uint8))
    operands = Operands(buffers["a"].address, buffers["b"].address, 0, buffers["d"].address, 0, 1.0, 0.0)
    best, which = float("inf"), "nothing"
    for solution in _first_candidates(device, problem):
        family = device.families[solution.family]
        try:
            binary = family.compile(problem, solution, device.environment, device.cache)
            kernel = family.load(problem, solution, binary, device)
        except (CompilerMissing, CompileError, LaunchError):
            continue
        workspace = device.allocate(kernel.workspace_bytes)
        kernel.prepare()
        seconds = _best(kernel.bind(operands, workspace.address), 2 * best)
        if seconds < best:
            best, which = seconds, solution.slug
    if which == "nothing":
        raise LaunchError(f"no candidate of the cpu backend multiplies {name}")
    return problem.flops / best, f"{which}, {PRODUCT}^3"


def _first_candidates(device: CpuDevice, problem: GemmProblem) -> list[Solution]:
    found = []
    for family in device.families.values():
        if family.unavailable(device.environment) is None and family.supports(problem):
            solutions = iter(family.solutions(problem, device.environment))
            found += [s for s, _ in zip(solutions, range(_CANDIDATES), strict=False)]
    return found
