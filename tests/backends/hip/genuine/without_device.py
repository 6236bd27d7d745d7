"""The genuine runtime on a machine without an AMD GPU: what the probe answers, and what hipRTC compiles.

`python -m tests.backends.hip.genuine.without_device FILE`, under sid's loader (machine.py), writes the
answers to FILE as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.hip.backend import HipBackend
from backends.hip.driver import RuntimeMissing, device_count
from backends.kernel_checks import candidates
from backends.kernels.families import FAMILIES
from backends.kernels.family import ENTRY
from backends.kernels.legality import arch_of
from backends.resources import read
from backends.toolchains.hiprtc import Hiprtc, hiprtc_build
from backends.toolchains.toolchain import CompileUnit
from tests.backends.hip.genuine.machine import EXECUTABLE
from tests.backends.hip.genuine.problems import DEVICES

#: Candidates of each family that are compiled for each architecture.
SAMPLES = 3


def main() -> None:
    """Writes the answers."""
    with tempfile.TemporaryDirectory() as folder:
        cache = BinaryCache(Path(folder))
        architectures = {device.arch: _compile(device.arch, cache) for device in DEVICES}
    found = {
        "no_device": {"device_count": _device_count(), "probe": _probe()},
        "hiprtc": {"build": hiprtc_build(), "samples": SAMPLES, "architectures": architectures},
    }
    Path(sys.argv[1]).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def _device_count() -> str:
    try:
        return str(device_count())
    except RuntimeMissing as error:
        return str(error)


def _probe() -> dict[str, Any]:
    # The probe starts sys.executable in a process of its own, which needs sid's loader too.
    sys.executable = os.environ[EXECUTABLE]
    found = HipBackend().probe()
    return {"devices": len(found.devices), "notes": list(found.notes)}


def _compile(arch: str, cache: BinaryCache) -> dict[str, Any]:
    """Compiles SAMPLES candidates of every HIP family: how many compile, the compiler's errors, and the
    families without a legal candidate."""
    environment = candidates.environment_of(arch)
    compiled: dict[str, int] = {}
    failed: dict[str, list[str]] = {}
    without: list[str] = []
    for name, family in FAMILIES.items():
        if "hip" not in family.vendors:
            continue
        sample = candidates.sampled(family, arch)[:SAMPLES]
        if not sample:
            without.append(name)
        for one in sample:
            config = family.config(one.problem, one.solution.parameters, arch_of(environment))
            try:
                kernels = read(Hiprtc().compile(CompileUnit(config.unit, arch), cache))
            except CompileError as error:
                failed.setdefault(name, []).append(str(error))
                continue
            if ENTRY in kernels:
                compiled[name] = compiled.get(name, 0) + 1
            else:
                failed.setdefault(name, []).append(f"the code object has no kernel {ENTRY}")
    return {"compiled": compiled, "failed": failed, "without_candidates": without}


if __name__ == "__main__":
    main()
