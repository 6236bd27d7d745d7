"""Tables of options: what they accept, what they refuse in which words, and the page that is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import pytest

from backends.errors import InvalidProblem
from tests.tuners.strategies.contexts import context
from tuners.strategies import STRATEGIES
from tuners.strategies.document import document
from tuners.strategies.options import StrategyOptions, option, table_text

PAGE = Path(__file__).parents[3] / "docs" / "strategies.md"


@dataclass(frozen=True)
class Options(StrategyOptions):
    """Options of each kind."""

    turns: int = option(2, "Turns.", least=1, most=9)
    gain: float = option(0.5, "Gain.", least=0.0)
    whole: bool = option(False, "All of it.")
    order: str = option("time", "Order.", among=("time", "name"))


def test_options_that_are_not_given_have_their_defaults() -> None:
    assert Options.of({}) == Options()
    assert Options.of({"turns": 3, "gain": 1}) == Options(turns=3, gain=1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"turns": 0}, "turns must be an integer from 1 to 9, not 0"),
        ({"turns": 10}, "turns must be an integer from 1 to 9, not 10"),
        ({"turns": 2.0}, "turns must be an integer from 1 to 9, not 2.0"),
        ({"turns": True}, "turns must be an integer from 1 to 9, not True"),
        ({"turns": "2"}, "turns must be an integer from 1 to 9, not '2'"),
        ({"gain": -0.1}, "gain must be a number from 0, not -0.1"),
        ({"gain": nan}, "gain must be a number from 0, not nan"),
        ({"whole": 1}, "whole must be true or false, not 1"),
        ({"order": "size"}, "order must be time or name, not 'size'"),
        ({"turn": 2}, "option 'turn' is unknown; known: turns, gain, whole, order"),
    ],
)
def test_other_values_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidProblem, match=words):
        Options.of(given)


def test_a_strategy_without_options_says_so() -> None:
    with pytest.raises(InvalidProblem, match="option 'turns' is unknown; the strategy has none"):
        StrategyOptions.of({"turns": 1})


def test_texts_become_values_of_the_options_kind() -> None:
    texts = ["turns=3", "gain=1e-2", "whole=True", "order=name"]
    assert Options.parse(texts) == {"turns": 3, "gain": 0.01, "whole": True, "order": "name"}
    assert Options.parse(()) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("turns", "an option is name=value, not 'turns'"),
        ("turns=many", "turns must be an integer from 1 to 9, not 'many'"),
        ("whole=1", "whole must be true or false, not '1'"),
        ("turn=1", "option 'turn' is unknown"),
    ],
)
def test_texts_that_stand_for_no_value_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidProblem, match=words):
        Options.parse([text])


def test_the_table_has_every_option_with_its_default_values_and_meaning() -> None:
    rows = table_text(Options.table()).splitlines()
    assert rows[2:] == [
        "| `turns` | `2` | an integer from 1 to 9 | Turns. |",
        "| `gain` | `0.5` | a number from 0 | Gain. |",
        "| `whole` | `false` | true or false | All of it. |",
        "| `order` | `time` | time or name | Order. |",
    ]


def test_the_page_of_the_strategies_is_up_to_date() -> None:
    """Written by python -m tuners.strategies.document docs/strategies.md."""
    assert PAGE.read_text() == document()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_refuses_options_that_it_does_not_have(name: str) -> None:
    with pytest.raises(InvalidProblem, match="option 'nonsense' is unknown"):
        STRATEGIES[name](context((), options={"nonsense": 1}))
