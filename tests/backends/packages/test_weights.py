"""The argument of a kernel for quantised weights, as a package describes it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.kernel_checks.candidates import environment_of
from backends.kernels.families import FAMILIES
from backends.kernels.legality import arch_of
from backends.kernels.oriented_gemm import GemmArgs
from backends.kernels.triton.families import FAMILIES as TRITON_FAMILIES
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.packages.launches import Fill, kernel_argument
from backends.packages.package import operands_of
from backends.toolchains.triton import missing as triton_missing
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.samples import SM_90
from tests.backends.weight_samples import weights


def test_scales_and_zero_points_are_operands_of_the_caller() -> None:
    for zero, wanted in (("uint4", Fill("zero_a")), ("eight", 0)):
        problem = weights(3, 40, 1024, zero_b=zero)
        family = FAMILIES["dequant-ring"]
        solution = next(iter(family.solutions(problem, H200)))
        struct = kernel_argument(family.config(problem, solution.parameters, SM_90))
        fields = {one.name: one for one in struct.fields}
        assert fields["scales"].value == Fill("scale_a")
        assert fields["zeros"].value == wanted
        assert fields["scale_row"].value == 8, "scales of a row"
        assert fields["scales"].offset == ctypes.sizeof(GemmArgs)
        operands = operands_of(problem)
        assert {name: one["row_major"] for name, one in operands.items()} == {
            "a": "b", "b": "a", "d": "d", "scale_a": "scale_b",
            **({"zero_a": "zero_b"} if zero == "uint4" else {}),
        }  # fmt: skip
        assert (operands["a"]["dtype"], operands["a"]["rows"], operands["a"]["bytes"]) == (
            "uint4",
            512,
            40 * 512,
        )


@pytest.mark.compiler
def test_a_bundle_carries_them_and_the_client_reads_it(cache: BinaryCache, tmp_path: Path) -> None:
    gemmtune = pytest.importorskip("gemmtune")
    found: Environment = environment_of("gfx942")
    family, rows = FAMILIES["dequant-gemv"], []
    problems = [weights(m, 40, 1024, zero_b=zero) for m in (1, 4) for zero in ("eight", "uint4")]
    for problem in problems:
        solution = next(iter(family.solutions(problem, found)))
        rows.append(Measured(problem, solution, found, _VERDICT))
    path = tmp_path / "weights.gtb"
    with BundleBuilder(found.device_class, "graph-cold", {}) as builder:
        for row in rows:
            builder.add(describe_row(row, "gfx942", cache))
        builder.write(path)
    table = gemmtune.load(path)
    for problem in problems:
        wire = {
            "m": problem.n, "n": problem.m, "k": problem.k, "dtype": "bf16", "dtype_b": "uint4",
            "trans_b": True, "scaling": {"b": "group_128", "dtype": "bf16", "zero_b": problem.zero_a},
        }  # fmt: skip
        row = table.best(**wire)
        assert row is not None
        assert row.problem_id == problem.id
        stored = ["zero_a"] if problem.zero_a == "uint4" else []
        assert list(row.operands) == ["a", "b", "d", "scale_a", *stored]
        assert {fill.name for fill in row.launches[0].fills} - {"workspace"} == set(row.operands)


@pytest.mark.compiler
@pytest.mark.skipif(triton_missing() is not None, reason=str(triton_missing()))
@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.parametrize("zero", ["uint4", "eight"])
def test_a_bundle_carries_tritons_kernel(arch: str, zero: str, cache: BinaryCache, tmp_path: Path) -> None:
    gemmtune = pytest.importorskip("gemmtune")
    found, family = environment_of(arch), TRITON_FAMILIES["triton-dequant"]
    problem = weights(3, 520, 4096, zero_b=zero)
    solution = next(one for one in family.solutions(problem, found) if one.parameters["split_k"] != 1)
    path = tmp_path / "triton.gtb"
    with BundleBuilder(found.device_class, "graph-cold", {}) as builder:
        builder.add(describe_row(Measured(problem, solution, found, _VERDICT), arch, cache))
        builder.write(path)
    row = gemmtune.load(path).best(
        m=3, n=520, k=4096, dtype="bf16", dtype_b="uint4", trans_b=True,
        scaling={"b": "group_128", "dtype": "bf16", "zero_b": zero},
    )  # fmt: skip
    assert row is not None
    stored = ["zero_a"] if zero == "uint4" else []
    assert list(row.operands) == ["a", "b", "d", "scale_a", *stored]
    first, second = row.launches
    assert first.grid == family.config(problem, solution.parameters).grid(found.units)
    assert {fill.name for fill in first.fills} >= {"a", "b", "scale_a", *stored, "workspace"}
    assert {"workspace", "d"} <= {fill.name for fill in second.fills}


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "arch", "launches"),
    [("dequant-tile-wgmma", "sm_90", 1), ("dequant-tile-mma", "sm_80", 2), ("dequant-mfma", "gfx942", 2)],
)
def test_a_bundle_carries_products_of_many_tokens(
    name: str, arch: str, launches: int, cache: BinaryCache, tmp_path: Path
) -> None:
    """In clusters, with tensor maps, whose blocks take tiles in turn; of slices of k, with a launch that adds
    them."""
    gemmtune = pytest.importorskip("gemmtune")
    found, family, problem = environment_of(arch), FAMILIES[name], weights(300, 520, 4096, zero_b="uint4")
    chosen = [
        one
        for one in family.solutions(problem, found)
        if one.parameters.get("splits", 2) != 1 and one.parameters.get("persistent", 1)
    ]
    solution = min(chosen, key=lambda one: (one.parameters.get("share") != 2, one.parameters["tile_m"]))
    path = tmp_path / "tokens.gtb"
    with BundleBuilder(found.device_class, "graph-cold", {}) as builder:
        builder.add(describe_row(Measured(problem, solution, found, _VERDICT), arch, cache))
        builder.write(path)
    row = gemmtune.load(path).best(
        m=300, n=520, k=4096, dtype="bf16", dtype_b="uint4", trans_b=True,
        scaling={"b": "group_128", "dtype": "bf16", "zero_b": "uint4"},
    )  # fmt: skip
    assert row is not None
    assert list(row.operands) == ["a", "b", "d", "scale_a", "zero_a"]
    config = family.config(problem, solution.parameters, arch_of(found)).on(found.units)
    assert len(row.launches) == launches
    assert row.launches[0].grid == config.grid
    given = {fill.name for launch in row.launches for fill in launch.fills}
    assert given - {"workspace"} == set(row.operands)
    assert (row.workspace_bytes > 0) == (launches > 1)


_VERDICT: dict[str, Any] = {
    "judgement": "WIN", "seconds": 1e-6, "baseline_seconds": 2e-6, "baseline": "torch-weights",
    "baseline_family": "torch-weights", "speedup": [1.9, 2.0, None], "rounds": 20, "session": "s",
    "decided_at": "2026-11-25T00:00:00",
}  # fmt: skip
