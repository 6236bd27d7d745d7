"""Grouped products in the cases, the reference and the verifier, on the host and by a device's own kernels;
and the CPU's loops over groups."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.dtypes import DTYPES, to_host
from backends.errors import InvalidProblem
from backends.gpu.device_reference import GpuReference
from backends.grouping import NO_ROUTING, counts_of, ends_of, spans_of
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_linear
from backends.protocol import Device
from backends.quantisation import dequantised, group_of, groups_of
from tests.backends.gpu.null_device import emulated
from tests.backends.weight_samples import mxfp4, weights
from tuners.inputs import DISTRIBUTIONS, Case, cases, fixed_operand, host_inputs, screening_cases
from tuners.measure import OperandSets
from tuners.policy import MeasurementPolicy
from tuners.reference import error_bound, make_reference, reference_of
from tuners.verify import Verifier, compare

ROUTING = [0, 31, 0, 29, 1]
PROBLEM = from_linear(61, 40, 72, "bf16", groups=5, routing=ROUTING)


#: Operands with scales; partial blocks of k and of the weights' rows.
SCALED = {
    "blocks": from_linear(
        61, 200, 320, "fp8_e4m3", groups=5, routing=[0, 31, 0, 29, 1], scale_a="block_1x128",
        scale_b="block_128x128", lda=336, ldb=352,
    ),
    "rows": from_linear(
        61, 40, 80, "fp8_e4m3", groups=5, routing=[0, 31, 0, 29, 1], scale_a="outer", scale_b="outer"
    ),
}  # fmt: skip


def computed(p: GemmProblem, inputs: Any, shift: int = 0) -> Any:
    """The product in single precision; `shift`: by the weights of another group."""
    out = np.zeros((1, p.n, p.m), np.float32)
    for group, start, end in spans_of(p):
        weights = inputs["a"][(group + shift) % p.groups].astype(np.float32)
        out[0, start:end] = inputs["b"][0, start:end].astype(np.float32) @ weights.T
    return to_host(out, DTYPES[p.dtype_d])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:4])
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_what_kernels_compute_is_right(kind: str, distribution: str) -> None:
    problem = from_linear(61, 40, 72, kind, groups=5, routing="skewed")
    reference, inputs = make_reference(Case(problem, 3, distribution, "exact"))
    assert compare(reference, computed(problem, inputs)).wrong == ""


def of_scales(p: GemmProblem, inputs: Any, shift: int = 0) -> Any:
    """The product of operands with scales, by their definition; `shift`: with those of another group."""
    out = np.zeros((1, p.n, p.m))
    blocks = p.scale_a == "block_128x128"
    of_rows = inputs["scale_b"][0] if blocks else inputs["scale_b"][0, 0][:, None]
    x = inputs["b"][0].astype(np.float64) * (of_rows.repeat(128, axis=1)[:, : p.k] if blocks else of_rows)
    for group, start, end in spans_of(p):
        scales = inputs["scale_a"][(group + shift) % p.groups]
        whole = scales.repeat(128, axis=0).repeat(128, axis=1)[: p.m, : p.k] if blocks else scales[0][:, None]
        out[0, start:end] = x[start:end] @ (inputs["a"][group].astype(np.float64) * whole).T
    return to_host(out, DTYPES[p.dtype_d])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:4])
@pytest.mark.parametrize("name", SCALED)
def test_every_group_has_scales(name: str, distribution: str) -> None:
    reference, inputs = make_reference(Case(SCALED[name], 3, distribution, "exact"))
    assert compare(reference, of_scales(SCALED[name], inputs)).wrong == ""
    assert "elements are off" in compare(reference, of_scales(SCALED[name], inputs, shift=1)).wrong


def test_cases_of_scaled_products_keep_their_scales() -> None:
    found = cases(SCALED["blocks"], 1, 0)
    assert {(one.problem.scale_a, one.problem.scale_b) for one in found} == {("block_128x128", "block_1x128")}
    aligned = next(one.problem for one in found if one.name == "ragged, aligned")
    assert (aligned.k, aligned.lda % 16, aligned.ldb % 16, aligned.stride_a % 16) == (320, 0, 0, 0)


#: 4-bit weights. (136 rows: the ragged problems' own.)
QUANTISED = {
    "w4a16": weights(61, 40, 192, zero_b="uint4", scale_b="block_1x64", groups=5, routing=ROUTING, ldb=224,
                     lda=200, stride_b=224 * 40 + 32),
    "shift": weights(61, 40, 256, zero_b="shift", groups=5, routing=ROUTING, dtype_a="fp16"),
    "mxfp4": mxfp4(61, 40, 96, groups=5, routing=ROUTING),
}  # fmt: skip


def of_weights(p: GemmProblem, inputs: Any, shift: str = "", rounded: bool = False) -> Any:
    """The product of quantised weights; `shift`: the operand that is another group's; `rounded`: by weights
    that are rounded once to the rows' type."""
    out = np.zeros((1, p.n, p.m))
    x = inputs["b"][0].astype(np.float64)
    for group, start, end in spans_of(p):
        own = {
            name: inputs[name][(group + (name == shift)) % p.groups]
            for name in ("a", "scale_a", "zero_a")
            if name in inputs
        }
        whole = dequantised(p, own["a"], own["scale_a"].reshape(-1, groups_of(p)), own.get("zero_a"))
        if rounded:
            whole = to_host(whole, DTYPES[p.input_type]).astype(np.float64)
        out[0, start:end] = x[start:end] @ whole.T
    return to_host(out, DTYPES[p.dtype_d])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:4])
@pytest.mark.parametrize("name", QUANTISED)
def test_every_group_has_quantised_weights(name: str, distribution: str) -> None:
    problem = QUANTISED[name]
    reference, inputs = make_reference(Case(problem, 3, distribution, "exact"))
    for rounded in (False, True):
        assert compare(reference, of_weights(problem, inputs, rounded=rounded)).wrong == ""
    for operand in ("a", "scale_a", *(("zero_a",) if "zero_a" in inputs else ())):
        assert "elements are off" in compare(reference, of_weights(problem, inputs, operand)).wrong, operand


@pytest.mark.parametrize("name", QUANTISED)
def test_extreme_scales(name: str) -> None:
    """Tolerances follow them, in one group of rows as in another."""
    problem = QUANTISED[name]
    case = Case(problem, 3, "normal", "exact")
    _, inputs = make_reference(case)
    scales = inputs["scale_a"].astype(np.float64)
    scales[1] *= 2.0**-12
    scales[4] *= 2.0**12 if problem.dtype_d == "bf16" else 4.0
    inputs["scale_a"] = scales.astype(inputs["scale_a"].dtype)
    if problem.zero_a == "shift":
        inputs["zero_a"][1] *= 0
    reference = reference_of(case, inputs)
    found = of_weights(problem, inputs)
    assert compare(reference, found).wrong == ""
    for row in (5, 60):  # of the group with small scales, and with large ones
        wrong = found.copy()
        wrong[0, row, 7] = found[0, row, 7] * 1.5 + 2.0**-14
        assert "1 of" in compare(reference, wrong).wrong


@pytest.mark.parametrize("name", QUANTISED)
def test_cases_of_quantised_weights_are_whole_groups_of_k(name: str) -> None:
    problem = replace(QUANTISED[name], m=400, k=2880 // 128 * 128, lda=2880 // 128 * 128, ldb=2880, ldd=400,
                      ldc=400, stride_a=2880 // 128 * 128 * 400)  # fmt: skip
    found = {case.name: case.problem for case in cases(problem, 1, 0)}
    assert list(found) == ["ragged", "ragged, aligned", "one group", "one group, aligned", "exact"]
    ragged, aligned = found["ragged"], found["ragged, aligned"]
    assert (ragged.m, ragged.k % group_of(problem), ragged.lda % 2, ragged.lda % 32 > 0) == (136, 0, 0, True)
    assert (aligned.k, aligned.lda % 32, aligned.ldb % 8, aligned.stride_a % 32) == (problem.k, 0, 0, 0)
    assert {one.scale_a for one in found.values()} == {problem.scale_a}


def test_a_mistake_shows() -> None:
    reference, inputs = make_reference(Case(PROBLEM, 3, "normal", "exact"))
    assert "elements are off" in compare(reference, computed(PROBLEM, inputs, shift=1)).wrong
    one_row = computed(PROBLEM, inputs)
    one_row[0, 60] = computed(PROBLEM, inputs, shift=1)[0, 60]
    assert "of 2440 elements are off" in compare(reference, one_row).wrong


def test_cases_have_groups_without_rows_and_one_with_all() -> None:
    problem = from_linear(4096, 1536, 2048, "bf16", groups=128)
    found = cases(problem, 2, 0)
    assert {case.name for case in found} == {
        "ragged", "ragged, aligned", "one group", "one group, aligned", "exact",
    }  # fmt: skip
    assert screening_cases(problem, 0, every=False) == cases(problem, 1, 0)
    for case in found:
        counts = counts_of(case.problem)
        assert len(counts) == 128, "a kernel may be compiled for so many groups"
        if case.name != "exact":
            assert case.problem.n * 2 * case.problem.m * case.problem.k < 1e8
            assert int((counts == 0).sum()) > 64
        if case.name.startswith("one group"):
            assert sorted(counts.tolist())[-2:] == [0, case.problem.n]
    aligned = next(case.problem for case in found if case.name == "ragged, aligned")
    assert (aligned.k, aligned.lda % 8, aligned.ldb % 8, aligned.stride_a % 8) == (2048, 0, 0, 0)


def test_offsets_are_what_the_problem_says() -> None:
    assert host_inputs(PROBLEM, 3, "normal")["offsets"].tolist() == [[[0, 31, 31, 60, 61]]]
    assert fixed_operand("a", PROBLEM) is None


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return CpuBackend().open(0, BinaryCache(tmp_path_factory.mktemp("cpu")))


@pytest.mark.parametrize("name", ["torch-grouped", "numpy-grouped"])
def test_loops_of_the_cpu_are_right(name: str, cpu: Device) -> None:
    if name == "torch-grouped":
        pytest.importorskip("torch")
    family = CpuBackend().families()[name]
    for problem in (PROBLEM, from_linear(9, 24, 40, "fp16", groups=3, routing="skewed", ldb=48, lda=56)):
        solution = next(iter(family.solutions(problem, cpu.environment)))
        for case in cases(problem, 1, 0):
            kernel = cpu.load(case.problem, solution, None)
            assert Verifier(cpu).check(kernel, case).wrong == "", case.name


@pytest.mark.parametrize("name", QUANTISED)
def test_the_loop_of_quantised_weights_is_right(name: str, cpu: Device) -> None:
    family, problem = CpuBackend().families()["numpy-grouped"], QUANTISED[name]
    solution = next(iter(family.solutions(problem, cpu.environment)))
    for case in cases(problem, 1, 0):
        kernel = cpu.load(case.problem, solution, None)
        assert Verifier(cpu).check(kernel, case).wrong == "", case.name


FP32_OUTPUT = from_linear(61, 24, 64, "bf16", groups=5, dtype_d="fp32")


@pytest.mark.parametrize(
    "problem",
    [
        FP32_OUTPUT,
        replace(FP32_OUTPUT, activation="swiglu", ldd=12),
        replace(next(iter(QUANTISED.values())), dtype_c="fp32", dtype_d="fp32"),
    ],
    ids=["plain", "swiglu", "quantised"],
)
def test_numpys_loop_has_outputs_of_fp32(problem: GemmProblem, cpu: Device) -> None:
    """torch's calls have none, so it is the default of such a product."""
    found = CpuBackend().baselines(problem, cpu.environment)
    assert [one.solution.family for one in found] == ["numpy-grouped"]
    for case in cases(problem, 1, 0):
        kernel = cpu.load(case.problem, found[0].solution, None)
        assert Verifier(cpu).check(kernel, case).wrong == "", case.name


@pytest.mark.parametrize("name", ["torch-grouped", "numpy-grouped"])
def test_counts_may_change_between_launches(name: str, cpu: Device) -> None:
    """Of one kernel that is bound once."""
    if name == "torch-grouped":
        pytest.importorskip("torch")
    family = CpuBackend().families()[name]
    kernel = cpu.load(PROBLEM, next(iter(family.solutions(PROBLEM, cpu.environment))), None)
    inputs, buffers = host_inputs(PROBLEM, 3, "normal"), {}
    for operand, layout in layouts(PROBLEM).items():
        buffers[operand] = cpu.allocate(layout.bytes)
        if operand in inputs:
            stored = np.zeros(layout.elements, layout.dtype.storage)
            layout.view(stored)[...] = inputs[operand]
            buffers[operand].upload(stored.view(np.uint8))
    workspace = cpu.allocate(max(1, kernel.workspace_bytes))
    at = {operand: buffer.address for operand, buffer in buffers.items()}
    launch = kernel.bind(Operands.at(at, PROBLEM.scalars), workspace.address)
    kernel.prepare()
    for counts in ([0, 31, 0, 29, 1], [61, 0, 0, 0, 0], [10, 10, 10, 10, 21]):
        other = from_linear(61, 40, 72, "bf16", groups=5, routing=counts)
        buffers["offsets"].upload(ends_of(other).view(np.uint8))
        launch()
        layout = layouts(other)["d"]
        out = layout.view(buffers["d"].download(0, layout.bytes).view(layout.dtype.storage))
        reference, _ = make_reference(Case(other, 3, "normal", "exact"))
        assert compare(reference, out).wrong == ""
    for wrong, said in (([10, 5, 20, 30, 61], "[1] is 5"), ([-1, 5, 20, 30, 61], "[0] is -1"),
                        ([10, 10, 20, 30, 62], "[4] is 62")):  # fmt: skip
        buffers["offsets"].upload(np.array(wrong, np.int32).view(np.uint8))
        with pytest.raises(InvalidProblem, match=re.escape(f"offsets{said}; the end of a group is at least")):
            launch()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("kind", ["bf16", *SCALED, *QUANTISED])
def test_a_devices_own_reference_is_the_hosts(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    device = emulated(BinaryCache(tmp_path_factory.mktemp("reference")), units=1)
    plain = from_linear(61, 40, 72, "bf16", groups=5, routing=[0, 31, 0, 29, 1], lda=80, ldb=88)
    problem = {**SCALED, **QUANTISED}.get(kind, plain)
    case = Case(problem, 3, "normal", "exact")
    expected, inputs = make_reference(case)
    at = {}
    for name, layout in layouts(problem).items():
        buffer = device.allocate(layout.bytes)
        at[name] = buffer.address
        if name in inputs:
            stored = np.zeros(layout.elements, layout.dtype.storage)
            layout.view(stored)[...] = inputs[name]
            buffer.upload(stored.view(np.uint8))
    count = problem.m * problem.n
    found, allowed = device.allocate(8 * count), device.allocate(4 * count)
    bound = error_bound(problem, case.distribution)
    GpuReference(device).compute(
        problem, Operands.at(at, problem.scalars), bound, found.address, allowed.address
    )
    values = found.download(0, 8 * count).view(np.float64).reshape(expected.expected.shape)
    tolerances = allowed.download(0, 4 * count).view(np.float32).reshape(values.shape)
    assert np.allclose(values, expected.expected, rtol=1e-12, atol=1e-12)
    assert np.allclose(tolerances, expected.tolerance, rtol=1e-5)
    assert problem.routing != NO_ROUTING


def test_a_rotation_spans_what_launches_read(cpu: Device) -> None:
    """Not all weights: the same groups have rows each time."""
    problem = from_linear(2, 64, 64, "bf16", groups=1000, routing=[2, *[0] * 999])
    policy = MeasurementPolicy.of("cpu")
    sets = OperandSets(cpu, problem, policy, 0)
    try:
        assert sets.rotation.bytes == sets.rotation.sets * (problem.bytes_read + problem.bytes_written)
    finally:
        sets.free()
