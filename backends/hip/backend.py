"""HipBackend: every AMD GPU that this process may see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import DeviceLost, UnsupportedProblem
from backends.gpu.compiled_family import compiled_families
from backends.gpu.device import GpuDevice
from backends.gpu.torch_gemm import TorchMatmul, import_torch, torch_build
from backends.gpu.torch_grouped import TorchGrouped
from backends.gpu.torch_scaled_grouped import DEQUANTISED_CALL
from backends.gpu.torch_weights import TorchWeights
from backends.gpu.triton_family import block_fp8_baseline, fused_moe_baselines, triton_families
from backends.gpu.user_kernel import user_family
from backends.grouping import SCALED_TYPES
from backends.hip.driver import HipDriver
from backends.hip.hipblaslt import HipblasLt, HipblasLtHeuristic, first_heuristic
from backends.hip.rocblas import Rocblas, RocblasDefault, default_solution
from backends.hip.telemetry import AmdSmiTelemetry
from backends.problem import GemmProblem, from_linear
from backends.protocol import AbsentBaseline, Baseline, Device, Family, Probe
from backends.solution import Solution
from backends.toolchains.clang import Clang
from backends.toolchains.hiprtc import Hiprtc
from backends.toolchains.rocm import find_library, why_missing
from backends.toolchains.toolchain import CompileUnit, Toolchain
from backends.toolchains.triton import Triton, usable_build
from backends.traits import GPU_TRAITS
from backends.user_kernels.source import UserKernel

#: Variables that change what the libraries and torch do: where they are set they are part of the environment.
SETTINGS = (
    "HIPBLASLT_TENSILE_LIBPATH",
    "HIPBLASLT_TUNING_OVERRIDE_FILE",
    "HIPBLASLT_WORKSPACE_SIZE",
    "ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH",
    "ROCBLAS_TENSILE_LIBPATH",
    "ROCBLAS_USE_HIPBLASLT",
    "TENSILE_STREAMK_DYNAMIC_GRID",
    "TORCH_BLAS_PREFER_HIPBLASLT",
)
#: Seconds that looking for devices may take: opening hipBLASLt loads hundreds of megabytes.
PROBE_SECONDS = 120.0
_ROOT = Path(__file__).parents[2]


class HipBackend:
    """hipBLASLt and rocBLAS, torch's own call where a ROCm build is installed, and kernels of our own."""

    name = "hip"
    traits = GPU_TRAITS
    process_variables: ClassVar[Mapping[str, str]] = {}

    def product(self, dtype: str) -> GemmProblem:
        """8192^3, the weight transposed: the layout that every library does best in every type."""
        return from_linear(8192, 8192, 8192, dtype)

    def probe(self) -> Probe:
        """Looks for devices and libraries in a process of its own: ROCm's libraries may end theirs."""
        found = _look(_variables())
        environments = tuple(_environment(device, found["libraries"]) for device in found["devices"])
        return Probe(environments, tuple(found["notes"]))

    def families(self) -> Mapping[str, Family]:
        """See Backend."""
        return _families(toolchain().name)

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        """torch's call where torch is installed and has one, hipBLASLt's first heuristic, then rocBLAS's own
        choice; for grouped products also what vLLM runs by default, and for scales of blocks, which none of
        them takes, that alone."""
        looked_for = self._defaults(problem, environment, max_workspace_bytes)
        found = [baseline for baseline, missing in looked_for if missing is None]
        found += fused_moe_baselines(problem, environment)
        if not found and (served := block_fp8_baseline(problem, environment)) is not None:
            found.append(served)
        if not found:
            reasons = [missing for _, missing in looked_for if missing is not None]
            raise UnsupportedProblem(
                f"the hip backend has no library call for {problem.slug} ({problem.dtype_a} -> "
                f"{problem.dtype_d}, compute {problem.compute}, epilogue {problem.epilogue}): "
                f"{'; '.join(dict.fromkeys(reasons))}"
            )
        return found

    def absent_baselines(self, problem: GemmProblem, environment: Environment) -> Sequence[AbsentBaseline]:
        """See ExplainsBaselines."""
        looked_for = self._defaults(problem, environment, None)
        return [AbsentBaseline(one.name, missing) for one, missing in looked_for if missing is not None]

    def _defaults(
        self, problem: GemmProblem, environment: Environment, limit: int | None
    ) -> list[tuple[Baseline, str | None]]:
        """Every default that is looked for, in order, and why it is missing (None: it is not)."""
        families, torch = self.families(), environment.libraries.get("torch")
        name = "torch" if torch is None else f"torch {torch}"
        looked_for = [
            Baseline(name, Solution(TorchMatmul.name, 1, {}, torch), framework=True),
            Baseline("hipBLASLt's first heuristic", first_heuristic(environment, limit)),
            Baseline("rocBLAS's own choice", default_solution(environment)),
        ]
        if (problem.weight_only and not problem.groups) or problem.mx_product:
            solution = Solution(TorchWeights.name, 1, {"call": "dequantise"}, torch)
            looked_for.insert(0, Baseline(f"{name}, dequantise", solution, framework=True))
        if problem.groups:
            call = "dequantise_loop" if problem.weight_only else "loop"
            call = DEQUANTISED_CALL if problem.dtype_a in SCALED_TYPES else call
            solution = Solution(TorchGrouped.name, 1, {"call": call}, torch)
            looked_for.insert(0, Baseline(f"{name}, {call}", solution, framework=True))
        return [
            (
                one,
                families[one.solution.family].unavailable(environment)
                or families[one.solution.family].illegal(problem, one.solution, environment),
            )
            for one in looked_for
        ]

    def user_family(self, kernel: UserKernel) -> Family:
        """See RunsUserKernels."""
        return user_family(kernel, toolchain(), "hip")

    def open(self, index: int, cache: BinaryCache) -> Device:
        """See Backend. Imports torch where the environment has it, so that no candidate pays for that."""
        found, probe = _look(_variables()), self.probe()
        if index >= len(probe.devices):
            why = "; ".join(probe.notes) or f"the runtime sees {len(probe.devices)} GPUs"
            raise DeviceLost(f"hip device {index} is gone: {why}")
        environment, address = probe.devices[index], str(found["devices"][index]["address"])
        telemetry = AmdSmiTelemetry(address)
        device = GpuDevice(HipDriver(index), environment, telemetry, toolchain(), cache, self.families())
        if "torch" in environment.libraries:
            import_torch()  # seconds, which are no candidate's
        return device


def toolchain() -> Toolchain[CompileUnit]:
    """What compiles our kernels here: hipRTC where ROCm has it, else clang."""
    hiprtc = Hiprtc()
    return hiprtc if hiprtc.missing() is None else Clang()


def _variables() -> tuple[str, ...]:
    """What an answer of the probe depends on beside what is installed."""
    names = ("ROCM_PATH", "ROCM_HOME", "LD_LIBRARY_PATH", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return tuple(os.environ.get(name, "") for name in names)


@lru_cache(maxsize=4)
def _look(variables: tuple[str, ...]) -> Mapping[str, Any]:
    """What probe_worker.py found, asked once a process; notes alone where there is no runtime, or where the
    process did not answer."""
    nothing: dict[str, Any] = {"devices": [], "libraries": {}}
    if find_library("amdhip64") is None:
        return nothing | {"notes": [why_missing("amdhip64")]}
    command = [sys.executable, "-P", "-m", "backends.hip.probe_worker"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)])}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False, env=environment
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return nothing | {"notes": [f"ROCm gave no answer within {PROBE_SECONDS:.0f} s (is the GPU hung?)"]}
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
        return nothing | {"notes": [f"looking for GPUs ended with status {done.returncode}: {last}"]}
    return found


def _environment(device: Mapping[str, Any], libraries: Mapping[str, str]) -> Environment:
    own = {name: value for name, value in device.items() if name not in ("gcn_arch", "address")}
    return Environment(**own, libraries={**libraries, **_own_builds(), "gcn_arch": device["gcn_arch"]})


def _own_builds() -> dict[str, str]:
    """Builds of what runs in this process: compilers, torch, Triton, and settings of the libraries."""
    compiler = toolchain()
    settings = [f"{name}={os.environ[name]}" for name in SETTINGS if os.environ.get(name)]
    found = {
        compiler.name: compiler.build(),
        "torch": torch_build("hip"),
        "triton": usable_build(),
        "settings": " ".join(settings) or None,
    }
    return {name: build for name, build in found.items() if build is not None}


@lru_cache(maxsize=2)
def _families(compiler: str) -> Mapping[str, Family]:
    """In the order that a search takes turns: libraries, Triton's kernels, our own by the compiler that is
    here."""
    made: list[Family] = [
        HipblasLt(), HipblasLtHeuristic(), Rocblas(), RocblasDefault(), TorchMatmul("ROCm"),
        TorchWeights("ROCm"), TorchGrouped("ROCm"),
        *triton_families(Triton()),
        *compiled_families("hip", Hiprtc() if compiler == "hiprtc" else Clang()),
    ]  # fmt: skip
    return {family.name: family for family in made}
