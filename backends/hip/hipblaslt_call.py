"""hipblasLtMatmul for one problem: descriptors, candidates, and launches ready to run.

Everything here needs the library and the current device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from backends.gpu.library import LibraryCall, LibraryError
from backends.gpu.scalars import scalar, scale_type
from backends.hip.datatypes import COMPUTE_TYPES, DATA_TYPES, OPERATIONS
from backends.hip.hipblaslt_api import Algo, Found, HipblasLtApi
from backends.hip.library import prepared
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch

#: How many answers the heuristic is asked for: more than any list seen (2,226 on gfx90a).
MOST_HEURISTICS = 4096
#: hipblasLtMatmulDescAttributes_t
_TRANS_A, _TRANS_B, _EPILOGUE, _BIAS_POINTER, _BIAS_TYPE = 0, 1, 2, 3, 4
_SCALE_POINTERS = {"scale_a": 5, "scale_b": 6, "scale_d": 8}
_SCALE_MODES = {"scale_a": 31, "scale_b": 32}
#: HIPBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
_OUTER_VECTOR = 3
#: hipblasLtEpilogue_t is a mask; without any bit it is DEFAULT.
_ACTIVATIONS = {"none": 0, "relu": 2, "gelu": 32, "silu": 65536}
_BIAS, _DEFAULT = 4, 1
#: Stands for a pointer that is set before a launch: the library checks only that there is one.
_SOMEWHERE = 256
#: More workspace than any solution needs.
_UNLIMITED = 2**40
#: An algorithm's max_workspace_bytes as getAllAlgos gives it. hipblasLtMatmul (1.1) reads 32 bits of that
#: number: a limit of 2**40, which the heuristic copies into its answers, would be one of 0.
_NO_LIMIT, _LARGEST_LIMIT = 2**64 - 1, 2**31 - 1


class MatmulCall:
    """One problem as hipBLASLt sees it. Raises LibraryError for types that the library refuses."""

    def __init__(self, api: HipblasLtApi, handle: int, problem: GemmProblem) -> None:
        p = problem
        self.problem, self._api, self._handle = problem, api, handle
        self._descs: list[int] = []
        self._layouts: list[int] = []
        found = layouts(p)
        # With beta = 0 C is not read: D's layout.
        for name in ("a", "b", "c" if "c" in found else "d", "d"):
            stride = getattr(p, f"stride_{name}")
            self._layouts.append(self._layout(found[name], stride, p.batch))
        self._plain = self._desc(None)
        self._one, self._zero = scalar(p, 1.0), scalar(p, 0.0 if p.beta == "zero" else 1.0)
        self._picked: dict[int, Found] | None = None

    def _layout(self, layout: Layout, stride: int, batch: int) -> int:
        kind = DATA_TYPES[layout.dtype.name]
        return self._api.layout(kind, layout.rows, layout.columns, layout.ld, batch, stride)

    def _desc(self, operands: Operands | None) -> int:
        """A descriptor with the operands' bias and scales; None: with pointers that stand for them."""
        p, api = self.problem, self._api
        desc = api.desc(COMPUTE_TYPES[p.compute], DATA_TYPES[scale_type(p)])
        self._descs.append(desc)
        api.set_desc(desc, _TRANS_A, ctypes.c_int32(OPERATIONS[p.trans_a]))
        api.set_desc(desc, _TRANS_B, ctypes.c_int32(OPERATIONS[p.trans_b]))
        epilogue = _ACTIVATIONS[p.activation] | (_BIAS if p.bias is not None else 0)
        api.set_desc(desc, _EPILOGUE, ctypes.c_uint32(epilogue or _DEFAULT))
        if p.bias is not None:
            api.set_desc(desc, _BIAS_TYPE, ctypes.c_int32(DATA_TYPES[p.bias]))
            pointer = _SOMEWHERE if operands is None else operands.bias
            api.set_desc(desc, _BIAS_POINTER, ctypes.c_void_p(pointer))
        for name, attribute in _SCALE_POINTERS.items():
            if getattr(p, name) == "none":
                continue
            if getattr(p, name) == "outer":
                api.set_desc(desc, _SCALE_MODES[name], ctypes.c_uint32(_OUTER_VECTOR))
            pointer = _SOMEWHERE if operands is None else getattr(operands, name)
            api.set_desc(desc, attribute, ctypes.c_void_p(pointer))
        return desc

    def __del__(self) -> None:
        for desc in getattr(self, "_descs", ()):
            self._api.destroy_desc(desc)
        for layout in getattr(self, "_layouts", ()):
            self._api.destroy_layout(layout)

    def heuristics(self, limit: int, most: int = MOST_HEURISTICS) -> list[Found]:
        """The heuristic's answers within `limit` bytes of workspace, the best first. Raises LibraryError."""
        return self._api.heuristics(self._handle, self._plain, self._layouts, limit, most)

    def supported(self, limit: int) -> Iterator[tuple[Found, int]]:
        """Every solution that supports the problem with its bytes of workspace, within `limit`: the union of
        the heuristic's answers, the best first, and of the extension's list; neither holds the other.
        Raises LibraryError where both fail."""
        seen: set[int] = set()
        failed: LibraryError | None = None
        try:
            picked = self.heuristics(limit)
        except LibraryError as error:
            picked, failed = [], error
        for found in picked:
            # Not asked for again: of tf32 problems the extension supports none of the fp32 kernels that the
            # heuristic answers and hipblasLtMatmul runs where an architecture has no others.
            if found.index >= 0 and found.index not in seen and found.workspace_bytes <= limit:
                seen.add(found.index)
                yield found, found.workspace_bytes
        if not self._api.extended:
            if failed is not None:
                raise failed
            return
        # By index: the library lists these in the order of their addresses.
        for found in sorted(self.every(), key=lambda found: found.index):
            if found.index < 0 or found.index in seen:
                continue
            size = self.supports(found)
            if size is not None and size <= limit:
                seen.add(found.index)
                yield found, size

    def workspace(self, found: Found) -> int | None:
        """Bytes of workspace that a solution needs here; None where it does not support the problem: where
        neither the extension says that it does, nor the heuristic answers it. Raises LibraryError. `found`
        must be the library's own: of an index that it does not have it reads beyond its tables."""
        if not self._api.extended:
            return found.workspace_bytes
        size = self.supports(found)
        if size is None:
            picked = self._picks().get(found.index)
            size = None if picked is None else picked.workspace_bytes
        return size

    def every(self) -> list[Found]:
        """Every solution for the problem's types and operations, whatever its sizes. Needs the extension.
        Raises LibraryError."""
        p = self.problem
        operations = OPERATIONS[p.trans_a], OPERATIONS[p.trans_b]
        c = p.dtype_c if p.beta != "zero" else p.dtype_d
        types = [DATA_TYPES[name] for name in (p.dtype_a, p.dtype_b, c, p.dtype_d)]
        return self._api.every(self._handle, operations, types, COMPUTE_TYPES[p.compute])

    def supports(self, found: Found) -> int | None:
        """What the extension says of a solution: bytes of workspace, None where it does not support the
        problem."""
        scalars = ctypes.addressof(self._one), ctypes.addressof(self._zero)
        return self._api.supports(self._handle, self._plain, self._layouts, scalars, found)

    def _picks(self) -> dict[int, Found]:
        """The heuristic's answers by their indices, asked for once."""
        if self._picked is None:
            self._picked = {found.index: found for found in self.heuristics(_UNLIMITED)}
        return self._picked

    def by_index(self, index: int) -> Found | None:
        """The solution of that index, None where the library has none; without the extension it is looked for
        among the heuristic's answers. Raises LibraryError."""
        if self._api.extended:
            return self._api.from_index(self._handle, index)
        return self._picks().get(index)

    def names(self, found: Found) -> dict[str, str]:
        """The names of a solution and of its kernel, where the extension tells them."""
        return self._api.names(self._handle, found) if self._api.extended else {}

    def launch(
        self, found: Found, operands: Operands, workspace: int, size: int, stream: int, guard: LibraryCall
    ) -> Launch:
        """One call with everything looked up; `guard` turns the library's status into our errors."""
        matmul, handle = self._api.matmul, self._handle
        pointers = operands.bias or operands.scale_a or operands.scale_b or operands.scale_d
        desc = self._desc(operands) if pointers else self._plain
        algo = Algo.from_buffer_copy(found.algo)
        if algo.max_workspace_bytes > _LARGEST_LIMIT:
            algo.max_workspace_bytes = _NO_LIMIT
        alpha, beta = scalar(self.problem, operands.alpha), scalar(self.problem, operands.beta)
        la, lb, lc, ld = self._layouts
        queue = prepared(matmul, (
            handle, desc, ctypes.addressof(alpha), operands.a, la, operands.b, lb, ctypes.addressof(beta),
            operands.c or operands.d, lc, operands.d, ld, ctypes.addressof(algo), workspace, size, stream,
        ))  # fmt: skip
        kept = (alpha, beta, algo, self)

        def launch(_: Any = kept) -> None:
            status = queue()
            if status:
                with guard:
                    raise LibraryError(status)

        return launch
