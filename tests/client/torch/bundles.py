"""Bundles of real CPU kernels for this machine."""

from __future__ import annotations

import ctypes
import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from backends import registry
from backends.cache import BinaryCache
from backends.cpu.families import NativeFamily, PackedFamily, StreamFamily
from backends.cpu.native import GemmArgs, NativeKernel, compile_runtime, runtime
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.wire import problem_to_wire

_TYPES = {
    ctypes.c_int64: "int64_t", ctypes.c_int32: "int32_t", ctypes.c_void_p: "void *",
    ctypes.c_double: "double",
}  # fmt: skip
_SWAPPED = {"a": "b", "b": "a"}


def write_bundle(
    path: Path, problems: Iterable[GemmProblem], cache: BinaryCache, *,
    seconds: Mapping[int, float] | None = None, deterministic: bool | None = True,
    torch_build: str | None = None, default: str | None = "torch",
) -> Path:  # fmt: skip
    """A bundle with the likeliest kernel of each problem, on one thread. `seconds`: n of a row-major problem
    -> the seconds that its verdict states."""
    environment = registry.find_device("cpu").environment
    pool = compile_runtime(environment.partition, cache)
    binaries: dict[str, Path] = {}
    rows = []
    for problem in problems:
        family: NativeFamily = StreamFamily() if min(problem.m, problem.n) <= 8 else PackedFamily()
        solution = next(
            one for one in family.solutions(problem, environment) if one.parameters["threads"] == 1
        )
        library = family.compile(problem, solution, environment, cache)
        assert library is not None
        digests = [hashlib.sha256(one.read_bytes()).hexdigest() for one in (library, pool)]
        binaries |= dict(zip(digests, (library, pool), strict=True))
        time = (seconds or {}).get(problem.m, 1e-5)
        rows.append(_row(problem, solution, library, pool, digests, time, deterministic, default))
    device = environment.device_class
    manifest = {
        "format": "gemmtune-bundle", "version": 1,
        "device": {"class": str(device), "vendor": "cpu", "arch": device.arch, "product": device.product,
                   "units": device.units},
        "policy": {"id": "test", "content": {}},
        "requires": {"driver": None},
        "environments": {"here": {
            "runtime": environment.runtime, "driver": environment.driver,
            "libraries": {"torch": torch_build or str(torch.__version__)},
        }},
        "convention": "", "order": "",
        "binaries": {digest: {"bytes": file.stat().st_size, "suffix": file.suffix}
                     for digest, file in binaries.items()},
        "rows": rows,
    }  # fmt: skip
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("manifest.json", json.dumps(manifest))
        for digest, binary in binaries.items():
            file.write(binary, f"binaries/{digest}")
    return path


def _row(
    problem: GemmProblem, solution: Solution, library: Path, pool: Path, digests: list[str], seconds: float,
    deterministic: bool | None, default: str | None,
) -> dict[str, Any]:  # fmt: skip
    p = solution.parameters
    blocks = {name: int(p.get(name) or 1) for name in ("mc", "nc", "kc")}
    kernel = NativeKernel(problem, library, runtime(pool), {**blocks, "threads": 1})
    values = {**kernel._template, "workspace_bytes": kernel.workspace_bytes, "alpha": 1.0,
              "beta": problem.scalars[1], "reserved": 0}  # fmt: skip
    names = list(layouts(problem))
    fields = []
    for name, kind in GemmArgs._fields_:
        field = {"name": name, "type": _TYPES[kind], "offset": getattr(GemmArgs, name).offset}
        if kind is ctypes.c_void_p:
            fill = name in (*names, "parallel") or (name == "workspace" and kernel.workspace_bytes)
            field |= {"fill": name} if fill else {"value": 0}
        else:
            field |= {"value": values[name]}
        fields.append(field)
    operands = {
        name: {"row_major": _SWAPPED.get(name, name), "dtype": one.dtype.name, "rows": one.rows,
               "columns": one.columns, "ld": one.ld, "batch_stride": one.stride, "bytes": one.bytes,
               "alignment": max(problem.alignment, one.dtype.bytes)}
        for name, one in layouts(problem).items()
    }  # fmt: skip
    struct = {"name": "args", "type": "struct GemmArgs", "bytes": ctypes.sizeof(GemmArgs), "alignment": 8,
              "fields": fields}  # fmt: skip
    return {
        "problem": {"id": problem.id, "wire": problem_to_wire(problem), "canonical": problem.to_dict()},
        "solution": {"id": solution.id, "family": solution.family, "version": solution.version,
                     "parameters": dict(p), "build": None},
        "environment": "here",
        "verdict": {"judgement": "WIN", "seconds": seconds, "baseline_seconds": 2 * seconds,
                    "baseline": str(default), "baseline_family": default,
                    "speedup": [1.9, 2.0, 2.1], "rounds": 9, "session": "s",
                    "decided_at": "2026-11-01"},
        "deterministic": deterministic,
        "operands": operands,
        "workspace": {"bytes": kernel.workspace_bytes, "alignment": 64},
        "launched_by": "gemmtune_run",
        "launches": [{"entry": "gemmtune_run", "binary": digests[0], "runtime": digests[1],
                      "arguments": [struct]}],
    }  # fmt: skip
