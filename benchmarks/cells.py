"""Markdown tables, and what a figure looks like in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def us(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def times(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}x"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def interval(ends: Sequence[float | None] | None) -> str:
    return "-".join("open" if end is None else f"{end:.2f}" for end in ends or (None, None))


def counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
