"""The CUDA driver's calls that we use, each checked; what a status means for whoever asked.

cuda-bindings is imported on first use: a machine without it, or without a driver, gets an answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import finalize

from backends.errors import ContextLost, DeviceLost, DeviceMemoryExceeded, LaunchError
from backends.kernels.legality import DEPENDENT_LAUNCHES, capability
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


class Function:
    """A kernel of a loaded module, which stays loaded as long."""

    def __init__(self, handle: Any, name: str, module: Module | None = None) -> None:
        self._handle, self.name, self._module = handle, name, module

    def allow_shared(self, size: int) -> None:
        """Lets a launch ask for more dynamic shared memory than 48 KiB."""
        cu = api()
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu.cuFuncSetAttribute(self._handle, attribute, size), f"cuFuncSetAttribute of {self.name}")

    def attribute(self, name: str) -> int:
        """CU_FUNC_ATTRIBUTE_NAME: NUM_REGS, LOCAL_SIZE_BYTES, SHARED_SIZE_BYTES, ..."""
        cu = api()
        member = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(check(cu.cuFuncGetAttribute(member, self._handle), f"{name} of {self.name}"))

    def blocks_per_unit(self, threads: int, shared: int) -> int:
        """Blocks of this size that a multiprocessor holds at once."""
        found = api().cuOccupancyMaxActiveBlocksPerMultiprocessor(self._handle, threads, shared)
        return int(check(found, f"occupancy of {self.name}"))

    def resources(self, threads: int, shared: int) -> Mapping[str, int]:
        """What it takes launched in such blocks, with so many bytes of dynamic shared memory
        (protocol.CompiledKernel)."""
        return {
            "registers": self.attribute("NUM_REGS"),
            "local_bytes": self.attribute("LOCAL_SIZE_BYTES"),
            "shared_bytes": self.attribute("SHARED_SIZE_BYTES") + shared,
            "threads": threads,
            "blocks_per_unit": self.blocks_per_unit(threads, shared),
        }

    def pack(self, *arguments: Any) -> Arguments:
        """Arguments (ctypes values) made ready once for many launches."""
        return Arguments(arguments)

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Arguments,
        stream: int,
        shared: int = 0,
    ) -> None:
        """Queues it. Raises LaunchError."""
        result = api().cuLaunchKernel(self._handle, *grid, *block, shared, stream, arguments.address, 0)
        if result[0] != 0:
            check(result, f"launch of {self.name} on {grid} blocks of {block}")

    def dependent(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Arguments,
        stream: int,
        shared: int = 0,
    ) -> Callable[[], None]:
        """A launch, made ready once, that may start while the one queued before it ends, and whose kernel
        waits for that one's stores itself (portable.h: wait_for_launches()). For GPUs of sm_90 and later;
        graphs capture it as it is. Calling what is returned queues it, and raises LaunchError."""
        cu, handle = api(), self._handle
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared, stream
        config.attrs, config.numAttrs = [attribute], 1

        def launch() -> None:
            result = cu.cuLaunchKernelEx(config, handle, arguments.address, 0)
            if result[0] != 0:
                check(result, f"dependent launch of {self.name} on {grid} blocks of {block}")

        return launch


#: gemmtune's type -> CUtensorMapDataType_enum's.
_TENSOR_TYPES = {"fp16": "FLOAT16", "bf16": "BFLOAT16"}


def encoded_map(found: TensorMap, operand: int) -> bytes:
    """A map of the operand at that address, as the copy engine takes it. Raises LaunchError."""
    cu = api()
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


class Arguments:
    """Kernel arguments as the array of pointers that a launch takes; keeps what they point to alive."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)
        self._pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.address = ctypes.addressof(self._pointers)


def on_heels(
    function: Function,
    device: Any,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: Arguments,
    shared: int = 0,
) -> Callable[[], None]:
    """A launch on the device's stream, made ready once, on the heels of what was queued before it where the
    device knows how, else plain. Only for kernels that wait for that themselves. Calling what is returned
    queues it, and raises LaunchError."""
    how = grid, block, arguments, device.stream, shared
    if capability(device.environment) >= DEPENDENT_LAUNCHES:
        return function.dependent(*how)
    return partial(function.launch, *how)


class Module:
    """A cubin loaded into the current context: the file's, or `image`, which lies within it. It is unloaded
    when neither it nor a kernel of it is held any more."""

    def __init__(self, path: Path, image: bytes | None = None) -> None:
        cu, code = api(), path.read_bytes() if image is None else image
        self._handle = check(cu.cuModuleLoadData(code), f"loading {path.name}")
        # Whatever its status: a context that is lost has unloaded it. At the exit there is no context.
        finalize(self, cu.cuModuleUnload, self._handle).atexit = False

    def function(self, name: str) -> Function:
        """The kernel called `name` (extern "C")."""
        handle = check(api().cuModuleGetFunction(self._handle, name.encode()), f"kernel {name}")
        return Function(handle, name, self)
