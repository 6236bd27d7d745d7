"""Runs a package of GET /v1/solutions/{id}/binary by the driver alone, on an NVIDIA GPU (libcuda) or an AMD
GPU (libamdhip64): no gemmtune, no toolkit. `python launch_package.py PACKAGE.zip` launches it on zeros;
Package.run() takes your addresses."""

from __future__ import annotations

import contextlib
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
    "double": "d",
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
STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
#: Vendor -> names of the driver's library, and its calls. All but the launch take the same arguments.
LIBRARIES = {
    "cuda": ("libcuda.so.1",),
    "hip": ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"),
}
CALLS = {
    "cuda": {
        "load": "cuModuleLoadData",
        "function": "cuModuleGetFunction",
        "launch": "cuLaunchKernelEx",
        "allocate": "cuMemAlloc_v2",
        "fill": "cuMemsetD8Async",
        "to_device": "cuMemcpyHtoDAsync_v2",
        "to_host": "cuMemcpyDtoHAsync_v2",
        "stream": "cuStreamCreate",
        "wait": "cuStreamSynchronize",
    },
    "hip": {
        "load": "hipModuleLoadData",
        "function": "hipModuleGetFunction",
        "launch": "hipModuleLaunchKernel",
        "allocate": "hipMalloc",
        "fill": "hipMemsetD8Async",
        "to_device": "hipMemcpyHtoDAsync",
        "to_host": "hipMemcpyDtoHAsync",
        "stream": "hipStreamCreateWithFlags",
        "wait": "hipStreamSynchronize",
    },
}


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: its number, and a union of 64 bytes that begins with the value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


def value_of(argument: Mapping, filled: Mapping) -> int | float:
    """The argument's constant, or what you fill in."""
    if "value" in argument:
        return argument["value"]
    return filled[argument["fill"]] + argument.get("plus", 0)


def tensor_map(cuda: ctypes.CDLL, document: Mapping, address: int) -> bytes:
    """The operand at the address as the copy engine sees it (cuTensorMapEncodeTiled)."""
    space = ctypes.create_string_buffer(192)
    at = ctypes.addressof(space) + -ctypes.addressof(space) % 64
    number = {name: ctypes.c_int(known[document[name]]) for name, known in ENUMS.items()}
    longs = [(ctypes.c_uint64 * len(document[name]))(*document[name]) for name in ("sizes", "strides")]
    ints = [(ctypes.c_uint32 * len(document[name]))(*document[name]) for name in ("box", "element_strides")]
    check(
        cuda.cuTensorMapEncodeTiled(
            ctypes.c_void_p(at),
            number["data_type"],
            ctypes.c_uint32(len(document["sizes"])),
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


def pack(argument: Mapping, filled: Mapping, library: ctypes.CDLL | None = None) -> bytes:
    """The bytes of one argument of a kernel: a number, an address, or a struct by value."""
    if "fields" not in argument:
        return struct.pack("<" + FORMATS[argument["type"]], value_of(argument, filled))
    data = bytearray(argument["bytes"])
    for field in argument["fields"]:
        value = value_of(field, filled)
        if "tensor_map" in field:
            value = tensor_map(library, field["tensor_map"], value)
        struct.pack_into("<" + FORMATS[field["type"]], data, field["offset"], value)
    return bytes(data)


class Driver:
    """A vendor's driver ("cuda" or "hip") with its first device current, and one stream."""

    def __init__(self, vendor: str, library: ctypes.CDLL | None = None) -> None:
        self.vendor = vendor
        self.library = opened(vendor) if library is None else library
        self.stream = ctypes.c_void_p()
        if vendor == "cuda":
            context = ctypes.c_void_p()
            check(self.library.cuInit(0))
            check(self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
            check(self.library.cuCtxSetCurrent(context))
        else:
            check(self.library.hipInit(0))
            check(self.library.hipSetDevice(0))
        self.call("stream", ctypes.byref(self.stream), 0)

    def call(self, name: str, *arguments: object) -> None:
        """Makes a call of CALLS. Raises for any status but success."""
        check(getattr(self.library, CALLS[self.vendor][name])(*arguments))

    def launch(self, function: ctypes.c_void_p, launch: Mapping, stream: ctypes.c_void_p, pointers) -> None:
        """Queues one launch. With programmatic stream serialization it may start while the launch before it
        ends; the kernel itself waits for that one's stores."""
        if self.vendor != "cuda":
            sizes = (*launch["grid"], *launch["block"], launch["dynamic_shared_bytes"])
            self.call("launch", function, *sizes, stream, pointers, None)
            return
        config = Config(tuple(launch["grid"]), tuple(launch["block"]), launch["dynamic_shared_bytes"], stream)
        if launch["programmatic_stream_serialization"]:
            config.attributes = ctypes.pointer(Attribute(id=STREAM_SERIALIZATION, value=1))
            config.count = 1
        self.call("launch", ctypes.byref(config), function, pointers, None)

    def allocate(self, size: int) -> int:
        """The address of new memory on the device, all zeros."""
        address = ctypes.c_uint64()
        self.call("allocate", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        self.call("fill", address, ctypes.c_ubyte(0), ctypes.c_size_t(size), self.stream)
        return address.value

    def write(self, address: int, data: bytes) -> None:
        """Copies bytes to the device."""
        self.call("to_device", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)), self.stream)
        self.wait()

    def read(self, address: int, size: int) -> bytes:
        """Copies bytes from the device, after everything on the stream."""
        data = ctypes.create_string_buffer(size)
        self.call("to_host", data, ctypes.c_uint64(address), ctypes.c_size_t(size), self.stream)
        self.wait()
        return data.raw

    def wait(self) -> None:
        """Waits for the stream."""
        self.call("wait", self.stream)


class Package:
    """A package loaded on a driver's device."""

    def __init__(self, driver: Driver, path: str) -> None:
        self._driver = driver
        with zipfile.ZipFile(path) as file:
            self.document = json.loads(file.read("launch.json"))
            binaries = {one["file"]: file.read(one["file"]) for one in self.document["launches"]}
        if self.document["vendor"] != driver.vendor:
            raise ValueError(
                f"the package is for {self.document['arch']}, not for a device of {driver.vendor}"
            )
        self._launches = [(one, self._loaded(one, binaries)) for one in self.document["launches"]]
        #: Of a kernel that reads a packed copy of the weights, the launch that writes the copy.
        packing = [self.document["packing"]["launch"]] if "packing" in self.document else []
        self._packing = [(one, self._loaded(one, binaries)) for one in packing]

    def _loaded(self, launch: Mapping, binaries: Mapping) -> ctypes.c_void_p:
        """The launch's function."""
        driver, module, function = self._driver, ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("load", ctypes.byref(module), binaries[launch["file"]])
        driver.call("function", ctypes.byref(function), module, launch["entry"].encode())
        if launch["needs_shared_memory_attribute"]:  # never on AMD's GPUs
            size = launch["dynamic_shared_bytes"]
            check(driver.library.cuFuncSetAttribute(function, SHARED_MEMORY_ATTRIBUTE, size))
        return function

    def run(self, filled: Mapping, stream: int | None = None) -> None:
        """Launches on a stream (default: the driver's), as the kernels were measured. `filled`: the operands'
        device addresses by name, "workspace" where its size is not 0, and alpha and beta where the problem
        leaves them open."""
        self._run(self._launches, filled, stream)

    def pack_weights(self, filled: Mapping, stream: int | None = None) -> None:
        """Writes the packed copy that run() reads. `filled`: the addresses of what document["packing"] has as
        operands, one of which is "packed". Called once, when the weights are loaded."""
        self._run(self._packing, filled, stream)

    def _run(self, launches: list, filled: Mapping, stream: int | None) -> None:
        on = self._driver.stream if stream is None else ctypes.c_void_p(stream)
        for launch, function in launches:
            packed = [pack(one, filled, self._driver.library) for one in launch["arguments"]]
            buffers = [ctypes.create_string_buffer(data, len(data)) for data in packed]
            pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
            self._driver.launch(function, launch, on, pointers)


def opened(vendor: str) -> ctypes.CDLL:
    """The driver's library. Raises OSError if none of its names is found."""
    *others, last = LIBRARIES[vendor]
    for name in others:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return ctypes.CDLL(last)


def check(status: int) -> None:
    """Raises for any CUresult or hipError_t but success."""
    if status:
        raise RuntimeError(f"the driver answers {status}")


def main(path: str) -> None:
    """Launches a package on zeros."""
    with zipfile.ZipFile(path) as file:
        vendor = json.loads(file.read("launch.json"))["vendor"]
    driver = Driver(vendor)
    package = Package(driver, path)
    operands = package.document["operands"] | package.document.get("packing", {}).get("operands", {})
    sizes = {name: one["bytes"] for name, one in operands.items()}
    sizes["workspace"] = package.document["workspace"]["bytes"]
    filled = {name: driver.allocate(size) for name, size in sizes.items()}
    package.pack_weights(filled)
    package.run(filled | {"alpha": 1.0, "beta": 1.0})
    driver.wait()
    print(f"{package.document['solution']['id']}: {len(package.document['launches'])} launches, done")


if __name__ == "__main__":
    main(sys.argv[1])
