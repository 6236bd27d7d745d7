"""The HIP runtime through hip-python: its calls, each checked, and what a status means for the caller.

hip-python is imported on first use; its libraries are opened at their first call. A machine without either
gets an answer. On a fault of a kernel ROCm usually ends the process itself: the parent sees a crash.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from backends.errors import ContextLost, DeviceLost, DeviceMemoryExceeded, LaunchError
from backends.gpu.driver import Arguments, FunctionAttributes, Launch
from backends.hip.library import LibraryMissing, function, open_library, prepared
from backends.kernels.launch import KernelLaunch
from backends.kernels.tensor_map import TensorMap
from backends.toolchains.rocm import find_library, why_missing

#: After these the context answers nothing any more: the process must end (hip_runtime_api.h, hipError_t).
CONTEXT_LOST = frozenset(
    {
        "hipErrorIllegalAddress",
        "hipErrorLaunchFailure",
        "hipErrorLaunchTimeOut",
        "hipErrorAssert",
        "hipErrorIllegalState",
        "hipErrorContextIsDestroyed",
        "hipErrorECCNotCorrectable",
        "hipErrorDeinitialized",
        "hipErrorUnknown",
        "hipErrorRuntimeOther",
    }
)
#: The device is not to be had; why, and what to do.
DEVICE_LOST = {
    "hipErrorNoDevice": "the driver sees no GPU (HIP_VISIBLE_DEVICES empty? may this user open /dev/kfd?)",
    "hipErrorInvalidDevice": "the GPU is gone",
    "hipErrorInsufficientDriver": "the amdgpu kernel driver is too old for this ROCm; update it",
    "hipErrorNotInitialized": "the runtime does not start (is the amdgpu kernel driver loaded?)",
}


class RuntimeMissing(Exception):
    """No HIP runtime or no hip-python; the message says which, and where it was sought."""


@lru_cache(maxsize=1)
def api() -> Any:
    """hip-python's module `hip`. Raises RuntimeMissing."""
    if find_library("amdhip64") is None:
        raise RuntimeMissing(why_missing("amdhip64"))
    try:
        from hip import hip  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise RuntimeMissing(f"hip-python is not installed ({error}); pip install 'gemmtune[hip]'") from error
    return hip


def device_count() -> int:
    """GPUs that this process may see, at least one. Raises RuntimeMissing where the runtime does not load or
    sees none: a library such as hipBLASLt ends a process that has no device."""
    try:
        result = api().hipGetDeviceCount()
    except RuntimeError as error:  # hip-python's answer where a library or one of its symbols is missing
        raise RuntimeMissing(f"the HIP runtime does not load: {error}") from error
    name = result[0].name
    if name == "hipSuccess" and int(result[1]) > 0:
        return int(result[1])
    name = "hipErrorNoDevice" if name == "hipSuccess" else name
    raise RuntimeMissing(f"the HIP runtime sees no GPU: {name}{_hint(name)}")


def _hint(name: str) -> str:
    return f" ({DEVICE_LOST[name]})" if name in DEVICE_LOST else ""


def check(result: Sequence[Any], what: str) -> Any:
    """The values of a call's result tuple: none, the one, or a tuple. Raises ContextLost, DeviceLost,
    DeviceMemoryExceeded or LaunchError, which name the call and the runtime's status."""
    name = result[0].name
    if name != "hipSuccess":
        raise_for(name, what)
    return None if len(result) == 1 else result[1] if len(result) == 2 else tuple(result[1:])


def raise_for(name: str, what: str) -> None:
    """The exception of a runtime's status."""
    text = f"{what}: {name}{_hint(name)}"
    if name == "hipErrorOutOfMemory":
        raise DeviceMemoryExceeded(text)
    if name in CONTEXT_LOST:
        raise ContextLost(text)
    if name in DEVICE_LOST:
        raise DeviceLost(text)
    raise LaunchError(text)


#: hipStreamNonBlocking; hipStreamCaptureModeRelaxed; hipFuncAttributes in the order of FunctionAttributes.
_NON_BLOCKING = 1
_REGISTERS, _LOCAL, _SHARED = "NUM_REGS", "LOCAL_SIZE_BYTES", "SHARED_SIZE_BYTES"


@lru_cache(maxsize=1)
def _launcher() -> Any:
    """hipModuleLaunchKernel of the runtime that hip-python has opened, through ctypes, because hip-python
    converts every argument at every launch. Raises RuntimeMissing."""
    pointer, sizes = ctypes.c_void_p, (ctypes.c_uint,) * 7
    try:
        types = (pointer, *sizes, pointer, pointer, pointer)
        return function(open_library("amdhip64"), "hipModuleLaunchKernel", types)
    except LibraryMissing as error:
        raise RuntimeMissing(str(error)) from error


class HipDriver:
    """backends.gpu.driver.Driver of one AMD GPU, by its index among the process's: its primary context is the
    one that torch, hipBLASLt and rocBLAS use too."""

    def __init__(self, index: int) -> None:
        self._index = index

    # ---- the device

    def open(self) -> int:
        """See Driver; the context is the device's primary one."""
        hip = api()
        check(hip.hipSetDevice(self._index), f"device {self._index}")
        self._properties = check(hip.hipGetDeviceProperties(self._index), "hipGetDeviceProperties")
        self._stream = check(hip.hipStreamCreateWithFlags(_NON_BLOCKING), "hipStreamCreateWithFlags")
        return int(self._stream)

    def ordinal(self) -> int:
        """See Driver."""
        return self._index

    def units(self) -> int:
        """CUs of CDNA, WGPs of RDNA, as the runtime counts multiprocessors."""
        return int(self._properties.multiProcessorCount)

    def cache_bytes(self) -> int:
        """Of L2; MI300's Infinity Cache (256 MiB) lies behind it, and the runtime does not report it."""
        return int(self._properties.l2CacheSize)

    def free_bytes(self) -> int:
        """See Driver."""
        return int(check(api().hipMemGetInfo(), "hipMemGetInfo")[0])

    # ---- memory

    def allocate(self, size: int) -> int:
        """See Driver."""
        return int(check(api().hipMalloc(size), f"allocating {size} bytes"))

    def free(self, address: int) -> None:
        """See Driver."""
        check(api().hipFree(address), "hipFree")

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        check(api().hipMemcpyHtoDAsync(target, source, size, stream), f"copying {size} bytes in")

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        check(api().hipMemcpyDtoHAsync(target, source, size, stream), f"copying {size} bytes out")

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        check(api().hipMemcpyDtoDAsync(target, source, size, stream), f"copying {size} bytes")

    def fill(self, address: int, value: int, size: int, stream: int) -> None:
        """See Driver."""
        check(api().hipMemsetD8Async(address, value, size, stream), f"filling {size} bytes")

    # ---- stream and events

    def synchronize(self, stream: int) -> None:
        """See Driver."""
        check(api().hipStreamSynchronize(stream), "waiting for the device")

    def create_event(self) -> Any:
        """See Driver."""
        return check(api().hipEventCreateWithFlags(0), "hipEventCreateWithFlags")

    def record(self, event: Any, stream: int) -> None:
        """See Driver."""
        check(api().hipEventRecord(event, stream), "hipEventRecord")

    def elapsed_seconds(self, begin: Any, end: Any) -> float:
        """See Driver."""
        hip = api()
        check(hip.hipEventSynchronize(end), "waiting for the launches")
        return float(check(hip.hipEventElapsedTime(begin, end), "hipEventElapsedTime")) * 1e-3

    def destroy_event(self, event: Any) -> None:
        """See Driver."""
        check(api().hipEventDestroy(event), "hipEventDestroy")

    # ---- graphs

    def begin_capture(self, stream: int) -> None:
        """See Driver."""
        mode = api().hipStreamCaptureMode.hipStreamCaptureModeRelaxed
        check(api().hipStreamBeginCapture(stream, mode), "hipStreamBeginCapture")

    def end_capture(self, stream: int) -> Any:
        """See Driver."""
        return check(api().hipStreamEndCapture(stream), "capturing the launches")

    def abandon_capture(self, stream: int) -> None:
        """See Driver."""
        result = api().hipStreamEndCapture(stream)
        if result[1]:
            api().hipGraphDestroy(result[1])

    def instantiate(self, graph: Any, stream: int) -> Any:
        """See Driver."""
        hip = api()
        executable = check(hip.hipGraphInstantiateWithFlags(graph, 0), "hipGraphInstantiateWithFlags")
        try:
            check(hip.hipGraphUpload(executable, stream), "hipGraphUpload")
        except BaseException:
            hip.hipGraphExecDestroy(executable)
            raise
        return executable

    def launch_graph(self, executable: Any, stream: int) -> None:
        """See Driver."""
        check(api().hipGraphLaunch(executable, stream), "hipGraphLaunch")

    def destroy_graph(self, graph: Any, executable: Any | None) -> None:
        """See Driver."""
        hip = api()
        if executable is not None:
            check(hip.hipGraphExecDestroy(executable), "hipGraphExecDestroy")
        check(hip.hipGraphDestroy(graph), "hipGraphDestroy")

    # ---- modules and kernels

    def load_module(self, image: bytes, name: str) -> Any:
        """See Driver."""
        return check(api().hipModuleLoadData(image), f"loading {name}")

    def unload_module(self, module: Any) -> None:
        """See Driver."""
        api().hipModuleUnload(module)

    def get_function(self, module: Any, name: str) -> Any:
        """See Driver."""
        return check(api().hipModuleGetFunction(module, name.encode()), f"kernel {name}")

    def allow_shared(self, function: Any, size: int, name: str) -> None:
        """Nothing: a launch may ask for all of the LDS that a workgroup can have."""

    def attributes(self, function: Any, name: str) -> FunctionAttributes:
        """See Driver."""
        hip = api()

        def value(what: str) -> int:
            member = getattr(hip.hipFunction_attribute, f"HIP_FUNC_ATTRIBUTE_{what}")
            return int(check(hip.hipFuncGetAttribute(member, function), f"{what} of {name}"))

        return FunctionAttributes(value(_REGISTERS), value(_LOCAL), value(_SHARED))

    def blocks_per_unit(self, function: Any, threads: int, shared: int, name: str) -> int:
        """See Driver."""
        found = api().hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)
        return int(check(found, f"occupancy of {name}"))

    # ---- launches

    def make_launch(
        self, function: Any, launch: KernelLaunch, arguments: Arguments, stream: int, dependent: bool
    ) -> Launch:
        """See Driver; HIP has no programmatic dependent launch, so that `dependent` changes nothing."""
        sizes = (*launch.grid, *launch.block, launch.shared_bytes)
        queue = prepared(_launcher(), (int(function), *sizes, stream, arguments.address, None))

        def run(_alive: Arguments = arguments) -> None:
            status = queue()
            if status:
                name = api().hipError_t(status).name
                raise_for(name, f"launch of {launch.entry} on {launch.grid} blocks of {launch.block}")

        return run

    def encode_tensor_map(self, tensor_map: TensorMap, operand: int) -> bytes:
        """AMD's GPUs have no copy engine that takes tensor maps. Raises LaunchError."""
        raise LaunchError(f"{tensor_map.operand} wants a tensor map, which AMD's GPUs do not have")
