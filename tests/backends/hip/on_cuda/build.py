"""Compiles the libraries of this folder into a ROCm whose calls an NVIDIA GPU answers (README.md)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from backends.gpu.units import KERNELS
from backends.kernels.headers import ROOT as HEADERS
from tests.backends.hip.on_host.build import compiled

HERE = Path(__file__).parent
#: There is no rocBLAS: hipBLASLt stands for the libraries.
LIBRARIES = {"amdhip64": ("-ldl",), "hiprtc": ("-ldl",), "hipblaslt": ("-ldl",)}
#: NVIDIA's libraries of pip's packages: variable -> file.
_NVIDIA = {"CUBLASLT": "libcublasLt.so.13", "NVRTC": "libnvrtc.so.13"}


def build(rocm: Path) -> Path:
    """Compiles them into rocm/lib: `rocm`, for ROCM_PATH."""
    return compiled(HERE, rocm, LIBRARIES)


def variables(rocm: Path) -> dict[str, str]:
    """What a process needs in its environment to find them, and NVIDIA's libraries."""
    found = {"ROCM_PATH": str(rocm), "GEMMTUNE_SHIM_HEADERS": f"{HEADERS}:{KERNELS}"}
    spec = find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for name, file in _NVIDIA.items():
            for path in sorted(Path(place).glob(f"*/lib/{file}")):
                found[f"GEMMTUNE_SHIM_{name}"] = str(path)
    return found
