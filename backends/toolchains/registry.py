"""The toolchains: one for each vendor's C++ kernels, and Triton."""

from __future__ import annotations

from collections.abc import Mapping

from backends.toolchains.clang import Clang
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit, Toolchain
from backends.toolchains.triton import Triton

#: Vendor -> the toolchain that compiles our C++ kernels for its GPUs.
TOOLCHAINS: Mapping[str, Toolchain[CompileUnit]] = {"cuda": Nvrtc(), "hip": Clang()}
#: The toolchain for Triton kernels, and the vendors that it compiles for.
TRITON, TRITON_VENDORS = Triton(), ("cuda", "hip")
