"""Bundles: what is in one, that it is the same for the same rows, and what a damaged one is told."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.environment import Environment
from backends.errors import IllegalSolution, NoBinary, StorageError
from backends.packages import bundle_file
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.packages.bundle_file import BundleError, BundleFile
from backends.packages.cubin import oldest_driver
from backends.packages.host import CPU_FAMILIES
from backends.packages.package import CONVENTION, ORDER, build
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from backends.wire import problem_from_wire
from tests.backends.gpu.null_device import ENVIRONMENT as H200
from tests.backends.packages.host_row import launched
from tests.backends.packages.opened import opened
from tests.backends.packages.test_package import DECODE, GEMV, LAYER, WGMMA, needs_triton, triton
from tests.backends.packages.test_padded import ODD, PADDED

HERE = CpuBackend().probe().devices[0]
SMALL = from_linear(5, 48, 40, "fp32")
POLICY: dict[str, Any] = {"mode": "graph", "cache": "cold"}
VERDICT: dict[str, Any] = {
    "judgement": "WIN", "seconds": 1e-6, "baseline_seconds": 2e-6, "baseline": "torch",
    "speedup": [1.9, 2.0, None], "rounds": 20, "session": "session-1", "decided_at": "2026-11-25T00:00:00",
}  # fmt: skip
#: Two problems with one kernel: both are decoding steps of the same types.
TWICE = from_linear(1, 2000, 4096, "bf16", bias="bf16", beta=1.0)
ROWS = ((DECODE, GEMV), (TWICE, GEMV), (LAYER, WGMMA), (ODD, PADDED))


def measured(problem: GemmProblem, solution: Solution, environment: Environment = H200) -> Measured:
    return Measured(problem, replace(solution, deterministic=True), environment, VERDICT)


def written(rows: Sequence[Measured], path: Path, cache: BinaryCache) -> BundleFile:
    with BundleBuilder(rows[0].environment.device_class, "graph-cold", POLICY) as builder:
        for row in rows:
            builder.add(describe_row(row, "sm_90", cache))
        digest = builder.write(path)
    found = BundleFile(path)
    assert found.digest == digest
    found.verify()
    return found


def host_rows(problem: GemmProblem = SMALL) -> list[Measured]:
    """A candidate of each of the CPU's families."""
    return [
        measured(problem, next(iter(family.solutions(problem, HERE))), HERE)
        for family in CPU_FAMILIES.values()
    ]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> BundleFile:
    """A bundle of an H200."""
    return written([measured(*row) for row in ROWS], tmp_path_factory.mktemp("gpu") / "h200.gtb", cache)


# ---- what is in one ------------------------------------------------------------------------------


def test_the_manifest_is_the_decisions(gpu: BundleFile) -> None:
    manifest = gpu.manifest
    assert set(manifest) == {
        "format", "version", "device", "policy", "requires", "environments", "convention", "order",
        "binaries", "rows",
    }  # fmt: skip
    assert (manifest["format"], manifest["version"]) == ("gemmtune-bundle", 1)
    assert manifest["device"] == {
        "class": "cuda:sm_90:NVIDIA-H200:132", "vendor": "cuda", "arch": "sm_90", "product": "NVIDIA-H200",
        "units": 132,
    }  # fmt: skip
    assert manifest["policy"] == {"id": "graph-cold", "content": POLICY}
    assert manifest["environments"] == {
        H200.id: {"runtime": H200.runtime, "driver": H200.driver, "libraries": dict(H200.libraries)}
    }
    assert (manifest["convention"], manifest["order"]) == (CONVENTION, ORDER)
    assert gpu.problem_ids == sorted(problem.id for problem, _ in ROWS)


def test_a_row_is_a_package_with_digests_for_files(gpu: BundleFile, cache: BinaryCache) -> None:
    rows = {row["problem"]["id"]: row for row in gpu.manifest["rows"]}
    for problem, solution in ROWS:
        row = rows[problem.id]
        assert set(row) == {
            "problem", "solution", "environment", "verdict", "deterministic", "operands", "workspace",
            "launched_by", "launches",
        }  # fmt: skip
        document, files = opened(build(problem, solution, "sm_90", None, cache))
        for name in ("problem", "solution", "operands", "workspace", "launched_by"):
            assert row[name] == document[name]
        assert (row["environment"], row["verdict"], row["deterministic"]) == (H200.id, VERDICT, True)
        assert problem_from_wire(row["problem"]["wire"]) == problem
        for launch, described in zip(row["launches"], document["launches"], strict=True):
            digest = sha256(files[described.pop("file")]).hexdigest()
            assert launch == {**described, "binary": digest}


def test_each_binary_is_there_once(gpu: BundleFile) -> None:
    rows = {row["problem"]["id"]: row for row in gpu.manifest["rows"]}
    first, second = ({one["binary"] for one in rows[of.id]["launches"]} for of in (DECODE, TWICE))
    assert first == second
    with zipfile.ZipFile(gpu.path) as file:
        names = file.namelist()
    assert names == ["manifest.json", *(f"binaries/{digest}" for digest in sorted(gpu.manifest["binaries"]))]
    assert len(names) == 1 + 4, "gemv's, tile-wgmma's, and two of the padded one"
    assert {one["suffix"] for one in gpu.manifest["binaries"].values()} == {".cubin"}


def test_the_same_rows_give_the_same_bytes(
    gpu: BundleFile, cache: BinaryCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1e9)
    rows = [measured(*row) for row in ROWS]
    random.Random(0).shuffle(rows)
    again = written(rows, tmp_path / "again.gtb", cache)
    assert again.path.read_bytes() == gpu.path.read_bytes()
    other = replace(rows[0], verdict={**VERDICT, "rounds": 21})
    assert written([other, *rows[1:]], tmp_path / "other.gtb", cache).digest != gpu.digest


def test_writers_of_one_file_leave_each_other_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.gtb"

    def read(_: str) -> bytes:  # another one writes meanwhile
        other = Thread(target=bundle_file.write_file, args=(path, {"binaries": {}}, read))
        other.start()
        other.join()
        return b"binary"

    digest = bundle_file.write_file(path, {"binaries": {"0" * 64: {}}}, read)
    with zipfile.ZipFile(path) as file:
        assert sha256(file.read("manifest.json")).hexdigest() == digest
    assert [one.name for one in tmp_path.iterdir()] == ["x.gtb"]


def test_a_problem_has_one_row(cache: BinaryCache, tmp_path: Path) -> None:
    rows = host_rows()
    with BundleBuilder(HERE.device_class, "eager", POLICY) as builder:
        builder.add(describe_row(rows[0], "", cache))
        with pytest.raises(ValueError, match="has a row already"):
            builder.add(describe_row(rows[1], "", cache))
        with pytest.raises(StorageError, match="cannot write"):
            builder.write(tmp_path / "missing" / "file.gtb")
        assert len(builder) == 1


@needs_triton
def test_the_driver_that_the_binaries_need(gpu: BundleFile, cache: BinaryCache, tmp_path: Path) -> None:
    assert gpu.manifest["requires"] == {"driver": 13000}
    rows = [measured(DECODE, GEMV), measured(LAYER, triton(split_k=2, num_stages=2))]
    both = written(rows, tmp_path / "both.gtb", cache)
    assert both.manifest["requires"] == {"driver": 13000}
    both.subset({LAYER.id}, tmp_path / "triton.gtb")
    alone = BundleFile(tmp_path / "triton.gtb")
    assert len(alone.manifest["binaries"]) == 2
    assert alone.manifest["requires"] == {"driver": 12000}, "Triton's ptxas is of CUDA 12"


def test_binaries_of_unknown_compilers_name_no_driver(gpu: BundleFile) -> None:
    cubin = gpu.binary(min(gpu.manifest["binaries"]))
    assert oldest_driver(cubin) == 13000
    assert oldest_driver(cubin.replace(b"Cuda compilation tools", b"Other compilation tool")) is None
    assert oldest_driver(b"\x7fELF\x02" + b"\0" * 60) is None, "a shared library"
    assert oldest_driver(b"") is None


def test_a_subset_is_the_bundle_of_its_rows(gpu: BundleFile, cache: BinaryCache, tmp_path: Path) -> None:
    path = tmp_path / "part.gtb"
    digest = gpu.subset({DECODE.id, TWICE.id, SMALL.id}, path)
    direct = written([measured(*row) for row in ROWS[:2]], tmp_path / "direct.gtb", cache)
    assert (digest, path.read_bytes()) == (direct.digest, direct.path.read_bytes())


# ---- of a CPU ------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [SMALL, from_linear(60, 96, 130, "fp16")], ids=["fp32", "fp16"])
def test_rows_of_a_cpu_run_by_ctypes(problem: GemmProblem, cache: BinaryCache, tmp_path: Path) -> None:
    for row in host_rows(problem):
        found = written([row], tmp_path / f"{row.solution.id}.gtb", cache)
        (described,) = found.manifest["rows"]
        (launch,) = described["launches"]
        assert set(launch) == {"binary", "runtime", "entry", "arguments"}
        assert described["launched_by"] == launch["entry"] == "gemmtune_run"
        assert set(found.manifest["binaries"]) == {launch["binary"], launch["runtime"]}
        assert {one["suffix"] for one in found.manifest["binaries"].values()} == {".so"}
        assert found.manifest["requires"] == {"driver": None}
        assert found.manifest["environments"][HERE.id]["partition"] == HERE.partition
        fields = {one["name"]: one for one in launch["arguments"][0]["fields"]}
        assert (fields["parallel"]["fill"], fields["threads"]["value"]) == (
            "parallel",
            row.solution.parameters["threads"],
        )
        assert (fields["alpha"]["value"], fields["c"]["value"], fields["bias"]["value"]) == (1.0, 0, 0)
        out, expected = launched(found, described, tmp_path)
        np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2e-3, atol=5e-2)


def test_another_cpus_row_is_refused(cache: BinaryCache) -> None:
    row = host_rows()[0]
    others: list[tuple[dict[str, Any], str]] = [
        ({"product": "Another CPU"}, "it was measured on cpu:.*Another-CPU.*, and this machine's CPU is"),
        ({"partition": "x86-64-v9"}, "it was measured on x86-64-v9, and this machine's CPU is"),
    ]
    for changed, why in others:
        with pytest.raises(NoBinary, match=why):
            describe_row(replace(row, environment=replace(HERE, **changed)), "", cache)
    parameters = {**row.solution.parameters, "threads": 10_000}
    with pytest.raises(IllegalSolution, match="threads must be between 1 and"):
        describe_row(replace(row, solution=replace(row.solution, parameters=parameters)), "", cache)


# ---- damaged ones --------------------------------------------------------------------------------


def rewritten(path: Path, of: BundleFile, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> Path:
    """The bundle with other members."""
    with zipfile.ZipFile(of.path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in change(members).items():
            file.writestr(name, data)
    return path


def manifest_with(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def changed(members: dict[str, bytes]) -> dict[str, bytes]:
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        return {**members, "manifest.json": json.dumps(manifest).encode()}

    return changed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda members: dict(reversed(members.items())), "its first member is not manifest.json"),
        (lambda members: {**members, "manifest.json": b"{"}, "its manifest is no JSON"),
        (lambda members: {**members, "manifest.json": b"[1]"}, "its manifest has no format"),
        (lambda members: {**members, "extra": b"code"}, "its members are not those"),
        (lambda members: dict(islice(members.items(), 2)), "its members are not those"),
        (manifest_with(lambda one: one.update(format="zip")), "has no format 'gemmtune-bundle'"),
        (manifest_with(lambda one: one.update(version=2)), "version 2; this gemmtune reads version 1"),
        (manifest_with(lambda one: one.pop("binaries")), r"lacks fields \(KeyError\('binaries'\)\)"),
        (manifest_with(lambda one: one["rows"].append(one["rows"][0])), "rows and lists disagree"),
        (manifest_with(lambda one: one["rows"].clear()), "rows and lists disagree"),
        (manifest_with(lambda one: one["environments"].clear()), "rows and lists disagree"),
        (
            manifest_with(lambda one: next(iter(one["binaries"].values())).update(bytes=-1)),
            "a binary's size is not from 1 to",
        ),
    ],
)  # fmt: skip
def test_an_altered_bundle(gpu: BundleFile, tmp_path: Path, change: Any, why: str) -> None:
    with pytest.raises(BundleError, match=why):
        BundleFile(rewritten(tmp_path / "altered.gtb", gpu, change))


def test_an_altered_binary(gpu: BundleFile, tmp_path: Path) -> None:
    digest = max(gpu.manifest["binaries"])

    def change(members: dict[str, bytes]) -> dict[str, bytes]:
        data = bytearray(members[f"binaries/{digest}"])
        data[-1] ^= 1
        return {**members, f"binaries/{digest}": bytes(data)}

    altered = BundleFile(rewritten(tmp_path / "altered.gtb", gpu, change))
    assert altered.digest == gpu.digest
    for use in (
        altered.verify,
        lambda: altered.binary(digest),
        lambda: altered.subset(gpu.problem_ids, tmp_path / "x"),
    ):
        with pytest.raises(BundleError, match=f"binary {digest[:12]} has another digest"):
            use()
    assert not (tmp_path / "x").exists()


def test_a_file_that_is_no_bundle(gpu: BundleFile, tmp_path: Path) -> None:
    path = tmp_path / "cut.gtb"
    whole = gpu.path.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(BundleError, match=r"is no bundle, or is damaged"):
            BundleFile(path).verify()
    with pytest.raises(BundleError, match="does not exist"):
        BundleFile(tmp_path / "none.gtb")


def test_a_member_larger_than_it_says(
    gpu: BundleFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_file, "_MOST_MANIFEST", 100)
    with pytest.raises(BundleError, match=r"manifest.json has more than 100 bytes"):
        BundleFile(gpu.path)
