"""Reads the fields of a model's config.json with their types checked. Errors say what to do.

transformers fills missing fields from the defaults of the model's class, and reads null as "not set". A
default is used here only where that class's own was looked up; a missing field without one is refused, never
guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.errors import ReadError
from backends.problem_rules import MAX_SIZE
from service.formats.core.base import printable

#: The advice for a model that is not supported, which always works.
INSTEAD = "send its layers' shapes as CSV or JSON instead"


class Fields:
    """The fields of one object of a config.json; `where` is its prefix in messages ("" for the document)."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values, self._where = values, where

    def name(self, field: str) -> str:
        """The field as messages call it: text_config.hidden_size."""
        return f"{self._where}{field}"

    def get(self, field: str) -> object:
        """The value as it stands; None where it is null or missing."""
        return self._values.get(field)

    def with_defaults(self, defaults: Mapping[str, int]) -> Fields:
        """The same object with missing fields taken from `defaults`."""
        return Fields({**defaults, **self._values}, self._where)

    def whole(self, field: str, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """A whole number in [least, most]; `default` for null or missing. Raises ReadError."""
        value = self._values.get(field)
        if value is None:
            if default is None:
                raise self._missing(field)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ReadError(
                f"{self.name(field)} must be a whole number from {least} to {most}, not {shown(value)}"
            )
        return value

    def whole_or_null(self, field: str) -> int | None:
        """A whole number from 1; None for null. Raises ReadError, also for a missing field."""
        if field not in self._values:
            raise self._missing(field)
        return None if self._values[field] is None else self.whole(field)

    def wholes(self, field: str) -> list[int]:
        """A list of whole numbers from 0; empty for null or missing. Raises ReadError."""
        value = self._values.get(field)
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
            raise ReadError(f"{self.name(field)} must be a list of whole numbers, not {shown(value)}")
        return value

    def texts(self, field: str) -> list[str] | None:
        """A list of texts; None for null or missing. Raises ReadError."""
        value = self._values.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ReadError(f"{self.name(field)} must be a list of texts, not {shown(value)}")
        return value

    def text(self, field: str) -> str | None:
        """A text; None for null or missing. Raises ReadError."""
        value = self._values.get(field)
        if value is None or isinstance(value, str):
            return value
        raise ReadError(f"{self.name(field)} must be a text, not {shown(value)}")

    def inner(self, field: str) -> Fields | None:
        """An object's fields; None for null or missing. Raises ReadError."""
        value = self._values.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ReadError(f"{self.name(field)} must be an object, not {shown(value)}")
        return Fields(value, f"{self.name(field)}.")

    def names(self) -> list[str]:
        """The fields that are set to anything but null."""
        return [field for field, value in self._values.items() if value is not None]

    def flag(self, field: str, default: bool) -> bool:
        """true or false; `default` for null or missing. Raises ReadError."""
        value = self._values.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ReadError(f"{self.name(field)} must be true or false, not {shown(value)}")
        return value

    def must_be(self, expected: bool, *fields: str) -> None:
        """Raises ReadError if one of `fields` is set to another value: it would change the layers in a way
        on which vLLM and transformers disagree, or that is not supported here."""
        for field in fields:
            value = self._values.get(field)
            if value is not None and value is not expected:
                raise ReadError(
                    f"{self.name(field)} {shown(value)} changes this model's layers in a way that is not "
                    f"supported; {INSTEAD}"
                )

    def _missing(self, field: str) -> ReadError:
        return ReadError(f"{self.name(field)} is missing; write it into the config.json")


def shown(value: object) -> str:
    """A value as a message may show it: short, safe to print."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return printable(text, 60) + ("..." if len(text) > 60 else "")
