"""A program: runs candidates through Triton's interpreter and verifies them as a tuner would, without a GPU.

Each line of standard input is {"problem": canonical, "solution": ..., "seeds": ..., "arch": sm_90 or gfx942,
"mistake": null or ["function", "text", "wrong text"], "ends": null or those of groups, "scale": null or
[row of the weights, group of k, number]}; one line comes back for each: {"wrong": words or "", "cases":
names}. With ends a grouped product is computed once with these in place of its own, which may lead out of its
rows. With a scale a product of quantised weights is computed once with this one in place of its own, and
"cases" are the rows of weights that have NaN, with how many.
Needs TRITON_INTERPRET=1 and torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton import language
from triton.runtime import interpreter

from backends.archs import GPU_ARCHS
from backends.cpu.device import HostBuffer
from backends.dtypes import DTYPES, to_host
from backends.environment import Environment
from backends.errors import DeviceError
from backends.kernels.triton import configuration
from backends.kernels.triton.configuration import MAIN, REDUCE, TritonConfig
from backends.kernels.triton.families import FAMILIES
from backends.kernels.triton.oriented_gemm import OPERANDS
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Solution
from backends.traits import HOST_TRAITS
from tuners.inputs import applicable, cases, host_inputs
from tuners.verify import Verifier

#: Few multiprocessors: persistent programs then have many tiles each.
ENVIRONMENT = Environment(
    "cuda", "sm_90", "NVIDIA H200", 3, 2**37, "GPU-0", driver="580.1", libraries={"triton": "3.6.0"}
)
ENVIRONMENTS = {
    "sm_90": ENVIRONMENT,
    "gfx942": replace(ENVIRONMENT, vendor="hip", arch="gfx942", product="AMD Instinct MI300X"),
}
#: A kernel's architecture -> that which it is interpreted for. What waits for the launch before (DEPENDENT)
#: from sm_90 on is assembly, which nobody interprets.
_INTERPRETED_FOR = {"sm_90": "sm_80", "gfx942": "gfx942"}
#: The first has names that it takes from the second.
_SOURCES = ("weight_kernels.py", "kernels.py", "framework_kernels.py")


def load_kernels(folder: str, mistake: list[str] | None) -> SimpleNamespace:
    """The functions of the sources, one of them perhaps a copy with a mistake planted."""
    found: dict[str, Any] = {}
    for name in _SOURCES:
        source = Path(configuration.__file__).with_name(name).read_text()
        if mistake is not None and f"def {mistake[0]}(" in source:
            function, text, wrong = mistake
            start = source.index(f"def {function}(")
            assert text in source[start:]
            source = source[:start] + source[start:].replace(text, wrong, 1)
        found |= vars(_load(folder, source))
    return SimpleNamespace(**found)


def _load(folder: str, source: str) -> ModuleType:
    """A module of the source, in a file with a name of its own: Triton reads a function's source."""
    copy = Path(folder, f"kernels_under_test_{len(list(Path(folder).glob('*.py')))}.py")
    copy.write_text(source)
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{copy} does not load")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TORCH = {
    "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2, "fp8e4b8": torch.float8_e4m3fnuz, "fp8e5b16": torch.float8_e5m2fnuz,
    "i8": torch.int8, "i32": torch.int32, "u8": torch.uint8,
}  # fmt: skip
#: Triton's name of a float -> ours.
FORMATS = {
    "fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8e4nv": "fp8_e4m3", "fp8e5": "fp8_e5m2",
    "fp8e4b8": "fp8_e4m3_fnuz", "fp8e5b16": "fp8_e5m2_fnuz",
}  # fmt: skip


def mend_interpreter() -> None:
    """What the interpreter of Triton 3.6 gets wrong: it multiplies bf16 by its bits, cuts bits off where it
    should round to nearest, makes an integer of an array of one element, which NumPy 2.4 refuses, and forgets
    AMD's 8-bit floats where it names types."""
    builder, multiply = interpreter.InterpreterBuilder, interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, total: Any, *rest: Any) -> Any:
        a, b = (
            interpreter.TensorHandle((one.data.astype(np.uint32) << 16).view(np.float32), language.float32)
            if one.dtype.scalar == language.bfloat16
            else one
            for one in (a, b)
        )
        return multiply(self, a, b, total, *rest)

    builder.create_dot = create_dot

    def convert(values: Any, source: Any, target: Any, _: Any) -> Any:
        wide = values.view(DTYPES[FORMATS[source.name]].storage).astype(np.float32)
        return to_host(wide, DTYPES[FORMATS[target.name]]).view(f"u{DTYPES[FORMATS[target.name]].bytes}")

    interpreter._convert_float = convert
    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda one: one.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor
    patch_types = interpreter._patch_lang_core

    def patch_core(lang: Any, scope: Any) -> None:
        patch_types(lang, scope)
        to_ir = lang.dtype.to_ir

        def named(kind: Any, builder: Any) -> Any:
            known = {"fp8e4b8": builder.get_fp8e4b8_ty, "fp8e5b16": builder.get_fp8e5b16_ty}
            return known[kind.name]() if kind.name in known else to_ir(kind, builder)

        scope.set_attr(lang.dtype, "to_ir", named)

    interpreter._patch_lang_core = patch_core


class Interpreted:
    """A candidate as the verifier sees one, its programs run one after another on the host."""

    partial_sums = 1

    def __init__(self, one: TritonConfig, kernels: SimpleNamespace, arch: str) -> None:
        self._one, self._kernels, self.workspace_bytes = one, kernels, one.partial_bytes
        self._requests = one.requests(GPU_ARCHS[_INTERPRETED_FOR[arch]])
        assert not any(request.constants.get("DEPENDENT") for request in self._requests.values())

    def prepare(self) -> None:
        pass

    def bind(self, operands: Operands, workspace: int) -> Launch:
        one, found = self._one, layouts(self._one.product.problem)
        product = one.product
        pointers = {}
        for own in OPERANDS:
            name, kind = product.own(own), TORCH[product.pointer_type(own)[1:]]
            if name in found:
                pointers[name] = _tensor(getattr(operands, name), found[name].bytes, kind)
            else:  # of memory of its own: the interpreter takes equal addresses for one tensor
                pointers[name] = torch.zeros(1, dtype=kind)
        kind = TORCH[product.pointer_type("partial")[1:]]
        size = one.partial_bytes
        partial = _tensor(workspace, size, kind) if size else torch.zeros(1, dtype=kind)
        requests, kernels = self._requests, self._kernels

        def launch() -> None:
            for entry in (MAIN, REDUCE) if one.slices > 1 else (MAIN,):
                request = requests[entry]
                grid = one.grid(ENVIRONMENT.units) if entry == MAIN else one.reduce_grid
                values = one.arguments(entry, pointers, partial, (operands.alpha, operands.beta))
                assert [name for name, _ in request.signature] + list(request.constants) == list(
                    getattr(kernels, request.kernel).arg_names
                )
                getattr(kernels, request.kernel)[grid](*values, *request.constants.values())

        return launch


def _tensor(address: int, size: int, kind: Any) -> Any:
    """The memory at an address as a tensor."""
    return torch.from_numpy(_bytes(address, size - size % kind.itemsize)).view(kind)


def _bytes(address: int, size: int) -> Any:
    """The memory at an address as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class HostMemory:
    """The part of a device that the verifier uses."""

    reference, traits = None, HOST_TRAITS

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def allocate(self, size: int) -> HostBuffer:
        return HostBuffer(size)

    def synchronize(self) -> None:
        pass


def verify(
    problem: GemmProblem, solution: Solution, seeds: int, kernels: SimpleNamespace, here: Environment
) -> dict[str, Any]:
    """The first mistake of a candidate over the cases that a tuner would run."""
    family = FAMILIES[solution.family]
    verifier = Verifier(HostMemory(here))  # type: ignore[arg-type]
    names: list[str] = []
    for case in applicable(
        cases(problem, seeds, 3), lambda case: family.illegal(case.problem, solution, here) is None
    ):
        kernel = Interpreted(family.config(case.problem, solution.parameters), kernels, here.arch)
        try:
            finding = verifier.check(kernel, case, keep=False)
        except DeviceError as error:
            return {"wrong": str(error), "cases": names}
        names.append(case.name)
        if finding.wrong:
            return {"wrong": f"{case.name}, {case.distribution}: {finding.wrong}", "cases": names}
    return {"wrong": "", "cases": names}


def run_with_ends(
    problem: GemmProblem, solution: Solution, ends: list[int], kernels: SimpleNamespace, here: Environment
) -> dict[str, Any]:
    """Whether a grouped product, whose scales are 1, is right for the ends, clamped to its rows, and writes
    no row beyond the last."""
    config = FAMILIES[solution.family].config(problem, solution.parameters)
    m, n, k, groups, rng = problem.m, problem.n, problem.k, problem.groups, np.random.default_rng(1)
    kinds = {name: TORCH[config.product.pointer_type(name)[1:]] for name in ("a", "d")}
    rows, weights = (
        torch.from_numpy(rng.integers(-3, 4, shape).astype(np.float32)) for shape in ((n, k), (groups, m, k))
    )
    held = {"a": weights.to(kinds["a"]), "b": rows.to(kinds["a"])}
    held |= {
        "offsets": torch.tensor(ends, dtype=torch.int32),
        "d": torch.full((n, m), -7.0, dtype=kinds["d"]),
    }
    of_scales = {name: layout for name, layout in layouts(problem).items() if name.startswith("scale")}
    held |= {name: torch.ones(layout.bytes // 4) for name, layout in of_scales.items()}
    expected, start = torch.full((n, m), -7.0), 0
    for group, end in enumerate(min(max(end, 0), n) for end in ends):
        if end > start:
            expected[start:end] = rows[start:end] @ weights[group].T
        start = end
    operands = Operands.at({name: one.data_ptr() for name, one in held.items()}, (1.0, 0.0))
    Interpreted(config, kernels, here.arch).bind(operands, 0)()
    wrong = torch.nonzero((held["d"].float() != expected).any(dim=1)).flatten().tolist()
    return {"wrong": f"rows {wrong} are off" if wrong else "", "cases": ["ends"]}


def run_with_scale(
    problem: GemmProblem, solution: Solution, scale: list[float], kernels: SimpleNamespace, here: Environment
) -> dict[str, Any]:
    """What is NaN in D where one scale of the weights is another number."""
    row, group, number = scale
    given, shapes = host_inputs(problem, 3, "normal"), layouts(problem)
    given["scale_a"].reshape(problem.m, -1)[int(row), int(group)] = number
    buffers = {name: HostBuffer(layout.bytes) for name, layout in shapes.items()}
    views = {
        name: layout.view(_bytes(buffers[name].address, layout.bytes).view(layout.dtype.storage))
        for name, layout in shapes.items()
    }
    for name, array in given.items():
        views[name][...] = array
    config = FAMILIES[solution.family].config(problem, solution.parameters)
    operands = Operands.at({name: one.address for name, one in buffers.items()}, problem.scalars)
    Interpreted(config, kernels, here.arch).bind(operands, 0)()
    counts = np.isnan(views["d"][0].astype(np.float32)).sum(axis=0)
    return {"wrong": "", "cases": [[int(at), int(counts[at])] for at in np.flatnonzero(counts)]}


def main() -> None:
    """Answers each line."""
    mend_interpreter()
    with tempfile.TemporaryDirectory() as folder:
        right = load_kernels(folder, None)
        for line in sys.stdin:
            asked = json.loads(line)
            mistake = asked["mistake"]
            kernels = right if mistake is None else load_kernels(folder, mistake)
            problem, solution = GemmProblem.from_dict(asked["problem"]), Solution.from_dict(asked["solution"])
            here, seeds = ENVIRONMENTS[asked["arch"]], asked["seeds"]
            rule = FAMILIES[solution.family].illegal(problem, solution, here)
            if rule:
                found = {"wrong": rule, "cases": []}
            elif asked["ends"] is not None:
                found = run_with_ends(problem, solution, asked["ends"], kernels, here)
            elif asked["scale"] is not None:
                found = run_with_scale(problem, solution, asked["scale"], kernels, here)
            else:
                found = verify(problem, solution, seeds, kernels, here)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
