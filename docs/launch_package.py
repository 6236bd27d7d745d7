"""Runs a package of GET /v1/solutions/{id}/binary on an NVIDIA GPU by the driver alone: no gemmtune, no CUDA
toolkit. `python launch_package.py PACKAGE.zip` launches it on zeros; Package.run() takes your addresses."""

from __future__ import annotations

import ctypes
import json
import struct
import sys
import zipfile
from collections.abc import Mapping

#: C's type of an argument -> its format in Python's struct.
FORMATS = {
    "void *": "Q",
    "long long": "q",
    "int": "i",
    "unsigned int": "I",
    "float": "f",
    "CUtensorMap": "128s",
}
#: Numbers of what a tensor map may say (CUtensorMapDataType, CUtensorMapSwizzle, ...).
ENUMS = {
    "data_type": {"FLOAT16": 6, "BFLOAT16": 9},
    "interleave": {"NONE": 0},
    "swizzle": {"NONE": 0, "128B": 3},
    "l2_promotion": {"NONE": 0, "L2_256B": 3},
    "fill": {"NONE": 0},
}
SHARED_MEMORY_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def value_of(argument: Mapping, filled: Mapping) -> int | float:
    """The argument's constant, or what you fill in."""
    if "value" in argument:
        return argument["value"]
    return filled[argument["fill"]] + argument.get("plus", 0)


def tensor_map(cuda: ctypes.CDLL, told: Mapping, address: int) -> bytes:
    """The operand at the address as the copy engine sees it (cuTensorMapEncodeTiled)."""
    space = ctypes.create_string_buffer(192)
    at = ctypes.addressof(space) + -ctypes.addressof(space) % 64
    number = {name: ctypes.c_int(known[told[name]]) for name, known in ENUMS.items()}
    longs = [(ctypes.c_uint64 * len(told[name]))(*told[name]) for name in ("sizes", "strides")]
    ints = [(ctypes.c_uint32 * len(told[name]))(*told[name]) for name in ("box", "element_strides")]
    check(
        cuda.cuTensorMapEncodeTiled(
            ctypes.c_void_p(at),
            number["data_type"],
            ctypes.c_uint32(len(told["sizes"])),
            ctypes.c_void_p(address),
            *longs,
            *ints,
            number["interleave"],
            number["swizzle"],
            number["l2_promotion"],
            number["fill"],
        )
    )
    return ctypes.string_at(at, 128)


def pack(argument: Mapping, filled: Mapping, cuda: ctypes.CDLL | None = None) -> bytes:
    """The bytes of one argument of a kernel: a number, an address, or a struct by value."""
    if "fields" not in argument:
        return struct.pack("<" + FORMATS[argument["type"]], value_of(argument, filled))
    data = bytearray(argument["bytes"])
    for field in argument["fields"]:
        value = value_of(field, filled)
        if "tensor_map" in field:
            value = tensor_map(cuda, field["tensor_map"], value)
        struct.pack_into("<" + FORMATS[field["type"]], data, field["offset"], value)
    return bytes(data)


class Package:
    """A package loaded into the current CUDA context."""

    def __init__(self, cuda: ctypes.CDLL, path: str) -> None:
        self._cuda = cuda
        with zipfile.ZipFile(path) as file:
            self.told = json.loads(file.read("launch.json"))
            binaries = {one["file"]: file.read(one["file"]) for one in self.told["launches"]}
        self._functions = []
        for launch in self.told["launches"]:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            check(cuda.cuModuleLoadData(ctypes.byref(module), binaries[launch["file"]]))
            check(cuda.cuModuleGetFunction(ctypes.byref(function), module, launch["entry"].encode()))
            if launch["needs_shared_memory_attribute"]:
                size = launch["dynamic_shared_bytes"]
                check(cuda.cuFuncSetAttribute(function, SHARED_MEMORY_ATTRIBUTE, size))
            self._functions.append(function)

    def run(self, filled: Mapping, stream: int | None = None) -> None:
        """Launches on a stream, plainly: kernels that would wait for the launch before them
        ("may_be_programmatic_dependent_launch") have nothing to wait for then. `filled`: the operands' device
        addresses by name, "workspace" where its size is not 0, and alpha and beta where the problem leaves
        them open."""
        for launch, function in zip(self.told["launches"], self._functions, strict=True):
            packed = [pack(one, filled, self._cuda) for one in launch["arguments"]]
            buffers = [ctypes.create_string_buffer(data, len(data)) for data in packed]
            pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
            sizes = (*launch["grid"], *launch["block"], launch["dynamic_shared_bytes"])
            check(self._cuda.cuLaunchKernel(function, *sizes, ctypes.c_void_p(stream), pointers, None))


def check(status: int) -> None:
    """Raises for any CUresult but success."""
    if status:
        raise RuntimeError(f"the CUDA driver answers {status}")


def driver() -> ctypes.CDLL:
    """The driver's library, with the first device's context current."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    return cuda


def allocate(cuda: ctypes.CDLL, size: int) -> int:
    """The address of new memory on the device, all zeros."""
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(max(size, 1))))
    check(cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(0), ctypes.c_size_t(size)))
    return address.value


def main(path: str) -> None:
    """Launches a package on zeros."""
    cuda = driver()
    package = Package(cuda, path)
    sizes = {name: one["bytes"] for name, one in package.told["operands"].items()}
    sizes["workspace"] = package.told["workspace"]["bytes"]
    package.run({name: allocate(cuda, size) for name, size in sizes.items()} | {"alpha": 1.0, "beta": 1.0})
    check(cuda.cuCtxSynchronize())
    print(f"{package.told['solution']['id']}: {len(package.told['launches'])} launches, done")


if __name__ == "__main__":
    main(sys.argv[1])
