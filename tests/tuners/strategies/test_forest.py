"""The ensemble learns what a tree can, from few rows."""

from __future__ import annotations

import numpy as np
import pytest

from tuners.strategies import forest
from tuners.strategies.forest import DEPTH, LEAF, Forest


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 8, (count, 5)).astype(float)


def truth(at: np.ndarray) -> np.ndarray:
    return np.where(at[:, 0] < 4, at[:, 1], 10 - at[:, 2])


def test_rows_that_were_not_seen_are_ordered() -> None:
    one, seen, other = Forest(16, 0), rows(120, 1), rows(200, 2)
    one.fit(seen, truth(seen))
    mean, deviation = one.predict(other)
    assert np.corrcoef(mean, truth(other))[0, 1] > 0.8
    assert (deviation >= 0).all()
    assert deviation.max() > 0


def test_equal_seeds_give_equal_answers() -> None:
    seen = rows(30, 1)
    answers = []
    for seed in (1, 1, 2):
        one = Forest(16, seed)
        one.fit(seen, truth(seen))
        answers.append(one.predict(seen)[0].tolist())
    assert answers[0] == answers[1] != answers[2]


def test_rows_or_values_that_are_all_alike_have_their_mean() -> None:
    one = Forest(16, 0)
    one.fit(np.ones((4, 3)), np.array([1.0, 2.0, 3.0, 6.0]))
    assert one.predict(np.ones((1, 3)))[0] == pytest.approx([3.0])
    one = Forest(16, 0)
    one.fit(rows(6, 1), np.full(6, 2.0))
    assert one.predict(rows(3, 2))[0] == pytest.approx([2.0] * 3)


def test_one_row_is_a_leaf() -> None:
    one = Forest(3, 0)
    one.fit(np.ones((1, 2)), np.array([4.0]))
    mean, deviation = one.predict(rows(5, 1)[:, :2])
    assert mean == pytest.approx([4.0] * 5)
    assert deviation == pytest.approx([0.0] * 5)


def test_a_leaf_is_the_mean_of_its_rows_and_has_enough() -> None:
    seen = rows(60, 3)
    values = np.random.default_rng(4).random(60)
    one = Forest(1, 0)
    one.fit(seen, values)
    answers = one.predict(seen)[0]
    leaves, where = np.unique(answers, return_inverse=True)
    assert 2 < len(leaves) <= 2**DEPTH
    for leaf, answer in enumerate(leaves):
        assert (where == leaf).sum() >= LEAF
        assert values[where == leaf].mean() == pytest.approx(answer)


def test_many_trees_grow_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest, "_NUMBERS", 3 * 30 * 5)
    seen = rows(30, 1)
    one = Forest(10, 0)
    one.fit(seen, truth(seen))
    mean, _ = one.predict(seen)
    assert np.corrcoef(mean, truth(seen))[0, 1] > 0.9
