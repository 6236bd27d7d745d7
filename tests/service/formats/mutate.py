"""Files of every input format with mistakes planted in their lines, and what a reader may answer to them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import islice

from backends.errors import ReadError
from service.formats import READERS, Entry, Found, Header, ImportedSession, Rejected
from service.formats.core.base import MAX_REASON, MAX_TEXT

#: What mistakes are made of, besides single bytes and what other lines of the same file hold.
PIECES = (
    b"\0", b'"', b"'", b"{", b"}", b"[", b"]", b"(", b",", b";", b":", b"=", b"_", b"-", b"+", b".", b" ",
    b"\t", b"\r", b"\n", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"NaN", b"inf", b"null", b"None", b"true",
    b"0", b"00", b"-1", b"1e3", b"1e999", b"9" * 30, b"18446744073709551616", b"2147483648", b"--", b"_ld_",
    b"=cmd|' /C calc'!A0",
)  # fmt: skip
_NUMBER = re.compile(rb"[0-9]+")
#: Formats whose problems are worked out of what the file says: their sizes stand in no line.
DERIVED = ("model-config", "fused-moe", "vllm-log")


class WrongAnswer(AssertionError):
    """A reader said what the file does not."""


def mutants(name: str, seed: int = 0) -> Iterator[bytes]:
    """Endless: the format's example with one to three mistakes each, the same for equal arguments."""
    rng = random.Random(f"{name} {seed}")
    good = READERS[name].example.encode().rstrip(b"\n")
    while True:
        text = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            _mistake(rng, text)
        yield bytes(text)


def _mistake(rng: random.Random, text: bytearray) -> None:
    at = rng.randrange(len(text) + 1)
    kind = rng.randrange(6)
    if kind == 0:  # cut
        del text[at : at + rng.randint(1, 40)]
    elif kind == 1:  # said twice
        piece = bytes(text[at : at + rng.randint(1, 40)])
        text[at:at] = piece
    elif kind == 2:  # another number
        found = list(_NUMBER.finditer(text))
        if found:
            match = rng.choice(found)
            choices = (b"", b"0", b"-1", b"1.5", b"9" * 20, str(rng.randrange(1, 2**34)).encode())
            text[match.start() : match.end()] = rng.choice(choices)
    elif kind == 3:  # another byte
        text[at : at + 1] = bytes([rng.randrange(256)])
    elif kind == 4 and text:  # two fields change places
        other = rng.randrange(len(text))
        size = rng.randint(1, 12)
        first, second = bytes(text[at : at + size]), bytes(text[other : other + size])
        text[at : at + size], text[other : other + size] = second, first
    else:
        text[at : at + rng.randint(0, 4)] = rng.choice(PIECES)


def answers(name: str, raw: bytes) -> list[Found]:
    """What the reader says of a file; nothing where it cannot be read at all. Raises WrongAnswer for what a
    reader may not say, and whatever a reader may not raise."""
    reader = READERS[name]
    try:
        found = list(reader.read(raw.split(b"\n")))
    except ReadError as error:
        if not str(error):
            raise WrongAnswer("a ReadError without a word") from error
        return []
    for part in found:
        check(name, raw, part)
    return found


def check(name: str, raw: bytes, part: Found) -> None:
    """One answer. A problem's m, n and k must be numbers of the file: a reader that cut one short, joined two
    or wrapped one around has invented it."""
    if isinstance(part, Rejected):
        if not part.reason or not (part.reason + part.text).isprintable():
            raise WrongAnswer(f"a reason or a text that cannot be shown: {part}")
        if len(part.reason) > MAX_REASON or len(part.text) > MAX_TEXT or part.line < 1:
            raise WrongAnswer(f"over its limits: {part}")
    elif isinstance(part, Entry):
        p = part.problem
        told = {int(text) for text in _NUMBER.findall(raw) if len(text) < 20}
        if name not in DERIVED and not {p.m, p.n, p.k} <= told:
            raise WrongAnswer(f"{(p.m, p.n, p.k)} are not all among the file's numbers: {raw!r}")
        if part.count < 1 or part.line < 1:
            raise WrongAnswer(f"no count or line: {part}")
    elif not isinstance(part, Header | ImportedSession):
        raise WrongAnswer(f"no answer of a reader: {part!r}")


def fuzz(name: str, count: int, seed: int = 0) -> dict[str, int]:
    """Reads `count` mutants: how many were accepted somewhere, rejected only, or no file at all."""
    seen = {"accepted": 0, "rejected": 0, "unreadable": 0}
    for raw in islice(mutants(name, seed), count):
        found = answers(name, raw)
        accepted = any(isinstance(part, Entry | ImportedSession) for part in found)
        seen["accepted" if accepted else "rejected" if found else "unreadable"] += 1
    return seen
