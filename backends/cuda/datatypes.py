"""Number formats as CUDA's libraries number them (library_types.h, cublas_api.h)."""

from __future__ import annotations

from collections.abc import Mapping

#: cudaDataType_t
DATA_TYPES: Mapping[str, int] = {
    "fp32": 0, "fp64": 1, "fp16": 2, "int8": 3, "int32": 10, "bf16": 14, "fp8_e4m3": 28, "fp8_e5m2": 29,
}  # fmt: skip
#: cublasComputeType_t
COMPUTE_TYPES: Mapping[str, int] = {
    "fp16": 64, "fp32": 68, "fp64": 70, "int32": 72, "tf32": 77, "bf16x9": 78,
}  # fmt: skip
OPERATIONS: Mapping[str, int] = {"N": 0, "T": 1, "C": 2}
