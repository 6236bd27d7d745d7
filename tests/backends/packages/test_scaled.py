"""A bundle has kernels of 8-bit operands with what follows the product, and the client reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.kernel_checks.candidates import environment_of
from backends.kernels.families import FAMILIES
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.problem import GemmProblem, from_linear
from backends.wire import problem_to_wire

pytestmark = pytest.mark.compiler

ROWS = {"scale_a": "outer", "scale_b": "outer"}
NARROW: dict[str, Any] = {
    **ROWS, "dtype_d": "int8", "dtype_c": "bf16", "bias": "bf16", "activation": "relu", "scale_d": "tensor",
}  # fmt: skip
VERDICT: dict[str, Any] = {
    "judgement": "WIN", "seconds": 1e-6, "baseline_seconds": 2e-6, "baseline": "torch",
    "speedup": [1.9, 2.0, 2.1], "rounds": 20, "session": "session-1", "decided_at": "2026-11-25T00:00:00",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arch", "problem"),
    [
        ("bytes-ring", "sm_90", from_linear(5, 48, 512, "int8", beta=0.5, **NARROW)),
        ("bytes-tile-mma", "sm_89", from_linear(300, 272, 512, "int8", beta=0.5, **NARROW)),
        ("tile-wgmma", "sm_90", from_linear(300, 272, 512, "int8", beta=0.5, **NARROW)),
        ("mxfp4-tile-mma", "sm_80", from_linear(300, 272, 512, "fp4_e2m1", beta=0.5, bias="bf16",
                                                scale_a="block_1x32", scale_b="block_1x32")),
        ("tile-mfma", "gfx942", from_linear(300, 272, 512, "int8", beta=0.5, **NARROW)),
        ("bytes-ring", "sm_90", from_linear(5, 48, 512, "fp8_e4m3", beta=0.5, dtype_d="bf16", bias="bf16",
                                            activation="silu", **ROWS)),
    ],
    ids=lambda one: "" if isinstance(one, GemmProblem) else one,
)  # fmt: skip
def test_a_bundle_carries_what_follows(
    name: str, arch: str, problem: GemmProblem, cache: BinaryCache, tmp_path: Path
) -> None:
    gemmtune = pytest.importorskip("gemmtune")
    found = environment_of(arch)
    solution = next(iter(FAMILIES[name].solutions(problem, found)))
    path = tmp_path / "scaled.gtb"
    with BundleBuilder(found.device_class, "graph-cold", {}) as builder:
        builder.add(describe_row(Measured(problem, solution, found, VERDICT), arch, cache))
        builder.write(path)
    row = gemmtune.load(path).best(**problem_to_wire(problem))
    assert row is not None
    assert row.problem_id == problem.id
    scales = {"scale_a", "scale_b"} | ({"scale_d"} if problem.scale_d == "tensor" else set())
    assert set(row.operands) == {"a", "b", "c", "d", "bias", *scales}
    filled = {fill.name for launch in row.launches for fill in launch.fills} - {"workspace"}
    assert filled == {*row.operands, "beta"}
