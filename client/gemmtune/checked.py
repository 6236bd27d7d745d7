"""Reads values out of a manifest: each has the type that it should have, or a BundleError names its place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gemmtune.errors import BundleError

_NAMES = {dict: "an object", list: "a list", str: "a text", int: "a whole number", bool: "true or false"}
_DAMAGED = "; the file is damaged or was not written by gemmtune: export it again"


class Checked:
    """An object of the manifest, and its place in it ("rows[3].launches[0]") for messages."""

    __slots__ = ("_place", "_values")

    def __init__(self, values: Any, place: str) -> None:
        if not isinstance(values, dict):
            raise BundleError(f"the manifest's {place or 'top'} must be an object{_DAMAGED}")
        self._values, self._place = values, place

    def fail(self, name: str, why: str) -> BundleError:
        """The error of a value that is wrong."""
        return BundleError(f"the manifest's {self.place(name)} {why}{_DAMAGED}")

    def place(self, name: str) -> str:
        """The place of a value, for messages."""
        return f"{self._place}.{name}" if self._place else name

    def raw(self, name: str) -> Any:
        """A value of any type."""
        try:
            return self._values[name]
        except KeyError:
            raise BundleError(f"the manifest lacks {self.place(name)}{_DAMAGED}") from None

    def get(self, name: str) -> Any:
        """A value of any type, or None where there is none."""
        return self._values.get(name)

    def _of(self, name: str, kind: type) -> Any:
        value = self.raw(name)
        if type(value) is not kind:
            raise self.fail(name, f"must be {_NAMES[kind]}, not {repr(value)[:60]}")
        return value

    def text(self, name: str, most: int = 4096) -> str:
        """A text of 1 to `most` characters."""
        value: str = self._of(name, str)
        if not 1 <= len(value) <= most:
            raise self.fail(name, f"must have 1 to {most} characters, not {len(value)}")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text, or None for null."""
        return None if self.raw(name) is None else self.text(name)

    def whole(self, name: str, least: int, most: int) -> int:
        """A whole number in [least, most]."""
        value: int = self._of(name, int)
        if not least <= value <= most:
            raise self.fail(name, f"must be between {least} and {most}, not {str(value)[:40]}")
        return value

    def number(self, name: str) -> float:
        """A number."""
        value = self.raw(name)
        if type(value) not in (int, float):
            raise self.fail(name, f"must be a number, not {repr(value)[:60]}")
        try:
            return float(value)
        except OverflowError:
            raise self.fail(name, "is larger than any number") from None

    def numbers(self, name: str, count: int, *, open_ends: bool = False) -> tuple[float, ...]:
        """`count` numbers. With `open_ends` the first and the last may be null: minus and plus infinity."""
        values = self.items(name, count)
        if len(values) != count:
            raise self.fail(name, f"must have {count} values, not {len(values)}")
        values = list(values)
        for place, end in ((0, -math.inf), (-1, math.inf)) if open_ends else ():
            values[place] = end if values[place] is None else values[place]
        numbers = {str(place): value for place, value in enumerate(values)}
        return tuple(Checked(numbers, self.place(name)).number(place) for place in numbers)

    def flag(self, name: str) -> bool:
        """true or false."""
        value: bool = self._of(name, bool)
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object, as it is."""
        value: Mapping[str, Any] = self._of(name, dict)
        return value

    def object(self, name: str) -> Checked:
        """An object, to be checked."""
        return Checked(self.mapping(name), self.place(name))

    def items(self, name: str, most: int) -> list[Any]:
        """A list of at most `most` values."""
        value: list[Any] = self._of(name, list)
        if len(value) > most:
            raise self.fail(name, f"must have at most {most} values, not {len(value)}")
        return value

    def objects(self, name: str, most: int) -> list[Checked]:
        """A list of at most `most` objects, to be checked."""
        return [
            Checked(value, f"{self.place(name)}[{number}]")
            for number, value in enumerate(self.items(name, most))
        ]

    def wholes(self, name: str, count: int | None, least: int, most: int) -> tuple[int, ...]:
        """`count` (None: 1 to 5) whole numbers in [least, most]."""
        values = self.items(name, 5)
        if len(values) != count if count is not None else not values:
            raise self.fail(name, f"must have {count or 'some'} values, not {len(values)}")
        if not all(type(value) is int and least <= value <= most for value in values):
            raise self.fail(name, f"must be whole numbers between {least} and {most}, not {values}"[:200])
        return tuple(values)

    def digest(self, name: str) -> str:
        """A SHA-256 in hex digits."""
        value = self.text(name)
        if not is_digest(value):
            raise self.fail(name, f"must be a SHA-256 in hex digits, not {value[:80]!r}")
        return value

    def one_of(self, name: str, known: tuple[str, ...]) -> str:
        """One of the known texts."""
        value = self.text(name)
        if value not in known:
            raise self.fail(name, f"{value[:80]!r} is unknown; known: {', '.join(known)}")
        return value


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in lower-case hex digits."""
    return len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)
