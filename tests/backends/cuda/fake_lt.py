"""nvmath.bindings.cublasLt without the library: it keeps descriptors, checks what is written against the real
bindings' types, and answers from tables."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from nvmath.bindings import cublasLt as real  # noqa: N813  (a module)

from backends.cuda.cublaslt_algorithms import Algorithm, MatmulAlgoConfig
from backends.cuda.cublaslt_call import ALGO_BYTES
from tests.backends.cuda.fakes import LibraryError

#: MatmulAlgoConfig fields by the number of their attribute.
BY_NUMBER = ("algo_id", "tile_id", "splitk_num", "reduction_scheme", "cta_swizzling", "custom_option",
             "stages_id", "inner_shape_id", "cluster_shape_id")  # fmt: skip
NOT_SUPPORTED = 15


def value_at(address: int, size: int, kind: Any) -> int:
    """The integer of a numpy type at an address; its size must be the type's."""
    assert size == np.dtype(kind).itemsize
    return int(np.frombuffer(ctypes.string_at(address, size), kind)[0])


class FakeLt:
    """An algorithm's 64 bytes are its nine attributes as int32, by their number. `legal` says what
    matmul_algo_check answers; `heuristic` are its answers; `refused` are (attribute, value) that an
    algorithm does not take."""

    MatmulDescAttribute = real.MatmulDescAttribute
    MatrixLayoutAttribute = real.MatrixLayoutAttribute
    MatmulPreferenceAttribute = real.MatmulPreferenceAttribute
    MatmulAlgoCapAttribute = real.MatmulAlgoCapAttribute
    MatmulTile = real.MatmulTile
    matmul_heuristic_result_dtype = real.matmul_heuristic_result_dtype
    cuBLASLtError = LibraryError  # noqa: N815

    def __init__(
        self,
        algorithms: Sequence[Algorithm] = (),
        legal: Callable[[MatmulAlgoConfig], int | None] = lambda one: 0,
        heuristic: Sequence[tuple[MatmulAlgoConfig, int]] = (),
    ) -> None:
        self.algorithms = {one.algo_id: one for one in algorithms}
        self.legal, self.heuristic = legal, list(heuristic)
        self.refused: set[tuple[str, int]] = set()
        self.layouts: dict[int, dict[str, Any]] = {}
        self.descriptions: dict[int, dict[str, int]] = {}
        self.preferences: list[dict[str, int]] = []
        self.alive: set[int] = set()
        self.sets: list[tuple[str, int]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.checked: list[tuple[int, ...]] = []
        self.asked_types: list[tuple[int, ...]] = []
        self.fault: Exception | None = None
        self._handles = 100

    def _new(self) -> int:
        self._handles += 1
        self.alive.add(self._handles)
        return self._handles

    def create(self) -> int:
        return self._new()

    # ---- descriptors

    def matrix_layout_create(self, kind: int, rows: int, columns: int, ld: int) -> int:
        made = self._new()
        self.layouts[made] = {"kind": kind, "rows": rows, "columns": columns, "ld": ld}
        return made

    def matrix_layout_set_attribute(self, made: int, attribute: int, address: int, size: int) -> None:
        kind = real.get_matrix_layout_attribute_dtype(attribute)
        self.layouts[made][real.MatrixLayoutAttribute(attribute).name] = value_at(address, size, kind)

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        made = self._new()
        self.descriptions[made] = {"compute": compute, "scale": scale}
        return made

    def matmul_desc_set_attribute(self, made: int, attribute: int, address: int, size: int) -> None:
        kind = real.get_matmul_desc_attribute_dtype(attribute)
        self.descriptions[made][real.MatmulDescAttribute(attribute).name] = value_at(address, size, kind)

    def _destroy(self, made: int) -> None:
        self.alive.remove(made)

    matrix_layout_destroy = matmul_desc_destroy = matmul_preference_destroy = _destroy

    # ---- algorithms

    def matmul_algo_get_ids(self, handle: int, *types_and_count: int) -> list[int]:
        *types, count = types_and_count
        self.asked_types.append(tuple(types))
        return list(self.algorithms)[:count]

    def matmul_algo_init(self, handle: int, *types_and_rest: int) -> None:
        *types, algo_id, address = types_and_rest
        if algo_id not in self.algorithms:
            raise LibraryError(NOT_SUPPORTED)
        self.asked_types.append(tuple(types))
        fresh = np.zeros(ALGO_BYTES // 4, np.int32)
        fresh[0], fresh[2] = algo_id, 1
        ctypes.memmove(address, fresh.ctypes.data, ALGO_BYTES)

    def matmul_algo_config_set_attribute(self, algo: int, attribute: int, address: int, size: int) -> None:
        kind = real.get_matmul_algo_config_attribute_dtype(attribute)
        value = value_at(address, size, kind)
        name = BY_NUMBER[attribute]
        self.sets.append((name, value))
        if (name, value) in self.refused:
            raise LibraryError(7)
        (ctypes.c_int32 * len(BY_NUMBER)).from_address(algo)[attribute] = value

    def matmul_algo_config_get_attribute(
        self, algo: int, attribute: int, address: int, size: int, written: int
    ) -> None:
        kind = np.dtype(real.get_matmul_algo_config_attribute_dtype(attribute))
        assert size == kind.itemsize
        value = (ctypes.c_int32 * len(BY_NUMBER)).from_address(algo)[attribute]
        ctypes.memmove(address, np.array([value]).astype(kind).ctypes.data, size)
        ctypes.c_size_t.from_address(written).value = size

    def matmul_algo_cap_get_attribute(
        self, algo: int, attribute: int, address: int, size: int, written: int
    ) -> None:
        one = self.algorithms[self.config(algo).algo_id]
        name = real.MatmulAlgoCapAttribute(attribute).name
        kind = np.dtype(real.get_matmul_algo_cap_attribute_dtype(attribute))
        told: Mapping[str, Any] = {
            "TILE_IDS": one.tiles, "STAGES_IDS": one.stages, "SPLITK_SUPPORT": (one.splits_k,),
            "REDUCTION_SCHEME_MASK": (one.reductions,), "CTA_SWIZZLING_SUPPORT": (one.swizzles,),
            "CUSTOM_OPTION_MAX": (one.custom_max,), "EPILOGUE_MASK": (one.epilogues,),
            "STRIDED_BATCH_SUPPORT": (one.batches,), "OUT_OF_PLACE_RESULT_SUPPORT": (one.out_of_place,),
            **{f"MIN_ALIGNMENT_{x}_BYTES": (one.alignment[i],) for i, x in enumerate("ABCD")},
        }  # fmt: skip
        values = np.array(told[name], kind)
        assert values.nbytes <= size
        ctypes.memmove(address, values.ctypes.data, values.nbytes)
        ctypes.c_size_t.from_address(written).value = values.nbytes

    @staticmethod
    def config(algo: int) -> MatmulAlgoConfig:
        """What 64 bytes at an address are set to."""
        numbers = (ctypes.c_int32 * len(BY_NUMBER)).from_address(algo)
        return MatmulAlgoConfig(**dict(zip(BY_NUMBER, numbers, strict=True)))

    def matmul_algo_check(self, *arguments: int) -> None:
        *what, algo, result = arguments
        self.checked.append(tuple(what))
        size = self.legal(self.config(algo))
        if size is None:
            raise LibraryError(NOT_SUPPORTED)
        row = np.zeros(1, self.matmul_heuristic_result_dtype)
        row["workspace_size"] = size
        ctypes.memmove(result, row.ctypes.data, row.nbytes)

    # ---- heuristics and launches

    def matmul_preference_create(self) -> int:
        self.preferences.append({})
        return self._new()

    def matmul_preference_set_attribute(self, made: int, attribute: int, address: int, size: int) -> None:
        kind = real.get_matmul_preference_attribute_dtype(attribute)
        name = real.MatmulPreferenceAttribute(attribute).name
        self.preferences[-1][name] = value_at(address, size, kind)

    def matmul_algo_get_heuristic(self, *arguments: int) -> None:
        *_, most, results, count = arguments
        limit = self.preferences[-1]["MAX_WORKSPACE_BYTES"]
        found = [(one, size) for one, size in self.heuristic if size <= limit][:most]
        if not found:
            raise LibraryError(NOT_SUPPORTED)
        rows = np.zeros(len(found), self.matmul_heuristic_result_dtype)
        for row, (one, size) in zip(rows, found, strict=True):
            numbers = np.zeros(ALGO_BYTES // 4, np.int32)
            numbers[: len(BY_NUMBER)] = [getattr(one, name) for name in BY_NUMBER]
            row["algo"]["data_"] = numbers.view(np.uint64)
            row["workspace_size"] = size
            row["state"] = 0 if one.tile_id >= 0 else NOT_SUPPORTED
        ctypes.memmove(results, rows.ctypes.data, rows.nbytes)
        ctypes.c_int32.from_address(count).value = len(found)

    def matmul(self, *arguments: int) -> None:
        assert len(arguments) == 16
        if self.fault is not None:
            raise self.fault
        self.calls.append((*arguments, self.config(arguments[12])))
