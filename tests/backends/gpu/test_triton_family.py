"""The Triton families on CUDA: loaded and launched through the driver's calls, and on a GPU verified."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.cuda.backend import CudaBackend
from backends.cuda.driver import CudaDriver
from backends.cuda.telemetry import NvmlTelemetry
from backends.errors import CompilerMissing, IllegalSolution, LaunchError
from backends.gpu.triton_family import triton_families
from backends.kernels.triton.configuration import MAIN, REDUCE, TritonConfig
from backends.kernels.triton.description import Compiled, Description, read, write
from backends.kernels.triton.families import FAMILIES
from backends.operands import Operands
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.protocol import CompiledKernel
from backends.solution import Solution
from backends.toolchains import triton as compiler
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.triton import Triton, missing
from tests.backends.gpu.null_device import ENVIRONMENT as BARE
from tests.backends.gpu.null_device import NullDevice
from tests.backends.kernels.triton.framework_samples import (
    BLOCKS,
    INDUCTOR,
    MOE,
    block_scaled,
    grouped,
    scaled_grouped,
)
from tests.backends.weight_samples import every_kind, mxfp4, weights

ENVIRONMENT = replace(BARE, libraries={"triton": "3.6.0"})
BY_NAME = {family.name: family for family in triton_families(Triton())}

TILE: dict[str, Any] = {
    "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3, "swap": False,
}  # fmt: skip
PROBLEM = from_linear(300, 500, 700, "bf16", beta=2.0)
#: What the families of frameworks' own kernels run.
OF = {
    "triton-block-fp8": block_scaled(300, 512, 640),
    "triton-inductor-mm": from_linear(300, 500, 700, "bf16"),
    "triton-fused-moe": grouped(300, 512, 640, 5),
    "triton-dequant": weights(300, 512, 640, zero_b="uint4"),
}
OPERANDS = Operands(0x1000, 0x2000, 0x3000, 0x4000, 0, 1.5, -0.5)


@pytest.fixture
def device() -> NullDevice:
    return NullDevice(ENVIRONMENT)


def told(problem: GemmProblem, entry: str, changed: dict[str, Any], **other: Any) -> Description:
    request = TritonConfig.of(problem, {**TILE, **changed}).requests(GPU_ARCHS["sm_90"])[entry]
    return replace(Description(request.kernel, 128, 1000, 0, 1, 0, request.parameters, 90, 0), **other)


def solution(**changed: Any) -> Solution:
    family = "triton-split-k" if "split_k" in changed else "triton-gemm"
    family = "triton-persistent" if "flatten" in changed else family
    return Solution(family, 1, {**TILE, **changed}, "3.6.0")


def load(path: Path, device: NullDevice, one: Solution, problem: GemmProblem = PROBLEM, **other: Any) -> Any:
    changed = {name: value for name, value in one.parameters.items() if name not in TILE}
    entries = (MAIN, REDUCE) if "split_k" in changed else (MAIN,)
    kernels = {name: Compiled(name.encode(), told(problem, name, changed, **other)) for name in entries}
    write(path / "one.zip", "sm_90", "triton 3.6.0", kernels)
    return BY_NAME[one.family].load(problem, one, path / "one.zip", device)


def test_one_launch(device: NullDevice, tmp_path: Path) -> None:
    kernel = load(tmp_path, device, solution())
    assert (kernel.workspace_bytes, kernel.partial_sums) == (0, 1)
    assert "load_module" in device.driver.names()
    assert "allow_shared" not in device.driver.names()
    launch = kernel.bind(OPERANDS, 0)
    assert device.launches == []
    launch()
    (one,) = device.launches
    # The kernel's A is the activation [300, 700], the problem's b; its B the weight [500, 700].
    assert (one.entry, one.grid, one.block, one.shared) == ("gemm", (5 * 8, 1, 1), (128, 1, 1), 1000)
    assert one.dependent
    assert one.values == [
        0x2000, 0x1000, 0x3000, 0x4000, 0, 0, 0, 0, 0, 300, 500, 700, 1, 700, 700, 500, 500, 0, 0, 0, 0,
        1.5, -0.5, 11, 0, 0,
    ]  # fmt: skip


def test_what_a_kernel_takes_of_a_multiprocessor(tmp_path: Path) -> None:
    for one in (solution(), solution(split_k=4)):
        kernel = load(tmp_path, NullDevice(ENVIRONMENT), one)
        assert isinstance(kernel, CompiledKernel)
        assert kernel.resources() == {
            "registers": 64, "local_bytes": 0, "shared_bytes": 1000, "threads": 128, "blocks_per_unit": 16,
        }  # fmt: skip


def test_slices_are_two_launches_with_a_workspace(device: NullDevice, tmp_path: Path) -> None:
    kernel = load(tmp_path, device, solution(split_k=4))
    assert kernel.workspace_bytes == -(-4 * 300 * 500 * 4 // 256) * 256
    launch = kernel.bind(OPERANDS, 0x10000)
    launch()
    first, second = device.launches
    assert (first.entry, first.grid) == ("gemm", (40, 4, 1))
    assert first.values[8] == second.values[6] == 0x10000
    assert first.values[-3] == 3, "steps of 64 of 700, in four slices"
    assert (second.entry, second.grid) == ("reduce", (75 * 4, 1, 1))
    assert second.values[:6] == [0x3000, 0x4000, 0, 0, 0, 0]
    assert second.values[-3] == 4
    assert first.dependent
    assert second.dependent


def test_before_sm_90_a_launch_waits_for_the_one_before(tmp_path: Path) -> None:
    device = NullDevice(replace(ENVIRONMENT, arch="sm_89"))
    launch = load(tmp_path, device, solution()).bind(OPERANDS, 0)
    launch()
    (one,) = device.launches
    assert (one.entry, one.block, one.shared) == ("gemm", (128, 1, 1), 1000)
    assert not one.dependent


def test_descriptors_are_written_to_scratch_in_the_workspace(device: NullDevice, tmp_path: Path) -> None:
    aligned = from_linear(304, 512, 704, "bf16")
    one = solution(programs_per_unit=1, flatten=True, loads="tma")
    kernel = load(tmp_path, device, one, aligned, scratch_bytes=256, scratch_align=128)
    assert kernel.workspace_bytes == 40 * 256 == TritonConfig.of(aligned, one.parameters).scratch_bytes(132)
    kernel.bind(OPERANDS, 0x10080)()
    assert device.launches[0].entry == "descriptor"
    assert device.launches[0].values[-2:] == [0x10080, 0]
    with pytest.raises(LaunchError, match="the workspace at 0x10040 is not aligned to 128 bytes"):
        kernel.bind(OPERANDS, 0x10040)


def test_scratch_lies_behind_the_sums(device: NullDevice, tmp_path: Path) -> None:
    kernel = load(tmp_path, device, solution(split_k=2), scratch_bytes=128)
    sums = -(-2 * 300 * 500 * 4 // 256) * 256
    assert kernel.workspace_bytes == sums + 40 * 2 * 128 + 75 * 4 * 128
    first, _ = kernel._steps[0]
    assert first.scratch == sums


def test_persistent_programs_follow_the_device(device: NullDevice, tmp_path: Path) -> None:
    large = from_linear(3000, 5000, 700, "bf16")
    kernel = load(tmp_path, device, solution(programs_per_unit=2, flatten=True, loads="pointer"), large)
    kernel.bind(OPERANDS, 0)()
    assert device.launches[0].grid == (264, 1, 1)


@pytest.mark.parametrize(
    ("family", "problem", "parameters", "values", "grid"),
    [
        (
            "triton-block-fp8", OF["triton-block-fp8"], BLOCKS,
            [0x2000, 0x1000, 0x4000, 0x7000, 0x6000, 300, 512, 640, 640, 640, 512, 0, 0], 80,
        ),
        ("triton-inductor-mm", OF["triton-inductor-mm"], INDUCTOR, [0x2000, 0x1000, 0x4000, 0, 0], 80),
        # Blocks of 16 rows: 300 rows make at most (300 + 5 * 15) // 16 of five groups.
        (
            "triton-fused-moe", OF["triton-fused-moe"], MOE,
            [0x2000, 0x1000, 0x4000, 0x8000, 300, 512, 640, 23, 640, 640, 512, 512 * 640, 0, 0], 23 * 16,
        ),
        *(
            (
                "triton-fused-moe", scaled_grouped(300, 512, 640, 5, of_rows=of_rows), MOE,
                [0x2000, 0x1000, 0x4000, 0x8000, 0x7000, 0x6000, 300, 512, 640, 23, 640, 640, 512, 512 * 640,
                 0, 0],
                23 * 16,
            )
            for of_rows in (False, True)
        ),
    ],
)  # fmt: skip
def test_a_frameworks_kernel_is_launched_after_the_one_before(
    family: str,
    problem: GemmProblem,
    parameters: dict[str, Any],
    values: list[int],
    grid: int,
    device: NullDevice,
    tmp_path: Path,
) -> None:
    """The activation is the problem's b and the kernel's a, and so are their scales."""
    one = Solution(family, 1, parameters, "3.6.0")
    request = FAMILIES[family].config(problem, parameters).requests(GPU_ARCHS["sm_90"])[MAIN]
    kernel = Compiled(b"code", Description(request.kernel, 128, 1000, 0, 1, 0, request.parameters, 90, 0))
    write(tmp_path / "one.zip", "sm_90", "triton 3.6.0", {MAIN: kernel})
    loaded = BY_NAME[family].load(problem, one, tmp_path / "one.zip", device)
    assert (loaded.workspace_bytes, loaded.partial_sums) == (0, 1)
    operands = Operands(
        0x1000, 0x2000, 0, 0x4000, 0, 1.0, 0.0, scale_a=0x6000, scale_b=0x7000, offsets=0x8000
    )
    loaded.bind(operands, 0)()
    (launched,) = device.launches
    assert launched.values == values
    assert launched.grid == (grid, 1, 1)
    assert not launched.dependent


def test_quantised_weights_have_scales_and_zero_points(device: NullDevice, tmp_path: Path) -> None:
    """The activation is the kernel's A; the weights, whose leading dimension is in bytes, are its B."""
    problem, name = OF["triton-dequant"], "triton-dequant"
    one = Solution(name, 1, {**TILE, "split_k": 2}, "3.6.0")
    requests = FAMILIES[name].config(problem, one.parameters).requests(GPU_ARCHS["sm_90"])
    kernels = {
        entry: Compiled(b"code", Description(request.kernel, 128, 1000, 0, 1, 0, request.parameters, 90, 0))
        for entry, request in requests.items()
    }
    write(tmp_path / "one.zip", "sm_90", "triton 3.6.0", kernels)
    loaded = BY_NAME[name].load(problem, one, tmp_path / "one.zip", device)
    operands = Operands(0x1000, 0x2000, 0, 0x4000, 0, 1.0, 0.0, scale_a=0x6000, zero_a=0x7000)
    loaded.bind(operands, 0x10000)()
    first, second = device.launches
    assert first.values == [
        0x2000, 0x1000, 0, 0x4000, 0, 0x6000, 0x7000, 0x10000, 300, 512, 640, 640, 320, 512, 512, 1.0, 0.0, 5,
        0x10000 + loaded.workspace_bytes, 0,
    ]  # fmt: skip
    assert (first.grid, second.entry) == ((5 * 8, 2, 1), "reduce")
    assert first.dependent


def test_shared_memory(device: NullDevice, tmp_path: Path) -> None:
    load(tmp_path, device, solution(), shared_bytes=100_000)
    assert ("allow_shared", "gemm", 100_000) in device.driver.log
    with pytest.raises(
        IllegalSolution, match="gemm takes 240000 bytes of shared memory; a block of sm_90 has 2324"
    ):
        load(tmp_path, NullDevice(ENVIRONMENT), solution(), shared_bytes=240_000)


@pytest.mark.parametrize(
    ("operands", "workspace", "words"),
    [
        (replace(OPERANDS, a=0x1002), 0x10000, "a at 0x1002 is not aligned to the problem's 16 bytes"),
        (replace(OPERANDS, d=0x4008), 0x10000, "d at 0x4008"),
        (OPERANDS, 0x10008, "the workspace at 0x10008 is not aligned to 16 bytes"),
    ],
)
def test_addresses_that_are_not_aligned(
    operands: Operands, workspace: int, words: str, device: NullDevice, tmp_path: Path
) -> None:
    kernel = load(tmp_path, device, solution(split_k=2))
    with pytest.raises(LaunchError, match=words):
        kernel.bind(operands, workspace)


def test_what_cannot_be_loaded(device: NullDevice, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="has no binary"):
        BY_NAME["triton-gemm"].load(PROBLEM, solution(), None, device)
    load(tmp_path, device, solution())
    with pytest.raises(LaunchError, match="the file has the kernels gemm, not reduce"):
        BY_NAME["triton-split-k"].load(PROBLEM, solution(split_k=2), tmp_path / "one.zip", device)
    with pytest.raises(LaunchError, match="compiled to be profiled"):
        load(tmp_path, NullDevice(ENVIRONMENT), solution(), profile_bytes=8)
    whole = from_linear(8, 8, 8, "int8", alpha=2.0)
    kernel = load(tmp_path, NullDevice(ENVIRONMENT), solution(), whole)
    with pytest.raises(LaunchError, match=r"a whole number, not 1\.5"):
        kernel.bind(OPERANDS, 0)


def test_the_backend_lists_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = CudaBackend().families()
    assert set(FAMILIES) <= set(found)
    for name in BY_NAME:
        family = found[name]
        assert family.supports(OF.get(name, PROBLEM))
        assert not family.supports(from_linear(8, 8, 8, "fp64"))
    monkeypatch.setattr(compiler, "triton_build", lambda: None)
    family = found["triton-gemm"]
    assert family.unavailable(ENVIRONMENT) is None
    assert "pip install 'gemmtune[triton]'" in str(family.unavailable(BARE))
    monkeypatch.undo()
    monkeypatch.setattr(compiler, "missing", lambda: None)
    assert family.unavailable(BARE) == "Triton was not there when NVIDIA H200 was probed"
    monkeypatch.undo()
    monkeypatch.setattr(compiler, "triton_build", lambda: None)
    with pytest.raises(CompilerMissing):
        family.compile(PROBLEM, solution(), ENVIRONMENT, BinaryCache(tmp_path))


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.usefixtures("own_model")  # which leaves room for what Triton lays out beside the pipeline
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *(
            (
                name,
                {
                    "triton-split-k": from_linear(16, 4096, 4096, "bf16"),
                    "triton-block-fp8": block_scaled(512, 4096, 4096),
                    "triton-fused-moe": grouped(512, 4096, 4096, 8),
                    "triton-dequant": weights(512, 4096, 4096, zero_b="uint4"),
                }.get(name, from_linear(512, 4096, 4096, "bf16")),
            )
            for name in FAMILIES
        ),
        ("triton-fused-moe", scaled_grouped(512, 4096, 4096, 8)),
        ("triton-fused-moe", scaled_grouped(512, 4096, 4096, 8, of_rows=True)),
    ],
)
def test_the_first_candidates_compile_within_the_devices_shared_memory(
    name: str, problem: GemmProblem, cache: BinaryCache
) -> None:
    family = CudaBackend().families()[name]
    tried = [one for one, _ in zip(family.solutions(problem, ENVIRONMENT), range(3), strict=False)]
    assert len(tried) == 3
    for one in tried:
        assert family.illegal(problem, one, ENVIRONMENT) is None
        path = family.compile(problem, one, ENVIRONMENT, cache)
        assert path is not None
        assert all(kernel.description.shared_bytes <= 227 * 1024 for kernel in read(path).values())


# ---- on a GPU ------------------------------------------------------------------------------------

TYPES = [
    from_linear(300, 500, 700, "bf16"), from_linear(300, 512, 640, "fp16"),
    from_linear(300, 500, 700, "bf16", dtype_d="fp32"), from_linear(300, 512, 640, "tf32"),
    from_linear(300, 512, 640, "fp8_e4m3", scale_a="outer", scale_b="outer"),
    from_linear(300, 512, 640, "fp8_e4m3", dtype_b="fp8_e5m2", scale_a="tensor", scale_b="tensor"),
    from_linear(300, 512, 4096, "fp8_e4m3", dtype_d="fp8_e4m3", scale_d="tensor", fast_accumulation=True),
    from_linear(300, 512, 4096, "fp8_e5m2", dtype_d="fp16"),
    from_linear(300, 512, 640, "int8"), from_linear(300, 512, 640, "int8", dtype_d="bf16"),
    from_linear(300, 512, 640, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer", bias="bf16"),
    from_linear(16, 4096, 4096, "int8", dtype_d="fp16", scale_a="tensor", scale_b="outer"),
    *(block_scaled(300, 500, 700, dtype_d=kind) for kind in ("bf16", "fp16", "fp32")),
    block_scaled(1, 4096, 7168), block_scaled(64, 2112, 7168), block_scaled(2048, 1536, 1536),
]  # fmt: skip
EPILOGUES = [
    from_linear(300, 500, 700, "bf16", bias="bf16", bias_axis=axis, activation=activation, beta=beta)
    for axis, activation, beta in (("n", "gelu", 0.0), ("m", "silu", 1.0), ("n", "relu", -0.5))
]
LAYOUTS = [
    from_blas(300, 500, 700, kind, trans_a=a, trans_b=b, lda=lda)
    for kind in ("bf16", "tf32") for a in "NT" for b in "NT" for lda in (None, 720)
]  # fmt: skip
WEIGHTS = [
    *every_kind(40, 136, 640),
    *every_kind(40, 136, 640, dtype_a="fp16", scale_dtype="fp16")[:-1],  # no MXFP4 by fp16
    weights(1, 4096, 4096, zero_b="uint4"), weights(300, 512, 1056, zero_b="shift", scale_b="block_1x32"),
    weights(257, 513, 1026, zero_b="eight", scale_b="outer", scale_dtype="fp32", bias="fp32", beta=1.0),
    weights(33, 131, 259, "int8", scale_b="outer", alignment=1), mxfp4(70, 131, 2880, ldb=2882, alignment=2),
]  # fmt: skip
SHAPES = [
    from_linear(1, 4096, 4096, "bf16"), from_linear(16, 4096, 4096, "bf16"),
    from_linear(257, 513, 1025, "bf16"), from_linear(1, 1, 1, "fp16"),
    from_bmm(500, 32, 32, 32, "fp16"), from_bmm(3, 70, 90, 110, "bf16", stride_b=0),
    from_linear(64, 96, 129, "bf16", alignment=2), from_linear(2048, 2048, 2048, "bf16"),
    grouped(300, 500, 700, 5), grouped(128, 1536, 2048, 128), grouped(1, 96, 64, 1, "fp16", alignment=2),
    grouped(4096, 512, 640, 8, routing="skewed"),
    *(
        scaled_grouped(m, n, k, groups, of_rows=of_rows, routing=routing)
        for of_rows in (False, True)
        for m, n, k, groups, routing in (
            (300, 500, 700, 5, "uniform"), (128, 1536, 2048, 128, "uniform"), (4096, 512, 640, 8, "skewed"),
            (64, 4096, 7168, 8, "uniform"),
        )
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def gpu(cache: BinaryCache) -> Any:
    """The first GPU; torch stays out of it, which a candidate does not need."""
    from backends.gpu.device import GpuDevice

    environment = CudaBackend().probe().devices[0]
    telemetry, families = NvmlTelemetry(environment.uuid), CudaBackend().families()
    return GpuDevice(CudaDriver(0), environment, telemetry, Nvrtc(), cache, families)


@pytest.mark.cuda
@pytest.mark.parametrize("problem", [*TYPES, *EPILOGUES, *LAYOUTS, *WEIGHTS, *SHAPES], ids=lambda p: p.id)
@pytest.mark.parametrize("name", list(FAMILIES))
def test_verified_on_a_gpu(name: str, problem: GemmProblem, cache: BinaryCache, gpu: Any) -> None:
    from tuners.inputs import applicable, cases
    from tuners.verify_device import DeviceVerifier

    family, here = CudaBackend().families()[name], gpu.environment
    if not family.supports(problem):
        pytest.skip(f"{name} refuses it, by a rule that other tests know")
    listed = list(family.solutions(problem, here))
    # The likeliest, and some that are not.
    tried = [*listed[:2], *listed[2::40]]
    if not tried:
        tile = {**TILE, "split_k": 3} if name == "triton-split-k" else TILE
        more = {"programs_per_unit": 1, "flatten": True, "loads": "pointer"}
        tile = {**tile, **more} if name == "triton-persistent" else tile
        tried = [Solution(name, 1, tile, here.libraries["triton"])]

    def runs(one: Solution) -> list[Any]:
        found = cases(problem, 2, 5)
        return list(applicable(found, lambda case: family.illegal(case.problem, one, here) is None))

    asked = [(one, case) for one in tried for case in runs(one)]
    with ThreadPoolExecutor(16) as threads:
        paths = list(threads.map(lambda ask: family.compile(ask[1].problem, ask[0], here, cache), asked))
    verifier, ran = DeviceVerifier(gpu), 0
    for (one, case), path in zip(asked, paths, strict=True):
        try:
            kernel = gpu.load(case.problem, one, path)
        except IllegalSolution:  # the compiler took more shared memory than there is
            continue
        finding = verifier.check(kernel, case)
        assert finding.wrong == "", (one.id, case.name)
        assert finding.repeatable
        ran += 1
    verifier.forget()
    assert ran
