"""HipblasLtApi and RocblasApi on a recording: they answer as the genuine libraries did, without a library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from backends.gpu.library import LibraryError
from backends.hip import rocblas
from backends.hip.hipblaslt_api import Algo, Found, HipblasLtApi
from backends.hip.hipblaslt_call import MatmulCall
from backends.hip.rocblas_api import CHECK_INDEX
from backends.problem import GemmProblem

#: hipblasLtMatmulDescAttributes_t
_TRANS_A, _TRANS_B = "0", "1"
_UNLIMITED = 2**64 - 1


class Descriptors:
    """Stores the arguments and attributes with which MatmulCall creates layouts and descriptors."""

    extended, extension_missing = True, None

    def __init__(self) -> None:
        self._objects: list[Any] = []
        #: (descriptor, layouts) -> their description, as JSON.
        self._keys: dict[tuple[int, ...], str] = {}

    def _add(self, created: Any) -> int:
        self._objects.append(created)
        return len(self._objects)

    def layout(self, *values: int) -> int:
        return self._add(list(values))

    def desc(self, compute: int, scale_type: int) -> int:
        return self._add({"compute": compute, "scale": scale_type})

    def set_desc(self, desc: int, attribute: int, value: Any) -> None:
        self._objects[desc - 1][str(attribute)] = value.value
        self._keys.clear()

    def destroy_desc(self, desc: int) -> None:
        """Does nothing: handles stay valid."""

    def destroy_layout(self, layout: int) -> None:
        """Does nothing: handles stay valid."""

    def description(self, desc: int, layouts: Sequence[int]) -> dict[str, Any]:
        """The descriptor's attributes by their numbers, and the layouts of A, B, C and D."""
        return {"desc": self._objects[desc - 1], "layouts": [self._objects[layout - 1] for layout in layouts]}


class _Describing(Descriptors):
    """Keeps the description of the problem whose heuristic is queried."""

    described: Mapping[str, Any]

    def heuristics(
        self, handle: int, desc: int, layouts: Sequence[int], limit: int, most: int
    ) -> list[Found]:
        self.described = self.description(desc, layouts)
        return []


def described(problem: GemmProblem) -> Mapping[str, Any]:
    """How the backend describes a problem to hipBLASLt; see Descriptors.description()."""
    api = _Describing()
    MatmulCall(cast(HipblasLtApi, api), 1, problem).heuristics(0)
    return api.described


class RecordedHipblasLt(Descriptors):
    """HipblasLtApi on the recorded answers of one device."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__()
        self._answers = answers
        #: Description -> answers; with `sizes`, index -> workspace, where the library lists solutions.
        self._problems: dict[str, dict[str, Any]] = {}
        for one in answers["problems"].values():
            if "described" in one:
                pairs = zip(one.get("every", ()), one.get("supports", ()), strict=True)
                self._problems[_key(one["described"])] = {**one, "sizes": dict(pairs)}

    def create(self) -> int:
        return 1

    def version(self, handle: int) -> int:
        return cast(int, self._answers["version"])

    def revision(self, handle: int) -> str:
        return cast(str, self._answers["revision"])

    def _answer(self, desc: int, layouts: Sequence[int]) -> Mapping[str, Any]:
        handles = (desc, *layouts)
        if handles not in self._keys:
            self._keys[handles] = _key(self.description(desc, layouts))
        one = self._problems[self._keys[handles]]
        if "status" in one:
            raise LibraryError(one["status"])
        return cast(Mapping[str, Any], one)

    def heuristics(
        self, handle: int, desc: int, layouts: Sequence[int], limit: int, most: int
    ) -> list[Found]:
        """The answers within `limit`, in the recorded order of the unlimited query. The genuine library
        filters in the same way (`limit_filters` of the recording)."""
        one = self._answer(desc, layouts)
        sizes = one["sizes"] | {int(index): size for index, size in one["heuristic_differs"].items()}
        fitting = [index for index in one["heuristic"] if sizes[index] <= limit]
        return [_found(index, sizes[index], limit) for index in fitting[:most]]

    def every(
        self, handle: int, operations: tuple[int, int], types: Sequence[int], compute: int
    ) -> list[Found]:
        """In reverse order: the library's order is arbitrary, so callers must not depend on it."""
        wanted = [*operations, *types, compute]
        for one in self._problems.values():
            desc, layouts = one["described"]["desc"], one["described"]["layouts"]
            kinds = [layout[0] for layout in layouts]
            if [desc[_TRANS_A], desc[_TRANS_B], *kinds, desc["compute"]] == wanted:
                if "status" in one:
                    raise LibraryError(one["status"])
                # getAllAlgos fills in no size of the workspace.
                return [_found(index, 16384, _UNLIMITED) for index in reversed(one["every"])]
        raise AssertionError(f"no recorded problem has operations, types and compute type {wanted}")

    def from_index(self, handle: int, index: int) -> Found | None:
        known = self._answers["names"]
        return _found(index, 0, _UNLIMITED) if index in known else None

    def supports(
        self, handle: int, desc: int, layouts: Sequence[int], scalars: tuple[int, int], found: Found
    ) -> int | None:
        assert found.index in self._answers["names"], "the genuine library crashes on an unknown index"
        size: int | None = self._answer(desc, layouts)["sizes"].get(found.index)
        return size

    def names(self, handle: int, found: Found) -> dict[str, str]:
        kernel, solution = self._answers["names"][found.index]
        return {"kernel_name": kernel, "solution_name": solution}


def _key(description: Mapping[str, Any]) -> str:
    return json.dumps(description, sort_keys=True)


def _found(index: int, size: int, limit: int) -> Found:
    algo = Algo(max_workspace_bytes=limit)
    algo.data[:4] = index.to_bytes(4, "little")
    return Found(bytes(algo), size)


class RecordedRocblas:
    """RocblasApi on the recorded answers of one device.

    Like the genuine library, it lists the solutions that fit the handle's workspace, in arbitrary order, and
    its check fails for the others."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self._problems = {
            tuple(one["described"]): {**one, "sizes": dict(zip(one["passed"], one["workspace"], strict=True))}
            for one in answers["problems"].values()
            if "described" in one
        }
        #: Bytes of the handle's workspace; 32 MiB is the library's default.
        self.workspace = 32 * 2**20
        self._size_query, self._queried = False, 0
        #: The indices of the solutions that were launched; 0 is the library's own choice.
        self.launched: list[int] = []

    def create(self, stream: int) -> int:
        return 1

    def version(self) -> str:
        return cast(str, self._answers["version"])

    def set_workspace(self, handle: int, address: int, size: int) -> int:
        self.workspace = size
        return 0

    def of_problem(self, arguments: Sequence[Any], batched: bool) -> list[int]:
        one = self._problems[without_addresses(arguments)]
        sizes = one["sizes"]
        return [index for index in reversed(one["of_problem"]) if sizes[index] <= self.workspace]

    def of_types(self, handle: int, input_type: int, output_type: int, compute: int) -> list[int]:
        for described_as, one in self._problems.items():
            kinds = (described_as[5], described_as[11 if len(described_as) == 14 else 14], described_as[-1])
            if kinds == (input_type, output_type, compute):
                return list(reversed(one["of_types"]))
        raise AssertionError(f"no recorded problem has types {input_type}, {output_type}, {compute}")

    def gemm_ex(self, *arguments: Any) -> int:
        """rocblas_gemm_ex: 9 (size_increased) in a size query, 11 (invalid_value) for a solution that does
        not support the problem, 5 (memory_error) for one that does not fit the workspace."""
        *product, _, index, flags = arguments
        one = self._problems[without_addresses(product)]
        sizes = one["sizes"]
        if self._size_query:
            self._queried = sizes.get(index, 0) if index else one["default_workspace"]
            return 9
        if index and index not in sizes:
            return 11
        if sizes.get(index, 0) > self.workspace:
            return 5
        if not flags & CHECK_INDEX:
            self.launched.append(index)
        return 0

    gemm_strided = gemm_ex

    def prepared(self, routine: Callable[..., int], arguments: Sequence[Any]) -> Callable[[], int]:
        return partial(routine, *arguments)

    def workspace_bytes(self, handle: int, product: Any) -> int | None:
        self._size_query = True
        status = product()
        self._size_query = False
        return self._queried if status in (0, 9, 10) else None


#: Number of arguments of gemm_ex and of gemm_strided_batched_ex, up to the compute type -> the positions of
#: the handle, the scalars and the operands.
_ADDRESSES = {21: (0, 6, 7, 10, 13, 14, 17), 26: (0, 6, 7, 11, 15, 16, 20)}


def without_addresses(arguments: Sequence[Any]) -> tuple[int, ...]:
    """The arguments that describe the problem: all but the handle, the scalars and the operands."""
    places = _ADDRESSES[len(arguments)]
    return tuple(value for place, value in enumerate(arguments) if place not in places)


def described_product(problem: GemmProblem) -> tuple[int, ...]:
    """How the backend describes a problem to rocBLAS; see without_addresses()."""
    library = SimpleNamespace(handle=1, api=SimpleNamespace(gemm_ex=None, gemm_strided=None))
    found = cast(rocblas.Library, library)
    return without_addresses(rocblas.Gemm(found, problem, rocblas._NOWHERE).arguments)
