"""Every candidate once, in an order drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from backends.solution import Solution
from tuners.strategies.base import Neighbours, no_neighbours
from tuners.strategies.exhaustive import Exhaustive


class Random(Exhaustive):
    """A seeded shuffle of all listed candidates; a limited budget gives an unbiased sample of them."""

    def __init__(
        self, candidates: Sequence[Solution], seed: int = 0, neighbours: Neighbours = no_neighbours
    ) -> None:
        order = sorted(candidates, key=lambda solution: solution.id)
        random.Random(seed).shuffle(order)
        super().__init__(order, seed)
