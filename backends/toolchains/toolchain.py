"""The protocol of a kernel compiler, implemented by NVRTC, hipRTC, clang and Triton. None of them needs a
GPU."""

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
    """A C++ translation unit for one architecture (sm_90, sm_90a, gfx942). Includes are searched for in
    `roots`, in order; `defines` are (macro, value) in order. `vendor_headers`: whether it may include headers
    of the vendor's toolkit, such as <cuda_fp16.h>, where they are installed."""

    text: str
    arch: str
    roots: tuple[Path, ...] = (headers.ROOT,)
    defines: tuple[tuple[str, str], ...] = ()
    vendor_headers: bool = False

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
    """A compiler of C++ units (CompileUnit) or of Triton kernels (triton.TritonUnit)."""

    @property
    def name(self) -> str:
        """Display name: nvrtc, hiprtc, clang, triton."""

    def build(self, arch: str | None = None) -> str | None:
        """The installed version (the one that compiles for an architecture), None if there is none. It is
        part of every binary's cache key."""

    def missing(self, arch: str | None = None) -> str | None:
        """Why nothing can be compiled here (for an architecture), and what to install; None if compiling
        works."""

    def target(self, arch: str, arch_specific: bool) -> str:
        """The target name to compile for. `arch_specific`: the unit uses instructions that only this one
        architecture has."""

    def compile(self, unit: Unit_contra, cache: BinaryCache) -> Path:
        """The binary, compiled into the cache if it is not there. The resource usage of its kernels is stored
        beside it (resources.read()). Raises CompileError with the compiler's log, CompilerMissing,
        StorageError."""
