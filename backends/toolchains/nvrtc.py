"""NVRTC: compiles CUDA C++ to a cubin for one real architecture, through the cache. Needs no GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backends import resources
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.resources import Resources
from backends.toolchains.toolchain import CompileUnit

_FLAGS = ("--std=c++17",)
#: Makes ptxas report the resource usage of each entry point.
_TELL = "--ptxas-options=-v"
#: Bypasses NVRTC's cache. Releases without a cache reject this option.
_PAST_CACHE = "--no-cache"
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
#: Occurs once in a unit for every kernel.
_KERNEL = "GEMMTUNE_KERNEL("
#: Name given to the unit's text, which has no file.
UNIT = "unit.cu"


@lru_cache(maxsize=1)
def nvrtc() -> Any:
    """cuda.bindings.nvrtc with its library loaded. Raises CompilerMissing."""
    try:
        from cuda.bindings import nvrtc as found  # noqa: PLC0415  (optional)

        found.nvrtcVersion()
    except Exception as error:  # from the import, or from the bindings' library loader
        raise CompilerMissing(
            f"NVRTC is not to be had ({type(error).__name__}: {error}); pip install 'gemmtune[cuda]'"
        ) from error
    return found


def nvrtc_build() -> str | None:
    """NVRTC's version, None if it is missing."""
    try:
        _, major, minor = nvrtc().nvrtcVersion()
    except CompilerMissing:
        return None
    return f"{major}.{minor}"


@lru_cache(maxsize=1)
def header_folders() -> tuple[str, ...]:
    """Folders with CUDA's own headers: the toolkit's, those of NVIDIA's wheels, Triton's copy."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders = [root / "include" for root in (*roots, Path("/usr/local/cuda"))]
    for package in ("nvidia", "triton"):
        spec = find_spec(package)
        for root in map(Path, (spec.submodule_search_locations or ()) if spec is not None else ()):
            found = [*root.glob("*/include"), *root.glob("backends/nvidia/include")]
            folders += [one for one in sorted(found) if (one / "cuda_fp16.h").exists()]
    return tuple(str(one) for one in folders if one.is_dir())


class Nvrtc:
    """NVRTC as a Toolchain: compiles CompileUnits for sm_* architectures."""

    name = "nvrtc"

    def build(self, arch: str | None = None) -> str | None:
        """NVRTC's version, None if it is missing."""
        return nvrtc_build()

    def missing(self, arch: str | None = None) -> str | None:
        """Why NVRTC does not load, or None."""
        try:
            nvrtc()
        except CompilerMissing as error:
            return str(error)
        return None

    def target(self, arch: str, arch_specific: bool) -> str:
        """The architecture, with the suffix `a` if the unit uses architecture-specific instructions."""
        return f"{arch}a" if arch_specific and arch[-1:].isdigit() else arch

    def compile(self, unit: CompileUnit, cache: BinaryCache) -> Path:
        """See Toolchain."""
        texts = {**unit.headers(), UNIT: unit.text}
        flags = [f"--gpu-architecture={unit.arch}", *_FLAGS, _TELL]
        flags += [f"--define-macro={name}={value}" for name, value in unit.defines]
        if unit.vendor_headers:
            flags += [f"--include-path={folder}" for folder in header_folders()]
        key = BinaryCache.key(texts, unit.arch, f"nvrtc {nvrtc_build()}", flags)
        found = cache.get(key, ".cubin")
        if found is not None and cache.get(key, resources.SUFFIX) is not None:
            return found
        cubin, kernels = _told_compile(unit.text, texts, flags)
        cache.put(key, resources.SUFFIX, lambda path: resources.write(path, kernels))
        return cache.put(key, ".cubin", lambda path: _write(path, cubin))


def _told_compile(
    unit: str, texts: Mapping[str, str], flags: list[str]
) -> tuple[bytes, Mapping[str, Resources]]:
    """The cubin, and the resource usage of its kernels. With a driver installed, NVRTC takes units that it
    compiled before from the driver's cache and ptxas reports nothing; such a unit is compiled again without
    the cache."""
    cubin, log = _compile(UNIT, texts, flags)
    if len(told(log)) < unit.count(_KERNEL):
        cubin, log = _compile(UNIT, texts, [*flags, _PAST_CACHE])
    return cubin, told(log)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def told(log: str) -> dict[str, Resources]:
    """The resource usage of each entry point according to ptxas -v. Shared memory is static only, without
    what a launch adds."""
    _, *parts = _ENTRY.split(log)
    return {name: _told(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _told(text: str) -> Resources:
    registers, shared, spills = (each.search(text) for each in (_REGISTERS, _SHARED, _SPILLS))
    return Resources(
        int(registers[1]) if registers else None,
        int(shared[1]) if shared else 0,
        int(spills[1]) + int(spills[2]) if spills else None,
    )


def _compile(source: str, texts: Mapping[str, str], flags: list[str]) -> tuple[bytes, str]:
    """The cubin and the compiler's log."""
    api = nvrtc()
    headers = {name: text for name, text in texts.items() if name != source}
    _, program = _checked(
        api.nvrtcCreateProgram(
            texts[source].encode(), source.encode(), len(headers),
            [text.encode() for text in headers.values()], [name.encode() for name in headers],
        ),
        "nvrtcCreateProgram",
    )  # fmt: skip
    try:
        result = api.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        if result[0].name != "NVRTC_SUCCESS":
            text = _log(program)
            first = next((line for line in text.splitlines() if "error" in line), result[0].name)
            raise CompileError(f"NVRTC refuses {source}: {first}", text)
        _, size = _checked(api.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        cubin = _buffer(size)
        _checked(api.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return cubin[:size], _log(program)
    finally:
        api.nvrtcDestroyProgram(program)


def _log(program: Any) -> str:
    api = nvrtc()
    _, size = api.nvrtcGetProgramLogSize(program)
    log = _buffer(size)
    api.nvrtcGetProgramLog(program, log)
    return log[:size].decode(errors="replace").rstrip("\0 \n")


def _buffer(size: int) -> bytes:
    """A bytes object for NVRTC to write into. At least two bytes: CPython shares one object per single-byte
    value, and writing into that would corrupt it for the whole process (an empty log is one byte)."""
    return bytes(max(size, 2))


def _checked(result: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if result[0].name != "NVRTC_SUCCESS":
        raise CompileError(f"{what}: {result[0].name}")
    return result
