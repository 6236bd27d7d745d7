"""Devices of a class that differ from the others: who is set apart, who is not, and the rank test."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuners.device_agreement import LEAST_SHAPES, RECENT_SHAPES, Agreement, agreements, rank_test

Made = dict[str, dict[str, tuple[int, float]]]
FINITE = st.floats(0.5, 2.0, allow_nan=False)


def made(
    factors: dict[str, float], shapes: int, noise: float = 0.0, seed: int = 0, scale: float = 1e-3
) -> Made:
    """Times of devices that are so much slower than their class, each off by at most `noise`."""
    rng = random.Random(seed)
    return {
        f"shape-{shape}": {
            device: (shape, scale * (shape + 1) * factor * (1 + rng.uniform(-noise, noise)))
            for device, factor in factors.items()
        }
        for shape in range(shapes)
    }


def apart(times: Made) -> set[str]:
    return {device for device, one in agreements(times).items() if one.differs}


# ---- who is set apart ----------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.integers(3, 6), st.integers(LEAST_SHAPES, 12), st.floats(0.03, 1.0), st.booleans(), st.integers(0, 99)
)
def test_the_one_that_differs_is_found(
    devices: int, shapes: int, off: float, slower: bool, seed: int
) -> None:
    factors = {f"GPU-{n}": 1.0 for n in range(devices)}
    odd = f"GPU-{seed % devices}"
    factors[odd] = 1 + off if slower else 1 / (1 + off)
    found = agreements(made(factors, shapes, 0.004, seed))
    assert {device for device, one in found.items() if one.differs} == {odd}
    one = found[odd]
    assert one.ratio == pytest.approx(factors[odd], rel=0.01)
    assert one.shapes == min(shapes, RECENT_SHAPES)
    assert ("slower" if slower else "faster") in one.reason


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 12), st.integers(0, 999))
def test_noise_within_the_margin_sets_nobody_apart(devices: int, shapes: int, seed: int) -> None:
    factors = {f"GPU-{n}": 1.0 for n in range(devices)}
    assert apart(made(factors, shapes, 0.009, seed)) == set()


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), FINITE, min_size=1), st.integers(0, 12), st.integers(0, 99))
def test_somebody_is_left_whatever_they_take(factors: dict[str, float], shapes: int, seed: int) -> None:
    times = made(factors, shapes, 0.05, seed)
    found = agreements(times)
    assert set(found) == ({*factors} if shapes else set())
    left = [device for device, one in found.items() if not one.differs]
    assert bool(left) == bool(found)
    again = {device: time for device, time in found.items() if not time.differs}
    rest = {name: {d: t for d, t in row.items() if d in again} for name, row in times.items()}
    assert agreements(rest) == again, "those that are left agree among themselves"


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), FINITE, min_size=2), st.integers(3, 9), st.floats(1e-6, 1e3),
    st.integers(0, 99),
)  # fmt: skip
def test_neither_the_unit_nor_the_order_matters(
    factors: dict[str, float], shapes: int, scale: float, seed: int
) -> None:
    times = made(factors, shapes, 0.01, seed)
    mixed = {
        name: dict(sorted(((d, (n, s * scale)) for d, (n, s) in row.items()), reverse=True))
        for name, row in sorted(times.items(), reverse=True)
    }
    assert {d: one.differs for d, one in agreements(mixed).items()} == {
        d: one.differs for d, one in agreements(times).items()
    }


def test_too_few_shapes_decide_nothing() -> None:
    found = agreements(made({"a": 1.0, "b": 1.0, "c": 3.0}, LEAST_SHAPES - 1))
    assert set(found.values()) == {Agreement(None, 2)}
    alone = agreements(made({"a": 1.0}, 10))
    assert alone == {"a": Agreement(None, 0)}
    apart_shapes = {f"s-{n}": {device: (n, 1.0)} for n, device in enumerate("aabbcc")}
    assert {one.differs for one in agreements(apart_shapes).values()} == {None}


def test_three_shapes_of_two_devices_are_no_proof_and_four_are() -> None:
    assert apart(made({"a": 1.0, "b": 1.2}, 3)) == set()
    assert apart(made({"a": 1.0, "b": 1.2}, 4)) == {"b"}
    assert apart(made({"a": 1.0, "b": 0.8}, 4)) == {"a"}, "of two the slower one"


def test_what_may_be_chance_is_not_decided() -> None:
    """A device that was set apart agrees once it is within the margin, not once the proof is gone."""
    found = agreements(made({"a": 1.0, "b": 1.2}, 3))
    assert {one.differs for one in found.values()} == {None}
    assert {one.differs for one in agreements(made({"a": 1.0, "b": 1.01}, 3)).values()} == {False}


def test_several_that_differ_are_set_apart_one_after_the_other() -> None:
    assert apart(made({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.1, "e": 1.5}, 5, 0.002)) == {"d", "e"}
    assert apart(made({"a": 1.0, "b": 1.0, "c": 1.1, "d": 1.1}, 5, 0.002)) == {"c", "d"}


def test_a_median_off_by_chance_is_no_difference() -> None:
    """Half of the shapes are slower and half faster: the median may be off, the ranks are not."""
    times = made({"a": 1.0, "b": 1.0}, 8)
    for n, name in enumerate(times):
        times[name]["c"] = (n, times[name]["a"][1] * (1.03 if n % 2 else 0.96))
        times[name]["b"] = (n, times[name]["a"][1] * (1.04 if n % 4 < 2 else 0.95))
    assert apart(times) == set()


def test_a_device_that_was_repaired_agrees_by_its_recent_shapes() -> None:
    times = made({"a": 1.0, "b": 1.0, "c": 1.3}, RECENT_SHAPES)
    assert apart(times) == {"c"}
    healthy = made({"a": 1.0, "b": 1.0, "c": 1.0}, 2 * RECENT_SHAPES)
    repaired = healthy | times
    assert apart(repaired) == set()


# ---- the rank test -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stats() -> Any:
    return pytest.importorskip("scipy.stats")


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=7, unique=True), st.integers(1, 6))
def test_the_exact_test_is_scipys(stats: Any, values: list[float], size: int) -> None:
    first, second = values[:size], values[size:]
    if first and second:
        wanted = stats.mannwhitneyu(first, second, method="exact").pvalue
        assert rank_test(first, second) == pytest.approx(wanted)


@settings(deadline=None)
@given(st.integers(0, 999), st.booleans())
def test_the_approximation_is_scipys(stats: Any, seed: int, ties: bool) -> None:
    rng = random.Random(seed)

    def values(count: int, shift: float) -> list[float]:
        return [round(rng.gauss(shift, 1.0), 0 if ties else 9) for _ in range(count)]

    first, second = values(20, rng.uniform(-1, 1)), values(30, 0.0)
    wanted = stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert rank_test(first, second) == pytest.approx(wanted, abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=7), st.integers(1, 6))
def test_ties_are_counted_exactly(values: list[int], size: int) -> None:
    """Against all subsets, one by one."""
    first = values[:size]
    if len(first) == len(values):
        return

    def mean_rank(value: int) -> float:
        return sum(one < value for one in values) + (values.count(value) + 1) / 2

    ranks = [mean_rank(value) for value in values]
    expected = len(first) * (len(values) + 1) / 2
    distance = abs(sum(ranks[: len(first)]) - expected)
    sums = [sum(subset) for subset in combinations(ranks, len(first))]
    wanted = sum(abs(one - expected) >= distance - 1e-9 for one in sums) / len(sums)
    assert rank_test(first, values[size:]) == pytest.approx(wanted)


def test_equal_values_prove_nothing() -> None:
    assert rank_test([1.0] * 3, [1.0] * 5) == 1.0
    assert rank_test([1.0] * 30, [1.0] * 30) == 1.0
