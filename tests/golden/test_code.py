"""The machine code of a sample of every family is what it was: no move and no new name may change it."""

from __future__ import annotations

import json
import os
import struct

import pytest

from backends.cache import BinaryCache
from tests.golden import code

RECORDED = json.loads(code.RECORD.read_text())


#: Of two architectures these are compiled in every test run, and of each every family by `make exhaustive`.
SOME = ("gemv", "skinny", "skinny-mma", "stream-k", "tile-mfma", "tile-wgmma", "vectorized")


@pytest.mark.compiler
@pytest.mark.clang
@pytest.mark.parametrize(
    ("arch", "names"),
    [
        *(pytest.param(arch, SOME, id=f"{arch}-some") for arch in ("sm_90", "gfx942")),
        *(pytest.param(arch, (), id=arch, marks=pytest.mark.exhaustive) for arch in code.ARCHS),
    ],
)
def test_every_familys_code_is_as_recorded(arch: str, names: tuple[str, ...], cache: BinaryCache) -> None:
    if code.builds() != RECORDED["builds"] and os.environ.get("CI") != "true":
        pytest.skip(f"the record is of {RECORDED['builds']}, and here are {code.builds()}")
    recorded = RECORDED["digests"][arch]
    assert code.digests(arch, cache, names) == {
        name: digest for name, digest in recorded.items() if not names or name in names
    }


def _elf(*sections: bytes) -> bytes:
    """An ELF file with these sections of instructions."""
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    body, table = b"", b""
    for one in sections:
        table += struct.pack("<IIQQQQIIQQ", 0, 1, 4, 0, 64 + len(body), len(one), 0, 0, 0, 0)
        body += one
    struct.pack_into("<Q", header, 0x28, 64 + len(body))
    struct.pack_into("<HH", header, 0x3A, 64, len(sections))
    return bytes(header) + body + table


def test_one_other_instruction_is_another_digest() -> None:
    assert code.text_digest(_elf(b"one", b"two")) == code.text_digest(_elf(b"two", b"one"))
    assert code.text_digest(_elf(b"one", b"two")) != code.text_digest(_elf(b"one", b"twp"))


@pytest.mark.parametrize("binary", [b"", b"#!/bin/sh", _elf()])
def test_what_is_no_binary_is_refused(binary: bytes) -> None:
    with pytest.raises(ValueError, match=r"no 64-bit ELF file|no section"):
        code.text_digest(binary)
