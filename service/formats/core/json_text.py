"""A strict JSON reader, and a cursor that reads a long document item by item.

Besides malformed JSON it refuses duplicate names in an object, NaN and Infinity, integers beyond 64 bits,
floats beyond a double's range, and nesting beyond Python's recursion limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from service.formats.core.base import Rejected, printable

#: An item of a document that is still incomplete after this many characters is refused.
MAX_ITEM = 2**20
_BLANK = " \t\r\n"


class BadJsonError(ValueError):
    """The text is not JSON, or is refused here; the message is the reason."""


class BrokenError(BadJsonError):
    """The rest of the document cannot be read. `line` is the line of the fault."""

    def __init__(self, line: int, reason: str, text: str = "") -> None:
        super().__init__(reason)
        self.line, self.text = line, text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise BadJsonError(f"the name {printable(name, 40)!r} stands twice in one object")
            seen.add(name)
    return found


def _constant(text: str) -> Any:
    raise BadJsonError(f"{text} is no JSON number")


def _integer(text: str) -> int:
    if len(text) > 18 and (len(text) > 20 or not -(2**63) <= int(text) < 2**64):
        raise BadJsonError(f"number {printable(text, 40)} does not fit 64 bits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if abs(number) == float("inf"):
        raise BadJsonError(f"number {printable(text, 40)} is beyond every double")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float
)
#: Finds the end of a value that the strict decoder refuses.
_LENIENT = json.JSONDecoder(parse_int=lambda _: 0, parse_float=lambda _: 0.0)


def decode(text: str) -> Any:
    """The value of a whole text. Raises BadJsonError."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadJsonError(f"no JSON: {error.msg} (character {error.pos + 1})") from None
    except RecursionError:
        raise BadJsonError("nested too deeply") from None


def kind_of(head: bytes) -> str | None:
    """The kind of a file that begins with `head` (line, journal or document); None if it is none of
    gemmtune's JSON."""
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").lstrip(" \t\r\n")
    second = text[1:].lstrip(" \t\r\n")[:1]
    if text[:1] == "[":
        return "document" if second in ("{", "]") else None
    if text[:1] != "{" or second not in ('"', "}"):
        return None
    line = text.partition("\n")[0]
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return "document"
    if "session" in found and "type" in found:
        return "journal"
    if "model_type" in found or "architectures" in found:  # a model's config.json
        return None
    return "document" if "problems" in found or "rows" in found else "line"


class Document:
    """A cursor over the decoded lines of one JSON document; it holds an item, not the whole document."""

    def __init__(self, lines: Iterator[tuple[int, str] | Rejected], line: int = 1) -> None:
        self._lines = lines
        self._text, self._at, self.line = "", 0, line
        self._fault: Rejected | None = None

    def peek(self) -> str:
        """The next character that is not blank, "" at the end."""
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                if character not in _BLANK:
                    return character
                self._move(self._at + 1)
            if not self._fill():
                return ""

    def take(self, *known: str) -> str:
        """The next character, which must be one of `known`. Raises BrokenError."""
        character = self.peek()
        if character not in known or not character:
            wanted = " or ".join(known)
            found = f"found {character!r}" if character else "the document ends"
            raise BrokenError(self.line, f"expected {wanted}, but {found}; nothing after it was read")
        self._move(self._at + 1)
        return character

    def value(self) -> Any:
        """The next value. Raises BadJsonError for a value that is refused, after which the next one can be
        read, and BrokenError for one that is malformed, nested too deeply or too long."""
        self.peek()
        while True:
            try:
                found, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at <= MAX_ITEM and self._fill():
                    continue
                raise self._broken(error) from None
            except RecursionError:
                raise BrokenError(self.line, "nested too deeply; nothing after it was read") from None
            except BadJsonError:
                self._skip()
                raise
            self._move(end)
            return found

    def _skip(self) -> None:
        while True:
            try:
                self._move(_LENIENT.raw_decode(self._text, self._at)[1])
                return
            except json.JSONDecodeError as error:
                if len(self._text) - self._at <= MAX_ITEM and self._fill():
                    continue
                raise self._broken(error) from None
            except RecursionError:
                raise BrokenError(self.line, "nested too deeply; nothing after it was read") from None

    def _broken(self, error: json.JSONDecodeError) -> BrokenError:
        end = len(self._text.rstrip())
        line = self.line + self._text.count("\n", self._at, min(error.pos, end))
        shown = printable(self._text[self._at : self._at + 200])
        if len(self._text) - self._at > MAX_ITEM:
            reason = f"an item of over {MAX_ITEM} characters, or one that does not end"
        elif error.pos >= end:
            reason = "the document is cut short"
        else:
            reason = f"no JSON: {error.msg}"
        return BrokenError(line, f"{reason}; nothing after it was read", shown)

    def _move(self, to: int) -> None:
        self.line += self._text.count("\n", self._at, to)
        self._at = to

    def _fill(self) -> bool:
        """Reads lines until the held text has about doubled, so that decoding an item again after each call
        takes linear time in all."""
        wanted = max(len(self._text) - self._at, 2**16)
        pieces: list[str] = []
        while wanted > 0 and self._fault is None:
            decoded = next(self._lines, None)
            if decoded is None:
                break
            if isinstance(decoded, Rejected):
                self._fault = decoded
                break
            pieces.append(decoded[1] + "\n")
            wanted -= len(decoded[1]) + 1
        if pieces:
            self._text, self._at = "".join((self._text[self._at :], *pieces)), 0
        elif self._fault is not None:  # all lines before it were read
            bad = self._fault
            raise BrokenError(bad.line, f"{bad.reason}; nothing after it was read", bad.text)
        return bool(pieces)
