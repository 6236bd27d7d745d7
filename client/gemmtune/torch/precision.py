"""Whether torch may compute fp32 products in a shorter format, as the user set it."""

from __future__ import annotations

from typing import Any

import torch

#: torch's name of a device type's matmul settings.
_BACKENDS = {"cuda": "cuda", "cpu": "mkldnn"}
_GETTER: Any = getattr(torch._C, "_get_fp32_precision_getter", None)


def fp32_compute(device_type: str) -> str:
    """The compute type that torch's fp32 products have now: "fp32", or a shorter one ("tf32", "bf16")."""
    if _GETTER is not None:  # torch 2.9 and later
        setting = str(_GETTER(_BACKENDS[device_type], "matmul"))
        return "fp32" if setting in ("none", "ieee") else setting
    if device_type == "cuda":
        return "tf32" if torch._C._get_cublas_allow_tf32() else "fp32"
    setting = torch.get_float32_matmul_precision()
    return {"highest": "fp32", "high": "tf32"}.get(setting, "bf16")
