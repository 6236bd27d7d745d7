"""Right kernels pass and wrong ones are told what they did, on a device of plain host memory."""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.dtypes import DTYPES, INTEGER
from backends.environment import Environment
from backends.errors import DeviceMemoryExceeded, LaunchError
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_blas
from backends.protocol import Bandwidths, Kernel, Launch, Series
from backends.solution import Solution
from backends.traits import HOST_TRAITS
from tests.tuners.test_reference import numpy_result
from tuners.inputs import Case, cases, ragged
from tuners.reference import make_reference
from tuners.verify import GUARD, Finding, Verifier

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

# ---- a device of host memory, and kernels that may misbehave -------------------------------------


class HostBlock:
    """Page-aligned host memory; a transfer outside it, or after free(), fails the test."""

    def __init__(self, size: int, owner: HostDevice) -> None:
        self._map = mmap.mmap(-1, max(size, 1))
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
        self._owner = owner
        self.size, self.address = size, int(self._bytes.ctypes.data)

    def upload(self, data: Bytes, offset: int = 0) -> None:
        assert self in self._owner.live
        assert 0 <= offset <= offset + data.size <= self.size
        self._bytes[offset : offset + data.size] = data

    def download(self, offset: int, size: int) -> Bytes:
        assert self in self._owner.live
        assert 0 <= offset <= offset + size <= self.size
        return self._bytes[offset : offset + size].copy()

    def free(self) -> None:
        self._owner.live.remove(self)


class HostDevice:
    """Allocates HostBlocks, `room` bytes at most, and keeps track of those that live."""

    cache_bytes = 2**20

    def __init__(self, room: int = 2**30) -> None:
        self.environment = Environment("cpu", "avx2", "Some CPU", 1, 2**30, "uuid")
        self.live: list[HostBlock] = []
        self.room = room

    @property
    def free_bytes(self) -> int:
        return self.room - sum(block.size for block in self.live)

    def allocate(self, size: int) -> HostBlock:
        if size > self.free_bytes:
            raise DeviceMemoryExceeded("no room")
        self.live.append(HostBlock(size, self))
        return self.live[-1]

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Kernel:
        raise AssertionError("this double is never asked for it")

    reference, traits = None, HOST_TRAITS

    def series(
        self, kernel: Kernel, launches: Sequence[Launch], mode: str, lead: Sequence[Launch] = ()
    ) -> Series:
        raise AssertionError("this double is never asked for it")

    def synchronize(self) -> None:
        pass

    def condition(self) -> Mapping[str, Any]:
        return {}

    def bandwidths(self) -> Bandwidths:
        raise AssertionError("this double is never asked for it")


def memory(address: int, size: int) -> Bytes:
    """The bytes at an address, writable in place."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class Run:
    """One launch as a kernel sees it: the operands' elements, and the memory around them."""

    def __init__(self, problem: GemmProblem, operands: Operands, workspace: int, number: int) -> None:
        self.problem, self.number = problem, number
        self._address = {name: getattr(operands, name) for name in layouts(problem)}
        self._address["workspace"] = workspace
        for name, address in self._address.items():
            assert name == "workspace" or address % problem.alignment == 0
        self.inputs = {name: self.view(name) for name in layouts(problem) if name != "d"}
        self.d = self.view("d")

    def view(self, name: str) -> Array:
        layout = layouts(self.problem)[name]
        return layout.view(memory(self._address[name], layout.bytes).view(layout.dtype.storage))

    def at(self, name: str, element: int, count: int = 1) -> Array:
        """`count` elements of storage from element number `element` on, in bounds or not."""
        storage = layouts(self.problem)[name].dtype.storage
        start = self._address[name] + element * storage.itemsize
        return memory(start, count * storage.itemsize).view(storage)

    def workspace(self, offset: int, size: int) -> Bytes:
        return memory(self._address["workspace"] + offset, size)

    def result(self, problem: GemmProblem | None = None) -> Array:
        """What is right."""
        return numpy_result(problem or self.problem, {name: v.copy() for name, v in self.inputs.items()})


Act = Callable[[Run], object]


@dataclass
class ActingKernel:
    """Does `act` whenever it is launched."""

    problem: GemmProblem
    act: Act
    workspace_bytes: int = 0
    partial_sums: int = 1
    launches: int = 0
    prepared: int = 0

    def prepare(self) -> None:
        self.prepared += 1

    def bind(self, operands: Operands, workspace: int) -> Launch:
        assert (operands.alpha, operands.beta) == self.problem.scalars

        def launch() -> None:
            self.launches += 1
            self.act(Run(self.problem, operands, workspace, self.launches))

        return launch


def right(run: Run) -> None:
    run.d[...] = run.result()


def after(act: Act) -> Act:
    """The right result, then something else."""

    def both(run: Run) -> None:
        right(run)
        act(run)

    return both


@pytest.fixture
def device() -> Iterator[HostDevice]:
    yield (found := HostDevice())
    assert not found.live, "a verifier that forgot its cases holds no memory"


@pytest.fixture
def verifier(device: HostDevice) -> Iterator[Verifier]:
    yield (found := Verifier(device))
    found.forget()


def case(problem: GemmProblem, seed: int = 0, distribution: str = "normal") -> Case:
    return Case(problem, seed, distribution, "test")


def put(array: Array, at: tuple[Any, ...], value: object) -> None:
    array[at] = value


#: Padding everywhere, alpha and beta at work, three batches.
ROOMY = ragged(from_blas(131, 37, 259, "fp32", batch=3, alpha=2.0, beta=2.0))
SMALL = from_blas(40, 30, 20, "fp32")
HALF = from_blas(40, 30, 20, "bf16")
WHOLE = from_blas(40, 30, 20, "int8")


# ---- right kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fp64", "fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("trans", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 2.0, "beta": 1.0},
        {"beta": 2.0, "activation": "relu"},
        {"bias": "own", "bias_axis": "n"},
        {"batch": 4, "stride_a": 0, "beta": 1.0},
        {"batch": 2, "stride_a": 0, "stride_b": 0, "beta": 1.0},
        {"alignment": 1},
    ],
    ids=lambda o: "-".join(map(str, o.values())) or "plain",
)
def test_a_right_kernel_passes_every_case(
    verifier: Verifier, device: HostDevice, kind: str, trans: str, options: dict[str, Any]
) -> None:
    if "bias" in options:
        options = {**options, "bias": "int32" if kind == "int8" else kind}
    problem = from_blas(150, 20, 30, kind, trans_a=trans[0], trans_b=trans[1], **options)
    for check in cases(problem, 5 if trans == "TN" else 1, 0):
        kernel = ActingKernel(check.problem, right, workspace_bytes=100)
        finding = verifier.check(kernel, check, keep=False)
        assert not finding.wrong, (check, finding.wrong)
        assert finding.error_over_bound <= 1
        assert finding.coverage == 1
        assert kernel.launches == kernel.prepared == 2
    assert not device.live


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("bias", [None, "fp32"])
def test_right_activations_pass(verifier: Verifier, activation: str, bias: str | None) -> None:
    for kind in ("fp64", "fp32", "fp16", "bf16"):
        problem = from_blas(150, 20, 30, kind, activation=activation, bias=bias)
        for check in cases(problem, 5, 0):
            assert not verifier.check(ActingKernel(check.problem, right), check).wrong


def test_a_workspace_may_be_used_as_a_kernel_likes(verifier: Verifier) -> None:
    def act(run: Run) -> None:
        run.workspace(0, 1000)[...] = run.number

    assert not verifier.check(ActingKernel(ROOMY, after(act), workspace_bytes=1000), case(ROOMY)).wrong


# ---- wrong elements ------------------------------------------------------------------------------


def beside_the_bound(check: Case, at: tuple[int, ...], outside: bool) -> Any:
    """The value of D's type next to the upper bound of one element, outside it or inside."""
    reference, _ = make_reference(check)
    storage = DTYPES[check.problem.dtype_d].storage
    expected, tolerance = reference.expected[at], reference.tolerance[at]
    if storage.kind == "i":
        return storage.type(round(expected) + outside)
    value = np.asarray(expected + tolerance).astype(storage)
    direction = np.asarray(np.inf if outside else -np.inf).astype(storage)
    while (float(value) - expected > tolerance) != outside:
        value = np.nextafter(value, direction)
    return value


@pytest.mark.parametrize("at", [(0, 0, 0), (-1, -1, -1), (1, 17, 23)], ids=["first", "last", "random"])
@pytest.mark.parametrize("kind", ["fp64", "fp32", "fp16", "bf16", "int8"])
def test_one_element_just_outside_its_bound_is_wrong_and_just_inside_is_right(
    verifier: Verifier, kind: str, at: tuple[int, int, int]
) -> None:
    check = case(from_blas(40, 30, 20, kind, batch=2, ldd=47))
    inside, outside = (beside_the_bound(check, at, beyond) for beyond in (False, True))
    assert not verifier.check(
        ActingKernel(check.problem, after(lambda run: put(run.d, at, inside))), check
    ).wrong
    found = verifier.check(ActingKernel(check.problem, after(lambda run: put(run.d, at, outside))), check)
    row, column, batch = at[2] % 40, at[1] % 30, at[0] % 2
    assert found.wrong.startswith(f"1 of 2400 elements are off; first D[{row},{column}] of batch {batch}: ")
    assert 1 < found.error_over_bound < 4  # the next value of a 16-bit type is far beyond a small bound
    assert found.relative_error < 0.01


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("problem", [SMALL, HALF], ids=["fp32", "bf16"])
def test_one_element_that_is_not_finite_is_wrong(
    verifier: Verifier, problem: GemmProblem, value: float
) -> None:
    found = verifier.check(
        ActingKernel(problem, after(lambda run: put(run.d, (0, 29, 3), value))), case(problem)
    )
    assert found.wrong.startswith("1 of 1200 elements are off; first D[3,29] of batch 0: ")
    assert found.error_over_bound == np.inf
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["error_over_bound"] is None
    assert values["wrong"] == found.wrong


def last_row_only(run: Run) -> None:
    run.d[:, :, -1] = -run.d[:, :, -1]


def last_column_only(run: Run) -> None:
    run.d[:, -1, :] = -run.d[:, -1, :]


@pytest.mark.parametrize("problem", [ROOMY, SMALL, HALF, WHOLE], ids=["roomy", "fp32", "bf16", "int8"])
def test_an_edge_alone_is_named(verifier: Verifier, problem: GemmProblem) -> None:
    found = verifier.check(ActingKernel(problem, after(last_row_only)), case(problem))
    assert f"first D[{problem.m - 1},0] of batch 0" in found.wrong
    assert int(found.wrong.split()[0]) <= problem.n * problem.batch
    found = verifier.check(ActingKernel(problem, after(last_column_only)), case(problem))
    assert f"first D[0,{problem.n - 1}] of batch 0" in found.wrong
    assert int(found.wrong.split()[0]) <= problem.m * problem.batch


def unwritten(part: tuple[Any, ...]) -> Act:
    def act(run: Run) -> None:
        keep = run.d[part].copy()
        right(run)
        run.d[part] = keep

    return act


@pytest.mark.parametrize("problem", [ROOMY, SMALL, HALF, WHOLE], ids=["roomy", "fp32", "bf16", "int8"])
@pytest.mark.parametrize("part", [np.s_[:, :, -1:], np.s_[:, -1:, :], np.s_[-1:, 5:6, 7:8]])
def test_an_element_never_written_shows(
    verifier: Verifier, problem: GemmProblem, part: tuple[Any, ...]
) -> None:
    found = verifier.check(ActingKernel(problem, unwritten(part)), case(problem))
    size = np.empty((problem.batch, problem.n, problem.m))[part].size
    assert found.wrong.startswith(f"{size} of {problem.batch * problem.n * problem.m} elements are off")


# ---- wrong arithmetic ----------------------------------------------------------------------------


def without(run: Run, name: str) -> Array:
    """The right result for operands with one of them at zero."""
    inputs = {key: v.copy() * (0 if key == name else 1) for key, v in run.inputs.items()}
    return numpy_result(run.problem, inputs)


def one_k_short(run: Run) -> None:
    inputs = {name: values.copy() for name, values in run.inputs.items()}
    (inputs["a"][:, -1, :] if run.problem.trans_a == "N" else inputs["a"][:, :, -1])[...] = 0
    run.d[...] = numpy_result(run.problem, inputs)


def half_precision_sums(run: Run) -> None:
    """Partial sums of 64 products are kept in the output's type."""
    a, b = (run.inputs[name].astype(np.float32) for name in "ab")
    total = np.zeros(run.d.shape, run.d.dtype)
    for start in range(0, run.problem.k, 64):
        part = b[:, :, start : start + 64] @ a[:, start : start + 64, :]
        total = (total.astype(np.float32) + part).astype(run.d.dtype)
    run.d[...] = total


def wrong_activation(run: Run) -> None:
    run.d[...] = run.result(replace(run.problem, activation="none"))


def wrong_bias_axis(run: Run) -> None:
    run.d[...] = run.result(replace(run.problem, bias_axis="n"))


def wrong_alpha(run: Run) -> None:
    run.d[...] = run.result(replace(run.problem, alpha="one"))


def first_batch_only(run: Run) -> None:
    inputs = {name: values.copy() for name, values in run.inputs.items()}
    inputs["a"][...] = inputs["a"][:1]
    run.d[...] = numpy_result(run.problem, inputs)


def transposed(run: Run) -> None:
    inputs = {name: values.copy() for name, values in run.inputs.items()}
    inputs["a"] = np.ascontiguousarray(inputs["a"].swapaxes(1, 2))
    run.d[...] = numpy_result(run.problem, inputs)


@pytest.mark.parametrize(
    ("problem", "act"),
    [
        (from_blas(64, 32, 4096, "fp32"), one_k_short),
        (from_blas(64, 32, 4096, "fp32", trans_a="T", trans_b="T"), one_k_short),
        (from_blas(64, 32, 4096, "fp64"), one_k_short),
        (from_blas(64, 32, 4096, "bf16"), one_k_short),
        (from_blas(64, 32, 4096, "int8"), one_k_short),
        (from_blas(64, 32, 4096, "fp16"), half_precision_sums),
        (from_blas(64, 32, 4096, "bf16"), half_precision_sums),
        (from_blas(40, 40, 20, "bf16", activation="relu"), wrong_activation),
        (from_blas(40, 40, 20, "bf16", activation="gelu"), wrong_activation),
        (from_blas(40, 40, 20, "bf16", bias="bf16"), wrong_bias_axis),
        (from_blas(40, 40, 20, "bf16", bias="bf16"), lambda run: put(run.d, (...,), without(run, "bias"))),
        (from_blas(40, 40, 20, "int8", alpha=2.0), wrong_alpha),
        (from_blas(40, 40, 20, "bf16", alpha=2.0), wrong_alpha),
        (from_blas(40, 40, 20, "bf16", batch=2), first_batch_only),
        (from_blas(20, 40, 20, "bf16", batch=2), transposed),
    ],
    ids=lambda value: value.slug if isinstance(value, GemmProblem) else getattr(value, "__name__", ""),
)
def test_wrong_arithmetic_is_caught(verifier: Verifier, problem: GemmProblem, act: Act) -> None:
    assert not verifier.check(ActingKernel(problem, right), case(problem)).wrong
    found = verifier.check(ActingKernel(problem, act), case(problem))
    assert "elements are off; first D[" in found.wrong
    assert found.error_over_bound > 1
    assert 0 < found.relative_error < np.inf


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_a_kernel_that_forgets_c_is_right_only_where_beta_is_zero(verifier: Verifier, kind: str) -> None:
    problem = from_blas(40, 30, 20, kind)

    def no_c(run: Run) -> None:
        run.d[...] = without(run, "c")

    assert not verifier.check(ActingKernel(problem, no_c), case(problem)).wrong
    found = {
        check.name: verifier.check(ActingKernel(check.problem, no_c), check).wrong
        for check in cases(problem, 1, 0)
    }
    assert "elements are off" in found["ragged"]
    assert found["exact"] == found["ragged, own scalars"] == ""


# ---- memory that is not the kernel's -------------------------------------------------------------


def set_bytes(name: str, element: int) -> Act:
    def act(run: Run) -> None:
        target = run.at(name, element).view(np.uint8)
        target ^= 0x5A

    return after(act)


def end(problem: GemmProblem, name: str) -> int:
    return layouts(problem)[name].elements


D_ENDS = end(ROOMY, "d")
OUTSIDE = [
    ("d", -1), ("d", -1000), ("d", D_ENDS), ("d", D_ENDS + 1000),
    ("d", ROOMY.m), ("d", ROOMY.ldd - 1), ("d", ROOMY.stride_d - 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "element"), OUTSIDE)
def test_writing_around_d_or_in_its_padding_is_caught(verifier: Verifier, name: str, element: int) -> None:
    found = verifier.check(ActingKernel(ROOMY, set_bytes(name, element)), case(ROOMY))
    assert found.wrong == "wrote outside its output"
    assert found.error_over_bound == np.inf
    assert found.relative_error < 1e-5  # the elements themselves are right


def test_one_byte_after_d_is_caught_for_every_type(verifier: Verifier) -> None:
    for kind in ("fp64", "fp16", "bf16", "int8"):
        problem = from_blas(41, 31, 20, kind)
        found = verifier.check(ActingKernel(problem, set_bytes("d", 41 * 31)), case(problem))
        assert found.wrong == "wrote outside its output"


@pytest.mark.parametrize("distance", [0, 1, GUARD - 2, GUARD - 1])
@pytest.mark.parametrize("name", ["a", "d"])
def test_a_guard_band_is_watched_to_its_last_byte(verifier: Verifier, name: str, distance: int) -> None:
    problem = from_blas(41, 31, 19, "int8", dtype_d="int8")
    size = end(problem, name)
    assert size % 8
    for element in (-1 - distance, size + distance):
        found = verifier.check(ActingKernel(problem, set_bytes(name, element)), case(problem))
        assert found.wrong.startswith("changed its input a" if name == "a" else "wrote outside its output")


@pytest.mark.parametrize("name", ["a", "b", "c", "bias"])
@pytest.mark.parametrize("place", ["first", "last", "padding", "before", "after"])
def test_changing_an_input_or_what_surrounds_it_is_caught(verifier: Verifier, name: str, place: str) -> None:
    problem = ragged(from_blas(131, 37, 259, "fp32", beta=2.0, bias="fp32"))
    layout = layouts(problem)[name]
    element = {
        "first": 0,
        "last": layout.elements - 1,
        "padding": layout.rows,  # the bias has none: it is the element after
        "before": -1,
        "after": layout.elements,
    }[place]
    found = verifier.check(ActingKernel(problem, set_bytes(name, element)), case(problem))
    assert found.wrong == f"changed its input {name} or the bytes around it"
    assert found.coverage == 0


@pytest.mark.parametrize("kind", ["fp64", "fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize(
    ("name", "place"), [("a", "padding"), ("b", "padding"), ("c", "after"), ("a", "before")]
)
def test_reading_what_is_no_element_shows(verifier: Verifier, kind: str, name: str, place: str) -> None:
    problem = ragged(from_blas(131, 37, 259, kind, beta=2.0))
    layout = layouts(problem)[name]
    element = {"padding": layout.rows, "before": -1, "after": layout.elements}[place]

    def act(run: Run) -> None:  # an integer's poison is a number: it must count to show
        factor = 1 if layout.dtype.kind == INTEGER else 0
        run.d[0, 0, 0] += (run.at(name, element)[0] * factor).astype(run.d.dtype)

    found = verifier.check(ActingKernel(problem, after(act)), case(problem))
    assert found.wrong.startswith(f"1 of {problem.m * problem.n} elements are off; first D[0,0] of batch 0")


@pytest.mark.parametrize("kind", ["fp64", "fp32", "fp16", "bf16", "int8"])
def test_reading_what_d_held_shows(verifier: Verifier, kind: str) -> None:
    problem = from_blas(40, 30, 20, kind)

    def act(run: Run) -> None:  # beta * D with a beta of zero; for integers an addition
        old = run.d * run.d.dtype.type(DTYPES[problem.dtype_d].kind == INTEGER)
        run.d[...] = run.result() + old

    found = verifier.check(ActingKernel(problem, act), case(problem))
    assert found.wrong.startswith("1200 of 1200 elements are off")


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_reading_a_workspace_before_writing_it_shows(verifier: Verifier, kind: str) -> None:
    problem = from_blas(40, 30, 20, kind)

    def act(run: Run) -> None:
        run.d[0, 2, 1] += (
            run.workspace(0, 4).view(np.int32 if kind == "int8" else np.float32)[0].astype(run.d.dtype)
        )

    found = verifier.check(ActingKernel(problem, after(act), workspace_bytes=64), case(problem))
    assert found.wrong.startswith("1 of 1200 elements are off; first D[1,2] of batch 0")


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("distance", [0, GUARD - 1])
def test_writing_outside_the_workspace_is_caught(
    verifier: Verifier, size: int, before: bool, distance: int
) -> None:
    def act(run: Run) -> None:
        run.workspace(-1 - distance if before else size + distance, 1)[...] = 0

    found = verifier.check(ActingKernel(SMALL, after(act), workspace_bytes=size), case(SMALL))
    assert found.wrong == "wrote outside its workspace"
    assert found.coverage == 1


def test_the_first_fault_found_is_told(verifier: Verifier) -> None:
    def act(run: Run) -> None:
        run.d[...] = 0
        run.at("a", 0)[...] = 0

    assert verifier.check(ActingKernel(SMALL, act), case(SMALL)).wrong.startswith("changed its input a")


# ---- more than one run ---------------------------------------------------------------------------


def second_call_differs(run: Run) -> None:
    right(run)
    run.d[0, 0, 0] += run.number - 1


def second_call_does_nothing(run: Run) -> None:
    if run.number == 1:
        right(run)


@pytest.mark.parametrize("act", [second_call_differs, second_call_does_nothing])
def test_state_left_from_the_first_run_shows_in_the_second(verifier: Verifier, act: Act) -> None:
    assert not verifier.check(ActingKernel(SMALL, act), case(SMALL), runs=1).wrong
    kernel = ActingKernel(SMALL, act)
    assert "elements are off" in verifier.check(kernel, case(SMALL)).wrong
    assert kernel.launches == 2


def test_a_workspace_is_poisoned_again_for_the_second_run(verifier: Verifier) -> None:
    def act(run: Run) -> None:
        counter = run.workspace(0, 4).view(np.float32)
        if run.number == 1:
            counter[0] = 0
        run.d[...] = run.result() + counter[0]

    assert (
        "elements are off" in verifier.check(ActingKernel(SMALL, act, workspace_bytes=4), case(SMALL)).wrong
    )


def test_a_wrong_first_run_is_the_last(verifier: Verifier) -> None:
    kernel = ActingKernel(SMALL, lambda run: None)
    assert verifier.check(kernel, case(SMALL), runs=5).wrong
    assert kernel.launches == 1


# ---- what is kept --------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases whose reference was computed, in order."""
    found: list[Case] = []

    def counted(check: Case) -> object:
        found.append(check)
        return make_reference(check)

    monkeypatch.setattr("tuners.verify.make_reference", counted)
    return found


def test_a_case_is_laid_out_once_for_candidates_that_are_right(
    verifier: Verifier, device: HostDevice, made: list[Case]
) -> None:
    verifier.lay_out(case(SMALL))
    verifier.lay_out(case(SMALL))
    for _ in range(3):
        assert not verifier.check(ActingKernel(SMALL, right), case(SMALL)).wrong
    assert made == [case(SMALL)]
    verifier.check(ActingKernel(SMALL, right), case(SMALL, seed=1))
    verifier.check(ActingKernel(SMALL, right), case(SMALL, distribution="uniform"))
    verifier.check(ActingKernel(ROOMY, right), case(ROOMY))
    assert len(made) == 4
    verifier.forget()
    assert not device.live


def test_a_case_that_is_not_kept_is_freed(verifier: Verifier, device: HostDevice, made: list[Case]) -> None:
    for _ in range(2):
        assert not verifier.check(ActingKernel(SMALL, right), case(SMALL), keep=False).wrong
        assert not device.live
    assert len(made) == 2


@pytest.mark.parametrize("act", [set_bytes("a", 0), set_bytes("b", -1), set_bytes("d", -1), lambda run: None])
def test_a_wrong_candidate_spoils_nothing_for_the_next(
    verifier: Verifier, device: HostDevice, act: Act
) -> None:
    verifier.lay_out(case(SMALL))
    assert verifier.check(ActingKernel(SMALL, act), case(SMALL)).wrong
    assert not device.live
    assert not verifier.check(ActingKernel(SMALL, right), case(SMALL)).wrong


def test_a_launch_that_raises_passes_through_and_frees(verifier: Verifier, device: HostDevice) -> None:
    def act(run: Run) -> None:
        raise LaunchError("status 3")

    with pytest.raises(LaunchError, match="status 3"):
        verifier.check(ActingKernel(SMALL, act), case(SMALL))
    assert not device.live
    assert not verifier.check(ActingKernel(SMALL, right), case(SMALL)).wrong


def test_a_workspace_that_does_not_fit_passes_through_and_frees(device: HostDevice) -> None:
    small = HostDevice(room=100_000)
    with pytest.raises(DeviceMemoryExceeded):
        Verifier(small).check(ActingKernel(SMALL, right, workspace_bytes=90_000), case(SMALL))
    assert not small.live


# ---- columns that are not compared one by one ----------------------------------------------------

WIDE = from_blas(700, 12, 40, "fp32", ldd=703)


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> npt.NDArray[np.int64]:
    """Lowers the size from which columns are sampled; the columns of WIDE that no comparison sees."""
    monkeypatch.setattr("tuners.reference.FULL_FLOPS", 1e4)
    columns = make_reference(case(WIDE))[0].columns
    assert columns is not None
    return np.setdiff1d(np.arange(WIDE.m), columns)


def test_a_right_kernel_passes_when_columns_are_sampled(
    verifier: Verifier, sampled: npt.NDArray[np.int64]
) -> None:
    finding = verifier.check(ActingKernel(WIDE, right), case(WIDE))
    assert finding == Finding(
        "", finding.error_over_bound, finding.relative_error, (WIDE.m - len(sampled)) / WIDE.m
    )


@pytest.mark.parametrize("place", [0, 100, -1])
def test_an_error_in_a_column_that_is_not_sampled_is_caught(
    verifier: Verifier, sampled: npt.NDArray[np.int64], place: int
) -> None:
    column = int(sampled[place])

    def act(run: Run) -> None:
        run.d[0, 7, column] += 1

    found = verifier.check(ActingKernel(WIDE, after(act)), case(WIDE))
    assert found.wrong == "a random projection of the columns that were not compared one by one is off"


def test_padding_is_watched_when_columns_are_sampled(
    verifier: Verifier, sampled: npt.NDArray[np.int64]
) -> None:
    assert len(sampled)
    assert (
        verifier.check(ActingKernel(WIDE, set_bytes("d", WIDE.m)), case(WIDE)).wrong
        == "wrote outside its output"
    )
