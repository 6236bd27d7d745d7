"""Grouped products with swiglu in the cases, the reference and the verifier, on the host and by a device's
own kernels; planted mistakes; the CPU's loops."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.dtypes import DTYPES, to_host
from backends.gpu.device_reference import GpuReference
from backends.grouping import spans_of
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_linear
from backends.protocol import Device
from tests.backends.gpu.null_device import emulated
from tuners import reference as references
from tuners.inputs import DISTRIBUTIONS, Case, cases, scaled_down
from tuners.reference import error_bound, make_reference
from tuners.verify import Verifier, compare
from tuners.verify_device import DeviceVerifier

Array = Any
PROBLEM = from_linear(61, 40, 72, "bf16", groups=5, routing=[0, 31, 0, 29, 1], activation="swiglu")


def silu(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def computed(
    p: GemmProblem, inputs: Any, of: Callable[[Array, Array], Array] = lambda gate, up: silu(gate) * up,
    rounded: bool = False,
) -> Array:  # fmt: skip
    """D of the gates' and ups' sums in single precision; `rounded`: both rounded to D's type before."""
    out, half = np.zeros((1, p.n, p.rows_d), np.float32), p.rows_d
    for group, start, end in spans_of(p):
        y = inputs["b"][0, start:end].astype(np.float32) @ inputs["a"][group].astype(np.float32).T
        if rounded:
            y = to_host(y, DTYPES[p.dtype_d]).astype(np.float32)
        out[0, start:end] = of(y[:, :half], y[:, half:])
    return to_host(out, DTYPES[p.dtype_d])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:4])
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_what_kernels_compute_is_right(kind: str, distribution: str) -> None:
    """Also what a framework computes, which rounds sums and silu(gate) to the output's type."""
    problem = from_linear(61, 40, 72, kind, groups=5, routing="skewed", activation="swiglu")
    reference, inputs = make_reference(Case(problem, 3, distribution, "exact"))
    assert compare(reference, computed(problem, inputs)).wrong == ""
    assert compare(reference, computed(problem, inputs, rounded=True)).wrong == ""
    rounding = DTYPES[kind]
    steps = computed(
        problem, inputs, lambda gate, up: to_host(silu(gate), rounding).astype(np.float32) * up, rounded=True
    )
    assert compare(reference, steps).wrong == ""


MISTAKES: dict[str, Callable[[Array, Array], Array]] = {
    "gate and up exchanged": lambda gate, up: silu(up) * gate,
    "both activated": lambda gate, up: silu(gate) * silu(up),
    "no activation": lambda gate, up: gate * up,
    "the gate alone": lambda gate, up: silu(gate),
    "up alone": lambda gate, up: up,
    "another activation": lambda gate, up: np.maximum(gate, 0) * up,
    "gelu's constant": lambda gate, up: silu(1.702 * gate) / 1.702 * up,
    "one column of the next": lambda gate, up: silu(gate) * np.roll(up, 1, axis=1),
}


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, kind: str) -> None:
    problem = from_linear(61, 40, 72, kind, groups=5, routing="skewed", activation="swiglu")
    reference, inputs = make_reference(Case(problem, 3, "normal", "exact"))
    assert "elements are off" in compare(reference, computed(problem, inputs, MISTAKES[name])).wrong


def test_one_wrong_element_shows() -> None:
    reference, inputs = make_reference(Case(PROBLEM, 3, "normal", "exact"))
    wrong = computed(PROBLEM, inputs)
    wrong[0, 60, 19] *= 1.25
    assert compare(reference, wrong).wrong.startswith("1 of 1220 elements are off; first D[19,60]")


def test_large_problems_are_compared_by_columns_of_d(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "FULL_FLOPS", 1e5)
    problem = from_linear(61, 512, 72, "bf16", groups=5, routing="skewed", activation="swiglu")
    reference, inputs = make_reference(Case(problem, 3, "normal", "exact"))
    columns = reference.columns
    assert columns is not None
    assert 64 < len(columns) < 256
    assert int(columns[-1]) == 255
    assert compare(reference, computed(problem, inputs)).wrong == ""
    assert "off" in compare(reference, computed(problem, inputs, MISTAKES["gate and up exchanged"])).wrong


def test_cases_keep_the_activation_and_even_rows() -> None:
    problem = from_linear(4096, 1536, 2048, "bf16", groups=128, activation="swiglu")
    for case in cases(problem, 2, 0):
        p = case.problem
        assert (p.activation, p.m % 2) == ("swiglu", 0)
        if case.name.endswith("aligned"):
            assert (p.lda % 8, p.ldb % 8, p.ldd % 8, p.stride_a % p.lda) == (0, 0, 0, 0)
    ragged = next(one.problem for one in cases(problem, 1, 0) if one.name == "ragged")
    assert (ragged.rows_d % 2, ragged.ldd > ragged.rows_d, ragged.stride_a % ragged.lda > 0) == (
        1,
        True,
        True,
    )


def test_values_whose_products_leave_the_type_are_drawn_smaller() -> None:
    small = from_linear(64, 96, 1024, "fp16", groups=8, activation="swiglu")
    assert scaled_down("normal", small) == "normal"
    assert scaled_down("uniform", small) in ("integers", "normal", "small")
    large = from_linear(64, 96, 2**16, "fp16", groups=8, activation="swiglu")
    assert scaled_down("normal", large) == "small"
    assert scaled_down("large", PROBLEM) == "normal"


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return CpuBackend().open(0, BinaryCache(tmp_path_factory.mktemp("cpu")))


@pytest.mark.parametrize("name", ["torch-grouped", "numpy-grouped"])
def test_loops_of_the_cpu_are_right(name: str, cpu: Device) -> None:
    if name == "torch-grouped":
        pytest.importorskip("torch")
    family = CpuBackend().families()[name]
    other = from_linear(
        9, 24, 40, "fp16", groups=3, routing="skewed", ldb=48, lda=56, ldd=17, activation="swiglu"
    )
    for problem in (PROBLEM, other):
        solution = next(iter(family.solutions(problem, cpu.environment)))
        for case in cases(problem, 1, 0):
            kernel = cpu.load(case.problem, solution, None)
            assert Verifier(cpu).check(kernel, case).wrong == "", case.name


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_a_devices_own_reference_is_the_hosts(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    device = emulated(BinaryCache(tmp_path_factory.mktemp("reference")), units=1)
    problem = from_linear(
        61, 40, 72, kind, groups=5, routing=[0, 31, 0, 29, 1], lda=80, ldb=88, activation="swiglu"
    )
    case = Case(problem, 3, "normal", "exact")
    expected, inputs = make_reference(case)
    at = {}
    for name, layout in layouts(problem).items():
        buffer = device.allocate(layout.bytes)
        at[name] = buffer.address
        stored = np.zeros(layout.elements, layout.dtype.storage)
        layout.view(stored)[...] = inputs[name] if name in inputs else computed(problem, inputs)
        buffer.upload(stored.view(np.uint8))
    count = problem.rows_d * problem.n
    found, allowed = device.allocate(8 * count), device.allocate(4 * count)
    bound = error_bound(problem, case.distribution)
    own = GpuReference(device)
    own.compute(problem, Operands.at(at, problem.scalars), bound, found.address, allowed.address)
    values = found.download(0, 8 * count).view(np.float64).reshape(expected.expected.shape)
    tolerances = allowed.download(0, 4 * count).view(np.float32).reshape(values.shape)
    assert np.allclose(values, expected.expected, rtol=1e-12, atol=1e-12)
    assert np.allclose(tolerances, expected.tolerance, rtol=1e-5)
    compared = own.compare(problem, at["d"], found.address, allowed.address)
    assert (compared.elements, compared.bad) == (count, 0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_a_device_verifier_lays_it_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    device = emulated(BinaryCache(tmp_path_factory.mktemp("verifier")), units=1)
    verifier = DeviceVerifier(device)
    verifier.lay_out(Case(PROBLEM, 3, "normal", "exact"))
    verifier.forget()
