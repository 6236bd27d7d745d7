"""clang as HIP's compiler: our C++ kernels to a code object for one of AMD's architectures, through the
cache. Needs neither a GPU nor ROCm: the kernels include no header of a vendor's (portable.h)."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from backends import resources
from backends.archs import gpu_arch
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.resources import Resources
from backends.toolchains.toolchain import CompileUnit

#: The line of versions that the kernels are compiled with, and its linker.
COMPILER, LINKER = "clang-19", "ld.lld-19"
SUFFIX = ".hsaco"
COMPILE_SECONDS = 120.0
_FLAGS = (
    "-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib",
    "-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Rpass-analysis=kernel-resource-usage",
)  # fmt: skip
#: The remarks' lines: "Function Name: gemm", then "VGPRs: 150" and so on.
_ENTRY = re.compile(r"remark: Function Name: (\w+)")
_NUMBER = re.compile(r"remark: +([^:\n]+): (\d+)")
#: A vector register holds this of each lane.
_REGISTER_BYTES = 4


def missing() -> str | None:
    """Why nothing can be compiled, and what to install; None where all is well."""
    if shutil.which(COMPILER) and shutil.which(LINKER):
        return None
    return f"HIP's kernels want {COMPILER} and lld-19, which are not both here; install clang-19 and lld-19"


def clang_build() -> str | None:
    """The first line of --version, None where there is no such compiler."""
    found = shutil.which(COMPILER)
    return None if found is None else _version(found)


@lru_cache(maxsize=8)
def _version(command: str) -> str | None:
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip()


class Clang:
    """clang as a Toolchain: CompileUnits of gfx* architectures, for wavefronts of the architecture's size."""

    name = "clang"

    def build(self) -> str | None:
        """The first line of --version, None where there is no such compiler."""
        return clang_build()

    def missing(self) -> str | None:
        """Why nothing can be compiled, and what to install; None where all is well."""
        return missing()

    def target(self, arch: str, arch_specific: bool) -> str:
        """The architecture itself: a gfx target has all of its instructions."""
        return arch

    def compile(self, unit: CompileUnit, cache: BinaryCache) -> Path:
        """See Toolchain."""
        if (why := missing()) is not None:
            raise CompilerMissing(why)
        warp = gpu_arch("hip", unit.arch).warp
        flags = [*_FLAGS, f"--offload-arch={unit.arch}", f"-DGEMMTUNE_WARP={warp}"]
        flags += [f"-D{name}={value}" for name, value in unit.defines]
        texts = {**unit.headers(), "unit.hip": unit.text}
        key = BinaryCache.key(texts, unit.arch, str(clang_build()), flags)
        found = cache.get(key, SUFFIX)
        if found is not None and cache.get(key, resources.SUFFIX) is not None:
            return found
        log = ""

        def build(path: Path) -> None:
            nonlocal log
            folders = (f"-I{root}" for root in unit.roots)
            log = _compile([*flags, *folders, "-", "-o", str(path)], unit.text)

        made = cache.put(key, SUFFIX, build)
        cache.put(key, resources.SUFFIX, lambda path: resources.write(path, told(log)))
        return made


def _compile(arguments: list[str], unit: str) -> str:
    """What the compiler printed."""
    try:
        done = subprocess.run(
            [COMPILER, *arguments], input=unit, capture_output=True, text=True, timeout=COMPILE_SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CompileError(f"{COMPILER} took over {COMPILE_SECONDS:.0f} s") from None
    if done.returncode:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error" in line), f"exit code {done.returncode}")
        raise CompileError(f"{COMPILER} refuses the unit: {first}", done.stderr)
    return done.stderr


def told(log: str) -> dict[str, Resources]:
    """What the remarks say of each entry point: vector registers, the accumulators among them; shared memory
    is what is declared, not what a launch adds."""
    _, *parts = _ENTRY.split(log)
    found = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        numbers = {what.strip(): int(value) for what, value in _NUMBER.findall(text)}
        vectors = numbers.get("VGPRs")
        found[name] = Resources(
            None if vectors is None else vectors + numbers.get("AGPRs", 0),
            numbers.get("LDS Size [bytes/block]", 0),
            None if "VGPRs Spill" not in numbers else numbers["VGPRs Spill"] * _REGISTER_BYTES,
        )
    return found
