"""Runs the GEMM kernels of a gemmtune bundle.

table = gemmtune.load("bundle.gtb")
row = table.best(m=16, n=4096, k=4096, dtype="bf16", trans_b=True)
launch = table.open().kernel(row).prepare()
launch(stream, workspace, addresses)
"""

from __future__ import annotations

from gemmtune import problem
from gemmtune.device import DeviceClass
from gemmtune.errors import BundleError, GemmtuneError, LaunchError, ProblemError
from gemmtune.launch import Kernel, OpenTable, PreparedLaunch
from gemmtune.row import Row
from gemmtune.table import Table, load

__all__ = [
    "BundleError",
    "DeviceClass",
    "GemmtuneError",
    "Kernel",
    "LaunchError",
    "OpenTable",
    "PreparedLaunch",
    "ProblemError",
    "Row",
    "Table",
    "load",
    "problem",
]
