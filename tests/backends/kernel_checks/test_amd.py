"""Every family compiled for five architectures of AMD, and what its machine code has."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.kernel_checks import disassembly
from backends.kernel_checks.candidates import GPU_FAMILIES, Candidate, default, environment_of, vendors
from backends.kernel_checks.check import Checked, check, plan
from backends.kernels.family import KernelFamily
from backends.packages.kept import keep, smaller
from backends.toolchains import triton
from benchmarks.kernel_checks import ARCHS, KEPT, NAME, compilers
from benchmarks.report import RESULTS
from tests.backends.packages.test_package import as_placed

pytestmark = pytest.mark.clang
#: Families of one generation's matrix cores, and those of the other generation's.
OF = {
    kind: {f"{name}-{kind}" for name in ("tile", "dequant", "grouped", "grouped-dequant")}
    for kind in ("mfma", "wmma")
}
OF["mfma"].add("mxfp4-mfma")
WITHOUT = {arch: set(OF["wmma" if arch.startswith("gfx9") else "mfma"]) for arch in ARCHS}
WITHOUT["gfx90a"].add("mxfp4-mfma")  # its instruction of int8 has another depth
#: Its default is vLLM's, which some GPUs have too few registers for, and others no 8-bit floats.
BLOCK_FP8 = "triton-block-fp8"
WITHOUT_FP8 = ("gfx90a", "gfx1100")
#: Kernels whose structure is a framework's: the docs' table shows what they spill.
SPILLING = {(BLOCK_FP8, "gfx1201"), ("triton-inductor-mm", "gfx1201")}
#: Families that multiply on matrix cores: ours, and Triton's.
ON_MATRIX_CORES = {
    *OF["mfma"], *OF["wmma"], "triton-gemm", "triton-split-k",
    "triton-persistent", BLOCK_FP8, "triton-inductor-mm", "triton-fused-moe", "triton-dequant",
}  # fmt: skip
PREFIX = {"mfma": "v_mfma_", "wmma_gfx11": "v_wmma_", "wmma_gfx12": "v_wmma_"}
#: Architectures for which `make test` compiles every family: one with MFMA and one with WMMA. For the others
#: it compiles a third of the families, for each architecture others, and `make exhaustive` all.
WHOLE = ("gfx942", "gfx1201")
GRID = [
    *((arch, 1 if arch in WHOLE else 3) for arch in ARCHS),
    *(pytest.param(arch, 1, marks=pytest.mark.exhaustive) for arch in ARCHS if arch not in WHOLE),
]
RECORDED = json.loads((RESULTS / f"{NAME}.json").read_text())


def defaults(arch: str, every: int) -> list[Candidate]:
    """The default candidate of one in so many of the families that AMD has, others for every architecture."""
    families = [family for family in GPU_FAMILIES.values() if "hip" in vendors(family)]
    if triton.missing() is not None:
        families = [family for family in families if isinstance(family, KernelFamily)]
    chosen = families[ARCHS.index(arch) % every :: every]
    found = (default(family, environment_of(arch)) for family in chosen)
    return [one for one in found if one is not None]


@pytest.fixture(scope="module")
def checked(cache: BinaryCache) -> Callable[[str, int], list[Checked]]:
    """The defaults of an architecture, compiled and checked once for all tests."""
    return functools.cache(lambda arch, every: list(check(defaults(arch, every), cache)))


def names_of(arch: str) -> set[str]:
    names = {name for name, family in GPU_FAMILIES.items() if "hip" in vendors(family)}
    if triton.missing() is not None:
        names = {name for name in names if not name.startswith("triton")}
    return names - WITHOUT[arch] - ({BLOCK_FP8} if arch in WITHOUT_FP8 else set())


def launchable(found: list[Checked]) -> None:
    for one in found:
        assert one.resources is not None, (one.candidate.text, one.error, one.log)
        assert one.resources.registers is not None
        assert 8 <= one.resources.registers <= GPU_ARCHS[one.candidate.arch].thread_registers
        # Triton decides on shared memory as it compiles; a package and the device refuse what is too much.
        if not one.candidate.family.startswith("triton"):
            assert one.unfit == "", one.candidate.solution.id
            assert one.occupancy is not None
            assert one.occupancy.waves > 0, one.candidate.solution.id


@pytest.mark.parametrize(("arch", "every"), GRID)
def test_the_default_of_every_family_compiles_without_spills(
    arch: str, every: int, checked: Callable[[str, int], list[Checked]]
) -> None:
    found = checked(arch, every)
    names = {one.candidate.family for one in found}
    assert names == names_of(arch) if every == 1 else names < names_of(arch)
    launchable(found)
    for one in found:
        assert one.resources is not None
        assert one.unfit == ""
        if (one.candidate.family, arch) not in SPILLING:
            spilled = one.resources.spill_bytes, one.resources.scratch_bytes
            assert spilled == (0, 0), one.candidate.solution.id
    cores = GPU_ARCHS[arch].matrix_cores
    assert cores is not None
    if disassembly.missing(arch) is not None:
        assert {one.matrix_instructions for one in found} == {None}
        return
    for one in found:
        instructions = one.matrix_instructions
        assert instructions is not None
        assert bool(instructions) == (one.candidate.family in ON_MATRIX_CORES), one.candidate.solution.id
        assert all(name.startswith(PREFIX[cores.instruction]) for name in instructions)


@pytest.mark.parametrize(("arch", "every"), GRID)
def test_the_table_of_the_documentation_is_current(
    arch: str, every: int, checked: Callable[[str, int], list[Checked]]
) -> None:
    known, record = compilers(arch), RECORDED["compilers"][arch]
    if known["clang"] != record["clang"] and os.environ.get("CI") != "true":
        pytest.skip(f"the table is of {record['clang']}, and here is {known['clang']}")
    rows = [row for row in RECORDED["rows"] if row["arch"] == arch]
    recorded = {row["family"]: _known(row["default"], arch) for row in rows}
    same_triton = known["triton"] == record["triton"]
    found = [(one.candidate.family, one) for one in checked(arch, every)]
    here = {name: _kept(one) for name, one in found if same_triton or not name.startswith("triton")}
    assert here == {name: recorded.get(name) for name in here}, (
        "kernels changed: python -m benchmarks.kernel_checks && python -m benchmarks.tables"
    )


def _kept(one: Checked) -> dict[str, Any]:
    values = one.to_dict()
    return {name: values[name] for name in KEPT}


def _known(recorded: dict[str, Any], arch: str) -> dict[str, Any]:
    """The record, without matrix instructions where no disassembler is installed."""
    return recorded if disassembly.missing(arch) is None else {**recorded, "matrix_instructions": None}


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_sampled_kernel_compiles(arch: str, cache: BinaryCache) -> None:
    planned = plan(arch, (), 300)
    assert {one.family for one in planned.candidates} == names_of(arch)
    launchable(list(check(planned.candidates, cache)))


# ---- kept kernels --------------------------------------------------------------------------------


def test_kept_kernels_are_described_where_they_lie(cache: BinaryCache, tmp_path: Path) -> None:
    families = ["gemv", "vectorized", "tile-mfma"] + (["triton-split-k"] if triton.missing() is None else [])
    planned = plan("gfx942", families, len(families) + 1).candidates
    kept = list(keep(tmp_path, planned, cache))
    assert [path.name for path in kept[:3]] == ["gemv-000.json", "gemv-001.json", "vectorized-000.json"]
    for path, candidate in zip(kept, planned, strict=True):
        document = json.loads(path.read_bytes())
        assert path.parent == tmp_path / "gfx942"
        assert document["solution"]["id"] == candidate.solution.id
        assert (document["target"], document["launched_by"]) == ("gfx942", "hipModuleLaunchKernel")
        assert document["launches"]
        for launch in document["launches"]:
            code = (path.parent / launch["file"]).read_bytes()
            as_placed(launch, code)
            assert launch["block"][0] % 64 == 0 or candidate.family not in ("gemv", "tile-mfma")
        wire = document["problem"]["wire"]
        assert wire["m"] * wire["n"] * wire["k"] < 2**25, "small enough for an emulator"
    if len(families) == 4:
        files = sorted(path.name for path in (tmp_path / "gfx942").glob("triton*"))
        assert files == [
            "triton-split-k-000.gemm.hsaco",
            "triton-split-k-000.json",
            "triton-split-k-000.reduce.hsaco",
        ]


@pytest.mark.parametrize("arch", ["gfx950", "gfx1201"])
def test_a_smaller_problem_has_the_same_code(arch: str) -> None:
    shrunk = 0
    for one in plan(arch, (), 60).candidates:
        found = smaller(one)
        assert (found.text, found.solution) == (one.text, one.solution)
        for name in ("m", "n", "k"):
            assert getattr(found.problem, name) <= getattr(one.problem, name)
        shrunk += found.problem != one.problem
    assert shrunk > 30
