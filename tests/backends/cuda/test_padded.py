"""Padded cuBLASLt: which operands are copied where, and the copying kernel's arithmetic run on the host."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.cache import BinaryCache
from backends.cuda.compiler import KERNELS, compile_cubin, nvrtc_build
from backends.cuda.cublaslt import CublasLt
from backends.cuda.padded import (
    PaddedCublasLt,
    Place,
    buffers,
    copied,
    copy_argument,
    launch_shape,
    misaligned,
    padded_twin,
)
from backends.dtypes import DTYPES
from backends.operands import Layout, Operands
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.protocol import Launch
from backends.solution import Solution
from tests.backends.cuda.fakes import ENVIRONMENT, FakeDevice

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
    assert PaddedCublasLt().supports(problem) == bool(expected)


def test_the_twin_keeps_sizes_and_aligns_leading_dimensions() -> None:
    twin = padded_twin(BOTH, "all")
    assert (twin.m, twin.n, twin.k) == (99, 64, 129)
    assert (twin.lda, twin.ldb, twin.ldd, twin.ldc) == (136, 136, 104, 104)
    inputs = padded_twin(BOTH, "inputs")
    assert (inputs.lda, inputs.ldb, inputs.ldd) == (136, 136, 99)
    assert copied(BOTH, "inputs") == ("a", "b")
    assert misaligned(twin) == ()


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
    assert starts == {"a": 0, "b": 27136, "d": 27136 + 17408}
    assert size == 27136 + 17408 + 13312
    assert buffers(BOTH, "inputs")[1] == 27136 + 17408


class Inner(CublasLt):
    """cuBLASLt with two candidates, which writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def _found(self, problem: GemmProblem, limit: int | None) -> Iterator[Solution]:
        self.asked.append((problem, limit))
        for tile in (1, 2):
            yield Solution("cublaslt", 1, {"algo_id": 66, "tile": tile}, "13.1.0.3", 1024, True)

    def listed(
        self, problem: GemmProblem, device: Any, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        return self._found(problem, max_workspace_bytes)

    def neighbours(
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

    def __init__(self, device: FakeDevice) -> None:
        self._device, self.prepared = device, 0

    def prepare(self) -> None:
        self.prepared += 1

    def bind(self, operands: Operands, workspace: int) -> Launch:
        return lambda: self._device.log.append(("multiply", operands, workspace))


def test_candidates_are_the_librarys_with_the_padding() -> None:
    inner = Inner()
    family = PaddedCublasLt(inner)
    found = list(family.listed(BOTH, FakeDevice(), None))
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
    family = PaddedCublasLt(inner)
    inputs, everything = buffers(BOTH, "inputs")[1], buffers(BOTH, "all")[1]
    assert list(family.listed(BOTH, FakeDevice(), inputs - 1)) == []
    assert {s.parameters["pad"] for s in family.listed(BOTH, FakeDevice(), everything - 1)} == {"inputs"}
    assert inner.asked == [(padded_twin(BOTH, "inputs"), everything - 1 - inputs)]


def test_neighbours_keep_the_padding_or_change_it_alone() -> None:
    inner = Inner()
    family = PaddedCublasLt(inner)
    first = next(family.listed(BOTH, FakeDevice(), None))
    found = list(family.neighbours(BOTH, first, FakeDevice(), None))
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
    family = PaddedCublasLt(inner)
    first = next(family.listed(BOTH, FakeDevice(), None))
    assert family.illegal(BOTH, first, ENVIRONMENT) is None
    assert inner.asked[-1][0] == padded_twin(BOTH, "all")
    other = replace(first, parameters={**first.parameters, "pad": "k"})
    assert family.illegal(BOTH, other, ENVIRONMENT) == f"pad must be all or inputs for {BOTH.slug}, not 'k'"
    aligned = from_linear(64, 96, 128, "bf16")
    assert "misaligned" in (family.illegal(aligned, first, ENVIRONMENT) or "")


def test_a_launch_copies_in_multiplies_and_copies_out() -> None:
    device = FakeDevice()
    family = PaddedCublasLt(Inner())
    first = next(family.listed(BOTH, device, None))
    kernel = family.load(BOTH, first, None, device)
    assert kernel.workspace_bytes == first.workspace_bytes
    operands = Operands(a=0x1000, b=0x2000, c=0, d=0x3000, bias=0, alpha=1.0, beta=0.0)
    kernel.bind(operands, 0x100000)()
    starts, size = buffers(BOTH, "all")
    names = [entry[0] for entry in device.log]
    pad = ("pad.cu", "pad", (("UNIT", "2"),))
    assert names == [pad, pad, "multiply", pad]
    _, inside, workspace = device.log[2]
    assert (inside.a, inside.b, inside.d) == tuple(0x100000 + starts[name] for name in "abd")
    assert workspace == 0x100000 + size
    (back,) = device.log[3][3]
    assert (back.source, back.target, back.fill) == (inside.d, 0x3000, 0)
    assert (back.source_pitch, back.target_pitch, back.width, back.lines) == (208, 198, 198, 64)
    (into,) = device.log[0][3]
    assert (into.source, into.target, into.fill, into.source_bytes) == (0x1000, inside.a, 1, 99 * 129 * 2)


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("lines", [1, 3, 100, 10**7])
@pytest.mark.parametrize("width", [1, 14, 16, 100, 4000, 10**7])
def test_a_grid_reaches_every_chunk(width: int, lines: int, fill: bool) -> None:
    grid, block = launch_shape(width, lines, 70000, fill)
    assert block[0] * block[1] <= 256
    assert grid[0] * block[0] * 16 >= width + (0 if fill else 15)
    assert max(grid[1:]) <= 65535
    assert grid[0] < 2**31
    if lines * -(-width // 16) >= 1024:
        assert block[0] * block[1] >= 128


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("unit", ["1", "2", "4", "8", "16"])
def test_the_kernel_compiles(arch: str, unit: str, cache: BinaryCache) -> None:
    if nvrtc_build() is None:
        pytest.skip("NVRTC is not installed")
    assert compile_cubin("pad.cu", arch, cache, {"UNIT": unit}).stat().st_size > 0


_SHIM = """
#include <cstdlib>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(n)
struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x, y, z; };
static Index blockIdx, threadIdx, gridDim, blockDim;
static unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
    return bits ? low >> bits | high << (32 - bits) : low;
}
static unsigned char *lowest, *highest;  // what may be read in whole chunks
static uint4 __ldg(const uint4* at) {
    const unsigned char* byte = reinterpret_cast<const unsigned char*>(at);
    if (reinterpret_cast<unsigned long long>(at) % 16 || byte < lowest || byte + 16 > highest) abort();
    return *at;
}
#include "pad.cu"
extern "C" void run(const Copy* copy, const unsigned* grid, const unsigned* block) {
    lowest = const_cast<unsigned char*>(copy->source);
    highest = lowest + copy->source_bytes;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)
                for (threadIdx.y = 0; threadIdx.y < block[1]; threadIdx.y++)
                    for (threadIdx.x = 0; threadIdx.x < block[0]; threadIdx.x++) pad(*copy);
}
"""


@pytest.fixture(scope="module", params=[1, 2, 4, 8])
def host_kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Any]:
    """(unit, the kernel as a host function that runs every thread in turn, and traps where it reads what it
    may not)."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    folder, unit = tmp_path_factory.mktemp("pad"), request.param
    (folder / "shim.cpp").write_text(_SHIM)
    flags = [
        "-O1",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-fno-strict-aliasing",
        f"-DUNIT={unit}",
        f"-I{KERNELS}",
    ]
    library = folder / "pad.so"
    subprocess.run([compiler, *flags, "shim.cpp", "-o", str(library)], cwd=folder, check=True)
    return unit, ctypes.CDLL(str(library))


_UNITS = {1: "int8", 2: "bf16", 4: "fp32", 8: "fp64"}


def _storage(rng: np.random.Generator, size: int, offset: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Random bytes with guards, and where in them an operand with such a misalignment starts."""
    flat = rng.integers(0, 256, size + 128, dtype=np.uint8)
    start = 64 - flat.ctypes.data % 16 + offset
    return flat, start


@pytest.mark.parametrize("out", [False, True])
def test_the_kernel_copies_every_element_and_touches_nothing_else(
    host_kernel: tuple[int, Any], out: bool
) -> None:
    unit, library = host_kernel
    rng = np.random.default_rng(unit + out)
    dtype = DTYPES[_UNITS[unit]]
    for _ in range(150):
        rows, columns, copies = (int(rng.integers(1, top)) for top in (90, 12, 4))
        ld = rows + int(rng.integers(0, 20))
        ours = -(-rows // max(1, 16 // unit)) * max(1, 16 // unit)
        theirs = Layout(rows, columns, ld, ld * columns + int(rng.integers(0, 9)), copies, dtype)
        padded = Layout(rows, columns, ours, ours * columns, copies, dtype)
        offset = int(rng.integers(0, 16 // unit)) * unit
        far, far_start = _storage(rng, theirs.bytes, offset)
        near, near_start = _storage(rng, padded.stride * copies * unit, 0)
        a = Place(theirs, far.ctypes.data + far_start)
        b = Place(padded, near.ctypes.data + near_start)
        source, target = (b, a) if out else (a, b)
        argument = copy_argument(source, target, fill=not out)
        grid, block = launch_shape(argument.width, columns, copies, fill=not out)
        few = (grid[0], int(rng.integers(1, grid[1] + 1)), int(rng.integers(1, grid[2] + 1)))
        before_far, before_near = far.copy(), near.copy()

        def view(flat: npt.NDArray[np.uint8], start: int, layout: Layout) -> npt.NDArray[Any]:
            return layout.view(flat[start:].view(np.uint8)[: layout.bytes].view(dtype.storage))

        library.run(ctypes.byref(argument), (ctypes.c_uint * 3)(*few), (ctypes.c_uint * 3)(*block))
        expected_far, expected_near = before_far.copy(), before_near.copy()
        if out:
            view(expected_far, far_start, theirs)[:] = view(before_near, near_start, padded)
        else:
            whole = expected_near[near_start:][: padded.stride * copies * unit].view(dtype.storage)
            whole[:] = 0
            view(expected_near, near_start, padded)[:] = view(before_far, far_start, theirs)
        assert np.array_equal(far, expected_far)
        assert np.array_equal(near, expected_near)


@pytest.mark.cuda
@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_copies_on_a_gpu(unit: int, cache: BinaryCache) -> None:
    from backends.cuda.backend import CudaBackend
    from backends.cuda.device import CudaDevice

    device = CudaBackend().open(0, cache)
    assert isinstance(device, CudaDevice)
    function = device.function("pad.cu", "pad", {"UNIT": str(unit)})
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
        a, b = Place(theirs, buffer.address + offset), Place(padded, near.address)
        for source, target, fill in ((a, b, True), (b, a, False)):
            argument = copy_argument(source, target, fill)
            grid, block = launch_shape(argument.width, columns, copies, fill)
            function.launch(grid, block, function.pack(argument), device.stream)
            if fill:  # in; then everything is wiped and copied out again
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
        from_linear(63, 96, 128, "bf16", alignment=2),
        from_blas(7, 5, 3, "fp32", trans_a="T"),
    ],
    ids=lambda p: p.slug,
)
def test_padded_products_on_a_gpu(problem: GemmProblem, cache: BinaryCache) -> None:
    from backends.cuda.backend import CudaBackend
    from backends.protocol import AskedFamily
    from tuners.inputs import cases
    from tuners.verify_device import DeviceVerifier

    backend = CudaBackend()
    device = backend.open(0, cache)
    family = backend.families()["cublaslt-padded"]
    assert isinstance(family, AskedFamily)
    if not family.supports(problem):
        pytest.skip(f"{problem.slug} is not padded")
    verifier = DeviceVerifier(device)
    tried = [s for s, _ in zip(family.listed(problem, device, None), range(4), strict=False)]
    assert tried
    for solution in tried:
        for case in cases(problem, 2, 5):
            if family.supports(case.problem):
                finding = verifier.check(device.load(case.problem, solution, None), case)
                assert finding.wrong == "", (solution.id, case)
