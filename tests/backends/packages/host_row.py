"""Runs a CPU row of a bundle by ctypes alone: nothing of ours but the file."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.packages.bundle_file import BundleFile
from tests.backends.packages.opened import program

TYPES: Mapping[str, Any] = {"fp32": np.float32, "fp16": np.float16, "fp64": np.float64}


def launched(
    bundle: BundleFile, row: Mapping[str, Any], folder: Path
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """D as the row computes it, and as numpy does, from random operands: op(A) op(B) of a plain problem."""
    (launch,) = row["launches"]
    runtime, kernel = (_loaded(bundle, launch[name], folder) for name in ("runtime", "binary"))
    rng = np.random.default_rng(0)
    arrays, filled = {}, {"alpha": 1.0, "beta": 0.0}
    for name, one in row["operands"].items():
        elements = one["bytes"] // np.dtype(TYPES[one["dtype"]]).itemsize
        arrays[name] = rng.standard_normal(elements).astype(TYPES[one["dtype"]])
        filled[name] = arrays[name].ctypes.data
    space = ctypes.create_string_buffer(row["workspace"]["bytes"] + row["workspace"]["alignment"])
    filled["workspace"] = ctypes.addressof(space) + -ctypes.addressof(space) % row["workspace"]["alignment"]
    filled["parallel"] = ctypes.cast(runtime.gemmtune_parallel, ctypes.c_void_p).value or 0
    data = program().pack(launch["arguments"][0], filled)
    status = getattr(kernel, launch["entry"])(ctypes.create_string_buffer(data, len(data)))
    assert status == 0

    def matrix(name: str) -> npt.NDArray[Any]:
        one = row["operands"][name]
        columns = [arrays[name][at * one["ld"] :][: one["rows"]] for at in range(one["columns"])]
        return np.array(columns).T  # rows x columns

    def product_side(name: str) -> npt.NDArray[np.float64]:
        found = matrix(name).astype(np.float64)
        return found if row["problem"]["canonical"][f"trans_{name}"] == "N" else found.T

    return matrix("d"), product_side("a") @ product_side("b")


def _loaded(bundle: BundleFile, digest: str, folder: Path) -> ctypes.CDLL:
    path = folder / f"{digest}{bundle.manifest['binaries'][digest]['suffix']}"
    if not path.exists():
        path.write_bytes(bundle.binary(digest))
    return ctypes.CDLL(str(path))
