"""Packages of families on copies of misaligned operands: what is in them, and what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.errors import IllegalSolution
from backends.gpu.copies import copy_launch
from backends.gpu.padded import FACTORS, buffers, copied, padded_twin
from backends.operands import layouts
from backends.packages.launches import WORKSPACE, Fill
from backends.packages.package import build
from backends.packages.padded import copy_argument
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from backends.toolchains.emulator import Emulator
from backends.toolchains.registry import TOOLCHAINS
from tests.backends.packages.host_cuda import HostCuda
from tests.backends.packages.opened import opened, program
from tests.backends.packages.test_package import launched_right

VALUES: dict[str, Any] = {
    "tile_m": 128, "tile_n": 64, "stages": 3, "share": 1, "share_b": 1, "splits": 1, "group": 8,
}  # fmt: skip
PADDED = Solution("tile-wgmma-padded", 3, VALUES)
ODD = from_linear(301, 299, 513, "bf16")
#: A is copied, B is not: its rows are given whole 16 bytes.
ONE = from_linear(67, 80, 131, "fp16", lda=136, beta=2.0)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Binaries are the emulator's, which tells no resources."""
    monkeypatch.setitem(cast("dict[str, Any]", TOOLCHAINS), "cuda", Emulator())
    monkeypatch.setattr(resources, "read", lambda _: {})


@pytest.mark.parametrize("problem", [ODD, ONE], ids=["both", "one"])
def test_the_struct_of_copies_is_the_arguments_bytes(problem: GemmProblem) -> None:
    own, ours = layouts(problem), layouts(padded_twin(problem, FACTORS))
    starts, _ = buffers(problem, FACTORS)
    launch = copy_launch([(own[name], ours[name]) for name in copied(problem, FACTORS)])
    told = copy_argument(launch, {name: (Fill(name), Fill(WORKSPACE, at)) for name, at in starts.items()})
    given = {"a": 1 << 40, "b": 2 << 40, WORKSPACE: 3 << 40}
    addresses = [(given[name], given[WORKSPACE] + at) for name, at in starts.items()]
    assert program().pack(told.to_dict(), given) == bytes(launch.at(addresses))


def test_the_copies_come_before_the_product(cache: BinaryCache) -> None:
    document, files = opened(build(ODD, PADDED, "sm_90", None, cache))
    assert list(files) == ["copy.cubin", "kernel.cubin"]
    copies, product = document["launches"]
    assert [(one["file"], one["entry"]) for one in (copies, product)] == [
        ("copy.cubin", "pad"),
        ("kernel.cubin", "gemm"),
    ]
    assert copies["programmatic_stream_serialization"] is product["programmatic_stream_serialization"] is True
    assert copies["resources"]["registers"] > 8
    starts, size = buffers(ODD, FACTORS)
    assert document["workspace"] == {"bytes": size, "alignment": 256}
    fields = {field["name"]: field for field in copies["arguments"][0]["fields"]}
    assert (fields["b.source"]["fill"], fields["b.target"]["fill"]) == ("b", "workspace")
    assert fields["b.target"]["plus"] == starts["b"] > 0
    maps = [field for field in product["arguments"][0]["fields"] if "tensor_map" in field]
    assert [(one["fill"], one.get("plus", 0)) for one in maps] == [
        ("workspace", starts["a"]),
        ("workspace", starts["b"]),
    ]
    assert set(document["operands"]) == {"a", "b", "d"}
    assert document["operands"]["a"]["ld"] == 513, "as the caller has it"


@pytest.mark.usefixtures("emulated")
def test_a_package_computes_what_numpy_does(cache: BinaryCache, tmp_path: Path) -> None:
    """By the document's program, with every call of libcuda on the host."""
    path = tmp_path / "package.zip"
    problem = from_linear(67, 75, 131, "fp16", beta=2.0)
    path.write_bytes(build(problem, PADDED, "sm_90", None, cache))
    cuda = HostCuda(tmp_path)
    launched_right(program().Driver("cuda", cuda), path)
    assert cuda.launched == [("pad", True), ("gemm", True)]


@pytest.mark.usefixtures("emulated")
def test_an_operand_that_is_not_copied_is_read_where_it_is(cache: BinaryCache, tmp_path: Path) -> None:
    path = tmp_path / "package.zip"
    path.write_bytes(build(ONE, PADDED, "sm_90", None, cache))
    module, cuda = program(), HostCuda(tmp_path)
    driver = module.Driver("cuda", cuda)
    package = module.Package(driver, str(path))
    found = {name: layouts(ONE)[name] for name in package.document["operands"]}
    rng, host, filled = np.random.default_rng(0), {}, {"alpha": 1.0, "beta": 0.0}
    for name, layout in found.items():
        host[name] = rng.standard_normal(layout.elements).astype(np.float16)
        filled[name] = driver.allocate(layout.bytes)
        driver.write(filled[name], host[name].tobytes())
    filled["workspace"] = driver.allocate(package.document["workspace"]["bytes"])
    package.run(filled)
    out = np.frombuffer(driver.read(filled["d"], found["d"].bytes), np.float16)
    a, b = (found[name].view(host[name])[0].astype(np.float64) for name in ("a", "b"))
    np.testing.assert_allclose(found["d"].view(out)[0], b @ a.T, rtol=2e-3, atol=2e-1)


def test_what_is_not_legal(tmp_path: Path) -> None:
    aligned = from_linear(304, 304, 512, "bf16")
    older = Solution("tile-wgmma-padded", 2, VALUES)
    for problem, solution, rule in (
        (aligned, PADDED, "neither A nor B of .* is misaligned"),
        (ODD, older, "version 2 of tile-wgmma-padded is none of"),
    ):
        with pytest.raises(IllegalSolution, match=rule):
            build(problem, solution, "sm_90", None, BinaryCache(tmp_path))
    assert not list(tmp_path.iterdir()), "nothing was compiled"
