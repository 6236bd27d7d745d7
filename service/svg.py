"""Charts as inline SVG: axes, bars, steps and points in a plane whose axes are linear or logarithmic.

Colours are CSS classes (axis, grid, label, series0 ... series5), so that the page that holds a chart can have
a light and a dark form. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

#: Classes of series that a page styles.
SERIES = 6
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 12.0, 44.0


@dataclass(frozen=True)
class Axis:
    """A range of values; `ticks` are those with a label. Raises ValueError for a range without extent, and
    for a logarithmic one that reaches 0."""

    low: float
    high: float
    label: str
    ticks: Sequence[float]
    text: Callable[[float], str] = "{:g}".format
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"an axis cannot go from {self.low} to {self.high}")

    def share(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1; values beyond them are at the ends."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass
class Chart:
    """A chart that is drawn by its methods; str() is the SVG element. `title` says what it shows, for readers
    that cannot see it. The legend is at the right, at the top or below."""

    title: str
    x: Axis
    y: Axis
    width: float = 640.0
    height: float = 300.0
    legend_below: bool = False
    _parts: list[str] = field(default_factory=list)
    _legend: list[tuple[int, str]] = field(default_factory=list)

    def steps(self, points: Iterable[tuple[float, float]], series: int, name: str) -> None:
        """A falling staircase: each value holds up to its point."""
        path = ""
        for x, y in points:
            across, up = self._x(x), self._y(y)
            path += f"V{up:.1f}H{across:.1f}" if path else f"M{self._x(self.x.low):.1f} {up:.1f}H{across:.1f}"
        self._parts.append(f'<path class="line series{series}" d="{path}"/>')
        self._legend.append((series, name))

    def line(self, points: Sequence[tuple[float, float]], series: int, name: str | None = None) -> None:
        """Straight lines between points."""
        path = "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)
        self._parts.append(f'<path class="line series{series}" d="M{path}"/>')
        if name is not None:
            self._legend.append((series, name))

    def points(
        self, found: Iterable[tuple[float, float, str]], series: int, name: str, hollow: bool = False
    ) -> None:
        """A mark for each (x, y, what a pointer over it shows)."""
        kind = "hollow" if hollow else "mark"
        self._parts += [
            f'<circle class="{kind} series{series}" cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="3">'
            f"<title>{escape(text)}</title></circle>"
            for x, y, text in found
        ]
        self._legend.append((series, name))

    def __str__(self) -> str:
        bottom, right = self.height - _BOTTOM, self.width - _RIGHT
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'role="img" aria-label="{escape(self.title)}">',
            f"<title>{escape(self.title)}</title>",
        ]
        for value in self.y.ticks:
            up = self._y(value)
            parts.append(f'<path class="grid" d="M{_LEFT:g} {up:.1f}H{right:g}"/>')
            parts.append(_text(_LEFT - 8, up + 4, self.y.text(value), "end"))
        parts += [_text(self._x(value), bottom + 16, self.x.text(value), "middle") for value in self.x.ticks]
        parts.append(f'<path class="axis" d="M{_LEFT:g} {_TOP:g}V{bottom:g}H{right:g}"/>')
        middle = (_TOP + bottom) / 2
        parts.append(_text((_LEFT + right) / 2, self.height - 8, self.x.label, "middle"))
        parts.append(
            f'<text class="label" transform="translate(14 {middle:g}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y.label)}</text>"
        )
        parts += self._parts
        first = bottom - 18 * len(self._legend) if self.legend_below else _TOP + 12
        for place, (series, name) in enumerate(self._legend):
            up = first + 18 * place
            key = f'x="{right - 10:g}" y="{up - 9:g}" width="10" height="10"'
            parts.append(f'<rect class="key series{series}" {key}/>')
            parts.append(_text(right - 16, up, name, "end"))
        return "".join([*parts, "</svg>"])

    def _x(self, value: float) -> float:
        return _LEFT + (self.width - _LEFT - _RIGHT) * self.x.share(value)

    def _y(self, value: float) -> float:
        return _TOP + (self.height - _TOP - _BOTTOM) * (1 - self.y.share(value))


def bars(
    title: str,
    values: Sequence[tuple[str, float]],
    label: str,
    across: str,
    text: Callable[[float], str] = "{:g}".format,
) -> str:
    """A bar chart of named values, with each value above its bar."""
    whole = all(value == int(value) for _, value in values)
    most = max((value for _, value in values), default=0.0) or 1.0
    chart = Chart(
        title,
        Axis(0, max(len(values), 1), across, ()),
        Axis(0, most * 1.1, label, [tick for tick in ticks_of(most) if not whole or tick == int(tick)]),
    )
    bottom = chart.height - _BOTTOM
    for place, (name, value) in enumerate(values):
        left, right = chart._x(place + 0.12), chart._x(place + 0.88)
        up = chart._y(value)
        chart._parts.append(
            f'<rect class="bar series0" x="{left:.1f}" y="{up:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - up:.1f}"><title>{escape(f"{name}: {text(value)}")}</title></rect>'
        )
        middle = (left + right) / 2
        if value:
            chart._parts.append(_text(middle, up - 4, text(value), "middle"))
        chart._parts.append(_text(middle, bottom + 16, name, "middle"))
    return str(chart)


def ticks_of(most: float, count: int = 5) -> list[float]:
    """About `count` round values from 0 to `most`."""
    raw = most / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [step * number for number in range(int(most / step) + 1)]


def decades(low: float, high: float) -> list[float]:
    """The powers of ten from `low` to `high`."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
