"""CudaBackend: every NVIDIA GPU that this process may see."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from backends.archs import foreign_float, gpu_arch
from backends.cache import BinaryCache
from backends.cuda.cublas import Cublas
from backends.cuda.cublaslt import CublasLt
from backends.cuda.cublaslt_heuristic import CublasLtHeuristic, first_heuristic
from backends.cuda.driver import CudaDriver, DriverMissing, api, check
from backends.cuda.padded_cublaslt import PaddedCublasLt
from backends.cuda.telemetry import NvmlTelemetry
from backends.environment import Environment
from backends.errors import DeviceLost, GemmtuneError, UnsupportedProblem
from backends.gpu.compiled_family import CompiledFamily, compiled_families
from backends.gpu.device import GpuDevice
from backends.gpu.padded_family import padded_wgmma
from backends.gpu.torch_gemm import TorchMatmul, import_torch, torch_build
from backends.gpu.torch_grouped import TorchGrouped
from backends.gpu.torch_int8 import TorchInt8
from backends.gpu.torch_weights import TorchWeights
from backends.gpu.triton_family import block_fp8_baseline, fused_moe_baselines, triton_families
from backends.gpu.user_kernel import user_family
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.protocol import AbsentBaseline, Baseline, Device, Family, Probe
from backends.solution import Solution
from backends.toolchains.nvrtc import Nvrtc, nvrtc_build
from backends.toolchains.triton import Triton, usable_build
from backends.traits import GPU_TRAITS
from backends.user_kernels.source import UserKernel

#: Variables that change what the libraries and torch do: where they are set they are part of the environment.
SETTINGS = (
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)


class CudaBackend:
    """NVIDIA's libraries, torch's own call where torch is installed, and kernels of our own."""

    name = "cuda"
    traits = GPU_TRAITS
    #: Devices are numbered as NVML and nvidia-smi number them.
    process_variables: ClassVar[Mapping[str, str]] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def product(self, dtype: str) -> GemmProblem:
        """8192^3, the weight transposed: the layout that every library does best in every type."""
        return from_linear(8192, 8192, 8192, dtype)

    def probe(self) -> Probe:
        """Reads devices and libraries; makes no context."""
        try:
            cu = api()
            count = check(cu.cuDeviceGetCount(), "cuDeviceGetCount")
            libraries, notes = library_builds()
            devices = tuple(_environment(cu, index, libraries) for index in range(count))
        except (DriverMissing, GemmtuneError) as error:  # of one device too: the others' numbers are in doubt
            return Probe((), (str(error),))
        return Probe(devices, notes)

    def families(self) -> Mapping[str, Family]:
        """See Backend."""
        return _families()

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        """torch's call where torch is installed and has one, then cuBLASLt's first heuristic; for quantised
        weights torch's calls, then dequantising them before its product; for grouped products torch's call
        for them, then a loop of its plain one, then what vLLM runs by default; for scales of blocks, which
        neither takes row-major, what vLLM runs by default."""
        found = []
        families = self.families()
        torch = families[TorchMatmul.name]
        for family, words in ((torch, ""), (families[TorchInt8.name], ", _int_mm and scaling")):
            if family.unavailable(environment) is None:
                name = f"torch {environment.libraries['torch']}{words}"
                found += [
                    Baseline(name, one, framework=True) for one in family.solutions(problem, environment)
                ]
        heuristic = families[CublasLtHeuristic.name]
        if heuristic.unavailable(environment) is None and heuristic.supports(problem):
            first: Solution = first_heuristic(environment, max_workspace_bytes)
            found.append(Baseline("cuBLASLt's first heuristic", first))
        for calls in (families[TorchWeights.name], families[TorchGrouped.name]):
            if calls.unavailable(environment) is not None:
                continue
            for solution in calls.solutions(problem, environment):
                name = f"torch {environment.libraries['torch']}, {solution.parameters['call']}"
                found.append(Baseline(name, solution, framework=True))
        found += fused_moe_baselines(problem, environment)
        if not found and (served := block_fp8_baseline(problem, environment)) is not None:
            found.append(served)
        if not found:
            arch = gpu_arch(environment.vendor, environment.arch)
            why: str | None = foreign_float((problem.dtype_a, problem.dtype_b), arch)
            if problem.groups:
                why = why or TorchGrouped("CUDA").missing(problem, environment)
            why = why or heuristic.unavailable(environment)
            why = why or _none_has(problem)
            raise UnsupportedProblem(
                f"the cuda backend has no library call for {problem.slug} ({problem.dtype_a} -> "
                f"{problem.dtype_d}, compute {problem.compute}, epilogue {problem.epilogue}): {why}"
            )
        return found

    def absent_baselines(self, problem: GemmProblem, environment: Environment) -> Sequence[AbsentBaseline]:
        """See ExplainsBaselines."""
        families, found = self.families(), []
        looked_for = (("torch", TorchMatmul.name), ("cuBLASLt's first heuristic", CublasLtHeuristic.name))
        for name, family_name in looked_for:
            family = families[family_name]
            has = family.supports(problem)
            reason = family.unavailable(environment) or ("" if has else f"it has no call for {problem.slug}")
            if reason:
                found.append(AbsentBaseline(name, reason))
        return found

    def user_family(self, kernel: UserKernel) -> Family:
        """See RunsUserKernels."""
        return user_family(kernel, Nvrtc(), "cuda")

    def open(self, index: int, cache: BinaryCache) -> Device:
        """See Backend. Imports torch where the environment has it, so that no candidate pays for that."""
        found = self.probe()
        if index >= len(found.devices):
            why = "; ".join(found.notes) or f"the driver sees {len(found.devices)} GPUs"
            raise DeviceLost(f"cuda device {index} is gone: {why}")
        environment = found.devices[index]
        telemetry = NvmlTelemetry(environment.uuid)
        device = GpuDevice(CudaDriver(index), environment, telemetry, Nvrtc(), cache, self.families())
        if "torch" in device.environment.libraries:
            import_torch()  # seconds, which are no candidate's
        return device


def _environment(cu: Any, index: int, libraries: Mapping[str, str]) -> Environment:
    device = check(cu.cuDeviceGet(index), f"device {index}")

    def attribute(name: str) -> int:
        member = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(cu.cuDeviceGetAttribute(member, device), name))

    name = check(cu.cuDeviceGetName(128, device), "cuDeviceGetName")
    uuid = check(cu.cuDeviceGetUuid(device), "cuDeviceGetUuid")
    major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    product = name.split(b"\0")[0].decode().strip()
    found = re.search(r" MIG (\S+)$", product)  # as the driver calls an instance of a partitioned GPU
    partition = f"MIG {found[1]}" if found else ""
    return Environment(
        vendor="cuda",
        arch=f"sm_{major}{minor}",
        product=product,
        units=attribute("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(check(cu.cuDeviceTotalMem(device), "cuDeviceTotalMem")),
        uuid=_uuid_text(bytes(uuid.bytes), partition),
        partition=partition,
        driver=_driver_version(),
        runtime=f"CUDA {_cuda_version(check(cu.cuDriverGetVersion(), 'cuDriverGetVersion'))}",
        libraries=libraries,
    )


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _uuid_text(raw: bytes, partition: str) -> str:
    digits = raw.hex()
    parts = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]
    return ("MIG-" if partition else "GPU-") + "-".join(parts)


def _driver_version() -> str:
    """580.159.04, as NVML or the kernel module says it; "" where both are hidden."""
    try:
        import pynvml  # noqa: PLC0415  (optional)

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # NVML is missing, or its own errors
        try:
            text = Path("/proc/driver/nvidia/version").read_text()
        except OSError:
            return ""
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
        return found[1] if found else ""
    return version if isinstance(version, str) else str(version.decode())


@lru_cache(maxsize=1)
def library_builds() -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Library -> build, for the libraries that load here; notes for what is missing."""
    libraries: dict[str, str] = {}
    notes = []
    try:
        from nvmath.bindings import cublas, cublasLt  # noqa: PLC0415  (optional)

        libraries["cublaslt"] = str(cublasLt.get_version())
        major, minor, patch = (int(cublas.get_property(part)) for part in range(3))
        libraries["cublas"] = str(major * 10000 + minor * 100 + patch)
    except ImportError as error:
        notes.append(f"nvmath-python is not installed ({error}): no cuBLAS; pip install 'gemmtune[cuda]'")
    except Exception as error:  # the loader's own: the bindings are there, the library is not
        notes.append(f"cuBLAS does not load ({type(error).__name__}: {error}); pip install 'gemmtune[cuda]'")
    build, torch, triton = nvrtc_build(), torch_build("cuda"), usable_build()
    if build is None:
        notes.append("NVRTC does not load: nothing of our own compiles; pip install 'gemmtune[cuda]'")
    else:
        libraries["nvrtc"] = build
    if torch is not None:
        libraries["torch"] = torch
    if triton is not None:
        libraries["triton"] = triton
    settings = [f"{name}={os.environ[name]}" for name in SETTINGS if os.environ.get(name)]
    if settings:
        libraries["settings"] = " ".join(settings)
    return libraries, tuple(notes)


def _none_has(problem: GemmProblem) -> str:
    scales = " with these scales" if problem.scale_dtype is not None else ""
    return f"neither torch nor cuBLASLt has {problem.dtype_a} -> {problem.dtype_d}{scales}"


@lru_cache(maxsize=1)
def _families() -> Mapping[str, Family]:
    """In the order that a search takes turns: libraries, Triton's kernels, our own."""
    nvrtc, lt = Nvrtc(), CublasLt()
    wgmma = CompiledFamily(FAMILIES["tile-wgmma"], nvrtc)
    made: list[Family] = [
        lt, CublasLtHeuristic(), PaddedCublasLt(lt, nvrtc), Cublas(), TorchMatmul("CUDA"),
        TorchInt8(), TorchWeights("CUDA"), TorchGrouped("CUDA"),
        *triton_families(Triton()),
        padded_wgmma(wgmma, nvrtc),
        *compiled_families("cuda", nvrtc),
    ]  # fmt: skip
    return {family.name: family for family in made}
