"""Candidates for AMD's GPUs keep everything in registers: no spills, no arrays in scratch memory, and no
access to an address space that the compiler does not know."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from backends import resources
from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.grouping import SCALED_TYPES
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Parameter
from backends.toolchains import clang
from backends.toolchains.clang import Clang
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.matrix_cores import environment
from tests.backends.weight_samples import mxfp4, weights

pytestmark = pytest.mark.clang

DISASSEMBLER = "llvm-objdump-19"
PROBLEMS = (
    from_linear(1, 4097, 4095, "bf16"), from_linear(1, 4096, 4096, "bf16"), from_mm(1, 4096, 4096, "fp16"),
    from_linear(4, 4096, 4096, "bf16"), from_linear(9, 4097, 4095, "bf16"), from_mm(512, 512, 512),
    from_linear(511, 513, 515, "fp32"), from_linear(48, 4096, 4096, "bf16"), from_bmm(1000, 32, 32, 32),
    from_bmm(100, 63, 64, 45, "bf16"), from_linear(64, 1536, 2048, "bf16", groups=8),
    from_linear(8192, 1536, 2048, "fp16", groups=8),
    *(
        from_linear(8192, 1536, 2048, kind, groups=8, scale_a="block_1x128", scale_b="block_128x128")
        for kind in SCALED_TYPES
    ),
    mxfp4(4, 5760, 2880, groups=32), mxfp4(8192, 5760, 2880, groups=32, dtype_a="fp16"),
    weights(64, 1536, 2048, groups=128, zero_b="uint4"),
    weights(8192, 1536, 2048, groups=8, zero_b="shift", scale_b="block_1x32", scale_dtype="fp32"),
)  # fmt: skip


def faults(
    name: str, problem: GemmProblem, values: dict[str, Parameter], arch: str, cache: BinaryCache
) -> str:
    """What a kernel has in scratch memory, and its accesses to unknown address spaces; "" if nothing."""
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    unit = FAMILIES[name].config(problem, values, GPU_ARCHS[arch]).unit
    path = Clang().compile(CompileUnit(unit, arch), cache)
    taken = resources.read(path)["gemm"]
    found = [f"{taken.spill_bytes} bytes spilled"] if taken.spill_bytes else []
    found += [f"{taken.scratch_bytes} bytes of scratch memory"] if taken.scratch_bytes else []
    flat = set(re.findall(r"\bflat_(?:load|store)\w*", disassembled(path)))
    return ", ".join([*found, *sorted(flat)])


def disassembled(path: Path) -> str:
    command = [DISASSEMBLER, "-d", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


#: 128 x 128 x 16 of 8 x 8, the first that warp-tile and double-buffered list.
TILE: dict[str, Parameter] = {
    "tile_m": 128, "tile_n": 128, "tile_k": 16, "thread_m": 8, "thread_n": 8, "warp_m": 64, "warp_n": 32,
}  # fmt: skip


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_the_likeliest_tile_of_double_buffered_spills_nothing(arch: str, cache: BinaryCache) -> None:
    """Wholly unrolled along k it took 464 bytes of scratch memory on gfx1100."""
    problem = from_mm(512, 512, 512)
    first = next(iter(FAMILIES["double-buffered"].solutions(problem, environment(arch))))
    assert first.parameters == TILE
    assert faults("double-buffered", problem, TILE, arch, cache) == ""


#: Of skinny, for rows that are not aligned: a step of 128 loads.
UNALIGNED = from_linear(11, 64, 33, "bf16")
STEP: dict[str, Parameter] = {
    "stream": "a", "rows": 1, "unroll": 8, "warps_m": 4, "warps_k": 8, "splits": 1, "ahead": 0,
}  # fmt: skip


def test_a_step_that_clang_leaves_a_loop_is_refused(cache: BinaryCache) -> None:
    """Its loads would be an array in scratch memory."""
    refused = FAMILIES["skinny"].rule(UNALIGNED, STEP, environment("gfx1100"))
    assert refused == "unroll x columns is 128; at most 64 where rows are not aligned to 16 bytes"
    assert "scratch memory" in faults("skinny", UNALIGNED, STEP, "gfx1100", cache)


@pytest.mark.exhaustive  # clang takes nine seconds of a processor for it
def test_the_longest_legal_step_keeps_its_loads_in_registers(cache: BinaryCache) -> None:
    legal = {**STEP, "unroll": 4}
    assert FAMILIES["skinny"].rule(UNALIGNED, legal, environment("gfx1100")) is None
    assert faults("skinny", UNALIGNED, legal, "gfx1100", cache) == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, one in FAMILIES.items() if "hip" in one.vendors])
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
def test_no_listed_candidate_spills(arch: str, name: str, cache: BinaryCache) -> None:
    """Every eighth of what a search would try. (The compiler for gfx950, clang 22, spills one register in
    some of skinny's blocks of 1024 threads.)"""
    found = {}
    for problem in PROBLEMS:
        for one in list(FAMILIES[name].solutions(problem, environment(arch)))[::8]:
            found[problem.slug, one.slug] = faults(name, problem, dict(one.parameters), arch, cache)
    assert {key: text for key, text in found.items() if text} == {}
