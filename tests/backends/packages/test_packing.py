"""Packages and bundles of a kernel that reads a packed copy of its weights."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from backends.archs import GPU_ARCHS, GpuArch
from backends.cache import BinaryCache
from backends.kernel_checks.candidates import GPU_FAMILIES, Candidate, environment_of
from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelFamily, Values
from backends.kernels.prepacked import PACK
from backends.kernels.weights import PackedWeightArgs
from backends.operands import Operands, layouts
from backends.packages import kept
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.packages.bundle_file import BundleFile
from backends.packages.launches import (
    Fill,
    kernel_argument,
    operand_names,
    packing_launch,
    packing_names,
)
from backends.packages.package import build, describe
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution
from tests.backends.packages.opened import opened, program
from tests.backends.weight_samples import weights
from tests.client import packed_rows

PROBLEM = weights(3, 40, 1024, zero_b="uint4", bias="bf16", alpha=2.0, prepacked=True)
BYTES = 4 * 40 * 1024
ADDRESSES = {name: 0x10000 * number for number, name in enumerate([*layouts(PROBLEM), "packed"], 1)}


@dataclass(frozen=True)
class Config(packed_rows.PackedConfig):
    """With kernels that do nothing."""

    @property
    def unit(self) -> str:
        """Two entry points of one struct."""
        return (
            f"struct Args {{ long long words[{self.argument_bytes // 8}]; }};\n"
            'extern "C" __global__ void gemm(Args) {}\nextern "C" __global__ void pack(Args) {}\n'
        )


class Family(KernelFamily):
    """One candidate, which reads a packed copy where the problem allows it."""

    name = "test-packed"
    choices: ClassVar[dict[str, tuple[Parameter, ...]]] = {"tile": (1,)}

    def unsupported(self, problem: GemmProblem) -> str | None:
        return None

    def candidates(self, problem: GemmProblem, environment: Any) -> list[dict[str, Parameter]]:
        return [{"tile": 1}]

    def rule(self, problem: GemmProblem, values: Values, environment: Any) -> str | None:
        return None

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> Config:
        layout = packed_rows.ROWS if problem.prepacked else None
        made = packed_rows.config(problem, layout)
        return Config(made.product, made.header, made.instantiation, 128, 0, 3, layout=layout)


SOLUTION = Solution(Family.name, 1, {"tile": 1}, None, 0, True)


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Family:
    """The family among those of GPUs."""
    found = Family()
    monkeypatch.setitem(GPU_FAMILIES, found.name, found)
    return found


def config(problem: GemmProblem = PROBLEM) -> Config:
    return Family().config(problem, {"tile": 1}, GPU_ARCHS["sm_90"])


def fills(fields: Any) -> dict[str, Any]:
    return {one.name: one.value for one in fields if isinstance(one.value, Fill)}


# ---- arguments -----------------------------------------------------------------------------------


def test_the_product_has_no_address_of_what_was_packed() -> None:
    struct = kernel_argument(config())
    assert struct.bytes == ctypes.sizeof(PackedWeightArgs)
    assert fills(struct.fields) == {
        name: Fill(name) for name in ("b", "d", "bias", "alpha", "packed")
    }  # fmt: skip
    values = {one.name: one.value for one in struct.fields}
    assert (values["a"], values["scales"], values["zeros"]) == (0, 0, 0)
    assert operand_names(config()) == ["packed", "b", "d", "bias"]
    given = {name: ADDRESSES[name] for name in operand_names(config())}
    operands = replace(Operands.at(given, (2.0, 0.0)), packed=ADDRESSES["packed"])
    packed = program().pack(struct.to_dict(), {**given, "alpha": 2.0})
    assert packed == bytes(config().arguments(operands, 0))


def test_the_packing_has_those_addresses_and_the_copys_alone() -> None:
    found = config()
    assert found.prepacked is not None
    launch = packing_launch(found, found.prepacked, "kernel.cubin", {}, GPU_ARCHS["sm_90"])
    assert (launch.launch.entry, launch.launch.grid, launch.file) == (PACK, (7, 1, 1), "kernel.cubin")
    (struct,) = launch.arguments
    names = {"a": "a", "scales": "scale_a", "zeros": "zero_a", "packed": "packed"}
    assert fills(struct.fields) == {name: Fill(operand) for name, operand in names.items()}  # type: ignore[union-attr]
    assert packing_names(found) == ["a", "scale_a", "zero_a", "packed"]
    given = {name: ADDRESSES[name] for name in packing_names(found)}
    operands = replace(Operands.at(given, PROBLEM.scalars), packed=ADDRESSES["packed"])
    assert program().pack(struct.to_dict(), given) == bytes(found.arguments(operands, 0))


def test_a_kernel_that_reads_stored_weights_is_as_before() -> None:
    stored = replace(PROBLEM, prepacked=False)
    struct = kernel_argument(config(stored))
    assert set(fills(struct.fields)) == {"a", "b", "d", "bias", "alpha", "scales", "zeros"}
    assert operand_names(config(stored)) == list(layouts(stored))


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.compiler
def test_a_package_has_the_packing(family: Family, cache: BinaryCache) -> None:
    document, files = opened(build(PROBLEM, SOLUTION, "sm_90", None, cache))
    assert (document["format"], list(files)) == (4, ["kernel.cubin"])
    assert list(document["operands"]) == ["packed", "b", "d", "bias"]
    assert document["operands"]["packed"] == {
        "row_major": "packed", "dtype": "int8", "rows": BYTES, "columns": 1, "ld": BYTES, "batch_stride": 0,
        "bytes": BYTES, "alignment": 256,
    }  # fmt: skip
    packing = document["packing"]
    assert (packing["layout"], packing["bytes"], packing["alignment"]) == (packed_rows.ROWS, BYTES, 256)
    assert list(packing["operands"]) == ["a", "scale_a", "zero_a", "packed"]
    launch = packing["launch"]
    assert (launch["file"], launch["entry"]) == ("kernel.cubin", "pack")
    assert launch["resources"]["registers"] > 0
    assert set(launch) == set(document["launches"][0])
    stored, _ = describe(replace(PROBLEM, prepacked=False), SOLUTION, "sm_90", None, cache)
    assert (stored["format"], "packing" in stored) == (3, False)


@pytest.mark.compiler
def test_kept_launches_name_the_kept_file(
    family: Family, cache: BinaryCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(cache: BinaryCache) -> Any:
        raise AssertionError("the candidate is described, not compiled by itself")

    monkeypatch.setattr(kept, "smaller", lambda candidate: candidate)
    one = Candidate(family.name, "sm_90", PROBLEM, SOLUTION, 128, "", frozenset(), never)
    (path,) = kept.keep(tmp_path, [one], cache)
    text = path.read_text()
    assert text.count('"file": "test-packed-000.cubin"') == 2
    assert '"kernel.cubin"' not in text


@pytest.mark.compiler
def test_a_bundle_carries_the_packing_and_the_client_reads_it(
    family: Family, cache: BinaryCache, tmp_path: Path
) -> None:
    gemmtune = pytest.importorskip("gemmtune")
    found = environment_of("sm_90")
    path = tmp_path / "packed.gtb"
    with BundleBuilder(found.device_class, "graph-cold", {}) as builder:
        builder.add(describe_row(Measured(PROBLEM, SOLUTION, found, _VERDICT), "sm_90", cache))
        builder.write(path)
    (described,) = BundleFile(path).manifest["rows"]
    assert "file" not in described["packing"]["launch"]
    assert described["packing"]["launch"]["binary"] == described["launches"][0]["binary"]
    BundleFile(path).subset([PROBLEM.id], tmp_path / "subset.gtb")
    for one in (path, tmp_path / "subset.gtb"):
        table = gemmtune.load(one)
        row = table.best(
            m=3, n=40, k=1024, dtype="bf16", dtype_b="uint4", trans_b=True, epilogue="bias", alpha=2.0,
            scaling={"b": "group_128", "dtype": "bf16", "zero_b": "uint4"}, prepacked=True,
        )  # fmt: skip
        assert row is not None
        assert (row.packing.layout, row.packing.bytes) == (packed_rows.ROWS, BYTES)
        assert set(row.operands) == {"packed", "b", "d", "bias"}
        assert {fill.name for fill in row.launches[0].fills} == {*row.operands, "alpha"}
        assert {fill.name for fill in row.packing.launch.fills} == set(row.packing.operands)
        assert (row.packing.launch.entry, row.packing.launch.grid) == ("pack", (7, 1, 1))


_VERDICT: dict[str, Any] = {
    "judgement": "WIN", "seconds": 1e-6, "baseline_seconds": 2e-6, "baseline": "torch-weights",
    "baseline_family": "torch-weights", "speedup": [1.9, 2.0, None], "rounds": 20, "session": "s",
    "decided_at": "2026-11-25T00:00:00",
}  # fmt: skip


@pytest.mark.compiler
def test_a_package_of_our_own_packing_kernel(cache: BinaryCache) -> None:
    problem, found = weights(3, 64, 4096, zero_b="uint4", prepacked=True), environment_of("sm_90")
    family = FAMILIES["packed-mma"]
    solution = next(one for one in family.solutions(problem, found) if one.parameters["splits"] != 1)
    document, files = opened(build(problem, solution, "sm_90", None, cache))
    assert list(files) == ["kernel.cubin"]
    assert [one["entry"] for one in document["launches"]] == ["gemm", "reduce"]
    launch = document["packing"]["launch"]
    assert (launch["entry"], launch["file"]) == ("pack", "kernel.cubin")
    assert launch["resources"]["registers"] > 0
    for one in document["launches"]:
        fields = {field["name"]: field for field in one["arguments"][0]["fields"]}
        assert (fields["packed"]["fill"], fields["partial"]["fill"]) == ("packed", "workspace")
        assert [fields[name]["value"] for name in ("a", "scales", "zeros")] == [0, 0, 0]
    fields = {field["name"]: field for field in launch["arguments"][0]["fields"]}
    assert {name: one["fill"] for name, one in fields.items() if "fill" in one} == {
        "a": "a", "scales": "scale_a", "zeros": "zero_a", "packed": "packed",
    }  # fmt: skip
