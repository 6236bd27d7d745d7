"""What this process computes with, in the terms in which a bundle states where its rows were measured."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch


def process_environment(vendor: str) -> dict[str, str]:
    """Library (or "driver", "runtime") -> build, for what decides how fast torch is here; names that cannot
    be read are left out."""
    found = {"torch": str(torch.__version__)}
    if vendor == "cuda":
        found |= _cuda()
    elif vendor == "hip":
        found["runtime"] = f"HIP {torch.version.hip}"
    return found


def differences(stated: Mapping[str, Any], ours: Mapping[str, str]) -> list[str]:
    """How a row's environment differs from this process's, in words; names that one of them lacks are not
    compared. A cuBLASLt of another major version there is not the one that torch has loaded."""
    libraries = stated.get("libraries") or {}
    theirs = {**libraries, "driver": stated.get("driver"), "runtime": stated.get("runtime")}
    if str(theirs.get("cublaslt"))[:-4] != ours.get("cublaslt", "")[:-4]:
        theirs["cublaslt"] = None
    return [
        f"{name} {theirs[name]} there, {build} here"
        for name, build in ours.items()
        if theirs.get(name) and theirs[name] != build
    ]


def _cuda() -> dict[str, str]:
    found = {}
    with suppress(OSError):
        found["driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    version = ctypes.c_int()
    with suppress(OSError):
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
            found["runtime"] = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    with suppress(OSError, AttributeError):  # the library that torch has loaded, found by its name
        library = ctypes.CDLL(f"libcublasLt.so.{str(torch.version.cuda).split('.', maxsplit=1)[0]}")
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        found["cublaslt"] = str(library.cublasLtGetVersion())
    return found
