"""The two cuBLASLt families: which problems, which candidates, and what is refused in which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.cuda import cublaslt as module
from backends.cuda import cublaslt_call
from backends.cuda.cublaslt import (
    WORKSPACE_BYTES,
    CublasLt,
    algo_config,
    library,
    operand_alignment,
    partial_sums,
    tile_shapes,
    unsupported,
)
from backends.cuda.cublaslt_algorithms import Algorithm, MatmulAlgoConfig, keep_triples
from backends.cuda.cublaslt_heuristic import CublasLtHeuristic, first_heuristic
from backends.errors import IllegalSolution, StorageError
from backends.gpu.library import MOST_SHARES
from backends.operands import Operands
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.protocol import DeviceListedFamily
from backends.solution import Solution
from tests.backends.cuda.fake_lt import FakeLt
from tests.backends.gpu.null_device import ENVIRONMENT, NullDevice

LT, HEURISTIC = CublasLt(), CublasLtHeuristic()
FP8 = {"dtype_d": "bf16", "scale_a": "tensor", "scale_b": "tensor"}
PROBLEM = from_linear(16, 4096, 4096, "bf16")
ODD = from_linear(16, 4097, 4095, "bf16")
MIB = 2**20


# ---- which problems ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        from_linear(8, 16, 32, "bf16", bias="bf16", activation="gelu"),
        from_linear(8, 16, 32, "fp16", dtype_d="fp32", activation="relu"),
        from_linear(8, 16, 32, "fp16", compute="fp16"),
        from_linear(8, 16, 32, "tf32"),
        from_linear(8, 16, 32, "fp32", compute="bf16x9"),
        from_mm(8, 16, 32, "fp64", alpha=2.0, beta=1.0),
        from_linear(8, 16, 32, "int8"),
        from_linear(8, 16, 32, "int8", dtype_d="int8"),
        from_bmm(3, 8, 16, 32, "bf16", beta=0.5),
        from_linear(8, 16, 32, "fp8_e4m3", **FP8),
        from_linear(8, 16, 32, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer"),
        from_linear(8, 16, 32, "fp8_e4m3", dtype_d="fp8_e4m3", scale_d="tensor"),
    ],
)
def test_problems_that_it_runs(problem: GemmProblem) -> None:
    assert unsupported(problem) is None
    assert LT.supports(problem)
    assert HEURISTIC.supports(problem)


@pytest.mark.parametrize(
    ("problem", "rule"),
    [
        (from_linear(8, 16, 32, "complex64"), "has no complex64 x complex64 -> complex64"),
        (from_linear(8, 16, 32, "bf16", activation="silu"), "fuses relu and gelu, not silu"),
        (from_mm(8, 16, 32, "bf16", bias="bf16", bias_axis="m"), "along the contiguous dimension of D only"),
        (from_linear(8, 16, 32, "int8", bias="int32"), "no bias to integer products"),
        (from_linear(8, 16, 32, "bf16", scale_a="tensor"), "with 8-bit floats, not scale_b tensor"),
        (
            from_linear(8, 16, 32, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="tensor"),
            "for both inputs or for neither",
        ),
        (
            from_linear(8, 16, 32, "fp8_e4m3", dtype_d="bf16", scale_d="tensor"),
            "scales D where it is an 8-bit float, not bf16",
        ),
        (from_linear(8, 16, 32, "fp8_e4m3_fnuz", dtype_d="bf16"), "has no fp8_e4m3_fnuz x"),
        (from_linear(8, 16, 32, "fp8_e5m2", dtype_d="bf16"), "by fp8_e4m3 only, not by fp8_e5m2"),
    ],
)
def test_problems_that_it_does_not(problem: GemmProblem, rule: str) -> None:
    assert rule in (unsupported(problem) or "")
    assert not LT.supports(problem)
    for family in (LT, HEURISTIC):
        assert rule in (family.illegal(problem, first_heuristic(ENVIRONMENT, None), ENVIRONMENT) or "")


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (from_linear(16, 4096, 4096, "bf16"), (16, 16, 16, 16)),
        (from_linear(16, 4097, 4095, "bf16"), (2, 2, 2, 2)),
        (from_linear(16, 4096, 4095, "bf16"), (2, 2, 16, 16)),
        (from_linear(16, 4100, 4096, "bf16"), (16, 16, 8, 8)),
        (from_linear(16, 4097, 4096, "bf16", dtype_d="fp32"), (16, 16, 4, 4)),
        (from_linear(16, 4096, 4096, "bf16", alignment=4), (4, 4, 4, 4)),
        (from_linear(16, 4096, 4104, "fp8_e4m3", **FP8), (8, 8, 16, 16)),
        (from_mm(16, 4096, 4096, "bf16", beta=1.0, ldc=4098, ldd=4096), (16, 16, 4, 16)),
        (from_bmm(3, 16, 64, 64, "bf16", stride_d=16 * 64 + 4), (16, 16, 8, 8)),
        (from_bmm(3, 16, 64, 64, "bf16", stride_b=0), (16, 16, 16, 16)),
    ],
)
def test_what_operands_are_aligned_to(problem: GemmProblem, expected: tuple[int, ...]) -> None:
    assert operand_alignment(problem) == expected


# ---- a library with two algorithms -------------------------------------------------------------

WIDE = Algorithm(
    66, tiles=(15, 20, 24), stages=(5, 6), splits_k=True, reductions=6, swizzles=True, custom_max=1,
    epilogues=1023, batches=True, out_of_place=True, alignment=(16, 16, 16, 16),
)  # fmt: skip
ANY = replace(
    WIDE, algo_id=24, tiles=(15,), stages=(5,), alignment=(2, 2, 2, 2), custom_max=0, swizzles=False
)
#: Workspace that a split needs a share.
SHARE = MIB


def legal(one: MatmulAlgoConfig) -> int | None:
    """No clusters, no inner shapes, no tile 24 in stage 6, and a split wants a reduction and workspace."""
    if one.cluster_shape_id or one.inner_shape_id or (one.tile_id, one.stages_id) == (24, 6):
        return None
    if one.splitk_num > 1:
        return one.splitk_num * SHARE if one.reduction_scheme else None
    return None if one.reduction_scheme else 0


PICKS = [
    (MatmulAlgoConfig(66, 20, 6, 3, 2), 3 * SHARE),
    (MatmulAlgoConfig(24, 15, 5), 0),
    (MatmulAlgoConfig(66, 24, 5), 64 * MIB),
]


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    found = FakeLt([WIDE, ANY], legal, PICKS)
    monkeypatch.setattr(cublaslt_call, "lt", lambda: found)
    monkeypatch.setattr(module, "lt", lambda: found)
    return found


def configurations(solutions: Any) -> list[MatmulAlgoConfig]:
    return [algo_config(solution) for solution in solutions]


def test_the_families_are_asked_on_the_device() -> None:
    assert isinstance(LT, DeviceListedFamily)
    assert isinstance(HEURISTIC, DeviceListedFamily)
    assert list(LT.solutions(PROBLEM, ENVIRONMENT)) == []
    assert LT.unavailable(ENVIRONMENT) is None
    assert "not installed" in (LT.unavailable(replace(ENVIRONMENT, libraries={})) or "")


@pytest.mark.parametrize("limit", [None, 0, 2 * SHARE, 64 * MIB])
def test_heuristics_first_then_what_the_check_passes(lt: FakeLt, limit: int | None) -> None:
    found = list(LT.enumerate_on(PROBLEM, NullDevice(), limit))
    ones = configurations(found)
    assert len(ones) == len(set(ones))
    under = WORKSPACE_BYTES if limit is None else limit
    picks = [one for one, size in PICKS if size <= under]
    assert ones[: len(picks)] == picks
    assert lt.preferences[0]["MAX_WORKSPACE_BYTES"] == under
    base = {
        MatmulAlgoConfig(66, tile, stages) for tile in WIDE.tiles for stages in WIDE.stages
    } - {MatmulAlgoConfig(66, 24, 6)} | {MatmulAlgoConfig(24, 15, 5)}  # fmt: skip
    assert set(ones) == base | set(picks)
    for solution in found:
        assert (solution.family, solution.build) == ("cublaslt", ENVIRONMENT.libraries["cublaslt"])
        assert solution.deterministic is True
        assert limit is None or solution.workspace_bytes <= limit
        assert LT.illegal(PROBLEM, solution, ENVIRONMENT) is None
        assert LT.load(PROBLEM, solution, None, NullDevice()).workspace_bytes == legal(algo_config(solution))


def test_what_needs_more_workspace_than_allowed_is_not_listed(lt: FakeLt) -> None:
    lt.heuristic = []
    lt.legal = lambda one: None if one.cluster_shape_id or one.inner_shape_id else one.tile_id * MIB
    limited = configurations(LT.enumerate_on(PROBLEM, NullDevice(), 15 * MIB))
    assert {one.tile_id for one in limited} == {15}
    assert {one.tile_id for one in configurations(LT.enumerate_on(PROBLEM, NullDevice(), None))} == {
        15,
        20,
        24,
    }


def test_a_list_ends_and_the_space_goes_on(lt: FakeLt, monkeypatch: pytest.MonkeyPatch) -> None:
    every = list(LT.enumerate_on(PROBLEM, NullDevice(), None))
    monkeypatch.setattr(module, "MOST_LISTED", len(every) // 2)
    listed = list(LT.enumerate_on(PROBLEM, NullDevice(), None))
    assert listed == every[: len(every) // 2]
    assert len(listed) > 2
    space = LT.space_on(PROBLEM, NullDevice(), None)
    assert all(space.index(one) is not None for one in every), "also what is not listed"


def test_misaligned_operands_leave_algorithms_out(lt: FakeLt) -> None:
    lt.heuristic = []
    assert {one.algo_id for one in configurations(LT.enumerate_on(ODD, NullDevice(), None))} == {24}
    assert {one.algo_id for one in configurations(LT.enumerate_on(PROBLEM, NullDevice(), None))} == {24, 66}


def test_the_library_is_asked_once_for_problems_of_a_kind(lt: FakeLt) -> None:
    device = NullDevice()
    list(LT.enumerate_on(PROBLEM, device, None))
    checks = len(lt.checked)
    list(LT.enumerate_on(from_linear(32, 8192, 4096, "bf16"), device, None))
    again = len(lt.checked) - checks
    assert 0 < again < checks, "its legal triples are known; each is checked for the sizes"
    assert library(device) is library(device)
    list(LT.enumerate_on(from_linear(32, 8192, 4096, "bf16", activation="relu"), device, None))
    assert len(lt.checked) - checks - again == checks, "another epilogue is another kind"


@pytest.mark.parametrize("damage", [None, "", "{", "[]", '{"66": [[1]], "x": []}', '{"66": 3}'])
def test_legal_triples_are_kept_for_other_processes(lt: FakeLt, tmp_path: Path, damage: str | None) -> None:
    def listed() -> tuple[list[Solution], int]:
        before, device = len(lt.checked), NullDevice(cache=BinaryCache(tmp_path / "cache"))
        return list(LT.enumerate_on(PROBLEM, device, None)), len(lt.checked) - before

    found, checks = listed()
    (kept,) = (tmp_path / "cache").glob("??/*.triples")
    if damage is not None:
        kept.write_text(damage)
    again, fewer = listed()
    assert again == found
    assert (fewer < checks / 2) == (damage is None), (checks, fewer)
    assert listed() == (found, min(fewer, listed()[1])), "what was damaged is kept anew"


def test_a_disk_that_takes_no_triples_is_told() -> None:
    with pytest.raises(StorageError, match="/dev/full"):
        keep_triples({66: [MatmulAlgoConfig(66, 15, number) for number in range(1000)]}, Path("/dev/full"))


@pytest.mark.parametrize("other", [{"units": 16}, {"libraries": {**ENVIRONMENT.libraries, "cublaslt": "9"}}])
def test_other_hardware_and_other_versions_have_their_own(
    lt: FakeLt, tmp_path: Path, other: dict[str, Any]
) -> None:
    cache = BinaryCache(tmp_path / "cache")
    for environment in (ENVIRONMENT, replace(ENVIRONMENT, **other)):
        list(LT.enumerate_on(PROBLEM, NullDevice(cache=cache, environment=environment), None))
    assert len(list(cache.root.glob("??/*.triples"))) == 2


def test_descriptors_of_a_few_problems_are_kept(lt: FakeLt) -> None:
    found = library(NullDevice())
    first = found.call(PROBLEM)
    assert found.call(PROBLEM) is first
    for m in range(1, module._CALLS):
        found.call(from_linear(m, 64, 64, "bf16"))
    assert found.call(PROBLEM) is first, "used a moment ago"
    for m in range(100, 100 + module._CALLS):
        found.call(from_linear(m, 64, 64, "bf16"))
    assert found.call(PROBLEM) is not first


def solution_of(one: MatmulAlgoConfig, build: str | None = "13.1.0.3") -> Solution:
    return Solution("cublaslt", 1, one._asdict(), build)


@pytest.mark.parametrize("limit", [None, 0, 4 * SHARE])
def test_neighbours_are_checked_and_within_the_limit(lt: FakeLt, limit: int | None) -> None:
    origin = MatmulAlgoConfig(66, 20, 6)
    found = list(LT.neighbours_on(PROBLEM, solution_of(origin), NullDevice(), limit))
    ones = configurations(found)
    assert origin not in ones
    assert len(ones) == len(set(ones))
    for one, solution in zip(ones, found, strict=True):
        assert legal(one) is not None
        assert solution.workspace_bytes == legal(one)
        assert limit is None or solution.workspace_bytes <= limit
    splits = {one.splitk_num for one in ones}
    assert (
        splits == {None: {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32}, 0: {1}, 4 * SHARE: {1, 2, 3, 4}}[limit]
    )
    assert MatmulAlgoConfig(66, 15, 6) in ones
    assert MatmulAlgoConfig(66, 24, 6) not in ones
    assert MatmulAlgoConfig(66, 20, 6, cta_swizzling=1) in ones


def test_an_algorithm_of_other_types_has_no_neighbours(lt: FakeLt) -> None:
    assert list(LT.neighbours_on(PROBLEM, solution_of(MatmulAlgoConfig(5)), NullDevice(), None)) == []


def test_what_drops_the_rest_of_k_is_neither_listed_nor_a_neighbour(lt: FakeLt) -> None:
    stages = replace(WIDE, tiles=(15,), stages=(35,))
    lt.algorithms = {66: stages}
    trap, fine = MatmulAlgoConfig(66, 15, 35, 3, 2), MatmulAlgoConfig(66, 15, 35, 5, 2)
    lt.heuristic = [(trap, 0), (fine, 0)]
    problem = from_linear(16, 4096, 3 * 64 + 1, "bf16", lda=256, ldb=256)
    listed = configurations(LT.enumerate_on(problem, NullDevice(), None))
    assert fine in listed
    assert trap not in listed
    origin = solution_of(MatmulAlgoConfig(66, 15, 35))
    shares = {one.splitk_num for one in configurations(LT.neighbours_on(problem, origin, NullDevice(), None))}
    assert 2 in shares
    assert 3 not in shares


# ---- loading -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "one", "words"),
    [
        (PROBLEM, MatmulAlgoConfig(5), r"^cuBLASLt has no algorithm 5 for "),
        (
            ODD, MatmulAlgoConfig(66, 20, 6),
            r"^algorithm 66 needs A, B, C, D aligned to \(16, 16, 16, 16\) bytes; .* has \(2, 2, 2, 2\)$",
        ),
        (PROBLEM, MatmulAlgoConfig(66, 24, 6), r"^cublasLtMatmulAlgoCheck refuses cublaslt-.* for "),
        (PROBLEM, MatmulAlgoConfig(66, 20, 99), r"^cublasLtMatmulAlgoCheck refuses cublaslt-.* for "),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded(lt: FakeLt, problem: GemmProblem, one: MatmulAlgoConfig, words: str) -> None:
    lt.refused.add(("stages_id", 99))
    with pytest.raises(IllegalSolution, match=words):
        LT.load(problem, solution_of(one), None, NullDevice())


def test_a_kernel_launches_its_own_configuration(lt: FakeLt) -> None:
    device = NullDevice()
    first, second = MatmulAlgoConfig(66, 20, 6, 4, 2), MatmulAlgoConfig(66, 15, 5)
    kernels = [LT.load(PROBLEM, solution_of(one), None, device) for one in (first, second)]
    assert [kernel.workspace_bytes for kernel in kernels] == [4 * SHARE, 0]
    for kernel in kernels:
        kernel.prepare()
        kernel.bind(Operands(1, 2, 0, 4, 0, 1.0, 0.0), 5)()
    assert [made[-1] for made in lt.calls] == [first, second]
    assert [made[13:16] for made in lt.calls] == [(5, 4 * SHARE, device.stream), (5, 0, device.stream)]
    assert lt.calls[0][0] == library(device).handle


@pytest.mark.parametrize(("rank", "limit"), [(0, 32 * MIB), (1, 32 * MIB), (0, 0), (2, 64 * MIB)])
def test_the_heuristics_answers_by_rank(lt: FakeLt, rank: int, limit: int) -> None:
    answers = [(one, size) for one, size in PICKS if size <= limit]
    parameters = {"rank": rank, "workspace_limit": limit}
    kernel = HEURISTIC.load(PROBLEM, Solution(HEURISTIC.name, 1, parameters), None, NullDevice())
    kernel.bind(Operands(1, 2, 0, 4, 0, 1.0, 0.0), 5)()
    assert lt.calls[0][-1] == answers[rank][0]
    assert kernel.workspace_bytes == answers[rank][1]


@pytest.mark.parametrize(("rank", "limit", "count"), [(2, 32 * MIB, 2), (1, 0, 1)])
def test_a_rank_beyond_the_answers(lt: FakeLt, rank: int, limit: int, count: int) -> None:
    parameters = {"rank": rank, "workspace_limit": limit}
    with pytest.raises(IllegalSolution, match=rf"has {count} answers for .*, none of rank {rank}$"):
        HEURISTIC.load(PROBLEM, Solution(HEURISTIC.name, 1, parameters), None, NullDevice())


def test_the_heuristic_lists_its_first_answer_alone() -> None:
    (first,) = HEURISTIC.solutions(PROBLEM, ENVIRONMENT)
    assert first == first_heuristic(ENVIRONMENT, None)
    assert dict(first.parameters) == {"rank": 0, "workspace_limit": WORKSPACE_BYTES}
    assert list(HEURISTIC.enumerate_on(PROBLEM, NullDevice(), None)) == []
    assert list(HEURISTIC.neighbours_on(PROBLEM, first, NullDevice(), None)) == []


# ---- solutions ---------------------------------------------------------------------------------


def test_a_configuration_survives_a_solution() -> None:
    one = MatmulAlgoConfig(66, 312, 35, -1, 2, 1, 3, 4, 9)
    assert algo_config(solution_of(one)) == one


@pytest.mark.parametrize("name", MatmulAlgoConfig._fields)
@pytest.mark.parametrize("value", [-2, True, None, "3", 2**31])
def test_values_that_are_no_attributes(name: str, value: Any) -> None:
    solution = Solution("cublaslt", 1, {**MatmulAlgoConfig(66)._asdict(), name: value})
    with pytest.raises(IllegalSolution, match=rf"^{name} of a cublaslt solution must be an integer from "):
        algo_config(solution)


def test_only_the_number_of_shares_may_be_the_librarys_choice() -> None:
    assert algo_config(solution_of(MatmulAlgoConfig(66, splitk_num=-1))).splitk_num == -1
    with pytest.raises(
        IllegalSolution, match="tile_id of a cublaslt solution must be an integer from 0, not -1"
    ):
        algo_config(solution_of(MatmulAlgoConfig(66, tile_id=-1)))


@pytest.mark.parametrize(
    ("solution", "rule"),
    [
        (solution_of(MatmulAlgoConfig(66)), ""),
        (solution_of(MatmulAlgoConfig(66), "12.9"), "12.9 means nothing to 13.1.0.3"),
        (solution_of(MatmulAlgoConfig(66), None), "None means nothing to"),
        (Solution("cublaslt", 1, {"algo_id": 66}, "13.1.0.3"), "has the parameters algo_id, tile_id"),
        (solution_of(MatmulAlgoConfig(66, tile_id=-1)), "tile_id of a cublaslt solution must be an integer"),
        (solution_of(MatmulAlgoConfig(66, 20, 34, 125)), "algorithm 66 drops the last 4096 mod 125 elements"),
    ],
)
def test_rules(solution: Solution, rule: str) -> None:
    assert rule in (LT.illegal(PROBLEM, solution, ENVIRONMENT) or "")
    assert (LT.illegal(PROBLEM, solution, ENVIRONMENT) is None) is (rule == "")


@pytest.mark.parametrize(
    ("problem", "shares", "scheme", "expected"),
    [
        (PROBLEM, 1, 0, 1),
        (PROBLEM, 8, 2, 1),
        (PROBLEM, 8, 1, 8),
        (PROBLEM, 8, 4, 8),
        (PROBLEM, -1, 4, MOST_SHARES),
        (PROBLEM, -1, 2, 1),
        (from_linear(8, 16, 32, "int8"), 8, 1, 1),
    ],
)
def test_partial_sums_that_are_rounded(problem: GemmProblem, shares: int, scheme: int, expected: int) -> None:
    one = MatmulAlgoConfig(66, splitk_num=shares, reduction_scheme=scheme)
    assert partial_sums(problem, one) == expected


def test_a_loaded_kernel_tells_its_partial_sums(lt: FakeLt) -> None:
    for scheme, expected in ((2, 1), (4, 4)):
        solution = solution_of(MatmulAlgoConfig(66, 20, 6, 4, scheme))
        assert LT.load(PROBLEM, solution, None, NullDevice()).partial_sums == expected


def test_shapes_of_tiles(lt: FakeLt) -> None:
    tile_shapes.cache_clear()
    found = tile_shapes()
    tile_shapes.cache_clear()
    assert found[int(FakeLt.MatmulTile.TILE_128x256)] == (128, 256)
    assert found[int(FakeLt.MatmulTile.TILE_8x8)] == (8, 8)
    assert int(FakeLt.MatmulTile.TILE_UNDEFINED) not in found


# ---- its space ---------------------------------------------------------------------------------


def test_every_listed_configuration_and_neighbour_is_a_member_of_the_space(lt: FakeLt) -> None:
    odd = MatmulAlgoConfig(66, 20, 6, 9, 4, 0, 0)  # shares that no list has
    lt.heuristic = [*lt.heuristic, (odd, 3)]
    space = LT.space_on(PROBLEM, NullDevice(), None)
    listed = list(LT.enumerate_on(PROBLEM, NullDevice(), None))
    assert odd in configurations(listed)
    for solution in listed:
        index = space.index(solution)
        assert index is not None, solution.parameters
        assert space.at(index) in (solution, None)  # None: the heuristic's answer fails the fake's check
    for near in LT.neighbours_on(PROBLEM, listed[-1], NullDevice(), None):
        assert near in space


def test_the_librarys_check_decides_what_is_a_member(lt: FakeLt) -> None:
    space = LT.space_on(PROBLEM, NullDevice(), 4 * SHARE)
    members = list(space)
    assert 0 < len(members) < space.size
    assert len({one.id for one in members}) == len(members)
    for solution in members:
        size = legal(algo_config(solution))
        assert size is not None
        assert solution.workspace_bytes == size <= 4 * SHARE
    assert HEURISTIC.space_on(PROBLEM, NullDevice(), None).size == 0
