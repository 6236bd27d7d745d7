"""A small ensemble of extremely randomized regression trees (Geurts, Ernst and Wehenkel, 2006).

Every node splits at a random threshold of the best of a few random features, and every tree sees all rows.
The trees grow level by level, all nodes of a level in the same array operations. Importing a library that
does the same takes longer than a search spends here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
_Places = npt.NDArray[np.intp]

#: Rows that a leaf has at least, and levels of a tree at most.
LEAF, DEPTH = 2, 12
#: Numbers of one temporary array, about: trees grow in groups.
_NUMBERS = 2**20


class Forest:
    """An ensemble of `trees` trees; equal seeds give equal trees."""

    def __init__(self, trees: int, seed: int) -> None:
        self._trees, self._random = trees, np.random.default_rng(seed)
        self._groups: list[_Group] = []

    def fit(self, rows: Matrix, values: Matrix) -> None:
        """Learns from rows [n, features] and their values [n]."""
        together = max(1, _NUMBERS // rows.size)
        sizes = [min(together, self._trees - begin) for begin in range(0, self._trees, together)]
        self._groups = [_grown(size, rows, values, self._random) for size in sizes]

    def predict(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        """The mean of the trees' answers for each row, and their standard deviation."""
        answers = np.concatenate([group.answers(rows) for group in self._groups])
        return answers.mean(axis=0), answers.std(axis=0)


@dataclass(frozen=True)
class _Group:
    """The nodes of `trees` trees, the roots first. A row whose feature is at most the threshold goes to the
    node `low`, another one to the node after it. A leaf is its own `low`, and no row is beyond its
    threshold."""

    trees: int
    feature: _Places
    threshold: Matrix
    low: _Places
    value: Matrix

    def answers(self, rows: Matrix) -> Matrix:
        """Every tree's answer for every row: [trees, n]."""
        node = np.repeat(np.arange(self.trees)[:, None], len(rows), axis=1)
        row = np.arange(len(rows))
        while True:
            above = rows[row, self.feature[node]] > self.threshold[node]
            below = self.low[node] + above
            if (below == node).all():
                return self.value[node]
            node = below


@dataclass(frozen=True)
class _Level:
    """The samples of a level's nodes, node by node: a row of every tree that is in one of them. `starts`: the
    first sample of each node."""

    samples: _Places
    starts: _Places

    @property
    def counts(self) -> _Places:
        """The samples of each node."""
        return np.diff(self.starts, append=len(self.samples))


def _grown(trees: int, rows: Matrix, values: Matrix, random: np.random.Generator) -> _Group:
    """Trees that see all rows."""
    count = len(rows)
    level = _Level(np.tile(np.arange(count), trees), np.arange(trees) * count)
    features, thresholds, lows, means = [], [], [], []
    first = 0
    for depth in range(DEPTH + 1):
        nodes = len(level.starts)
        means.append(np.add.reduceat(values[level.samples], level.starts) / level.counts)
        feature, threshold = _splits(level, rows, values, random)
        inner = np.isfinite(threshold) & (depth < DEPTH)
        low = first + np.arange(nodes)
        low[inner] = first + nodes + 2 * np.arange(np.count_nonzero(inner))
        features.append(feature)
        thresholds.append(np.where(inner, threshold, np.inf))
        lows.append(low)
        if not inner.any():
            break
        # The samples of the inner nodes go to two children each; the order within a child is kept.
        node = np.repeat(np.arange(nodes), level.counts)
        kept = inner[node]
        node, samples = node[kept], level.samples[kept]
        child = low[node] + (rows[samples, feature[node]] > threshold[node])
        order = np.argsort(child, kind="stable")
        first += nodes
        level = _Level(samples[order], np.flatnonzero(np.diff(child[order], prepend=-1)))
    return _Group(
        trees, np.concatenate(features), np.concatenate(thresholds), np.concatenate(lows),
        np.concatenate(means),
    )  # fmt: skip


def _splits(
    level: _Level, rows: Matrix, values: Matrix, random: np.random.Generator
) -> tuple[_Places, Matrix]:
    """The feature and the threshold of each node's split; the threshold is infinite where there is none."""
    starts, samples = level.starts, level.samples
    mine, told = rows[samples], values[samples]
    low, high = np.minimum.reduceat(mine, starts), np.maximum.reduceat(mine, starts)
    threshold = low + random.random(low.shape) * (high - low)
    below = mine <= np.repeat(threshold, level.counts, axis=0)
    total, count = np.add.reduceat(told, starts)[:, None], level.counts[:, None].astype(float)
    least, most = np.minimum.reduceat(told, starts), np.maximum.reduceat(told, starts)
    counts = np.add.reduceat(below, starts, dtype=float)
    sums = np.add.reduceat(below * told[:, None], starts)
    legal = (counts >= LEAF) & (count - counts >= LEAF) & (least < most)[:, None]
    # The sum of squares between the two sides: the best split leaves the least within them.
    with np.errstate(divide="ignore", invalid="ignore"):
        between = sums**2 / counts + (total - sums) ** 2 / (count - counts)
    # Half of the features are looked at; where none of these splits the node, it is a leaf.
    legal &= random.random(low.shape).argsort(axis=1) < max(1, rows.shape[1] // 2)
    between[~legal] = -np.inf
    best = between.argmax(axis=1)
    node = np.arange(len(starts))
    return best, np.where(legal[node, best], threshold[node, best], np.inf)
