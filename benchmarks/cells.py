"""Formats Markdown tables, their figures, and the sources of the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


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


def source(document: Mapping[str, Any]) -> str:
    """Where and how a GPU's figures were measured."""
    several = document.get("environments") or [document["environment"]]
    env = several[0]
    many = f"{len(several)} x " if len(several) > 1 else ""
    libraries = ", ".join(
        f"{name} {env['libraries'][name]}" for name in ("torch", "cublaslt") if name in env["libraries"]
    )
    return (
        f"`{document['command']}`, {document['measured_at'][:10]}, commit {document['commit'][:12]}, {many}{env['product']} "
        f"({env['arch']}, {env['units']} SMs), driver {env['driver']}, {env['runtime']}; {libraries}"
    )
