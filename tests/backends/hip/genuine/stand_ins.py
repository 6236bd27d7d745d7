"""hipBLASLt and rocBLAS as the recording has them: what HipblasLtApi and RocblasApi answer, without a library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    """Layouts and descriptors as MatmulCall makes them, kept as what they were made of."""

    extended, extension_missing = True, None

    def __init__(self) -> None:
        self._made: list[Any] = []

    def _keep(self, made: Any) -> int:
        self._made.append(made)
        return len(self._made)

    def layout(self, *values: int) -> int:
        return self._keep(list(values))

    def desc(self, compute: int, scale_type: int) -> int:
        return self._keep({"compute": compute, "scale": scale_type})

    def set_desc(self, desc: int, attribute: int, value: Any) -> None:
        self._made[desc - 1][str(attribute)] = value.value

    def destroy_desc(self, desc: int) -> None:
        """Kept."""

    def destroy_layout(self, layout: int) -> None:
        """Kept."""

    def told(self, desc: int, layouts: Sequence[int]) -> dict[str, Any]:
        """A problem as the library was told of it."""
        return {"desc": self._made[desc - 1], "layouts": [self._made[layout - 1] for layout in layouts]}

    def heuristics(
        self, handle: int, desc: int, layouts: Sequence[int], limit: int, most: int
    ) -> list[Found]:
        raise _Told(self.told(desc, layouts))


class _Told(Exception):
    pass


def described(problem: GemmProblem) -> dict[str, Any]:
    """The descriptor's attributes by their numbers, and the layouts of A, B, C and D."""
    call = MatmulCall(cast(HipblasLtApi, Descriptors()), 1, problem)
    try:
        call.heuristics(0)
    except _Told as told:
        return cast(dict[str, Any], told.args[0])
    raise AssertionError("the heuristic is asked with the problem's descriptors")


class RecordedHipblasLt(Descriptors):
    """HipblasLtApi on the answers of one device."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__()
        self._answers = answers
        self._problems = {
            _key(one["described"]): one for one in answers["problems"].values() if "described" in one
        }
        self.calls: list[str] = []

    def create(self) -> int:
        return 1

    def version(self, handle: int) -> int:
        return cast(int, self._answers["version"])

    def revision(self, handle: int) -> str:
        return cast(str, self._answers["revision"])

    def _of(self, desc: int, layouts: Sequence[int]) -> Mapping[str, Any]:
        one = self._problems[_key(self.told(desc, layouts))]
        if "status" in one:
            raise LibraryError(one["status"])
        return cast(Mapping[str, Any], one)

    def heuristics(
        self, handle: int, desc: int, layouts: Sequence[int], limit: int, most: int
    ) -> list[Found]:
        """In the order of the unlimited ones; the library's own leaves out what needs more, too."""
        self.calls.append("heuristics")
        one = self._of(desc, layouts)
        sizes = dict(zip(one["every"], one["supports"], strict=True)) | {
            int(index): size for index, size in one["heuristic_differs"].items()
        }
        return [_found(index, sizes[index], limit) for index in one["heuristic"] if sizes[index] <= limit][:most]

    def every(
        self, handle: int, operations: tuple[int, int], types: Sequence[int], compute: int
    ) -> list[Found]:
        """Backwards: the library lists them in no order."""
        self.calls.append("every")
        wanted = [*operations, *types, compute]
        for one in self._problems.values():
            desc, layouts = one["described"]["desc"], one["described"]["layouts"]
            kinds = [layout[0] for layout in layouts]
            if [desc[_TRANS_A], desc[_TRANS_B], *kinds, desc["compute"]] == wanted:
                if "status" in one:
                    raise LibraryError(one["status"])
                # Bytes as getAllAlgos lists them mean nothing.
                return [_found(index, 16384, _UNLIMITED) for index in reversed(one["every"])]
        raise AssertionError(f"no recorded problem has operations, types and compute type {wanted}")

    def from_index(self, handle: int, index: int) -> Found | None:
        known = self._answers["names"]
        return _found(index, 0, _UNLIMITED) if index in known else None

    def supports(
        self, handle: int, desc: int, layouts: Sequence[int], scalars: tuple[int, int], found: Found
    ) -> int | None:
        assert found.index in self._answers["names"], "the genuine library crashes on what it does not have"
        self.calls.append("supports")
        one = self._of(desc, layouts)
        return dict(zip(one["every"], one["supports"], strict=True)).get(found.index)

    def names(self, handle: int, found: Found) -> dict[str, str]:
        kernel, solution = self._answers["names"][found.index]
        return {"kernel_name": kernel, "solution_name": solution}


def _key(told: Mapping[str, Any]) -> str:
    return json.dumps(told, sort_keys=True)


def _found(index: int, size: int, limit: int) -> Found:
    algo = Algo(max_workspace_bytes=limit)
    algo.data[:4] = index.to_bytes(4, "little")
    return Found(bytes(algo), size)


class RecordedRocblas:
    """RocblasApi on the answers of one device. As the genuine library, it lists what fits the workspace that the
    handle was given, in no order, and its check fails for the rest."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self._problems = {
            tuple(one["described"]): one for one in answers["problems"].values() if "described" in one
        }
        self.given = 32 * 2**20
        self._asking, self._asked = False, 0
        self.launched: list[int] = []

    def create(self, stream: int) -> int:
        return 1

    def version(self) -> str:
        return cast(str, self._answers["version"])

    def set_workspace(self, handle: int, address: int, size: int) -> int:
        self.given = size
        return 0

    def _sizes(self, arguments: Sequence[Any]) -> dict[int, int]:
        one = self._problems[without_addresses(arguments)]
        return dict(zip(one["passed"], one["workspace"], strict=True))

    def of_problem(self, arguments: Sequence[Any], batched: bool) -> list[int]:
        one, sizes = self._problems[without_addresses(arguments)], self._sizes(arguments)
        return [index for index in reversed(one["of_problem"]) if sizes[index] <= self.given]

    def of_types(self, handle: int, input_type: int, output_type: int, compute: int) -> list[int]:
        for told, one in self._problems.items():
            kinds = (told[5], told[11] if len(told) == 14 else told[14], told[-1])
            if kinds == (input_type, output_type, compute):
                return list(reversed(one["of_types"]))
        raise AssertionError(f"no recorded problem has types {input_type}, {output_type}, {compute}")

    def gemm_ex(self, *arguments: Any) -> int:
        *product, _, index, flags = arguments
        one, sizes = self._problems[without_addresses(product)], self._sizes(product)
        if self._asking:
            self._asked = sizes.get(index, 0) if index else one["default_workspace"]
            return 9
        if index and index not in sizes:
            return 11
        if sizes.get(index, 0) > self.given:
            return 5
        if not flags & CHECK_INDEX:
            self.launched.append(index)
        return 0

    gemm_strided = gemm_ex

    def workspace_bytes(self, handle: int, product: Any) -> int | None:
        self._asking = True
        status = product()
        self._asking = False
        return self._asked if status in (0, 9, 10) else None


#: Places of the handle, the scalars and the operands among the arguments of gemm_ex and of
#: gemm_strided_batched_ex, up to the compute type.
_ADDRESSES = {21: (0, 6, 7, 10, 13, 14, 17), 26: (0, 6, 7, 11, 15, 16, 20)}


def without_addresses(arguments: Sequence[Any]) -> tuple[int, ...]:
    """The arguments of a product that describe it."""
    places = _ADDRESSES[len(arguments)]
    return tuple(value for place, value in enumerate(arguments) if place not in places)


def described_product(problem: GemmProblem) -> tuple[int, ...]:
    """The arguments with which rocBLAS is asked for a problem, without addresses."""
    library = cast(rocblas.Library, _NoLibrary())
    return without_addresses(rocblas.Gemm(library, problem, rocblas._NOWHERE).arguments)


class _NoLibrary:
    handle = 1

    class api:
        gemm_ex = gemm_strided = None
