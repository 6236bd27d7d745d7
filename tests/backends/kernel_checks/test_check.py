"""A sample of every family compiled with no GPU, and what is told of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.archs import GPU_TARGETS, GpuArch
from backends.cache import BinaryCache
from backends.errors import CompilerMissing, InvalidProblem
from backends.kernel_checks import check as checking
from backends.kernel_checks import disassembly
from backends.kernel_checks.candidates import GPU_FAMILIES, Candidate, environment_of, vendors
from backends.kernel_checks.check import Checked, check, plan, summaries
from backends.kernels.families import FAMILIES
from backends.kernels.families.naive import Naive
from backends.kernels.family import KernelConfig
from backends.kernels.legality import arch_of
from backends.problem import GemmProblem
from backends.resources import Resources
from backends.toolchains import clang, triton

needs_triton = pytest.mark.skipif(triton.missing() is not None, reason=str(triton.missing()))
OURS = {name for name, family in FAMILIES.items() if "cuda" in family.vendors}
#: Families of one architecture alone.
HOPPERS = {"tile-wgmma", "dequant-wgmma", "dequant-tma-wgmma", "dequant-tile-wgmma", "grouped-wgmma",
           "grouped-dequant-wgmma"}  # fmt: skip
#: Of one generation of AMD's GPUs alone.
RDNA = ("tile-wmma", "grouped-wmma", "grouped-dequant-wmma", "dequant-wmma")
HIPS = {name for name, family in FAMILIES.items() if "hip" in family.vendors}
CUDAS = [name for name, family in GPU_FAMILIES.items() if "cuda" in vendors(family)]


@pytest.mark.parametrize("arch", GPU_TARGETS)
def test_an_architecture_is_known_by_every_name_of_its_own(arch: str) -> None:
    environment = environment_of(arch)
    assert environment.vendor == GPU_TARGETS[arch].vendor
    assert arch_of(environment) == GPU_TARGETS[arch]


# ---- what is compiled ----------------------------------------------------------------------------


def count(found: tuple[Candidate, ...]) -> dict[str, int]:
    names = [one.family for one in found]
    return {name: names.count(name) for name in dict.fromkeys(names)}


@needs_triton
def test_families_share_the_limit_equally_and_a_small_one_leaves_its_rest_to_others() -> None:
    few = count(plan("sm_90a", limit=len(CUDAS)).candidates)
    assert few == dict.fromkeys(CUDAS, 1)
    most = count(plan("sm_90a", limit=100).candidates)
    assert list(most) == CUDAS
    assert sum(most.values()) == 100
    assert max(most.values()) - min(most.values()) == (100 % len(CUDAS) > 0)
    assert count(plan("sm_90a", ["naive", "gemv", "naive"], 5).candidates) == {"naive": 3, "gemv": 2}
    alone = plan("sm_90a", ["shared-tile"], 10_000).candidates
    assert 30 < len(alone) <= 101
    shared = count(plan("sm_90a", ["shared-tile", "vectorized"], len(alone) + 60).candidates)
    assert sum(shared.values()) == len(alone) + 60


def test_a_larger_sample_begins_with_the_smaller() -> None:
    small, large = (plan("sm_80", ["gemv", "skinny"], limit).candidates for limit in (6, 12))
    for name in ("gemv", "skinny"):
        texts = [[one.text for one in found if one.family == name] for found in (small, large)]
        assert texts[1][:3] == texts[0]


def test_families_of_another_vendor_are_left_out_unless_they_are_named() -> None:
    if clang.missing() is None:
        found = plan("gfx942")
        assert set(count(found.candidates)) & set(FAMILIES) == HIPS - set(RDNA)
        for name in RDNA:
            assert f"gfx942: nothing of {name} is compiled: no legal candidate was found" in found.notes
    with pytest.raises(CompilerMissing, match=r"compiled for gfx942: skinny-mma has kernels for cuda alone$"):
        plan("gfx942", ["skinny-mma"])
    with pytest.raises(CompilerMissing, match="tile-mfma has kernels for hip alone"):
        plan("sm_90a", ["tile-mfma"])


def test_a_compiler_that_is_missing_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "triton_build", lambda: None)
    found = plan("sm_90a", limit=len(FAMILIES))
    assert set(count(found.candidates)) == OURS
    why = "Triton is not installed; pip install 'gemmtune[triton]'"
    assert found.notes == tuple(
        f"sm_90a: nothing of {name} is compiled: {why}" for name in GPU_FAMILIES if name not in FAMILIES
    )
    with pytest.raises(CompilerMissing, match=r"^nothing can be compiled for sm_90a: Triton is not"):
        plan("sm_90a", ["triton-gemm", "triton-split-k"])

    def nowhere() -> Any:
        raise CompilerMissing("NVRTC is not to be had")

    monkeypatch.setattr("backends.toolchains.nvrtc.nvrtc", nowhere)
    with pytest.raises(CompilerMissing, match="for sm_90a: NVRTC is not to be had; Triton is not inst"):
        plan("sm_90a")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(
        CompilerMissing, match="for gfx942: kernels for AMD's GPUs need clang with lld, and neith"
    ):
        plan("gfx942")


@pytest.mark.parametrize(
    ("arch", "families", "limit", "words"),
    [
        ("sm_91", (), 100, r"arch 'sm_91' is unknown; known: sm_80, .*sm_90a, .*gfx942"),
        ("H200", (), 100, "arch 'H200' is unknown"),
        (
            "sm_90",
            ("gemv", "gevm"),
            100,
            "family 'gevm' is unknown; known: gemv-persistent, gemv, .*, skinny, .*triton-gemm",
        ),
        ("sm_90", ("gemv", "naive"), 1, "limit 1 is less than a compile for each of 2 families; raise it"),
    ],
)
def test_what_nobody_knows(arch: str, families: tuple[str, ...], limit: int, words: str) -> None:
    with pytest.raises(InvalidProblem, match=words):
        plan(arch, families, limit)


# ---- compiled ------------------------------------------------------------------------------------


EVERY = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("arch", "each", "share"),
    [
        ("sm_80", 1, 3),
        pytest.param("sm_80", 2, 1, marks=EVERY),
        pytest.param("sm_100a", 1, 1, marks=EVERY),
        pytest.param("sm_90a", 2, 1, marks=EVERY),
    ],
)
def test_nvrtc_compiles_a_sample_of_every_family(arch: str, each: int, share: int, tmp_path: Path) -> None:
    """One of `share` families, few candidates of each: they take a minute of a processor. `gemmtune kernels
    check` compiles more; tests/golden compiles one of every family."""
    families = set(sorted(OURS if arch == "sm_90a" else OURS - HOPPERS)[::share])
    planned = plan(arch, sorted(families), each * len(families))
    cache = BinaryCache(tmp_path)
    for one in check(planned.candidates, cache):
        assert one.resources is not None, (one.candidate.text, one.log)
        assert one.unfit == "", one.candidate.solution.id
        assert one.resources.registers is not None
        assert 8 <= one.resources.registers <= 255
        assert one.resources.spill_bytes is not None
    row = {one.family: one for one in summaries(list(check(planned.candidates, cache)))}
    assert {name: (of.compiled, of.failed) for name, of in row.items()} == dict.fromkeys(families, (each, 0))
    cubins = list(tmp_path.rglob("*.cubin"))
    assert len(cubins) == len(planned.candidates)
    for path in cubins:
        data = path.read_bytes()
        assert data.startswith(b"\x7fELF")
        assert b".text.gemm\0" in data
        assert b".text.reduce\0" in data


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
def test_a_family_of_another_architecture_is_told_and_the_others_go_on(arch: str) -> None:
    limit = 1 + len(HOPPERS)
    found = plan(arch, ["naive", *HOPPERS], limit)
    assert count(found.candidates) == {"naive": limit}
    assert found.notes == tuple(
        f"{arch}: nothing of {name} is compiled: no legal candidate was found" for name in HOPPERS
    )


@needs_triton
def test_tritons_are_compiled_too(cache: BinaryCache) -> None:
    (found,) = check(plan("sm_90a", ["triton-gemm"], 1).candidates, cache)
    assert found.resources is not None, found.log
    assert found.resources.registers is not None
    assert found.resources.spill_bytes is not None
    assert found.resources.shared_bytes > 0


class Broken(Naive):
    """Every kernel of it names a class that its header has not."""

    name, header = "broken", "families/naive.h"

    def config(self, problem: GemmProblem, values: Any, arch: GpuArch) -> KernelConfig:
        found = super().config(problem, values, arch)
        return replace(found, instantiation=found.instantiation.replace("Naive<", "Nobody<"))


def test_a_kernel_that_does_not_compile_is_told_with_its_log(
    monkeypatch: pytest.MonkeyPatch, cache: BinaryCache
) -> None:
    monkeypatch.setitem(GPU_FAMILIES, "broken", Broken())
    found = list(check(plan("sm_90a", ["broken", "naive"], 3).candidates, cache, threads=1))
    assert [one.resources is None for one in found] == [True, True, False]
    bad = found[0]
    assert bad.error.startswith("NVRTC refuses unit.cu: unit.cu(2): error: ")
    assert "Nobody" in bad.error
    assert "errors detected in the compilation" in bad.log
    row = bad.to_dict()
    assert (row["status"], row["registers"], row["spill_bytes"]) == ("failed", None, None)
    assert (row["error"], row["log"]) == (bad.error, bad.log)
    first, second = summaries(found)
    assert (first.family, first.compiled, first.failed, first.registers) == ("broken", 0, 2, None)
    assert (second.family, second.compiled, second.failed) == ("naive", 1, 0)


# ---- told ----------------------------------------------------------------------------------------


def checked(family: str, *numbers: int | None, threads: int = 256, arch: str = "sm_90a") -> Checked:
    one = plan(arch, ["naive"], 1).candidates[0]
    registers, shared, spills = numbers
    return Checked(replace(one, family=family, threads=threads), Resources(registers, shared or 0, spills))


def test_a_family_is_summed_up() -> None:
    found = [
        checked("one", 40, 0, 0), checked("one", 255, 1024, 96), checked("one", 64, 512, 8),
        checked("one", None, 0, None), checked("two", None, 16, None),
    ]  # fmt: skip
    one, two = summaries(found)
    assert (one.arch, one.family, one.compiled, one.failed, one.unfit) == ("sm_90a", "one", 4, 0, 0)
    assert (one.registers, one.shared_bytes) == ((40, 64, 255), (0, 256.0, 1024))
    assert (one.spilling, one.worst_spill_bytes) == (2, 96)
    assert (two.registers, two.shared_bytes) == (None, (16, 16, 16))
    assert (two.spilling, two.worst_spill_bytes) == (0, None)
    assert (one.waves_per_simd, two.waves_per_simd) == ((2, 8, 12), None)
    assert (one.accumulation_registers, one.worst_scratch_bytes, one.matrix_instructions) == (
        None,
        None,
        None,
    )
    assert summaries([]) == []


def test_what_amds_compilers_report_is_summed_up_too() -> None:
    taken = [
        Resources(200, 0, 0, agprs, sgprs, scratch) for agprs, sgprs, scratch in ((64, 40, 0), (0, 60, 16))
    ]
    first = checked("one", 1, 0, 0).candidate
    counted: list[dict[str, int]] = [{"v_mfma_b": 2, "v_mfma_a": 1}, {"v_mfma_b": 7}]
    found = [Checked(first, one, matrix_instructions=of) for one, of in zip(taken, counted, strict=True)]
    (row,) = summaries([*found, Checked(first, None, "an error")])
    assert (row.compiled, row.failed) == (2, 1)
    assert (row.accumulation_registers, row.scalar_registers) == ((0, 32, 64), (40, 50, 60))
    assert (row.worst_scratch_bytes, row.matrix_instructions) == (16, ("v_mfma_a", "v_mfma_b"))
    (row,) = summaries([Checked(first, taken[0], matrix_instructions={})])
    assert row.matrix_instructions == (), "counted, and none was found"


def test_what_compiles_but_cannot_be_launched_is_told() -> None:
    assert checked("one", 64, 227 * 1024, 0, threads=1024).unfit == ""
    large = checked("one", 64, 227 * 1024 + 1, 0)
    assert large.unfit == "it takes 232449 bytes of shared memory; a block has 232448"
    many = checked("one", 65, 0, 0, threads=1024)
    assert many.unfit == "its 1024 threads take 73728 registers; a multiprocessor has 65536"
    assert [one.unfit for one in summaries([large, many, checked("one", 64, 0, 0)])] == [2]
    assert large.to_dict()["unfit"] == large.unfit


def test_a_row_is_plain_json() -> None:
    row = checked("naive", 40, 0, 8).to_dict()
    assert json.loads(json.dumps(row)) == row
    assert (row["arch"], row["family"], row["status"]) == ("sm_90a", "naive", "compiled")
    assert (row["registers"], row["shared_bytes"], row["spill_bytes"], row["threads"]) == (40, 0, 8, 256)
    assert row["problem"]["m"] >= 1
    assert row["solution"].startswith("naive-tile_m_")
    assert (row["unfit"], row["note"], row["error"], row["log"]) == (None, None, None, None)
    assert (row["waves_per_simd"], row["occupancy_limit"], row["matrix_instructions"]) == (
        12,
        "registers",
        None,
    )


def test_a_log_that_says_nothing_leaves_figures_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("backends.toolchains.nvrtc._compile", lambda *_: (b"\x7fELF", ""))
    (found,) = checking.check(plan("sm_90a", ["naive"], 1).candidates, BinaryCache(tmp_path))
    assert found.resources == Resources(None, 0, None)
    assert found.occupancy is None
    if disassembly.missing("sm_90a") is None:
        assert "nvdisasm does not disassemble code for sm_90a: " in found.note
