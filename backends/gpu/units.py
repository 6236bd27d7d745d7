"""The shared layer's own kernels (kernels/*.h) as units of a toolchain: references, bandwidth, copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backends.kernels import headers
from backends.toolchains.toolchain import CompileUnit

#: Where they lie; they include headers of their own and of the kernel families.
KERNELS = Path(__file__).parent / "kernels"


def device_unit(source: str, arch: str, defines: Mapping[str, str]) -> CompileUnit:
    """kernels/SOURCE for an architecture with macros."""
    text = f'#include "{source}"\n'
    return CompileUnit(text, arch, (KERNELS, headers.ROOT), tuple(sorted(defines.items())))
