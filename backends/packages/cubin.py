"""Which driver loads a cubin, read from the cubin itself: compilers of several CUDA releases write them."""

from __future__ import annotations

import re

_ELF, _MACHINE = b"\x7fELF\x02", (190).to_bytes(2, "little")  # 64-bit, EM_CUDA
#: Where an ELF header has its ABI version and its machine.
_ABI_VERSION, _MACHINE_AT = 8, 18
#: Of the note .note.nv.tkinfo, which ptxas and NVRTC of CUDA 13 write.
_RELEASE = re.compile(rb"Cuda compilation tools, release (\d+)\.\d+")
#: The ABI version that ptxas of CUDA 12 writes (seen in cubins of Triton 3.6, whose ptxas is 12.8).
_ABI_OF_CUDA_12, _CUDA_12 = 7, 12


def oldest_driver(binary: bytes) -> int | None:
    """The version, as cuDriverGetVersion() has it, of the oldest driver that loads a cubin; None for other
    binaries, and for cubins of an unknown compiler.

    A cubin of any release of a CUDA major version loads on every driver of that major version and on later
    ones: docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility"."""
    if not binary.startswith(_ELF) or binary[_MACHINE_AT : _MACHINE_AT + 2] != _MACHINE:
        return None
    found = _RELEASE.search(binary)
    if found is not None:
        return int(found[1]) * 1000
    return _CUDA_12 * 1000 if binary[_ABI_VERSION] == _ABI_OF_CUDA_12 else None
