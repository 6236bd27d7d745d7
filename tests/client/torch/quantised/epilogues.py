"""Problems of 8-bit operands with what follows the product, and linear_w8a8's calls of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from gemmtune.torch import linear_w8a8

from backends.problem import GemmProblem, from_linear

M, N, K = 5, 40, 256
INT8: dict[str, Any] = {"dtype_a": "int8", "scale_a": "outer", "scale_b": "outer"}
FP8: dict[str, Any] = {"dtype_a": "fp8_e4m3", "scale_a": "outer", "scale_b": "outer"}
BLOCKS: dict[str, Any] = {**FP8, "scale_a": "block_1x128", "scale_b": "block_128x128"}
NARROW: dict[str, Any] = {**INT8, "dtype_d": "int8", "scale_d": "tensor"}
#: What follows the product: arguments of a problem.
EPILOGUES: dict[str, dict[str, Any]] = {
    "int8 bias residual silu": {**INT8, "dtype_d": "bf16", "bias": "bf16", "beta": 1.0, "activation": "silu"},
    "int8 any beta gelu": {**INT8, "dtype_d": "fp16", "beta": -0.5, "activation": "gelu"},
    "int8 tensors relu": {**INT8, "scale_a": "tensor", "scale_b": "tensor", "dtype_d": "bf16",
                          "activation": "relu"},
    "int8 to int8": NARROW,
    "int8 to int8, bias residual relu": {**NARROW, "bias": "fp32", "dtype_c": "bf16", "beta": 1.0,
                                         "activation": "relu"},
    "int8 to int8, int8 residual gelu": {**NARROW, "dtype_c": "int8", "beta": -0.5, "activation": "gelu"},
    "fp8 residual": {**FP8, "dtype_d": "bf16", "beta": 1.0},
    "fp8 bias residual gelu": {**FP8, "dtype_d": "bf16", "bias": "bf16", "beta": 1.0, "activation": "gelu"},
    "fp8 tensors any beta": {**FP8, "scale_a": "tensor", "scale_b": "tensor", "dtype_d": "fp16",
                             "beta": -0.5},
    "fp8 blocks residual silu": {**BLOCKS, "dtype_d": "bf16", "beta": 1.0, "activation": "silu"},
}  # fmt: skip
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.int8}


def problem(name: str, m: int = M, n: int = N) -> GemmProblem:
    """The problem of an epilogue."""
    return from_linear(m, n, K, **EPILOGUES[name])


def tensor(values: Any) -> Any:
    """A host array as torch has it."""
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
    if values.dtype == ml_dtypes.float8_e4m3fn:
        return torch.from_numpy(values.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(values)


def call(p: GemmProblem, inputs: dict[str, Any], device: str = "cpu", **changes: Any) -> Any:
    """linear_w8a8 of a problem's host inputs, on a device."""
    given = {name: tensor(values[0]).to(device) for name, values in inputs.items()}
    scales = [
        given[f"scale_{side}"]
        if getattr(p, f"scale_{side}").startswith("block")
        else given[f"scale_{side}"][0]
        for side in ("b", "a")
    ]
    options = {
        "bias": given["bias"][0] if "bias" in given else None, "residual": given.get("c"),
        "beta": p.scalars[1] if "c" in given else 1.0, "activation": p.activation,
        "scale_out": given["scale_d"][0] if "scale_d" in given else None, "out_dtype": TYPES[p.dtype_d],
    }  # fmt: skip
    return linear_w8a8(given["b"], given["a"], *scales, **{**options, **changes})
