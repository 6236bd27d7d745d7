"""apply(): modules with rows run by these, and everything else as torch has it."""

from __future__ import annotations

import copy
import io
import math
import os
import pickle
import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
from gemmtune import LaunchError
from gemmtune.launch import PreparedLaunch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.client.torch.close import close
from tests.client.torch.conftest import ROWS, K, N

if TYPE_CHECKING:
    from gemmtune import Table

DTYPES = [torch.float32, torch.bfloat16]


def linear(dtype: Any = torch.float32, bias: bool = True, n: int = N) -> nn.Linear:
    return nn.Linear(K, n, bias=bias, dtype=dtype).requires_grad_(False)


def right(module: nn.Linear, x: Any, y: Any) -> bool:
    rows = y.reshape(-1, y.shape[-1])
    return y.shape[:-1] == x.shape[:-1] and close(rows, x.reshape(-1, K), module.weight.t(), module.bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_rows_run_the_modules_products(table: Table, dtype: Any, bias: bool) -> None:
    module = linear(dtype, bias)
    with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count:
        for m in ROWS:
            x = torch.randn(m, K, dtype=dtype)
            assert right(module, x, module(x))
        x = torch.randn(2, 20, K, dtype=dtype)
        assert right(module, x, module(x))
    assert (count.report().hits, count.report().misses) == (len(ROWS) + 1, 0)


def test_other_sizes_are_torchs_own(table: Table) -> None:
    module = linear()
    x = torch.randn(7, K)
    expected = module(x)
    with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count:
        assert torch.equal(module(x), expected)
    assert (count.report().hits, count.report().misses) == (0, 1)


def test_disable_restores_the_class(table: Table) -> None:
    module = linear()
    handle = gemmtune.torch.apply(module, table)
    assert type(module) is not nn.Linear
    assert repr(module) == repr(linear())
    assert handle.modules == 1
    handle.disable()
    handle.disable()
    assert type(module) is nn.Linear
    assert vars(module).keys() == vars(linear()).keys()


def test_modules_without_rows_are_not_touched(table: Table) -> None:
    class Other(nn.Linear):  # type: ignore[misc]
        pass

    model = nn.ModuleList([nn.Linear(K, 20), Other(K, N), nn.Linear(K, N, dtype=torch.float64)])
    with gemmtune.torch.apply(model, table) as handle:
        assert handle.modules == 0
        assert [type(one) for one in model] == [nn.Linear, Other, nn.Linear]


# ---- inputs that rows are not for ----------------------------------------------------------------


class Wrapper(torch.Tensor):  # type: ignore[misc]
    """A subclass that holds a tensor and sees every operator."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = [one.inner if isinstance(one, cls) else one for one in args]
        return function(*bare, **(kwargs or {}))


def _misaligned() -> Any:
    return torch.randn(8 * K + 1)[1:].view(8, K)


ODD_INPUTS: dict[str, Any] = {
    "transposed": lambda: torch.randn(K, 8).t(),
    "every second column": lambda: torch.randn(8, 2 * K)[:, ::2],
    "rows apart": lambda: torch.randn(8, K + 16)[:, :K],
    "misaligned": _misaligned,
    "expanded": lambda: torch.randn(1, K).expand(8, K),
    "empty": lambda: torch.randn(0, K),
    "negated": lambda: torch._neg_view(torch.randn(8, K)),
    "wrapper": lambda: Wrapper(torch.randn(8, K)),
    "parameter": lambda: nn.Parameter(torch.randn(8, K), requires_grad=False),
    "vector": lambda: torch.randn(K),
}


@pytest.mark.parametrize("name", ODD_INPUTS)
def test_odd_inputs_give_torchs_result(table: Table, name: str) -> None:
    module, x = linear(), ODD_INPUTS[name]()
    expected = module(x)
    with gemmtune.torch.apply(module, table):
        found = module(x)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


VIEWS = st.tuples(
    st.lists(st.sampled_from([1, 2, 3, 4, 5, 8]), min_size=0, max_size=3),
    st.integers(0, 3),
    st.integers(1, 2),
    st.sampled_from(DTYPES),
    st.booleans(),
)


def test_any_view_gives_torchs_result(table: Table) -> None:
    modules = {(dtype, bias): linear(dtype, bias) for dtype in DTYPES for bias in (True, False)}

    @settings(max_examples=100, deadline=None)
    @given(VIEWS)
    def check(view: tuple[list[int], int, int, Any, bool]) -> None:
        lead, offset, step, dtype, bias = view
        size = step * K * math.prod(lead)
        x = torch.randn(size + offset).to(dtype)[offset:].view(*lead, step * K)[..., ::step]
        assert right(modules[dtype, bias], x, modules[dtype, bias](x))

    with gemmtune.torch.apply(nn.ModuleList(modules.values()), table):
        check()


@pytest.mark.parametrize("x", [torch.randn(8, K + 1), torch.tensor(1.0), torch.randn(8, K).double()])
def test_wrong_inputs_raise_torchs_error(table: Table, x: Any) -> None:
    module = linear()
    with pytest.raises(RuntimeError) as plain:
        module(x)
    with gemmtune.torch.apply(module, table), pytest.raises(RuntimeError) as patched:
        module(x)
    assert str(patched.value) == str(plain.value)


def test_what_is_no_tensor_raises_torchs_error(table: Table) -> None:
    module = linear()
    with gemmtune.torch.apply(module, table), pytest.raises(TypeError):
        module([1.0])


def test_a_sparse_input_gives_torchs_result(table: Table) -> None:
    module, x = linear(bias=False), torch.randn(8, K).to_sparse()
    expected = module(x)
    with gemmtune.torch.apply(module, table):
        assert torch.equal(module(x), expected)


def test_modes_and_transforms_see_torchs_operators(table: Table) -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode

    module, x = linear(), torch.randn(8, K)
    with gemmtune.torch.apply(module, table):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert module(mode.from_tensor(x)).shape == (8, N)
            assert type(module(x)) is not torch.Tensor
        graph = make_fx(module)(x)
        assert "addmm" in graph.code
        with FlopCounterMode(display=False) as flops:
            module(x)
        assert flops.get_total_flops() == 2 * 8 * N * K
        mapped = torch.vmap(module)(torch.randn(3, 8, K))
        assert mapped.shape == (3, 8, N)
        _, tangent = torch.func.jvp(module, (x,), (torch.ones_like(x),))
        assert torch.allclose(tangent, torch.ones_like(x) @ module.weight.t(), atol=1e-5)
        traced = torch.jit.trace(module, x) if torch.__version__ < "2.10" else None
        assert traced is None or "linear" in str(traced.graph)


def test_a_default_device_changes_nothing(table: Table) -> None:
    module, x = linear(), torch.randn(8, K)
    with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count, torch.device("cpu"):
        assert right(module, x, module(x))
    assert count.report().hits == 1


def test_autocast_is_torchs_unless_it_changes_nothing(table: Table) -> None:
    single, half = linear(), linear(torch.bfloat16)
    with (
        gemmtune.torch.apply(nn.ModuleList([single, half]), table),
        gemmtune.torch.report() as count,
        torch.autocast("cpu", torch.bfloat16),
    ):
        assert single(torch.randn(8, K)).dtype == torch.bfloat16
        assert count.report().hits == 0
        assert half(torch.randn(8, K, dtype=torch.bfloat16)).dtype == torch.bfloat16
        assert count.report().hits == 1


def test_training_under_autocast_is_torchs(table: Table) -> None:
    model, x = nn.Sequential(nn.Linear(K, K), nn.Linear(K, N)), torch.randn(8, K)

    def gradients() -> Any:
        with torch.autocast(
            "cpu", torch.bfloat16
        ):  # the second module's input is in bf16, its weight in fp32
            out = model(x)
        return torch.autograd.grad(out.float().square().sum(), list(model.parameters()))

    expected = gradients()
    with gemmtune.torch.apply(model, table):
        assert all(map(torch.equal, gradients(), expected))


def test_shorter_fp32_products_are_left_to_torch(table: Table) -> None:
    module, x = linear(), torch.randn(8, K)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count:
            module(x)
    finally:
        torch.set_float32_matmul_precision(before)
    assert count.report().hits == 0


@pytest.mark.parametrize(("deterministic", "hits"), [(True, 1), (False, 0), (None, 0)])
def test_deterministic_algorithms_need_rows_known_for_that(
    make_table: Any, deterministic: bool | None, hits: int
) -> None:
    from backends.problem import from_linear

    table = make_table([from_linear(8, N, K, "fp32", bias="fp32")], deterministic=deterministic)
    module = linear()
    torch.use_deterministic_algorithms(True)
    try:
        with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count:
            module(torch.randn(8, K))
    finally:
        torch.use_deterministic_algorithms(False)
    assert count.report().hits == hits


def test_a_row_of_weak_alignment_serves_misaligned_operands(table: Table) -> None:
    module = linear(bias=False)
    x = torch.randn(5 * K + 1)[1:].view(5, K)
    with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count:
        assert right(module, x, module(x))
        assert right(module, x.clone(), module(x.clone()))
    assert count.report().hits == 2


# ---- modules that change -------------------------------------------------------------------------


def test_moved_replaced_and_transposed_parameters_are_seen(table: Table) -> None:
    module, x = linear(), torch.randn(8, K)
    with gemmtune.torch.apply(module, table):
        assert right(module, x, module(x))
        module.weight = nn.Parameter(torch.randn(N, K), requires_grad=False)
        assert right(module, x, module(x))
        module.weight.data = torch.randn(K, N).t()
        assert right(module, x, module(x))
        module.load_state_dict(linear().state_dict())
        assert right(module, x, module(x))
        module.bias = None
        assert right(module, x, module(x))
        module.double()
        assert module(x.double()).dtype == torch.float64


def test_parameters_that_are_pruned_in_place_are_seen(table: Table) -> None:
    module, x = linear(), torch.randn(8, K)
    with gemmtune.torch.apply(module, table):
        assert right(module, x, module(x))
        module.weight.data, module.bias.data = module.weight.data[:24], module.bias.data[:24]
        assert right(module, x, module(x))


def test_copies_compute_with_their_own_parameters(table: Table) -> None:
    module, x = linear(), torch.randn(8, K)
    with gemmtune.torch.apply(module, table):
        copied = copy.deepcopy(module)
        copied.weight.mul_(2)
        pickled = pickle.loads(pickle.dumps(module))
        saved = io.BytesIO()
        torch.save(module, saved)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        assert right(copied, x, copied(x))
    for one in (copied, pickled, loaded):
        with torch.no_grad():
            one.weight.add_(1)
        assert right(one, x, one(x))


def test_shallow_copies_compute_with_their_own_parameters(table: Table) -> None:
    module, x, zeros = linear(), torch.randn(8, K), torch.zeros(N, K)
    with gemmtune.torch.apply(module, table):
        shallow, replica = copy.copy(module), module._replicate_for_data_parallel()
        shallow._parameters = {"weight": nn.Parameter(zeros, requires_grad=False), "bias": None}
        replica.weight, replica.bias = zeros, None  # tensors, as DataParallel sets them
        for one in (shallow, replica):
            assert not one(x).any()
        assert right(module, x, module(x))
    for one in (shallow, replica):
        assert not one(x).any()


def test_a_class_that_is_changed_again_computes_as_torch_afterwards(table: Table) -> None:
    from torch.nn.utils import parametrize

    class Double(nn.Module):  # type: ignore[misc]
        def forward(self, weight: Any) -> Any:
            return 2 * weight

    module, x = linear(), torch.randn(8, K)
    handle = gemmtune.torch.apply(module, table)
    parametrize.register_parametrization(module, "weight", Double())
    assert right(module, x, module(x))
    handle.disable()
    assert right(module, x, module(x))


# ---- autograd ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_torchs(table: Table, bias: bool) -> None:
    module = nn.Linear(K, N, bias=bias)
    x = torch.randn(2, 20, K, requires_grad=True)
    parameters = [x, *module.parameters()]
    expected = torch.autograd.grad(module(x).square().sum(), parameters)
    with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count:
        found = torch.autograd.grad(module(x).square().sum(), parameters)
    assert count.report().hits == 1
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients(make_table: Any) -> None:
    module = nn.Linear(K, N)
    x = torch.randn(8, K, requires_grad=True)

    def second() -> Any:
        (first,) = torch.autograd.grad(module(x).pow(3).sum(), [x], create_graph=True)
        return torch.autograd.grad(first.sum(), list(module.parameters()))

    from backends.problem import from_linear

    expected = second()
    with gemmtune.torch.apply(module, make_table([from_linear(8, N, K, "fp32", bias="fp32")])):
        found = second()
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3)


# ---- failures, threads, refusals -----------------------------------------------------------------


def test_a_launch_that_fails_is_computed_by_torch_once_warned(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = linear(), torch.randn(8, K)
    calls = []

    def fail(self: Any, *_: Any) -> None:
        calls.append(self)
        raise LaunchError("CUDA_ERROR_UNKNOWN")

    with gemmtune.torch.apply(module, table):
        monkeypatch.setattr(PreparedLaunch, "__call__", fail)
        with pytest.warns(RuntimeWarning, match=r"tn_48x8x32_fp32.*CUDA_ERROR_UNKNOWN"):
            assert right(module, x, module(x))
        assert right(module, x, module(x))
    assert len(calls) == 1


def test_threads_share_a_model(table: Table) -> None:
    module = linear()
    inputs = [torch.randn(m, K) for m in ROWS for _ in range(8)]
    outputs: dict[int, Any] = {}

    def work(first: int) -> None:
        for index in range(first, len(inputs), 4):
            outputs[index] = module(inputs[index])

    with gemmtune.torch.apply(module, table):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(right(module, x, outputs[index]) for index, x in enumerate(inputs))


def test_another_table_is_refused_by_name(table: Table, make_table: Any) -> None:
    from backends.problem import from_linear

    other = make_table([from_linear(1, N, K, "fp32")])
    with gemmtune.torch.apply(linear(), table):
        with pytest.raises(gemmtune.torch.ServingError, match=f"{table.digest[:12]}.*{other.digest[:12]}"):
            gemmtune.torch.apply(linear(), other)
        with gemmtune.torch.apply(linear(), table):
            pass
    with gemmtune.torch.apply(linear(), other) as handle:
        assert handle.table is other


def test_refresh_serves_the_rows_of_a_newer_bundle(make_table: Any) -> None:
    from backends.problem import from_linear

    table = make_table([from_linear(8, N, K, "fp32")])
    module, a, b = linear(bias=False), torch.randn(8, K), torch.randn(3, K)
    with gemmtune.torch.apply(module, table) as handle, gemmtune.torch.enable(table):
        assert not handle.refresh()
        make_table([from_linear(3, N, K, "fp32")])  # in the same file
        assert handle.refresh()
        with gemmtune.torch.report() as count:
            for x in (a, b):
                assert right(module, x, module(x))
                functional.linear(x, module.weight)
        assert {(line.m, line.calls) for line in count.report().lines if line.hit} == {(3, 2)}


def test_refresh_races_and_loads_as_apply_does(make_table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmtune.torch import race

    from backends.problem import from_linear

    monkeypatch.setattr(race, "timed_on_cpu", lambda *_: 0.5)
    table = make_table([from_linear(8, N, K, "fp32")], torch_build="1.0")
    model = nn.ModuleList([linear(bias=False), linear()])
    with gemmtune.torch.apply(model, table) as handle:
        assert (handle.modules, handle.pending) == (1, 0)
        rows = [from_linear(3, N, K, "fp32"), from_linear(8, N, K, "fp32", bias="fp32")]
        make_table(rows, torch_build="1.0")  # in the same file
        assert handle.refresh()
        assert (handle.modules, handle.pending) == (2, 0)
        assert len(handle._served._kernels) == 2  # loaded before the first call
        with gemmtune.torch.report() as count:
            for module in model:
                for m in (3, 8):
                    x = torch.randn(m, K)
                    assert right(module, x, module(x))
        assert {(line.m, line.extra) for line in count.report().lines if line.hit} == {(3, ""), (8, "bias")}
    assert {type(one) for one in model} == {nn.Linear}


def test_a_refresh_of_the_table_itself_is_served_by_the_next_one_of_the_handle(make_table: Any) -> None:
    from backends.problem import from_linear

    table = make_table([from_linear(8, N, K, "fp32")])
    module = linear(bias=False)
    with gemmtune.torch.apply(module, table) as handle:
        old = handle._served.rows[0]
        make_table([from_linear(3, N, K, "fp32")])
        assert table.refresh()
        assert handle.refresh()
        assert not handle.refresh()
        old.prepare(0)  # a thread that runs it yet
        x = torch.randn(3, K)
        with gemmtune.torch.report() as count:
            assert right(module, x, module(x))
        assert count.report().hits == 1


def test_a_model_elsewhere_is_refused_by_name(table: Table) -> None:
    model = nn.Linear(K, N, device="meta")
    with pytest.raises(gemmtune.torch.ServingError, match="are on meta"):
        gemmtune.torch.apply(model, table)


def test_a_forked_process_loads_its_own_kernels(table: Table) -> None:
    module, x = linear(), torch.randn(8, K)
    with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count:
        expected = module(x)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that hangs is a failure too
            ok = False
            try:
                ok = bool(torch.equal(module(x), expected)) and count.report().hits == 2
            finally:
                os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_while_other_threads_hold_the_locks(table: Table) -> None:
    from gemmtune import drivers
    from gemmtune.torch import inductor, override, served

    module, x = linear(), torch.randn(8, K)
    with gemmtune.torch.apply(module, table) as handle, gemmtune.torch.report() as count:
        file: Any = table._served.bundle._zip
        held = [
            table._served.bundle._lock, table._lock, file._lock, handle._served._lock,
            drivers._lock, served._LOCK, override._LOCK, inductor._LOCK,
        ]  # fmt: skip
        expected = module(x)
        locked, done = threading.Event(), threading.Event()

        def hold() -> None:
            with ExitStack() as stack:
                for one in held:
                    stack.enter_context(one)
                locked.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        locked.wait(60)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            ok = False
            try:
                ok = bool(torch.equal(module(x), expected)) and count.report().hits == 2
                ok = ok and not handle.refresh()
            finally:
                os._exit(0 if ok else 1)
        status = os.waitpid(child, 0)[1]
        done.set()
        thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_row_of_another_computation_hides_no_other_row(make_table: Any) -> None:
    from backends.problem import from_linear

    table = make_table([from_linear(8, N, K, "fp32", alignment=one) for one in (16, 4)])
    module, x = linear(bias=False), torch.randn(8, K)
    with gemmtune.torch.apply(module, table) as handle, gemmtune.torch.report() as count:
        first = handle._served.linear[N, K, torch.float32, False][8]
        first.product = first.product._replace(compute="tf32")
        assert right(module, x, module(x))
        assert [line.calls for line in count.report().lines if line.hit] == [1]


def test_functional_linear_is_torchs(table: Table) -> None:
    module, x = linear(), torch.randn(8, K)
    with gemmtune.torch.apply(module, table), gemmtune.torch.report() as count:
        functional.linear(x, module.weight, module.bias)
    assert count.report().hits == 0
