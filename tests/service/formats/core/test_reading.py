"""Lines, files and deduplication, shared by every format."""

from __future__ import annotations

import gzip
import io
import os
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ReadError
from service.formats import FORMATS, READERS, Entry, Format, Rejected, read_file, read_stream
from service.formats.core import base, reading
from service.formats.core.base import PROBLEMS

LINE = b"GemmTunableOp_Half_TN,tn_8_16_32_ld_32_32_8"


def _lines(data: bytes) -> list[bytes]:
    return list(base.split_lines(io.BytesIO(data)))


@given(st.binary(max_size=200).map(lambda raw: raw.replace(b"a", b"\n")))
def test_split_lines_agrees_with_bytes_split(data: bytes) -> None:
    expected = data.split(b"\n")
    assert _lines(data) == (expected if expected[-1] else expected[:-1])


@pytest.mark.parametrize("length", [base.MAX_LINE - 1, base.MAX_LINE, base.MAX_LINE + 1, 3 * base.CHUNK])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_long_lines_are_cut_and_the_next_line_is_whole(length: int, end: bytes) -> None:
    lines = _lines(b"short\n" + b"x" * length + b"\nlast" + end)
    assert [len(line) for line in lines] == [5, min(length, base.MAX_LINE + 1), 4]
    outcomes = list(base.decode_lines(lines))
    assert isinstance(outcomes[1], Rejected) == (length > base.MAX_LINE)
    assert outcomes[2] == (3, "last")


def test_decoding() -> None:
    outcomes = list(base.decode_lines([b"\xef\xbb\xbfa\r", b"\xef\xbb\xbfb", b"c\0d", b"e\xff", b""]))
    assert outcomes[:2] == [(1, "a"), (2, "\ufeffb")]
    assert outcomes[2] == Rejected(3, "NUL byte at byte 2: this is not text", "c\\x00d")
    assert outcomes[3] == Rejected(4, "byte 2 (0xff) is not UTF-8", "e\\xff")
    assert outcomes[4] == (5, "")


@given(st.one_of(st.text(max_size=400), st.binary(max_size=2000)))
def test_printable_text_is_short_and_safe(text: str | bytes) -> None:
    shown = base.printable(text)
    assert len(shown) <= base.MAX_TEXT
    assert shown.isprintable()


@pytest.mark.parametrize("end", [b"", b"\n", b"\nGemmTunableOp_Half_TN,tn_1_1_1\n"])
def test_a_huge_line_takes_bounded_memory(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "huge.csv"
    with path.open("wb") as stream:
        stream.write(LINE + b"\n")
        for _ in range(50):
            stream.write(b"G" * 1_000_000)
        stream.write(end)
    tracemalloc.start()
    try:
        imported = read_file(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000
    assert [r.line for r in imported.rejected] == [2]
    assert f"longer than {base.MAX_LINE} bytes" in imported.rejected[0].reason
    assert len(imported.rejected[0].text) == base.MAX_TEXT
    assert len(imported.problems) == (2 if end.strip() else 1)
    assert imported.lines == (3 if end.strip() else 2)


# ---- files -------------------------------------------------------------------------------------


def test_duplicates_are_counted_in_order_of_first_appearance(tmp_path: Path) -> None:
    path = tmp_path / "untuned.csv"
    other = b"GemmTunableOp_Half_TN,tn_1_2_3"
    same_problem = b"GemmTunableOp_Half_TN,tn_8_16_32"
    path.write_bytes(b"\n".join([LINE, other, b"", same_problem, b"bad", LINE, other]))
    imported = read_file(path)
    assert imported.format == "tunableop-untuned"
    assert imported.lines == 7
    assert [(p.count, p.keys) for p in imported.problems] == [
        (3, (LINE.decode(), same_problem.decode())),
        (2, (other.decode(),)),
    ]
    assert [(r.line, r.text) for r in imported.rejected] == [(5, "bad")]
    assert len({p.problem.id for p in imported.problems}) == 2


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_marks(tmp_path: Path, end: bytes, last: bool, bom: bytes) -> None:
    path = tmp_path / "untuned.csv"
    path.write_bytes(bom + LINE + end + end + b" " + LINE + (end if last else b""))
    imported = read_file(str(path))
    assert imported.lines == 3
    assert imported.rejected == []
    assert [(p.count, p.keys) for p in imported.problems] == [(2, (LINE.decode(),))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (gzip.compress(LINE, mtime=0), "compressed with gzip; decompress it first"),
        (b"PK\x03\x04", "compressed with zip"),
        (b"m,n\n1,2\n", "not recognised; name it if it is one of: tunableop .*; tunableop-untuned"),
        (b"\n\n", "holds blanks alone; check that"),
        (b"\xef\xbb\xbf \r\n", "holds blanks alone"),
        (LINE.decode().encode("utf-16"), "is text in UTF-16.*; save it as UTF-8"),
        (b"\xfe\xff" + LINE.decode().encode("utf-16-be"), "is text in UTF-16"),
        (LINE.decode().encode("utf-32"), "is text in UTF-32"),
        (LINE.decode().encode("utf-16-le"), "is no text: byte 2 is NUL"),
        (b"\0" * 1000, "is no text: byte 1 is NUL"),
    ],
)
def test_unreadable_content(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=message):
        read_file(path)


def test_unreadable_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReadError, match="is a directory; name a file"):
        read_file(tmp_path)
    with pytest.raises(ReadError, match="does not exist"):
        read_file(tmp_path / "missing")
    with pytest.raises(ReadError, match="NUL"):
        read_file("a\0b")
    with pytest.raises(ReadError, match="cannot be read: File name too long"):
        read_file("x" * 5000)
    with pytest.raises(ReadError, match="unknown format 'nope'; known: tunableop, tunableop-untuned"):
        read_file(tmp_path / "missing", "nope")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reading, "FileIO", refuse)
    with pytest.raises(ReadError, match="may not be read"):
        read_file(tmp_path / "secret")


def test_a_read_that_fails_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.FileIO):
        def readinto(self, _: object) -> int:
            raise OSError(5, "Input/output error")

    path = tmp_path / "file"
    path.write_bytes(LINE)
    monkeypatch.setattr(reading, "FileIO", Failing)
    with pytest.raises(ReadError, match="cannot be read: Input/output error"):
        read_file(path)


def test_a_pipe_is_read_as_a_stream() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as stream:
        stream.write(LINE + b"\n" + LINE)
    try:
        imported = read_file(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
    assert [p.count for p in imported.problems] == [2]


def test_a_named_format_is_not_detected(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"what\n\n")
    imported = read_file(path, "tunableop-untuned")
    assert (imported.problems, imported.lines) == ([], 2)
    assert [r.line for r in imported.rejected] == [1]


def test_counts_of_entries_are_summed() -> None:
    class Twice:
        declares = PROBLEMS
        name = description = example = "twice"

        def detect(self, head: bytes) -> bool:
            return False

        def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
            for outcome in FORMATS["tunableop-untuned"].read(lines):
                assert isinstance(outcome, Entry)
                yield Entry(outcome.line, outcome.problem, "k", count=5)

    twice: Format = Twice()
    imported = reading.collect(twice, io.BytesIO(LINE + b"\n" + LINE))
    assert [(p.count, p.keys) for p in imported.problems] == [(10, ("k",))]


@pytest.mark.parametrize("name", ["hipblaslt", "rocblas"])
def test_of_rows_with_one_key_the_last_is_the_claim_where_the_tool_takes_it(name: str) -> None:
    *head, first = READERS[name].example.rstrip("\n").split("\n")
    header = head[-1:] if name == "hipblaslt" else []
    index = {"hipblaslt": ("477479", "477480"), "rocblas": ("621294417", "621294418")}[name]
    assert index[0] in first
    rows = [first, first.replace(*index), first]
    lines = [*head, first, *(line for row in rows for line in (*header, row))]
    found = read_stream(io.BytesIO("\n".join(lines).encode()), "tuned", name)
    (claim,) = found.claims
    assert claim.line == len(lines)
    assert [item.count for item in found.problems] == [1]
    assert len(found.rejected) == 3
    assert f"line {len(lines)} has the same key and comes after it" in found.rejected[-1].reason
    assert [part.line for part in found.rejected] == sorted(part.line for part in found.rejected)
