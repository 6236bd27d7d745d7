"""Our own kernels on CUDA: what is compiled, loaded and launched; on a GPU, that every family is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.cuda.backend import CudaBackend
from backends.errors import LaunchError
from backends.gpu.compiled_family import LoadedKernel, compiled_families
from backends.gpu.device import GpuDevice
from backends.kernels.families import FAMILIES
from backends.kernels.family import ENTRY
from backends.operands import Operands
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.protocol import CompiledKernel
from backends.solution import Solution
from backends.toolchains.nvrtc import Nvrtc
from tests.backends.gpu.null_device import ENVIRONMENT, NOTHING, Launched, NullDevice
from tests.backends.kernels.samples import PROBLEMS, legal_values

READY = replace(ENVIRONMENT, libraries={**ENVIRONMENT.libraries, "nvrtc": "13.0"})
DECODE = from_linear(1, 4096, 4096, "bf16", beta=1.0, bias="bf16")
GEMV: dict[str, Any] = {
    "stream": "a", "rows": 1, "unroll": 4, "warps_m": 2, "warps_k": 4, "splits": 1, "ahead": 0,
}  # fmt: skip
BY_NAME = {family.name: family for family in compiled_families("cuda", Nvrtc())}


def _loaded(problem: GemmProblem, values: dict[str, Any], device: Any, family: str = "gemv") -> LoadedKernel:
    version = FAMILIES[family].version
    return BY_NAME[family].load(problem, Solution(family, version, values), NOTHING, device)


def test_every_family_of_cudas_is_there() -> None:
    assert list(BY_NAME) == [name for name, family in FAMILIES.items() if "cuda" in family.vendors]
    assert list(CudaBackend().families())[-len(BY_NAME) :] == list(BY_NAME)


def test_without_nvrtc_a_family_says_so() -> None:
    for family in BY_NAME.values():
        assert family.unavailable(READY) is None
        reason = family.unavailable(replace(READY, libraries={}))
        assert reason == "nvrtc was not there when NVIDIA H200 was probed"


def test_a_launch_is_one_kernel_with_its_argument() -> None:
    device = NullDevice()
    kernel = _loaded(DECODE, GEMV, device)
    assert (kernel.workspace_bytes, kernel.partial_sums) == (0, 1)
    launch = kernel.bind(Operands(16, 32, 48, 64, 80, 1.5, -0.5), 0)
    launch()
    launch()
    one, again = device.launches
    assert one == again
    assert (one.dependent, one.entry, one.grid, one.block) == (True, "gemm", (2048, 1, 1), (256, 1, 1))
    argument = one.argument
    assert one.shared == 32
    assert (argument.a, argument.b, argument.c, argument.d, argument.bias) == (16, 32, 48, 64, 80)
    assert (argument.m, argument.n, argument.k, argument.batch) == (4096, 1, 4096, 1)
    assert (argument.lda, argument.c_row, argument.d_row, argument.bias_row) == (4096, 1, 1, 1)
    assert (argument.alpha, argument.beta, argument.splits) == (1.5, -0.5, 1)
    assert argument.a_bytes == 4096 * 4096 * 2


def test_the_transposed_product_changes_sides() -> None:
    rows, device = from_mm(4096, 1, 512, "bf16", trans_a="N", bias="bf16", ldd=3), NullDevice()
    kernel = _loaded(rows, {**GEMV, "stream": "b"}, device)
    kernel.bind(Operands(16, 32, 0, 64, 80, 1.0, 0.0), 0)()
    argument = device.launches[-1].argument
    assert (argument.a, argument.b, argument.m, argument.n) == (32, 16, 4096, 1)
    assert (argument.d_row, argument.d_column) == (3, 1)
    assert (argument.bias_row, argument.bias_column) == (0, 1)


def test_slices_of_k_are_added_by_a_second_launch() -> None:
    device = NullDevice()
    kernel = _loaded(DECODE, {**GEMV, "splits": 4}, device)
    assert kernel.workspace_bytes == 4 * 4096 * 4
    launch = kernel.bind(Operands(16, 32, 48, 64, 80, 1.0, 1.0), 4096)
    launch()
    launch()
    first, second, *again = device.launches
    assert again == [first, second]
    argument = first.argument
    assert first == Launched(True, "gemm", (2048, 4, 1), (256, 1, 1), 32, (argument,))
    assert second == Launched(True, "reduce", (16, 1, 1), (256, 1, 1), 0, (argument,))
    assert (argument.partial, argument.splits) == (4096, 4)
    with pytest.raises(LaunchError, match=r"^the workspace at 0x1008 is not aligned to 16 bytes$"):
        kernel.bind(Operands(16, 32, 48, 64, 80, 1.0, 1.0), 4104)
    _loaded(DECODE, GEMV, device).bind(Operands(16, 32, 48, 64, 80, 1.0, 1.0), 4104)


def test_before_sm_90_launches_wait_for_one_another() -> None:
    device = NullDevice(replace(ENVIRONMENT, arch="sm_89"))
    _loaded(DECODE, {**GEMV, "splits": 4}, device).bind(Operands(16, 32, 48, 64, 80, 1.0, 1.0), 4096)()
    first, second = device.launches
    assert first == Launched(False, "gemm", (2048, 4, 1), (256, 1, 1), 32, (first.argument,))
    assert second == Launched(False, "reduce", (16, 1, 1), (256, 1, 1), 0, (first.argument,))


#: 320 tiles of 160 units on 132 multiprocessors.
UNEVEN = from_linear(2048, 2560, 5120, "bf16")
STREAM: dict[str, Any] = {
    "tile_m": 128, "tile_n": 128, "tile_k": 32, "warp_m": 64, "warp_n": 64, "stages": 4, "group": 8,
    "blocks_per_unit": 1,
}  # fmt: skip


def test_as_many_blocks_as_the_device_runs_at_once_share_tiles() -> None:
    device = NullDevice()
    kernel = _loaded(UNEVEN, STREAM, device, "stream-k")
    assert kernel.workspace_bytes == 2 * 132 * 128 * 128 * 4
    kernel.bind(Operands(16, 32, 0, 64, 0, 1.0, 0.0), 4096)()
    assert ("allow_shared", "gemm", 4 * 2 * 128 * 64) in device.driver.log
    first, second = device.launches
    assert (first.entry, first.grid, first.block) == ("gemm", (132, 1, 1), (128, 1, 1))
    argument = first.argument
    streamed = 320 - 132
    assert (argument.blocks, argument.whole) == (132, 132)
    assert (argument.share, argument.extra) == divmod(streamed * 160, 132)
    assert second == Launched(True, "reduce", (streamed, 4, 1), (128, 1, 1), 4 * 16 * 68 * 4, (argument,))
    # On as many multiprocessors as divide the tiles there is nothing to add.
    device = NullDevice(replace(ENVIRONMENT, units=160))
    even = _loaded(UNEVEN, STREAM, device, "stream-k")
    assert even.workspace_bytes == 0
    even.bind(Operands(16, 32, 0, 64, 0, 1.0, 0.0), 0)()
    (only,) = device.launches
    argument = only.argument
    assert (only.entry, only.grid) == ("gemm", (160, 1, 1))
    assert (argument.whole, argument.share, argument.extra) == (320, 0, 0)


def test_batches_beyond_the_grids_z_go_along_its_y() -> None:
    many, device = from_bmm(100_000, 17, 20, 32), NullDevice()
    values = {"tile_m": 32, "tile_n": 8}
    _loaded(many, values, device, "coalesced").bind(Operands(16, 32, 0, 64, 0, 1.0, 0.0), 0)()
    (one,) = device.launches
    assert one.grid == (1 * 3, 2, 65535)
    argument = one.argument
    assert (argument.batch, argument.batch_blocks, argument.batch_groups) == (100_000, 65535, 2)


def test_blocks_of_several_products_span_the_batch() -> None:
    many, device = from_bmm(100_000, 32, 32, 32), NullDevice()
    values = {"thread_m": 8, "thread_n": 4, "threads": 64, "rounds": 4, "stages": 2}
    _loaded(many, values, device, "small-batch").bind(Operands(16, 32, 0, 64, 0, 1.0, 0.0), 0)()
    (one,) = device.launches
    assert (one.grid, one.block) == ((100_000 // 8, 1, 1), (64, 1, 1))
    assert one.argument.batch == 100_000
    assert one.shared == 2 * 2 * (32 * 32 + 32 * 36) * 4


def test_much_shared_memory_is_asked_for() -> None:
    values = {
        "tile_m": 128, "tile_n": 128, "tile_k": 32, "thread_m": 8, "thread_n": 8, "warp_m": 64, "warp_n": 32,
    }  # fmt: skip
    device = NullDevice()
    _loaded(from_mm(512, 512, 512), values, device, "double-buffered")
    assert device.driver.log[-1] == ("allow_shared", "gemm", 2 * 32 * (128 + 128 + 8) * 4)
    device = NullDevice()
    _loaded(from_mm(512, 512, 512), {**values, "tile_k": 8}, device, "double-buffered")
    assert "allow_shared" not in device.driver.names()


def test_a_binary_is_loaded_once_a_device() -> None:
    device = NullDevice()
    for splits in (1, 2):
        _loaded(DECODE, {**GEMV, "splits": splits}, device)
    assert device.driver.names().count("load_module") == 1


def test_a_binary_must_be_there() -> None:
    with pytest.raises(LaunchError, match=r"^gemv-.* has no binary$"):
        BY_NAME["gemv"].load(DECODE, Solution("gemv", 2, GEMV), None, NullDevice())


def test_what_a_kernel_takes_of_a_multiprocessor() -> None:
    kernel = _loaded(DECODE, {**GEMV, "splits": 4}, NullDevice())
    assert isinstance(kernel, CompiledKernel)
    assert kernel.resources() == {
        "registers": 64, "local_bytes": 0, "shared_bytes": 32, "threads": 256, "blocks_per_unit": 8,
    }  # fmt: skip


def test_compiling_needs_no_gpu(tmp_path: Path) -> None:
    solution = Solution("gemv", 2, GEMV)
    cache = BinaryCache(tmp_path)
    path = BY_NAME["gemv"].compile(DECODE, solution, READY, cache)
    assert path is not None
    assert path.read_bytes().startswith(b"\x7fELF")
    assert BY_NAME["gemv"].compile(DECODE, solution, READY, cache) == path


# ---- on a GPU ----------------------------------------------------------------------------------

#: Beside the small ones: several waves of blocks, many tiles, a k that is split.
LARGE = {
    "decode": from_linear(1, 4096, 4096, "bf16", bias="bf16", activation="silu"),
    "decode, odd": from_linear(1, 4097, 4095, "bf16", beta=1.0),
    "few": from_linear(13, 1280, 8192, "bf16", beta=1.0),
    "few across k": from_mm(4, 2048, 1024, "fp16"),
    "square": from_mm(520, 776, 1032, "fp32", beta=1.0),
    "square, odd": from_mm(513, 513, 513, "fp32"),
    "square, transposed": from_blas(700, 1000, 900, trans_a="T", trans_b="T", beta=1.0),
    "batch": from_bmm(70_000, 32, 32, 32, "fp32"),
    "batch, odd": from_bmm(9001, 33, 24, 41, "fp16", stride_b=0, beta=1.0),
    "cores": from_linear(520, 776, 1032, "bf16", bias="bf16", activation="relu"),
    "cores, odd": from_linear(513, 777, 1031, "bf16", beta=1.0),
    "cores, odd across k": from_mm(515, 1027, 771, "fp16"),
    "cores, tf32": from_mm(520, 776, 1032, "tf32", beta=1.0),
    "cores, tf32 odd": from_mm(513, 777, 1031, "tf32"),
    "cores, uneven": from_linear(2177, 2310, 3072, "bf16", bias="bf16", activation="relu"),
    "cores, uneven batch": from_bmm(5, 640, 776, 520, "fp16", beta=1.0),
    "cores, uneven and odd": from_mm(2049, 2049, 2049, "bf16"),
    "cores, along k": from_linear(264, 776, 1096, "fp16", dtype_d="fp32", beta=1.0, bias="fp16"),
    "cores, along k, ragged": from_linear(301, 1299, 1032, "bf16", activation="gelu", beta=1.0),
    "cores, batch along k": from_bmm(3, 200, 328, 520, "bf16", trans_b="T", beta=1.0),
}


@pytest.mark.cuda
@pytest.mark.parametrize("family", BY_NAME)
@pytest.mark.parametrize("name", [*PROBLEMS, *LARGE])
def test_every_family_on_a_gpu(name: str, family: str, cache: BinaryCache) -> None:
    from tuners.inputs import applicable, cases
    from tuners.verify_device import DeviceVerifier

    problem, one = {**PROBLEMS, **LARGE}[name], BY_NAME[family]
    device = CudaBackend().open(0, cache)
    assert isinstance(device, GpuDevice)
    here, verifier = device.environment, DeviceVerifier(device)
    drawn = legal_values(FAMILIES[family], problem, here, 3, seed=len(name))
    listed = [dict(solution.parameters) for solution in one.solutions(problem, here)][:2]
    if not drawn and not listed:
        pytest.skip(f"{family} has nothing for {problem.slug}")
    for values in [*listed, *drawn]:
        solution = Solution(family, FAMILIES[family].version, values)

        def right(case: Any, solution: Solution = solution) -> bool:
            if one.illegal(case.problem, solution, here):
                return False
            binary = one.compile(case.problem, solution, here, cache)
            assert binary is not None
            kernel = one.load(case.problem, solution, binary, device)
            assert verifier.check(kernel, case).wrong == "", (solution.id, case.name)
            if case.name == "exact":
                taken = kernel.resources()
                assert 0 < taken["registers"] <= 255
                assert taken["blocks_per_unit"] >= 1, "no block of it can run"
                told = resources.read(binary)[ENTRY]
                assert taken["registers"] == told.registers, "what the compiler said is what the driver says"
                assert bool(told.spill_bytes) <= bool(taken["local_bytes"])
            return True

        ran = [case.name for case in applicable(cases(problem, 2, 7), right)]
        assert "exact" in ran
    verifier.forget()
