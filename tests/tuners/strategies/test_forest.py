"""The ensemble learns what a tree can, from few rows."""

from __future__ import annotations

import numpy as np
import pytest

from tuners.strategies.forest import Forest, NumpyForest, forest, has_library

KINDS = ["numpy", "library"]


def made(kind: str, seed: int = 0) -> Forest:
    if kind == "numpy":
        return NumpyForest(16, seed)
    if not has_library():
        pytest.skip("scikit-learn is not installed: pip install 'gemmtune[search]'")
    return forest(16, seed)


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 8, (count, 5)).astype(float)


def truth(at: np.ndarray) -> np.ndarray:
    return np.where(at[:, 0] < 4, at[:, 1], 10 - at[:, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_were_not_seen_are_ordered(kind: str) -> None:
    one, seen, other = made(kind), rows(120, 1), rows(200, 2)
    one.fit(seen, truth(seen))
    mean, deviation = one.predict(other)
    assert np.corrcoef(mean, truth(other))[0, 1] > 0.8
    assert (deviation >= 0).all()
    assert deviation.max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_answers(kind: str) -> None:
    seen = rows(30, 1)
    answers = []
    for seed in (1, 1, 2):
        one = made(kind, seed)
        one.fit(seen, truth(seen))
        answers.append(one.predict(seen)[0].tolist())
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_or_values_that_are_all_alike_have_their_mean(kind: str) -> None:
    one = made(kind)
    one.fit(np.ones((4, 3)), np.array([1.0, 2.0, 3.0, 6.0]))
    assert one.predict(np.ones((1, 3)))[0] == pytest.approx([3.0])
    one = made(kind)
    one.fit(rows(6, 1), np.full(6, 2.0))
    assert one.predict(rows(3, 2))[0] == pytest.approx([2.0] * 3)
