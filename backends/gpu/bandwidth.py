"""The memory ceilings: a large array read, and copied, by kernels of ours; the best of several grids."""

from __future__ import annotations

import ctypes

from backends.dtypes import DTYPES
from backends.gpu.context import GpuContext
from backends.gpu.device_reference import GpuReference
from backends.gpu.series import EagerSeries
from backends.kernels.launch import KernelLaunch
from backends.operands import Layout
from backends.protocol import Bandwidths

#: Bytes of each array: far beyond any cache.
SIZE = 2 * 2**30
_THREADS = 512
#: Blocks a multiprocessor that are tried.
_BLOCKS = (2, 4, 8, 16, 32)
_SAMPLES, _LAUNCHES = 5, 4


class MovedWords(ctypes.Structure):
    """bandwidth.h: MovedWords."""

    _fields_ = (("source", ctypes.c_void_p), ("target", ctypes.c_void_p), ("count", ctypes.c_uint64))


class _Nothing:
    """A kernel with nothing to prepare."""

    workspace_bytes = 0
    partial_sums = 1

    def prepare(self) -> None:
        pass


def measure_bandwidths(device: GpuContext, reference: GpuReference) -> Bandwidths:
    """Bytes/s of reading and of copying (read + written); random words, so that nothing is compressed."""
    size = min(SIZE, device.free_bytes // 4) // 4096 * 4096
    source, target = device.allocate(size), device.allocate(size)
    try:
        words = size // 4
        reference.draw(Layout(words, 1, words, 0, 1, DTYPES["fp32"]), source.address, 0, "normal")
        argument = MovedWords(source.address, target.address, size // 16)
        read, read_blocks = _best(device, "read_words", argument, size)
        copied, copy_blocks = _best(device, "copy_words", argument, size)
    finally:
        source.free()
        target.free()
    method = (
        f"best of {_SAMPLES} x {_LAUNCHES} launches over {size / 2**30:.2g} GiB of random words, "
        f"{read_blocks} (read) and {copy_blocks} (copy) blocks of {_THREADS} threads a multiprocessor"
    )
    return Bandwidths(read, 2 * copied, method)


def _best(device: GpuContext, name: str, argument: MovedWords, size: int) -> tuple[float, int]:
    """Bytes of the array a second, and the blocks a multiprocessor that reached it."""
    function = device.function("bandwidth.h", name)
    found = []
    for blocks in _BLOCKS:
        shape = KernelLaunch(name, (blocks * device.units, 1, 1), (_THREADS, 1, 1))
        one = device.bind(function, shape, argument)
        series = EagerSeries(device, _Nothing(), [one] * _LAUNCHES, [one])  # type: ignore[arg-type]
        fastest = min(series.sample().seconds for _ in range(_SAMPLES))
        series.close()
        found.append((size / fastest, blocks))
    return max(found)
