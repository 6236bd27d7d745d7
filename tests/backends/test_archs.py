"""Rows of hardware facts, and the pick of a CPU's level."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.archs import (
    CPU_EXTENSIONS,
    CPU_ISAS,
    GPU_ARCHS,
    GPU_TARGETS,
    CpuIsa,
    GpuArch,
    cpu_isa,
    foreign_float,
    gpu_arch,
)

V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
H200 = GPU_ARCHS["sm_90"]


def test_every_gpu_row_is_under_its_name_and_of_its_vendor() -> None:
    for name, row in GPU_ARCHS.items():
        assert row.name == name
        assert row.vendor == ("cuda" if name.startswith("sm_") else "hip")
        assert row.warp == (64 if name.startswith("gfx9") else 32)


def test_targets_are_the_rows_and_nvidias_own_instructions() -> None:
    assert {name: GPU_TARGETS[name] for name in GPU_ARCHS} == dict(GPU_ARCHS)
    assert set(GPU_TARGETS) - set(GPU_ARCHS) == {"sm_90a", "sm_100a", "sm_100f"}
    assert GPU_TARGETS["sm_90a"] is H200


@pytest.mark.parametrize(
    ("name", "block", "unit"),
    [
        ("sm_80", 163, 164), ("sm_86", 99, 100), ("sm_89", 99, 100), ("sm_90", 227, 228),
        ("gfx90a", 64, 64), ("gfx942", 64, 64), ("gfx950", 160, 160), ("gfx1100", 64, 128),
    ],
)  # fmt: skip
def test_shared_memory_is_the_vendor_s_figure(name: str, block: int, unit: int) -> None:
    row = GPU_ARCHS[name]
    assert (row.block_shared_bytes, row.unit_shared_bytes) == (block * 1024, unit * 1024)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warp": 16}, "32 or 64"), ({"warp": 0}, "32 or 64"), ({"block_threads": 1000}, "warps"),
        ({"block_shared_bytes": 0}, "exceeds"), ({"block_shared_bytes": -1}, "exceeds"),
        ({"block_shared_bytes": H200.unit_shared_bytes + 1}, "exceeds"),
    ],
)  # fmt: skip
def test_a_gpu_row_that_contradicts_itself_is_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^sm_90: .*{words}"):
        GpuArch(**{**H200.__dict__, **changes})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("bad", "x86_64", 24, 16, ("-march=native",)), "16, 32 or 64 bytes"),
        (("bad", "x86_64", 32, 16, ()), "must name the target"),
        (("bad", "x86_64", 32, 16, ("-march=x86-64", "-O2")), "must name the target"),
    ],
)
def test_a_cpu_row_that_contradicts_itself_is_refused(
    row: tuple[str, str, int, int, tuple[str, ...]], words: str
) -> None:
    with pytest.raises(ValueError, match=rf"^bad: .*{words}"):
        CpuIsa(*row)


def test_cpu_rows_are_best_first() -> None:
    assert len({row.name for row in CPU_ISAS}) == len(CPU_ISAS)
    for better, worse in pairwise(CPU_ISAS):
        if better.machine == worse.machine:
            assert better.requires > worse.requires
            assert better.vector_bytes >= worse.vector_bytes
    for flag, option in CPU_EXTENSIONS.items():
        assert option.removeprefix("-m") == flag.replace("_", "")


@pytest.mark.parametrize(
    ("flags", "name", "vector"),
    [
        (V4, "x86-64-v4", 64), (V4 - {"avx512cd"}, "x86-64-v3", 32), (V3, "x86-64-v3", 32),
        (V3 - {"fma"}, "x86-64-v2", 16), (V2, "x86-64-v2", 16), (V2 - {"cx16"}, "x86-64", 16),
        (set(), "x86-64", 16), (V4 - {"popcnt"}, "x86-64", 16),
        (V4 | {"amx_tile"}, "x86-64-v4", 64),
    ],
)  # fmt: skip
def test_a_cpu_has_the_best_level_whose_flags_it_has(flags: set[str], name: str, vector: int) -> None:
    found = cpu_isa("x86_64", frozenset(flags))
    assert found is not None
    assert (found.name, found.vector_bytes) == (name, vector)


@given(st.sets(st.sampled_from(sorted(V4))))
def test_no_better_level_would_do(flags: set[str]) -> None:
    found = cpu_isa("x86_64", frozenset(flags))
    assert found is not None
    assert found.requires <= flags
    for row in CPU_ISAS:
        if row.machine == "x86_64" and row.requires <= flags:
            assert row.requires <= found.requires


def test_other_machines() -> None:
    arm = cpu_isa("aarch64", frozenset({"asimd"}))
    assert arm is not None
    assert arm.name == "armv8-a"
    assert cpu_isa("riscv64", frozenset(V4)) is None
    assert replace(arm, vector_bytes=32).vector_bytes == 32


def test_8_bit_floats_of_another_vendors_format_are_told() -> None:
    ocp, fnuz = ("fp8_e4m3", "fp8_e4m3"), ("fp8_e4m3_fnuz", "fp8_e5m2_fnuz")
    h100, mi300 = gpu_arch("cuda", "sm_90"), gpu_arch("hip", "gfx942")
    assert foreign_float(ocp, h100) == foreign_float(fnuz, mi300) == ""
    said = foreign_float(fnuz, h100)
    assert said == "fp8_e4m3_fnuz is the 8-bit float of gfx942, and sm_90 has fp8_e4m3"
    assert foreign_float(ocp, mi300) == "fp8_e4m3 is the 8-bit float of OCP, and gfx942 has fp8_e4m3_fnuz"
    for kinds in (("bf16", "bf16"), ("fp8_e4m3", "bf16"), ("bf16", "fp8_e4m3")):
        assert foreign_float(kinds, mi300) == "", "weights of fp8 are dequantised"
