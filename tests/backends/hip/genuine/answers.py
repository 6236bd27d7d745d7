"""What the genuine hipBLASLt and rocBLAS answer to the backend's modules on a fake device.

`python -m tests.backends.hip.genuine.answers FILE`, in its own process under sid's loader (machine.py),
writes the answers to FILE as JSON. Lists of solutions that the library returns in no order are sorted. The
heuristic's answers keep their order: the first are ranked, the rest come in the order of their addresses.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import GemmtuneError
from backends.gpu.context import GpuContext
from backends.gpu.library import LibraryError
from backends.gpu.null import NullTelemetry
from backends.hip import hipblaslt, rocblas
from backends.hip.datatypes import ROCBLAS_TYPES, fp8_rule
from backends.hip.driver import HipDriver
from backends.hip.hipblaslt import HipblasLt, hipblaslt_build
from backends.hip.hipblaslt_call import MatmulCall
from backends.hip.probe_worker import look
from backends.hip.rocblas import Rocblas
from backends.hip.rocblas_api import BY_INDEX, CHECK_INDEX, STANDARD
from backends.hip.rocblas_api import rocblas as rocblas_api
from backends.operands import NAMES, Operands, layouts
from backends.problem import GemmProblem
from backends.solution import Solution
from tests.backends.gpu.null_device import NoCompiler
from tests.backends.hip.genuine.problems import PROBLEMS
from tests.backends.hip.genuine.recording import digest
from tests.backends.hip.genuine.replay import described, described_product

UNLIMITED = 2**40
#: Workspace limits, in MiB, for which the heuristic is queried.
LIMITS_MIB = (32, 128)
#: Solutions of a problem that are loaded and launched.
LAUNCHED = 64


def main() -> None:
    """Writes the answers."""
    device = open_device()
    probe = look()
    for one in probe["devices"]:
        one["driver"] = ""  # the kernel release of this machine
    found = {"probe": probe, "hipblaslt": _hipblaslt(device), "rocblas": _rocblas(device)}
    Path(sys.argv[1]).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def open_device() -> GpuContext:
    """The fake runtime's device, opened with the environment that the backend's probe returns."""
    probe = look()
    (device,) = probe["devices"]
    fields = {name: value for name, value in device.items() if name not in ("gcn_arch", "address")}
    environment = Environment(**fields, libraries=probe["libraries"])
    nowhere = BinaryCache(Path(os.devnull))
    return GpuContext(HipDriver(0), environment, NullTelemetry(), NoCompiler(), nowhere)


def operands(problem: GemmProblem) -> Operands:
    """Placeholder addresses of a problem's operands: no kernel runs."""
    there = layouts(problem)
    addresses = [2 ** (20 + place) if name in there else 0 for place, name in enumerate(NAMES)]
    a, b, c, d, *rest = addresses
    return Operands(a, b, c, d, rest[0], *problem.scalars, *rest[1:])


def _summary(listed: Sequence[Solution]) -> dict[str, Any]:
    """A family's list: the count, the first entries in their order, and a digest of all, sorted by index."""
    pairs = [[int(s.parameters["solution_index"] or 0), s.workspace_bytes] for s in listed]
    return {"count": len(pairs), "first": pairs[:LAUNCHED], "sha256": digest(sorted(pairs))}


def _launches() -> int:
    """Kernel launches that the fake runtime has received so far."""
    path = Path(os.environ["GEMMTUNE_FAKE_TRACE"])
    lines = path.read_text().splitlines() if path.exists() else []
    return sum("LaunchKernel" in line for line in lines)


def _launched(
    device: GpuContext, family: HipblasLt | Rocblas, problem: GemmProblem, listed: Sequence[Solution]
) -> dict[str, Any]:
    """Of the first solutions: how many load with the workspace that was listed, how many launch, and the
    first error."""
    loaded, launched, errors = 0, 0, []
    for solution in listed[:LAUNCHED]:
        try:
            kernel = family.load(problem, solution, None, device)
            loaded += kernel.workspace_bytes == solution.workspace_bytes
            kernel.bind(operands(problem), 2**30)()
            launched += 1
        except GemmtuneError as error:
            errors.append(str(error))
    tried = len(listed[:LAUNCHED])
    return {"of": tried, "loaded": loaded, "launched": launched, "error": (errors or [""])[0]}


# ---- hipBLASLt


def _hipblaslt(device: GpuContext) -> dict[str, Any]:
    library = hipblaslt.library(device)
    lt, handle = library.api, library.handle
    found: dict[str, Any] = {
        "version": lt.version(handle), "revision": lt.revision(handle), "build": hipblaslt_build(lt, handle),
        "extension_missing": lt.extension_missing, "problems": {}, "names": {},
    }  # fmt: skip
    for key, problem in PROBLEMS.items():
        found["problems"][key] = _of_hipblaslt(device, problem, found["names"])
    return found


def _of_hipblaslt(device: GpuContext, problem: GemmProblem, names: dict[int, Any]) -> dict[str, Any]:
    family, before = HipblasLt(), _launches()
    reason = hipblaslt.unsupported(problem) or fp8_rule((problem.dtype_a,), device.environment.arch)
    if reason is not None:
        return {"unsupported": reason}
    call: MatmulCall = hipblaslt.library(device).call(problem)
    try:
        every = sorted(call.every(), key=lambda one: one.index)
    except LibraryError as error:
        return {"status": error.status, **_refused(device, family, problem, call)}
    supports = [call.supports(one) for one in every]
    picked = call.heuristics(UNLIMITED)
    limited = {mib: {one.index for one in call.heuristics(mib * 2**20)} for mib in LIMITS_MIB}
    fitting = {mib: {one.index for one in picked if one.workspace_bytes <= mib * 2**20} for mib in LIMITS_MIB}
    listed = list(family.enumerate_on(problem, device, None))
    unlimited = list(family.enumerate_on(problem, device, UNLIMITED))
    for one in every:
        if one.index not in names:
            named = call.names(one)
            names[one.index] = [named["kernel_name"], named["solution_name"]]
    known = {one.index: size for one, size in zip(every, supports, strict=True)}
    by_index = {one.index: call.by_index(one.index) for one in every[:LAUNCHED]}
    return {
        "every": [one.index for one in every],
        "supports": supports,
        "heuristic": [one.index for one in picked],
        "heuristic_differs": {
            str(one.index): one.workspace_bytes
            for one in picked
            if known.get(one.index, -1) != one.workspace_bytes
        },
        "heuristic_within_mib": {str(mib): len(found) for mib, found in limited.items()},
        "limit_filters": limited == fitting,
        "by_index": all(one is not None and one.index == index for index, one in by_index.items()),
        "enumerated": {"default": _summary(listed), "unlimited": _summary(unlimited)},
        "launches_while_listing": _launches() - before,
        "launched": _launched(device, family, problem, listed),
        "described": described(problem),
    }


def _refused(device: GpuContext, family: HipblasLt, problem: GemmProblem, call: MatmulCall) -> dict[str, Any]:
    """The answers on an architecture that the library has no tables for."""
    try:
        heuristic = len(call.heuristics(UNLIMITED))
    except LibraryError as error:
        heuristic = -error.status
    return {
        "heuristic": heuristic,
        "by_index": call.by_index(0) is not None,
        "enumerated": len(list(family.enumerate_on(problem, device, None))),
        "notes": list(family.notes(problem, device.environment)),
        "described": described(problem),
    }


# ---- rocBLAS


def _rocblas(device: GpuContext) -> dict[str, Any]:
    found: dict[str, Any] = {"version": rocblas_api().version(), "problems": {}}
    for key, problem in PROBLEMS.items():
        found["problems"][key] = _of_rocblas(device, problem)
    return found


def _of_rocblas(device: GpuContext, problem: GemmProblem) -> dict[str, Any]:
    family, before = Rocblas(), _launches()
    if (reason := rocblas.unsupported(problem)) is not None:
        return {"unsupported": reason}
    listed = list(family.enumerate_on(problem, device, None))
    if notes := family.notes(problem, device.environment):
        return {"enumerated": len(listed), "notes": list(notes)}
    library = rocblas.library(device)
    unlimited = list(family.enumerate_on(problem, device, UNLIMITED))
    library.ask()
    gemm = rocblas.Gemm(library, problem, operands(problem))
    of_problem = library.api.of_problem(gemm.arguments, gemm.batched)
    kinds = [ROCBLAS_TYPES[name] for name in (problem.dtype_a, problem.dtype_d, problem.compute)]
    of_types = library.api.of_types(library.handle, *kinds)
    checked = {index: gemm.status(BY_INDEX, index, CHECK_INDEX) for index in of_types}
    passed = sorted(index for index, status in checked.items() if not status)
    answers = {
        "of_problem": sorted(of_problem),
        "of_types": sorted(of_types),
        "passed": passed,
        "refusals": sorted({status for status in checked.values() if status}),
        "workspace": [_workspace(library, gemm, BY_INDEX, index) for index in passed],
        "default_workspace": _workspace(library, gemm, STANDARD, 0),
        "of_problem_at_first": _of_fresh_handle(device, problem),
        "enumerated": {"default": _summary(listed), "unlimited": _summary(unlimited)},
        "launches_while_listing": _launches() - before,
    }
    # Code objects are not unpacked, so launches fail, after they have set the handle's workspace.
    answers["launched"] = _launched(device, family, problem, listed)
    again = list(family.enumerate_on(problem, device, None))
    return {
        **answers,
        "same_after_launches": [one.id for one in again] == [one.id for one in listed],
        "described": list(described_product(problem)),
    }


def _workspace(library: rocblas.Library, gemm: rocblas.Gemm, algo: int, index: int) -> int | None:
    return library.api.workspace_bytes(library.handle, lambda: gemm.status(algo, index))


def _of_fresh_handle(device: GpuContext, problem: GemmProblem) -> int:
    """How many solutions a new handle lists, with rocBLAS's default workspace (32 MiB)."""
    library = rocblas.Library(device)
    gemm = rocblas.Gemm(library, problem, operands(problem))
    return len(library.api.of_problem(gemm.arguments, gemm.batched))


if __name__ == "__main__":
    main()
