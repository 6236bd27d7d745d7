"""skinny-shifted where k is split: slices that a cluster adds, a launch's blocks, what compilers are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.oriented_gemm import OrientedGemm
from backends.problem import from_blas, from_bmm, from_linear
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.checked import findings
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.families.test_skinny_shifted import CHOSEN, CLUSTER, DOUBLE, FAMILY
from tests.backends.kernels.ptx import EARLY, WAIT, compiled, waits_first
from tests.backends.kernels.samples import SM_90

PROBLEM = from_linear(17, 4097, 4095, "bf16")
PROBLEM_TYPES = OrientedGemm(PROBLEM).types


def text(values: Mapping[str, Parameter], arch: str) -> str:
    """What the product's kernel is compiled to."""
    unit = FAMILY.config(PROBLEM, values, SM_90).unit
    return compiled(unit, arch)["gemm"]


@pytest.mark.parametrize("splits", [2, 4, 8])
@pytest.mark.parametrize("lines", [8, 16, 32])
def test_slices_of_a_cluster(lines: int, splits: int, tmp_path: Path) -> None:
    """Of k that ends anywhere, so that the last ones have less or nothing; a line beyond whole spans; columns
    of which a slice has one more, or none; every epilogue, and batches."""
    own: dict[str, Parameter] = {**CLUSTER, "lines": lines, "splits": splits}
    given = [
        {**own, "classes": classes, "warps": warps, "unroll": unroll, "ahead": ahead}
        for classes, warps, unroll, ahead in ((2, 3, 1, 1), (8, 1, 2, 0), (1, 6, 1, 0), (4, 2, 1, 1))
    ]
    whole = 8 * lines
    problems = [
        from_blas(whole + 1, 17, 259, "bf16", trans_a="T", alpha=2.0, beta=3.0, ldc=whole + 2, ldd=whole + 7),
        from_linear(1, 2 * whole - 3, 33, "bf16"),
        from_linear(5, 3, 129, "fp16", bias="fp32", activation="gelu"),
        from_linear(24, whole + 6, 95, "bf16", dtype_d="fp32", bias="bf16", activation="silu"),
        from_linear(32, 21, 515, "bf16", beta=1.0),
        from_linear(9, 2 * whole + 1, 1, "bf16", alignment=2),
        from_bmm(3, 9, whole + 2, 205, "bf16", trans_b="T", activation="relu"),
        from_bmm(2, 4, 20, 75, "bf16", trans_b="T", stride_b=0, alignment=2),
    ]
    found = [
        (problem, {**given[index % 4], "stream": "b" if problem.n > problem.m else "a"})
        for index, problem in enumerate(problems)
    ]
    for problem, values in found:
        assert FAMILY.rule(problem, values, H200) is None
    assert findings(FAMILY, found, tmp_path) == []


def test_sums_of_a_cluster_need_no_workspace_and_no_second_launch() -> None:
    for splits in (2, 4, 8):
        values = {**DOUBLE, "splits": splits, "cluster": 1}
        one = FAMILY.config(PROBLEM, values, SM_90)
        assert (one.cluster, one.grid) == ((1, splits, 1), (65, splits, 1))
        assert (one.workspace_bytes, one.reduces) == (0, False)
        kept = FAMILY.config(PROBLEM, {**values, "cluster": 0}, SM_90)
        assert (kept.cluster, kept.grid, kept.reduces) == (None, one.grid, True)
        assert kept.workspace_bytes == splits * 17 * 4097 * 4


@pytest.mark.parametrize(
    ("size", "lines", "classes", "blocks"),
    [
        (4097, 32, 2, 65), (4097, 16, 8, 33), (4096, 32, 2, 64), (4098, 32, 2, 65), (4099, 32, 2, 66),
        (4103, 32, 1, 135), (4104, 32, 1, 136), (4120, 32, 1, 136), (1, 8, 8, 1), (1, 32, 1, 1),
        (5, 16, 4, 2), (63, 8, 2, 4), (64, 8, 2, 4), (65, 8, 2, 5),
    ],
)  # fmt: skip
def test_no_block_is_without_a_line(size: int, lines: int, classes: int, blocks: int) -> None:
    problem = from_blas(size, 9, 515, "bf16", trans_a="T")
    found = FAMILY.config(problem, {**CHOSEN, "lines": lines, "classes": classes}, SM_90)
    assert found.grid == (blocks, 1, 1)


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a"])
def test_who_adds_through_shared_memory(arch: str) -> None:
    """Blocks are clusters, wait for the launch before them, and let none begin that adds; others are none."""
    for values in (CLUSTER, {**DOUBLE, "splits": 8, "cluster": 1}):
        entry = text(values, arch)
        waits_first(entry)
        assert EARLY not in entry
        assert f".reqnctapercluster 1, {values['splits']}, 1" in entry
        for told in ("barrier.cluster.arrive.release", "barrier.cluster.wait.acquire", "st.shared::cluster"):
            assert told in entry.split(WAIT)[1]
        other = text({**values, "cluster": 0}, arch)
        assert "cluster" not in other
        assert EARLY in other


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("1, 24, 8, 1, false, 1, 4, 1", "instructions' lines"),
        ("1, 16, 8, 1, false, 1, 4, 3", "a cluster has eight blocks"),
        ("1, 16, 8, 1, false, 1, 4, 16", "a cluster has eight blocks"),
    ],
)
def test_the_header_refuses_what_the_rules_do(arguments: str, words: str, tmp_path: Path) -> None:
    unit = (
        '#include "families/skinny_shifted.h"\n'
        f"using Chosen = gemmtune::SkinnyShifted<{PROBLEM_TYPES}, {arguments}>;\n"
        "GEMMTUNE_KERNEL(gemm, Chosen)\n"
    )
    with pytest.raises(CompileError, match=words):
        Nvrtc().compile(CompileUnit(unit, "sm_90"), BinaryCache(tmp_path))
