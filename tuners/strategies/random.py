"""Candidates in an order drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from tuners.strategies.context import SearchContext
from tuners.strategies.exhaustive import Exhaustive, in_turns
from tuners.strategies.options import StrategyOptions, option


@dataclass(frozen=True)
class RandomOptions(StrategyOptions):
    """The options of `random`."""

    whole: bool = option(
        False, "Draws from the families' whole spaces, families in turns, not from the listed candidates."
    )


class Random(Exhaustive):
    """Tries every listed candidate once, in an order drawn from the seed; a limited budget gives an unbiased
    sample of them."""

    options: ClassVar[type[StrategyOptions]] = RandomOptions

    def __init__(self, context: SearchContext) -> None:
        super().__init__(context)
        order = sorted(context.candidates, key=lambda solution: solution.id)
        random.Random(context.seed).shuffle(order)
        spaces = context.spaces
        drawn = in_turns(spaces[name].shuffled(context.seed) for name in sorted(spaces))
        self._order = chain(drawn, order) if RandomOptions.of(context.options).whole else iter(order)
