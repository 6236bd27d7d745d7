"""The numbers and structs of the drivers' headers, as the client has them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from gemmtune import description
from gemmtune.drivers import cuda, hip

CUDA: Any = pytest.importorskip("cuda.bindings.driver")
_ENUMS = {
    "data_type": ("CUtensorMapDataType", "CU_TENSOR_MAP_DATA_TYPE_"),
    "interleave": ("CUtensorMapInterleave", "CU_TENSOR_MAP_INTERLEAVE_"),
    "swizzle": ("CUtensorMapSwizzle", "CU_TENSOR_MAP_SWIZZLE_"),
    "l2_promotion": ("CUtensorMapL2promotion", "CU_TENSOR_MAP_L2_PROMOTION_"),
    "fill": ("CUtensorMapFloatOOBfill", "CU_TENSOR_MAP_FLOAT_OOB_FILL_"),
}


@pytest.mark.parametrize("name", description.MAP_VALUES)
def test_numbers_of_tensor_maps(name: str) -> None:
    enum, prefix = _ENUMS[name]
    for value, number in description.MAP_VALUES[name].items():
        assert int(getattr(getattr(CUDA, enum), f"{prefix}{value}")) == number, value


def test_numbers_of_attributes() -> None:
    device = CUDA.CUdevice_attribute
    assert int(device.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == cuda.MULTIPROCESSOR_COUNT
    assert int(device.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == cuda.CAPABILITY_MAJOR
    assert int(device.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == cuda.CAPABILITY_MINOR
    shared = CUDA.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert int(shared) == cuda.MAX_DYNAMIC_SHARED_SIZE_BYTES
    serialization = CUDA.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert int(serialization) == cuda.PROGRAMMATIC_STREAM_SERIALIZATION


def test_the_struct_of_a_launch_is_cudas() -> None:
    """cuda-bindings' own CUlaunchConfig, read through the client's struct."""
    theirs = CUDA.CUlaunchConfig()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 2, 3, 4
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 5, 6, 7
    theirs.sharedMemBytes, theirs.hStream = 8, CUDA.CUstream(0x99)
    attribute = CUDA.CUlaunchAttribute()
    attribute.id = CUDA.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    theirs.attrs, theirs.numAttrs = [attribute], 1
    ours = cuda._Config.from_address(int(theirs.getPtr()))
    assert (*ours.grid, *ours.block, ours.shared, ours.stream, ours.count) == (2, 3, 4, 5, 6, 7, 8, 0x99, 1)
    found = ours.attributes[0]
    assert (found.id, found.value[0]) == (cuda.PROGRAMMATIC_STREAM_SERIALIZATION, 1)
    assert ctypes.sizeof(cuda._Attribute) == 72


def test_the_offsets_of_hips_properties() -> None:
    """hip-python's own struct, written through its fields and read at the client's offsets."""
    theirs = pytest.importorskip("hip").hip.hipDeviceProp_t()
    assert theirs.c_sizeof() == hip.PROPERTIES_BYTES
    theirs.multiProcessorCount = 304
    data = ctypes.string_at(int(theirs), hip.PROPERTIES_BYTES)
    assert int.from_bytes(data[hip.UNITS_AT : hip.UNITS_AT + 4], "little") == 304


@pytest.mark.compiler
def test_the_offsets_of_the_header(tmp_path: Path) -> None:
    """The struct that the suite of the HIP backend states, which is as long as ROCm's."""
    import subprocess

    header = Path(__file__).parents[1] / "backends" / "hip" / "on_host" / "hip_types.h"
    source = tmp_path / "offsets.cpp"
    source.write_text(
        f'#include "{header}"\n#include <cstdio>\nint main() {{ using P = hipDeviceProp_tR0600;\n'
        'printf("%zu %zu %zu", offsetof(P, name), offsetof(P, multiProcessorCount),\n'
        "offsetof(P, gcnArchName)); }"
    )
    subprocess.run(["g++", str(source), "-o", str(tmp_path / "offsets")], check=True)
    said = subprocess.run([str(tmp_path / "offsets")], check=True, capture_output=True, text=True).stdout
    assert tuple(map(int, said.split())) == (hip.NAME_AT, hip.UNITS_AT, hip.ARCH_AT)
