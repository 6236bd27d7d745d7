"""Hardware facts that rules take from the architecture's row: legal on one vendor, illegal on another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.archs import GPU_ARCHS, GPU_TARGETS, GpuArch, gpu_arch
from backends.environment import Environment
from backends.kernels.families import FAMILIES
from backends.kernels.launch import KernelLaunch
from backends.kernels.legality import grid_rule, registers_rule, shared_rule, threads_rule
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.sampling import drawn
from backends.problem import from_linear, from_mm
from backends.solution import Parameter, Solution

SM_90, CDNA3, RDNA3 = (GPU_ARCHS[name] for name in ("sm_90", "gfx942", "gfx1100"))


def environment(arch: GpuArch, units: int = 132) -> Environment:
    return Environment(arch.vendor, arch.name, arch.name, units, 0, "none")


def rule(family: str, values: dict[str, Parameter], arch: GpuArch, m: int = 64, n: int = 4096) -> str | None:
    one = FAMILIES[family]
    return one.illegal(
        from_linear(m, n, 4096, "bf16"), Solution(one.name, one.version, values), environment(arch)
    )


def test_registers_of_a_thread() -> None:
    assert registers_rule(224, 64, CDNA3) is None
    assert "64 threads have 224 each" in str(registers_rule(300, 64, CDNA3))
    assert "300 registers; 64 threads have 223 each" in str(registers_rule(300, 64, SM_90))
    assert "64 threads have 224 each" in str(registers_rule(300, 64, RDNA3))


def test_sums_of_matrix_instructions_take_accumulation_registers() -> None:
    assert registers_rule(300, 64, CDNA3, accumulated=128) is None
    assert registers_rule(300, 64, RDNA3, accumulated=128) is not None
    # Operands have the registers that every instruction can name, and all together those of the unit.
    assert "operands and sums take 240 registers" in str(registers_rule(368, 64, CDNA3, accumulated=128))
    assert "512 threads have 224 each" in str(registers_rule(300, 512, CDNA3, accumulated=128))


def test_registers_of_addresses() -> None:
    """NVIDIA's registers suffice for more loads in flight than AMD's, whose loads share no address."""
    values: dict[str, Parameter] = {
        "tile_m": 128, "tile_n": 8, "tile_k": 64, "thread_m": 8, "thread_n": 4,
    }  # fmt: skip
    assert rule("vectorized", values, SM_90) is None
    assert "operands and sums take 248 registers" in str(rule("vectorized", values, RDNA3))


def test_registers_of_a_unit() -> None:
    assert registers_rule(60, 1024, CDNA3) is None
    assert registers_rule(60, 1024, RDNA3) is None
    assert "1024 threads have 32 each" in str(registers_rule(60, 1024, SM_90))


def test_threads_of_a_warp() -> None:
    values: dict[str, Parameter] = {
        "stream": "a", "rows": 1, "unroll": 1, "warps_m": 2, "warps_k": 16, "splits": 1, "ahead": 0,
    }  # fmt: skip
    assert rule("skinny", values, SM_90, m=4) is None
    assert rule("skinny", values, RDNA3, m=4) is None
    assert "a block has 64 to 1024 threads, not 2048" in str(rule("skinny", values, CDNA3, m=4))


def test_a_block_is_whole_wavefronts() -> None:
    assert threads_rule(96, SM_90) is None
    assert threads_rule(96, RDNA3) is None
    assert threads_rule(96, CDNA3) == "96 threads are no whole warps of 64"
    assert threads_rule(32, RDNA3) is None
    assert threads_rule(32, CDNA3) == "a block has 64 to 1024 threads, not 32"
    assert threads_rule(192, CDNA3) is None


@pytest.mark.parametrize(
    "arch",
    [
        "gfx942",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("gfx90a", "gfx950", "gfx1100")),
    ],
)
def test_every_legal_block_is_whole_wavefronts(arch: str) -> None:
    """Of every family, over a sample of its whole space."""
    row, of_families = GPU_ARCHS[arch], set()
    for name, family in FAMILIES.items():
        if "hip" in family.vendors:
            for problem, solution in drawn(family, environment(row)):
                threads = family.config(problem, solution.parameters, row).threads
                assert threads % row.warp == 0, (problem.slug, solution.slug)
                of_families.add(name)
    assert of_families > {"gemv", "small-batch", "naive", "warp-tile", "double-buffered"}


def test_shared_memory_of_a_block() -> None:
    size = 100 * 1024
    assert shared_rule(size, SM_90) is None
    assert shared_rule(size, GPU_ARCHS["gfx950"]) is None
    assert "gfx942 has 65536 for a block" in str(shared_rule(size, CDNA3))


def test_threads_of_a_launch() -> None:
    product = OrientedGemm(from_mm(2**20, 4096, 8))
    blocks = 2**22
    assert grid_rule(blocks, 1024, product, SM_90) is None
    words = "4294967296 threads along x; a launch on gfx942 has fewer than 4294967296"
    assert grid_rule(blocks, 1024, product, CDNA3) == words
    assert grid_rule(blocks - 1, 1024, product, CDNA3) is None
    # The launch that adds slices counts as well.
    assert grid_rule(1, 64, OrientedGemm(from_mm(2**20, 4096, 8)), CDNA3, splits=2) is not None


def test_shared_memory_that_a_launch_must_ask_for() -> None:
    launch = KernelLaunch("gemm", (1, 1, 1), (64, 1, 1), 60 * 1024)
    assert launch.needs_shared_attribute(SM_90)
    assert not launch.needs_shared_attribute(CDNA3)


def test_dependent_launches_and_clusters() -> None:
    launch = KernelLaunch("gemm", (1, 1, 1), (64, 1, 1), waits=True)
    assert launch.dependent(SM_90)
    assert not launch.dependent(CDNA3)
    assert not launch.dependent(GPU_ARCHS["sm_89"])
    assert SM_90.clusters
    assert not any(arch.clusters for arch in GPU_ARCHS.values() if arch.vendor == "hip")


def test_rates_order_candidates_and_forbid_none(monkeypatch: pytest.MonkeyPatch) -> None:
    one, problem, here = FAMILIES["gemv"], from_linear(1, 4096, 4096, "bf16"), environment(CDNA3)
    own = [solution.id for solution in one.solutions(problem, here)]
    monkeypatch.setitem(GPU_TARGETS, "gfx942", replace(CDNA3, rates=SM_90.rates))
    gpu_arch.cache_clear()
    others = [solution.id for solution in one.solutions(problem, here)]
    gpu_arch.cache_clear()
    assert own != others
    assert len(own) == len(others)


@pytest.mark.parametrize("name", ["sm_75", "sm_120a", "sm_nobody"])
def test_an_unknown_architecture_of_nvidias_has_the_least_limits(name: str) -> None:
    arch, known = gpu_arch("cuda", name), [one for one in GPU_ARCHS.values() if one.vendor == "cuda"]
    assert arch.name == name
    assert arch.block_shared_bytes <= min(one.block_shared_bytes for one in known)
    assert arch.unit_threads <= min(one.unit_threads for one in known)
    assert (arch.warp, arch.thread_registers) == (32, 255)


def test_an_unknown_architecture_of_amds() -> None:
    arch = gpu_arch("hip", "gfx9999")
    assert (arch.name, arch.vendor, arch.warp, arch.vector_registers) == ("gfx9999", "hip", 64, 256)
    assert arch.matrix_cores is None


@pytest.mark.parametrize(
    ("name", "known"),
    [("gfx1030", None), ("gfx1101", "gfx1100"), ("gfx1151", "gfx1100"), ("gfx1200", "gfx1201"),
     ("gfx1250", None)],
)  # fmt: skip
def test_relatives_of_rdna_have_its_matrix_instructions(name: str, known: str | None) -> None:
    arch = gpu_arch("hip", name)
    assert (arch.name, arch.warp) == (name, 32)
    assert arch.matrix_cores == (GPU_ARCHS[known].matrix_cores if known else None)
    assert arch.unit_registers < RDNA3.unit_registers


@pytest.mark.parametrize(
    "wrong",
    [
        {"warp": 48}, {"block_shared_bytes": 2**20}, {"default_shared_bytes": 2**20}, {"block_threads": 1000},
        {"unit_registers": 100}, {"simds": 3}, {"accumulation_registers": 255},
    ],
)  # fmt: skip
def test_a_row_that_contradicts_itself_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^sm_90: "):
        replace(SM_90, **wrong)  # type: ignore[arg-type]
