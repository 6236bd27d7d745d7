"""The argument of kernels for grouped products, as a package describes it and the client reads it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.kernel_checks.candidates import environment_of
from backends.kernels.families import FAMILIES
from backends.kernels.grouped import GroupedArgs
from backends.kernels.legality import arch_of
from backends.kernels.oriented_gemm import GemmArgs
from backends.kernels.triton.families import FAMILIES as TRITON_FAMILIES
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.packages.launches import Encode, Fill, kernel_argument
from backends.packages.package import follows_units, operands_of
from backends.problem import from_linear
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.triton import missing as triton_missing
from backends.wire import problem_to_wire
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.emulator.test_families import MI300X
from tests.backends.kernels.samples import SM_90
from tests.backends.weight_samples import weights

PROBLEM = from_linear(64, 96, 128, "bf16", groups=8, routing="skewed")


@pytest.mark.parametrize("name", ["grouped-ring", "grouped-tile", "grouped-wgmma"])
def test_the_ends_are_an_operand_of_the_caller(name: str) -> None:
    family = FAMILIES[name]
    solution = next(iter(family.solutions(PROBLEM, H200)))
    config = family.config(PROBLEM, solution.parameters, SM_90).on(132)
    struct = kernel_argument(config)
    fields = {one.name: one for one in struct.fields}
    assert fields["ends"].value == Fill("offsets")
    assert fields["ends"].offset == ctypes.sizeof(GemmArgs)
    assert (fields["groups"].value, fields["blocks"].value) == (8, config.blocks)
    assert struct.bytes == config.argument_bytes
    maps = [one.value for one in struct.fields if isinstance(one.value, Encode)]
    if name == "grouped-wgmma":
        assert [(one.fill.name, one.map.sizes) for one in maps] == [("a", (128, 96, 8)), ("b", (128, 64, 1))]
        assert maps[0].map.strides == (256, 96 * 128 * 2)
    else:
        assert (maps, struct.bytes) == ([], ctypes.sizeof(GroupedArgs))
    assert follows_units(solution)
    assert operands_of(PROBLEM)["offsets"] == {
        "row_major": "offsets", "dtype": "int32", "rows": 8, "columns": 1, "ld": 8, "batch_stride": 0,
        "bytes": 32, "alignment": 16,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["grouped-ring", "grouped-tile", "grouped-wgmma"])
def test_swiglu_halves_the_output_that_a_package_describes(name: str) -> None:
    """The argument is the same; the copy engine's tensor has the two halves of the weights."""
    gated = from_linear(64, 96, 128, "bf16", groups=8, routing="skewed", activation="swiglu")
    solution = next(iter(FAMILIES[name].solutions(gated, H200)))
    config = FAMILIES[name].config(gated, solution.parameters, SM_90).on(132)
    struct = kernel_argument(config)
    fields = {one.name: one for one in struct.fields}
    assert (fields["m"].value, fields["d_column"].value) == (96, 48)
    d = operands_of(gated)["d"]
    assert (d["rows"], d["columns"], d["ld"], d["bytes"]) == (48, 64, 48, 64 * 48 * 2)
    maps = [one.value.map for one in struct.fields if isinstance(one.value, Encode)]
    if name == "grouped-wgmma":
        assert (maps[0].sizes, maps[0].strides) == ((128, 2, 7 * 96 + 48), (48 * 256, 256))


SCALED = from_linear(
    64, 96, 160, "fp8_e4m3", groups=8, routing="skewed", scale_a="block_1x128", scale_b="block_128x128"
)


@pytest.mark.parametrize("name", ["grouped-ring", "grouped-wgmma"])
def test_scales_are_operands_of_the_caller(name: str) -> None:
    family = FAMILIES[name]
    solution = next(iter(family.solutions(SCALED, H200)))
    config = family.config(SCALED, solution.parameters, SM_90).on(132)
    struct = kernel_argument(config)
    fields = {one.name: one for one in struct.fields}
    assert [fields[field].value for field in ("ends", "scale_a", "scale_b")] == [
        Fill("offsets"), Fill("scale_a"), Fill("scale_b"),
    ]  # fmt: skip
    assert (fields["scale_a_bytes"].value, fields["scale_b_bytes"].value) == (4 * 8 * 1 * 2, 4 * 64 * 2)
    assert struct.bytes == config.argument_bytes
    maps = [one.value.map for one in struct.fields if isinstance(one.value, Encode)]
    if name == "grouped-wgmma":
        assert [(one.sizes, one.box[0]) for one in maps] == [((160, 96, 8), 128), ((160, 64, 1), 128)]
    found = operands_of(SCALED)
    assert (found["scale_a"]["rows"], found["scale_a"]["batch_stride"]) == (2, 2)


QUANTISED = weights(64, 96, 512, zero_b="uint4", groups=8, routing="skewed")


@pytest.mark.parametrize("name", ["grouped-ring", "grouped-dequant-wgmma", "grouped-dequant-mfma"])
def test_zero_points_are_operands_of_the_caller(name: str) -> None:
    family, environment = FAMILIES[name], H200 if "cuda" in FAMILIES[name].vendors else MI300X
    solution = next(iter(family.solutions(QUANTISED, environment)))
    config = family.config(QUANTISED, solution.parameters, arch_of(environment)).on(132)
    struct = kernel_argument(config)
    fields = {one.name: one.value for one in struct.fields}
    assert {name: fields[name] for name in ("a", "b", "d", "ends", "scales", "zeros")} == {
        "a": Fill("a"), "b": Fill("b"), "d": Fill("d"), "ends": Fill("offsets"), "scales": Fill("scale_a"),
        "zeros": Fill("zero_a"),
    }  # fmt: skip
    of_group = [fields[name] for name in ("stride_a", "scale_row", "scale_group", "zero_group")]
    assert of_group == [96 * 256, 4, 96 * 4 * 2, 12 * 4 * 4]
    assert (fields["scale_bytes"], fields["zero_bytes"]) == (8 * 96 * 4 * 2, 8 * 12 * 4 * 4)
    assert struct.bytes == config.argument_bytes
    assert follows_units(solution)
    found = operands_of(QUANTISED)
    assert list(found) == ["a", "b", "d", "scale_a", "zero_a", "offsets"]


@pytest.mark.compiler
@pytest.mark.skipif(Nvrtc().missing("sm_90") is not None, reason="NVRTC is not installed")
def test_a_bundle_carries_them_and_the_client_reads_it(cache: BinaryCache, tmp_path: Path) -> None:
    gemmtune = pytest.importorskip("gemmtune")
    found: Environment = environment_of("sm_90")
    path = tmp_path / "grouped.gtb"
    with BundleBuilder(found.device_class, "graph-cold", {}) as builder:
        solution = next(iter(FAMILIES["grouped-wgmma"].solutions(PROBLEM, found)))
        builder.add(describe_row(Measured(PROBLEM, solution, found, _VERDICT), "sm_90", cache))
        builder.write(path)
    row = gemmtune.load(path).best(m=64, n=96, k=128, dtype="bf16", trans_b=True, groups=8, routing="skewed")
    assert row is not None
    assert (row.problem_id, list(row.operands)) == (PROBLEM.id, ["a", "b", "d", "offsets"])
    assert {fill.name for fill in row.launches[0].fills} == set(row.operands)


@pytest.mark.skipif(triton_missing() is not None, reason=str(triton_missing()))
@pytest.mark.parametrize("scaled", [False, True])
def test_a_bundle_carries_vllms_kernel_too(scaled: bool, cache: BinaryCache, tmp_path: Path) -> None:
    gemmtune = pytest.importorskip("gemmtune")
    found = environment_of("sm_90")
    family = TRITON_FAMILIES["triton-fused-moe"]
    path, problem = tmp_path / "moe.gtb", SCALED if scaled else PROBLEM
    with BundleBuilder(found.device_class, "graph-cold", {}) as builder:
        solution = next(iter(family.solutions(problem, found)))
        builder.add(describe_row(Measured(problem, solution, found, _VERDICT), "sm_90", cache))
        builder.write(path)
    row = gemmtune.load(path).best(**problem_to_wire(problem))
    assert row is not None
    (launch,) = row.launches
    scales = {"scale_a", "scale_b"} if scaled else set()
    assert {fill.name for fill in launch.fills} == {"a", "b", "d", "offsets"} | scales
    assert launch.grid[0] == family.config(problem, solution.parameters).grid(132)[0]


_VERDICT: dict[str, Any] = {
    "judgement": "WIN", "seconds": 1e-6, "baseline_seconds": 2e-6, "baseline": "torch, grouped_mm",
    "baseline_family": "torch-grouped", "speedup": [1.9, 2.0, None], "rounds": 20, "session": "s",
    "decided_at": "2026-11-26T00:00:00",
}  # fmt: skip
