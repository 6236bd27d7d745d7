"""The metadata of AMDGPU code objects, against llvm-readobj and clang's own assembly; and hostile bytes."""

from __future__ import annotations

import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from backends.resources import Resources
from backends.toolchains.clang_compilers import FLAGS, compiler_for
from backends.toolchains.code_object import CodeObject, InvalidCodeObject, read, resources, unpack

DATA = Path(__file__).parents[2] / "data" / "code_objects"
ARCHS = ("gfx90a", "gfx942", "gfx1100")
OBJECTS = {arch: (DATA / f"{arch}.hsaco").read_bytes() for arch in ARCHS}
#: Fields that have the same name in the metadata.
_COUNTS = (
    "wavefront_size", "vgpr_count", "sgpr_count", "agpr_count", "vgpr_spill_count", "sgpr_spill_count",
    "group_segment_fixed_size", "private_segment_fixed_size", "kernarg_segment_size",
    "max_flat_workgroup_size",
)  # fmt: skip


def same(found: CodeObject, document: dict[str, Any]) -> None:
    """Whether what was read is what a YAML document of the metadata says."""
    assert document["amdhsa.target"] in (f"amdgcn-amd-amdhsa-{os}-{found.target}" for os in ("", "unknown"))
    assert list(found.kernels) == [one[".name"] for one in document["amdhsa.kernels"]]
    for one in document["amdhsa.kernels"]:
        kernel = found.kernels[one[".name"]]
        assert kernel.symbol == one[".symbol"]
        for name in _COUNTS:
            assert getattr(kernel, name) == one.get(f".{name}", 0), name
        assert kernel.arguments == tuple((part[".size"], part[".value_kind"]) for part in one[".args"])


@pytest.mark.parametrize("arch", ARCHS)
def test_it_says_what_llvm_readobj_says(arch: str) -> None:
    text = (DATA / f"{arch}.txt").read_text()
    metadata = text.split("AMDGPU Metadata: ---\n")[1].split("\n...")[0]
    found = read(OBJECTS[arch])
    same(found, yaml.safe_load(metadata))
    assert found.arch == arch
    assert list(found.kernels) == ["shared", "spilling", "wide"]


@pytest.mark.clang
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "gfx1201"])
def test_it_says_what_the_assembly_of_this_machines_clang_says(arch: str, tmp_path: Path) -> None:
    # Fewer values to hold: registers for 270 take clang 19 half a minute to give out.
    compiler, text = compiler_for(arch), (DATA / "kernels.hip").read_text().replace("<270>", "<30>")
    compiler.compile(text, arch, (), tmp_path / "one.hsaco", 60.0)
    flags = [flag for flag in FLAGS if flag not in ("-Xclang", "-emit-obj")]
    done = subprocess.run(
        [*compiler.clang, *flags, f"--offload-arch={arch}", "-", "-o", "-"],
        input=text, capture_output=True, text=True, check=True,
    )  # fmt: skip
    document = done.stdout.split(".amdgpu_metadata\n")[1].split("\t.end_amdgpu_metadata")[0]
    same(read((tmp_path / "one.hsaco").read_bytes()), yaml.safe_load(document.replace("\t", "")))


def test_resources_of_kernels() -> None:
    found = resources(OBJECTS["gfx90a"])
    assert found["shared"] == Resources(2, 1200, 0, 0, 10, 0)
    assert found["wide"] == Resources(512, 0, 92, 256, 16, 96)
    assert resources(OBJECTS["gfx1100"])["wide"].accumulation_registers == 0
    assert resources(b"\x7fELF of a host") == {}


# ---- other files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a 64-bit little-endian ELF file"),
        (b"__CLANG_OFFLOAD_BUNDLE__", "not a 64-bit"),
        (OBJECTS["gfx942"][:30], "truncated"),
        (OBJECTS["gfx942"][:18] + b"\x3e\0" + OBJECTS["gfx942"][20:], "machine 62 is not AMDGPU"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xe0\0" + bytes(44), "no AMDGPU metadata note"),
    ],
)
def test_what_is_no_code_object(data: bytes, words: str) -> None:
    with pytest.raises(InvalidCodeObject, match=words):
        read(data)


def elf(*notes: bytes, count: int = 1, size: int = 56) -> bytes:
    """A file whose `count` program headers are of one segment with these notes."""
    body = b"".join(notes)
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<H", header, 18, 224)
    struct.pack_into("<QQ", header, 32, 64, 0)
    struct.pack_into("<HHHH", header, 54, size, count, 64, 0)
    program = struct.pack("<IIQQQQQQ", 4, 0, 120, 0, 0, len(body), len(body), 4)
    return bytes(header) + program + body


def note(content: bytes, owner: bytes = b"AMDGPU\0", kind: int = 32) -> bytes:
    def padded(part: bytes) -> bytes:
        return part + bytes(-len(part) % 4)

    return struct.pack("<III", len(owner), len(content), kind) + padded(owner) + padded(content)


def pack(value: Any) -> bytes:
    """MessagePack in its widest forms where there are several."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value) if value < 0 else struct.pack(">BQ", 0xCF, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, str):
        return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(pack, value))
    parts = (pack(key) + pack(one) for key, one in value.items())
    return struct.pack(">BI", 0xDF, len(value)) + b"".join(parts)


KERNEL: dict[str, Any] = {
    ".name": "one", ".symbol": "one.kd", ".wavefront_size": 64, ".vgpr_count": 9, ".sgpr_count": 8,
    ".group_segment_fixed_size": 0, ".private_segment_fixed_size": 0, ".kernarg_segment_size": 8,
    ".max_flat_workgroup_size": 256,
}  # fmt: skip
DOCUMENT: dict[str, Any] = {"amdhsa.target": "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"}


def test_an_object_of_few_words_and_one_with_other_notes() -> None:
    """Older compilers record neither accumulation registers nor spills nor arguments."""
    document = note(pack({**DOCUMENT, "amdhsa.kernels": [KERNEL]}))
    found = read(elf(note(b"123", b"GNU\0", 3), document))
    assert (found.target, found.arch) == ("gfx90a:sramecc+:xnack-", "gfx90a")
    one = found.kernels["one"]
    assert (one.agpr_count, one.vgpr_spill_count, one.arguments) == (0, None, ())
    assert one.resources.spill_bytes is None


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "amdhsa.target is NoneType, not str"),
        ({}, "amdhsa.target is NoneType"),
        ({"amdhsa.target": "gfx90a", "amdhsa.kernels": []}, "the target is 'gfx90a'"),
        (DOCUMENT, "amdhsa.kernels is NoneType, not list"),
        ({**DOCUMENT, "amdhsa.kernels": [1]}, ".name is NoneType"),
        ({**DOCUMENT, "amdhsa.kernels": [{**KERNEL, ".vgpr_count": "9"}]}, ".vgpr_count is str, not int"),
        ({**DOCUMENT, "amdhsa.kernels": [{**KERNEL, ".vgpr_count": True}]}, ".vgpr_count is bool, not int"),
        ({**DOCUMENT, "amdhsa.kernels": [{**KERNEL, ".agpr_count": -1}]}, ".agpr_count is -1"),
        ({**DOCUMENT, "amdhsa.kernels": [{**KERNEL, ".args": [{".size": 8}]}]}, ".value_kind is NoneType"),
    ],
)
def test_metadata_that_lacks_something(document: Any, words: str) -> None:
    with pytest.raises(InvalidCodeObject, match=words):
        read(elf(note(pack(document))))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends at byte 0, before 1"),
        (b"\xdd\xff\xff\xff\xff\x01", "ends at byte 6"),
        (b"\xdf\xff\xff\xff\xff\xa1k\x01", "ends at byte 8"),
        (b"\xdb\xff\xff\xff\xffabc", "ends at byte 8, before 4294967300"),
        (b"\x91" * 1000, "nested deeper than 16"),
        (b"\xd4\x01\x00", "type 0xd4 is not used"),
        (b"\xc1", "type 0xc1 is not used"),
        (b"\x81\x01\x02", "key is a int, not a string"),
        (b"\xa1\xff", "not UTF-8"),
    ],
)
def test_messages_that_end_early_or_are_not_metadatas(data: bytes, words: str) -> None:
    with pytest.raises(InvalidCodeObject, match=words):
        unpack(data)


def test_headers_that_all_point_at_the_same_notes_take_no_longer() -> None:
    file = elf(*[note(b"", b"", 1)] * 20_000, count=2**16 - 1, size=0)
    with pytest.raises(InvalidCodeObject, match="no AMDGPU metadata note"):
        read(file)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
@example([0, 127, -1, -32])
def test_what_was_packed_is_unpacked(value: Any) -> None:
    assert unpack(pack(value)) == value
    assert unpack(pack(value) + b"more") == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    with suppress(InvalidCodeObject):
        unpack(data)


@given(st.sampled_from(ARCHS), st.integers(0, 2**15))
def test_a_truncated_object_is_read_or_refused(arch: str, size: int) -> None:
    with suppress(InvalidCodeObject):
        read(OBJECTS[arch][:size])


#: Where the headers and the notes lie.
_HEAD = 0x238 + 0x530


@given(
    st.sampled_from(ARCHS),
    st.lists(st.tuples(st.integers(0, _HEAD), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_a_corrupted_object_is_read_or_refused(arch: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(OBJECTS[arch])
    for at, value in changes:
        data[at] = value
    with suppress(InvalidCodeObject):
        read(bytes(data))
