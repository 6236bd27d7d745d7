"""A small ensemble of extremely randomized regression trees (Geurts, Ernst and Wehenkel, 2006).

scikit-learn's is used where it is installed (pip install 'gemmtune[search]'); else one of the same kind in
numpy. Both split on a random threshold of the better of a few random features, and every tree sees all rows.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

#: Rows that a leaf has at least, and levels of a tree at most.
LEAF, DEPTH = 2, 12


class Forest(Protocol):
    """An ensemble that is fitted once."""

    def fit(self, rows: Matrix, values: Matrix) -> None:
        """Learns from rows [n, features] and their values [n]."""

    def predict(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        """The mean of the trees' answers for each row, and their standard deviation."""


def forest(trees: int, seed: int) -> Forest:
    """An ensemble of `trees` trees; equal seeds give equal trees."""
    return _LibraryForest(trees, seed) if has_library() else NumpyForest(trees, seed)


@lru_cache(maxsize=1)
def has_library() -> bool:
    """Whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


@lru_cache(maxsize=1)
def begin_loading() -> None:
    """Imports the library in a thread, once a process: it takes seconds, which the first search would count
    as measuring."""
    if has_library():
        threading.Thread(target=importlib.import_module, args=("sklearn.ensemble",), daemon=True).start()


class _LibraryForest:
    """scikit-learn's ExtraTreesRegressor."""

    def __init__(self, trees: int, seed: int) -> None:
        from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415  (optional; takes a second)

        self._model: Any = ExtraTreesRegressor(
            n_estimators=trees, min_samples_leaf=LEAF, max_depth=DEPTH, max_features=0.5,
            random_state=seed % 2**32,
        )  # fmt: skip

    def fit(self, rows: Matrix, values: Matrix) -> None:
        """See Forest."""
        self._model.fit(rows, values)

    def predict(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        """See Forest."""
        answers = np.stack([tree.predict(rows) for tree in self._model.estimators_])
        return answers.mean(axis=0), answers.std(axis=0)


@dataclass(frozen=True)
class _Split:
    """A row goes to `low` if its feature is at most the threshold."""

    feature: int
    threshold: float
    low: _Split | float
    high: _Split | float


class NumpyForest:
    """The ensemble in numpy."""

    def __init__(self, trees: int, seed: int) -> None:
        self._trees, self._random = trees, np.random.default_rng(seed)
        self._roots: list[_Split | float] = []

    def fit(self, rows: Matrix, values: Matrix) -> None:
        """See Forest."""
        self._roots = [self._grown(rows, values, 0) for _ in range(self._trees)]

    def _grown(self, rows: Matrix, values: Matrix, depth: int) -> _Split | float:
        count, total = len(values), float(values.sum())
        if count < 2 * LEAF or depth == DEPTH or values.min() == values.max():
            return total / count
        chosen = self._random.permutation(rows.shape[1])[: max(1, rows.shape[1] // 2)]
        some = rows[:, chosen]
        low = some.min(axis=0)
        thresholds = low + self._random.random(len(chosen)) * (some.max(axis=0) - low)
        below = some <= thresholds
        counts = below.sum(axis=0)
        inner = (counts >= LEAF) & (count - counts >= LEAF)
        if not inner.any():
            return total / count
        sums, counts = values @ below[:, inner], counts[inner]
        # The sum of squares between the two sides: the best split leaves the least within them.
        between = sums**2 / counts + (total - sums) ** 2 / (count - counts)
        best = np.flatnonzero(inner)[int(between.argmax())]
        side = below[:, best]
        return _Split(
            int(chosen[best]), float(thresholds[best]),
            self._grown(rows[side], values[side], depth + 1),
            self._grown(rows[~side], values[~side], depth + 1),
        )  # fmt: skip

    def predict(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        """See Forest."""
        answers = np.empty((len(self._roots), len(rows)))
        for place, root in enumerate(self._roots):
            _answer(root, rows, np.arange(len(rows)), answers[place])
        return answers.mean(axis=0), answers.std(axis=0)


def _answer(node: _Split | float, rows: Matrix, places: npt.NDArray[np.intp], out: Matrix) -> None:
    """Writes a subtree's answers for the rows at `places`."""
    if isinstance(node, float):
        out[places] = node
    elif len(places):
        below = rows[places, node.feature] <= node.threshold
        _answer(node.low, rows, places[below], out)
        _answer(node.high, rows, places[~below], out)
