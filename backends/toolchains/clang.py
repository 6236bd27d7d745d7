"""clang as the HIP compiler: compiles our C++ kernels to a code object for one AMD architecture, through the
cache. Needs neither a GPU nor ROCm, since the kernels include no vendor headers (portable.h)."""

from __future__ import annotations

from pathlib import Path

from backends import resources
from backends.archs import gpu_arch
from backends.cache import BinaryCache
from backends.errors import CompilerMissing
from backends.toolchains import clang_compilers, code_object
from backends.toolchains.clang_compilers import compiler_for, installed
from backends.toolchains.toolchain import CompileUnit

SUFFIX = ".hsaco"
COMPILE_SECONDS = 120.0
#: What the suites compile our kernels with, beside what is needed: other compilers may warn of more.
STRICT = ("-Wall", "-Wextra", "-Werror")


def missing(arch: str | None = None) -> str | None:
    """Why nothing can be compiled (for an architecture), and what to install; None if compiling works."""
    if arch is None:
        return clang_compilers.missing()
    try:
        compiler_for(arch)
    except CompilerMissing as error:
        return str(error)
    return None


def clang_build(arch: str | None = None) -> str | None:
    """The first line of --version of the compiler for an architecture (default: of the preferred one); None
    if there is none."""
    try:
        if arch is not None:
            return compiler_for(arch).version
        return next((one.version for one in installed()), None)
    except CompilerMissing:
        return None


class Clang:
    """clang as a Toolchain: compiles CompileUnits for gfx* architectures with their wavefront size, with
    further `flags`."""

    name = "clang"

    def __init__(self, flags: tuple[str, ...] = ()) -> None:
        self._flags = flags

    def build(self, arch: str | None = None) -> str | None:
        """See Toolchain: the first line of --version."""
        return clang_build(arch)

    def missing(self, arch: str | None = None) -> str | None:
        """See Toolchain."""
        return missing(arch)

    def target(self, arch: str, arch_specific: bool) -> str:
        """The architecture itself: a gfx target always enables all of its instructions."""
        return arch

    def compile(self, unit: CompileUnit, cache: BinaryCache) -> Path:
        """See Toolchain."""
        compiler = compiler_for(unit.arch)
        flags = [*self._flags, f"-DGEMMTUNE_WARP={gpu_arch('hip', unit.arch).warp}"]
        flags += [f"-D{name}={value}" for name, value in unit.defines]
        texts = {**unit.headers(), "unit.hip": unit.text}
        key = BinaryCache.key(texts, unit.arch, compiler.build, [*clang_compilers.FLAGS, *flags])
        found = cache.get(key, SUFFIX)
        if found is not None and cache.get(key, resources.SUFFIX) is not None:
            return found
        folders = [f"-I{root}" for root in unit.roots]

        def build(path: Path) -> None:
            compiler.compile(unit.text, unit.arch, [*flags, *folders], path, COMPILE_SECONDS)

        made = cache.put(key, SUFFIX, build)
        taken = code_object.resources(made.read_bytes())
        cache.put(key, resources.SUFFIX, lambda path: resources.write(path, taken))
        return made
