"""Bundles of our kernels for quantised weights, run by the emulator: the client's CPU driver calls a function
that takes a kernel's own argument block and launches it on the host's fibers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.native import compile_runtime
from backends.environment import Environment
from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelConfig
from backends.packages.launches import Struct, kernel_argument
from backends.problem import GemmProblem
from backends.wire import problem_to_wire
from tests.backends.kernels.emulator import host
from tests.client import bundles
from tests.client.packed_rows import operands_and_packing

_ABI = 'extern "C" int gemmtune_abi() { return 1; }\n'


def write(
    path: Path,
    problems: Iterable[tuple[GemmProblem, str]],
    cache: BinaryCache,
    *,
    default: str | None = "torch-weights",
    torch_build: str | None = None,
    gpu: Environment = host.H200,
    seconds: Mapping[GemmProblem, float] = MappingProxyType({}),
) -> Path:
    """A bundle with the likeliest candidate of a family on a GPU for each problem. `default`: the family of
    the baseline; `torch_build`: the torch with which the rows say that they were measured; `seconds`: what
    rows say that they took, where not all alike."""
    environment = CpuBackend().probe().devices[0]
    runtime = compile_runtime(environment.partition, cache).read_bytes()
    chosen, arch = [], GPU_ARCHS[gpu.arch]
    for problem, name in problems:
        family = FAMILIES[name]
        solution = next(iter(family.solutions(problem, gpu)))
        chosen.append((problem, solution, family.config(problem, solution.parameters, arch)))
    configurations = [config for _, _, config in chosen]
    wrappers = [_wrapper(number, config) for number, config in enumerate(configurations)]
    library = path.with_suffix(".so")
    host.compiled("\n".join([host.source(configurations), *wrappers, _ABI]), library, arch.warp)
    rows = []
    for number, (problem, solution, config) in enumerate(chosen):
        made = bundles.row(problem, "cpu", [], config.workspace_bytes)
        digests = {"binary": bundles.digest(library.read_bytes()), "runtime": bundles.digest(runtime)}
        launch = _launch(f"run_{number}", kernel_argument(config), digests)
        packing = partial(_launch, f"pack_{number}", digests=digests)
        made |= {
            "solution": {
                "id": solution.id, "family": solution.family, "version": solution.version,
                "parameters": dict(solution.parameters), "build": None,
            },
            "problem": {
                "id": problem.id, "wire": problem_to_wire(problem), "canonical": problem.to_dict()
            },
            "launches": [launch], **operands_and_packing(config, packing),
        }  # fmt: skip
        made["verdict"] |= {"baseline": str(default), "baseline_family": default}
        if problem in seconds:
            made["verdict"]["seconds"] = seconds[problem]
        rows.append(made)
    binaries = {library.read_bytes(): ".so", runtime: ".so"}
    document = bundles.manifest(str(environment.device_class), rows, binaries)
    libraries = {} if torch_build is None else {"torch": torch_build}
    document["environments"] = {"here": {"runtime": None, "driver": None, "libraries": libraries}}
    return bundles.write(path, document, binaries)


def _launch(entry: str, argument: Struct, digests: Mapping[str, str]) -> bundles.Document:
    return {"entry": entry, **digests, "arguments": [{**argument.to_dict(), "name": "args"}]}


def _wrapper(number: int, config: KernelConfig) -> str:
    """A function of the client's C ABI that launches a configuration, and one that packs its weights."""
    calls = [_call("gemm", number, config.grid, config.threads, config.shared_bytes)]
    if config.reduces:
        calls.append(
            _call("reduce", number, config.reduce_grid, config.reduce_threads, config.reduce_shared_bytes)
        )
    made = _function(f"run_{number}", calls)
    if (packed := config.prepacked) is not None:
        one = packed.launch
        made += _function(f"pack_{number}", [_call("pack", number, one.grid, one.block[0], one.shared_bytes)])
    return made


def _function(name: str, calls: Iterable[str]) -> str:
    return f'extern "C" int {name}(const void* args) {{\n{"".join(calls)}    return 0;\n}}\n'


def _call(name: str, number: int, grid: tuple[int, int, int], threads: int, shared: int) -> str:
    sizes = ", ".join(map(str, grid))
    return (
        f"    {{ const unsigned grid[3] = {{{sizes}}};\n"
        f"      if (launch_{name}_{number}(args, grid, {threads}, {shared}ull, 0)) return 5; }}\n"
    )
