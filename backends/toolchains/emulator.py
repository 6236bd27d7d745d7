"""The emulator as a toolchain: compiles kernels to run on host fibers (kernels/emulator), for tests."""

from __future__ import annotations

import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from backends.archs import gpu_arch
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.kernels import headers
from backends.toolchains.toolchain import CompileUnit

COMPILER, SUFFIX = "g++", ".so"
#: Compiling takes far longer than running, so only -Og, whose few optimizations pay off many times over.
FLAGS = (
    "-std=c++17", "-Og", "-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized", "-fPIC", "-shared",
    "-DGEMMTUNE_HOST",
)  # fmt: skip


class Emulator:
    """g++ as a Toolchain: compiles CompileUnits of any architecture, with its warp size, to shared
    libraries."""

    name = "emulator"

    def build(self, arch: str | None = None) -> str | None:
        """The first line of --version, None if the compiler is missing."""
        return _version() if shutil.which(COMPILER) else None

    def missing(self, arch: str | None = None) -> str | None:
        """Why nothing can be compiled, and what to install; None if compiling works."""
        return None if shutil.which(COMPILER) else f"the emulator wants {COMPILER}; install it"

    def target(self, arch: str, arch_specific: bool) -> str:
        """The architecture itself."""
        return arch

    def compile(self, unit: CompileUnit, cache: BinaryCache) -> Path:
        """See Toolchain; no resource usage is stored."""
        if (why := self.missing()) is not None:
            raise CompilerMissing(why)
        flags = [*FLAGS, f"-DGEMMTUNE_WARP={gpu_arch(unit.vendor, unit.arch).warp}"]
        flags += [f"-D{name}={value}" for name, value in unit.defines]
        texts = {**headers.included(unit.text, "host", unit.roots), "unit.cpp": unit.text}
        key = BinaryCache.key(texts, "host", str(self.build()), flags)

        def build(path: Path) -> None:
            folders = [f"-I{root}" for root in unit.roots]
            command = [COMPILER, *flags, *folders, "-x", "c++", "-", "-o", str(path)]
            done = subprocess.run(command, input=unit.text, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = done.stderr.splitlines()
                first = next((line for line in lines if "error" in line), f"exit code {done.returncode}")
                raise CompileError(f"{COMPILER} refuses the unit: {first}", done.stderr)

        return cache.get(key, SUFFIX) or cache.put(key, SUFFIX, build)


@lru_cache(maxsize=1)
def _version() -> str:
    done = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.partition("\n")[0].strip()
