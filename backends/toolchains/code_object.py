"""Reads the metadata of an AMDGPU code object: the target, and what each kernel takes.

A code object is a 64-bit ELF file. An NT_AMDGPU_METADATA note holds a MessagePack document whose
`amdhsa.kernels` lists the kernels ("User Guide for AMDGPU Backend", Code Object Metadata, V3 and later). The
input may be anything: whatever is not a well-formed code object raises InvalidCodeObject.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from backends.resources import Resources

_MACHINE = 224  # EM_AMDGPU
_NOTE_SEGMENT, _NOTE_SECTION = 4, 7  # PT_NOTE, SHT_NOTE
_OWNER, _METADATA = b"AMDGPU\0", 32  # NT_AMDGPU_METADATA
#: Notes that are looked at. A code object has one; headers of a hostile file may point at the same notes.
_MOST_NOTES = 1000
#: Nesting of a MessagePack document at most. Metadata has six levels.
_DEPTH = 16
#: Bytes of a vector register per lane.
_REGISTER_BYTES = 4


class InvalidCodeObject(ValueError):
    """The bytes are not an AMDGPU code object with readable metadata."""


@dataclass(frozen=True)
class KernelMetadata:
    """One kernel of a code object. Counts are registers per lane (vector) or per wavefront (scalar); sizes
    are bytes. `vgpr_count` includes the accumulation registers, which share the vector registers' file from
    gfx90a on. `group_segment_fixed_size` is static LDS; `private_segment_fixed_size` is scratch per lane.
    `arguments` are (size, kind) of the explicit kernel arguments. Spill counts are None if not recorded."""

    name: str
    symbol: str
    wavefront_size: int
    vgpr_count: int
    sgpr_count: int
    group_segment_fixed_size: int
    private_segment_fixed_size: int
    kernarg_segment_size: int
    max_flat_workgroup_size: int
    agpr_count: int = 0
    vgpr_spill_count: int | None = None
    sgpr_spill_count: int | None = None
    arguments: tuple[tuple[int, str], ...] = ()

    @property
    def resources(self) -> Resources:
        """As the compilers of other vendors report it; spills are vector registers."""
        spilled = self.vgpr_spill_count
        return Resources(
            self.vgpr_count,
            self.group_segment_fixed_size,
            None if spilled is None else spilled * _REGISTER_BYTES,
            accumulation_registers=self.agpr_count,
            scalar_registers=self.sgpr_count,
            scratch_bytes=self.private_segment_fixed_size,
        )


@dataclass(frozen=True)
class CodeObject:
    """The target with its features (gfx90a:sramecc+:xnack-), and the kernels by name."""

    target: str
    kernels: Mapping[str, KernelMetadata]

    @property
    def arch(self) -> str:
        """The processor alone: gfx90a."""
        return self.target.partition(":")[0]


def read(data: bytes) -> CodeObject:
    """The metadata of a code object. Raises InvalidCodeObject."""
    for owner, kind, content in islice(_notes(data), _MOST_NOTES):
        if (owner, kind) == (_OWNER, _METADATA):
            return _code_object(unpack(content))
    raise InvalidCodeObject("no AMDGPU metadata note")


def resources(data: bytes) -> dict[str, Resources]:
    """Kernel name -> resources; empty if the bytes are not a readable code object."""
    try:
        return {name: one.resources for name, one in read(data).kernels.items()}
    except InvalidCodeObject:
        return {}


# ---- ELF ---------------------------------------------------------------------------------------------


def _fields(layout: str, data: bytes, offset: int) -> tuple[Any, ...]:
    """struct.unpack_from; InvalidCodeObject past the end."""
    try:
        return struct.unpack_from(layout, data, offset)
    except (struct.error, OverflowError) as error:
        raise InvalidCodeObject(f"truncated: {error}") from error


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """(owner, type, content) of every note: of note segments, then of note sections (relocatable objects
    have no segments)."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise InvalidCodeObject("not a 64-bit little-endian ELF file")
    machine = _fields("<H", data, 18)[0]
    if machine != _MACHINE:
        raise InvalidCodeObject(f"ELF machine {machine} is not AMDGPU")
    segments, sections = _fields("<QQ", data, 32)
    segment_size, segment_count, section_size, section_count = _fields("<HHHH", data, 54)
    for index in range(segment_count):
        kind, _, offset, _, _, length = _fields("<IIQQQQ", data, segments + index * segment_size)
        if kind == _NOTE_SEGMENT:
            yield from _notes_of(data, offset, length)
    for index in range(section_count):
        _, kind, _, _, offset, length = _fields("<IIQQQQ", data, sections + index * section_size)
        if kind == _NOTE_SECTION:
            yield from _notes_of(data, offset, length)


def _notes_of(data: bytes, offset: int, length: int) -> Iterator[tuple[bytes, int, bytes]]:
    end = offset + length
    if end > len(data):
        raise InvalidCodeObject(f"notes end at byte {end} of {len(data)}")
    while offset + 12 <= end:
        owner_size, size, kind = _fields("<III", data, offset)
        start = offset + 12 + -(-owner_size // 4) * 4
        if start + size > end:
            raise InvalidCodeObject(f"a note ends at byte {start + size}, after its segment")
        yield data[offset + 12 : offset + 12 + owner_size], kind, data[start : start + size]
        offset = start + -(-size // 4) * 4


# ---- MessagePack -------------------------------------------------------------------------------------

#: Lead byte -> struct format of a fixed-size value.
_FIXED = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
#: Lead byte -> struct format of the length that follows.
_BINARY = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_TEXT = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_ARRAY = {0xDC: ">H", 0xDD: ">I"}
_MAP = {0xDE: ">H", 0xDF: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class _Unpacker:
    """Reads one MessagePack value; extension types are refused, and map keys must be strings."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def value(self, depth: int = 0) -> Any:
        """The next value."""
        if depth > _DEPTH:
            raise InvalidCodeObject(f"MessagePack nested deeper than {_DEPTH} levels")
        lead = self._number(">B")
        if lead < 0x80 or lead >= 0xE0:
            return lead if lead < 0x80 else lead - 0x100
        if lead < 0x90:
            return self._map(lead & 0x0F, depth)
        if lead < 0xA0:
            return self._array(lead & 0x0F, depth)
        if lead < 0xC0:
            return self._text(lead & 0x1F)
        if lead in _CONSTANTS:
            return _CONSTANTS[lead]
        if lead in _FIXED:
            return self._number(_FIXED[lead])
        if lead in _BINARY:
            return self._take(self._number(_BINARY[lead]))
        if lead in _TEXT:
            return self._text(self._number(_TEXT[lead]))
        if lead in _ARRAY:
            return self._array(self._number(_ARRAY[lead]), depth)
        if lead in _MAP:
            return self._map(self._number(_MAP[lead]), depth)
        raise InvalidCodeObject(f"MessagePack type {lead:#x} is not used in metadata")

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise InvalidCodeObject(f"MessagePack ends at byte {len(self._data)}, before {end}")
        found, self._at = self._data[self._at : end], end
        return found

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise InvalidCodeObject(f"a MessagePack string is not UTF-8: {error}") from error

    # Every element takes a byte at least, so that a count beyond the data ends at the data's end.

    def _array(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[str, Any]:
        found = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise InvalidCodeObject(f"a MessagePack key is a {type(key).__name__}, not a string")
            found[key] = self.value(depth + 1)
        return found


def unpack(data: bytes) -> Any:
    """One MessagePack value; bytes after it are ignored. Raises InvalidCodeObject."""
    return _Unpacker(data).value()


# ---- metadata ----------------------------------------------------------------------------------------


def _code_object(document: Any) -> CodeObject:
    target = _entry(document, "amdhsa.target", str)
    *_, processor = parts = target.split("-", 4)  # amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-
    if len(parts) != 5 or not processor:
        raise InvalidCodeObject(f"the target is {target[:80]!r}")
    kernels = [_kernel(one) for one in _entry(document, "amdhsa.kernels", list)]
    return CodeObject(processor, {one.name: one for one in kernels})


def _kernel(values: Any) -> KernelMetadata:
    def count(name: str) -> int:
        found: int = _entry(values, f".{name}", int)
        if found < 0:
            raise InvalidCodeObject(f".{name} is {found}")
        return found

    def optional(name: str) -> int | None:
        return count(name) if f".{name}" in values else None

    return KernelMetadata(
        name=_entry(values, ".name", str),
        symbol=_entry(values, ".symbol", str),
        wavefront_size=count("wavefront_size"),
        vgpr_count=count("vgpr_count"),
        sgpr_count=count("sgpr_count"),
        group_segment_fixed_size=count("group_segment_fixed_size"),
        private_segment_fixed_size=count("private_segment_fixed_size"),
        kernarg_segment_size=count("kernarg_segment_size"),
        max_flat_workgroup_size=count("max_flat_workgroup_size"),
        agpr_count=optional("agpr_count") or 0,
        vgpr_spill_count=optional("vgpr_spill_count"),
        sgpr_spill_count=optional("sgpr_spill_count"),
        arguments=tuple(_arguments(values)),
    )


def _arguments(values: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The arguments that a launch passes: hidden ones follow them."""
    for one in _entry(values, ".args", list) if ".args" in values else []:
        kind = _entry(one, ".value_kind", str)
        if not kind.startswith("hidden_"):
            yield _entry(one, ".size", int), kind


def _entry(values: Any, name: str, kind: type[Any]) -> Any:
    found = values.get(name) if isinstance(values, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise InvalidCodeObject(f"{name} is {type(found).__name__}, not {kind.__name__}")
    return found
