"""cublasLtMatmul for one problem: descriptors, checks, heuristics, and launches ready to run.

Bindings: nvmath.bindings.cublasLt. Everything here needs the library and a current context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.cuda.cublaslt_algorithms import Algorithm, MatmulAlgoConfig
from backends.cuda.datatypes import COMPUTE_TYPES, DATA_TYPES, OPERATIONS
from backends.cuda.library import CUBLAS
from backends.gpu.library import LibraryCall
from backends.gpu.scalars import scalar, scale_type
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch

#: cublasLtMatmulAlgo_t, opaque.
ALGO_BYTES = 64
#: What allocators align to; heuristics are asked for what a framework's tensors are.
ALLOCATED_ALIGNMENT = 256
#: Heuristics never answered more than 8 on the versions seen, whatever is asked for.
MOST_HEURISTICS = 64
#: Stands for a pointer that is set before a launch: the library checks only that there is one.
_SOMEWHERE = 256
#: cublasLtEpilogue_t is a mask; without any bit it is DEFAULT.
_ACTIVATIONS = {"none": 0, "relu": 2, "gelu": 32}
_BIAS, _DEFAULT = 4, 1
_OUTER_VECTOR = 3


def lt() -> Any:
    """The bindings."""
    from nvmath.bindings import cublasLt  # noqa: PLC0415  (optional)

    return cublasLt


#: MatmulAlgoConfig field -> (attribute of cublasLtMatmulAlgoConfigAttributes_t, its C type), in an order in
#: which each may be set.
_ATTRIBUTES: tuple[tuple[str, int, Any], ...] = (
    ("tile_id", 1, ctypes.c_uint32),
    ("stages_id", 6, ctypes.c_uint32),
    ("splitk_num", 2, ctypes.c_int32),
    ("reduction_scheme", 3, ctypes.c_uint32),
    ("cta_swizzling", 4, ctypes.c_uint32),
    ("custom_option", 5, ctypes.c_uint32),
    ("inner_shape_id", 7, ctypes.c_uint16),
    ("cluster_shape_id", 8, ctypes.c_uint16),
)
_ID = (0, ctypes.c_int32)


def read_configuration(algo: int) -> MatmulAlgoConfig:
    """The nine attributes of the algorithm at address `algo`."""
    api, values = lt(), {}
    for name, attribute, kind in (("algo_id", *_ID), *_ATTRIBUTES):
        value, written = kind(0), ctypes.c_size_t(0)
        api.matmul_algo_config_get_attribute(
            algo, attribute, ctypes.addressof(value), ctypes.sizeof(value), ctypes.addressof(written)
        )
        values[name] = int(value.value)
    return MatmulAlgoConfig(**values)


class Algo:
    """The 64 bytes of an algorithm, built from a configuration piece by piece: only what changed is set."""

    def __init__(self, handle: int, types: tuple[int, ...], algo_id: int) -> None:
        self.bytes: npt.NDArray[np.uint64] = np.zeros(ALGO_BYTES // 8, np.uint64)
        self.address = int(self.bytes.ctypes.data)
        self._api = lt()
        self._api.matmul_algo_init(handle, *types, algo_id, self.address)
        self._set: dict[str, int] = {}
        self._values = {name: kind(0) for name, _, kind in _ATTRIBUTES}

    def configure(self, configuration: MatmulAlgoConfig) -> bool:
        """Whether the library takes every attribute."""
        for name, attribute, _ in _ATTRIBUTES:
            wanted = getattr(configuration, name)
            if self._set.get(name) == wanted:
                continue
            value = self._values[name]
            value.value = wanted
            try:
                self._api.matmul_algo_config_set_attribute(
                    self.address, attribute, ctypes.addressof(value), ctypes.sizeof(value)
                )
            except Exception:  # the bindings' own error: this value is none of this algorithm's
                self._set.pop(name, None)
                return False
            self._set[name] = wanted
        return True


class _Owned:
    """A handle of the library's, destroyed with its last user."""

    def __init__(self, handle: int, destroy: Any) -> None:
        self.handle, self._destroy = handle, destroy

    def __del__(self) -> None:
        self._destroy(self.handle)


class MatmulCall:
    """One problem as cuBLASLt sees it. Raises LaunchError for types that the library refuses."""

    def __init__(self, handle: int, problem: GemmProblem) -> None:
        p, api = problem, lt()
        self.problem, self._handle, self._api = problem, handle, api
        self.types = types(problem)
        self._layouts: list[_Owned] = []
        shape = layouts(p)
        self.a = self._layout(shape["a"], p.stride_a, p.batch)
        self.b = self._layout(shape["b"], p.stride_b, p.batch)
        self.d = self._layout(shape["d"], p.stride_d, p.batch)
        self.c = self._layout(shape["c"], p.stride_c, p.batch) if "c" in shape else self._layout_of_c()
        self._plain = self._description(None)
        self.desc = self._plain.handle
        self._result = np.zeros(1, api.matmul_heuristic_result_dtype)
        self._algos: dict[int, Algo] = {}
        self._scalars: dict[float, Any] = {}

    def _layout_of_c(self) -> int:
        """With beta = 0 C is not read: D's layout, in the type that the library wants of C."""
        p = self.problem
        layout = layouts(p)["d"]
        kind = _c_type(p)
        return self._made_layout(kind, layout.rows, layout.columns, layout.ld, p.stride_d, p.batch)

    def _layout(self, layout: Any, stride: int, batch: int) -> int:
        kind = DATA_TYPES[layout.dtype.name]
        return self._made_layout(kind, layout.rows, layout.columns, layout.ld, stride, batch)

    def _made_layout(self, kind: int, rows: int, columns: int, ld: int, stride: int, batch: int) -> int:
        api = self._api
        made: int = api.matrix_layout_create(kind, rows, columns, ld)
        self._layouts.append(_Owned(made, api.matrix_layout_destroy))
        if batch > 1:
            attributes = api.MatrixLayoutAttribute
            count, distance = ctypes.c_int32(batch), ctypes.c_int64(stride)
            for attribute, value in (
                (attributes.BATCH_COUNT, count),
                (attributes.STRIDED_BATCH_OFFSET, distance),
            ):
                address, size = ctypes.addressof(value), ctypes.sizeof(value)
                api.matrix_layout_set_attribute(made, int(attribute), address, size)
        return made

    def _description(self, operands: Operands | None) -> _Owned:
        """The operation; pointers of bias and scales are part of it."""
        p, api = self.problem, self._api
        made: int = api.matmul_desc_create(self.types[0], self.types[1])
        owned = _Owned(made, api.matmul_desc_destroy)
        names = api.MatmulDescAttribute

        def put(attribute: Any, value: Any) -> None:
            address, size = ctypes.addressof(value), ctypes.sizeof(value)
            api.matmul_desc_set_attribute(made, int(attribute), address, size)

        put(names.TRANSA, ctypes.c_int32(OPERATIONS[p.trans_a]))
        put(names.TRANSB, ctypes.c_int32(OPERATIONS[p.trans_b]))
        epilogue = _ACTIVATIONS[p.activation] | (_BIAS if p.bias else 0)
        put(names.EPILOGUE, ctypes.c_uint32(epilogue or _DEFAULT))
        if p.bias is not None:
            put(names.BIAS_POINTER, ctypes.c_void_p(operands.bias if operands else _SOMEWHERE))
            if p.bias != p.dtype_d:
                put(names.BIAS_DATA_TYPE, ctypes.c_int32(DATA_TYPES[p.bias]))
        if p.fast_accumulation:
            put(names.FAST_ACCUM, ctypes.c_int8(1))
        for kind, pointer, mode in (
            ("scale_a", names.A_SCALE_POINTER, names.A_SCALE_MODE),
            ("scale_b", names.B_SCALE_POINTER, names.B_SCALE_MODE),
            ("scale_d", names.D_SCALE_POINTER, None),
        ):
            if getattr(p, kind) == "none":
                continue
            put(pointer, ctypes.c_void_p(getattr(operands, kind) if operands else _SOMEWHERE))
            if getattr(p, kind) == "outer" and mode is not None:
                put(mode, ctypes.c_int32(_OUTER_VECTOR))
        return owned

    def _scalar(self, value: float) -> Any:
        if value not in self._scalars:
            self._scalars[value] = scalar(self.problem, value)
        return self._scalars[value]

    def check(self, configuration: MatmulAlgoConfig) -> int | None:
        """Workspace bytes of a configuration, None where the library refuses it (cublasLtMatmulAlgoCheck)."""
        algo = self.algo(configuration)
        if algo is None:
            return None
        try:
            self._api.matmul_algo_check(
                self._handle,
                self.desc,
                self.a,
                self.b,
                self.c,
                self.d,
                algo.address,
                self._result.ctypes.data,
            )
        except Exception:  # the bindings' own error: the library's word for "no"
            return None
        return int(self._result[0]["workspace_size"])

    def algo(self, configuration: MatmulAlgoConfig) -> Algo | None:
        """The algorithm set to a configuration; its bytes hold until the next call for the same algorithm."""
        if configuration.algo_id not in self._algos:
            try:
                self._algos[configuration.algo_id] = Algo(self._handle, self.types, configuration.algo_id)
            except Exception:  # no algorithm of that number for these types
                return None
        algo = self._algos[configuration.algo_id]
        return algo if algo.configure(configuration) else None

    def heuristics(self, max_workspace_bytes: int) -> Iterator[tuple[MatmulAlgoConfig, int, bytes]]:
        """What cublasLtMatmulAlgoGetHeuristic answers: configuration, workspace, the algorithm's bytes."""
        api = self._api
        preference = api.matmul_preference_create()
        try:
            names = api.MatmulPreferenceAttribute
            limit = ctypes.c_uint64(max_workspace_bytes)
            api.matmul_preference_set_attribute(
                preference, int(names.MAX_WORKSPACE_BYTES), ctypes.addressof(limit), 8
            )
            aligned = self.problem.alignment
            least = ctypes.c_uint32(ALLOCATED_ALIGNMENT if aligned == 16 else aligned)
            for name in ("A", "B", "C", "D"):
                attribute = int(getattr(names, f"MIN_ALIGNMENT_{name}_BYTES"))
                api.matmul_preference_set_attribute(preference, attribute, ctypes.addressof(least), 4)
            found = np.zeros(MOST_HEURISTICS, api.matmul_heuristic_result_dtype)
            count = ctypes.c_int32(0)
            try:
                api.matmul_algo_get_heuristic(
                    self._handle, self.desc, self.a, self.b, self.c, self.d, preference,
                    MOST_HEURISTICS, found.ctypes.data, ctypes.addressof(count),
                )  # fmt: skip
            except api.cuBLASLtError:  # no algorithm runs the problem
                return
        finally:
            api.matmul_preference_destroy(preference)
        for index in range(count.value):
            if int(found[index]["state"]) == 0:
                row = found[index : index + 1]
                data = row["algo"].tobytes()
                yield read_configuration(row.ctypes.data), int(found[index]["workspace_size"]), data

    def launch(
        self,
        algo: npt.NDArray[np.uint64],
        operands: Operands,
        workspace: int,
        size: int,
        stream: int,
        guard: LibraryCall,
    ) -> Launch:
        """One call with everything looked up. `algo` are the algorithm's 64 bytes; `guard` turns the
        library's errors into ours."""
        matmul, handle = self._api.matmul, self._handle
        pointers = operands.bias or operands.scale_a or operands.scale_b or operands.scale_d
        description = self._description(operands) if pointers else self._plain
        desc = description.handle
        alpha, beta = self._scalar(operands.alpha), self._scalar(operands.beta)
        at_alpha, at_beta, at_algo = ctypes.addressof(alpha), ctypes.addressof(beta), int(algo.ctypes.data)
        a, b, d = operands.a, operands.b, operands.d
        # With beta = 0 C is not read; D's own address would be refused where the types differ.
        c = operands.c or (d if self.types[4] == self.types[5] else a)
        la, lb, lc, ld = self.a, self.b, self.c, self.d
        kept = (alpha, beta, algo, description, self)

        def launch(_: Any = kept) -> None:
            try:  # entering the guard each time would cost 0.3 us
                matmul(
                    handle, desc, at_alpha, a, la, b, lb, at_beta, c, lc, d, ld, at_algo,
                    workspace, size, stream,
                )  # fmt: skip
            except Exception as error:
                with guard:
                    raise error

        return launch


def types(problem: GemmProblem) -> tuple[int, ...]:
    """compute, scale, A, B, C, D as AlgoInit and AlgoGetIds take them."""
    return (
        COMPUTE_TYPES[problem.compute],
        DATA_TYPES[scale_type(problem)],
        DATA_TYPES[problem.dtype_a],
        DATA_TYPES[problem.dtype_b],
        DATA_TYPES[problem.dtype_c] if problem.beta != "zero" else _c_type(problem),
        DATA_TYPES[problem.dtype_d],
    )


def _c_type(problem: GemmProblem) -> int:
    """C's type where it is not read: D's, but a 16-bit one where D is an 8-bit float (the library's table
    of types has no other)."""
    return DATA_TYPES["bf16" if problem.dtype_d.startswith("fp8") else problem.dtype_d]


def read_algorithms(handle: int, kinds: tuple[int, ...]) -> list[Algorithm]:
    """Every algorithm of these types with its capabilities; none for types that the library refuses."""
    api = lt()
    caps = api.MatmulAlgoCapAttribute
    found = []
    try:
        identifiers = api.matmul_algo_get_ids(handle, *kinds, 1000)
    except api.cuBLASLtError as error:
        if int(error.status) not in CUBLAS.refusals:
            raise
        return []
    for algo_id in identifiers:
        algo = Algo(handle, kinds, int(algo_id))

        def one(attribute: Any, size: int = 4, at: int = algo.address) -> int:
            buffer, written = (ctypes.c_uint8 * 8)(), ctypes.c_size_t(0)
            api.matmul_algo_cap_get_attribute(
                at, int(attribute), ctypes.addressof(buffer), size, ctypes.addressof(written)
            )
            return int.from_bytes(bytes(buffer), "little")

        def many(attribute: Any, at: int = algo.address) -> tuple[int, ...]:
            buffer, written = (ctypes.c_uint32 * 4096)(), ctypes.c_size_t(0)
            api.matmul_algo_cap_get_attribute(
                at, int(attribute), ctypes.addressof(buffer), ctypes.sizeof(buffer), ctypes.addressof(written)
            )
            return tuple(buffer[: written.value // 4])

        found.append(
            Algorithm(
                algo_id=int(algo_id),
                tiles=many(caps.TILE_IDS),
                stages=many(caps.STAGES_IDS),
                splits_k=bool(one(caps.SPLITK_SUPPORT)),
                reductions=one(caps.REDUCTION_SCHEME_MASK),
                swizzles=bool(one(caps.CTA_SWIZZLING_SUPPORT)),
                custom_max=one(caps.CUSTOM_OPTION_MAX),
                epilogues=one(caps.EPILOGUE_MASK),
                batches=bool(one(caps.STRIDED_BATCH_SUPPORT)),
                out_of_place=bool(one(caps.OUT_OF_PLACE_RESULT_SUPPORT)),
                alignment=(
                    one(caps.MIN_ALIGNMENT_A_BYTES),
                    one(caps.MIN_ALIGNMENT_B_BYTES),
                    one(caps.MIN_ALIGNMENT_C_BYTES),
                    one(caps.MIN_ALIGNMENT_D_BYTES),
                ),
            )
        )
    return found
