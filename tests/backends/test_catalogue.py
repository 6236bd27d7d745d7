"""The list of our own families."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest

import backends
from backends.catalogue import catalogue
from backends.errors import CompilerMissing
from backends.kernels.families import FAMILIES
from backends.kernels.triton.families import FAMILIES as TRITON_FAMILIES
from backends.registry import backend
from backends.toolchains import clang_compilers, triton

ROOT = Path(backends.__file__).parent.parent
#: Families of quantised weights alone, of 8-bit operands, and of groups.
WEIGHTS = (
    "dequant-mma",
    "dequant-ring",
    "packed-mma",
    "packed-imma",
    "dequant-wgmma",
    "dequant-tma-wgmma",
    "dequant-tile-wgmma",
    "dequant-tile-mma",
    "dequant-gemv",
    "dequant-mfma",
    "dequant-wmma",
    "triton-dequant",
)
BYTES = ("bytes-ring", "bytes-tile-mma")
MX_PRODUCTS = ("mxfp4-tile-mma", "mxfp4-mfma")
OF_WEIGHTS = ("grouped-dequant-wgmma", "grouped-dequant-mfma", "grouped-dequant-wmma")
GROUPED = (
    "grouped-wgmma", "grouped-ring", "grouped-tile", "grouped-mfma", "grouped-wmma", "triton-fused-moe",
)  # fmt: skip


def test_every_family_is_there_once_with_its_source() -> None:
    entries = {entry.name: entry for entry in catalogue()}
    assert len(entries) == len(catalogue())
    own = [name for name, family in backend("cpu").families().items() if family.compiles]
    assert list(entries) == [*FAMILIES, *TRITON_FAMILIES, *own]
    for entry in entries.values():
        assert len(entry.description) > 20
        assert "Parameters:" not in entry.description
        assert entry.description.endswith(".")
        assert entry.files
        for file in entry.files:
            assert (ROOT / file).is_file()
        assert entry.vendors
        assert entry.parameters
        others = ("triton-block-fp8", *WEIGHTS, *BYTES, *MX_PRODUCTS, *GROUPED, *OF_WEIGHTS)
        assert "bf16" in entry.input_types or entry.name in others
    assert len({entry.description for entry in entries.values()}) == len(entries)


def test_groups_are_types_of_their_own() -> None:
    entries = {entry.name: entry for entry in catalogue()}
    of_weights = ("int4 weights of groups", "uint4 weights of groups", "fp4_e2m1 weights of groups")
    for name in GROUPED:
        more = of_weights if name == "grouped-ring" else ()
        assert entries[name].input_types == (*more, "bf16 groups", "fp16 groups")
    for name in OF_WEIGHTS:
        assert entries[name].input_types == of_weights


def test_what_is_said_of_a_family_is_its_own() -> None:
    entries = {entry.name: entry for entry in catalogue()}
    mma = entries["skinny-mma"]
    assert (mma.vendors, mma.input_types, mma.language) == (("cuda",), ("fp16", "bf16"), "C++")
    assert (mma.files, mma.version) == (("backends/kernels/families/skinny_mma.h",), 1)
    assert mma.space == prod(map(len, FAMILIES["skinny-mma"].choices.values())) == 960
    ring = entries["skinny-ring"]
    assert (ring.vendors, ring.input_types, ring.language) == (("cuda",), ("fp16", "bf16"), "C++")
    assert (ring.files, ring.version) == (("backends/kernels/families/skinny_ring.h",), 2)
    assert ring.space == prod(map(len, FAMILIES["skinny-ring"].choices.values())) == 7200
    shifted = entries["skinny-shifted"]
    assert (shifted.vendors, shifted.input_types, shifted.language) == (("cuda",), ("fp16", "bf16"), "C++")
    assert (shifted.files, shifted.version) == (("backends/kernels/families/skinny_shifted.h",), 3)
    assert shifted.space == prod(map(len, FAMILIES["skinny-shifted"].choices.values())) == 18432
    short = entries["short-k"]
    assert (short.vendors, short.input_types, short.language) == (("cuda",), ("fp16", "bf16"), "C++")
    assert (short.files, short.version) == (("backends/kernels/families/short_k.h",), 1)
    assert short.space == prod(map(len, FAMILIES["short-k"].choices.values())) == 324
    assert entries["gemv"].vendors == ("cuda", "hip")
    assert entries["naive"].input_types == ("fp32", "fp16", "bf16")
    split = entries["triton-split-k"]
    assert (split.language, split.vendors) == ("Triton", ("cuda", "hip"))
    assert set(split.input_types) == {
        "fp32", "fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz", "tf32",
    }  # fmt: skip
    blocks = entries["triton-block-fp8"]
    assert blocks.files == ("backends/kernels/triton/framework_kernels.py",)
    assert blocks.input_types == ("fp8_e4m3", "fp8_e4m3_fnuz")
    moe = entries["triton-fused-moe"]
    assert (moe.vendors, moe.files) == (("cuda", "hip"), blocks.files)
    dequant = entries["triton-dequant"]
    assert (dequant.vendors, dequant.files) == (
        ("cuda", "hip"), ("backends/kernels/triton/weight_kernels.py",),
    )  # fmt: skip
    assert dequant.input_types == (
        "int4 weights", "uint4 weights", "int8 weights", "fp4_e2m1 weights",
    )  # fmt: skip
    assert entries["triton-inductor-mm"].input_types == ("fp16", "bf16")
    assert entries["packed"].space is None, "cache blocks are any numbers"
    assert entries["packed"].input_types == ("fp64", "fp32", "fp16", "bf16", "int8")


def test_a_compiler_that_is_missing_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> None:
        raise CompilerMissing("NVRTC is not to be had")

    monkeypatch.setattr("backends.toolchains.nvrtc.nvrtc", nowhere)
    monkeypatch.setattr(triton, "triton_build", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(clang_compilers, "_zig", lambda: None)
    monkeypatch.delenv("CXX", raising=False)
    entries = {entry.name: entry for entry in catalogue()}
    assert entries["gemv"].missing["cuda"] == "NVRTC is not to be had"
    assert "clang-19" in str(entries["gemv"].missing["hip"])
    assert "Triton is not installed" in str(entries["triton-gemm"].missing["cuda"])
    assert "no C++ compiler" in str(entries["packed"].missing["cpu"])


def test_it_is_plain_json() -> None:
    rows = json.loads(json.dumps([entry.to_dict() for entry in catalogue()]))
    first = rows[0]
    assert first["name"] == "gemv-persistent"
    assert first["parameters"]["stream"] == ["a", "b"]
    assert (first["vendors"], first["space"]) == (["cuda", "hip"], 1872)
