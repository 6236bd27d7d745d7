"""Real CPU kernels of a bundle, launched by the client and compared with a float64 product."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import gemmtune
import numpy as np
import pytest
from gemmtune.drivers import host

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.driver import read_cpu
from backends.dtypes import DTYPES, to_host
from backends.operands import Layout, layouts
from backends.problem import GemmProblem, from_linear, from_mm
from tests.client import bundles, native

pytestmark = pytest.mark.compiler

CASES = {
    "packed": from_mm(70, 33, 50, "fp32"),
    "stream": from_linear(3, 130, 64, "fp32"),
    "bf16, bias and activation": from_linear(5, 48, 96, "bf16", bias="bf16", activation="relu"),
    "scalars and C": from_mm(20, 30, 40, "fp64", alpha=2.0, beta=0.5, lda=50, ldc=31, ldd=33),
    "batch, broadcast": from_mm(9, 10, 11, "fp32", batch=3, stride_b=0),
    "int8": from_mm(17, 19, 23, "int8"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> gemmtune.Table:
    """A table of every case, each with its family's first candidate, on all cores."""
    folder = tmp_path_factory.mktemp("native")
    cache = BinaryCache(folder / "cache")
    rows = [
        (one, native.solution("stream" if "stream" in name else "packed", one)) for name, one in CASES.items()
    ]
    return gemmtune.load(native.write(folder / "b.gtb", cache, rows))


class HostOperands:
    """Random operands in this process's memory; `at` has their addresses."""

    def __init__(self, problem: GemmProblem, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.views: dict[str, Any] = {}
        self.at: dict[str, int] = {}
        self._alive = []
        for name, layout in layouts(problem).items():
            raw = np.zeros(layout.bytes + 64, np.uint8)
            start = -raw.ctypes.data % 64
            flat = raw[start : start + layout.bytes].view(layout.dtype.storage)
            values = generator.integers(-3, 4, layout.elements).astype(np.float64)
            flat[:] = to_host(values, layout.dtype)
            self._alive.append(raw)
            self.at[name], self.views[name] = flat.ctypes.data, _view(layout, flat)


def _view(layout: Layout, flat: Any) -> Any:
    return layout.view(flat)


def _expected(problem: GemmProblem, operands: HostOperands, alpha: float, beta: float) -> Any:
    found = {name: view.astype(np.float64) for name, view in operands.views.items()}
    right = found["a"] if problem.trans_a == "N" else found["a"].swapaxes(1, 2)
    left = found["b"] if problem.trans_b == "N" else found["b"].swapaxes(1, 2)
    out = alpha * (left @ right)
    if "c" in found:
        out = out + beta * found["c"]
    if "bias" in found:
        out = out + found["bias"][:, 0][:, None, :]
    return np.maximum(out, 0) if problem.activation == "relu" else out


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_its_problem(table: gemmtune.Table, name: str) -> None:
    problem = CASES[name]
    row = table.find(gemmtune.problem.key(problem.to_dict()))
    assert row is not None
    assert row.problem_id == problem.id
    loaded = table.open()
    kernel = loaded.kernel(row)
    scalars = {one: {"alpha": -1.5, "beta": 0.25}[one] for one in kernel.scalars}
    launch = kernel.prepare(**scalars)
    workspace = loaded.driver.allocate(kernel.workspace_bytes)
    for seed in range(2):
        operands = HostOperands(problem, seed)
        expected = _expected(problem, operands, scalars.get("alpha", 1.0), scalars.get("beta", 0.0))
        addresses = tuple(operands.at[one] for one in kernel.operands)
        kernel.check(workspace, addresses)
        launch(0, workspace, addresses)
        out = operands.views["d"].astype(np.float64)
        tolerance = 8 * DTYPES[problem.dtype_d].unit_roundoff * np.abs(expected).max()
        np.testing.assert_allclose(out, np.broadcast_to(expected, out.shape), rtol=0, atol=tolerance)


def test_a_status_of_the_kernel_is_named(table: gemmtune.Table) -> None:
    row = table.best(m=70, n=33, k=50, dtype="fp32")
    assert row is not None
    launch = table.open().kernel(row).prepare()
    with pytest.raises(gemmtune.LaunchError, match=r"gemmtune_run of packed.*GEMMTUNE_NULL_POINTER"):
        launch(0, 0, (0, 0, 0))


def test_threads_launch_at_once(table: gemmtune.Table) -> None:
    problem = CASES["packed"]
    row = table.find(gemmtune.problem.key(problem.to_dict()))
    assert row is not None
    kernel, wrong = table.open().kernel(row), []

    def work(seed: int) -> None:
        launch, operands = kernel.prepare(), HostOperands(problem, seed)
        workspace = np.zeros(kernel.workspace_bytes + 64, np.uint8)
        addresses = tuple(operands.at[one] for one in kernel.operands)
        expected = _expected(problem, operands, 1.0, 0.0)
        for _ in range(50):
            operands.views["d"][:] = 0
            launch(0, workspace.ctypes.data, addresses)
            if not np.array_equal(operands.views["d"], expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_another_cpu_is_refused(table: gemmtune.Table, tmp_path: Path) -> None:
    mine = str(table.device)
    other = mine.rsplit(":", 1)[0] + ":4096"
    found = bundles.manifest(other, [], {})
    with pytest.raises(gemmtune.LaunchError, match=f"is for {other}, this device is {mine}"):
        gemmtune.load(bundles.write(tmp_path / "b.gtb", found, {})).open()
    with pytest.raises(gemmtune.LaunchError, match="of ordinal 0; there is no 1"):
        table.open(1)


def test_an_extension_that_a_hypervisor_hides(tmp_path: Path) -> None:
    """The class is this machine's, and the kernels are compiled for more than it has."""
    rows = [(CASES["packed"], native.solution("packed", CASES["packed"]))]
    cache, here = BinaryCache(tmp_path / "cache"), CpuBackend().probe().devices[0].partition
    table = gemmtune.load(native.write(tmp_path / "here.gtb", cache, rows, here))
    table.open().kernel(table.rows[0])
    table = gemmtune.load(native.write(tmp_path / "more.gtb", cache, rows, f"{here}+avx1024"))
    with pytest.raises(gemmtune.LaunchError, match="this CPU, or its hypervisor, lacks avx1024"):
        table.open().kernel(table.rows[0])


def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    problem = CASES["packed"]
    junk = b"no library"
    fields = [bundles.field("a", "void *", 0, fill="a")]
    struct = {"name": "args", "type": "struct GemmArgs", "bytes": 8, "alignment": 8, "fields": fields}
    launch = {
        "binary": bundles.digest(junk),
        "runtime": bundles.digest(junk),
        "entry": "run",
        "arguments": [struct],
    }
    device = str(CpuBackend().probe().devices[0].device_class)
    found = bundles.manifest(device, [bundles.row(problem, "cpu", [launch])], {junk: ".so"})
    table = gemmtune.load(bundles.write(tmp_path / "b.gtb", found, {junk: ".so"}))
    with pytest.raises(gemmtune.LaunchError, match="a kernel's library does not load"):
        table.open().kernel(table.rows[0])


def test_no_file_of_a_library_stays(
    table: gemmtune.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmtune import drivers

    monkeypatch.setattr(drivers, "_open", {})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table.open().kernel(table.rows[0])
    assert os.listdir(tmp_path) == []


def test_the_machine_is_named_as_the_service_names_it() -> None:
    assert str(host.device_class()) == str(CpuBackend().probe().devices[0].device_class)
    info = read_cpu()
    assert host.flags() == info.flags
    assert host.lacks(info.partition) == []
    assert host.lacks("x86-64-v3+no_such_extension")[-1] == "no_such_extension"
