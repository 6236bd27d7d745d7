"""hipRTC, which ROCm's runtime brings: compiles our C++ kernels to a code object for one AMD architecture,
through the cache. Needs no GPU.

hip-python opens libhiprtc.so at the first call. Every call answers with a status first, and never raises for
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from backends import resources
from backends.archs import gpu_arch
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.toolchains import code_object
from backends.toolchains.rocm import find_library, rocm_version, why_missing
from backends.toolchains.toolchain import CompileUnit

SUFFIX = ".hsaco"
#: As clang.py compiles.
_FLAGS = ("-O2", "-std=c++17")
#: Name given to the unit's text, which has no file.
UNIT = "unit.hip"
_LIBRARY = "hiprtc"
_SUCCESS = "HIPRTC_SUCCESS"
_SYMBOLS = (
    "hiprtcVersion", "hiprtcCreateProgram", "hiprtcCompileProgram", "hiprtcGetProgramLogSize",
    "hiprtcGetProgramLog", "hiprtcGetCodeSize", "hiprtcGetCode", "hiprtcDestroyProgram",
)  # fmt: skip


@lru_cache(maxsize=1)
def hiprtc() -> Any:
    """hip-python's module with its library loaded. Raises CompilerMissing."""
    # Before the first call: hip-python keeps what it found.
    if find_library(_LIBRARY) is None:
        raise CompilerMissing(f"hipRTC is missing: {why_missing(_LIBRARY)}")
    try:
        from hip import hiprtc as module  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise CompilerMissing(
            f"hip-python is not installed ({error}); pip install 'gemmtune[hip]'"
        ) from error
    found = cast(Any, module)
    lacking = [name for name in _SYMBOLS if not found.has_symbol(name)]
    if 0 < len(lacking) < len(_SYMBOLS):  # all of them: the library does not open
        raise CompilerMissing(f"{find_library(_LIBRARY)} is no usable hipRTC: it lacks {', '.join(lacking)}")
    try:
        status = found.hiprtcVersion()[0].name
    except (RuntimeError, ValueError) as error:
        raise CompilerMissing(f"hipRTC does not load: {error}") from error
    if status != _SUCCESS:
        raise CompilerMissing(f"hipRTC does not start: hiprtcVersion: {status}")
    return found


def hiprtc_build() -> str | None:
    """The version of the library's file and ROCm's release, None if hipRTC is missing. hiprtcVersion alone
    says nothing: ROCm 5.2 and 6.4 both answer 9.0."""
    try:
        _, major, minor = hiprtc().hiprtcVersion()
    except CompilerMissing:
        return None
    file, release = find_library(_LIBRARY), rocm_version()
    number = file.resolve().name.removeprefix(f"lib{_LIBRARY}.so").strip(".") if file else ""
    return ", ".join(
        [f"{major}.{minor}", *([number] if number else []), *([f"ROCm {release}"] if release else [])]
    )


class Hiprtc:
    """hipRTC as a Toolchain: compiles CompileUnits for gfx* architectures with their wavefront size."""

    name = "hiprtc"

    def build(self, arch: str | None = None) -> str | None:
        """See Toolchain."""
        return hiprtc_build()

    def missing(self, arch: str | None = None) -> str | None:
        """See Toolchain. hipRTC does not say which architectures it knows: a unit for another one does not
        compile."""
        try:
            hiprtc()
        except CompilerMissing as error:
            return str(error)
        return None

    def target(self, arch: str, arch_specific: bool) -> str:
        """The architecture itself: a gfx target always enables all of its instructions."""
        return arch

    def compile(self, unit: CompileUnit, cache: BinaryCache) -> Path:
        """See Toolchain."""
        hiprtc()
        headers, warp = unit.headers(), gpu_arch("hip", unit.arch).warp
        flags = [f"--offload-arch={unit.arch}", *_FLAGS, f"-DGEMMTUNE_WARP={warp}"]
        flags += [f"-D{name}={value}" for name, value in unit.defines]
        key = BinaryCache.key(
            {**headers, UNIT: unit.text}, unit.arch, f"{self.name} {hiprtc_build()}", flags
        )  # fmt: skip
        found = cache.get(key, SUFFIX)
        if found is not None and cache.get(key, resources.SUFFIX) is not None:
            return found
        code = _compile(unit.text, headers, flags)
        taken = code_object.resources(code)
        cache.put(key, resources.SUFFIX, lambda path: resources.write(path, taken))
        return cache.put(key, SUFFIX, lambda path: _write(path, code))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _compile(text: str, headers: Mapping[str, str], flags: Sequence[str]) -> bytes:
    """The code object. Raises CompileError with hipRTC's log."""
    (program,) = _call(
        "hiprtcCreateProgram", text.encode(), UNIT.encode(), len(headers),
        [header.encode() for header in headers.values()], [name.encode() for name in headers],
    )  # fmt: skip
    try:
        try:
            _call("hiprtcCompileProgram", program, len(flags), [flag.encode() for flag in flags])
        except CompileError as error:
            log = _text(program)
            first = next((line for line in log.splitlines() if "error" in line), str(error))
            raise CompileError(f"hipRTC refuses {UNIT}: {first}", log) from error
        return _bytes(program, "hiprtcGetCode")
    finally:
        # The call takes the handle's address.
        hiprtc().hiprtcDestroyProgram(program.createRef())


def _text(program: Any) -> str:
    try:
        return _bytes(program, "hiprtcGetProgramLog").decode(errors="replace").rstrip("\0 \n")
    except CompileError as error:
        return f"no log: {error}"


def _bytes(program: Any, what: str) -> bytes:
    """What a pair of calls gives: WHATSize, and WHAT into a buffer of that size."""
    (size,) = _call(f"{what}Size", program)
    buffer = bytearray(size)
    if size:
        _call(what, program, buffer)
    return bytes(buffer)


def _call(what: str, *arguments: Any) -> tuple[Any, ...]:
    """The values of a call. Raises CompileError with the call and its status."""
    try:
        status, *values = getattr(hiprtc(), what)(*arguments)
    except (RuntimeError, ValueError) as error:  # a symbol that is not there; a status that has no name
        raise CompileError(f"{what}: {error}") from error
    if status.name != _SUCCESS:
        raise CompileError(f"{what}: {status.name}")
    return tuple(values)
