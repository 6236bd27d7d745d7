"""What differs between device types: streams, capture, and the workspace of a launch."""

from __future__ import annotations

import ctypes
import os
import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gemmtune.drivers.protocol import address_of
from gemmtune.torch.errors import ServingError


class Runtime(ABC):
    """torch's streams and allocator on one device type."""

    type: str
    #: Whether the process has several devices of the type.
    several = False
    #: The address of the function that writes the current stream (int32_t device, void **stream), for the C++
    #: extension: 0 for a device without streams, None where torch has none.
    stream_function: int | None = 0

    @abstractmethod
    def stream(self, index: int) -> int:
        """The handle of torch's current stream on device `index`."""

    @abstractmethod
    def capture(self, stream: int) -> int | None:
        """0 if the stream is not being captured, else the capture's number; None if it has no number that can
        be asked for."""

    @abstractmethod
    def workspace(self, index: int, stream: int, size: int, alignment: int) -> tuple[int, Any]:
        """An address of `size` bytes for one launch, and what must live until the launch is queued."""

    @abstractmethod
    def workspace_bytes(self) -> int:
        """Bytes of workspaces that are held between launches."""

    @abstractmethod
    def guard(self, index: int) -> AbstractContextManager[Any]:
        """A context manager in which device `index` is current; needed where there are several."""


class CpuRuntime(Runtime):
    """One device, no streams: a launch has computed when it returns."""

    type = "cpu"

    def __init__(self) -> None:
        self._local = threading.local()

    def stream(self, index: int) -> int:
        """0."""
        return 0

    def capture(self, stream: int) -> int | None:
        """0."""
        return 0

    def workspace(self, index: int, stream: int, size: int, alignment: int) -> tuple[int, Any]:
        """One buffer a thread, as large as the largest that was asked for."""
        held = getattr(self._local, "held", None)
        if held is None or held.numel() < size + alignment:
            held = self._local.held = torch.empty(size + alignment, dtype=torch.uint8, device="cpu")
        return -(-held.data_ptr() // alignment) * alignment, held

    def workspace_bytes(self) -> int:
        """Of the calling thread."""
        held = getattr(self._local, "held", None)
        return 0 if held is None else int(held.numel())

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """Does nothing."""
        return nullcontext()


class GpuRuntime(Runtime):
    """CUDA, and HIP under torch's name for it."""

    type = "cuda"

    def __init__(self) -> None:
        torch.cuda.init()
        #: torch's accessor without its Python wrapper, which takes longer than a launch may.
        self._stream = torch._C._cuda_getCurrentRawStream
        self.several = torch.cuda.device_count() > 1
        self.stream_function = _stream_function()
        #: (device, stream) -> the workspace, which one launch after another uses.
        self._held: dict[tuple[int, int], Any] = {}
        self._capture_info = _capture_info()

    def stream(self, index: int) -> int:
        """The raw stream."""
        return int(self._stream(index))

    def capture(self, stream: int) -> int | None:
        """Asks the driver for the number of the capture."""
        if not torch.cuda.is_current_stream_capturing():
            return 0
        return None if self._capture_info is None else self._capture_info(stream)

    def workspace(self, index: int, stream: int, size: int, alignment: int) -> tuple[int, Any]:
        """Under capture a fresh buffer, which like an output is of the graph's own pool: a replay may run
        beside launches of any stream. Else one buffer a stream."""
        if torch.cuda.is_current_stream_capturing():
            held = _bytes(index, size + alignment)
        else:
            held = self._held.get((index, stream))
            if held is None or held.numel() < size + alignment:
                # The buffer that this replaces is reused in the stream's order, as torch's allocator has it.
                held = self._held[(index, stream)] = _bytes(index, size + alignment)
        return -(-held.data_ptr() // alignment) * alignment, held

    def workspace_bytes(self) -> int:
        """Of every stream; those of captured graphs are the graphs'."""
        return sum(int(held.numel()) for held in self._held.values())

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """torch.cuda.device, if another one is current."""
        if torch.cuda.current_device() == index:
            return nullcontext()
        guard: AbstractContextManager[Any] = torch.cuda.device(index)
        return guard


def _bytes(index: int, size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", index))


def _stream_function() -> int | None:
    """torch's own C function, which it exports for compiled graphs."""
    library = "libtorch_hip.so" if torch.version.hip else "libtorch_cuda.so"
    try:
        loaded = ctypes.CDLL(library, os.RTLD_NOW | os.RTLD_NOLOAD)
        return address_of(loaded.aoti_torch_get_current_cuda_stream)
    except (OSError, AttributeError):
        return None


def _capture_info() -> Any:
    """stream -> the capture's number, asked of the driver; None where the driver has no such call."""
    name, function = (
        ("libamdhip64.so", "hipStreamGetCaptureInfo")
        if torch.version.hip
        else ("libcuda.so.1", "cuStreamGetCaptureInfo_v2")
    )
    try:
        call = getattr(ctypes.CDLL(name), function)
    except (OSError, AttributeError):
        return None
    rest = (None,) * (0 if torch.version.hip else 3)

    def info(stream: int) -> int | None:
        status, number = ctypes.c_int(), ctypes.c_ulonglong()
        failed = call(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), *rest)
        return None if failed or status.value != 1 else number.value

    return info


def runtime_of(vendor: str) -> Runtime:
    """The runtime that runs a vendor's rows. Raises ServingError if this torch has none."""
    if vendor == "cpu":
        return CpuRuntime()
    build = torch.version.hip if vendor == "hip" else torch.version.cuda
    if build is None:
        raise ServingError(
            f"the table is for {vendor}, and this torch ({torch.__version__}) is built without it"
        )
    if not torch.cuda.is_available():
        raise ServingError(f"the table is for {vendor}, and torch finds no such device in this process")
    return GpuRuntime()
