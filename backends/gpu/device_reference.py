"""Verifying on the GPU: inputs, float64 references and comparisons by our kernels (kernels/reference.h)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from backends.dtypes import DTYPES, INTEGER, DType
from backends.errors import UnsupportedProblem
from backends.gpu.context import GpuContext
from backends.gpu.driver import Function
from backends.grouping import NO_ROUTING, gated, scaled_blocks, spans_of
from backends.kernels.launch import Extent, KernelLaunch
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.problem_rules import BLOCKS
from backends.protocol import Buffer
from backends.quantisation import group_of, groups_of, scale_rows
from backends.reference_protocol import Comparison, ErrorBound

SOURCE = "reference.h"
#: formats.h: enum Format.
CODES: Mapping[str, int] = {
    "fp64": 0, "fp32": 1, "fp16": 2, "bf16": 3, "fp8_e4m3": 4, "fp8_e5m2": 5, "int8": 6, "int32": 7,
    "fp8_e4m3_fnuz": 8, "fp8_e5m2_fnuz": 9, "int4": 10, "uint4": 11, "fp4_e2m1": 12, "fp8_e8m0": 13,
}  # fmt: skip
#: reference.h: enum Activation.
_ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
#: draw.h: enum Distribution.
_NORMAL, _UNIFORM, _INTEGERS, _WHOLE, _SCALE, _POISON, _ZERO, _SHIFT, _BYTE, _POWER = range(10)
_KINDS = {
    "normal": _NORMAL, "large": _NORMAL, "small": _NORMAL, "uniform": _UNIFORM, "integers": _INTEGERS,
    "scale": _SCALE, "zero": _ZERO, "shift": _SHIFT,
}  # fmt: skip
#: reference.h: enum Zero.
_ZEROS = {"none": 0, "eight": 1, "uint4": 2, "float": 3, "shift": 4}
#: The scale of `small` values, as in tuners/inputs.py.
SMALL = 2.0**-3
#: The kernels' block size, tile of D, ranges of one launch.
THREADS, TILE_M, TILE_N, RANGES = 256, 128, 64, 16
#: Enough blocks a multiprocessor to fill it; the kernels walk what is left.
_BLOCKS = 8


class _Layout(ctypes.Structure):
    _fields_ = [(name, ctypes.c_longlong) for name in ("rows", "columns", "ld", "stride", "copies")]


class _Ranges(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_ulonglong * RANGES) for name in ("address", "other", "size")),
        ("value", ctypes.c_uint),
        ("unused", ctypes.c_uint),
    ]


class _Summary(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_ulonglong) for name in ("bad", "worst", "first")),
        ("error", ctypes.c_double),
        ("reference", ctypes.c_double),
    ]


class _CountBytes(ctypes.Structure):
    _fields_ = (("ranges", _Ranges), ("counts", ctypes.c_void_p))


class _Draw(ctypes.Structure):
    _fields_ = (
        ("layout", _Layout), ("base", ctypes.c_void_p), ("seed", ctypes.c_ulonglong),
        ("format", ctypes.c_int), ("distribution", ctypes.c_int), ("parameter", ctypes.c_float),
    )  # fmt: skip


class _Compare(ctypes.Structure):
    _fields_ = (
        ("layout", _Layout), ("d", ctypes.c_void_p), ("expected", ctypes.c_void_p),
        ("tolerance", ctypes.c_void_p), ("relative", ctypes.c_double), ("absolute", ctypes.c_double),
        ("out", ctypes.c_void_p), ("format", ctypes.c_int), ("unused", ctypes.c_int),
    )  # fmt: skip


class _LookUp(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("d", "expected", "tolerance", "out")),
        ("at", ctypes.c_longlong), ("index", ctypes.c_longlong),
        ("format", ctypes.c_int), ("unused", ctypes.c_int),
    )  # fmt: skip


class _Factor(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("stride", "step_i", "step_k")),
    ]


class _BlockScales(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_void_p), ("side", ctypes.c_longlong), ("depth", ctypes.c_longlong),
        ("pitch", ctypes.c_longlong), ("format", ctypes.c_int), ("unused", ctypes.c_int),
    )  # fmt: skip


class _ZeroPoints(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("kind", ctypes.c_int), ("unused", ctypes.c_int))


class _Product(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_longlong) for name in ("m", "n", "k", "batch")),
        *((name, _Factor) for name in ("a", "b")),
        *((name, ctypes.c_void_p) for name in ("c", "bias", "scale_a", "scale_b", "scale_d")),
        *((name, ctypes.c_longlong) for name in ("ldc", "stride_c")),
        *(
            (name, ctypes.c_double)
            for name in ("alpha", "beta", "rough", "step", "slope", "rounding", "least", "low", "high")
        ),
        *(
            (name, ctypes.c_int)
            for name in ("type_c", "type_bias", "bias_on_n", "outer_a", "outer_b", "activation")
        ),
        *((name, _BlockScales) for name in ("block_a", "block_b")),
        ("zero_a", _ZeroPoints),
    ]


class _Reference(ctypes.Structure):
    _fields_ = (("product", _Product), ("expected", ctypes.c_void_p), ("tolerance", ctypes.c_void_p))


class _Gate(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("product", "error", "expected", "tolerance")),
        ("half", ctypes.c_longlong), ("n", ctypes.c_longlong),
        *((name, ctypes.c_double) for name in ("slope", "rounding", "least")),
    )  # fmt: skip


#: Dynamic shared memory of each kernel's blocks (kernels/*.h: kSharedBytes).
_SHARED = {
    "count_bytes": THREADS * 8, "draw": 0, "compare": 4 * THREADS * 8, "look_up": 0, "gate": 0,
    "reference": 16 * (TILE_M + 1 + TILE_N + 1) * 8,
}  # fmt: skip
#: Where results lie in their buffer: a summary, one element's values, counts of bytes.
_LOOKED_UP, _COUNTS, _RESULTS = 64, 128, 256


def large_scale(dtype: DType) -> float:
    """The scale of `large` values of a type, as in tuners/inputs.py."""
    return 128.0 if dtype.kind == INTEGER else float(min(2.0**40, dtype.largest**0.25))


class GpuReference:
    """backends.protocol.DeviceReference on a GPU. Everything is queued on the device's stream; what
    returns numbers waits for them, once."""

    def __init__(self, device: GpuContext) -> None:
        self._device = device
        self._functions: dict[tuple[str, int, int], Function] = {}
        self._results: Buffer | None = None

    def fill(self, address: int, size: int, value: int) -> None:
        """Sets `size` bytes to `value`."""
        if size:
            self._device.driver.fill(address, value, size, self._device.stream)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copies bytes within the device."""
        if size:
            self._device.driver.copy(target, source, size, self._device.stream)

    def draw(self, layout: Layout, address: int, seed: int, distribution: str) -> None:
        """Random elements; "poison" sets every byte of them to tuners/verify.py's poison instead."""
        kind, parameter = _kind(layout.dtype, distribution)
        blocks = self._blocks(layout.copies * layout.columns * layout.rows)
        code = _code(layout.dtype.name)
        given = _Draw(_layout(layout), address, seed & (2**64 - 1), code, kind, parameter)
        self._launch("draw", (blocks, 1, 1), given)

    def compute(
        self, problem: GemmProblem, operands: Operands, bound: ErrorBound, expected: int, tolerance: int
    ) -> None:
        """Every element of D in float64 arithmetic, with its tolerance. Raises UnsupportedProblem."""
        p = problem
        if gated(p):
            self._compute_gated(p, operands, bound, expected, tolerance)
            return
        if p.groups:
            for group, start, end in spans_of(p):
                self._compute_group(p, group, start, end, operands, bound, expected, tolerance)
            return
        tiles = -(-p.m // TILE_M) * -(-p.n // TILE_N) * p.batch
        types = _code(p.dtype_a), _code(p.dtype_b)
        given = _Reference(_product(p, operands, bound), expected, tolerance)
        self._launch("reference", (tiles, 1, 1), given, types=types)

    def _compute_gated(
        self, p: GemmProblem, operands: Operands, bound: ErrorBound, expected: int, tolerance: int
    ) -> None:
        """compute() of gated rows: from the product's own reference, and its errors."""
        plain = replace(p, activation="none", ldc=p.m, ldd=p.m)
        product, error = (self._device.allocate(size * p.m * p.n) for size in (8, 4))
        try:
            unrounded = replace(bound, slope=1.0, rounding=0.0, least=0.0)
            self.compute(plain, operands, unrounded, product.address, error.address)
            given = _Gate(
                product.address, error.address, expected, tolerance, p.rows_d, p.n,
                bound.slope, bound.rounding, bound.least,
            )  # fmt: skip
            self._launch("gate", (self._blocks(p.rows_d * p.n), 1, 1), given)
        finally:
            product.free()
            error.free()

    def _compute_group(
        self,
        p: GemmProblem,
        group: int,
        start: int,
        end: int,
        operands: Operands,
        bound: ErrorBound,
        expected: int,
        tolerance: int,
    ) -> None:
        """compute() of the rows of one group, a product of its own."""
        own = replace(p, n=end - start, groups=0, routing=NO_ROUTING)
        weights = DTYPES[p.dtype_a].size(group * p.stride_a)
        rows = DTYPES[p.dtype_b].size(start * p.ldb)
        given = replace(operands, a=operands.a + weights, b=operands.b + rows)
        shapes = layouts(p)
        for name in ("scale_a", "zero_a"):
            if name in shapes:
                of_group = group * shapes[name].stride * shapes[name].dtype.bytes
                given = replace(given, **{name: getattr(operands, name) + of_group})
        if "scale_b" in shapes:
            of_b = shapes["scale_b"]
            of_row = of_b.ld if scaled_blocks(p) else 1
            given = replace(given, scale_b=operands.scale_b + start * of_row * of_b.dtype.bytes)
        self.compute(own, given, bound, expected + 8 * start * p.m, tolerance + 4 * start * p.m)

    def compare(
        self,
        problem: GemmProblem,
        d: int,
        expected: int,
        tolerance: int,
        allowance: tuple[float, float] = (0.0, 0.0),
    ) -> Comparison:
        """See DeviceReference. Raises LaunchError for what failed before it."""
        layout = layouts(problem)["d"]
        elements = problem.rows_d * problem.n * problem.batch
        code = _code(layout.dtype.name)
        results = self._result_buffer()
        self.fill(results.address, ctypes.sizeof(_Summary), 0)
        given = _Compare(_layout(layout), d, expected, tolerance, *allowance, results.address, code)
        self._launch("compare", (self._blocks(elements), 1, 1), given)
        raw = results.download(0, ctypes.sizeof(_Summary))
        found = _Summary.from_buffer_copy(raw.tobytes())
        first, values = None, (0.0, 0.0, 0.0)
        if found.bad:
            index = ~found.first & (2**64 - 1)
            rest, row = divmod(index, problem.rows_d)
            copy, column = divmod(rest, problem.n)
            first = (copy, column, row)
            at = copy * layout.stride + column * layout.ld + row
            given_one = _LookUp(d, expected, tolerance, results.address + _LOOKED_UP, at, index, code)
            self._launch("look_up", (1, 1, 1), given_one)
            looked = results.download(_LOOKED_UP, 24).view(np.float64)
            allowed = float(looked[2]) + allowance[0] * abs(float(looked[1])) + allowance[1]
            values = (float(looked[0]), float(looked[1]), allowed)
        worst = ctypes.c_double.from_buffer_copy(ctypes.c_ulonglong(found.worst)).value
        norms = math.sqrt(found.error), math.sqrt(found.reference)
        return Comparison(elements, int(found.bad), worst, first, *values, *norms)

    def differing(self, pairs: Sequence[tuple[int, int, int]]) -> list[int]:
        """For each (address, address, size): how many bytes differ."""
        return self._count(pairs, 0)

    def other_than(self, ranges: Sequence[tuple[int, int]], value: int) -> list[int]:
        """For each (address, size): how many bytes are not `value`."""
        return self._count([(address, 0, size) for address, size in ranges], value)

    def _count(self, ranges: Sequence[tuple[int, int, int]], value: int) -> list[int]:
        counts: list[int] = []
        results = self._result_buffer()
        at = results.address + _COUNTS
        for start in range(0, len(ranges), RANGES):
            part = ranges[start : start + RANGES]
            given = _Ranges(value=value * 0x01010101)
            for i, (address, other, size) in enumerate(part):
                given.address[i], given.other[i], given.size[i] = address, other, size
            self.fill(at, 8 * len(part), 0)
            blocks = self._blocks(max(size for _, _, size in part) // 16)
            self._launch("count_bytes", (blocks, len(part), 1), _CountBytes(given, at))
            counts += results.download(_COUNTS, 8 * len(part)).view(np.uint64).tolist()
        return counts

    def _blocks(self, items: int) -> int:
        return max(1, min(-(-items // THREADS), _BLOCKS * self._device.units))

    def _result_buffer(self) -> Buffer:
        if self._results is None:
            self._results = self._device.allocate(_RESULTS)
        return self._results

    def _launch(
        self, name: str, grid: Extent, argument: ctypes.Structure, types: tuple[int, int] | None = None
    ) -> None:
        key = (name, *(types or (-1, -1)))
        if key not in self._functions:
            defines = {} if types is None else {"TYPE_A": str(types[0]), "TYPE_B": str(types[1])}
            self._functions[key] = self._device.function(SOURCE, name, defines)
        function = self._functions[key]
        shape = KernelLaunch(name, grid, (THREADS, 1, 1), _SHARED[name])
        self._device.bind(function, shape, argument)()


def _code(name: str) -> int:
    if name not in CODES:
        raise UnsupportedProblem(f"no reference on the GPU for {name}; known: {', '.join(CODES)}")
    return CODES[name]


def _kind(dtype: DType, distribution: str) -> tuple[int, float]:
    """The kernel's distribution and its parameter."""
    whole = dtype.kind == INTEGER
    if distribution == "poison":
        return _POISON, dtype.poison
    if dtype.packing > 1:
        return _BYTE, 0.0
    if dtype.name == "fp8_e8m0":
        return _POWER, 2.0
    if distribution not in _KINDS:
        raise ValueError(f"distribution {distribution!r} is unknown; known: {', '.join(_KINDS)}")
    if whole:
        if distribution == "small":
            return _INTEGERS, 1.0
        return _WHOLE, 8.0 if distribution in ("normal", "integers") else 128.0
    parameters = {"large": large_scale(dtype), "small": SMALL, "integers": 4.0}
    return _KINDS[distribution], parameters.get(distribution, 1.0)


def _layout(layout: Layout) -> _Layout:
    return _Layout(layout.rows, layout.columns, layout.ld, layout.stride, layout.copies)


def _product(p: GemmProblem, operands: Operands, bound: ErrorBound) -> _Product:
    scaled = {p.scale_a, p.scale_b, p.scale_d} - {"none"}
    typed = p.weight_only or p.mx_product or p.scale_dtype in (None, "fp32")
    if scaled - {"tensor", "outer", *BLOCKS} or not typed:
        raise UnsupportedProblem(f"no reference on the GPU for scales {sorted(scaled)} of {p.scale_dtype}")
    a = (1, p.lda) if p.trans_a == "N" else (p.lda, 1)
    b = (p.ldb, 1) if p.trans_b == "N" else (1, p.ldb)
    low, high = -math.inf, math.inf
    if DTYPES[p.dtype_d].kind == INTEGER:
        info = np.iinfo(DTYPES[p.dtype_d].storage)
        low, high = float(info.min), float(info.max)
    return _Product(
        m=p.m, n=p.n, k=p.k, batch=p.batch,
        a=_Factor(operands.a, p.stride_a, *a), b=_Factor(operands.b, p.stride_b, *b),
        c=operands.c if p.beta != "zero" else 0, bias=operands.bias if p.bias is not None else 0,
        scale_a=0 if p.weight_only or p.scale_a in BLOCKS else operands.scale_a,
        scale_b=0 if p.scale_b in BLOCKS else operands.scale_b, scale_d=operands.scale_d,
        ldc=p.ldc, stride_c=p.stride_c, alpha=operands.alpha, beta=operands.beta,
        rough=bound.rough, step=bound.step, slope=bound.slope, rounding=bound.rounding, least=bound.least,
        low=low, high=high,
        type_c=_code(p.dtype_c) if p.beta != "zero" else 0,
        type_bias=_code(p.bias) if p.bias is not None else 0,
        bias_on_n=p.bias_axis == "n", outer_a=p.scale_a == "outer", outer_b=p.scale_b == "outer",
        activation=_ACTIVATIONS[p.activation],
        block_a=_weight_scales(p, operands) if p.weight_only
        else _block_scales(p.scale_a, operands.scale_a, p),
        block_b=_block_scales(p.scale_b, operands.scale_b, p),
        zero_a=_ZeroPoints(operands.zero_a, _ZEROS[p.zero_a]),
    )  # fmt: skip


def _block_scales(mode: str, address: int, p: GemmProblem) -> _BlockScales:
    """The scales of an operand's blocks; none for another mode."""
    if mode not in BLOCKS:
        return _BlockScales()
    side, depth = BLOCKS[mode]
    return _BlockScales(address, side, depth, -(-p.k // depth), _code(p.scale_dtype or "fp32"))


def _weight_scales(p: GemmProblem, operands: Operands) -> _BlockScales:
    """The scales of quantised weights: of groups, of rows, of blocks, or one for the whole matrix."""
    side = p.m if p.scale_a == "tensor" else scale_rows(p)
    return _BlockScales(operands.scale_a, side, group_of(p), groups_of(p), _code(p.scale_dtype or "fp32"))
