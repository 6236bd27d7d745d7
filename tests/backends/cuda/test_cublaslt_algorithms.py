"""Enumeration against what an H200's library said of its own algorithms (tests/data/cublaslt)."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backends.cuda.cublaslt import operand_alignment
from backends.cuda.cublaslt_algorithms import (
    CLUSTERS,
    MOST_OPTIONS,
    REDUCTIONS,
    SPLITS,
    STAGE_K,
    Algorithm,
    Check,
    MatmulAlgoConfig,
    base_configurations,
    by_cost,
    drops_remainder,
    neighbours,
    spread,
)
from backends.problem import GemmProblem

DATA = Path(__file__).parent.parent.parent / "data" / "cublaslt" / "h200.json.gz"
LABELS = ("bf16 decode", "bf16 misaligned", "fp32", "fp8", "int8", "fp16")


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(DATA.read_bytes()))
    return found


def algorithms(label: str) -> dict[int, Algorithm]:
    return {a["algo_id"]: Algorithm.from_dict(a) for a in recorded()[label]["algorithms"]}


def legal(label: str, algo_id: int) -> list[MatmulAlgoConfig]:
    return [MatmulAlgoConfig(*values) for values in recorded()[label]["legal"].get(str(algo_id), [])]


def problem_of(label: str) -> GemmProblem:
    return GemmProblem.from_dict(recorded()[label]["problem"])


def check_of(label: str) -> Check:
    """What the library said, of tile, stages, inner shape and cluster."""
    triples = {
        (one.algo_id, one.tile_id, one.stages_id, one.inner_shape_id, one.cluster_shape_id)
        for name in recorded()[label]["legal"]
        for one in legal(label, int(name))
    }

    def check(one: MatmulAlgoConfig) -> int | None:
        key = (one.algo_id, one.tile_id, one.stages_id, one.inner_shape_id, one.cluster_shape_id)
        return 0 if key in triples else None

    return check


EVERY = [(label, number) for label in LABELS for number in sorted(algorithms(label))]


@pytest.mark.parametrize(("label", "number"), EVERY)
def test_what_the_library_passes_is_found_exactly(label: str, number: int) -> None:
    algorithm = algorithms(label)[number]
    found = list(base_configurations(algorithm, check_of(label)))
    assert len(found) == len(set(found))
    expected = legal(label, number)
    if not algorithm.allows(operand_alignment(problem_of(label))):
        assert expected == [], "an algorithm that wants more of its operands passes nothing"
    assert set(found) == set(expected)


def test_the_record_is_worth_something() -> None:
    sizes = {label: sum(len(legal(label, n)) for n in algorithms(label)) for label in LABELS}
    assert sizes["bf16 decode"] > 1000
    assert sizes["bf16 misaligned"] == 14
    assert all(sizes.values())


def test_misaligned_operands_leave_out_what_wants_whole_vectors() -> None:
    straight = operand_alignment(problem_of("bf16 decode"))
    odd = operand_alignment(problem_of("bf16 misaligned"))
    assert (straight, odd) == ((16, 16, 16, 16), (2, 2, 2, 2))
    wide = [a for a in algorithms("bf16 decode").values() if 16 in a.alignment]
    assert wide
    assert all(a.allows(straight) for a in wide)
    assert not any(a.allows(odd) for a in wide)
    kept = {n for n, a in algorithms("bf16 misaligned").items() if a.allows(odd)}
    assert {24, 42, 16} <= kept
    assert not kept & {66, 21, 23}


@pytest.mark.parametrize("operand", range(4))
def test_every_operand_counts(operand: int) -> None:
    given = [8, 8, 8, 8]
    assert replace(SMALL, alignment=(8, 8, 8, 8)).allows(given)
    given[operand] = 4
    assert not replace(SMALL, alignment=(8, 8, 8, 8)).allows(given)
    with pytest.raises(ValueError, match="zip"):
        SMALL.allows([16, 16, 16])


# ---- rules of the enumeration ------------------------------------------------------------------

SMALL = Algorithm(
    7, tiles=(15, 20), stages=(5, 6), splits_k=True, reductions=2, swizzles=True, custom_max=2,
    epilogues=1023, batches=True, out_of_place=True, alignment=(4, 4, 4, 4),
)  # fmt: skip


def test_who_takes_the_automatic_cluster_is_asked_for_no_other() -> None:
    asked: list[MatmulAlgoConfig] = []

    def check(one: MatmulAlgoConfig) -> int | None:
        asked.append(one)
        return 0 if one.inner_shape_id == 0 else None

    found = list(base_configurations(SMALL, check))
    assert [(one.tile_id, one.stages_id, one.cluster_shape_id) for one in found] == [
        (15, 5, 0), (20, 5, 0), (15, 6, 0), (20, 6, 0),
    ]  # fmt: skip
    assert {one.cluster_shape_id for one in asked} == {0}


def test_who_does_not_is_asked_for_every_cluster() -> None:
    def check(one: MatmulAlgoConfig) -> int | None:
        return 0 if one.cluster_shape_id in (2, CLUSTERS[-1]) and one.inner_shape_id == 0 else None

    found = list(base_configurations(SMALL, check))
    assert len(found) == 8
    assert {one.cluster_shape_id for one in found} == {2, CLUSTERS[-1]}


def test_another_inner_shape_only_where_the_first_has_none() -> None:
    def only(*shapes: int) -> list[MatmulAlgoConfig]:
        return list(base_configurations(SMALL, lambda one: 9 if one.inner_shape_id in shapes else None))

    assert {one.inner_shape_id for one in only(0, 3)} == {0}
    assert {one.inner_shape_id for one in only(3, 4)} == {3}
    assert len(only(3, 4)) == 4
    assert only() == []


def test_an_algorithm_without_tiles_has_one_configuration() -> None:
    plain = replace(SMALL, tiles=(), stages=())
    assert list(base_configurations(plain, lambda one: 0)) == [MatmulAlgoConfig(7)]


def test_every_tile_of_a_long_list_is_looked_at() -> None:
    many = replace(SMALL, tiles=tuple(range(1, 635)), stages=(36,))
    found = list(base_configurations(many, lambda one: 0 if one.cluster_shape_id == 5 else None))
    assert [one.tile_id for one in found] == list(range(1, 635))


# ---- neighbours --------------------------------------------------------------------------------

FIELDS = MatmulAlgoConfig._fields


def changed(origin: MatmulAlgoConfig, other: MatmulAlgoConfig) -> set[str]:
    return {name for name in FIELDS if getattr(origin, name) != getattr(other, name)}


def split(one: MatmulAlgoConfig) -> int:
    """The number of shares, 0 and 1 being the same."""
    return max(1, one.splitk_num)


ORIGINS = [MatmulAlgoConfig(*values) for values in recorded()["bf16 decode"]["legal"]["66"][::200]]
ORIGINS += [MatmulAlgoConfig(*values) for values, _ in recorded()["bf16 decode"]["heuristics"]]


@pytest.mark.parametrize("origin", ORIGINS, ids=str)
def test_a_neighbour_differs_in_one_choice(origin: MatmulAlgoConfig) -> None:
    algorithm = algorithms("bf16 decode")[origin.algo_id]
    found = neighbours(origin, algorithm, legal("bf16 decode", origin.algo_id))
    assert found
    assert origin not in found
    assert len(found) == len(set(found))
    for one in found:
        differs = changed(origin, one)
        # A reduction scheme means something only where k is split, and changes with it.
        assert len(differs) == 1 or differs == {"splitk_num", "reduction_scheme"}, one
        assert "algo_id" not in differs


ORIGIN = MatmulAlgoConfig(7, tile_id=15, stages_id=5, cluster_shape_id=2)
BASE = [
    MatmulAlgoConfig(7, tile, stages, cluster_shape_id=cluster)
    for tile, stages, cluster in [(15, 5, 2), (15, 5, 3), (15, 6, 2), (20, 5, 2), (20, 6, 3)]
]


def values(name: str, algorithm: Algorithm = SMALL, origin: MatmulAlgoConfig = ORIGIN) -> list[int]:
    """What a field is changed to where nothing else is."""
    found = neighbours(origin, algorithm, BASE)
    return [getattr(one, name) for one in found if changed(origin, one) == {name}]


def test_tiles_stages_and_clusters_are_legal_ones() -> None:
    assert values("tile_id") == [20]
    assert values("stages_id") == [6]
    assert values("cluster_shape_id") == [3]


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0, []), (2, [1, 2]), (10_000, list(range(1, MOST_OPTIONS + 1)))],
)
def test_custom_options_within_their_limit(most: int, expected: list[int]) -> None:
    assert values("custom_option", replace(SMALL, custom_max=most)) == expected


def test_swizzling_where_there_is_any() -> None:
    assert values("cta_swizzling") == [1]
    assert values("cta_swizzling", origin=ORIGIN._replace(cta_swizzling=1)) == [0]
    assert values("cta_swizzling", replace(SMALL, swizzles=False)) == []


def test_inner_shapes() -> None:
    assert values("inner_shape_id") == [1, 2, 3, 4]


@pytest.mark.parametrize("mask", range(8))
def test_splits_reduce_by_the_algorithms_own_schemes(mask: int) -> None:
    algorithm = replace(SMALL, reductions=mask)
    found = [one for one in neighbours(ORIGIN, algorithm, BASE) if split(one) > 1]
    schemes = [scheme for scheme in REDUCTIONS if scheme & mask]
    expected = {(count, scheme) for count in SPLITS for scheme in schemes}
    assert {(one.splitk_num, one.reduction_scheme) for one in found} == expected


def test_who_does_not_split_has_no_splits() -> None:
    found = neighbours(ORIGIN, replace(SMALL, splits_k=False), BASE)
    assert found
    assert {(one.splitk_num, one.reduction_scheme) for one in found} == {(1, 0)}


def test_the_nearest_splits_come_first_and_one_resets_the_scheme() -> None:
    origin = ORIGIN._replace(splitk_num=7, reduction_scheme=2)
    found = neighbours(origin, replace(SMALL, reductions=3), BASE)
    unsplit = [one for one in found if one.splitk_num == 1]
    assert [(one.splitk_num, one.reduction_scheme) for one in unsplit] == [(1, 0)]
    counts = [one.splitk_num for one in found if one.reduction_scheme == 2 and split(one) not in (1, 7)]
    assert sorted(counts) == [count for count in SPLITS if count != 7]
    assert [abs(count - 7) for count in counts] == sorted(abs(count - 7) for count in counts)
    assert [one.reduction_scheme for one in found if one.splitk_num == 7 and one != origin][:1] == [1]


def test_the_librarys_own_choice_of_shares_can_be_left() -> None:
    origin = ORIGIN._replace(splitk_num=-1, reduction_scheme=2)
    found = [(one.splitk_num, one.reduction_scheme) for one in neighbours(origin, SMALL, BASE)]
    assert (1, 0) in found
    assert (2, 2) in found


@pytest.mark.parametrize(
    ("one", "k", "expected"),
    [
        (MatmulAlgoConfig(66, 312, 35, 3), 3 * 64 + 1, True),
        (MatmulAlgoConfig(66, 312, 35, 3), 3 * 64, False),
        (MatmulAlgoConfig(66, 312, 35, 3), 3 * 65 + 1, False),
        (MatmulAlgoConfig(66, 312, 36, 3), 3 * 64 + 1, False),
        (MatmulAlgoConfig(66, 312, 36, 2), 2 * 128 + 1, True),
        (MatmulAlgoConfig(66, 312, 35, 3), 2, False),
        (MatmulAlgoConfig(66, 312, 35, 1), 65, False),
        (MatmulAlgoConfig(66, 312, 35, -1), 65, False),
        (MatmulAlgoConfig(66, 312, 5, 3), 3 * 64 + 1, False),
        (MatmulAlgoConfig(21, 312, 35, 3), 3 * 64 + 1, False),
    ],
)
def test_who_drops_what_is_left_of_k(one: MatmulAlgoConfig, k: int, expected: bool) -> None:
    assert drops_remainder(one, k) is expected


def test_stages_hold_what_their_names_say() -> None:
    from nvmath.bindings import cublasLt

    named = {int(value): name for name, value in cublasLt.MatmulStages.__members__.items()}
    assert {number: named[number] for number in STAGE_K} == {
        number: f"STAGES_{size}xAUTO" for number, size in STAGE_K.items()
    }


# ---- order -------------------------------------------------------------------------------------

SHAPES = {15: (64, 64), 20: (128, 128), 24: (256, 128), 11: (32, 32)}


def tiles(sizes: tuple[int, int, int], units: int = 132) -> list[int]:
    found = by_cost([MatmulAlgoConfig(7, tile) for tile in SHAPES], sizes, units, SHAPES)
    return [one.tile_id for one in found]


def test_small_problems_want_small_tiles_and_large_ones_large() -> None:
    assert tiles((32, 32, 1))[0] == 11
    assert tiles((8192, 8192, 1))[0] == 24
    assert tiles((32, 32, 10_000))[0] == 11, "a batch is as many products"


def test_a_wave_that_is_full_beats_one_that_is_not() -> None:
    # 132 tiles of 128 x 128 are one wave; of 64 x 64 they are four.
    assert tiles((128 * 132, 128, 1)).index(20) < tiles((128 * 132, 128, 1)).index(15)


def test_ordering_keeps_everybody_and_does_not_depend_on_the_order() -> None:
    given = legal("bf16 decode", 66)
    ordered = by_cost(given, (4096, 16, 1), 132, SHAPES)
    assert sorted(ordered) == sorted(given)
    costs = by_cost(given[::-1], (4096, 16, 1), 132, SHAPES)
    assert [one.cluster_shape_id for one in costs] == [one.cluster_shape_id for one in ordered]
    assert spread(ordered)[0] == ordered[0]


def test_every_tile_has_a_turn_before_any_has_two() -> None:
    given = by_cost(legal("bf16 decode", 66) + legal("bf16 decode", 21), (4096, 16, 1), 132, SHAPES)
    found = spread(given)
    assert sorted(found) == sorted(given)
    keys = [(one.algo_id, one.tile_id) for one in found]
    turns = [keys[:place].count(key) for place, key in enumerate(keys)]
    assert turns == sorted(turns)
    first = [one for one, turn in zip(found, turns, strict=True) if turn == 0]
    assert [given.index(one) for one in first] == sorted(given.index(one) for one in first)


# ---- as data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("label", LABELS)
def test_an_algorithm_survives_json(label: str) -> None:
    for algorithm in algorithms(label).values():
        again = Algorithm.from_dict(json.loads(json.dumps(algorithm.to_dict())))
        assert again == algorithm
        assert hash(again) == hash(algorithm)


def test_missing_and_unknown_fields_are_refused() -> None:
    whole = SMALL.to_dict()
    with pytest.raises(TypeError):
        Algorithm.from_dict(whole | {"more": 1})
    with pytest.raises(TypeError):
        Algorithm.from_dict({name: value for name, value in whole.items() if name != "swizzles"})
