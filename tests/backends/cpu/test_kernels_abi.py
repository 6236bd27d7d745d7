"""The CPU kernel headers through their C ABI, against NumPy in float64.

Every operand, the workspace included, ends right at an inaccessible page (or starts right after
one), and everything that is not an operand's element is poisoned.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import platform
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from backends.cpu import compiler
from backends.cpu.driver import read_cpu

KERNELS = Path(__file__).parents[3] / "backends" / "cpu" / "kernels"
OK, NULL_POINTER, BAD_SIZE, BAD_OPTION, SMALL_WORKSPACE, UNSUPPORTED, THREADS_MISSING = range(7)
NO_BIAS, ROW_BIAS, COLUMN_BIAS = range(3)
IDENTITY, RELU, GELU, SILU = range(4)
Array = npt.NDArray[Any]
DTYPES = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "Half": np.dtype(np.float16),
    "Bf16": np.dtype(ml_dtypes.bfloat16),
    "int8_t": np.dtype(np.int8),
    "int32_t": np.dtype(np.int32),
}
EPSILON = {"float": 2.0**-24, "double": 2.0**-53, "Half": 2.0**-11, "Bf16": 2.0**-8, "int32_t": 0.0}


def fields(names: str, kind: type[Any]) -> list[tuple[str, type[Any]]]:
    return [(name, kind) for name in names.split()]


class GemmArgs(ctypes.Structure):
    """abi.h's struct."""

    _fields_ = [
        *fields("m n k batch lda ldb ldc ldd", ctypes.c_int64),
        *fields("stride_a stride_b stride_c stride_d", ctypes.c_int64),
        *fields("a b c d bias", ctypes.c_void_p),
        *fields("alpha beta", ctypes.c_double),
        *fields("mc nc kc", ctypes.c_int64),
        *fields("workspace", ctypes.c_void_p),
        *fields("workspace_bytes", ctypes.c_int64),
        *fields("parallel", ctypes.c_void_p),
        *fields("trans_a trans_b bias_axis activation threads reserved", ctypes.c_int32),
    ]


# ---- Units under test ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """A generated translation unit; `rows` and `columns` are its tile (stream: RM, NB)."""

    family: str
    a: str
    d: str
    accumulator: str
    rows: int
    columns: int
    dot: str = "Upcast"
    bias: str = ""
    isa: str = "native"

    @property
    def name(self) -> str:
        return "_".join((self.family, self.a, self.d, self.dot, self.isa))

    @property
    def bias_type(self) -> str:
        return self.bias or self.accumulator

    @property
    def integral(self) -> bool:
        return self.accumulator == "int32_t"

    def source(self) -> str:
        types = (self.a, self.a, self.d, self.d, self.bias_type, self.accumulator)
        arguments = ", ".join((*types, str(self.rows), str(self.columns), self.dot))
        return f'#include "{self.family}.h"\nGEMMTUNE_{self.family.upper()}({arguments})\n'


def cpu_flags() -> frozenset[str]:
    if platform.machine() != "x86_64":
        return frozenset()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return frozenset(next(line for line in lines if line.startswith("flags")).split())


FLAGS = cpu_flags()
VECTOR_BYTES = 64 if "avx512vl" in FLAGS else 32 if "avx2" in FLAGS else 16
LANES = VECTOR_BYTES // 4
PACKED = [
    Unit("packed", "float", "float", "float", 3 * LANES, 8),
    Unit("packed", "double", "double", "double", LANES, 6),
    Unit("packed", "Half", "Half", "float", 2 * LANES, 6, bias="Half"),
    Unit("packed", "Bf16", "float", "float", LANES, 14),
    Unit("packed", "int8_t", "int32_t", "int32_t", 2 * LANES, 4),
]
STREAM = [
    Unit("stream", "float", "float", "float", 4, 6),
    Unit("stream", "Half", "float", "float", 3, 4),
]
BASELINE = "-march=x86-64-v2" if platform.machine() == "x86_64" else ""
PACKED.append(Unit("packed", "Half", "Half", "float", 8, 4, isa="baseline"))
STREAM.append(Unit("stream", "Bf16", "Bf16", "float", 4, 2, isa="baseline"))
if {"avx512_bf16", "avx512vl"} <= FLAGS:
    PACKED.append(Unit("packed", "Bf16", "Bf16", "float", 2 * LANES, 8, "Bf16Dot"))
    STREAM.append(Unit("stream", "Bf16", "Bf16", "float", 4, 4, "Bf16Dot", bias="Bf16"))
if {"avx512_vnni", "avx512vl"} <= FLAGS:
    PACKED.append(Unit("packed", "int8_t", "int32_t", "int32_t", 2 * LANES, 8, "Int8Dot"))
    STREAM.append(Unit("stream", "int8_t", "int32_t", "int32_t", 4, 4, "Int8Dot"))
UNITS = PACKED + STREAM


def compile_unit(folder: Path, name: str, source: str, isa: str) -> Path:
    path, library = folder / f"unit_{name}.cpp", folder / f"unit_{name}.so"
    path.write_text(source)
    machine = compiler.target_flags(read_cpu().partition)
    assert f"-DGEMMTUNE_VECTOR_BYTES={VECTOR_BYTES}" in machine
    if isa == "baseline":
        machine = (*BASELINE.split(), "-DGEMMTUNE_VECTOR_BYTES=16")
    found = compiler.find_compiler()  # with the system's headers precompiled (tests/conftest.py)
    assert found is not None
    flags = [*compiler.FLAGS, "-Wall", "-Wextra", "-Werror", *machine, f"-I{KERNELS}"]
    command = [*found.command, *flags, str(path), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("kernels")
    jobs = [(unit.name, unit.source(), unit.isa) for unit in UNITS]
    jobs.append(("runtime", '#include "runtime.cpp"\n', "native"))
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda job: compile_unit(folder, *job), jobs))
    loaded = {name: ctypes.CDLL(str(path)) for (name, _, _), path in zip(jobs, paths, strict=True)}
    for unit in UNITS:
        loaded[unit.name].gemmtune_workspace.restype = ctypes.c_int64
    return loaded


# ---- Guarded memory ------------------------------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """`size` bytes between two inaccessible pages, flush against one of them."""

    def __init__(self, size: int, at_end: bool) -> None:
        page = mmap.PAGESIZE
        inner = -(-size // page) * page
        self._map = mmap.mmap(-1, inner + 2 * page)
        everything = np.frombuffer(self._map, np.uint8)
        base = everything.ctypes.data
        for guard in (base, base + page + inner):
            if LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        start = page + (inner - size if at_end else 0)
        self.bytes: npt.NDArray[np.uint8] = everything[start : start + size]
        self.bytes[:] = 0xFF  # a NaN in every floating-point type

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data


class Operand:
    """A strided batch of column-major matrices whose every other element stays poisoned."""

    def __init__(self, values: Array, dtype: np.dtype[Any], padding: int, gap: int, at_end: bool) -> None:
        batch, rows, columns = values.shape
        self.ld = rows + padding
        span = (columns - 1) * self.ld + rows
        self.stride = span + gap if batch > 1 else 0
        self.memory = Guarded(((batch - 1) * self.stride + span) * dtype.itemsize, at_end)
        flat = self.memory.bytes.view(dtype)
        strides = tuple(dtype.itemsize * step for step in (self.stride, 1, self.ld))
        self.values: Array = np.lib.stride_tricks.as_strided(flat, values.shape, strides)
        self.values[:] = values.astype(dtype)

    @property
    def address(self) -> int:
        return self.memory.address

    def poison_intact(self) -> bool:
        copy = self.memory.bytes.copy()
        saved = self.values.copy()
        self.values[:] = np.zeros((), self.values.dtype)
        outside = self.memory.bytes.copy()
        self.values[:] = saved
        inside = np.ones(len(copy), np.bool_)
        item = self.values.dtype.itemsize
        for index in itertools.product(*(range(extent) for extent in self.values.shape[::2])):
            start = (index[0] * self.stride + index[1] * self.ld) * item
            inside[start : start + self.values.shape[1] * item] = False
        return bool(np.all(outside[inside] == 0xFF))


# ---- One product ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    batch: int = 1
    trans_a: int = 0
    trans_b: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    bias_axis: int = NO_BIAS
    activation: int = IDENTITY
    threads: int = 1
    blocks: tuple[int, int, int] = (96, 96, 64)
    padding: int = 0
    gap: int = 0
    broadcast: str = ""
    in_place: bool = False
    at_end: bool = True
    extremes: bool = False
    seed: int = field(default=0, compare=False)


def activate(x: Array, activation: int) -> Array:
    if activation == RELU:
        return np.maximum(x, 0)
    if activation == GELU:
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)))
    if activation == SILU:
        return np.asarray(x / (1 + np.exp(-x)))
    return x


def wide(array: Array) -> Array:
    return np.asarray(array.astype(np.float64))


def draw(rng: np.random.Generator, shape: tuple[int, ...], case: Case, integral: bool) -> Array:
    if case.extremes:
        return rng.choice(np.array([-128.0, 127.0]), shape)
    if integral:
        return rng.integers(-128, 128, shape).astype(np.float64)
    return np.asarray(rng.standard_normal(shape))


def run(library: ctypes.CDLL, args: GemmArgs) -> int:
    return int(library.gemmtune_run(ctypes.byref(args)))


def check(libraries: dict[str, ctypes.CDLL], unit: Unit, case: Case) -> None:
    rng = np.random.default_rng((case.m, case.n, case.k, case.seed))
    small, large = DTYPES[unit.a], DTYPES[unit.d]

    def operand(name: str, rows: int, columns: int, dtype: np.dtype[Any]) -> Operand:
        batch = 1 if name in case.broadcast else case.batch
        values = draw(rng, (batch, rows, columns), case, unit.integral)
        return Operand(values, dtype, case.padding, case.gap, case.at_end)

    a = operand("a", *((case.k, case.m) if case.trans_a else (case.m, case.k)), small)
    b = operand("b", *((case.n, case.k) if case.trans_b else (case.k, case.n)), small)
    c = operand("c", case.m, case.n, large)
    d = c if case.in_place else operand("d", case.m, case.n, large)
    length = {NO_BIAS: 1, ROW_BIAS: case.m, COLUMN_BIAS: case.n}[case.bias_axis]
    bias = operand("abcd", length, 1, DTYPES[unit.bias_type])
    op_a = wide(a.values.swapaxes(1, 2) if case.trans_a else a.values)
    op_b = wide(b.values.swapaxes(1, 2) if case.trans_b else b.values)
    bias_values = wide(bias.values[0, :, 0])
    if case.bias_axis != COLUMN_BIAS:
        bias_values = bias_values[:, None]
    if case.bias_axis == NO_BIAS:
        bias_values = np.zeros((1, 1))
    sums = case.alpha * (op_a @ op_b) + bias_values
    sizes = abs(case.alpha) * (abs(op_a) @ abs(op_b)) + abs(bias_values)
    if case.beta != 0:
        sums = sums + case.beta * wide(c.values)
        sizes = sizes + abs(case.beta * wide(c.values))
    elif not case.in_place:
        c.memory.bytes[:] = 0xFF
    expected = activate(np.broadcast_to(sums, (case.batch, case.m, case.n)), case.activation)

    args = GemmArgs(m=case.m, n=case.n, k=case.k, batch=case.batch)
    args.lda, args.ldb, args.ldc, args.ldd = a.ld, b.ld, c.ld, d.ld
    args.stride_a, args.stride_b, args.stride_c, args.stride_d = (x.stride for x in (a, b, c, d))
    args.a, args.b, args.d, args.bias = a.address, b.address, d.address, bias.address
    args.c = c.address if case.beta != 0 or case.at_end else None
    args.alpha, args.beta = case.alpha, case.beta
    args.mc, args.nc, args.kc = case.blocks
    args.trans_a, args.trans_b, args.threads = case.trans_a, case.trans_b, case.threads
    args.bias_axis, args.activation = case.bias_axis, case.activation
    parallel = libraries["runtime"].gemmtune_parallel
    args.parallel = ctypes.cast(parallel, ctypes.c_void_p).value
    library = libraries[unit.name]
    workspace = Guarded(int(library.gemmtune_workspace(ctypes.byref(args))), True)
    args.workspace, args.workspace_bytes = workspace.address, len(workspace.bytes)
    assert run(library, args) == OK, case

    actual = wide(d.values)
    if unit.integral:
        np.testing.assert_array_equal(actual, expected, err_msg=str(case))
    else:
        bound = EPSILON[unit.accumulator] * (case.k + 16) * sizes * 1.2
        error = abs(actual - expected) - EPSILON[unit.d] * abs(expected) * 1.01
        assert np.all(error <= bound + 1e-7 * (unit.d == "Half")), (case, np.max(error - bound))
    for x in (a, b, d):
        assert x.poison_intact(), case


def edges(tile: int, prime: int) -> list[int]:
    return sorted({1, 2, max(tile - 1, 1), tile, tile + 1, prime})


def tile_rows(unit: Unit) -> int:
    return unit.rows if unit.family == "packed" else unit.rows * LANES


def per_unit(units: list[Unit]) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("unit", units, ids=lambda unit: str(unit.name))


def transposes() -> Iterator[tuple[int, int]]:
    return itertools.product((0, 1), (0, 1))


# ---- Tests ---------------------------------------------------------------------------------------


@per_unit(UNITS)
def test_ragged_sizes_and_transposes(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    depths = itertools.cycle([1, 2, 3, 5, 16, 31, 67, 130, 193])
    sizes = itertools.product(edges(tile_rows(unit), 97), edges(unit.columns, 29), transposes())
    for count, (m, n, (trans_a, trans_b)) in enumerate(sizes):
        padding, at_end = count % 3, count % 5 != 0
        case = Case(m, n, next(depths), 1, trans_a, trans_b, padding=padding, at_end=at_end)
        check(libraries, unit, case)


@per_unit(UNITS)
def test_epilogues(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    activations = (IDENTITY, RELU) if unit.integral else (IDENTITY, RELU, GELU, SILU)
    scales = itertools.cycle([(1.0, 0.0), (2.0, 1.0), (-1.0, 3.0), (1.0, -2.0)])
    if not unit.integral:
        scales = itertools.cycle([(1.0, 0.0), (0.5, 1.0), (0.3, -0.7), (1.0, 0.25)])
    axes = (NO_BIAS, ROW_BIAS, COLUMN_BIAS)
    depths = (20, 150)  # one block of k, and several
    for axis, activation, k, _ in itertools.product(axes, activations, depths, range(4)):
        alpha, beta = next(scales)
        case = Case(53, 13, k, 1, 1, 0, alpha, beta, axis, activation, padding=1)
        check(libraries, unit, case)


@per_unit(UNITS)
def test_blocks(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    for mc, nc, kc in itertools.product((1, 70, 10**9), (1, 20, 10**9), (1, 33, 10**9)):
        for trans_a, trans_b in transposes():
            case = Case(131, 37, 139, 1, trans_a, trans_b, 0.5 if not unit.integral else 2.0, 1.0)
            check(libraries, unit, replace(case, blocks=(mc, nc, kc)))


@per_unit(UNITS)
def test_threads(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    for threads, (m, n), batch in itertools.product(
        (1, 2, 3, 4, 5), ((1, 1), (7, 3), (200, 31), (30, 200)), (1, 4)
    ):
        trans_a, trans_b = threads % 2, (threads + m) % 2
        check(libraries, unit, Case(m, n, 130, batch, trans_a, trans_b, threads=threads))


@per_unit(UNITS)
def test_batches(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    for broadcast, threads, gap in itertools.product(("", "a", "b", "c", "abc"), (1, 3), (0, 5)):
        case = Case(35, 9, 70, 5, 1, 0, 1.0, 1.0, ROW_BIAS, RELU, threads, padding=gap)
        check(libraries, unit, replace(case, broadcast=broadcast, gap=gap))


@per_unit(UNITS)
def test_in_place(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    for k, threads, batch in itertools.product((5, 200), (1, 2), (1, 3)):
        case = Case(83, 19, k, batch, 0, 0, 2.0, 3.0, COLUMN_BIAS, RELU, threads, padding=2)
        check(libraries, unit, replace(case, in_place=True))


@per_unit([unit for unit in UNITS if unit.integral])
def test_int8_extremes(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    for (trans_a, trans_b), k in itertools.product(transposes(), (1, 127, 1000)):
        check(libraries, unit, Case(49, 17, k, 1, trans_a, trans_b, extremes=True))


@per_unit([unit for unit in UNITS if not unit.integral])
def test_special_values(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    """Infinities, NaNs, subnormals and overflow pass through as IEEE arithmetic has them."""
    dtype, out = DTYPES[unit.a], DTYPES[unit.d]
    finfo: Any = ml_dtypes.finfo
    info = finfo(dtype)
    special = [np.inf, -np.inf, np.nan, float(info.max), -float(info.max), 0.0, -0.0, 1.5]
    if unit.dot != "Bf16Dot":
        special.append(float(info.smallest_subnormal) * 3)
    column = np.array(special * 5, np.float64)
    a = Operand(column.reshape(1, -1, 1), dtype, 0, 0, True)
    b = Operand(np.array([[[1.0, -2.0]]]), dtype, 0, 0, True)
    d = Operand(np.zeros((1, len(column), 2)), out, 0, 0, True)
    args = GemmArgs(m=len(column), n=2, k=1, batch=1, lda=a.ld, ldb=b.ld, ldc=d.ld, ldd=d.ld)
    args.a, args.b, args.d, args.alpha = a.address, b.address, d.address, 1.0
    args.mc, args.nc, args.kc, args.threads = 64, 64, 64, 1
    library = libraries[unit.name]
    workspace = Guarded(int(library.gemmtune_workspace(ctypes.byref(args))), True)
    args.workspace, args.workspace_bytes = workspace.address, len(workspace.bytes)
    assert run(library, args) == OK
    with np.errstate(over="ignore", invalid="ignore"):
        accumulator = DTYPES[unit.accumulator].type
        product = a.values[0].astype(accumulator) * b.values[0].astype(accumulator)
        np.testing.assert_array_equal(wide(d.values[0]), wide(product.astype(out)))


@per_unit(UNITS)
def test_errors(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    library = libraries[unit.name]
    assert library.gemmtune_abi() == 1
    one = Guarded(64, True)
    workspace = Guarded(1 << 20, True)

    def code(**changes: float) -> int:
        args = GemmArgs(m=1, n=1, k=1, batch=1, lda=1, ldb=1, ldc=1, ldd=1, mc=1, nc=1, kc=1)
        args.a = args.b = args.c = args.d = args.bias = one.address
        args.workspace, args.workspace_bytes = workspace.address, len(workspace.bytes)
        args.alpha, args.threads = 1.0, 1
        for name, value in changes.items():
            setattr(args, name, value)
        return run(library, args)

    one.bytes[:] = 0
    assert code() == OK
    for name in ("m", "n", "k", "batch", "mc", "nc", "kc", "threads", "lda", "ldb", "ldd"):
        assert code(**{name: 0}) == BAD_SIZE, name
    assert code(beta=1.0, ldc=0) == BAD_SIZE
    for name in ("trans_a", "trans_b", "bias_axis", "activation"):
        assert code(**{name: 4}) == code(**{name: -1}) == BAD_OPTION, name
    for name in ("a", "b", "d", "workspace"):
        assert code(**{name: 0}) == NULL_POINTER, name
    assert code(c=0) == code(bias=0) == OK
    assert code(c=0, beta=1.0) == code(bias=0, bias_axis=1) == NULL_POINTER
    assert code(threads=2) == NULL_POINTER  # no `parallel`
    assert code(workspace_bytes=8) == SMALL_WORKSPACE
    assert code(alpha=0.5) == (UNSUPPORTED if unit.integral else OK)
    assert code(activation=GELU) == (UNSUPPORTED if unit.integral else OK)
    invalid = GemmArgs()
    assert library.gemmtune_workspace(ctypes.byref(invalid)) == 0


@per_unit(STREAM)
def test_stream_wants_few_columns(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    check(libraries, unit, Case(70, 64, 5))
    check(libraries, unit, Case(64, 70, 5))
    args = GemmArgs(m=70, n=65, k=1, batch=1, lda=70, ldb=1, ldc=70, ldd=70, mc=1, nc=1, kc=1)
    args.alpha, args.threads = 1.0, 1
    assert run(libraries[unit.name], args) == UNSUPPORTED
    assert libraries[unit.name].gemmtune_workspace(ctypes.byref(args)) == 0


@per_unit([UNITS[0]])
def test_missing_threads_are_reported(libraries: dict[str, ctypes.CDLL], unit: Unit) -> None:
    task_type = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
    parallel_type = ctypes.CFUNCTYPE(None, ctypes.c_int32, task_type, ctypes.c_void_p)

    def one_thread_only(threads: int, task: Callable[..., None], context: int) -> None:
        task(0, 1, context)

    memory = Guarded(1 << 20, True)
    address = memory.address
    args = GemmArgs(m=1, n=1, k=1, batch=1, lda=1, ldb=1, ldc=1, ldd=1, mc=1, nc=1, kc=1)
    args.a = args.b = args.d = args.workspace = address
    args.workspace_bytes, args.threads, args.alpha = len(memory.bytes), 2, 1.0
    parallel = parallel_type(one_thread_only)
    args.parallel = ctypes.cast(parallel, ctypes.c_void_p).value
    assert run(libraries[unit.name], args) == THREADS_MISSING


def test_read_and_copy(libraries: dict[str, ctypes.CDLL]) -> None:
    runtime = libraries["runtime"]
    runtime.gemmtune_read.restype = ctypes.c_double
    size = 100_003
    source, target = Guarded(size, True), Guarded(size, False)
    source.bytes[:] = np.arange(size) % 251
    for threads in (1, 2, 3):
        target.bytes[:] = 0
        pointers = (ctypes.c_void_p(target.address), ctypes.c_void_p(source.address))
        runtime.gemmtune_copy(*pointers, ctypes.c_int64(size), ctypes.c_int32(threads))
        np.testing.assert_array_equal(target.bytes, source.bytes)
        total = runtime.gemmtune_read(pointers[1], ctypes.c_int64(size), ctypes.c_int32(threads))
        words = source.bytes[: size // 64 * 64].view(np.uint64)
        assert total == float(int(words.sum(dtype=np.uint64)))
