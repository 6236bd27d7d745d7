"""What is said of a launch is what our own launch passes, byte for byte."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.kernel_checks.candidates import environment_of
from backends.kernels.families import FAMILIES
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.launch import KernelLaunch
from backends.kernels.oriented_gemm import GemmArgs
from backends.kernels.triton.configuration import MAIN, TritonConfig
from backends.operands import NAMES, Operands, layouts
from backends.packages.launches import (
    Argument,
    DescribedLaunch,
    Struct,
    kernel_argument,
    kernel_launches,
    triton_launches,
)
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.resources import Resources
from tests.backends.gpu.null_device import NullDevice
from tests.backends.gpu.test_triton_family import (
    TILE,
    device,
    load,
    solution,
    told,
)
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.samples import PROBLEMS, SM_90, legal_values
from tests.backends.packages.opened import program

__all__ = ["device"]
ADDRESSES = {name: 0x10000 * number for number, name in enumerate(NAMES, 1)}
WORKSPACE = 0x7FFF_0000_0000


def filled(problem: GemmProblem, alpha: float, beta: float) -> dict[str, float]:
    """What the problem's caller fills in: nothing but what launch.json may ask for."""
    found: dict[str, float] = {name: ADDRESSES[name] for name in layouts(problem)}
    scalars = {"alpha": (alpha, problem.alpha), "beta": (beta, problem.beta)}
    return found | {name: value for name, (value, kind) in scalars.items() if kind == "any"}


def plain(launch: Any) -> dict[str, Any]:
    """As a reader of launch.json has it."""
    found: dict[str, Any] = json.loads(json.dumps(launch.to_dict()))
    return found


# ---- our own kernels -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["naive", "gemv", "skinny", "vectorized", "tile-mma", "stream-k", "small-batch"]
)
def test_the_struct_is_the_arguments_bytes(family: str) -> None:
    pack, met = program().pack, set()
    for problem in PROBLEMS.values():
        if not FAMILIES[family].supports(problem):
            continue
        for values in legal_values(FAMILIES[family], problem, H200, 2):
            found = FAMILIES[family].config(problem, values, SM_90).on(132)
            scalars = problem.scalars
            operands = Operands.at({name: ADDRESSES[name] for name in layouts(problem)}, scalars)
            workspace = WORKSPACE if found.workspace_bytes else 0
            given = {**filled(problem, *scalars), **({"workspace": workspace} if workspace else {})}
            assert pack(kernel_argument(found).to_dict(), given) == bytes(
                found.arguments(operands, workspace)
            )
            met.add((found.product.swap_ab, found.reduces, problem.beta))
    assert len(met) > 1


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_the_struct_of_matrix_cores_is_the_arguments_bytes(arch: str) -> None:
    """It extends the struct of the other families with scales of every kind."""
    family = FAMILIES["tile-mfma" if arch == "gfx942" else "tile-wmma"]
    environment, pack, met = environment_of(arch), program().pack, 0
    for dtype in ("bf16", "int8"):
        for scales in ({}, {"scale_a": "outer", "scale_b": "tensor"}):
            problem = from_mm(70, 72, 96, dtype, beta=0.0 if scales else 1.0, dtype_d="fp32", **scales)
            assert family.supports(problem)
            for one in islice(family.solutions(problem, environment), 3):
                found = family.config(problem, one.parameters, GPU_ARCHS[arch])
                operands = Operands.at({name: ADDRESSES[name] for name in layouts(problem)}, problem.scalars)
                workspace = WORKSPACE if found.workspace_bytes else 0
                given = filled(problem, *problem.scalars) | {"workspace": workspace}
                assert pack(kernel_argument(found).to_dict(), given) == bytes(
                    found.arguments(operands, workspace)
                )
                met += 1
    assert met >= 8


def test_arguments_lie_in_one_buffer_each_at_its_alignment() -> None:
    arguments = (Argument("a", "int", 1), Argument("b", "void *", 2), Argument("c", "int", 3),
                 Struct("S", 24, 8, ()), Argument("d", "float", 4.0))  # fmt: skip
    launch = DescribedLaunch("", KernelLaunch("gemm", (1, 1, 1), (64, 1, 1)), SM_90, arguments, None)
    found = plain(launch)
    assert [one["buffer_offset"] for one in found["arguments"]] == [0, 8, 16, 24, 48]
    assert found["argument_bytes"] == 52


def test_a_problem_with_scalars_of_any_value_asks_for_them() -> None:
    problem = from_linear(1, 64, 128, "fp16", alpha=2.0, beta=-0.5)
    values = legal_values(FAMILIES["gemv"], problem, H200, 1)[0]
    found = FAMILIES["gemv"].config(problem, values, SM_90)
    fields = {field["name"]: field for field in kernel_argument(found).to_dict()["fields"]}
    assert (fields["alpha"]["fill"], fields["beta"]["fill"], fields["c"]["fill"]) == ("alpha", "beta", "c")
    plain_one = FAMILIES["gemv"].config(from_linear(1, 64, 128, "fp16"), values, SM_90)
    fields = {field["name"]: field for field in kernel_argument(plain_one).to_dict()["fields"]}
    assert (fields["alpha"]["value"], fields["beta"]["value"], fields["c"]["value"]) == (1.0, 0.0, 0)


def test_offsets_are_the_structs_in_c_and_here() -> None:
    problem = PROBLEMS["nn"]
    one = FAMILIES["naive"].config(problem, legal_values(FAMILIES["naive"], problem, H200, 1)[0], SM_90)
    told_struct = kernel_argument(one).to_dict()
    lines = ['#include "device/args.h"', "using gemmtune::GemmArgs;"]
    for field in told_struct["fields"]:
        assert field["offset"] == getattr(GemmArgs, field["name"]).offset
        place, size = (
            f"__builtin_offsetof(GemmArgs, {field['name']})",
            f"sizeof(GemmArgs::{field['name']})",
        )
        lines.append(f'static_assert({place} == {field["offset"]} && {size} == {field["bytes"]}, "");')
    lines.append(f'static_assert(sizeof(GemmArgs) == {told_struct["bytes"]}, "");')
    lines.append(f'static_assert(alignof(GemmArgs) == {told_struct["alignment"]}, "");')
    assert len(lines) == len(GemmArgs._fields_) + 4
    command = ["g++", "-std=c++17", "-fsyntax-only", "-DGEMMTUNE_HOST", f"-I{HEADERS}", "-x", "c++", "-"]
    done = subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    assert told_struct["bytes"] == ctypes.sizeof(GemmArgs)


def test_slices_are_added_by_a_second_launch() -> None:
    problem = from_linear(1, 1000, 4096, "bf16")
    values: dict[str, Any] = {
        "stream": "a", "rows": 1, "unroll": 4, "warps_m": 2, "warps_k": 4, "splits": 3, "ahead": 0,
    }  # fmt: skip
    found = FAMILIES["gemv"].config(problem, values, SM_90)
    taken = {"gemm": Resources(40, 16, 0), "reduce": Resources(20, 0, 0)}
    first, second = map(plain, kernel_launches(found, "kernel.cubin", taken, SM_90))
    assert (first["entry"], tuple(first["grid"]), first["block"][0]) == ("gemm", found.grid, found.threads)
    assert first["grid"][1] == 3
    assert (second["entry"], second["grid"], second["block"]) == ("reduce", [4, 1, 1], [256, 1, 1])
    assert second["dynamic_shared_bytes"] == 0
    for arch, waits in (("sm_90", True), ("sm_100", True), ("sm_89", False), ("gfx942", False)):
        asked = map(plain, kernel_launches(found, "kernel.cubin", taken, GPU_ARCHS[arch]))
        assert [one["programmatic_stream_serialization"] for one in asked] == [waits, waits]
    assert first["arguments"] == second["arguments"]
    assert first["resources"] == {"registers": 40, "static_shared_bytes": 16, "spill_bytes": 0}
    assert first["argument_bytes"] == first["arguments"][0]["bytes"]
    assert first["arguments"][0]["buffer_offset"] == 0
    (only,) = kernel_launches(FAMILIES["gemv"].config(problem, {**values, "splits": 1}, SM_90), "", {}, SM_90)
    assert plain(only)["resources"] is None
    assert plain(only)["programmatic_stream_serialization"] is True
    fields = {field["name"]: field for field in plain(only)["arguments"][0]["fields"]}
    assert fields["partial"]["value"] == 0, "no workspace where nothing is split"


def test_tiles_that_blocks_share_are_finished_by_a_second_launch() -> None:
    problem = from_linear(2048, 2560, 5120, "bf16")
    values: dict[str, Any] = {
        "tile_m": 128, "tile_n": 128, "tile_k": 32, "warp_m": 64, "warp_n": 64, "stages": 4, "group": 8,
        "blocks_per_unit": 1,
    }  # fmt: skip
    found = FAMILIES["stream-k"].config(problem, values, SM_90)
    first, second = map(plain, kernel_launches(found.on(132), "kernel.cubin", {}, SM_90))
    assert (first["grid"], second["grid"][0]) == ([132, 1, 1], 320 - 132)
    assert second["dynamic_shared_bytes"] == found.reduce_shared_bytes > 0
    fields = {field["name"]: field for field in first["arguments"][0]["fields"]}
    assert (fields["blocks"]["value"], fields["partial"]["fill"]) == (132, "workspace")
    (only,) = kernel_launches(found.on(160), "kernel.cubin", {}, SM_90)
    assert plain(only)["grid"] == [160, 1, 1]


def test_more_shared_memory_than_a_block_has_unasked() -> None:
    problem = from_linear(512, 512, 512, "bf16")
    family = FAMILIES["tile-mma"]
    found = [family.config(problem, v, SM_90) for v in legal_values(family, problem, H200, 60)]
    for one in found:
        (launch, *_) = kernel_launches(one, "kernel.cubin", {}, SM_90)
        assert plain(launch)["needs_shared_memory_attribute"] == (one.shared_bytes > 49152)
        (launch, *_) = kernel_launches(one, "kernel.hsaco", {}, GPU_ARCHS["gfx950"])
        assert plain(launch)["needs_shared_memory_attribute"] == (one.shared_bytes > 163840)
    assert {one.shared_bytes > 49152 for one in found} == {True, False}


# ---- Triton's ------------------------------------------------------------------------------------

LARGE = from_linear(304, 512, 704, "bf16", beta=2.0)
INTEGER = from_linear(256, 512, 1024, "int8", alpha=3.0)
CASES: Mapping[str, tuple[GemmProblem, dict[str, Any], dict[str, Any]]] = {
    "a tile a program": (LARGE, {}, {}),
    "swapped, with a bias": (from_linear(300, 500, 700, "bf16", bias="bf16"), {"swap": True}, {}),
    "a batch": (from_bmm(3, 96, 80, 72, "fp16", beta=1.0), {}, {}),
    "slices": (LARGE, {"split_k": 4}, {}),
    "slices with scratch": (LARGE, {"split_k": 2}, {"scratch_bytes": 128}),
    "persistent": (LARGE, {"programs_per_unit": 2, "flatten": True, "loads": "pointer"}, {}),
    "descriptors": (
        LARGE, {"programs_per_unit": 1, "flatten": True, "loads": "tma"},
        {"scratch_bytes": 256, "scratch_align": 128, "shared_bytes": 100_000},
    ),
    "integers": (INTEGER, {"swap": True}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_tritons_parameters_are_what_we_pass(case: str, device: NullDevice, tmp_path: Path) -> None:
    problem, changed, other = CASES[case]
    one = TritonConfig.of(problem, {**TILE, **changed})
    kernels = {entry: told(problem, entry, changed, **other) for entry in one.entries}
    steps, size = one.launches(kernels, 132)
    launches = [plain(launch) for launch in triton_launches(one, one.requests(SM_90), steps, SM_90)]

    scalars = problem.scalars
    operands = Operands.at({name: ADDRESSES[name] for name in layouts(problem)}, scalars)
    kernel = load(tmp_path, device, solution(**changed), problem, **other)
    assert kernel.workspace_bytes == size
    workspace = WORKSPACE if size else 0
    kernel.bind(operands, workspace)()
    value_of = program().value_of
    given = {**filled(problem, *scalars), "workspace": WORKSPACE}
    assert len(device.launches) == len(launches)
    for launch, done in zip(launches, device.launches, strict=True):
        values = {argument["name"]: value_of(argument, given) for argument in launch["arguments"]}
        if one.partial_bytes == 0:  # an address that the kernel does not read
            assert values["partial"] == 0
            values["partial"] = workspace
        if not other.get("scratch_bytes"):
            assert values["global_scratch"] == 0
            values["global_scratch"] = done.values[-2]
        assert list(values.values()) == done.values
        assert (launch["entry"], tuple(launch["grid"]), tuple(launch["block"])) == (
            done.entry, done.grid, done.block,
        )  # fmt: skip
        assert launch["dynamic_shared_bytes"] == done.shared
        assert launch["programmatic_stream_serialization"] == done.dependent is True
        asked = ("allow_shared", done.entry, done.shared) in device.driver.log
        assert launch["needs_shared_memory_attribute"] == asked


def test_types_are_those_of_the_entry() -> None:
    size = {"u64": 8, "u32": 4, "f32": 4}
    for problem, changed, other in CASES.values():
        one = TritonConfig.of(problem, {**TILE, **changed})
        kernels = {entry: told(problem, entry, changed, **other) for entry in one.entries}
        steps, _ = one.launches(kernels, 132)
        for launch, step in zip(triton_launches(one, one.requests(SM_90), steps, SM_90), steps, strict=True):
            arguments = plain(launch)["arguments"]
            assert [each["bytes"] for each in arguments] == [size[k] for k in step.description.parameters]
            floats = [each["type"] == "float" for each in arguments]
            assert floats == [kind == "f32" for kind in step.description.parameters]
            whole = [isinstance(each.get("value", 0), int) for each in arguments]
            assert all(is_float or is_whole for is_float, is_whole in zip(floats, whole, strict=True))


def test_before_sm_90_tritons_kernels_wait_for_nobody() -> None:
    for problem, changed, other in CASES.values():
        one = TritonConfig.of(problem, {**TILE, **changed})
        kernels = {entry: told(problem, entry, changed, **other) for entry in one.entries}
        steps, _ = one.launches(kernels, 132)
        for name, waits in (("sm_80", False), ("sm_89", False), ("sm_90", True), ("sm_100", True)):
            arch = GPU_ARCHS[name]
            requests = one.requests(arch)
            assert {request.constants["DEPENDENT"] for request in requests.values()} == {waits}
            asked = map(plain, triton_launches(one, requests, steps, arch))
            assert {launch["programmatic_stream_serialization"] for launch in asked} == {waits}


def test_only_persistent_programs_follow_the_device() -> None:
    problem, changed, _ = CASES["persistent"]
    one = TritonConfig.of(problem, {**TILE, **changed})
    for units, blocks in ((10, 20), (1000, one.tiles)):
        steps, _ = one.launches({MAIN: told(problem, MAIN, changed)}, units)
        (launch,) = map(plain, triton_launches(one, one.requests(SM_90), steps, SM_90))
        assert launch["grid"] == [blocks, 1, 1]
        assert launch["grid_depends_on_multiprocessors"] == {
            "dimension": "x", "per_multiprocessor": 2, "most": one.tiles,
        }  # fmt: skip
    still = TritonConfig.of(problem, TILE)
    steps, _ = still.launches({MAIN: told(problem, MAIN, {})}, 10)
    (launch,) = map(plain, triton_launches(still, still.requests(SM_90), steps, SM_90))
    assert launch["grid_depends_on_multiprocessors"] is None
