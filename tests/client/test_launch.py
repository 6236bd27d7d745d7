"""Launches on a stub of each vendor's driver: packing, order, workspace, tensor maps, failures."""

from __future__ import annotations

import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

import gemmtune
import numpy as np
import pytest

from backends.problem import GemmProblem, from_mm
from tests.client import bundles
from tests.client.stub import Stub, library

pytestmark = pytest.mark.compiler
PROBLEM = from_mm(4, 6, 8, "fp32", trans_b="T")


def _table(path: Path, stub: Stub, rows: list[Any], binaries: list[bytes]) -> gemmtune.Table:
    found = bundles.manifest(bundles.DEVICES[stub.vendor], rows, dict.fromkeys(binaries, ".bin"))
    return gemmtune.load(bundles.write(path / "b.gtb", found, dict.fromkeys(binaries, ".bin")))


def _one(path: Path, stub: Stub, problem: GemmProblem = PROBLEM, **changes: Any) -> gemmtune.Table:
    row = bundles.row(problem, stub.vendor, [bundles.gemm_launch(problem, stub.vendor, **changes)])
    return _table(path, stub, [row], [bundles.gemm_binary()])


class Operands:
    """Operands of PROBLEM in the driver's memory. In column-major terms A is the call's B."""

    def __init__(self, driver: Any, problem: GemmProblem = PROBLEM, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self._driver, self._problem = driver, problem
        self.left = generator.integers(-4, 5, (problem.n, problem.k)).astype(np.float32)
        self.right = generator.integers(-4, 5, (problem.m, problem.k)).astype(np.float32)
        self.at = {name: driver.allocate(4096) for name in ("a", "b", "d")}
        driver.write(self.at["a"], self.right.tobytes())
        driver.write(self.at["b"], self.left.tobytes())

    def addresses(self, kernel: gemmtune.Kernel) -> tuple[int, ...]:
        return tuple(self.at[name] for name in kernel.operands)

    def output(self) -> Any:
        shape = (self._problem.n, self._problem.m)
        data = self._driver.read(self.at["d"], 4 * shape[0] * shape[1])
        return np.frombuffer(data, np.float32).reshape(shape)

    def expected(self) -> Any:
        return self.left @ self.right.T


def test_a_launch_computes_the_product_with_every_new_address(stub: Stub, tmp_path: Path) -> None:
    table = _one(tmp_path, stub)
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    launch = kernel.prepare()
    for seed in range(3):
        operands = Operands(loaded.driver, seed=seed)
        kernel.check(0, operands.addresses(kernel))
        for _ in range(2):  # the second time with addresses that the block already has
            loaded.driver.write(operands.at["d"], bytes(4 * 24))
            launch(0, 0, operands.addresses(kernel))
            np.testing.assert_array_equal(operands.output(), operands.expected())
    assert len(stub.launches) == 6
    assert stub.loads == 1


def test_a_launch_has_the_shape_and_the_stream_that_were_asked_for(stub: Stub, tmp_path: Path) -> None:
    table = _one(tmp_path, stub, grid=[7, 5, 3], block=[32, 4, 2], dynamic_shared_bytes=4096)
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    launch, operands = kernel.prepare(), Operands(loaded.driver)
    streams = (0, 0x77, 0x77, 0x99, 0)
    for stream in streams:
        launch(stream, 0, operands.addresses(kernel))
    assert [found.stream for found in stub.launches] == list(streams)
    first = stub.launches[0]
    assert (list(first.grid), list(first.block), first.shared) == ([7, 5, 3], [32, 4, 2], 4096)
    assert (first.entry, first.programmatic, first.shared_limit) == (b"product", 0, 0)


def test_attributes_of_cuda(cuda_stub: Stub, tmp_path: Path) -> None:
    table = _one(
        tmp_path, cuda_stub, dynamic_shared_bytes=100_000, needs_shared_memory_attribute=True,
        programmatic_stream_serialization=True,
    )  # fmt: skip
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    operands = Operands(loaded.driver)
    kernel.prepare()(0, 0, operands.addresses(kernel))
    found = cuda_stub.launches[0]
    assert (found.programmatic, found.shared_limit, found.shared) == (1, 100_000, 100_000)
    np.testing.assert_array_equal(operands.output(), operands.expected())


def test_launches_run_in_order_with_addresses_inside_the_workspace(stub: Stub, tmp_path: Path) -> None:
    """The product reads a copy of a, which the launch before it makes 512 bytes into the workspace."""
    size = 4 * PROBLEM.m * PROBLEM.k
    product = bundles.gemm_launch(PROBLEM, stub.vendor, a={"fill": "workspace", "plus": 512})
    launches = [bundles.copy_launch("a", 512, size, stub.vendor), product]
    row = bundles.row(PROBLEM, stub.vendor, launches, workspace_bytes=1024)
    table = _table(tmp_path, stub, [row], [bundles.gemm_binary(), bundles.COPY_BINARY])
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    assert (kernel.workspace_bytes, kernel.workspace_alignment) == (1024, 256)
    launch, operands = kernel.prepare(), Operands(loaded.driver)
    for _ in range(2):  # the second time with another workspace alone
        workspace = loaded.driver.allocate(1024)
        launch(0, workspace, operands.addresses(kernel))
        np.testing.assert_array_equal(operands.output(), operands.expected())
        assert loaded.driver.read(workspace + 512, size) == operands.right.tobytes()
    assert [found.entry for found in stub.launches] == [b"copies", b"product"] * 2
    assert stub.loads == 2


def test_scalars_that_the_problem_leaves_open(stub: Stub, tmp_path: Path) -> None:
    problem = from_mm(4, 6, 8, "fp32", trans_b="T", alpha=2.0)
    table = _one(tmp_path, stub, problem)
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    assert kernel.scalars == ("alpha",)
    operands = Operands(loaded.driver, problem)
    kernel.prepare(alpha=-3.0)(0, 0, operands.addresses(kernel))
    np.testing.assert_array_equal(operands.output(), -3.0 * operands.expected())
    launch = kernel.prepare(alpha=1.0)
    for alpha in (2.0, 0.5):
        launch.set_scalars(alpha=alpha)
        launch(0, 0, operands.addresses(kernel))
        np.testing.assert_array_equal(operands.output(), alpha * operands.expected())
    with pytest.raises(gemmtune.LaunchError, match="has a fixed beta"):
        launch.set_scalars(beta=1.0)
    with pytest.raises(gemmtune.LaunchError, match="takes alpha; given: none"):
        kernel.prepare()
    with pytest.raises(gemmtune.LaunchError, match="takes alpha; given: alpha and beta"):
        kernel.prepare(alpha=1.0, beta=0.0)


# ---- tensor maps ---------------------------------------------------------------------------------


def _with_maps(path: Path, stub: Stub) -> gemmtune.Table:
    row = bundles.row(PROBLEM, "cuda", [bundles.gemm_launch(PROBLEM, "cuda", maps=("a", "b"))])
    return _table(path, stub, [row], [bundles.gemm_binary(("a", "b"))])


def test_tensor_maps_are_encoded_again_only_for_another_address(cuda_stub: Stub, tmp_path: Path) -> None:
    table = _with_maps(tmp_path, cuda_stub)
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    launch, operands = kernel.prepare(), Operands(loaded.driver)
    counts = []
    for name in (None, None, "d", "a", "b", None):
        if name is not None:  # the operand moves
            data = loaded.driver.read(operands.at[name], 4 * 64)
            operands.at[name] = loaded.driver.allocate(4096)
            loaded.driver.write(operands.at[name], data)
        launch(0, 0, operands.addresses(kernel))
        counts.append(cuda_stub.encodings)
        np.testing.assert_array_equal(operands.output(), operands.expected())
    assert counts == [2, 2, 2, 3, 4, 4]


def test_a_map_that_cannot_be_encoded(cuda_stub: Stub, tmp_path: Path) -> None:
    table = _with_maps(tmp_path, cuda_stub)
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    launch, operands = kernel.prepare(), Operands(loaded.driver)
    good = operands.addresses(kernel)
    with pytest.raises(gemmtune.LaunchError, match=r"cuTensorMapEncodeTiled at 0x.*4 .*: CUresult 1"):
        launch(0, 0, (good[0] + 4, *good[1:]))
    assert cuda_stub.launches == []
    launch(0, 0, good)
    np.testing.assert_array_equal(operands.output(), operands.expected())


def test_the_map_says_what_the_manifest_says(cuda_stub: Stub, tmp_path: Path) -> None:
    table = _with_maps(tmp_path, cuda_stub)
    tensor_map = table.rows[0].launches[0].fills[-2].tensor_map
    assert tensor_map is not None
    space = np.zeros(256, np.uint8)
    at = -(-space.ctypes.data // 64) * 64
    assert table.open().driver.encoder(tensor_map, at)(0x1230) == 0
    data = bytes(space[at - space.ctypes.data :][:128])
    m, k = PROBLEM.m, PROBLEM.k
    assert struct.unpack_from("<Q3i", data) == (0x1230, 3, 9, 3)
    assert struct.unpack_from("<3Q2Q", data, 24) == (k, m, 1, 4 * k, 16)
    assert struct.unpack_from("<3I3I", data, 64) == (64, 128, 1, 1, 1, 1)


# ---- failures ------------------------------------------------------------------------------------


def test_a_launch_that_fails_names_call_and_status(stub: Stub, tmp_path: Path) -> None:
    table = _one(tmp_path, stub)
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    launch, operands = kernel.prepare(), Operands(loaded.driver)
    call = {"cuda": "cuLaunchKernelEx", "hip": "hipModuleLaunchKernel"}[stub.vendor]
    stub.fail(call, 719)
    with pytest.raises(gemmtune.LaunchError, match=f"{call} of stub-.*: .*(LAUNCH_FAILED|LaunchFailure)"):
        launch(0, 0, operands.addresses(kernel))
    stub.fail("", 0)
    launch(0, 0, operands.addresses(kernel))
    np.testing.assert_array_equal(operands.output(), operands.expected())


@pytest.mark.parametrize(
    ("call", "status", "text"),
    [
        ("ModuleLoadData", 200, "INVALID_IMAGE.*newer than the driver|hipErrorInvalidImage"),
        ("ModuleGetFunction", 500, "NOT_FOUND|NotFound"),
    ],
)
def test_a_kernel_that_does_not_load(stub: Stub, tmp_path: Path, call: str, status: int, text: str) -> None:
    table = _one(tmp_path, stub)
    loaded = table.open()
    name = {"cuda": "cu", "hip": "hip"}[stub.vendor] + call
    stub.fail(name, status)
    with pytest.raises(gemmtune.LaunchError, match=f"{name}: .*({text})"):
        loaded.kernel(table.rows[0])
    stub.fail("", 0)
    loaded.kernel(table.rows[0])  # a failure is not kept


def test_an_altered_binary_is_not_loaded(stub: Stub, tmp_path: Path) -> None:
    good, bad = bundles.gemm_binary(), bundles.gemm_binary().replace(b"gemm", b"copy")
    row = bundles.row(PROBLEM, stub.vendor, [bundles.gemm_launch(PROBLEM, stub.vendor)])
    found = bundles.manifest(bundles.DEVICES[stub.vendor], [row], {good: ".bin"})
    found["binaries"][bundles.digest(good)]["bytes"] = len(bad)
    manifest = json.dumps(found).encode()
    members = {"manifest.json": manifest, f"binaries/{bundles.digest(good)}": bad}
    table = gemmtune.load(bundles.write_members(tmp_path / "b.gtb", members))
    loaded = table.open()
    with pytest.raises(gemmtune.LaunchError, match="not what its name says"):
        loaded.kernel(table.rows[0])
    assert stub.loads == 0


def test_a_device_of_another_class(stub: Stub, tmp_path: Path) -> None:
    device = bundles.DEVICES[stub.vendor].rsplit(":", 1)[0] + ":8"
    table = gemmtune.load(bundles.simple(tmp_path / "b.gtb", stub.vendor, device=device))
    with pytest.raises(gemmtune.LaunchError, match=f"is for {device}, this device is .*export"):
        table.open()


def test_the_ordinal_chooses_the_device(stub: Stub, tmp_path: Path) -> None:
    table = gemmtune.load(bundles.simple(tmp_path / "b.gtb", stub.vendor))
    with pytest.raises(gemmtune.LaunchError, match=r"this device is .*Other"):
        table.open(1)
    with pytest.raises(gemmtune.LaunchError, match=r"sees 2 \w+ GPUs; there is none of ordinal 2"):
        table.open(2)


def test_a_driver_that_is_too_old(cuda_stub: Stub, tmp_path: Path) -> None:
    cuda_stub.version(12080)
    table = gemmtune.load(bundles.simple(tmp_path / "b.gtb"))
    with pytest.raises(gemmtune.LaunchError, match=r"CUDA 13\.0; this one knows 12\.8: update the driver"):
        table.open()


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gemmtune import drivers
    from gemmtune.drivers import cuda

    monkeypatch.setattr(drivers, "_open", {})
    monkeypatch.setattr(cuda, "NAMES", ("libgemmtune-none.so.1",))
    table = gemmtune.load(bundles.simple(tmp_path / "b.gtb"))
    with pytest.raises(gemmtune.LaunchError, match=r"no NVIDIA driver on this machine.*libgemmtune-none"):
        table.open()


def test_addresses_that_a_launch_would_not_check(stub: Stub, tmp_path: Path) -> None:
    table = _one(tmp_path, stub)
    kernel = table.open().kernel(table.rows[0])
    assert kernel.alignments == (16, 16, 16)
    with pytest.raises(gemmtune.LaunchError, match="2 addresses; the operands are a, b, d"):
        kernel.check(0, (16, 16))
    with pytest.raises(gemmtune.LaunchError, match="2 addresses; the operands are a, b, d"):
        kernel.prepare()(0, 0, (16, 16))
    with pytest.raises(gemmtune.LaunchError, match="b is at 0x18; it must be at a multiple of 16"):
        kernel.check(0, (16, 24, 16))


# ---- threads, contexts and processes -------------------------------------------------------------


def test_a_context_is_current_where_it_is_needed_and_nowhere_else(cuda_stub: Stub, tmp_path: Path) -> None:
    table = _one(tmp_path, cuda_stub)
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    assert cuda_stub.current() == 0  # loading leaves the thread as it was
    kernel.prepare()
    assert cuda_stub.current() == 0x1000
    seen = []

    def other() -> None:
        launch, operands = kernel.prepare(), Operands(loaded.driver)
        launch(0, 0, operands.addresses(kernel))
        seen.append(bool((operands.output() == operands.expected()).all()))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [True]
    assert {found.context for found in cuda_stub.launches} == {0x1000}


def test_a_thread_of_hip_chooses_the_second_device_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gemmtune.drivers.hip.NAMES", (str(library("hip")),))
    monkeypatch.setattr("gemmtune.drivers._open", {})
    found = Stub("hip")
    path = bundles.simple(tmp_path / "b.gtb", "hip", device="hip:gfx942:AMD-Other:304")
    table = gemmtune.load(path)
    seen = []

    def launches() -> None:
        loaded = table.open(1)
        loaded.make_current()
        launch, operands = loaded.kernel(table.rows[0]).prepare(), Operands(loaded.driver)
        launch(0, 0, operands.addresses(loaded.kernel(table.rows[0])))
        seen.append(found.launches[0].context)

    thread = threading.Thread(target=launches)
    thread.start()
    thread.join()
    assert seen == [0x1001]


def test_threads_load_a_kernel_once(stub: Stub, tmp_path: Path) -> None:
    table = gemmtune.load(bundles.simple(tmp_path / "b.gtb", stub.vendor, count=40))
    loaded = table.open()
    found: list[list[gemmtune.Kernel]] = [[] for _ in range(8)]

    def load(mine: list[gemmtune.Kernel]) -> None:
        mine.extend(loaded.kernel(row) for row in table.rows)

    threads = [threading.Thread(target=load, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == found[0] for mine in found)
    assert stub.loads == 1  # the rows share one binary


def test_a_forked_process_is_refused(stub: Stub, tmp_path: Path) -> None:
    table = _one(tmp_path, stub)
    loaded = table.open()
    kernel = loaded.kernel(table.rows[0])
    launch, operands = kernel.prepare(), Operands(loaded.driver)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (
            lambda: launch(0, 0, operands.addresses(kernel)),
            kernel.prepare,
            lambda: loaded.kernel(table.rows[0]),
        ):
            try:
                call()
                said.append("launched")
            except gemmtune.LaunchError as error:
                said.append(str(error))
        os.write(writer, "\n".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 10_000).decode().split("\n")
    os.close(reader)
    os.close(writer)
    assert len(said) == 3
    for text in said:
        assert f"process {os.getpid()} loaded the kernels and was then forked" in text
        assert "spawn" in text
    launch(0, 0, operands.addresses(kernel))  # the parent goes on
