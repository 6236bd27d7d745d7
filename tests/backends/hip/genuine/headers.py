"""Compares the backend's constants, structures and signatures with ROCm's own headers.

`python -m tests.backends.hip.genuine.headers FILE`, under sid's loader, writes C++ static assertions to FILE.
It loads the libraries, because the ctypes types of their functions are set when they are opened. check()
compiles the assertions against the headers, and compares the compiler's mangled names with those in
hipblaslt_api.py.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backends.hip import datatypes, hipblaslt_api, hipblaslt_call, library, rocblas_api
from backends.hip.hipblaslt_api import Algo, HeuristicResult
from tests.backends.hip.genuine.fetch import Genuine

_STORAGE = {
    "fp32": "32F", "fp64": "64F", "fp16": "16F", "int8": "8I", "int32": "32I", "bf16": "16BF",
    "fp8_e4m3": "8F_E4M3", "fp8_e5m2": "8F_E5M2", "fp8_e4m3_fnuz": "8F_E4M3_FNUZ",
    "fp8_e5m2_fnuz": "8F_E5M2_FNUZ",
}  # fmt: skip
_COMPUTE = {"fp16": "16F", "fp32": "32F", "tf32": "32F_FAST_TF32", "fp64": "64F", "int32": "32I"}
_ROCBLAS = {
    "fp16": "f16_r",
    "fp32": "f32_r",
    "fp64": "f64_r",
    "int8": "i8_r",
    "int32": "i32_r",
    "bf16": "bf16_r",
}
_OPERATIONS = {"N": "none", "T": "transpose", "C": "conjugate_transpose"}
_EXTENSION = (
    "getAllAlgos", "matmulIsAlgoSupported", "getAlgosFromIndex", "getKernelNameFromAlgo",
    "getSolutionNameFromAlgo",
)  # fmt: skip
#: Fields of hipDeviceProp_t whose offsets in on_host/hip_types.h are compared.
_PROPERTIES = (
    "totalGlobalMem", "warpSize", "clockRate", "multiProcessorCount", "pciBusID", "l2CacheSize",
    "sharedMemPerMultiprocessor", "sharedMemPerBlockOptin", "reservedSharedMemPerBlock", "gcnArchName",
    "maxSharedMemoryPerMultiProcessor", "asicRevision",
)  # fmt: skip
_FLAGS = ("-std=c++20", "-w", "-D__HIP_PLATFORM_AMD__", "-DROCBLAS_BETA_FEATURES_API")
_PREAMBLE = """#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <hipblaslt/hipblaslt-ext.hpp>
#include <hipblaslt/hipblaslt.h>
#include <rocblas/rocblas.h>
namespace ours {
#include "on_host/hip_types.h"
}
template <class R, class... A>
constexpr std::array<size_t, sizeof...(A) + 1> sizes(R (*)(A...)) { return {sizeof(R), sizeof(A)...}; }
template <class... S>
constexpr std::array<size_t, sizeof...(S)> are(S... bytes) { return {static_cast<size_t>(bytes)...}; }
"""


def check(genuine: Genuine, text: str) -> dict[str, Any]:
    """Compiles the assertions. Returns their number, the compiler's errors, the number of mangled names that
    agree, and those that differ."""
    unit = genuine.folder / "headers.cpp"
    unit.write_text(text)
    compiled = unit.with_suffix(".o")
    folders = [f"-I{genuine.headers}", f"-I{Path(__file__).parents[1]}"]
    done = subprocess.run(
        ["g++", *_FLAGS, *folders, "-c", unit, "-o", compiled], capture_output=True, text=True, check=False
    )
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    mangled: set[str] = set()
    if not done.returncode:
        listed = subprocess.run(["nm", "-u", compiled], capture_output=True, text=True, check=True).stdout
        mangled = set(re.findall(r"\S*hipblaslt_ext\S*", listed))
    known = set(re.findall(r"// ours: (\S+)", text))
    return {
        "assertions": text.count("static_assert"),
        "failed": [line.partition("error: ")[2] for line in errors],
        "names": len(known & mangled),
        "names_differ": sorted(known ^ mangled),
    }


def main() -> None:
    """Writes the assertions."""
    Path(sys.argv[1]).write_text("\n".join([_PREAMBLE, *_text()]) + "\n")


def _text() -> Iterator[str]:
    for name, value in _numbers().items():
        yield f'static_assert(static_cast<long long>({name}) == {value}, "{name} is not {value}");'
    yield from _structures()
    lt, rocblas = hipblaslt_api.hipblaslt(), rocblas_api.rocblas()
    for function in (*_functions(lt), *_functions(rocblas)):
        bytes_ = [ctypes.sizeof(kind) for kind in (function.restype, *function.argtypes)]
        arguments = ", ".join(map(str, bytes_))
        yield f'static_assert(sizes(&{function.__name__}) == are({arguments}), "{function.__name__}");'
    yield "const void* const extension[] = {"
    for name in _EXTENSION:
        yield f"    reinterpret_cast<const void*>(&hipblaslt_ext::{name}),"
    yield "};\nconst void* const* used() { return extension; }"
    for function in _functions(lt._extension):
        if "hipblaslt_ext" in function.__name__:
            yield f"// ours: {function.__name__}"


def _functions(of: object) -> Iterator[Any]:
    """The ctypes functions among an object's attributes."""
    for value in vars(of).values():
        if hasattr(value, "argtypes") and hasattr(value, "__name__"):
            yield value


def _numbers() -> Mapping[str, int]:
    """The headers' name -> the backend's value."""
    call = hipblaslt_call
    activations = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH_EXT"}
    found = {
        **{f"HIP_R_{_STORAGE[name]}": value for name, value in datatypes.DATA_TYPES.items()},
        **{f"HIPBLAS_COMPUTE_{_COMPUTE[name]}": value for name, value in datatypes.COMPUTE_TYPES.items()},
        **{f"rocblas_datatype_{_ROCBLAS[name]}": value for name, value in datatypes.ROCBLAS_TYPES.items()},
        **{f"{library.HIPBLAS.prefix}{name}": value for value, name in library.HIPBLAS.names.items()},
        **{f"{library.ROCBLAS.prefix}{name}": value for value, name in library.ROCBLAS.names.items()},
        **{f"HIPBLASLT_EPILOGUE_{name}": call._ACTIVATIONS[key] for key, name in activations.items()},
        "HIPBLASLT_EPILOGUE_DEFAULT": call._DEFAULT,
        "HIPBLASLT_EPILOGUE_BIAS": call._BIAS,
        "HIPBLASLT_EPILOGUE_GELU_BIAS": call._ACTIVATIONS["gelu"] | call._BIAS,
        "HIPBLASLT_EPILOGUE_SWISH_BIAS_EXT": call._ACTIVATIONS["silu"] | call._BIAS,
        "HIPBLASLT_MATMUL_DESC_TRANSA": call._TRANS_A,
        "HIPBLASLT_MATMUL_DESC_TRANSB": call._TRANS_B,
        "HIPBLASLT_MATMUL_DESC_EPILOGUE": call._EPILOGUE,
        "HIPBLASLT_MATMUL_DESC_BIAS_POINTER": call._BIAS_POINTER,
        "HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE": call._BIAS_TYPE,
        "HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER": call._SCALE_POINTERS["scale_a"],
        "HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER": call._SCALE_POINTERS["scale_b"],
        "HIPBLASLT_MATMUL_DESC_D_SCALE_POINTER": call._SCALE_POINTERS["scale_d"],
        "HIPBLASLT_MATMUL_DESC_A_SCALE_MODE": call._SCALE_MODES["scale_a"],
        "HIPBLASLT_MATMUL_DESC_B_SCALE_MODE": call._SCALE_MODES["scale_b"],
        "HIPBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F": call._OUTER_VECTOR,
        "HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT": hipblaslt_api._BATCH_COUNT,
        "HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": hipblaslt_api._BATCH_OFFSET,
        "HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": hipblaslt_api._MAX_WORKSPACE_BYTES,
        "hipblaslt_ext::GemmType::HIPBLASLT_GEMM": hipblaslt_api._GEMM,
        "rocblas_gemm_algo_standard": rocblas_api.STANDARD,
        "rocblas_gemm_algo_solution_index": rocblas_api.BY_INDEX,
        "rocblas_gemm_flags_check_solution_index": rocblas_api.CHECK_INDEX,
    }
    for letter, name in _OPERATIONS.items():
        found[f"HIPBLAS_OP_{letter}"] = found[f"rocblas_operation_{name}"] = datatypes.OPERATIONS[letter]
    return found


def _structures() -> Iterator[str]:
    pairs = (
        ("hipblasLtMatmulAlgo_t", Algo),
        ("hipblasLtMatmulHeuristicResult_t", HeuristicResult),
        ("std::vector<int>", hipblaslt_api._Vector),
        ("std::string", hipblaslt_api._String),
    )
    for name, ours in pairs:
        yield f'static_assert(sizeof({name}) == {ctypes.sizeof(ours)}, "size of {name}");'
    result = "hipblasLtMatmulHeuristicResult_t"
    for theirs, field in (
        ("workspaceSize", "workspace_bytes"),
        ("state", "state"),
        ("wavesCount", "waves"),
        ("reserved", "reserved"),
    ):
        place = getattr(HeuristicResult, field).offset
        yield f'static_assert(offsetof({result}, {theirs}) == {place}, "{theirs}");'
    offset = Algo.max_workspace_bytes.offset
    yield f"static_assert(offsetof(hipblasLtMatmulAlgo_t, max_workspace_bytes) == {offset});"
    device = "hipDeviceProp_tR0600"
    yield f'static_assert(sizeof(ours::{device}) == sizeof({device}), "size of {device}");'
    for field in _PROPERTIES:
        yield f'static_assert(offsetof(ours::{device}, {field}) == offsetof({device}, {field}), "{field}");'


if __name__ == "__main__":
    main()
