"""Bundles of real CPU kernels: compiled by the service's families, described by the tests' own writer."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.families import PackedFamily, StreamFamily
from backends.cpu.native import ABI, GemmArgs, compile_runtime
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.solution import Solution
from tests.client import bundles

_FAMILIES = {"packed": PackedFamily(), "stream": StreamFamily()}
_TYPES = {
    ctypes.c_int64: "long long", ctypes.c_void_p: "void *", ctypes.c_double: "double", ctypes.c_int32: "int",
}  # fmt: skip


def solution(family: str, problem: GemmProblem, number: int = 0) -> Solution:
    """One of a family's candidates."""
    environment = CpuBackend().probe().devices[0]
    found = list(_FAMILIES[family].solutions(problem, environment))
    return found[number % len(found)]


def write(
    path: Path, cache: BinaryCache, rows: list[tuple[GemmProblem, Solution]], partition: str | None = None
) -> Path:
    """A bundle of these kernels for this machine's CPU; `partition`: what it says of the ISA level."""
    environment = CpuBackend().probe().devices[0]
    runtime = compile_runtime(environment.partition, cache).read_bytes()
    binaries, found = {runtime: ".so"}, []
    for problem, one in rows:
        family = _FAMILIES[one.family]
        library = family.compile(problem, one, environment, cache)
        assert library is not None
        binaries[library.read_bytes()] = ".so"
        found.append(_row(problem, one, library, runtime))
    document = bundles.manifest(str(environment.device_class), found, binaries)
    if partition is not None:
        document["environments"]["here"]["partition"] = partition
    return bundles.write(path, document, binaries)


def _row(problem: GemmProblem, one: Solution, library: Path, runtime: bytes) -> bundles.Document:
    constants = {name: getattr(problem, name) for name, _ in GemmArgs._fields_ if hasattr(problem, name)}
    constants |= {name: one.parameters[name] for name in ("mc", "nc", "kc", "threads")}
    constants |= {name: int(getattr(problem, name) != "N") for name in ("trans_a", "trans_b")}
    constants["bias_axis"] = {None: 0, "m": 1, "n": 2}[problem.bias_axis]
    constants["activation"] = ["none", "relu", "gelu", "silu"].index(problem.activation)
    constants["alpha"], constants["beta"] = problem.scalars
    numbers = {name: value for name, value in constants.items() if isinstance(value, int | float)}
    args = GemmArgs(**{name: value for name, value in numbers.items() if name not in layouts(problem)})
    ask = ctypes.CDLL(str(library))
    assert ask.gemmtune_abi() == ABI
    ask.gemmtune_workspace.restype = ctypes.c_int64
    size = ask.gemmtune_workspace(ctypes.byref(args))
    numbers["workspace_bytes"] = size
    fills = {name: {"fill": name} for name in (*layouts(problem), "parallel")}
    fills |= {name: {"fill": name} for name in ("alpha", "beta") if getattr(problem, name) == "any"}
    fills |= {"workspace": {"fill": "workspace"}} if size else {}
    fields: list[Any] = [
        bundles.field(
            name,
            _TYPES[kind],
            getattr(GemmArgs, name).offset,
            **fills.get(name, {"value": numbers.get(name, 0)}),
        )
        for name, kind in GemmArgs._fields_
    ]
    struct = {
        "name": "args", "type": "struct GemmArgs", "bytes": ctypes.sizeof(GemmArgs), "alignment": 8,
        "fields": fields,
    }  # fmt: skip
    launch = {
        "binary": bundles.digest(library.read_bytes()),
        "runtime": bundles.digest(runtime),
        "entry": "gemmtune_run",
        "arguments": [struct],
    }
    return {**bundles.row(problem, "cpu", [launch], size), "solution": _identity(one)}


def _identity(one: Solution) -> bundles.Document:
    names = ("id", "family", "version", "parameters", "build")
    return {name: value for name, value in one.to_dict().items() if name in names}
