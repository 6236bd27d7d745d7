"""Compiles the libraries of this folder into a ROCm of a test's own (README.md says what that proves)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from backends.kernels.headers import ROOT as HEADERS

HERE = Path(__file__).parent
#: Library -> what it is linked with beside the C++ library.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "amdhip64": ("-ldl",),
    "hiprtc": (),
    "hipblaslt": ("-lamdhip64",),
    "rocblas": ("-lamdhip64",),
}
_FLAGS = ("-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-rpath,$ORIGIN")


def build(rocm: Path, *defines: str) -> Path:
    """Compiles them into rocm/lib: `rocm`, for ROCM_PATH."""
    made = compiled(HERE, rocm, LIBRARIES, *defines)
    (rocm / ".info").mkdir(exist_ok=True)
    (rocm / ".info" / "version").write_text("7.2.0-1\n")
    return made


def compiled(sources: Path, rocm: Path, libraries: Mapping[str, tuple[str, ...]], *defines: str) -> Path:
    """Compiles a folder's libraries into rocm/lib, those that are linked with libamdhip64 last."""
    folder = rocm / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    first = [name for name, linked in libraries.items() if "-lamdhip64" not in linked]
    for names in (first, [name for name in libraries if name not in first]):
        running = {
            name: subprocess.Popen(
                ["g++", *_FLAGS, *defines, f"-L{folder}", str(sources / f"{name}.cpp"),
                 "-o", str(folder / f"lib{name}.so"), *libraries[name]]
            )
            for name in names
        }  # fmt: skip
        for name, process in running.items():
            if process.wait():
                raise RuntimeError(f"{name}.cpp does not compile")
    return rocm


def variables(rocm: Path, **settings: str) -> dict[str, str]:
    """What a process needs in its environment to find them; settings without their GEMMTUNE_SHIM_."""
    own = {f"GEMMTUNE_SHIM_{name.upper()}": value for name, value in settings.items()}
    return {"ROCM_PATH": str(rocm), "GEMMTUNE_SHIM_HEADERS": str(HEADERS), **own}
