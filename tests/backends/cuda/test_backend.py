"""Which devices and libraries are found, and what the defaults are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.cuda import backend as module
from backends.cuda.backend import CudaBackend, library_builds
from backends.cuda.driver import DriverMissing
from backends.errors import DeviceLost, UnsupportedProblem
from backends.gpu.compiled_family import compiled_families
from backends.problem import GemmProblem, from_bmm, from_linear
from backends.toolchains.nvrtc import Nvrtc
from tests.backends.cuda.fakes import ENVIRONMENT, GPU, MIG, FakeApi, Status

CUDA = CudaBackend()
MIB = 2**20
LIBRARIES = {"cublaslt": "130100", "cublas": "130100", "nvrtc": "13.0"}
FULL = replace(ENVIRONMENT, libraries={**LIBRARIES, "torch": "2.11.0+cu130"})
BARE = replace(ENVIRONMENT, libraries=LIBRARIES)
EMPTY = replace(ENVIRONMENT, libraries={})


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    library_builds.cache_clear()
    yield
    library_builds.cache_clear()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found: Any = ModuleType("pynvml")
    found.nvmlInit = lambda: None
    found.nvmlSystemGetDriverVersion = lambda: "580.159.04"
    monkeypatch.setitem(sys.modules, "pynvml", found)
    made: ModuleType = found
    return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, nvml: ModuleType) -> FakeApi:
    found = FakeApi(GPU, MIG)
    monkeypatch.setattr(module, "api", lambda: found)
    monkeypatch.setattr(module, "library_builds", lambda: (LIBRARIES, ("a note",)))
    return found


# ---- probing -----------------------------------------------------------------------------------


def test_without_a_driver_there_are_no_devices_and_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DriverMissing("no NVIDIA driver on this machine (libcuda.so is not found)")

    monkeypatch.setattr(module, "api", missing)
    found = CUDA.probe()
    assert found.devices == ()
    assert found.notes == ("no NVIDIA driver on this machine (libcuda.so is not found)",)


def test_two_devices(fake: FakeApi) -> None:
    found = CUDA.probe()
    assert found.notes == ("a note",)
    whole, part = found.devices
    assert whole.vendor == "cuda"
    assert (whole.arch, whole.product, whole.units) == ("sm_90", "NVIDIA H200", 132)
    assert whole.memory_bytes == 150_000_000_000
    assert whole.uuid == "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert whole.partition == ""
    assert (whole.driver, whole.runtime) == ("580.159.04", "CUDA 13.1")
    assert dict(whole.libraries) == LIBRARIES
    assert (part.product, part.units) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16)
    assert part.partition == "MIG 1g.10gb"
    assert part.uuid == "MIG-ffffffff-ffff-ffff-ffff-ffffffffffff"
    assert whole.device_class != part.device_class
    assert not [name for name in fake.names() if "Ctx" in name], "probing makes no context"


def test_nvml_may_be_hidden(fake: FakeApi, nvml: Any) -> None:
    nvml.nvmlSystemGetDriverVersion = lambda: b"470.1"
    assert CUDA.probe().devices[0].driver == "470.1"

    def hidden() -> None:
        raise RuntimeError("NVML Shared Library Not Found")

    nvml.nvmlInit = hidden
    assert CUDA.probe().devices[0].driver == ""


@pytest.mark.parametrize("call", ["DeviceGetCount", "DeviceGet", "DeviceGetAttribute", "DeviceTotalMem"])
def test_a_driver_that_fails_while_it_is_asked_is_a_note(call: str, fake: FakeApi) -> None:
    fake.faults[call] = Status(101, "CUDA_ERROR_INVALID_DEVICE")
    found = CUDA.probe()
    assert found.devices == ()
    (note,) = found.notes
    assert "CUDA_ERROR_INVALID_DEVICE (the GPU is gone)" in note


# ---- libraries ---------------------------------------------------------------------------------


@pytest.fixture
def nvmath(monkeypatch: pytest.MonkeyPatch) -> Any:
    """nvmath's bindings of cuBLAS 13.1.3."""
    found: Any = ModuleType("nvmath.bindings")
    found.cublasLt = SimpleNamespace(get_version=lambda: 130103)
    found.cublas = SimpleNamespace(get_property=lambda part: (13, 1, 3)[part])
    monkeypatch.setitem(sys.modules, "nvmath.bindings", found)
    monkeypatch.setattr(module, "torch_build", lambda platform: None)
    monkeypatch.setattr(module, "nvrtc_build", lambda: "13.0")
    monkeypatch.setattr(module, "usable_build", lambda: None)
    return found


def test_builds_of_the_libraries_that_load(nvmath: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_builds() == ({"cublaslt": "130103", "cublas": "130103", "nvrtc": "13.0"}, ())
    library_builds.cache_clear()
    monkeypatch.setattr(module, "torch_build", lambda platform: "2.11.0+cu130")
    monkeypatch.setattr(module, "usable_build", lambda: "3.6.0")
    assert library_builds()[0]["torch"] == "2.11.0+cu130"
    assert library_builds()[0]["triton"] == "3.6.0"


def test_what_is_missing_is_noted(nvmath: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "nvrtc_build", lambda: None)

    def refuses() -> int:
        raise RuntimeError("Failed to dlopen libcublasLt.so.13")

    nvmath.cublasLt.get_version = refuses
    libraries, (cublas, nvrtc) = library_builds()
    assert libraries == {}
    assert cublas.startswith("cuBLAS does not load (RuntimeError: Failed to dlopen libcublasLt.so.13)")
    assert nvrtc.startswith("NVRTC does not load")
    library_builds.cache_clear()
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    _, (first, _) = library_builds()
    assert first.startswith("nvmath-python is not installed")
    assert "pip install 'gemmtune[cuda]'" in first


# ---- baselines ---------------------------------------------------------------------------------

FIRST = ("cuBLASLt's first heuristic", "cublaslt-heuristic")
TORCH = ("torch 2.11.0+cu130", "torch-matmul")


@pytest.mark.parametrize(
    ("problem", "environment", "expected"),
    [
        (from_linear(8, 64, 64, "bf16"), FULL, [TORCH, FIRST]),
        (from_linear(8, 64, 64, "bf16"), BARE, [FIRST]),
        (from_linear(8, 64, 64, "bf16", bias="bf16", activation="silu"), FULL, [TORCH]),
        (from_linear(8, 64, 64, "bf16", dtype_d="fp32"), FULL, [FIRST]),
        (from_bmm(3, 8, 64, 64, "fp16", activation="relu"), FULL, [TORCH, FIRST]),
        (from_linear(8, 64, 64, "bf16"), replace(FULL, libraries={"torch": "2.11.0+cu130"}), [TORCH]),
    ],
)
def test_the_frameworks_call_first_then_the_librarys(
    problem: GemmProblem, environment: Any, expected: list[tuple[str, str]]
) -> None:
    found = CUDA.baselines(problem, environment)
    names = [(one.name, CUDA.families()[one.solution.family].name) for one in found]
    assert [name for name, _ in names] == [name for name, _ in expected]
    assert [one.solution.family for one in found][-1] == names[-1][1]
    for one in found:
        family = CUDA.families()[one.solution.family]
        assert family.illegal(problem, one.solution, environment) is None
        assert one.solution.build == environment.libraries[family.library]  # type: ignore[attr-defined]


BLOCKS = from_linear(8, 256, 512, "fp8_e4m3", dtype_d="bf16", scale_a="block_1x128", scale_b="block_128x128")


def test_a_block_scaled_layer_is_compared_with_what_vllm_runs_untuned() -> None:
    """Where torch is not known to have such scales."""
    bare = {name: build for name, build in FULL.libraries.items() if name != "torch"}
    here = replace(FULL, libraries={**bare, "triton": "3.6.0"})
    (found,) = CUDA.baselines(BLOCKS, here)
    assert found.name == "vLLM's default block-fp8 configuration"
    assert (found.solution.family, found.solution.build) == ("triton-block-fp8", "3.6.0")
    assert found.solution.parameters["BLOCK_SIZE_M"] == 64
    assert CUDA.families()["triton-block-fp8"].illegal(BLOCKS, found.solution, here) is None
    for problem, environment in (
        (BLOCKS, replace(here, libraries=bare)),
        (BLOCKS, replace(here, arch="sm_80")),
        (replace(BLOCKS, scale_a="block_1x128"), here),
    ):
        with pytest.raises(UnsupportedProblem, match="no library call"):
            CUDA.baselines(problem, environment)


def test_a_block_scaled_layer_is_compared_with_torchs_call_on_hopper() -> None:
    here = replace(FULL, libraries={**FULL.libraries, "torch": "2.11.0+cu130"})
    (found,) = CUDA.baselines(BLOCKS, here)
    assert (found.name, found.solution.family) == ("torch 2.11.0+cu130", "torch")


EXPERTS = from_linear(64, 256, 512, "bf16", groups=8, routing="uniform")


def test_a_grouped_product_is_compared_with_torchs_calls_and_with_what_vllm_runs_untuned() -> None:
    """vLLM chooses by the tokens of a call, which the rows do not tell: both are measured."""
    here = replace(FULL, libraries={**FULL.libraries, "torch": "2.11.0+cu130", "triton": "3.6.0"})
    found = CUDA.baselines(EXPERTS, here)
    assert [(one.name, one.framework) for one in found] == [
        ("torch 2.11.0+cu130, grouped_mm", True),
        ("torch 2.11.0+cu130, loop", True),
        ("vLLM's default fused-MoE configuration for few tokens", False),
        ("vLLM's default fused-MoE configuration for many tokens", False),
    ]
    assert [one.solution.parameters["BLOCK_SIZE_M"] for one in found[2:]] == [16, 64]
    for one in found:
        assert CUDA.families()[one.solution.family].illegal(EXPERTS, one.solution, here) is None
    without = {name: build for name, build in here.libraries.items() if name != "triton"}
    assert len(CUDA.baselines(EXPERTS, replace(here, libraries=without))) == 2


def test_a_grouped_product_to_fp32_is_compared_with_torchs_loop() -> None:
    to_fp32 = replace(EXPERTS, dtype_c="fp32", dtype_d="fp32")
    (found,) = CUDA.baselines(to_fp32, FULL)
    assert (found.name, found.framework) == ("torch 2.11.0+cu130, loop", True)
    for build, why in (
        ("2.7.1+cu126", r"epilogue none\): torch 2.7.1\+cu126 has no mm of bf16 to fp32; 2.8 has$"),
        (None, "torch"),
    ):
        libraries = {"cublaslt": FULL.libraries["cublaslt"], **({"torch": build} if build else {})}
        with pytest.raises(UnsupportedProblem, match=why):
            CUDA.baselines(to_fp32, replace(FULL, libraries=libraries))


@pytest.mark.parametrize(
    ("scales", "calls", "untuned"),
    [
        (("block_1x128", "block_128x128"), ["scaled_loop"], ["vLLM's default fused-MoE configuration"]),
        (
            ("outer", "outer"),
            ["scaled_grouped_mm", "scaled_loop"],
            [f"vLLM's default fused-MoE configuration for {words} tokens" for words in ("few", "many")],
        ),
    ],
    ids=["blocks", "rows"],
)
def test_scaled_experts_are_compared_with_torchs_calls_and_with_what_vllm_runs_untuned(
    scales: tuple[str, str], calls: list[str], untuned: list[str]
) -> None:
    here = replace(FULL, libraries={**FULL.libraries, "torch": "2.11.0+cu130", "triton": "3.6.0"})
    of_x, of_w = scales
    problem = from_linear(64, 256, 512, "fp8_e4m3", groups=8, dtype_d="bf16", scale_a=of_x, scale_b=of_w)
    found = CUDA.baselines(problem, here)
    assert [one.name for one in found] == [*(f"torch 2.11.0+cu130, {call}" for call in calls), *untuned]
    assert [one.framework for one in found] == [True] * len(calls) + [False] * len(untuned)
    for one in found:
        assert CUDA.families()[one.solution.family].illegal(problem, one.solution, here) is None


@pytest.mark.parametrize(("limit", "expected"), [(None, 32 * MIB), (0, 0), (MIB, MIB)])
def test_the_limit_of_workspace_is_the_heuristics_own(limit: int | None, expected: int) -> None:
    (found,) = CUDA.baselines(from_linear(8, 64, 64, "bf16"), BARE, limit)
    assert dict(found.solution.parameters) == {"rank": 0, "workspace_limit": expected}
    assert found.solution.build == "130100"


@pytest.mark.parametrize(
    ("problem", "environment", "words"),
    [
        (
            from_linear(8, 64, 64, "complex64"), FULL,
            r"no library call for .* \(complex64 -> complex64.*neither torch nor cuBLASLt has complex64",
        ),
        (from_linear(8, 64, 64, "bf16", activation="silu"), BARE, r"epilogue silu\): neither torch nor"),
        (
            from_linear(8, 64, 64, "fp8_e4m3_fnuz"), FULL,
            r"fp8_e4m3_fnuz is the 8-bit float of gfx942, and sm_\d+ has fp8_e4m3$",
        ),
        (from_linear(8, 64, 64, "bf16"), EMPTY, r"cuBLASLt \(nvmath-python.*\) is not installed"),
    ],
)  # fmt: skip
def test_a_problem_that_no_library_has(problem: GemmProblem, environment: Any, words: str) -> None:
    with pytest.raises(UnsupportedProblem, match=words):
        CUDA.baselines(problem, environment)


# ---- the rest ----------------------------------------------------------------------------------


def test_families_in_the_order_of_a_search() -> None:
    found = CUDA.families()
    own = [family.name for family in compiled_families("cuda", Nvrtc())]
    libraries = [
        "cublaslt", "cublaslt-heuristic", "cublaslt-padded", "cublas", "torch", "torch-int8", "torch-weights",
        "torch-grouped",
    ]  # fmt: skip
    triton = [
        "triton-gemm", "triton-split-k", "triton-persistent", "triton-block-fp8", "triton-inductor-mm",
        "triton-fused-moe", "triton-dequant",
    ]  # fmt: skip
    assert list(found) == [*libraries, *triton, "tile-wgmma-padded", *own]
    assert all(found[name].name == name for name in found)
    assert CUDA.families() is found


def test_modes_and_the_processs_variables() -> None:
    assert CUDA.traits.modes == ("graph", "eager")
    assert dict(CUDA.process_variables) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "tf32", "fp64", "int8", "fp8_e4m3"])
def test_the_product_that_shows_the_multiplying_ceiling_has_a_baseline(dtype: str) -> None:
    problem = CUDA.product(dtype)
    assert (problem.m, problem.n, problem.k) == (8192, 8192, 8192)
    assert (problem.trans_a, problem.trans_b) == ("T", "N")
    assert CUDA.baselines(problem, BARE)


def test_a_device_that_is_gone(fake: FakeApi, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceLost, match=r"^cuda device 2 is gone: a note$"):
        CUDA.open(2, cache)
    monkeypatch.setattr(module, "library_builds", lambda: (LIBRARIES, ()))
    with pytest.raises(DeviceLost, match=r"^cuda device 7 is gone: the driver sees 2 GPUs$"):
        CUDA.open(7, cache)

    def missing() -> None:
        raise DriverMissing("no driver")

    monkeypatch.setattr(module, "api", missing)
    with pytest.raises(DeviceLost, match=r"^cuda device 0 is gone: no driver$"):
        CUDA.open(0, cache)


@pytest.mark.parametrize("index", [0, 1])
def test_opening_one_of_them(
    index: int, fake: FakeApi, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports: list[int] = []
    monkeypatch.setattr("backends.cuda.driver.api", lambda: fake)
    monkeypatch.setattr(module, "import_torch", lambda: imports.append(1))
    device = CUDA.open(index, cache)
    assert device.environment == CUDA.probe().devices[index]
    assert imports == []
    with_torch = {**LIBRARIES, "torch": "2.11.0+cu130"}
    monkeypatch.setattr(module, "library_builds", lambda: (with_torch, ()))
    CUDA.open(index, cache)
    assert imports == [1], "ahead of the first candidate"
