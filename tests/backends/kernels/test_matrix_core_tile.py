"""Few rows or columns of 8-bit elements on AMD's matrix cores: what is listed, what it computes, its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends import resources
from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.kernels.matrix_core_tile import FP8, NARROW
from backends.problem import GemmProblem, from_blas, from_linear
from backends.solution import Parameter, Solution
from backends.toolchains import clang
from backends.toolchains.clang import Clang
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.matrix_cores import environment, findings

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
ROWS: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer", "dtype_d": "bf16"}


def kinds(arch: str) -> tuple[str, ...]:
    """8-bit types of the architecture's matrix instructions."""
    cores = GPU_ARCHS[arch].matrix_cores
    assert cores is not None
    return ("int8", *FP8.get(cores.fp8, ()))


def listed(problem: GemmProblem, arch: str) -> list[Solution]:
    """Candidates of both families."""
    own = FAMILIES["tile-mfma" if arch.startswith("gfx9") else "tile-wmma"]
    other = FAMILIES["tile-wmma" if arch.startswith("gfx9") else "tile-mfma"]
    assert not list(other.solutions(problem, environment(arch)))
    return list(own.solutions(problem, environment(arch)))


def test_the_architectures_have_these_types() -> None:
    assert {arch: len(kinds(arch)) for arch in ARCHS} == {
        "gfx90a": 1, "gfx942": 3, "gfx950": 3, "gfx1100": 1, "gfx1201": 3,
    }  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("few", [1, 4, 8, 16])
def test_few_rows_or_columns_have_candidates(few: int, arch: str) -> None:
    """Of several tiles of 16 rows or columns, and numbers of slices of k."""
    for kind in kinds(arch):
        for problem, side in (
            (from_linear(few, 4096, 4096, kind, **ROWS), "tile_n"),
            (from_blas(few, 4096, 4096, kind, trans_a="T", **ROWS), "tile_m"),
        ):
            found = listed(problem, arch)
            assert len(found) >= 20
            assert {one.parameters[side] for one in found} == {NARROW}
            other = "tile_m" if side == "tile_n" else "tile_n"
            assert len({one.parameters[other] for one in found}) >= 4
            assert len({one.parameters["splits"] for one in found}) > 1
            assert {one.parameters["group"] for one in found} == {1, 8}


@pytest.mark.parametrize("arch", ARCHS)
def test_fewer_slices_come_first_where_there_are_more_rows(arch: str) -> None:
    """Of a k that has as many tiles: so that no CU or WGP idles, and no more sums are stored."""
    first = [listed(from_linear(4, n, 4096, "int8", **ROWS), arch)[0] for n in (1024, 131072)]
    assert int(first[0].parameters["splits"] or 0) > int(first[1].parameters["splits"] or 0)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_smallest_tile_is_worth_it_for_any_product(arch: str) -> None:
    for kind in kinds(arch):
        for m, n in ((1, 1), (3, 7), (16, 16), (1, 20), (20, 1)):
            assert listed(from_linear(m, n, 64, kind, **ROWS), arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_16_bit_floats_are_left_to_other_families(arch: str) -> None:
    assert not listed(from_linear(16, 4096, 4096, "bf16"), arch)
    assert listed(from_linear(17, 4096, 4096, "bf16"), arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_narrow_tiles_compute_right(arch: str, tmp_path: Path) -> None:
    """One candidate of every tile shape; operands along k and across it, lines of whole words and of none."""
    family = FAMILIES["tile-mfma" if arch.startswith("gfx9") else "tile-wmma"]
    kind = kinds(arch)[-1]
    problems = (
        from_linear(1, 300, 528, "int8", **ROWS), from_linear(7, 133, 331, kind, **ROWS),
        from_linear(16, 260, 640, "int8", dtype_d="int32"),
        from_blas(5, 140, 203, kind, trans_b="T", **ROWS, alignment=1),
        from_blas(16, 272, 256, "int8", **ROWS),
    )  # fmt: skip
    found = []
    for problem in problems:
        shapes: dict[tuple[Parameter, ...], dict[str, Parameter]] = {}
        for one in listed(problem, arch):
            shape = one.parameters["tile_m"], one.parameters["tile_n"], one.parameters["warp_m"]
            shapes.setdefault(shape, dict(one.parameters))
        assert len(shapes) >= 4
        found += [(problem, values) for values in shapes.values()]
    assert findings(family, arch, found, tmp_path) == []


@pytest.mark.clang
@pytest.mark.parametrize("arch", ARCHS)
def test_the_likeliest_narrow_tile_spills_nothing(arch: str, cache: BinaryCache) -> None:
    if (why := clang.missing(arch)) is not None:
        pytest.skip(why)
    problem = from_linear(4, 4096, 4096, kinds(arch)[-1], **ROWS)
    one = listed(problem, arch)[0]
    config = FAMILIES[one.family].config(problem, one.parameters, GPU_ARCHS[arch])
    usage = resources.read(Clang().compile(CompileUnit(config.unit, arch), cache))["gemm"]
    assert usage.spill_bytes == 0
