"""Right kernels pass and wrong ones are told what they did, where the device checks them itself: by a
reference in numpy, and by the GPU's own kernels compiled for the host."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest

from backends.cache import BinaryCache
from backends.dtypes import DTYPES, INTEGER
from backends.errors import ContextLost, DeviceMemoryExceeded, IllegalSolution, LaunchError
from backends.gpu.context import GpuContext
from backends.gpu.device_reference import GpuReference
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem, from_blas
from backends.reference_protocol import Comparison, DeviceReference, ErrorBound
from backends.traits import GPU_TRAITS
from tests.backends.gpu.null_device import emulated
from tests.tuners.test_verify import (
    D_ENDS,
    HALF,
    OUTSIDE,
    ROOMY,
    SMALL,
    WHOLE,
    Act,
    ActingKernel,
    HostDevice,
    Run,
    after,
    case,
    end,
    last_row_only,
    memory,
    put,
    right,
    second_call_differs,
    second_call_does_nothing,
    unwritten,
)
from tuners.inputs import Case, cases, draw, ragged
from tuners.reference import make_reference
from tuners.verify import GUARD, Finding, Verifier
from tuners.verify_device import DeviceVerifier, make_verifier


class NumpyReference:
    """backends.protocol.DeviceReference over the host's memory; counts what would wait for a device."""

    def __init__(self) -> None:
        self.waits = 0

    def fill(self, address: int, size: int, value: int) -> None:
        memory(address, size)[...] = value

    def copy(self, target: int, source: int, size: int) -> None:
        memory(target, size)[...] = memory(source, size)

    def draw(self, layout: Layout, address: int, seed: int, distribution: str) -> None:
        view = _view(layout, address)
        if distribution == "poison":
            byte = np.full(layout.dtype.bytes, layout.dtype.poison, np.uint8)
            view[...] = byte.view(layout.dtype.storage)[0]
        else:
            values = draw(np.random.default_rng(seed), view.size, layout.dtype, distribution)
            view[...] = values.reshape(view.shape)

    def compute(
        self, problem: GemmProblem, operands: Operands, bound: ErrorBound, expected: int, tolerance: int
    ) -> None:
        shapes = layouts(problem)
        inputs = {name: _view(shapes[name], getattr(operands, name)).copy() for name in shapes if name != "d"}
        with (
            patch("tuners.reference.host_inputs", return_value=inputs),
            patch("tuners.reference.error_bound", return_value=bound),
        ):
            found = make_reference(Case(problem, 0, "normal", ""))[0]
        size = found.expected.size
        memory(expected, 8 * size).view(np.float64)[...] = found.expected.reshape(-1)
        memory(tolerance, 4 * size).view(np.float32)[...] = found.tolerance.reshape(-1)

    def compare(
        self,
        problem: GemmProblem,
        d: int,
        expected: int,
        tolerance: int,
        allowance: tuple[float, float] = (0.0, 0.0),
    ) -> Comparison:
        self.waits += 1
        value = _view(layouts(problem)["d"], d).astype(np.float64)
        want = memory(expected, 8 * value.size).view(np.float64).reshape(value.shape)
        strict = memory(tolerance, 4 * value.size).view(np.float32).reshape(value.shape)
        within = strict + allowance[0] * np.abs(want) + allowance[1]
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(value - want)
            ratio = off / within
            norms = float(np.linalg.norm(off)), float(np.linalg.norm(want))
        bad = np.argwhere(~(ratio <= 1))
        worst = float(np.where(np.isnan(ratio), np.inf, ratio).max())
        if not len(bad):
            return Comparison(value.size, 0, worst, None, 0.0, 0.0, 0.0, *norms)
        at = int(bad[0][0]), int(bad[0][1]), int(bad[0][2])
        values = float(value[at]), float(want[at]), float(within[at])
        return Comparison(value.size, len(bad), worst, at, *values, *norms)

    def differing(self, pairs: Sequence[tuple[int, int, int]]) -> list[int]:
        self.waits += 1
        return [int((memory(a, size) != memory(b, size)).sum()) for a, b, size in pairs]

    def other_than(self, ranges: Sequence[tuple[int, int]], value: int) -> list[int]:
        self.waits += 1
        return [int((memory(address, size) != value).sum()) for address, size in ranges]


def _view(layout: Layout, address: int) -> npt.NDArray[Any]:
    return layout.view(memory(address, layout.bytes).view(layout.dtype.storage))


class ReferenceDevice(HostDevice):
    """Host memory with a device's reference."""

    reference: Any
    traits = GPU_TRAITS

    def __init__(self, reference: DeviceReference, room: int = 2**30) -> None:
        super().__init__(room)
        self.reference = reference


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> GpuContext:
    return emulated(BinaryCache(tmp_path_factory.mktemp("reference")), units=1)


@pytest.fixture(params=["numpy", "kernels"])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    reference: Any = NumpyReference()
    if request.param == "kernels":
        if shutil.which("g++") is None:
            pytest.skip("no g++")
        reference = GpuReference(request.getfixturevalue("host"))
    yield (found := ReferenceDevice(reference))
    assert not found.live, "a verifier that forgot its cases holds no memory"


@pytest.fixture
def verifier(device: Any) -> Iterator[DeviceVerifier]:
    yield (found := DeviceVerifier(device))
    found.forget()


def set_bytes(name: str, element: int) -> Act:
    """Overwrites one element, the same in every run."""

    def act(run: Run) -> None:
        run.at(name, element).view(np.uint8)[...] = 0x33

    return after(act)


def check_of(verifier: DeviceVerifier, problem: GemmProblem, act: Act, **options: Any) -> Finding:
    kernel = ActingKernel(problem, act, options.pop("workspace", 0))
    return verifier.check(kernel, case(problem), **options)


# ---- right kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fp64", "fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {"trans_a": "T"},
        {"alpha": 2.0, "beta": 1.0, "trans_b": "T"},
        {"bias": "own", "bias_axis": "n", "activation": "relu"},
        {"batch": 4, "stride_a": 0, "beta": 1.0},
        {"alignment": 1},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_a_right_kernel_passes_every_case(
    verifier: DeviceVerifier, device: Any, kind: str, options: dict[str, Any]
) -> None:
    if "bias" in options:
        options = {**options, "bias": "int32" if kind == "int8" else kind}
    problem = from_blas(50, 20, 30, kind, **options)
    for check in cases(problem, 1, 3):
        kernel = ActingKernel(check.problem, right, workspace_bytes=100)
        finding = verifier.check(kernel, check, keep=False)
        assert not finding.wrong, (check, finding.wrong)
        assert finding.error_over_bound <= 1
        assert finding.coverage == 1
        assert finding.repeatable is True
        assert kernel.launches == kernel.prepared == 2
    verifier.forget()
    assert not device.live


@pytest.mark.parametrize("distribution", ["normal", "large", "integers", "uniform"])
def test_right_scaled_products_pass_and_forgotten_scales_do_not(
    verifier: DeviceVerifier, distribution: str
) -> None:
    scales: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer", "scale_d": "tensor"}
    problem = from_blas(48, 32, 64, "fp8_e4m3", dtype_d="bf16", **scales)
    for check in cases(problem, 1, 0):
        named = Case(check.problem, 0, distribution, check.name)
        assert not verifier.check(ActingKernel(check.problem, right), named).wrong
    for name in scales:

        def act(run: Run, name: str = name) -> None:
            run.inputs[name] = np.ones_like(run.inputs[name])
            right(run)

        named = Case(problem, 0, distribution, "test")
        assert "elements are off" in verifier.check(ActingKernel(problem, act), named).wrong


def test_scales_of_blocks_lie_between_guards_too(verifier: DeviceVerifier) -> None:
    """Laid out, drawn and watched like any operand, whole and ragged."""
    scales: dict[str, Any] = {"scale_a": "block_128x128", "scale_b": "block_1x128"}
    problem = from_blas(150, 48, 300, "fp8_e4m3", trans_a="T", dtype_d="bf16", **scales)
    seen: list[tuple[int, ...]] = []

    def act(run: Run) -> None:
        seen.append(run.inputs["scale_b"].shape)
        right(run)

    for check in cases(problem, 1, 0):
        assert not verifier.check(ActingKernel(check.problem, act), check, keep=False).wrong
    assert {(1, 48, 3), (1, 37, 3)} <= set(seen)
    for name in scales:
        found = check_of(verifier, problem, set_bytes(name, layouts(problem)[name].elements))
        assert found.wrong == f"changed its input {name} or the bytes around it"


def test_the_inputs_are_what_the_host_would_draw_them_from(verifier: DeviceVerifier) -> None:
    seen: dict[str, npt.NDArray[Any]] = {}

    def act(run: Run) -> None:
        seen.update({name: values.copy() for name, values in run.inputs.items()})
        right(run)

    problem = from_blas(60, 50, 40, "fp32", beta=1.0, bias="fp32")
    verifier.check(ActingKernel(problem, act), Case(problem, 0, "integers", "test"))
    assert set(seen) == {"a", "b", "c", "bias"}
    assert all(set(values.reshape(-1)) <= set(range(-4, 5)) for values in seen.values())
    assert not np.array_equal(seen["a"].reshape(-1)[:100], seen["b"].reshape(-1)[:100])
    first = dict(seen)
    verifier.forget()
    verifier.check(ActingKernel(problem, act), Case(problem, 0, "integers", "test"))
    assert all(np.array_equal(first[name], seen[name]) for name in first)
    verifier.check(ActingKernel(problem, act), Case(problem, 1, "integers", "test"))
    assert not any(np.array_equal(first[name], seen[name]) for name in first)


@pytest.mark.parametrize(("kind", "alignment", "want"), [("bf16", 4, 4), ("bf16", 1, 2), ("int8", 1, 1)])
def test_addresses_are_no_better_aligned_than_the_problem_promises(
    verifier: DeviceVerifier, kind: str, alignment: int, want: int
) -> None:
    problem = from_blas(40, 30, 20, kind, dtype_d=kind, alignment=alignment)
    found: list[int] = []

    def act(run: Run) -> None:
        found.extend(int(array.ctypes.data) for array in (*run.inputs.values(), run.d))
        right(run)

    assert not check_of(verifier, problem, act).wrong
    assert all(address % (2 * want) == want for address in found)


# ---- wrong elements ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fp64", "fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("at", [(0, 0, 0), (1, 29, 39), (1, 17, 23)])
def test_one_wrong_element_is_named(verifier: DeviceVerifier, kind: str, at: tuple[int, int, int]) -> None:
    problem = from_blas(40, 30, 20, kind, batch=2, ldd=47)

    def act(run: Run) -> None:
        run.d[at] = 3 + run.d[at] if DTYPES[kind].kind == INTEGER else -run.d[at] - run.d.dtype.type(0.5)

    found = check_of(verifier, problem, after(act))
    assert found.wrong.startswith(f"1 of 2400 elements are off; first D[{at[2]},{at[1]}] of batch {at[0]}: ")
    assert "expected" in found.wrong
    assert found.error_over_bound > 1
    assert 0 < found.relative_error < 0.5
    assert found.repeatable


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("problem", [SMALL, HALF], ids=["fp32", "bf16"])
def test_one_element_that_is_not_finite_is_wrong(
    verifier: DeviceVerifier, problem: GemmProblem, value: float
) -> None:
    found = check_of(verifier, problem, after(lambda run: put(run.d, (0, 29, 3), value)))
    assert found.wrong.startswith("1 of 1200 elements are off; first D[3,29] of batch 0: ")
    assert found.error_over_bound == np.inf


@pytest.mark.parametrize("problem", [ROOMY, SMALL, HALF, WHOLE], ids=["roomy", "fp32", "bf16", "int8"])
@pytest.mark.parametrize("part", [np.s_[:, :, -1:], np.s_[:, -1:, :], np.s_[-1:, 5:6, 7:8]])
def test_an_element_never_written_shows(
    verifier: DeviceVerifier, problem: GemmProblem, part: tuple[Any, ...]
) -> None:
    size = np.empty((problem.batch, problem.n, problem.m))[part].size
    elements = problem.batch * problem.n * problem.m
    assert check_of(verifier, problem, unwritten(part)).wrong.startswith(f"{size} of {elements} elements are")


def test_an_edge_alone_is_named(verifier: DeviceVerifier) -> None:
    assert f"first D[{ROOMY.m - 1},0] of batch 0" in check_of(verifier, ROOMY, after(last_row_only)).wrong


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_reading_what_d_or_a_workspace_held_shows(verifier: DeviceVerifier, kind: str) -> None:
    problem = from_blas(40, 30, 20, kind)

    def old(run: Run) -> None:
        before = run.d * run.d.dtype.type(DTYPES[problem.dtype_d].kind == INTEGER)
        run.d[...] = run.result() + before

    def scratch(run: Run) -> None:
        number = np.int32 if kind == "int8" else np.float32
        run.d[0, 2, 1] += run.workspace(0, 4).view(number)[0].astype(run.d.dtype)

    assert check_of(verifier, problem, old).wrong.startswith("1200 of 1200")
    found = check_of(verifier, problem, after(scratch), workspace=64)
    assert found.wrong.startswith("1 of 1200 elements are off; first D[1,2] of batch 0")


# ---- memory that is not the kernel's -------------------------------------------------------------


@pytest.mark.parametrize(("name", "element"), OUTSIDE)
def test_writing_around_d_or_in_its_padding_is_caught(
    verifier: DeviceVerifier, name: str, element: int
) -> None:
    assert D_ENDS
    found = check_of(verifier, ROOMY, set_bytes(name, element))
    assert found.wrong == "wrote outside its output"
    assert found.error_over_bound == np.inf
    assert found.relative_error < 1e-5  # the elements themselves are right


@pytest.mark.parametrize("distance", [0, 1, GUARD - 2, GUARD - 1])
@pytest.mark.parametrize("name", ["a", "d"])
def test_a_guard_band_is_watched_to_its_last_byte(verifier: DeviceVerifier, name: str, distance: int) -> None:
    problem = from_blas(41, 31, 19, "int8", dtype_d="int8")
    for element in (-1 - distance, end(problem, name) + distance):
        found = check_of(verifier, problem, set_bytes(name, element))
        assert found.wrong.startswith("changed its input a" if name == "a" else "wrote outside its output")


@pytest.mark.parametrize("name", ["a", "b", "c", "bias", "scale_a", "scale_d"])
@pytest.mark.parametrize("place", ["first", "last", "padding", "before", "after"])
def test_changing_an_input_or_what_surrounds_it_is_caught(
    verifier: DeviceVerifier, name: str, place: str
) -> None:
    scales: dict[str, Any] = {"scale_a": "outer", "scale_b": "tensor", "scale_d": "tensor"}
    problem = ragged(from_blas(131, 37, 59, "fp32", beta=2.0, bias="fp32", **scales))
    layout = layouts(problem)[name]
    last = layout.elements - 1
    padding = min(layout.rows, last + 1)
    places = {"first": 0, "last": last, "padding": padding, "before": -1, "after": last + 1}
    found = check_of(verifier, problem, set_bytes(name, places[place]))
    assert found.wrong == f"changed its input {name} or the bytes around it"
    assert found.coverage == 0


def test_an_input_changed_by_one_run_and_mended_by_none_is_caught(verifier: DeviceVerifier) -> None:
    def act(run: Run) -> None:
        if run.number == 1:
            run.at("a", 5)[...] = 0

    assert check_of(verifier, SMALL, after(act)).wrong.startswith("changed its input a")


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("distance", [0, GUARD - 1])
def test_writing_outside_the_workspace_is_caught(
    verifier: DeviceVerifier, size: int, before: bool, distance: int
) -> None:
    def act(run: Run) -> None:
        if run.number == 1:  # the second run must not hide it
            run.workspace(-1 - distance if before else size + distance, 1)[...] = 0

    check_of(verifier, SMALL, right, workspace=6000)  # leaves a larger workspace
    found = check_of(verifier, SMALL, after(act), workspace=size)
    assert found.wrong == "wrote outside its workspace"
    assert found.coverage == 1


# ---- more than one run ---------------------------------------------------------------------------


@pytest.mark.parametrize("act", [second_call_differs, second_call_does_nothing])
def test_state_left_from_the_first_run_shows_in_the_second(verifier: DeviceVerifier, act: Act) -> None:
    once = check_of(verifier, SMALL, act, runs=1)
    assert not once.wrong
    assert once.repeatable is None
    found = check_of(verifier, SMALL, act)
    assert "elements are off" in found.wrong
    assert found.repeatable is False


def test_right_results_whose_bits_differ_are_not_repeatable(verifier: DeviceVerifier) -> None:
    def act(run: Run) -> None:
        if run.number == 2:
            run.d[0, 3, 4] = np.nextafter(run.d[0, 3, 4], np.float32(np.inf))

    found = check_of(verifier, SMALL, after(act))
    assert not found.wrong
    assert found.repeatable is False
    assert found.to_dict()["repeatable"] is False
    assert check_of(verifier, SMALL, right, runs=3).repeatable is True


def test_a_workspace_is_poisoned_again_for_the_second_run(verifier: DeviceVerifier) -> None:
    def act(run: Run) -> None:
        counter = run.workspace(0, 4).view(np.float32)
        if run.number == 1:
            counter[0] = 0
        run.d[...] = run.result() + counter[0]

    assert "elements are off" in check_of(verifier, SMALL, act, workspace=4).wrong


# ---- what is kept --------------------------------------------------------------------------------


def test_a_right_candidate_waits_three_times_and_lays_nothing_out_again() -> None:
    reference = NumpyReference()
    device = ReferenceDevice(reference)
    verifier = DeviceVerifier(device)
    verifier.lay_out(case(SMALL))
    verifier.lay_out(case(SMALL))
    verifier.check(ActingKernel(SMALL, right), case(SMALL))
    held, reference.waits = len(device.live), 0
    assert not verifier.check(ActingKernel(SMALL, right), case(SMALL)).wrong
    assert reference.waits == 3
    assert len(device.live) == held
    verifier.forget()
    assert not device.live


def test_a_case_that_is_not_kept_is_freed(verifier: DeviceVerifier, device: Any) -> None:
    check_of(verifier, SMALL, right, keep=False)
    assert len(device.live) == 1  # the workspace


@pytest.mark.parametrize("act", [set_bytes("a", 0), set_bytes("b", -1), set_bytes("d", -1), lambda run: None])
def test_a_wrong_candidate_spoils_nothing_for_the_next(verifier: DeviceVerifier, act: Act) -> None:
    verifier.lay_out(case(SMALL))
    assert check_of(verifier, SMALL, act).wrong
    assert not check_of(verifier, SMALL, right).wrong


@pytest.mark.parametrize("error", [LaunchError("status 3"), ContextLost("it is gone")])
def test_a_launch_that_raises_passes_through_and_frees(
    verifier: DeviceVerifier, device: Any, error: LaunchError
) -> None:
    def act(run: Run) -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        check_of(verifier, SMALL, act)
    assert len(device.live) == 1
    assert not check_of(verifier, SMALL, right).wrong


@pytest.mark.parametrize("error", [IllegalSolution("not at k = 3"), DeviceMemoryExceeded("no room")])
@pytest.mark.parametrize(("number", "keep"), [(1, True), (1, False), (2, True)])
def test_a_refusal_before_anything_ran_keeps_the_case(
    verifier: DeviceVerifier, device: Any, error: Exception, number: int, keep: bool
) -> None:
    def act(run: Run) -> None:
        if run.number == number:
            raise error
        right(run)

    check_of(verifier, SMALL, right)
    held = len(device.live)
    with patch.object(verifier, "_make", wraps=verifier._make) as make:
        with pytest.raises(type(error), match=str(error)):
            check_of(verifier, SMALL, act, keep=keep)
        kept = keep and number == 1
        assert len(device.live) == (held if kept else 1)
        assert not check_of(verifier, SMALL, right).wrong
        assert make.call_count == (0 if kept else 1)
    assert len(device.live) == held


def test_a_workspace_that_does_not_fit_keeps_the_case() -> None:
    device = ReferenceDevice(NumpyReference(), 150_000)
    verifier = DeviceVerifier(device)
    check_of(verifier, SMALL, right)
    with patch.object(verifier, "_make", wraps=verifier._make) as make:
        with pytest.raises(DeviceMemoryExceeded):
            check_of(verifier, SMALL, right, workspace=150_000)
        assert not check_of(verifier, SMALL, right).wrong
        assert make.call_count == 0
    verifier.forget()
    assert not device.live


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("distribution", ["normal", "large", "uniform"])
def test_a_double_product_of_an_input_in_single_precision_is_wrong(
    verifier: DeviceVerifier, distribution: str, name: str
) -> None:
    def act(run: Run) -> None:
        run.inputs[name] = run.inputs[name].astype(np.float32).astype(np.float64)
        right(run)

    problem = from_blas(40, 30, 20, "fp64")
    named = Case(problem, 0, distribution, "test")
    assert not verifier.check(ActingKernel(problem, right), named).wrong
    assert "elements are off" in verifier.check(ActingKernel(problem, act), named).wrong


@pytest.mark.parametrize("distribution", ["normal", "large", "integers", "uniform"])
def test_right_long_sums_of_narrow_outputs_pass(verifier: DeviceVerifier, distribution: str) -> None:
    scales: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer", "scale_d": "tensor"}
    for k, options in ((3000, {}), (9000, scales)):
        problem = from_blas(16, 12, k, "fp8_e4m3", dtype_d="fp8_e4m3", alpha=2.0, **options)
        named = Case(problem, 0, distribution, "test")
        assert not verifier.check(ActingKernel(problem, right), named, keep=False).wrong


@pytest.mark.parametrize("room", [20_000, 60_000, 100_000])
def test_what_does_not_fit_passes_through_and_frees(room: int) -> None:
    device = ReferenceDevice(NumpyReference(), room)
    verifier = DeviceVerifier(device)
    with pytest.raises(DeviceMemoryExceeded):
        check_of(verifier, SMALL, right, workspace=90_000)
    verifier.forget()
    assert not device.live


# ---- which verifier ------------------------------------------------------------------------------


def test_a_device_without_a_reference_is_verified_on_the_host() -> None:
    without: Any = SimpleNamespace(reference=None)
    assert type(make_verifier(without)) is Verifier
    own: Any = ReferenceDevice(NumpyReference())
    assert type(make_verifier(own)) is DeviceVerifier
    with pytest.raises(ValueError, match="no reference"):
        DeviceVerifier(without)


def test_both_verifiers_say_the_same_of_a_wrong_result(verifier: DeviceVerifier) -> None:
    # The first element is off whatever the inputs are.
    found = check_of(verifier, SMALL, after(lambda run: put(run.d, (0, 0, 0), 1e6)))
    host = Verifier(HostDevice())
    theirs = host.check(ActingKernel(SMALL, after(lambda run: put(run.d, (0, 0, 0), 1e6))), case(SMALL))
    assert found.wrong.split(", expected")[0] == theirs.wrong.split(", expected")[0]
