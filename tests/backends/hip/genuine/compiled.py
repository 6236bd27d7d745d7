"""Compiles one unit of every kernel family for AMD with sid's hipRTC: `python -m ...compiled FILE`, on the
genuine runtime, which has no GPU here. What the runtime answers to that is written down too."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.hip.driver import RuntimeMissing, device_count
from backends.kernel_checks import candidates
from backends.kernels.families import FAMILIES
from backends.kernels.legality import arch_of
from backends.resources import read
from backends.toolchains.hiprtc import Hiprtc, hiprtc_build
from backends.toolchains.toolchain import CompileUnit

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


def main() -> None:
    """Writes the outcome."""
    found = {"no_device": _no_device(), "hiprtc": {"build": hiprtc_build(), "architectures": {}}}
    with tempfile.TemporaryDirectory() as folder:
        cache = BinaryCache(Path(folder))
        for arch in ARCHITECTURES:
            found["hiprtc"]["architectures"][arch] = _compile(arch, cache)
    Path(sys.argv[1]).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def _no_device() -> str:
    try:
        return f"{device_count()} devices"
    except RuntimeMissing as error:
        return str(error)


def _compile(arch: str, cache: BinaryCache) -> dict[str, Any]:
    """By family: "compiled", or what the compiler said; families without a candidate are left out. Only that
    a unit compiles, and that its resources can be read, is looked at."""
    environment, outcome = candidates.environment_of(arch), {}
    begin = time.perf_counter()
    for name, family in FAMILIES.items():
        if "hip" not in family.vendors:
            continue
        one = next(iter(candidates.sampled(family, environment)), None)
        if one is None:
            continue
        config = family.config(one.problem, one.solution.parameters, arch_of(environment))
        try:
            path = Hiprtc().compile(CompileUnit(config.unit, arch), cache)
            outcome[name] = "compiled" if read(path) else "no kernel within"
        except CompileError as error:
            outcome[name] = str(error)
    return {"families": outcome, "seconds": round(time.perf_counter() - begin, 2)}


if __name__ == "__main__":
    main()
