"""The CUDA driver: its calls, each checked, and what a status means for the caller.

cuda-bindings is imported on first use: a machine without it, or without a driver, gets an answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from backends.errors import ContextLost, DeviceLost, DeviceMemoryExceeded, LaunchError
from backends.gpu.driver import Arguments, FunctionAttributes, Launch
from backends.kernels.launch import KernelLaunch
from backends.kernels.tensor_map import MAP_BYTES, TensorMap

#: After these the context answers nothing any more: the process must end (CUDA driver API, CUresult).
CONTEXT_LOST = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_UNKNOWN",
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_EXTERNAL_DEVICE",
    }
)
#: The device is not to be had; why, and what to do.
DEVICE_LOST = {
    "CUDA_ERROR_NO_DEVICE": "the driver sees no GPU (CUDA_VISIBLE_DEVICES empty? fallen off the bus?)",
    "CUDA_ERROR_INVALID_DEVICE": "the GPU is gone",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another process uses the GPU alone (compute mode); wait or stop it",
    "CUDA_ERROR_DEVICE_NOT_LICENSED": "the GPU has no licence",
    "CUDA_ERROR_SYSTEM_NOT_READY": "the system is not ready (is nvidia-fabricmanager running?)",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "driver and kernel module differ; reboot, or reload the module",
    "CUDA_ERROR_MPS_CONNECTION_FAILED": "the MPS server does not answer",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": "NVLink failed",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the GPU's memory has an error that it cannot correct; reset it",
}


class DriverMissing(Exception):
    """No driver, no cuda-bindings, or a driver too old; the message says which."""


#: What the bindings and libraries of the `cuda` extra are of.
OLDEST_DRIVER = 13000


@lru_cache(maxsize=1)
def api() -> Any:
    """cuda.bindings.driver, initialised. Raises DriverMissing."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise DriverMissing(
            f"cuda-bindings is not installed ({error}); pip install 'gemmtune[cuda]'"
        ) from error
    try:
        (status,) = driver.cuInit(0)
    except Exception as error:  # the loader's own exceptions
        raise DriverMissing("no NVIDIA driver on this machine (libcuda.so is not found)") from error
    name = status.name
    if name == "CUDA_ERROR_NO_DEVICE":
        raise DriverMissing("an NVIDIA driver, but no GPU that this process may see (CUDA_VISIBLE_DEVICES?)")
    if name != "CUDA_SUCCESS":
        raise DriverMissing(f"the NVIDIA driver does not start: {name}{_hint(name)}")
    version = check(driver.cuDriverGetVersion(), "cuDriverGetVersion")
    if version < OLDEST_DRIVER:
        wanted, found = _version(OLDEST_DRIVER), _version(version)
        raise DriverMissing(
            f"the NVIDIA driver is too old: it knows CUDA {found}, {wanted} is needed; update it"
        )
    return driver


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _hint(name: str) -> str:
    return f" ({DEVICE_LOST[name]})" if name in DEVICE_LOST else ""


def check(result: Sequence[Any], what: str) -> Any:
    """The values of a call's result tuple: none, the one, or a tuple. Raises ContextLost, DeviceLost,
    DeviceMemoryExceeded or LaunchError, which name the call and the driver's status."""
    name = result[0].name
    if name != "CUDA_SUCCESS":
        raise_for(name, what)
    return None if len(result) == 1 else result[1] if len(result) == 2 else tuple(result[1:])


def raise_for(name: str, what: str) -> None:
    """The exception of a driver's status."""
    text = f"{what}: {name}{_hint(name)}"
    if name == "CUDA_ERROR_OUT_OF_MEMORY":
        raise DeviceMemoryExceeded(text)
    if name in CONTEXT_LOST:
        raise ContextLost(text)
    if name in DEVICE_LOST:
        raise DeviceLost(text)
    raise LaunchError(text)


#: gemmtune's type -> CUtensorMapDataType_enum's.
_TENSOR_TYPES = {
    "fp16": "FLOAT16", "bf16": "BFLOAT16", **dict.fromkeys(("int8", "fp8_e4m3", "fp8_e5m2"), "UINT8")
}  # fmt: skip


class CudaDriver:
    """backends.gpu.driver.Driver of one NVIDIA GPU, by its index among the process's: its primary context is
    the one that torch and cuBLAS use too."""

    def __init__(self, index: int) -> None:
        self._index = index

    # ---- the device

    def open(self) -> int:
        """See Driver; the context is the device's primary one."""
        cu = api()
        self._device = check(cu.cuDeviceGet(self._index), f"device {self._index}")
        self._context = check(cu.cuDevicePrimaryCtxRetain(self._device), "cuDevicePrimaryCtxRetain")
        check(cu.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
        flags = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = check(cu.cuStreamCreate(flags), "cuStreamCreate")
        return int(self._stream)

    def ordinal(self) -> int:
        """See Driver."""
        return self._index

    def units(self) -> int:
        """See Driver."""
        return self._attribute("MULTIPROCESSOR_COUNT")

    def cache_bytes(self) -> int:
        """See Driver."""
        return self._attribute("L2_CACHE_SIZE")

    def _attribute(self, name: str) -> int:
        attribute = getattr(api().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(api().cuDeviceGetAttribute(attribute, self._device), name))

    def free_bytes(self) -> int:
        """See Driver."""
        return int(check(api().cuMemGetInfo(), "cuMemGetInfo")[0])

    # ---- memory

    def allocate(self, size: int) -> int:
        """See Driver."""
        return int(check(api().cuMemAlloc(size), f"allocating {size} bytes"))

    def free(self, address: int) -> None:
        """See Driver."""
        check(api().cuMemFree(address), "cuMemFree")

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        check(api().cuMemcpyHtoDAsync(target, source, size, stream), f"copying {size} bytes in")

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        check(api().cuMemcpyDtoHAsync(target, source, size, stream), f"copying {size} bytes out")

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        check(api().cuMemcpyDtoDAsync(target, source, size, stream), f"copying {size} bytes")

    def fill(self, address: int, value: int, size: int, stream: int) -> None:
        """See Driver."""
        check(api().cuMemsetD8Async(address, value, size, stream), f"filling {size} bytes")

    # ---- stream and events

    def synchronize(self, stream: int) -> None:
        """See Driver."""
        check(api().cuStreamSynchronize(stream), "waiting for the device")

    def create_event(self) -> Any:
        """See Driver."""
        return check(api().cuEventCreate(0), "cuEventCreate")

    def record(self, event: Any, stream: int) -> None:
        """See Driver."""
        check(api().cuEventRecord(event, stream), "cuEventRecord")

    def elapsed_seconds(self, begin: Any, end: Any) -> float:
        """See Driver."""
        cu = api()
        check(cu.cuEventSynchronize(end), "waiting for the launches")
        return float(check(cu.cuEventElapsedTime(begin, end), "cuEventElapsedTime")) * 1e-3

    def destroy_event(self, event: Any) -> None:
        """See Driver."""
        check(api().cuEventDestroy(event), "cuEventDestroy")

    # ---- graphs

    def begin_capture(self, stream: int) -> None:
        """See Driver."""
        mode = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(api().cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture")

    def end_capture(self, stream: int) -> Any:
        """See Driver."""
        return check(api().cuStreamEndCapture(stream), "capturing the launches")

    def abandon_capture(self, stream: int) -> None:
        """See Driver."""
        _, graph = api().cuStreamEndCapture(stream)
        if graph:
            api().cuGraphDestroy(graph)

    def instantiate(self, graph: Any, stream: int) -> Any:
        """See Driver."""
        cu = api()
        executable = check(cu.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
        try:
            check(cu.cuGraphUpload(executable, stream), "cuGraphUpload")
        except BaseException:
            cu.cuGraphExecDestroy(executable)
            raise
        return executable

    def launch_graph(self, executable: Any, stream: int) -> None:
        """See Driver."""
        check(api().cuGraphLaunch(executable, stream), "cuGraphLaunch")

    def destroy_graph(self, graph: Any, executable: Any | None) -> None:
        """See Driver."""
        cu = api()
        if executable is not None:
            check(cu.cuGraphExecDestroy(executable), "cuGraphExecDestroy")
        check(cu.cuGraphDestroy(graph), "cuGraphDestroy")

    # ---- modules and kernels

    def load_module(self, image: bytes, name: str) -> Any:
        """See Driver."""
        return check(api().cuModuleLoadData(image), f"loading {name}")

    def unload_module(self, module: Any) -> None:
        """See Driver."""
        api().cuModuleUnload(module)

    def get_function(self, module: Any, name: str) -> Any:
        """See Driver."""
        return check(api().cuModuleGetFunction(module, name.encode()), f"kernel {name}")

    def allow_shared(self, function: Any, size: int, name: str) -> None:
        """See Driver."""
        cu = api()
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu.cuFuncSetAttribute(function, attribute, size), f"cuFuncSetAttribute of {name}")

    def attributes(self, function: Any, name: str) -> FunctionAttributes:
        """See Driver."""
        cu = api()

        def value(what: str) -> int:
            member = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{what}")
            return int(check(cu.cuFuncGetAttribute(member, function), f"{what} of {name}"))

        return FunctionAttributes(value("NUM_REGS"), value("LOCAL_SIZE_BYTES"), value("SHARED_SIZE_BYTES"))

    def blocks_per_unit(self, function: Any, threads: int, shared: int, name: str) -> int:
        """See Driver."""
        found = api().cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)
        return int(check(found, f"occupancy of {name}"))

    # ---- launches

    def make_launch(
        self, function: Any, launch: KernelLaunch, arguments: Arguments, stream: int, dependent: bool
    ) -> Launch:
        """See Driver."""
        if dependent:
            return _dependent(function, launch, arguments, stream)
        queue, address = api().cuLaunchKernel, arguments.address
        how = (*launch.grid, *launch.block, launch.shared_bytes, stream, address, 0)

        def run(_alive: Arguments = arguments) -> None:
            result = queue(function, *how)
            if result[0] != 0:
                check(result, f"launch of {launch.entry} on {launch.grid} blocks of {launch.block}")

        return run

    def encode_tensor_map(self, tensor_map: TensorMap, operand: int) -> bytes:
        """See Driver."""
        cu, found = api(), tensor_map
        result = cu.cuTensorMapEncodeTiled(
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TENSOR_TYPES[found.dtype]}"),
            len(found.sizes), operand,
            [cu.cuuint64_t(size) for size in found.sizes], [cu.cuuint64_t(size) for size in found.strides],
            [cu.cuuint32_t(size) for size in found.box], [cu.cuuint32_t(1) for _ in found.box],
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        made = check(result, f"a map of {found.operand} at {operand:#x}")
        return ctypes.string_at(made.getPtr(), MAP_BYTES)


def _dependent(function: Any, launch: KernelLaunch, arguments: Arguments, stream: int) -> Launch:
    """A programmatic dependent launch: it may start while the one queued before it ends, and its kernel waits
    for that one's stores itself (portable.h: wait_for_launches()). Graphs capture it as it is."""
    cu, address = api(), arguments.address
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes, config.hStream = launch.shared_bytes, stream
    config.attrs, config.numAttrs = [attribute], 1
    queue = cu.cuLaunchKernelEx

    def run(_alive: Arguments = arguments) -> None:
        result = queue(config, function, address, 0)
        if result[0] != 0:
            check(result, f"dependent launch of {launch.entry} on {launch.grid} blocks of {launch.block}")

    return run
