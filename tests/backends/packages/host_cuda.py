"""libcuda's calls that docs/launch_package.py makes, on the host: modules are libraries of the emulator."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

from backends.gpu.null import NullDriver
from backends.kernels.tensor_map import TensorMap

#: Numbers of CUtensorMapDataType -> our types.
_DTYPES = {6: "fp16", 9: "bf16"}


class HostCuda:
    """Stands in for libcuda. `launched`: (entry, programmatic stream serialization) of every launch."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count(1)
        self._driver = NullDriver(memory_bytes=2**33)
        self._modules: dict[int, ctypes.CDLL] = {}
        self._functions: dict[int, tuple[str, Any]] = {}
        self.launched: list[tuple[str, bool]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate",
                    "cuStreamSynchronize", "cuFuncSetAttribute"):  # fmt: skip
            return lambda *_: 0
        raise AttributeError(name)

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:  # noqa: N802
        # Further apart than the host's alignment: device memory starts at multiples of 256 bytes.
        found = self._driver.allocate(size.value + 256)
        address._obj.value = -(-found // 256) * 256
        return 0

    def cuMemsetD8Async(self, address: Any, value: Any, size: Any, stream: Any) -> int:  # noqa: N802
        ctypes.memset(address.value, value.value, size.value)
        return 0

    def cuMemcpyHtoDAsync_v2(self, address: Any, data: bytes, size: Any, stream: Any) -> int:  # noqa: N802
        ctypes.memmove(address.value, data, size.value)
        return 0

    def cuMemcpyDtoHAsync_v2(self, data: Any, address: Any, size: Any, stream: Any) -> int:  # noqa: N802
        ctypes.memmove(data, address.value, size.value)
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:  # noqa: N802
        number = next(self._numbers)
        path = self._folder / f"module-{number}.so"
        path.write_bytes(image)
        self._modules[number] = ctypes.CDLL(str(path))
        module._obj.value = number
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:  # noqa: N802
        number = next(self._numbers)
        call = getattr(self._modules[module.value], f"launch_{name.decode()}")
        call.restype = ctypes.c_char_p
        self._functions[number] = name.decode(), call
        function._obj.value = number
        return 0

    def cuTensorMapEncodeTiled(self, at: Any, kind: Any, rank: Any, address: Any, *rest: Any) -> int:  # noqa: N802
        sizes, strides, box = (tuple(each) for each in rest[:3])
        one = TensorMap("", _DTYPES[kind.value], sizes, strides, box)
        ctypes.memmove(at.value, self._driver.encode_tensor_map(one, address.value), 128)
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: Any, extra: Any) -> int:  # noqa: N802
        one, (entry, call) = config._obj, self._functions[function.value]
        grid, shared = (ctypes.c_uint * 3)(*one.grid), ctypes.c_ulonglong(one.shared)
        fault = call(ctypes.c_void_p(pointers[0]), grid, one.block[0], shared, 0)
        assert not fault, fault
        self.launched.append((entry, any(each.id == 6 for each in one.attributes[: one.count])))
        return 0
