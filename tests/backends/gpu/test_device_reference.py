"""The GPU's reference against numpy: on a GPU, and its kernels compiled for the host.

On a machine with numpy, ml_dtypes, pytest and cuda-bindings alone:
python -m pytest -c /dev/null --rootdir . --noconftest -m cuda tests/backends/gpu/test_device_reference.py
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.cache import BinaryCache
from backends.cuda.backend import CudaBackend
from backends.dtypes import DTYPES, INTEGER, WEIGHT_TYPES, to_host
from backends.errors import CompilerMissing, UnsupportedProblem
from backends.gpu.context import GpuContext
from backends.gpu.device_reference import CODES, RANGES, SMALL, GpuReference, large_scale
from backends.gpu.units import KERNELS, device_unit
from backends.kernels.headers import ROOT as HEADERS
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem, from_blas
from backends.quantisation import unpacked
from backends.toolchains.emulator import Emulator
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.gpu.null_device import emulated
from tests.backends.weight_samples import FP8_SCALES, KINDS, SCALES, fp8, mx_product, mxfp4, weights
from tuners import inputs as tuners_inputs
from tuners.inputs import Case, operand_distribution, ragged
from tuners.reference import error_bound, make_reference
from tuners.verify import compare

Array = npt.NDArray[Any]
PAIRS = [(a, a) for a in ("fp64", "fp32", "fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2")]
PAIRS += [("fp8_e4m3", "fp8_e5m2"), ("fp8_e5m2", "fp8_e4m3")]
PAIRS += [(f"{a}_fnuz", f"{b}_fnuz") for a in ("fp8_e4m3", "fp8_e5m2") for b in ("fp8_e4m3", "fp8_e5m2")]
FLOATS = ("fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

# ---- devices -------------------------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[pytest.param("host", marks=needs_gxx), pytest.param("gpu", marks=pytest.mark.cuda)],
)
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GpuContext:
    """The kernels on the host's fibers, or on GPU 0."""
    cache = BinaryCache(tmp_path_factory.mktemp("reference"))
    if request.param == "host":
        return emulated(cache, units=1)
    found = CudaBackend().open(0, cache)
    assert isinstance(found, GpuContext)
    return found


@pytest.fixture
def reference(device: GpuContext) -> GpuReference:
    return GpuReference(device)


def drawn(reference: GpuReference, device: Any, layout: Layout, seed: int, distribution: str) -> Array:
    """Storage of an operand drawn onto bytes of 0xA5."""
    buffer = device.allocate(layout.bytes)
    reference.fill(buffer.address, layout.bytes, 0xA5)
    reference.draw(layout, buffer.address, seed, distribution)
    stored: Array = buffer.download(0, layout.bytes).view(layout.dtype.storage)
    buffer.free()
    return stored


class Bench:
    """Operands drawn on a device, and a reference made of them."""

    def __init__(self, reference: GpuReference, device: Any, problem: GemmProblem, distribution: str) -> None:
        self.problem, self._reference = problem, reference
        self.shapes = layouts(problem)
        self.buffers = {name: device.allocate(shape.bytes) for name, shape in self.shapes.items()}
        elements = problem.rows_d * problem.n * problem.batch
        self.expected, self.tolerance = device.allocate(8 * elements), device.allocate(4 * elements)
        kind = tuners_inputs.scaled_down(distribution, problem)
        for seed, (name, shape) in enumerate(self.shapes.items()):
            reference.fill(self.buffers[name].address, shape.bytes, 0xA5)
            drawn_as = operand_distribution(name, kind, problem)
            reference.draw(shape, self.buffers[name].address, seed, drawn_as)
        at = {name: buffer.address for name, buffer in self.buffers.items()}
        bound = error_bound(problem, distribution)
        reference.compute(
            problem, Operands.at(at, problem.scalars), bound, self.expected.address, self.tolerance.address
        )

    def view(self, name: str) -> Array:
        shape = self.shapes[name]
        return shape.view(self.buffers[name].download(0, shape.bytes).view(shape.dtype.storage))

    def reference(self) -> tuple[Array, Array]:
        p = self.problem
        expected = self.expected.download(0, self.expected.size).view(np.float64)
        tolerance = self.tolerance.download(0, self.tolerance.size).view(np.float32)
        shape = p.batch, p.n, p.rows_d
        return expected.reshape(shape), tolerance.reshape(shape)

    def put(self, values: Array) -> None:
        """Makes `values` D's elements."""
        shape = self.shapes["d"]
        raw = self.buffers["d"].download(0, shape.bytes)
        shape.view(raw.view(shape.dtype.storage))[...] = values
        self.buffers["d"].upload(raw)

    def compare(self) -> Any:
        return self._reference.compare(
            self.problem, self.buffers["d"].address, self.expected.address, self.tolerance.address
        )


def numpy_reference(
    monkeypatch: pytest.MonkeyPatch, problem: GemmProblem, inputs: Mapping[str, Array], distribution: str
) -> Any:
    monkeypatch.setattr("tuners.reference.host_inputs", lambda *_: dict(inputs))
    return make_reference(Case(problem, 0, distribution, "test"))[0]


# ---- compiling -----------------------------------------------------------------------------------


#: What programs multiply most, of the units that hold one pair of types; `make exhaustive` compiles them all.
COMMON = [("bf16", "bf16"), ("fp8_e4m3", "fp8_e4m3"), ("uint4", "bf16")]


# The unit of all types holds every variant, and takes 16 s to compile.
@pytest.mark.parametrize(
    "arch",
    [
        pytest.param("sm_80", marks=pytest.mark.exhaustive), "sm_90",
        pytest.param("sm_100", marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_every_variant_compiles(arch: str, tmp_path: Path) -> None:
    compiles(arch, {}, tmp_path)
    for pair in COMMON:
        compiles(arch, of_types(*pair), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_every_pair_of_types_compiles(arch: str, tmp_path: Path) -> None:
    for pair in [*PAIRS, ("fp4_e2m1", "fp4_e2m1"), *((kind, "bf16") for kind in WEIGHT_TYPES)]:
        compiles(arch, of_types(*pair), tmp_path)


def compiles(arch: str, defines: dict[str, str], folder: Path) -> None:
    try:
        assert Nvrtc().compile(device_unit("reference.h", arch, defines), BinaryCache(folder)).stat().st_size
    except CompilerMissing as error:
        pytest.skip(str(error))


def of_types(a: str, b: str) -> dict[str, str]:
    return {"TYPE_A": str(CODES[a]), "TYPE_B": str(CODES[b])}


# ---- conversions ---------------------------------------------------------------------------------


#: Every conversion, and the mathematics of targets without a library, for many values at a time.
CONVERSIONS = """
#include "formats.h"
extern "C" void widen_all(int format, const void* from, double* to, long long count) {
    for (long long i = 0; i < count; ++i) to[i] = gemmtune::load(format, from, i);
}
extern "C" void narrow_all(int format, const float* from, void* to, long long count) {
    for (long long i = 0; i < count; ++i) gemmtune::store(format, to, i, from[i]);
}
#define OF_MANY(name)                                                                 \\
    extern "C" void name##_all(const double* from, double* to, long long count) {     \\
        for (long long i = 0; i < count; ++i) to[i] = gemmtune::name(from[i]);        \\
    }
OF_MANY(exponential_of) OF_MANY(natural_log) OF_MANY(tangent_h) OF_MANY(cosine_pi)
extern "C" void rounded_up_all(const double* from, double* to, long long count) {
    for (long long i = 0; i < count; ++i) to[i] = gemmtune::rounded_up(from[i]);
}
"""


@pytest.fixture(scope="module")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    unit = CompileUnit(CONVERSIONS, "sm_90", (KERNELS, HEADERS))
    return ctypes.CDLL(str(Emulator().compile(unit, BinaryCache(tmp_path_factory.mktemp("conversions")))))


@needs_gxx
@pytest.mark.parametrize("kind", [*FLOATS[2:], "fp8_e8m0", "int8"])
def test_every_pattern_reads_as_what_it_is(conversions: ctypes.CDLL, kind: str) -> None:
    storage = DTYPES[kind].storage
    patterns = np.arange(2 ** (8 * storage.itemsize), dtype=f"u{storage.itemsize}").view(storage)
    got = np.empty(patterns.size)
    conversions.widen_all(
        CODES[kind],
        ctypes.c_void_p(patterns.ctypes.data),
        ctypes.c_void_p(got.ctypes.data),
        ctypes.c_longlong(patterns.size),
    )
    with np.errstate(invalid="ignore"):  # NaNs that signal
        want = patterns.astype(np.float64)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@needs_gxx
@pytest.mark.parametrize("kind", ["fp4_e2m1", "int4", "uint4"])
def test_every_half_of_a_byte_reads_as_what_it_is(conversions: ctypes.CDLL, kind: str) -> None:
    stored = np.arange(256, dtype=np.uint8)
    got = np.empty(512)
    conversions.widen_all(
        CODES[kind],
        ctypes.c_void_p(stored.ctypes.data),
        ctypes.c_void_p(got.ctypes.data),
        ctypes.c_longlong(512),
    )
    problem = mxfp4(1, 1, 32) if kind == "fp4_e2m1" else weights(1, 8, 128, kind)
    want = unpacked(problem, stored)
    assert np.array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want))


@needs_gxx
@pytest.mark.parametrize(
    ("name", "low", "high", "wanted"),
    [
        ("exponential_of", -746.0, 710.0, np.exp),
        ("exponential_of", -1.0, 1.0, np.exp),
        ("natural_log", 1e-30, 4.0, np.log),
        ("tangent_h", -25.0, 25.0, np.tanh),
        ("tangent_h", -0.3, 0.3, np.tanh),
        ("cosine_pi", 0.0, 2.0, lambda x: np.cos(np.longdouble(np.pi) * x.astype(np.longdouble))),
    ],
)
def test_mathematics_without_a_library(
    conversions: ctypes.CDLL, name: str, low: float, high: float, wanted: Any
) -> None:
    given = np.concatenate([np.random.default_rng(1).uniform(low, high, 100_000), [low, high]])
    got = np.empty(given.size)
    of_all = getattr(conversions, f"{name}_all")
    of_all(
        ctypes.c_void_p(given.ctypes.data), ctypes.c_void_p(got.ctypes.data), ctypes.c_longlong(given.size)
    )
    with np.errstate(over="ignore", under="ignore"):
        expected = np.asarray(wanted(given), np.float64)
    near = 8 * np.finfo(np.float64).eps * np.maximum(np.abs(expected), 2.0**-1022)
    if name == "cosine_pi":  # about its zeros what counts is the size of its values
        near = np.full(given.size, 1e-15)
    with np.errstate(invalid="ignore"):  # of infinities that agree
        assert np.all((np.abs(got - expected) <= near) | (got == expected))


@needs_gxx
def test_rounding_up_is_to_the_next_float(conversions: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    given = np.concatenate([rng.standard_normal(100_000), rng.uniform(-1e-40, 1e-40, 1000), [0.0, 1.0, -2.0]])
    got = np.empty(given.size)
    conversions.rounded_up_all(
        ctypes.c_void_p(given.ctypes.data), ctypes.c_void_p(got.ctypes.data), ctypes.c_longlong(given.size)
    )
    below = np.nextafter(got.astype(np.float32), np.float32(-np.inf)).astype(np.float64)
    assert np.all(got >= given)
    assert np.all(below < given)


@needs_gxx
@pytest.mark.parametrize("kind", FLOATS[2:])
def test_rounding_is_to_nearest_even_once(conversions: ctypes.CDLL, kind: str) -> None:
    dtype = DTYPES[kind]
    patterns = np.arange(2 ** (8 * dtype.bytes), dtype=f"u{dtype.bytes}").view(dtype.storage)
    with np.errstate(invalid="ignore"):
        values = patterns.astype(np.float32)
    values = np.sort(values[np.isfinite(values)])
    halves = (values[1:].astype(np.float64) + values[:-1]) / 2  # ties, which float32 holds
    around = halves.astype(np.float32)
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    given = np.concatenate(
        [
            values, around, *(np.nextafter(around, np.float32(to)) for to in (np.inf, -np.inf)),
            anything, rng.standard_normal(100_000, np.float32),
            np.array([np.inf, -np.inf, 0, -0.0], np.float32),
        ]
    )  # fmt: skip
    got = np.empty(given.size, dtype.storage)
    conversions.narrow_all(
        CODES[kind],
        ctypes.c_void_p(given.ctypes.data),
        ctypes.c_void_p(got.ctypes.data),
        ctypes.c_longlong(given.size),
    )
    with np.errstate(all="ignore"):
        want = to_host(given, dtype)
        assert np.array_equal(got.astype(np.float32), want.astype(np.float32), equal_nan=True)
    signs = np.signbit(given[given == 0]) & (not kind.endswith("_fnuz"))  # FNUZ: no negative zero
    assert np.array_equal(np.signbit(got[given == 0]), signs)


# ---- random elements -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*FLOATS, "int8", "int32"])
@pytest.mark.parametrize("distribution", ["normal", "uniform", "integers", "large", "small"])
def test_elements_follow_their_distribution(
    reference: GpuReference, device: Any, kind: str, distribution: str
) -> None:
    dtype = DTYPES[kind]
    layout = Layout(100, 200, 100, 0, 1, dtype)
    values = drawn(reference, device, layout, 7, distribution).astype(np.float64)
    assert np.array_equal(values, drawn(reference, device, layout, 7, distribution).astype(np.float64))
    assert (values != drawn(reference, device, layout, 8, distribution).astype(np.float64)).mean() > 0.4
    assert np.all(np.isfinite(values))
    shifted = np.corrcoef(values[1:], values[:-1])[0, 1]
    assert abs(shifted) < 0.03
    host = tuners_inputs.draw(np.random.default_rng(0), 20_000, dtype, distribution).astype(np.float64)
    if dtype.kind == INTEGER or distribution == "integers":
        assert set(values) == set(host)
        assert abs(values.mean() - host.mean()) < 0.05 * host.std()
        return
    quantiles = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
    ours, theirs = np.quantile(values, quantiles), np.quantile(host, quantiles)
    step = 0.3 * np.abs(theirs) if dtype.bytes == 1 else 0.0  # 8-bit floats are far apart
    assert np.all(np.abs(ours - theirs) < 0.12 * host.std() + step)
    if distribution == "uniform":
        assert 0 <= values.min() <= values.max() <= 1


def test_normal_elements_have_a_normals_moments(reference: GpuReference, device: Any) -> None:
    values = drawn(reference, device, Layout(500, 400, 500, 0, 1, DTYPES["fp32"]), 1, "normal").astype(
        np.float64
    )
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
    assert abs((values**4).mean() - 3) < 0.15
    assert np.abs(values).max() > 3.5


@pytest.mark.parametrize("distribution", ["normal", "uniform", "large", "small"])
def test_elements_of_fp64_use_their_whole_significand(
    reference: GpuReference, device: Any, distribution: str
) -> None:
    values = drawn(reference, device, Layout(500, 40, 500, 0, 1, DTYPES["fp64"]), 1, distribution)
    assert np.mean(values != values.astype(np.float32)) > 0.99
    significands = np.frexp(values)[0] * 2.0**53
    assert np.mean(significands % 16 != 0) > 0.8
    assert len(np.unique(values)) == values.size


def test_normal_elements_of_fp64_have_a_normals_moments(reference: GpuReference, device: Any) -> None:
    values = drawn(reference, device, Layout(500, 400, 500, 0, 1, DTYPES["fp64"]), 1, "normal")
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
    assert abs((values**4).mean() - 3) < 0.15
    assert abs(np.corrcoef(np.abs(values[1:]), np.abs(values[:-1]))[0, 1]) < 0.01


def test_scales_lie_about_one(reference: GpuReference, device: Any) -> None:
    values = drawn(reference, device, Layout(5000, 1, 5000, 0, 1, DTYPES["fp32"]), 1, "scale")
    assert 0.5 <= values.min() < 0.51
    assert 1.49 < values.max() < 1.5


@pytest.mark.parametrize("kind", ["fp64", "fp32", "bf16", "fp8_e4m3", "int8", "int32"])
def test_padding_stays_and_poison_covers_elements_alone(
    reference: GpuReference, device: Any, kind: str
) -> None:
    layout = Layout(5, 3, 7, 30, 2, DTYPES[kind])
    stored = drawn(reference, device, layout, 1, "normal")
    other = drawn(reference, device, replace(layout, ld=5, stride=15), 1, "normal")
    poisoned = drawn(reference, device, layout, 1, "poison")
    for flat, inside in ((stored, None), (poisoned, 0x77 if DTYPES[kind].kind == INTEGER else 0xFF)):
        element = np.zeros(layout.elements, np.bool_)
        layout.view(element)[...] = True
        raw = flat.view(np.uint8).reshape(layout.elements, -1)
        assert np.all(raw[~element] == 0xA5)
        if inside is not None:
            assert np.all(raw[element] == inside)
    assert other.size == 30


def test_overlapping_copies_agree_with_themselves(reference: GpuReference, device: Any) -> None:
    layout = Layout(20, 20, 20, 1, 3, DTYPES["fp32"])
    first, second = (drawn(reference, device, layout, 3, "normal") for _ in range(2))
    assert np.array_equal(first, second)


def test_large_values_have_the_hosts_scale() -> None:
    for dtype in DTYPES.values():
        if dtype.name in CODES:
            assert large_scale(dtype) == tuners_inputs._large(dtype)
    assert SMALL == tuners_inputs.SMALL


# ---- the reference -------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {},
    {"alpha": 2.0, "beta": 2.0, "bias": "fp32"},
    {"bias": "bf16", "bias_axis": "n", "activation": "relu"},
    {"activation": "gelu", "beta": 1.0},
    {"activation": "silu", "alpha": 2.0},
    {"batch": 3, "stride_a": 0, "beta": 1.0},
    {"batch": 2, "stride_a": 0, "stride_b": 0},
    {"scale_a": "outer", "scale_b": "outer", "alpha": 2.0, "bias": "fp32"},
    {"scale_a": "tensor", "scale_b": "tensor", "scale_d": "tensor", "activation": "gelu"},
    {"scale_a": "block_128x128", "scale_b": "block_1x128", "alpha": 2.0, "bias": "fp32"},
    {"scale_a": "block_1x128", "scale_b": "outer", "trans_a": "T"},
]


def agrees(
    reference: GpuReference,
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
    problem: GemmProblem,
    distribution: str = "normal",
) -> None:
    bench = Bench(reference, device, problem, distribution)
    inputs = {name: bench.view(name) for name in layouts(problem) if name != "d"}
    want = numpy_reference(monkeypatch, problem, inputs, distribution)
    expected, tolerance = bench.reference()
    assert np.allclose(expected, want.expected, rtol=1e-12, atol=1e-13 * np.abs(want.expected).max())
    assert np.allclose(tolerance, want.tolerance, rtol=1e-6, atol=0)
    assert np.all(tolerance >= want.tolerance * (1 - 1e-9))  # gelu cancels


@pytest.mark.parametrize("trans", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_reference_is_numpys_for_every_type_and_transpose(
    reference: GpuReference, device: Any, monkeypatch: pytest.MonkeyPatch, a: str, b: str, trans: str
) -> None:
    how: dict[str, Any] = {"trans_a": trans[0], "trans_b": trans[1]}
    agrees(reference, device, monkeypatch, ragged(from_blas(131, 70, 45, a, dtype_b=b, **how)))
    agrees(reference, device, monkeypatch, from_blas(1, 3, 1, a, dtype_b=b, **how), "uniform")


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())) or "plain")
@pytest.mark.parametrize("kind", ["fp64", "fp32", "bf16", "int8", "fp8_e4m3"])
def test_the_reference_is_numpys_for_every_epilogue(
    reference: GpuReference,
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    options: dict[str, Any],
) -> None:
    if kind == "fp64" and "scale_a" in options:
        return
    out = {"int8": "int8", "fp8_e4m3": "fp8_e4m3"}.get(kind)
    for distribution in ("normal", "integers"):
        problem = from_blas(40, 30, 21, kind, dtype_d=out, **options)
        agrees(reference, device, monkeypatch, problem, distribution)


def test_integers_saturate(reference: GpuReference, device: Any) -> None:
    bench = Bench(reference, device, from_blas(40, 30, 200, "int8", dtype_d="int8"), "normal")
    expected, tolerance = bench.reference()
    assert expected.max() == 127
    assert expected.min() == -128
    assert np.all(tolerance == 0.5)


def test_many_tiles_and_steps(reference: GpuReference, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(reference, device, monkeypatch, from_blas(257, 129, 100, "bf16", trans_a="T", batch=2, lda=103))


@pytest.mark.parametrize("kind", ["fp8_e4m3", "fp8_e4m3_fnuz", "bf16"])
@pytest.mark.parametrize("trans", ["NN", "TN", "NT"])
@pytest.mark.parametrize("sides", [("block_128x128", "block_1x128"), ("block_1x128", "block_128x128")])
def test_the_reference_is_numpys_for_every_block_of_scales(
    reference: GpuReference,
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    trans: str,
    sides: tuple[str, str],
) -> None:
    """Rows and k that end inside a block, and more than one block of each."""
    how: dict[str, Any] = {
        "trans_a": trans[0], "trans_b": trans[1], "scale_a": sides[0], "scale_b": sides[1],
    }  # fmt: skip
    agrees(reference, device, monkeypatch, from_blas(140, 131, 300, kind, dtype_d="bf16", **how))
    agrees(reference, device, monkeypatch, from_blas(1, 3, 129, kind, dtype_d="fp32", **how), "integers")


@pytest.mark.parametrize(
    ("kind", "zero", "scale"),
    [(*one, scale) for one in KINDS for scale in SCALES if scale != "tensor" or one[1] in ("none", "eight")],
)
def test_the_reference_is_numpys_for_every_quantised_weight(
    reference: GpuReference,
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    zero: str,
    scale: str,
) -> None:
    how: dict[str, Any] = {"zero_b": zero, "scale_b": scale}
    agrees(reference, device, monkeypatch, weights(3, 136, 384, kind, ldb=392, **how))
    other = {"dtype_a": "fp16", "scale_dtype": "fp32", "bias": "fp16", "beta": 1.0}
    agrees(reference, device, monkeypatch, weights(1, 8, 128, kind, **how, **other), "integers")


@pytest.mark.parametrize("scale", FP8_SCALES)
def test_the_reference_is_numpys_for_floats_of_8_bits(
    reference: GpuReference, device: Any, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    """Rows that end inside a block, and more than one block of them."""
    agrees(reference, device, monkeypatch, fp8(3, 136, 384, scale_b=scale, ldb=392))
    other = {"dtype_a": "fp16", "scale_dtype": "fp32", "bias": "fp16", "beta": 1.0}
    agrees(reference, device, monkeypatch, fp8(1, 8, 128, scale_b=scale, **other), "integers")


def test_the_reference_is_numpys_for_mxfp4(
    reference: GpuReference, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees(reference, device, monkeypatch, mxfp4(3, 136, 384, ldb=392))
    agrees(reference, device, monkeypatch, mxfp4(1, 7, 96, dtype_a="fp16", bias="fp16", beta=1.0), "integers")


def test_the_reference_is_numpys_for_products_of_mxfp4(
    reference: GpuReference, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees(reference, device, monkeypatch, mx_product(3, 136, 384, lda=392, ldb=416))
    agrees(
        reference, device, monkeypatch, mx_product(5, 7, 96, dtype_d="fp16", bias="fp16", beta=1.0), "uniform"
    )
    agrees(
        reference, device, monkeypatch, mx_product(70, 9, 160, dtype_d="fp32", activation="gelu"), "integers"
    )


def test_scales_of_powers_of_two_are_the_hosts(reference: GpuReference, device: Any) -> None:
    dtype = DTYPES["fp8_e8m0"]
    values = drawn(reference, device, Layout(100, 20, 100, 0, 1, dtype), 7, "scale").astype(np.float64)
    host = tuners_inputs.draw(np.random.default_rng(0), 2000, dtype, "scale").astype(np.float64)
    assert set(values) == set(host) == {0.25, 0.5, 1.0, 2.0}


@pytest.mark.parametrize(
    "options", [{"scale_a": "block_32", "scale_b": "block_32"}, {"scale_dtype": "fp8_e8m0"}]
)
def test_what_has_no_kernel_is_refused(reference: GpuReference, device: Any, options: dict[str, Any]) -> None:
    problem = from_blas(32, 32, 32, "fp8_e4m3", **{"scale_a": "tensor", **options})
    bound = error_bound(problem, "normal")
    with pytest.raises(UnsupportedProblem, match="no reference on the GPU for scales"):
        reference.compute(problem, Operands.at({}, (1.0, 0.0)), bound, 0, 0)


# ---- comparing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fp64", "fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("spoil", ["nothing", "one", "two", "nan", "all"])
def test_a_comparison_is_the_hosts(
    reference: GpuReference, device: Any, monkeypatch: pytest.MonkeyPatch, kind: str, spoil: str
) -> None:
    problem = from_blas(43, 31, 20, kind, batch=2, ldd=47)
    bench = Bench(reference, device, problem, "normal")
    inputs = {name: bench.view(name) for name in layouts(problem) if name != "d"}
    expected = numpy_reference(monkeypatch, problem, inputs, "normal")
    d = to_host(expected.expected, DTYPES[problem.dtype_d])
    if spoil in ("one", "two"):
        d[1, 30, 42] += d.dtype.type(3)
    if spoil == "two":
        d[1, 2, 5] += d.dtype.type(3)
    if spoil == "nan" and kind != "int8":
        d[0, 2, 7] = np.nan
    if spoil == "all":
        d = -d - d.dtype.type(1)
    bench.put(d)
    want, got = compare(expected, d), bench.compare()
    assert got.elements == d.size
    # In float64 two references differ by what they are to check.
    assert got.worst == pytest.approx(want.error_over_bound, rel=1e-6, abs=0.2 if kind == "fp64" else 1e-12)
    assert got.reference_norm == pytest.approx(np.linalg.norm(expected.expected), rel=1e-12)
    if spoil == "nan" and kind != "int8":
        assert np.isnan(got.error_norm)
    else:
        assert got.error_norm / got.reference_norm == pytest.approx(want.relative_error, rel=1e-9, abs=1e-14)
    assert bool(got.bad) == bool(want.wrong)
    if want.wrong:
        batch, column, row = got.first
        assert want.wrong.startswith(
            f"{got.bad} of {d.size} elements are off; first D[{row},{column}] of batch {batch}: "
        )
        assert got.value == float(d[got.first]) or np.isnan(got.value)
        assert got.expected == pytest.approx(expected.expected[got.first], rel=1e-12)
        assert got.tolerance == pytest.approx(expected.tolerance[got.first], rel=1e-6)
    else:
        assert got.first is None


# ---- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0, 1, 7, 16])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000, 70_001])
def test_bytes_are_counted_wherever_they_lie(
    reference: GpuReference, device: Any, size: int, shift: int
) -> None:
    rng = np.random.default_rng(size)
    buffers = [device.allocate(100_000) for _ in range(2)]
    for other_shift in (shift, shift + 3):
        a = rng.integers(0, 256, size, dtype=np.uint8)
        b = a.copy()
        changed = rng.choice(size, min(size, 37), replace=False)
        b[changed] ^= rng.integers(1, 256, changed.size, dtype=np.uint8)
        buffers[0].upload(a, shift)
        buffers[1].upload(b, other_shift)
        at = buffers[0].address + shift, buffers[1].address + other_shift
        ranges = [(*at, size), (at[0], at[0], size), (*at, size // 2)]
        assert reference.differing(ranges) == [len(changed), 0, int((a[: size // 2] != b[: size // 2]).sum())]
        counts = reference.other_than([(at[0], size), (at[1], size)], 0x77)
        assert counts == [int((values != 0x77).sum()) for values in (a, b)]
    for buffer in buffers:
        buffer.free()


def test_more_ranges_than_one_launch_takes(reference: GpuReference, device: Any) -> None:
    buffer = device.allocate(1000)
    reference.fill(buffer.address, 1000, 7)
    reference.fill(buffer.address + 500, 10, 8)
    ranges = [(buffer.address + 20 * i, 20) for i in range(2 * RANGES + 5)]
    assert reference.other_than(ranges, 7) == [10 if i == 25 else 0 for i in range(len(ranges))]
    assert reference.differing([]) == []
    target = device.allocate(1000)
    reference.copy(target.address, buffer.address, 1000)
    assert reference.differing([(target.address, buffer.address, 1000)]) == [0]
