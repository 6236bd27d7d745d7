"""Charts: well-formed SVG, places of values, escaped texts."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from service.svg import Axis, Chart, bars, decades, ticks_of

SPACE = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_a_value_lies_where_its_axis_says() -> None:
    linear, log = Axis(0, 10, "x", ()), Axis(1, 100, "x", (), log=True)
    assert [linear.share(value) for value in (-5, 0, 2.5, 10, 99)] == [0, 0, 0.25, 1, 1]
    assert log.share(10) == pytest.approx(0.5)
    assert log.share(0.1) == 0
    for low, high, kind in ((1, 1, False), (2, 1, False), (0, 1, True)):
        with pytest.raises(ValueError, match="an axis cannot go from"):
            Axis(low, high, "x", (), log=kind)


def test_a_chart_is_well_formed_and_its_texts_are_escaped() -> None:
    evil = '</text><script>alert("&")</script>'
    chart = Chart(evil, Axis(1, 100, evil, (1, 10, 100), log=True), Axis(0, 1, evil, (0, 1), lambda _: evil))
    chart.steps([(1, 1.0), (10, 0.5)], 0, evil)
    chart.line([(1, 0.0), (100, 1.0)], 1)
    chart.points([(10, 0.5, evil)], 2, evil, hollow=True)
    found = parsed(str(chart))
    assert not found.findall(f".//{SPACE}script")
    assert [one.text for one in found.findall(f"{SPACE}circle/{SPACE}title")] == [evil]
    assert found.get("aria-label") == evil
    circle = found.find(f"{SPACE}circle")
    assert circle is not None
    assert circle.get("class") == "hollow series2"
    assert len(found.findall(f"{SPACE}rect")) == 2, "a key for each named series"


def test_bars_are_as_high_as_their_values() -> None:
    found = parsed(bars("title", [("a", 1.0), ("<b>", 4.0), ("c", 0.0)], "count", "kind"))
    heights = [float(one.get("height", "nan")) for one in found.findall(f"{SPACE}rect")]
    assert heights[1] == pytest.approx(4 * heights[0], rel=0.01)
    assert heights[2] == 0
    assert parsed(bars("nothing", [], "count", "kind")) is not None


@pytest.mark.parametrize("most", [0.003, 1.0, 8, 9.99, 1234])
def test_ticks_are_round_and_reach_the_end(most: float) -> None:
    found = ticks_of(most)
    assert found[0] == 0
    assert 3 <= len(found) <= 6
    step = found[1]
    assert found[-1] <= most * (1 + 1e-9) < found[-1] + step * (1 + 1e-9)
    assert step / 10 ** math.floor(math.log10(step)) == pytest.approx(
        round(step / 10 ** math.floor(math.log10(step)))
    )


def test_decades_lie_within_their_ends() -> None:
    assert decades(0.5, 2000) == [1, 10, 100, 1000]
    assert decades(1, 10) == [1, 10]
    assert decades(2, 3) == []
