"""cublasLtMatmul: what is written into descriptors, and what a launch passes."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from nvmath.bindings import cublasLt as real  # noqa: N813  (a module)

from backends.cuda import cublaslt_call as module
from backends.cuda.cublaslt_algorithms import Algorithm, MatmulAlgoConfig
from backends.cuda.cublaslt_call import Algo, MatmulCall, read_algorithms, read_configuration, types
from backends.cuda.datatypes import COMPUTE_TYPES, DATA_TYPES
from backends.cuda.library import call
from backends.errors import IllegalSolution, LaunchError
from backends.operands import Operands
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from tests.backends.cuda.fake_lt import FakeLt
from tests.backends.cuda.fakes import LibraryError
from tests.backends.gpu.null_device import NullDevice

BF16, FP32, FP16, INT8, INT32, FP8, FP64 = 14, 0, 2, 3, 10, 28, 1
ONE = Algorithm(
    7, tiles=(15, 20), stages=(5, 6), splits_k=True, reductions=2, swizzles=True, custom_max=2,
    epilogues=1023, batches=True, out_of_place=True, alignment=(4, 8, 2, 16),
)  # fmt: skip
PLACES = {"a": 1 << 20, "b": 2 << 20, "c": 3 << 20, "d": 4 << 20, "bias": 5 << 20, "scale_a": 6 << 20,
          "scale_b": 7 << 20, "scale_d": 8 << 20}  # fmt: skip
WORKSPACE, STREAM = 9 << 20, 77


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    found = FakeLt([ONE])
    monkeypatch.setattr(module, "lt", lambda: found)
    return found


def operands_of(problem: GemmProblem) -> Operands:
    from backends.operands import layouts

    return Operands.at({name: PLACES[name] for name in layouts(problem)}, problem.scalars)


# ---- descriptors -------------------------------------------------------------------------------

FP8_SCALES = {"dtype_d": "bf16", "scale_a": "tensor", "scale_b": "tensor"}
OUTER = {"dtype_d": "bf16", "scale_a": "outer", "scale_b": "outer"}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (from_linear(8, 16, 32, "bf16"), {"TRANSA": 1, "TRANSB": 0, "EPILOGUE": 1}),
        (from_mm(8, 16, 32, "bf16"), {"TRANSA": 0, "TRANSB": 0, "EPILOGUE": 1}),
        (from_mm(8, 16, 32, "bf16", trans_a="T"), {"TRANSA": 0, "TRANSB": 1, "EPILOGUE": 1}),
        (from_mm(8, 16, 32, "bf16", activation="relu"), {"TRANSA": 0, "TRANSB": 0, "EPILOGUE": 2}),
        (from_mm(8, 16, 32, "bf16", activation="gelu"), {"TRANSA": 0, "TRANSB": 0, "EPILOGUE": 32}),
        (
            from_linear(8, 16, 32, "bf16", bias="bf16"),
            {"TRANSA": 1, "TRANSB": 0, "EPILOGUE": 4, "BIAS_POINTER": 256},
        ),
        (
            from_linear(8, 16, 32, "bf16", bias="bf16", activation="relu"),
            {"TRANSA": 1, "TRANSB": 0, "EPILOGUE": 6, "BIAS_POINTER": 256},
        ),
        (
            from_linear(8, 16, 32, "bf16", bias="fp32", activation="gelu"),
            {"TRANSA": 1, "TRANSB": 0, "EPILOGUE": 36, "BIAS_POINTER": 256, "BIAS_DATA_TYPE": FP32},
        ),
        (
            from_linear(8, 16, 32, "fp8_e4m3", **FP8_SCALES),
            {"TRANSA": 1, "TRANSB": 0, "EPILOGUE": 1, "A_SCALE_POINTER": 256, "B_SCALE_POINTER": 256},
        ),
        (
            from_linear(8, 16, 32, "fp8_e4m3", fast_accumulation=True, **OUTER),
            {
                "TRANSA": 1, "TRANSB": 0, "EPILOGUE": 1, "FAST_ACCUM": 1, "A_SCALE_POINTER": 256,
                "B_SCALE_POINTER": 256, "A_SCALE_MODE": 3, "B_SCALE_MODE": 3,
            },
        ),
        (
            from_linear(8, 16, 32, "fp8_e4m3", dtype_d="fp8_e4m3", scale_d="tensor"),
            {"TRANSA": 1, "TRANSB": 0, "EPILOGUE": 1, "D_SCALE_POINTER": 256},
        ),
    ],
)  # fmt: skip
def test_the_operation(lt: FakeLt, problem: GemmProblem, expected: dict[str, int]) -> None:
    matmul = MatmulCall(1, problem)
    assert lt.descriptions[matmul.desc] == {"compute": COMPUTE_TYPES["fp32"], "scale": FP32, **expected}


def test_the_masks_are_the_librarys_own_epilogues() -> None:
    named = {name: int(value) for name, value in real.Epilogue.__members__.items()}
    assert (named["DEFAULT"], named["RELU"], named["GELU"], named["BIAS"]) == (1, 2, 32, 4)
    assert (named["RELU_BIAS"], named["GELU_BIAS"]) == (6, 36)
    assert int(real.MatmulMatrixScale.OUTER_VEC_32F) == 3


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (from_linear(8, 16, 32, "bf16"), (68, FP32, BF16, BF16, BF16, BF16)),
        (from_linear(8, 16, 32, "bf16", dtype_d="fp32"), (68, FP32, BF16, BF16, FP32, FP32)),
        (from_linear(8, 16, 32, "fp16", compute="fp16"), (64, FP16, FP16, FP16, FP16, FP16)),
        (from_linear(8, 16, 32, "tf32"), (77, FP32, FP32, FP32, FP32, FP32)),
        (from_linear(8, 16, 32, "fp32", compute="bf16x9"), (78, FP32, FP32, FP32, FP32, FP32)),
        (from_linear(8, 16, 32, "fp64"), (70, FP64, FP64, FP64, FP64, FP64)),
        (from_linear(8, 16, 32, "int8"), (72, INT32, INT8, INT8, INT32, INT32)),
        (from_linear(8, 16, 32, "int8", dtype_d="int8"), (72, FP32, INT8, INT8, INT8, INT8)),
        (from_linear(8, 16, 32, "fp8_e4m3", **FP8_SCALES), (68, FP32, FP8, FP8, BF16, BF16)),
        (from_linear(8, 16, 32, "fp8_e4m3", dtype_d="fp8_e4m3"), (68, FP32, FP8, FP8, BF16, FP8)),
        (
            from_linear(8, 16, 32, "fp8_e4m3", dtype_b="fp8_e5m2", dtype_d="bf16"),
            (68, FP32, 29, FP8, BF16, BF16),
        ),
        (
            from_linear(8, 16, 32, "bf16", dtype_c="fp32", dtype_d="bf16", beta=1.0),
            (68, FP32, BF16, BF16, FP32, BF16),
        ),
    ],
)
def test_types_as_the_library_numbers_them(problem: GemmProblem, expected: tuple[int, ...]) -> None:
    assert types(problem) == expected


def test_the_numbers_are_the_bindings_own() -> None:
    from nvmath.bindings import cublas

    named = {name: int(value) for name, value in cublas.ComputeType.__members__.items()}
    assert COMPUTE_TYPES["fp32"] == named["COMPUTE_32F"]
    assert COMPUTE_TYPES["tf32"] == named["COMPUTE_32F_FAST_TF32"]
    assert COMPUTE_TYPES["bf16x9"] == named["COMPUTE_32F_EMULATED_16BFX9"]
    assert COMPUTE_TYPES["fp64"] == named["COMPUTE_64F"]
    assert COMPUTE_TYPES["int32"] == named["COMPUTE_32I"]
    assert COMPUTE_TYPES["fp16"] == named["COMPUTE_16F"]


def layout(lt: FakeLt, made: int) -> tuple[int, ...]:
    found = lt.layouts[made]
    return tuple(found[name] for name in ("kind", "rows", "columns", "ld"))


def test_layouts_are_blas_own(lt: FakeLt) -> None:
    matmul = MatmulCall(1, from_linear(8, 16, 32, "bf16", dtype_d="fp32", ldd=24))
    # m = 16 outputs, n = 8 rows, k = 32: A and B lie with k contiguous.
    assert layout(lt, matmul.a) == (BF16, 32, 16, 32)
    assert layout(lt, matmul.b) == (BF16, 32, 8, 32)
    assert layout(lt, matmul.d) == layout(lt, matmul.c) == (FP32, 16, 8, 24)
    assert all("BATCH_COUNT" not in found for found in lt.layouts.values())


def test_strides_of_a_batch(lt: FakeLt) -> None:
    problem = from_bmm(5, 8, 16, 32, "bf16", stride_b=0, beta=0.5)
    matmul = MatmulCall(1, problem)
    found = {name: lt.layouts[getattr(matmul, name)] for name in "abcd"}
    assert {one["BATCH_COUNT"] for one in found.values()} == {5}
    for name in "abcd":
        assert found[name]["STRIDED_BATCH_OFFSET"] == getattr(problem, f"stride_{name}"), name
    assert found["a"]["STRIDED_BATCH_OFFSET"] == 0


def test_c_where_it_is_read(lt: FakeLt) -> None:
    problem = from_mm(8, 16, 32, "bf16", dtype_c="fp32", dtype_d="bf16", beta=1.0, ldc=20, ldd=16)
    matmul = MatmulCall(1, problem)
    assert layout(lt, matmul.c) == (FP32, 16, 8, 20)
    assert layout(lt, matmul.d) == (BF16, 16, 8, 16)


def test_c_where_it_is_not_read_beside_an_output_of_8_bits(lt: FakeLt) -> None:
    problem = from_linear(8, 16, 32, "fp8_e4m3", dtype_d="fp8_e4m3", ldd=48)
    matmul = MatmulCall(1, problem)
    assert layout(lt, matmul.d) == (FP8, 16, 8, 48)
    assert layout(lt, matmul.c) == (BF16, 16, 8, 48)


def test_what_was_made_goes_with_its_last_user(lt: FakeLt) -> None:
    problem = from_linear(8, 16, 32, "bf16", bias="bf16")
    matmul = MatmulCall(1, problem)
    data = np.zeros(8, np.uint64)
    launch = matmul.launch(data, operands_of(problem), WORKSPACE, 0, STREAM, call(NullDevice(), "x"))
    assert len(lt.alive) == 6, "four layouts, the plain operation, and the one with pointers"
    del matmul
    gc.collect()
    assert len(lt.alive) == 6, "the launch needs them"
    launch()
    del launch
    gc.collect()
    assert lt.alive == set()


# ---- launches ----------------------------------------------------------------------------------


def value(address: int, kind: Any) -> Any:
    return kind.from_address(address).value


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (from_mm(8, 16, 32, "bf16", alpha=2.0, beta=0.5), ctypes.c_float),
        (from_mm(8, 16, 32, "fp64", alpha=2.0, beta=0.5), ctypes.c_double),
        (from_mm(8, 16, 32, "int8", alpha=2, beta=1), ctypes.c_int32),
    ],
)
def test_a_launch_in_the_librarys_order(lt: FakeLt, problem: GemmProblem, kind: Any) -> None:
    matmul = MatmulCall(11, problem)
    algo = matmul.algo(MatmulAlgoConfig(7, 15, 5))
    assert algo is not None
    device = NullDevice()
    launch = matmul.launch(
        algo.bytes.copy(), operands_of(problem), WORKSPACE, 4096, STREAM, call(device, "cublasLtMatmul")
    )
    matmul.algo(MatmulAlgoConfig(7, 20, 6))  # what the launch was given is its own
    gc.collect()
    launch()
    launch()
    first, second = lt.calls
    assert first == second
    handle, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, _, workspace, size, stream, one = first
    assert (handle, desc, stream) == (11, matmul.desc, STREAM)
    assert (a, b, c, d) == tuple(PLACES[name] for name in "abcd")
    assert (la, lb, lc, ld) == (matmul.a, matmul.b, matmul.c, matmul.d)
    assert (workspace, size) == (WORKSPACE, 4096)
    assert (value(alpha, kind), value(beta, kind)) == problem.scalars
    assert one == MatmulAlgoConfig(7, 15, 5)


def test_without_c_the_output_stands_in_its_place(lt: FakeLt) -> None:
    problem = from_linear(8, 16, 32, "bf16")
    matmul = MatmulCall(11, problem)
    launch = matmul.launch(
        np.zeros(8, np.uint64), operands_of(problem), 0, 0, STREAM, call(NullDevice(), "x")
    )
    launch()
    assert lt.calls[0][8] == PLACES["d"]
    assert lt.calls[0][1] == matmul.desc, "an operation without pointers is shared"
    assert value(lt.calls[0][7], ctypes.c_float) == 0.0


@pytest.mark.parametrize(
    ("problem", "pointers"),
    [
        (from_linear(8, 16, 32, "bf16", bias="bf16"), {"BIAS_POINTER": "bias"}),
        (
            from_linear(8, 16, 32, "fp8_e4m3", bias="bf16", **FP8_SCALES),
            {"BIAS_POINTER": "bias", "A_SCALE_POINTER": "scale_a", "B_SCALE_POINTER": "scale_b"},
        ),
        (
            from_linear(8, 16, 32, "fp8_e4m3", dtype_d="fp8_e4m3", scale_d="tensor"),
            {"D_SCALE_POINTER": "scale_d"},
        ),
    ],
)
def test_pointers_of_the_operands(lt: FakeLt, problem: GemmProblem, pointers: dict[str, str]) -> None:
    matmul = MatmulCall(11, problem)
    guard = call(NullDevice(), "x")
    first = matmul.launch(np.zeros(8, np.uint64), operands_of(problem), 0, 0, STREAM, guard)
    first()
    desc = lt.calls[0][1]
    assert desc != matmul.desc
    found = {name: value for name, value in lt.descriptions[desc].items() if name.endswith("POINTER")}
    assert found == {name: PLACES[operand] for name, operand in pointers.items()}
    rest = {name: value for name, value in lt.descriptions[desc].items() if not name.endswith("POINTER")}
    plain = lt.descriptions[matmul.desc].items()
    assert rest == {name: value for name, value in plain if not name.endswith("POINTER")}


@pytest.mark.parametrize(("status", "kind"), [(15, IllegalSolution), (1, LaunchError), (13, LaunchError)])
def test_the_librarys_faults_are_ours(lt: FakeLt, status: int, kind: type[Exception]) -> None:
    problem = from_linear(8, 16, 32, "bf16")
    guard = call(NullDevice(), "cublasLtMatmul")
    launch = MatmulCall(11, problem).launch(np.zeros(8, np.uint64), operands_of(problem), 0, 0, STREAM, guard)
    lt.fault = LibraryError(status)
    with pytest.raises(kind, match=r"^cublasLtMatmul"):
        launch()


# ---- algorithms --------------------------------------------------------------------------------

WHOLE = MatmulAlgoConfig(7, 20, 6, 5, 2, 1, 2, 3, 9)


def test_an_algorithm_reads_as_it_was_set(lt: FakeLt) -> None:
    algo = Algo(1, types(from_linear(8, 16, 32, "bf16")), 7)
    assert lt.asked_types == [(68, FP32, BF16, BF16, BF16, BF16)]
    assert algo.configure(WHOLE)
    assert read_configuration(algo.address) == WHOLE
    assert {name for name, _ in lt.sets} == set(MatmulAlgoConfig._fields) - {"algo_id"}


@pytest.mark.parametrize("shares", [-1, 0, 1, 64])
def test_shares_may_be_negative(lt: FakeLt, shares: int) -> None:
    algo = Algo(1, types(from_linear(8, 16, 32, "bf16")), 7)
    assert algo.configure(WHOLE._replace(splitk_num=shares))
    assert read_configuration(algo.address).splitk_num == shares


def test_only_what_changed_is_set(lt: FakeLt) -> None:
    algo = Algo(1, types(from_linear(8, 16, 32, "bf16")), 7)
    algo.configure(WHOLE)
    lt.sets.clear()
    assert algo.configure(WHOLE)
    assert lt.sets == []
    assert algo.configure(WHOLE._replace(tile_id=15, cluster_shape_id=2))
    assert lt.sets == [("tile_id", 15), ("cluster_shape_id", 2)]


def test_a_refused_attribute_leaves_an_algorithm_that_can_be_set_again(lt: FakeLt) -> None:
    algo = Algo(1, types(from_linear(8, 16, 32, "bf16")), 7)
    assert algo.configure(WHOLE)
    lt.refused.add(("stages_id", 30))
    assert not algo.configure(WHOLE._replace(tile_id=15, stages_id=30, cluster_shape_id=4))
    assert not algo.configure(WHOLE._replace(stages_id=30))
    assert algo.configure(WHOLE)
    assert read_configuration(algo.address) == WHOLE
    assert ("stages_id", WHOLE.stages_id) == lt.sets[-1]


@pytest.mark.parametrize(("answer", "expected"), [(0, 0), (4096, 4096), (None, None)])
def test_the_librarys_check(lt: FakeLt, answer: int | None, expected: int | None) -> None:
    asked: list[MatmulAlgoConfig] = []

    def legal(one: MatmulAlgoConfig) -> int | None:
        asked.append(one)
        return answer

    lt.legal = legal
    matmul = MatmulCall(11, from_linear(8, 16, 32, "bf16"))
    assert matmul.check(WHOLE) == expected
    assert asked == [WHOLE]
    assert lt.checked == [(11, matmul.desc, matmul.a, matmul.b, matmul.c, matmul.d)]


def test_what_is_no_algorithm_or_takes_no_attribute_is_not_checked(lt: FakeLt) -> None:
    matmul = MatmulCall(11, from_linear(8, 16, 32, "bf16"))
    assert matmul.check(WHOLE._replace(algo_id=8)) is None
    lt.refused.add(("tile_id", WHOLE.tile_id))
    assert matmul.check(WHOLE) is None
    assert lt.checked == []


def test_capabilities(lt: FakeLt) -> None:
    more = Algorithm(
        66, tiles=tuple(range(1, 635)), stages=(35,), splits_k=False, reductions=0, swizzles=False,
        custom_max=100, epilogues=1, batches=False, out_of_place=False, alignment=(16, 16, 16, 16),
    )  # fmt: skip
    lt.algorithms[66] = more
    kinds = types(from_linear(8, 16, 32, "bf16"))
    assert read_algorithms(1, kinds) == [ONE, more]
    assert set(lt.asked_types) == {kinds}


def test_types_that_the_library_refuses_have_no_algorithm(
    lt: FakeLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> list[int]:
        raise LibraryError(status)

    monkeypatch.setattr(lt, "matmul_algo_get_ids", refuse)
    status = 15  # NOT_SUPPORTED
    assert read_algorithms(1, types(from_linear(8, 16, 32, "bf16"))) == []
    status = 14  # INTERNAL_ERROR
    with pytest.raises(LibraryError):
        read_algorithms(1, types(from_linear(8, 16, 32, "bf16")))


# ---- heuristics --------------------------------------------------------------------------------


@pytest.mark.parametrize(("alignment", "expected"), [(16, 256), (8, 8), (2, 2)])
def test_the_heuristics_answers(lt: FakeLt, alignment: int, expected: int) -> None:
    failed = MatmulAlgoConfig(7, tile_id=-1)
    lt.heuristic = [(WHOLE, 4096), (failed, 0), (MatmulAlgoConfig(7, 15, 5), 0), (WHOLE, 10_000)]
    matmul = MatmulCall(11, from_linear(8, 16, 32, "bf16", alignment=alignment))
    found = list(matmul.heuristics(5000))
    assert [(one, size) for one, size, _ in found] == [(WHOLE, 4096), (MatmulAlgoConfig(7, 15, 5), 0)]
    for one, _, data in found:
        assert len(data) == 64
        numbers = np.frombuffer(data, np.uint64).copy()
        assert read_configuration(int(numbers.ctypes.data)) == one
    least = {f"MIN_ALIGNMENT_{name}_BYTES": expected for name in "ABCD"}
    assert lt.preferences == [{"MAX_WORKSPACE_BYTES": 5000, **least}]


def test_no_answer_is_no_fault_and_the_preference_is_given_back(lt: FakeLt) -> None:
    matmul = MatmulCall(11, from_linear(8, 16, 32, "bf16"))
    before = set(lt.alive)
    assert list(matmul.heuristics(5000)) == []
    assert lt.alive == before


def test_every_type_has_a_number() -> None:
    assert {DATA_TYPES[name] for name in ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2")} == {14, 2, 28, 29}
