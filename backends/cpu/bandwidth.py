"""Measures this CPU's read and copy bandwidths, the two ceilings of memory-bound problems.

Both use every core over several times the last-level cache, in our own wide-load kernels or, without a
compiler, in multithreaded numpy reductions and copies. The result is the best of a few rounds, since a
ceiling is the highest rate reached.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from backends.errors import CompileError, CompilerMissing
from backends.protocol import Bandwidths, Device

_ROUNDS = 5


def measure_bandwidths(device: Device, runtime: Callable[[], ctypes.CDLL]) -> Bandwidths:
    """Bytes/s of reading and of copying (read + written). `runtime` returns the library of our own kernels;
    if it raises CompilerMissing or CompileError, numpy is used."""
    size = min(max(3 * device.cache_bytes, 2**26), device.free_bytes // 8)
    source, target = device.allocate(size), device.allocate(size)
    try:
        for offset in range(0, size, 2**20):  # fault in every page before timing
            chunk = np.ones(min(2**20, size - offset), np.uint8)
            source.upload(chunk, offset)
            target.upload(chunk, offset)
        threads = device.environment.units
        try:
            pool = runtime()
        except (CompilerMissing, CompileError):
            read, copy = _numpy_movers(size, threads)
            method = "numpy reductions and copies, all cores"
        else:
            method = "own kernels with wide loads, all cores"

            def read() -> object:
                return pool.gemmtune_read(source.address, size, threads)

            def copy() -> object:
                return pool.gemmtune_copy(target.address, source.address, size, threads)

        return Bandwidths(size / _best(read), 2 * size / _best(copy), f"{method}, {size >> 20} MiB")
    finally:
        source.free()
        target.free()


def _best(run: Callable[[], object]) -> float:
    """The least seconds of _ROUNDS runs, after one warm-up run."""
    run()
    seconds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _numpy_movers(size: int, threads: int) -> tuple[Callable[[], object], Callable[[], object]]:
    source, target = np.zeros(size // 8, np.int64), np.ones(size // 8, np.int64)
    edges = np.linspace(0, source.size, threads + 1).astype(int)
    spans = [slice(a, b) for a, b in pairwise(edges) if b > a]
    pool = ThreadPoolExecutor(threads)

    def read() -> object:
        return list(pool.map(lambda span: source[span].max(), spans))

    def copy() -> object:
        return list(pool.map(lambda span: np.copyto(target[span], source[span]), spans))

    return read, copy
