"""Stand-ins for what only a machine with a GPU has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.environment import Environment

LIBRARIES = {"cublas": "13.1.0.3", "cublaslt": "13.1.0.3", "torch": "2.9.1+cu128"}
ENVIRONMENT = Environment(
    "cuda", "sm_90", "NVIDIA H200", 132, 2**37, "GPU-0", driver="580.1", libraries=LIBRARIES
)


class LibraryError(Exception):
    """nvmath's cuBLASError, which cannot be made without the library."""

    __module__ = "nvmath.bindings.cublas"

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"status {status}")


class FakeBuffer:
    """Device memory that remembers what was put there."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size, self.data, self.freed = address, size, np.zeros(size, np.uint8), False

    def upload(self, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        self.data[offset : offset + data.size] = data

    def free(self) -> None:
        self.freed = True


class FakeFunction:
    """A kernel whose launches are written down."""

    def __init__(self, log: list[Any], name: tuple[Any, ...]) -> None:
        self._log, self._name = log, name

    def pack(self, *arguments: Any) -> tuple[Any, ...]:
        return arguments

    def launch(self, grid: Any, block: Any, arguments: Any, stream: int, shared: int = 0) -> None:
        self._log.append((self._name, grid, block, arguments, stream))


class FakeDevice:
    """What a family asks of a device."""

    environment = ENVIRONMENT
    stream = 77
    units = 132

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.buffers: list[FakeBuffer] = []
        self.log: list[Any] = []

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        return self.kept.setdefault(name, None) or self.kept.update({name: make()}) or self.kept[name]

    def allocate(self, size: int) -> FakeBuffer:
        self.buffers.append(FakeBuffer(0x10000 * (len(self.buffers) + 1), size))
        return self.buffers[-1]

    def function(self, source: str, name: str, defines: Any = None) -> FakeFunction:
        return FakeFunction(self.log, (source, name, tuple(sorted((defines or {}).items()))))

    def synchronize(self) -> None:
        pass
