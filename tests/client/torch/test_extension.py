"""The C++ extension: built once, it computes what the Python path computes, and decides as that does."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.launch import PreparedLaunch
from gemmtune.torch import extension, served, watch
from gemmtune.torch.runtime import CpuRuntime
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from backends.cache import BinaryCache
from backends.problem import from_linear, from_mm
from tests.client import bundles
from tests.client.stub import Stub
from tests.client.torch import test_applied, test_enabled
from tests.client.torch.close import close
from tests.client.torch.conftest import ROWS, K, N
from tests.client.torch.quantised.conftest import weights
from tests.client.torch.quantised.emulated import write
from tests.client.torch.quantised.samples import right, sample

if TYPE_CHECKING:
    from gemmtune import Table

#: Suites of the Python path that run here again, with the extension.
test_odd_inputs_give_torchs_result = test_applied.test_odd_inputs_give_torchs_result
test_any_view_gives_torchs_result = test_applied.test_any_view_gives_torchs_result
test_wrong_inputs_raise_torchs_error = test_applied.test_wrong_inputs_raise_torchs_error
test_a_sparse_input_gives_torchs_result = test_applied.test_a_sparse_input_gives_torchs_result
test_modes_and_transforms_see_torchs_operators = test_applied.test_modes_and_transforms_see_torchs_operators
test_moved_replaced_and_transposed = test_applied.test_moved_replaced_and_transposed_parameters_are_seen
test_copies_compute_with_their_own_parameters = test_applied.test_copies_compute_with_their_own_parameters
test_threads_share_a_model = test_applied.test_threads_share_a_model
test_outputs_that_torch_refuses_are_refused = test_enabled.test_outputs_that_torch_refuses_are_refused
test_any_operands_give_torchs_result = test_enabled.test_any_operands_give_torchs_result
test_threads_call_overridden_operators = test_enabled.test_threads_call_overridden_operators
test_disable_restores_torchs_kernels = test_enabled.test_disable_restores_torchs_kernels_without_a_word


pytestmark = pytest.mark.timeout(900)  # the compiler's half minute is longer on a busy machine


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The extension's module, compiled for this torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("CXX", raising=False)  # the suites' own has a header that only the CPU's kernels need
        path = gemmtune.torch.build_extension()
        changed = path.stat().st_mtime_ns
        assert gemmtune.torch.build_extension() == path
        assert path.stat().st_mtime_ns == changed
        yield extension._imported(path)


@pytest.fixture(autouse=True)
def on(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension is in use."""
    state = extension._State()
    state.asked, state.module = True, module
    monkeypatch.setattr(extension, "_STATE", state)


def launches(handle: Any) -> int:
    """Launches by the extension since the table was acquired."""
    return sum(row.native.calls for row in handle._served.rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_modules_compute_what_the_python_path_computes(table: Table, dtype: Any, bias: bool) -> None:
    linear = test_applied.linear(dtype, bias)
    inputs = [torch.randn(*lead, K, dtype=dtype) for lead in [(m,) for m in ROWS] + [(2, 20), (7,)]]
    with gemmtune.torch.apply(linear, table) as handle:
        with gemmtune.torch.report():
            expected = [linear(x) for x in inputs]
        assert launches(handle) == 0
        found = [linear(x) for x in inputs]
        assert launches(handle) == len(ROWS) + 1
    assert all(map(torch.equal, found, expected))


def test_merged_projections_are_launched_by_it(make_table: Any) -> None:
    class Mlp(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(K, N, bias=False), nn.Linear(K, N, bias=False)

        def forward(self, x: Any) -> Any:
            return self.gate_proj(x) * self.up_proj(x)

    model, x = Mlp().requires_grad_(False), torch.randn(8, K)
    expected = model(x)
    with gemmtune.torch.apply(model, make_table([from_linear(8, 2 * N, K, "fp32")]), fuse=True) as handle:
        assert torch.allclose(model(x), expected, rtol=1e-5, atol=1e-5)
        assert launches(handle) == 1


def test_operators_are_launched_by_it_from_their_second_call_on(table: Table) -> None:
    a, b, c = torch.randn(40, K), torch.randn(K, N), torch.randn(40, N)
    weight, bias = torch.randn(N, K), torch.randn(N)
    batched = torch.randn(3, 8, K), torch.randn(3, K, 24)
    shared = batched[0], torch.randn(K, 24).expand(3, K, 24)
    calls: list[Callable[[], Any]] = [
        lambda: torch.mm(a, b), lambda: torch.addmm(c, a, b), lambda: torch.bmm(*batched),
        lambda: torch.bmm(*shared), lambda: nn.functional.linear(a, weight, bias),
        lambda: torch.mm(a, b.t().contiguous().t()),
    ]  # fmt: skip
    with gemmtune.torch.enable(table) as handle:
        first = [call() for call in calls]
        assert launches(handle) == 0
        second = [call() for call in calls]
        assert launches(handle) == len(calls)
        torch.mm(a, b, out=torch.empty(40, N))  # Python's
        torch.addmm(c, a, b, beta=2)  # torch's
        assert launches(handle) == len(calls)
    assert all(map(torch.equal, first, second))


def test_backward_is_served(table: Table) -> None:
    linear, x = nn.Linear(K, N), torch.randn(40, K, requires_grad=True)
    parameters = [x, *linear.parameters()]
    expected = torch.autograd.grad(linear(x).square().sum(), parameters)
    with gemmtune.torch.enable(table) as handle:
        for _ in range(2):
            found = torch.autograd.grad(linear(x).square().sum(), parameters)
        assert launches(handle) == 3
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_it_launches_exactly_what_the_python_path_launches(table: Table) -> None:
    case = st.tuples(
        st.sampled_from([1, 3, 8, 40]), st.sampled_from([16, N]), st.sampled_from([K, 40]), st.booleans(),
        st.booleans(), st.sampled_from([0, 16, 3]), st.sampled_from([0, 0, 1]), st.sampled_from([0, 1, 2]),
        st.sampled_from(test_enabled.DTYPES),
    )  # fmt: skip

    with gemmtune.torch.enable(table) as handle:
        handle.load()

        @settings(max_examples=60, deadline=None)
        @given(case)
        def check(one: tuple[Any, ...]) -> None:
            m, n, k, transposed_a, transposed_b, padding, offset, added, dtype = one

            def matrix(rows: int, columns: int, transposed: bool) -> Any:
                if transposed:
                    return matrix(columns, rows, False).t()
                flat = torch.randn(rows * (columns + padding) + offset).to(dtype)[offset:]
                return flat.view(rows, columns + padding)[:, :columns]

            a, b = matrix(m, k, transposed_a), matrix(k, n, transposed_b)
            c = [None, torch.randn(n).to(dtype), matrix(m, n, False)][added]
            call: Callable[[], Any] = (
                (lambda: torch.mm(a, b)) if c is None else (lambda: torch.addmm(c, a, b))
            )
            with gemmtune.torch.report() as count:
                expected = call()
            before = launches(handle)
            found = call()
            assert launches(handle) - before == count.report().hits
            assert torch.equal(found, expected)

        check()


def test_autocast_gradients_and_deterministic_mode_are_the_python_paths(make_table: Any) -> None:
    table = make_table([from_linear(8, N, K, "fp32")], deterministic=None)
    linear, x = nn.Linear(K, N, bias=False), torch.randn(8, K)
    with gemmtune.torch.apply(linear, table) as handle:
        assert linear(x).requires_grad
        with torch.no_grad():
            with torch.autocast("cpu", torch.bfloat16):
                assert linear(x).dtype == torch.bfloat16
            torch.use_deterministic_algorithms(True)
            try:
                linear(x)
            finally:
                torch.use_deterministic_algorithms(False)
            before = torch.get_float32_matmul_precision()
            try:
                torch.set_float32_matmul_precision("medium")
                linear(x)
            finally:
                torch.set_float32_matmul_precision(before)
            assert launches(handle) == 0
            linear(x)
            assert launches(handle) == 1


def test_a_refresh_replaces_its_rows(make_table: Any) -> None:
    table = make_table([from_linear(8, N, K, "fp32")])
    linear, a, b = test_applied.linear(bias=False), torch.randn(8, K), torch.randn(3, K)
    with gemmtune.torch.apply(linear, table) as handle, gemmtune.torch.enable(table) as enabled:
        make_table([from_linear(3, N, K, "fp32")])  # in the same file
        assert handle.refresh()
        enabled.load()
        for x in (a, b):
            assert close(linear(x), x, linear.weight.t())
            torch.mm(x, linear.weight.t())
        assert launches(handle) == 2


def test_a_forked_process_launches_its_own_kernels(table: Table) -> None:
    linear, x = test_applied.linear(), torch.randn(8, K)
    with gemmtune.torch.apply(linear, table) as handle:
        expected = linear(x)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that hangs is a failure too
            ok = False
            try:
                same = [torch.equal(linear(x), expected) for _ in range(2)]
                ok = all(same) and launches(handle) == 2  # the parent's, and the second of the child's
            finally:
                os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- on the stub of a GPU's driver, whose memory is the host's ------------------------------------


class StubRuntime(CpuRuntime):
    """A GPU's streams, on tensors of the host. `current` is torch's current stream."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0x500

        def write(device: int, stream: Any) -> int:
            stream[0] = self.current
            return 0

        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_uint64))
        self._function = kind(write)
        self.stream_function = ctypes.cast(self._function, ctypes.c_void_p).value

    def stream(self, index: int) -> int:
        """See Runtime."""
        return self.current


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> StubRuntime:
    found = StubRuntime()
    monkeypatch.setattr(served, "runtime_of", lambda vendor: found)
    return found


def stub_table(path: Path, vendor: str, workspace: int = 0, **changes: Any) -> Table:
    """A table of mm[2,5] [5,3] and of the nn.Linear of 5 inputs, 3 outputs and 2 rows."""
    maps = changes.pop("maps", ())
    binary = bundles.gemm_binary(maps)
    problems = [from_mm(2, 3, 5, "fp32"), from_linear(2, 3, 5, "fp32")]
    launches = [bundles.gemm_launch(one, vendor, maps, **changes) for one in problems]
    rows = [bundles.row(one, vendor, [of], workspace) for one, of in zip(problems, launches, strict=True)]
    found = bundles.manifest(bundles.DEVICES[vendor], rows, {binary: ".bin"})
    found["environments"] = {"here": {}}  # none that differs from this process's
    return gemmtune.load(bundles.write(path, found, {binary: ".bin"}))


def test_a_gpus_rows_are_launched_as_they_are_described(
    stub: Stub, runtime: StubRuntime, tmp_path: Path
) -> None:
    cuda = stub.vendor == "cuda"
    table = stub_table(
        tmp_path / "stub.gtb", stub.vendor, grid=[4, 5, 6], block=[64, 2, 1], dynamic_shared_bytes=1024,
        needs_shared_memory_attribute=cuda, programmatic_stream_serialization=cuda,
    )  # fmt: skip
    linear, x, b = nn.Linear(5, 3, bias=False).requires_grad_(False), torch.randn(2, 5), torch.randn(5, 3)
    with gemmtune.torch.apply(linear, table) as handle, gemmtune.torch.enable(table) as enabled:
        enabled.load()
        runtime.current = 0x777
        assert torch.allclose(linear(x), x @ linear.weight.t().contiguous(), atol=1e-6)
        assert torch.allclose(torch.mm(x, b), x.double().mm(b.double()).float(), atol=1e-6)
        assert launches(handle) >= 2
    for one in stub.launches:
        assert (list(one.grid), list(one.block), one.shared) == ([4, 5, 6], [64, 2, 1], 1024)
        assert (one.stream, one.programmatic) == (0x777, int(cuda))


def test_maps_are_encoded_for_addresses_that_change(
    cuda_stub: Stub, runtime: StubRuntime, tmp_path: Path
) -> None:
    table = stub_table(tmp_path / "stub.gtb", "cuda", maps=("a", "b"))
    linear, x, y = nn.Linear(5, 3, bias=False).requires_grad_(False), torch.randn(2, 5), torch.randn(2, 5)
    with gemmtune.torch.apply(linear, table) as handle:
        encodings = []
        for given_x in (x, x, y):
            before = cuda_stub.encodings
            assert torch.allclose(linear(given_x), given_x @ linear.weight.t())
            encodings.append(cuda_stub.encodings - before)
        assert encodings == [2, 0, 1]  # the weight's stays
        assert launches(handle) == 3


def test_a_launch_that_fails_is_torchs_once_warned(stub: Stub, runtime: StubRuntime, tmp_path: Path) -> None:
    table = stub_table(tmp_path / "stub.gtb", stub.vendor)
    linear, x = nn.Linear(5, 3, bias=False).requires_grad_(False), torch.randn(2, 5)
    with gemmtune.torch.apply(linear, table) as handle:
        stub.fail({"cuda": "cuLaunchKernelEx", "hip": "hipModuleLaunchKernel"}[stub.vendor], 719)
        with pytest.warns(RuntimeWarning, match=r"launch of tn_3x2x5_fp32.*(LAUNCH_FAILED|LaunchFailure)"):
            assert torch.allclose(linear(x), x @ linear.weight.t())
        stub.fail("", 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            linear(x)
        assert (launches(handle), len(stub.launches)) == (0, 0)


def test_a_thread_without_the_device_is_the_python_paths(
    stub: Stub, runtime: StubRuntime, tmp_path: Path
) -> None:
    linear, x = nn.Linear(5, 3, bias=False).requires_grad_(False), torch.randn(2, 5)
    counts = []

    def work() -> None:
        for _ in range(2):
            linear(x)
            counts.append(launches(handle))

    with gemmtune.torch.apply(linear, stub_table(tmp_path / "stub.gtb", stub.vendor)) as handle:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    # A thread of HIP's has a device from the start.
    assert counts == ([0, 1] if stub.vendor == "cuda" else [1, 2])
    assert len(stub.launches) == 2


def test_a_report_states_the_memory_beside_the_weights(
    cuda_stub: Stub, runtime: StubRuntime, tmp_path: Path
) -> None:
    table = stub_table(tmp_path / "stub.gtb", "cuda", workspace=4096)
    linear, x = nn.Linear(5, 3, bias=False).requires_grad_(False), torch.randn(2, 5)
    with gemmtune.torch.apply(linear, table), gemmtune.torch.report() as count:
        assert count.report().memory.workspaces == 0
        linear(x)
        found = count.report()
        argument_bytes = len(table.rows[1].launches[0].template)
        assert found.memory.modules == len(bundles.gemm_binary())
        assert found.memory.workspaces == 4096 + 256  # with room to align it
        assert found.memory.argument_blocks == 2 * argument_bytes  # Python's, and the extension's
        assert found.memory.total == sum((found.memory.modules, 4096 + 256, 2 * argument_bytes))
        assert "MiB beside the weights" in str(found)
        assert found.path == "the C++ extension"
    assert count.report().memory.total == 0


# ---- which path is in use ------------------------------------------------------------------------


def test_the_path_in_use_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert extension.path_in_use() == "the C++ extension"

    def asked_anew(setting: str) -> str:
        monkeypatch.setattr(extension, "_STATE", extension._State())
        monkeypatch.setenv(extension.SETTING, setting)
        monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path))
        return extension.path_in_use()

    assert asked_anew("off") == "Python (GEMMTUNE_CLIENT_EXTENSION=off)"
    assert "not built: gemmtune.torch.build_extension()" in asked_anew("on")
    with pytest.raises(gemmtune.torch.ServingError, match="must be on or off"):
        asked_anew("perhaps")
    extension.place().parent.mkdir(parents=True)
    extension.place().write_bytes(b"no library")
    with pytest.warns(RuntimeWarning, match="does not load"):
        assert "does not load" in asked_anew("on")


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path))
    with pytest.raises(gemmtune.torch.ServingError, match="false does not compile"):
        gemmtune.torch.build_extension(compiler="false")
    with pytest.raises(gemmtune.torch.ServingError, match="cannot be run"):
        gemmtune.torch.build_extension(compiler=str(tmp_path / "none"))
    assert not extension.place().exists()


def test_nothing_watches_afterwards(module: Any) -> None:
    assert watch.WATCHERS == []


def test_rows_of_quantised_weights_are_pythons(
    tmp_path: Path, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = weights(2, "int8", scale_b="outer")
    weight = sample(problem.m, problem.k, bits=8, group=-1)
    module = gemmtune.torch.QuantizedLinear(weight)
    x = torch.randn(2, problem.k, dtype=torch.bfloat16)
    ran: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(PreparedLaunch, "__call__", _counted(PreparedLaunch.__call__, ran))
        table = gemmtune.load(write(tmp_path / "int8.gtb", [(problem, "dequant-gemv")], cache))
        for use in (gemmtune.torch.apply(module, table), gemmtune.torch.enable(table)):
            with use:
                assert right(module(x), x, weight)
    assert len(ran) == 2


def _counted(call: Callable[..., None], ran: list[int]) -> Callable[..., None]:
    def counted(self: Any, *arguments: Any) -> None:
        ran.append(1)
        call(self, *arguments)

    return counted
