"""The options of a search strategy: a table that checks values, has the defaults, and documents itself.

A strategy declares a frozen dataclass of option() fields. The command line, the HTTP interface, stored
sessions and docs/strategies.md read the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from backends.errors import InvalidProblem

#: What an option may be; as JSON has it.
OptionValue = int | float | bool | str

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Option:
    """A row of the table. `least` and `most` limit numbers; `among` lists the values of a text."""

    name: str
    default: OptionValue
    about: str
    least: float | None = None
    most: float | None = None
    among: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What values are called: an integer, a number, true or false, or the texts."""
        if self.among:
            return " or ".join(self.among)
        return {bool: "true or false", int: "an integer", float: "a number"}.get(type(self.default), "a text")

    @property
    def limits(self) -> str:
        """The limits in words; "" without any."""
        parts = [
            f"{word} {limit:g}"
            for word, limit in (("from", self.least), ("to", self.most))
            if limit is not None
        ]
        return " ".join(parts)

    def fault(self, value: object) -> str | None:
        """What is wrong with a value, or None. An integer will do for a number, a bool for neither."""
        kinds = (int, float) if isinstance(self.default, float) else (type(self.default),)
        wrong = not isinstance(value, kinds) or isinstance(value, bool) != isinstance(self.default, bool)
        if not wrong and isinstance(value, int | float):
            # Written so that NaN is out of range.
            wrong = not (self.least is None or value >= self.least)
            wrong = wrong or not (self.most is None or value <= self.most)
        if not wrong and self.among:
            wrong = value not in self.among
        said = f"{self.kind} {self.limits}".rstrip()
        return f"{self.name} must be {said}, not {value!r}" if wrong else None

    def parsed(self, text: str) -> OptionValue:
        """The value that a text stands for; the text itself if it stands for none, which fault() tells."""
        try:
            if isinstance(self.default, bool):
                return _BOOLEANS[text.lower()]
            return text if isinstance(self.default, str) else type(self.default)(text)
        except (KeyError, ValueError):
            return text


def option(
    default: Any,
    about: str,
    least: float | None = None,
    most: float | None = None,
    among: tuple[str, ...] = (),
) -> Any:
    """A field of StrategyOptions; see Option."""
    table = {"about": about, "least": least, "most": most, "among": among}
    return field(default=default, metadata=table)


@dataclass(frozen=True)
class StrategyOptions:
    """Base of a strategy's options, and the options of a strategy that has none. Raises InvalidProblem for
    values that are out of range."""

    def __post_init__(self) -> None:
        for row in self.table():
            fault = row.fault(getattr(self, row.name))
            if fault is not None:
                raise InvalidProblem(fault, "strategy_options")

    @classmethod
    def table(cls) -> tuple[Option, ...]:
        """Every option in the order of declaration."""
        rows: Any = fields(cls)
        return tuple(Option(one.name, one.default, **one.metadata) for one in rows)

    @classmethod
    def of(cls, given: Mapping[str, OptionValue]) -> Self:
        """The options with these values and the defaults of the others. Raises InvalidProblem, which lists
        the names, for an unknown one."""
        known = [row.name for row in cls.table()]
        for name in given:
            if name not in known:
                listed = f"known: {', '.join(known)}" if known else "the strategy has none"
                raise InvalidProblem(f"option {name!r} is unknown; {listed}", "strategy_options")
        return cls(**given)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> dict[str, OptionValue]:
        """The values of texts such as "near_turns=3". Raises InvalidProblem."""
        rows, given = {row.name: row for row in cls.table()}, dict[str, OptionValue]()
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals:
                raise InvalidProblem(f"an option is name=value, not {text!r}", "strategy_options")
            given[name] = rows[name].parsed(value) if name in rows else value
        cls.of(given)
        return given


def table_text(rows: Sequence[Option]) -> str:
    """The table in Markdown."""
    lines = ["| option | default | values | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | `{_plain(row.default)}` | {f'{row.kind} {row.limits}'.rstrip()} | {row.about} |"
        for row in rows
    ]
    return "\n".join(lines)


def _plain(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
