"""Runs this tree's Python under sid's loader and C library, on the fake runtime or on the genuine one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tests.backends.hip.genuine.fetch import Genuine, Unavailable
from tests.backends.hip.genuine.problems import Device

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
#: Seconds for one process; loading gfx90a's tables takes 3.
_TIMEOUT = 600
#: Prefixes of variables that change what the loader or the libraries do.
_CLEARED = ("LD_", "HIP", "ROC", "TENSILE", "PYTHONPATH")
#: Names the script that starts Python under sid's loader, for a process that starts another one.
EXECUTABLE = "GEMMTUNE_GENUINE_PYTHON"


def build_fake(genuine: Genuine) -> None:
    """Compiles fake_runtime.cpp into a ROCM_PATH that also links the genuine libraries. Raises
    Unavailable."""
    library = _fake(genuine) / "lib" / "libamdhip64.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", *_FLAGS, str(HERE / "fake_runtime.cpp"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"g++ cannot compile fake_runtime.cpp: {done.stderr.strip()[-2000:]}")
    for name in ("hiprtc", "hipblaslt", "rocblas"):
        link = library.with_name(f"lib{name}.so")
        link.unlink(missing_ok=True)
        link.symlink_to(genuine.file(name))


def python(
    genuine: Genuine, *arguments: str, device: Device | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments: with a `device` on the fake runtime, else on the genuine one."""
    libraries, command = genuine.libraries, _interpreter(genuine)
    script = genuine.folder / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    own = {
        "ROCM_PATH": str(genuine.rocm),
        "HIPBLASLT_TENSILE_LIBPATH": str(libraries / "hipblaslt" / "library"),
        "ROCBLAS_TENSILE_LIBPATH": str(next(libraries.glob("rocblas/*/library"))),
        "PYTHONPATH": str(ROOT),
        EXECUTABLE: str(script),
        **variables,
    }
    if device is not None:
        own |= _fake_variables(genuine, device)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED)}
    return subprocess.run(
        [*command, *arguments], env={**kept, **own}, capture_output=True, text=True, check=False,
        timeout=_TIMEOUT,
    )  # fmt: skip


def _interpreter(genuine: Genuine) -> list[str]:
    """This process's Python under sid's loader."""
    libraries = genuine.libraries
    # This machine's own libraries come last: only those that sid's packages lack are taken from there.
    system = Path("/usr/lib") / libraries.name
    searched = (libraries, Path(sysconfig.get_config_var("LIBDIR")), system)
    return [
        str(libraries / "ld-linux-x86-64.so.2"), "--library-path", ":".join(map(str, searched)),
        # Python finds its virtual environment through argv[0].
        "--argv0", sys.executable, str(Path(sys.executable).resolve()),
    ]  # fmt: skip


def _fake(genuine: Genuine) -> Path:
    return genuine.folder / "fake"


def _fake_variables(genuine: Genuine, device: Device) -> Mapping[str, str]:
    rocm = _fake(genuine)
    return {
        "ROCM_PATH": str(rocm),
        "LD_PRELOAD": str(rocm / "lib" / "libamdhip64.so"),
        "GEMMTUNE_FAKE_ARCH": device.gcn_arch,
        "GEMMTUNE_FAKE_CUS": str(device.cu_count),
    }
