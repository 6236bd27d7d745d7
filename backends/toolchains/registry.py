"""The toolchain of each vendor's C++ kernels, and Triton's."""

from __future__ import annotations

from collections.abc import Mapping

from backends.toolchains.clang import Clang
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit, Toolchain
from backends.toolchains.triton import Triton

#: Vendor -> what compiles our C++ kernels for its GPUs.
TOOLCHAINS: Mapping[str, Toolchain[CompileUnit]] = {"cuda": Nvrtc(), "hip": Clang()}
#: What compiles Triton's kernels, and the vendors that it does so for.
TRITON, TRITON_VENDORS = Triton(), ("cuda",)
