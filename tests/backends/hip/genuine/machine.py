"""Runs this tree's Python under sid's loader and C library, on the fake runtime or on the genuine one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tests.backends.hip.genuine.fetch import Genuine, Unobtainable
from tests.backends.hip.genuine.problems import Device

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
#: Seconds for one process; opening gfx90a's tables for the first time takes 3.
_PATIENCE = 600


def build_fake(genuine: Genuine) -> Path:
    """Compiles fake_runtime.cpp: a ROCM_PATH with it and the genuine libraries."""
    rocm = genuine.folder / "fake"
    library = rocm / "lib" / "libamdhip64.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["g++", *_FLAGS, HERE / "fake_runtime.cpp", "-o", library], check=False)
    if done.returncode:
        raise Unobtainable("fake_runtime.cpp does not compile")
    for name in ("hiprtc", "hipblaslt", "rocblas"):
        link = library.with_name(f"lib{name}.so")
        link.unlink(missing_ok=True)
        link.symlink_to(genuine.file(name))
    return rocm


def python(
    genuine: Genuine, *arguments: str, device: Device | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments; on the fake `device`, else on the genuine runtime."""
    libraries, interpreter = genuine.libraries, Path(sys.executable).resolve()
    # This machine's libraries last, for what only its Python needs.
    system = Path("/usr/lib") / libraries.name
    searched = (libraries, Path(sysconfig.get_config_var("LIBDIR")), system)
    command: list[str | Path] = [
        libraries / "ld-linux-x86-64.so.2", "--library-path", ":".join(map(str, searched)),
        # Python finds its environment by the name that it is called by.
        "--argv0", sys.executable, interpreter, *arguments,
    ]  # fmt: skip
    own = {
        "ROCM_PATH": str(genuine.rocm),
        "HIPBLASLT_TENSILE_LIBPATH": str(libraries / "hipblaslt" / "library"),
        "ROCBLAS_TENSILE_LIBPATH": str(next(libraries.glob("rocblas/*/library"))),
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    if device is not None:
        own |= _on_fake(genuine, device)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CHANGING)}
    return subprocess.run(
        command, env={**kept, **own}, capture_output=True, text=True, check=False, timeout=_PATIENCE
    )


#: Variables that change what the loader or the libraries do.
_CHANGING = ("LD_", "HIP", "ROCM", "ROCBLAS", "TENSILE", "PYTHONPATH")


def _on_fake(genuine: Genuine, device: Device) -> Mapping[str, str]:
    rocm = genuine.folder / "fake"
    return {
        "ROCM_PATH": str(rocm),
        "LD_PRELOAD": str(rocm / "lib" / "libamdhip64.so"),
        "GEMMTUNE_FAKE_ARCH": device.gcn_arch,
        "GEMMTUNE_FAKE_CUS": str(device.units),
    }
