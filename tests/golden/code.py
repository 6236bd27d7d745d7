"""Machine code of a sample of every family, symbols stripped, as digests."""

from __future__ import annotations

import struct
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from tests.golden import access

RECORD = Path(__file__).parent.parent / "data" / "golden" / "code.json"
ARCHS = ("sm_80", "sm_90", "gfx942", "gfx1100")
_PROGBITS, _EXECUTABLE = 1, 4


def _order(section: bytes) -> tuple[int, bytes]:
    return len(section), section


def text_digest(binary: bytes) -> str:
    """A digest of what a 64-bit ELF file executes: its sections of instructions, ordered by size and content,
    without their names. Raises ValueError for another file."""
    if binary[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", binary, 0x28)
    size, count = struct.unpack_from("<HH", binary, 0x3A)
    found: list[bytes] = []
    for index in range(count):
        _, kind, flags, _, offset, length = struct.unpack_from("<IIQQQQ", binary, start + index * size)
        if kind == _PROGBITS and flags & _EXECUTABLE:
            found.append(binary[offset : offset + length])
    if not found:
        raise ValueError("no section of instructions")
    found.sort(key=_order)
    return sha256(b"".join(found)).hexdigest()[:24]


def builds() -> dict[str, str | None]:
    """The compilers that the digests are of."""
    return {"nvrtc": access.nvrtc_build(), "clang": access.clang_build()}


def digests(arch: str, cache: BinaryCache, names: Collection[str] = ()) -> dict[str, list[str]]:
    """Family (of `names`, or all) -> [its sample's id, the digest of its code]."""
    found = {}
    for name in access.families_of(arch):
        if name in access.FAMILIES and (not names or name in names):
            solution, binary = access.sample_of(name, arch), access.code_of(name, arch, cache)
            if solution is not None and binary is not None:
                found[name] = [solution.id, text_digest(binary)]
    return found


def record(cache: BinaryCache) -> dict[str, Any]:
    """The compilers, and every architecture's digests."""
    return {"builds": builds(), "digests": {arch: digests(arch, cache) for arch in ARCHS}}
