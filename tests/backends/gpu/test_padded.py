"""Padded cuBLASLt: which operands are copied where, and the copying kernel's arithmetic run on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.cache import BinaryCache
from backends.cuda.cublaslt import CublasLt
from backends.cuda.padded_cublaslt import PaddedCublasLt
from backends.dtypes import DTYPES
from backends.gpu.copies import CopyLaunch, copy_launch
from backends.gpu.device import GpuDevice
from backends.gpu.padded import FACTORS, PADS, PaddedKernel, buffers, copied, misaligned, padded_twin
from backends.gpu.units import KERNELS, device_unit
from backends.kernels.headers import ROOT as HEADERS
from backends.operands import Layout, Operands, as_product, layouts
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.protocol import Launch
from backends.solution import Solution
from backends.toolchains.emulator import Emulator
from backends.toolchains.nvrtc import Nvrtc, nvrtc_build
from tests.backends.gpu.null_device import ENVIRONMENT, NoCompiler, NullDevice, emulated
from tests.backends.kernels.ptx import EARLY, WAIT, compiled, waits_first
from tests.backends.weight_samples import mx_product, mxfp4, weights


def padded(inner: Any = None) -> PaddedCublasLt:
    """The family around a library's, or around what stands in for one."""
    return PaddedCublasLt(CublasLt() if inner is None else inner, NoCompiler())


#: Odd rows everywhere: both inputs and D are misaligned.
BOTH = from_linear(64, 99, 129, "bf16")


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (from_linear(64, 96, 128, "bf16"), ()),
        (from_linear(64, 96, 129, "bf16"), ("a", "b")),
        (from_linear(64, 99, 128, "bf16"), ("d",)),
        (BOTH, ("a", "b", "d")),
        (from_linear(64, 99, 128, "bf16", beta=1.0), ("c", "d")),
        (from_linear(64, 96, 136, "fp8_e4m3"), ("a", "b")),
        (from_linear(64, 96, 130, "fp32"), ("a", "b")),
        (from_linear(64, 96, 129, "bf16", lda=136, ldb=136), ()),
        (from_bmm(3, 8, 16, 32, "bf16", stride_a=257), ("b",)),
        (from_linear(64, 96, 128, "bf16", bias="bf16", alignment=8), ("a", "b", "d", "bias")),
    ],
)
def test_misaligned_operands(problem: GemmProblem, expected: tuple[str, ...]) -> None:
    assert set(misaligned(problem)) == set(expected)
    assert padded().supports(problem) == bool(expected)


@pytest.mark.parametrize(
    "problem",
    [weights(33, 70, 128), weights(33, 70, 130, scale_b="outer"), mxfp4(33, 70, 96), mx_product(33, 70, 96)],
)
def test_packed_operands_are_not_copied(problem: GemmProblem) -> None:
    assert "d" in misaligned(problem)
    assert not any(copied(problem, pad) for pad in (*PADS, FACTORS))
    assert not padded().supports(problem)


def test_the_twin_aligns_leading_dimensions_and_the_rows_of_a_copied_d() -> None:
    twin = padded_twin(BOTH, "all")
    assert (twin.m, twin.n, twin.k) == (104, 64, 129)
    assert (twin.lda, twin.ldb, twin.ldd, twin.ldc) == (136, 136, 104, 104)
    inputs = padded_twin(BOTH, "inputs")
    assert (inputs.m, inputs.lda, inputs.ldb, inputs.ldd) == (99, 136, 136, 99)
    assert copied(BOTH, "inputs") == ("a", "b")
    assert misaligned(twin) == ()
    # Whole cache lines, where those are hardly longer.
    long = padded_twin(from_linear(64, 99, 2049, "bf16"), "inputs")
    assert (long.lda, long.ldb, long.ldd) == (2112, 2112, 99)


@pytest.mark.parametrize(
    ("problem", "names", "m", "lda"),
    [
        # Aligned operands with something for every row are copied where there are more rows.
        (from_linear(64, 99, 128, "bf16"), "a d", 104, 128),
        (from_linear(64, 99, 128, "bf16", bias="bf16", beta=1.0, ldc=104, ldd=99), "a d c bias", 104, 128),
        (from_blas(99, 64, 128, "bf16", lda=104), "a d", 104, 104),
        # D's rows need no rounding, its leading dimension does.
        (from_blas(96, 64, 128, "bf16", ldd=97), "d", 96, 96),
        # 16 bytes of the narrower type.
        (from_blas(99, 64, 128, "fp8_e4m3", dtype_d="bf16"), "a d", 112, 112),
        (from_linear(64, 99, 128, "fp8_e4m3", dtype_d="bf16"), "a d", 104, 128),
        (from_linear(64, 99, 128, "fp8_e4m3", scale_a="outer", scale_b="outer"), "a d scale_a", 104, 128),
        (from_linear(64, 99, 128, "fp8_e4m3", scale_a="tensor", scale_b="tensor"), "a d", 104, 128),
        (from_blas(2**31 - 1, 1, 1, "bf16"), "a d", 2**31 - 1, 2**31),
    ],
    ids=lambda value: value.slug if isinstance(value, GemmProblem) else None,
)
def test_a_copied_d_has_whole_chunks_of_rows(problem: GemmProblem, names: str, m: int, lda: int) -> None:
    assert set(names.split()) <= set(copied(problem, "all"))
    assert set(copied(problem, "all")) - set(names.split()) <= {"b"}
    twin = padded_twin(problem, "all")
    assert (twin.m, twin.n, twin.k, twin.lda) == (m, problem.n, problem.k, lda)
    found, (starts, size) = layouts(twin), buffers(problem, "all")
    ends = [*list(starts.values())[1:], size]
    for (name, start), end in zip(starts.items(), ends, strict=True):
        layout = found[name]
        assert end - start >= layout.copies * layout.ld * layout.columns * layout.dtype.bytes
        assert layout.columns >= layouts(problem)[name].columns


def test_twins_of_batches_follow_one_another() -> None:
    problem = from_bmm(
        5, 64, 96, 129, "fp16", trans_b="T", stride_b=0, beta=1.0, ldc=97, ldd=98, stride_c=9999
    )
    twin = padded_twin(problem, "all")
    assert (twin.lda, twin.stride_a) == (136, 0)
    assert (twin.ldb, twin.stride_b) == (136, 136 * 64)
    assert (twin.ldc, twin.ldd, twin.stride_d) == (96, 96, 96 * 64)
    assert misaligned(twin) == ()


def test_misaligned_addresses_leave_one_choice() -> None:
    problem = from_linear(64, 96, 128, "bf16", alignment=2)
    assert copied(problem, "all") == ("a", "b", "d")
    assert copied(problem, "inputs") == ()
    twin = padded_twin(problem, "all")
    assert (twin.alignment, twin.lda, twin.ldd) == (16, 128, 96)


def test_copies_lie_apart_in_the_workspace() -> None:
    starts, size = buffers(BOTH, "all")
    assert starts == {"a": 0, "b": 28416, "d": 28416 + 17408}
    assert size == 28416 + 17408 + 13312
    assert buffers(BOTH, "inputs")[1] == 27136 + 17408


class Inner(CublasLt):
    """cuBLASLt with two candidates, which writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def _found(self, problem: GemmProblem, limit: int | None) -> Iterator[Solution]:
        self.asked.append((problem, limit))
        for tile in (1, 2):
            yield Solution("cublaslt", 1, {"algo_id": 66, "tile": tile}, "13.1.0.3", 1024, True)

    def enumerate_on(
        self, problem: GemmProblem, device: Any, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        return self._found(problem, max_workspace_bytes)

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: Any, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        self.asked.append(solution)
        return self._found(problem, max_workspace_bytes)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Any) -> str | None:
        self.asked.append((problem, solution))
        return None

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Any:
        self.asked.append((problem, solution))
        return _Multiply(device)


class _Multiply:
    workspace_bytes = 1024
    partial_sums = 3

    def __init__(self, device: NullDevice) -> None:
        self._device, self.prepared = device, 0

    def prepare(self) -> None:
        self.prepared += 1

    def bind(self, operands: Operands, workspace: int) -> Launch:
        return lambda: self._device.driver.log.append(("multiply", operands, workspace))


def test_candidates_are_the_librarys_with_the_padding() -> None:
    inner = Inner()
    family = padded(inner)
    found = list(family.enumerate_on(BOTH, NullDevice(), None))
    assert [(s.parameters["pad"], s.parameters["tile"]) for s in found] == [
        ("all", 1), ("inputs", 1), ("all", 2), ("inputs", 2),
    ]  # fmt: skip
    assert inner.asked == [(padded_twin(BOTH, "all"), None), (padded_twin(BOTH, "inputs"), None)]
    first = found[0]
    assert (first.family, first.build, first.deterministic) == ("cublaslt-padded", "13.1.0.3", True)
    assert first.workspace_bytes == buffers(BOTH, "all")[1] + 1024
    assert list(family.solutions(BOTH, ENVIRONMENT)) == []


def test_a_limit_counts_the_copies() -> None:
    inner = Inner()
    family = padded(inner)
    inputs, everything = buffers(BOTH, "inputs")[1], buffers(BOTH, "all")[1]
    assert list(family.enumerate_on(BOTH, NullDevice(), inputs - 1)) == []
    assert {s.parameters["pad"] for s in family.enumerate_on(BOTH, NullDevice(), everything - 1)} == {
        "inputs"
    }
    assert inner.asked == [(padded_twin(BOTH, "inputs"), everything - 1 - inputs)]


def test_neighbours_keep_the_padding_or_change_it_alone() -> None:
    inner = Inner()
    family = padded(inner)
    first = next(family.enumerate_on(BOTH, NullDevice(), None))
    found = list(family.neighbours_on(BOTH, first, NullDevice(), None))
    assert [(s.parameters["pad"], s.parameters["tile"]) for s in found] == [
        ("all", 1),
        ("all", 2),
        ("inputs", 1),
    ]
    asked = next(one for one in inner.asked if isinstance(one, Solution))
    assert dict(asked.parameters) == {"algo_id": 66, "tile": 1}
    assert (asked.family, asked.workspace_bytes) == ("cublaslt", 1024)


def test_rules() -> None:
    inner = Inner()
    family = padded(inner)
    first = next(family.enumerate_on(BOTH, NullDevice(), None))
    assert family.illegal(BOTH, first, ENVIRONMENT) is None
    assert inner.asked[-1][0] == padded_twin(BOTH, "all")
    other = replace(first, parameters={**first.parameters, "pad": "k"})
    assert family.illegal(BOTH, other, ENVIRONMENT) == f"pad must be all or inputs for {BOTH.slug}, not 'k'"
    aligned = from_linear(64, 96, 128, "bf16")
    assert "misaligned" in (family.illegal(aligned, first, ENVIRONMENT) or "")


def test_a_launch_copies_in_multiplies_and_copies_out() -> None:
    device = NullDevice()
    family = padded(Inner())
    first = next(family.enumerate_on(BOTH, device, None))
    kernel = family.load(BOTH, first, None, device)
    assert kernel.workspace_bytes == first.workspace_bytes
    operands = Operands(a=0x1000, b=0x2000, c=0, d=0x3000, bias=0, alpha=1.0, beta=0.0)
    kernel.bind(operands, 0x100000)()
    assert kernel.partial_sums == 3
    starts, size = buffers(BOTH, "all")
    queued = [call for call in device.driver.log if call[0] in ("launch", "multiply")]
    assert [call[0] for call in queued] == ["launch", "multiply", "launch"]
    first_launch, last_launch = device.launches
    assert (first_launch.entry, last_launch.entry) == ("pad", "unpad")
    assert first_launch.dependent
    assert last_launch.dependent
    assert {unit.defines for unit in device.toolchain.units} == {(("UNIT", "2"),)}
    _, inside, workspace = queued[1]
    assert (inside.a, inside.b, inside.d) == tuple(0x100000 + starts[name] for name in "abd")
    assert workspace == 0x100000 + size
    into, back = first_launch.argument, last_launch.argument
    assert (into.count, back.count) == (2, 1)
    a, b, d = into.of[0], into.of[1], back.of[0]
    assert (a.source, a.target, a.source_bytes) == (0x1000, inside.a, 99 * 129 * 2)
    assert (b.source, b.target, b.source_bytes) == (0x2000, inside.b, 64 * 129 * 2)
    assert (d.source, d.target) == (inside.d, 0x3000)
    assert (d.source_pitch, d.target_pitch, d.width, d.lines) == (208, 198, 198, 64)
    # Launches bound before keep their own addresses.
    kernel.bind(replace(operands, a=0x5000), 0x200000)
    assert (a.source, a.target) == (0x1000, inside.a)


def test_before_sm_90_a_copy_is_a_plain_launch() -> None:
    device = NullDevice(replace(ENVIRONMENT, arch="sm_89"))
    family = padded(Inner())
    first = next(family.enumerate_on(BOTH, device, None))
    family.load(BOTH, first, None, device).bind(Operands(0x1000, 0x2000, 0, 0x3000, 0, 1.0, 0.0), 0x100000)()
    assert [(one.entry, one.dependent) for one in device.launches] == [("pad", False), ("unpad", False)]


def test_a_pad_without_candidates_leaves_the_others() -> None:
    class Picky(Inner):
        def enumerate_on(
            self, problem: GemmProblem, device: Any, max_workspace_bytes: int | None
        ) -> Iterator[Solution]:
            aligned = problem.ldd % 8 == 0
            return iter(()) if aligned else super().enumerate_on(problem, device, max_workspace_bytes)

    found = padded(Picky()).enumerate_on(BOTH, NullDevice(), None)
    assert [(s.parameters["pad"], s.parameters["tile"]) for s in found] == [("inputs", 1), ("inputs", 2)]


def _layout_pair(rows: int, columns: int, copies: int, ld: int | None = None) -> tuple[Layout, Layout]:
    """An operand of bytes with loose leading dimension and stride, and our buffer for it."""
    ld, ours = rows + 1 if ld is None else ld, -(-rows // 16) * 16
    kind = DTYPES["int8"]
    return (
        Layout(rows, columns, ld, ld * columns + 1, copies, kind),
        Layout(rows, columns, ours, ours * columns, copies, kind),
    )


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("copies", [1, 3, 10**9])
@pytest.mark.parametrize("lines", [1, 3, 100, 10**7])
@pytest.mark.parametrize("width", [1, 14, 16, 100, 4000, 10**7])
def test_blocks_reach_every_chunk(width: int, lines: int, copies: int, out: bool) -> None:
    launch = copy_launch([_layout_pair(width, lines, copies)] * 2, out)
    one, second = launch.argument.of[0], launch.argument.of[1]
    blocks = one.span_x * one.span_y * one.span_z
    assert (one.first, second.first, launch.blocks) == (0, blocks, 2 * blocks)
    assert 0 < launch.blocks < 2**30
    assert 1 <= one.span_z <= copies
    across = 1 << one.across_log
    assert across <= 256
    assert one.span_x * across * (4 if one.along else 1) * 16 >= width + (15 if out else 0)
    if not one.along and blocks < 2**20:
        assert one.span_y * (256 // across) * 4 >= lines


def test_batches_one_after_another_and_packed_columns_are_joined() -> None:
    kind = DTYPES["bf16"]
    own, ours = Layout(7, 5, 9, 45, 3, kind), Layout(7, 5, 8, 40, 3, kind)
    one = copy_launch([(own, ours)]).argument.of[0]
    assert (one.width, one.lines, one.batch) == (14, 15, 1)
    packed = Layout(8, 5, 8, 40, 3, kind)
    one = copy_launch([(packed, packed)]).argument.of[0]
    assert (one.width, one.lines, one.batch) == (240, 1, 1)
    more = Layout(7, 6, 8, 48, 3, kind)  # a column more in our buffer
    one = copy_launch([(own, more)]).argument.of[0]
    assert (one.width, one.lines, one.batch) == (14, 5, 3)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("unit", ["1", "2", "4", "8", "16"])
def test_the_kernel_compiles(arch: str, unit: str, cache: BinaryCache) -> None:
    if nvrtc_build() is None:
        pytest.skip("NVRTC is not installed")
    assert Nvrtc().compile(device_unit("pad.h", arch, {"UNIT": unit}), cache).stat().st_size > 0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> GpuDevice:
    """A device that runs the copies on the host's fibers."""
    if (why := Emulator().missing()) is not None:
        pytest.skip(why)
    return emulated(BinaryCache(tmp_path_factory.mktemp("pad")))


@pytest.fixture(params=[1, 2, 4, 8])
def host_kernel(request: pytest.FixtureRequest, host: GpuDevice) -> tuple[int, GpuDevice]:
    """(unit, the kernel on the host)"""
    return request.param, host


_UNITS = {1: "int8", 2: "bf16", 4: "fp32", 8: "fp64"}


def _storage(rng: np.random.Generator, size: int, offset: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Random bytes with guards, and where in them an operand with such a misalignment starts."""
    flat = rng.integers(0, 256, size + 128, dtype=np.uint8)
    start = 64 - flat.ctypes.data % 16 + offset
    return flat, start


def _view(flat: npt.NDArray[np.uint8], start: int, layout: Layout) -> npt.NDArray[Any]:
    return layout.view(flat[start:][: layout.bytes].view(layout.dtype.storage))


def _fewer(launch: CopyLaunch, rng: np.random.Generator) -> int:
    """Blocks of the launch after taking away some, whose work loops then do; a copy at least keeps one."""
    blocks = 0
    for copy in launch.argument.of[: launch.argument.count]:
        if copy.along:
            copy.span_x = int(rng.integers(1, copy.span_x + 1))
        copy.span_y = int(rng.integers(1, copy.span_y + 1))
        copy.span_z = int(rng.integers(1, copy.span_z + 1))
        copy.first = blocks
        copy.stepping()
        blocks += copy.span_x * copy.span_y * copy.span_z
    return blocks


def _random_pair(rng: np.random.Generator, unit: int) -> tuple[Layout, Layout]:
    dtype, step = DTYPES[_UNITS[unit]], 16 // unit
    rows, columns, copies = (int(rng.integers(1, top)) for top in (90, 12, 4))
    if rng.integers(0, 4) == 0:  # several of a thread, and more than it has in flight
        columns = int(rng.integers(100, 1500))
    if rng.integers(0, 8) == 0:
        rows, columns = int(rng.integers(4000, 20000)), int(rng.integers(1, 4))
    if rng.integers(0, 4) == 0:  # packed in whole chunks
        rows = -(-rows // step) * step
        own = Layout(rows, columns, rows, rows * columns, copies, dtype)
    else:
        ld = rows + int(rng.integers(0, 20))
        own = Layout(rows, columns, ld, ld * columns + int(rng.integers(0, 3)), copies, dtype)
    ours, more = -(-rows // step) * step, int(rng.integers(0, 3)) * int(rng.integers(0, 2))
    return own, Layout(rows, columns + more, ours, ours * (columns + more), copies, dtype)


@pytest.mark.parametrize("out", [False, True])
def test_the_kernel_copies_every_element_and_touches_nothing_else(
    host_kernel: tuple[int, GpuDevice], out: bool
) -> None:
    unit, device = host_kernel
    function = device.function("pad.h", "unpad" if out else "pad", {"UNIT": str(unit)})
    rng = np.random.default_rng(unit + out)
    for _ in range(80):
        pairs = [_random_pair(rng, unit) for _ in range(1 if out else int(rng.integers(1, 8)))]
        memory, addresses = [], []
        for own, ours in pairs:
            offset = int(rng.integers(0, 16 // unit)) * unit
            far, far_start = _storage(rng, own.bytes, offset)
            near, near_start = _storage(rng, ours.stride * ours.copies * unit, 0)
            memory.append((far, far_start, near, near_start, far.copy(), near.copy()))
            at, to = far.ctypes.data + far_start, near.ctypes.data + near_start
            addresses.append((to, at) if out else (at, to))
        launch = copy_launch(pairs, out)
        blocks = _fewer(launch, rng) if rng.integers(0, 2) else launch.blocks
        shape = replace(launch.shape, grid=(blocks, 1, 1))
        device.bind(function, shape, launch.at(addresses))()
        for (own, ours), (far, far_start, near, near_start, was_far, was_near) in zip(
            pairs, memory, strict=True
        ):
            part = replace(ours, columns=own.columns)
            if out:
                _view(was_far, far_start, own)[:] = _view(was_near, near_start, part)
            else:
                # Lines are filled up to the next 16 bytes; columns that are ours alone stay as they are.
                _view(was_near, near_start, replace(part, rows=part.ld))[:] = 0
                _view(was_near, near_start, part)[:] = _view(was_far, far_start, own)
            assert np.array_equal(far, was_far)
            assert np.array_equal(near, was_near)


_PRODUCTS = [
    from_linear(5, 19, 21, "bf16"),
    from_linear(5, 19, 24, "bf16", bias="bf16", beta=1.0, ldc=24),
    from_blas(19, 5, 21, "fp16", trans_b="T", beta=1.0),
    from_blas(19, 5, 21, "fp32", trans_a="T", bias="fp32"),
    from_bmm(3, 5, 19, 21, "bf16", stride_b=0, beta=1.0, ldd=23, ldc=25),
    from_linear(5, 19, 32, "fp32", bias="fp32", alignment=4),
]


def _at(address: int, layout: Layout, storage: Any) -> npt.NDArray[Any]:
    """An operand at an address as whole numbers."""
    raw = (ctypes.c_ubyte * layout.bytes).from_address(address)
    return layout.view(np.frombuffer(memoryview(raw), storage))


_INTEGERS = {2: np.int16, 4: np.int32}


class _HostMultiply:
    """op(A) op(B) + C + bias in whole numbers, on the twin as the library would see it."""

    workspace_bytes, partial_sums = 0, 1

    def __init__(self, problem: GemmProblem) -> None:
        self._problem = problem

    def prepare(self) -> None: ...

    def bind(self, operands: Operands, workspace: int) -> Launch:
        return lambda: _multiply(self._problem, operands)


def _multiply(problem: GemmProblem, operands: Operands) -> None:
    found = layouts(problem)
    views = {
        name: _at(getattr(operands, name), layout, _INTEGERS[layout.dtype.bytes])
        for name, layout in found.items()
    }
    left, right = as_product(problem, views["a"], views["b"])
    out = left @ right
    if "c" in views:
        out = out + views["c"]
    if "bias" in views:
        out = out + views["bias"].reshape(1, 1, -1)
    views["d"][:] = out


@pytest.mark.parametrize(
    ("problem", "pad"),
    [(p, pad) for p in _PRODUCTS for pad in ("all", "inputs") if copied(p, pad)],
    ids=lambda value: getattr(value, "slug", value),
)
def test_products_on_copies_are_the_products(problem: GemmProblem, pad: str, host: GpuDevice) -> None:
    rng = np.random.default_rng(1)
    kernel = PaddedKernel(problem, pad, _HostMultiply(padded_twin(problem, pad)), host)
    work, work_start = _storage(rng, kernel.workspace_bytes, 0)
    offset = problem.alignment % 16
    memory = {name: _storage(rng, one.bytes, offset) for name, one in layouts(problem).items()}
    address = {name: flat.ctypes.data + start for name, (flat, start) in memory.items()}
    before = {name: flat.copy() for name, (flat, _) in memory.items()}
    operands = Operands.at(address, (1.0, 1.0))
    _multiply(problem, operands)
    expected = memory["d"][0].copy()
    memory["d"][0][:] = before["d"]
    guard = work.copy()
    kernel.bind(operands, work.ctypes.data + work_start)()
    assert np.array_equal(memory["d"][0], expected)
    for name, (flat, _) in memory.items():
        assert name == "d" or np.array_equal(flat, before[name])
    assert np.array_equal(work[:work_start], guard[:work_start])
    end = work_start + kernel.workspace_bytes
    assert np.array_equal(work[end:], guard[end:])


@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_copies_wait_before_they_touch_memory(unit: int) -> None:
    text, flags, roots = '#include "pad.h"\n', [f"-DUNIT={unit}"], (KERNELS, HEADERS)
    entries = compiled(text, "sm_90", roots, flags)
    assert len(entries) == 2
    for name, entry in entries.items():
        waits_first(entry)
        before, after = entry.split(WAIT)
        early = (before.count(EARLY), after.count(EARLY))
        assert early == (0, int(name == "pad")), "the product may come as its copies end, and none after it"
    for older in compiled(text, "sm_80", roots, flags).values():
        assert "griddepcontrol" not in older
        assert "ld.global.nc" not in older


@pytest.mark.cuda
@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_copies_on_a_gpu(unit: int, cache: BinaryCache) -> None:
    from backends.cuda.backend import CudaBackend

    device = CudaBackend().open(0, cache)
    assert isinstance(device, GpuDevice)
    into, out_of = (device.function("pad.h", name, {"UNIT": str(unit)}) for name in ("pad", "unpad"))
    rng = np.random.default_rng(unit)
    dtype, step = DTYPES[_UNITS[unit]], 16 // unit
    for rows, columns, copies in ((1, 1, 1), (7, 5000, 3), (4097, 33, 2), (3 * 10**6 + 1, 2, 1)):
        ours = -(-rows // step) * step
        theirs = Layout(rows, columns, rows + 3, (rows + 3) * columns + 5, copies, dtype)
        padded = Layout(rows, columns, ours, ours * columns, copies, dtype)
        offset = int(rng.integers(0, step)) * unit
        # As far from the allocation's end as the operand is: a checker sees what is read beyond it.
        buffer = device.allocate(offset + theirs.bytes)
        data = rng.integers(0, 256, offset + theirs.bytes, dtype=np.uint8)
        buffer.upload(data)
        near = device.allocate(padded.stride * copies * unit)
        a, b = buffer.address + offset, near.address
        for out in (False, True):
            launch = copy_launch([(theirs, padded)], out)
            argument = launch.at([(b, a) if out else (a, b)])
            function = out_of if out else into
            device.bind(function, launch.shape, argument)()
            if not out:  # then everything is wiped and copied out again
                whole = near.download(0, near.size).view(dtype.storage).reshape(copies, columns, ours)
                assert np.array_equal(
                    whole[..., :rows].view(np.uint8),
                    theirs.view(data[offset:].copy().view(dtype.storage)).copy().view(np.uint8),
                )
                assert not whole[..., rows:].view(np.uint8).any()
                buffer.upload(np.full(data.size, 255, np.uint8))
        expected = np.full(data.size, 255, np.uint8)
        elements = expected[offset:].copy().view(dtype.storage)
        theirs.view(elements)[:] = theirs.view(data[offset:].copy().view(dtype.storage))
        expected[offset:] = elements.view(np.uint8)
        assert np.array_equal(buffer.download(0, buffer.size), expected)
        buffer.free()
        near.free()


@pytest.mark.cuda
@pytest.mark.parametrize(
    "problem",
    [
        from_linear(64, 99, 129, "bf16"),
        from_linear(1, 4095, 4097, "fp16"),
        from_linear(64, 96, 129, "fp8_e4m3", scale_a="tensor", scale_b="tensor"),
        from_bmm(3, 33, 65, 129, "bf16", stride_b=0, beta=1.0),
        from_linear(64, 99, 129, "bf16", bias="bf16", activation="relu"),
        from_linear(64, 99, 128, "bf16", bias="bf16", beta=1.0),
        from_blas(99, 64, 129, "fp16", trans_b="T"),
        from_linear(64, 99, 128, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer"),
        from_linear(63, 96, 128, "bf16", alignment=2),
        from_blas(7, 5, 3, "fp32", trans_a="T"),
    ],
    ids=lambda p: p.slug,
)
def test_padded_products_on_a_gpu(problem: GemmProblem, cache: BinaryCache) -> None:
    from backends.cuda.backend import CudaBackend
    from backends.protocol import DeviceListedFamily
    from tuners.inputs import cases
    from tuners.verify_device import DeviceVerifier

    backend = CudaBackend()
    device = backend.open(0, cache)
    family = backend.families()["cublaslt-padded"]
    assert isinstance(family, DeviceListedFamily)
    if not family.supports(problem):
        pytest.skip(f"{problem.slug} is not padded")
    verifier = DeviceVerifier(device)
    tried = [s for s, _ in zip(family.enumerate_on(problem, device, None), range(4), strict=False)]
    assert tried
    for solution in tried:
        for case in cases(problem, 2, 5):
            if family.supports(case.problem):
                finding = verifier.check(device.load(case.problem, solution, None), case)
                assert finding.wrong == "", (solution.id, case)
