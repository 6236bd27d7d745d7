"""A machine with three GPUs of one class, as far as finding them goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.environment import Environment
from backends.protocol import Family, Probe
from backends.traits import GPU_TRAITS

GPUS = tuple(
    Environment(
        "cuda", "sm_90", "NVIDIA H200", 132, 141 * 2**30, f"GPU-{digit * 8}-0", driver="580.95",
        runtime="CUDA 13.0", libraries={"cublaslt": "13.1.0"},
    )
    for digit in "012"
)  # fmt: skip
GPU_CLASS = str(GPUS[0].device_class)


class ThreeGpus:
    """A backend that finds them, and opens none."""

    name = "cuda"
    traits = GPU_TRAITS
    process_variables: ClassVar[Mapping[str, str]] = {}

    def probe(self) -> Probe:
        return Probe(GPUS, ())

    def families(self) -> Mapping[str, Family]:
        return {}


class NoDriver:
    """A backend that finds none."""

    process_variables: ClassVar[Mapping[str, str]] = {}

    def probe(self) -> Probe:
        return Probe((), ("no driver on this machine (libfake.so is not found)",))
