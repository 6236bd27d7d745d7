"""Host memory as kernels on the emulator see an allocation."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class HostBuffer:
    """Host memory that ends (but for 15 bytes at most) where a page begins that nobody may touch."""

    def __init__(self, size: int) -> None:
        self.size = size
        used = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = np.frombuffer(mmap.mmap(-1, used + mmap.PAGESIZE), np.uint8)
        beyond = ctypes.c_void_p(int(pages.ctypes.data) + used)
        assert ctypes.CDLL(None).mprotect(beyond, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        start = used - -(-size // 16) * 16
        self.bytes: Bytes = pages[start : start + size]
        self.address = int(pages.ctypes.data) + start

    def upload(self, data: Bytes, offset: int = 0) -> None:
        self.bytes[offset : offset + data.size] = data

    def download(self, offset: int, size: int) -> Bytes:
        assert 0 <= offset <= offset + size <= self.size
        return self.bytes[offset : offset + size].copy()

    def free(self) -> None:
        """The memory goes with the object."""
