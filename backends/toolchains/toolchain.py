"""What a compiler of kernels is: one Protocol over NVRTC, clang and Triton. None of them needs a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels import headers

Unit_contra = TypeVar("Unit_contra", contravariant=True)


@dataclass(frozen=True)
class CompileUnit:
    """A C++ translation unit for one architecture (sm_90, sm_90a, gfx942). Its includes are
    relative to `roots`, the first that has a header; `defines` are (macro, value) in order."""

    text: str
    arch: str
    roots: tuple[Path, ...] = (headers.ROOT,)
    defines: tuple[tuple[str, str], ...] = ()

    @property
    def vendor(self) -> str:
        """The architecture's vendor: cuda or hip."""
        return "cuda" if self.arch.startswith("sm_") else "hip"

    def headers(self) -> dict[str, str]:
        """The headers that the unit includes for this target: name -> text. Raises CompileError."""
        try:
            return headers.included(self.text, self.vendor, self.roots)
        except FileNotFoundError as error:
            raise CompileError(str(error)) from error


class Toolchain(Protocol[Unit_contra]):
    """A compiler: C++ units (CompileUnit), or Triton's kernels (triton.TritonUnit)."""

    @property
    def name(self) -> str:
        """As people know it: nvrtc, clang, triton."""

    def build(self) -> str | None:
        """The version that is installed, None without one. It is part of every binary's cache key."""

    def missing(self) -> str | None:
        """Why nothing can be compiled here, and what to install; None where all is well."""

    def target(self, arch: str, arch_specific: bool) -> str:
        """The architecture's name as a unit names it, where the unit uses instructions of that one
        architecture alone (arch_specific) or not."""

    def compile(self, unit: Unit_contra, cache: BinaryCache) -> Path:
        """The binary, compiled into the cache where it was missing; what its kernels take lies beside it
        (resources.read()). Raises CompileError with the compiler's log, CompilerMissing, StorageError."""
