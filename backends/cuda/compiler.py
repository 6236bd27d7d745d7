"""NVRTC: CUDA C++ to a cubin for one real architecture, through the cache. Needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing

KERNELS = Path(__file__).parent / "kernels"
_FLAGS = ("--std=c++17",)


@lru_cache(maxsize=1)
def nvrtc() -> Any:
    """cuda.bindings.nvrtc with its library loaded. Raises CompilerMissing."""
    try:
        from cuda.bindings import nvrtc as found  # noqa: PLC0415  (optional)

        found.nvrtcVersion()
    except Exception as error:  # the import's, or the loader's own
        raise CompilerMissing(
            f"NVRTC is not to be had ({type(error).__name__}: {error}); pip install 'gemmtune[cuda]'"
        ) from error
    return found


def nvrtc_build() -> str | None:
    """NVRTC's version, None where there is none."""
    try:
        _, major, minor = nvrtc().nvrtcVersion()
    except CompilerMissing:
        return None
    return f"{major}.{minor}"


def compile_cubin(
    source: str, arch: str, cache: BinaryCache, defines: Mapping[str, str] | None = None
) -> Path:
    """kernels/SOURCE for `arch` (sm_90, sm_90a) with macros. Raises CompileError, CompilerMissing."""
    key, texts, flags = _inputs(source, arch, tuple(sorted((defines or {}).items())))

    def build(path: Path) -> None:
        path.write_bytes(_compile(source, texts, flags))

    return cache.get(key, ".cubin") or cache.put(key, ".cubin", build)


@lru_cache(maxsize=64)
def _inputs(
    source: str, arch: str, defines: tuple[tuple[str, str], ...]
) -> tuple[str, Mapping[str, str], list[str]]:
    """(key, texts, flags) of a compilation; an installation's kernels do not change while it runs."""
    texts = {path.name: path.read_text() for path in sorted(KERNELS.glob("*.h"))}
    texts[source] = (KERNELS / source).read_text()
    flags = [f"--gpu-architecture={arch}", *_FLAGS]
    flags += [f"--define-macro={name}={value}" for name, value in defines]
    return BinaryCache.key(texts, arch, f"nvrtc {nvrtc_build()}", flags), texts, flags


def _compile(source: str, texts: Mapping[str, str], flags: list[str]) -> bytes:
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
            _, size = api.nvrtcGetProgramLogSize(program)
            log = b" " * size
            api.nvrtcGetProgramLog(program, log)
            text = log.decode(errors="replace").rstrip("\0 \n")
            first = next((line for line in text.splitlines() if "error" in line), result[0].name)
            raise CompileError(f"NVRTC refuses {source}: {first}", text)
        _, size = _checked(api.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        cubin = b" " * size
        _checked(api.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return bytes(cubin)
    finally:
        api.nvrtcDestroyProgram(program)


def _checked(result: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if result[0].name != "NVRTC_SUCCESS":
        raise CompileError(f"{what}: {result[0].name}")
    return result
