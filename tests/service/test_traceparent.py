"""The W3C's traceparent: what is taken, and what is ignored (its examples, and its rules one by one)."""

from __future__ import annotations

import pytest

from service.traceparent import TraceParent, of_headers, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_valid_header_says_trace_span_and_sampling() -> None:
    found = parse(GOOD)
    assert found == TraceParent(TRACE, SPAN, sampled=True)
    assert str(found) == GOOD
    assert parse(GOOD[:-2] + "00") == TraceParent(TRACE, SPAN, sampled=False)


@pytest.mark.parametrize("flags", ["03", "ff"])
def test_flags_that_are_not_known_do_not_matter(flags: str) -> None:
    assert str(parse(GOOD[:-2] + flags)) == GOOD


@pytest.mark.parametrize("more", ["", "-what-the-future-will-be-like", "-"])
def test_a_later_version_is_read_as_version_00(more: str) -> None:
    assert str(parse(f"cc{GOOD[2:]}{more}")) == GOOD


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN[1:]}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"{GOOD}-more",
        f"{GOOD}\n",
        f"cc{GOOD[2:]}.more",
    ],
)
def test_others_are_ignored(value: str) -> None:
    assert parse(value) is None


def test_headers_have_one_of_them_or_none() -> None:
    header = (b"traceparent", GOOD.encode())
    assert of_headers([(b"host", b"here"), header]) == parse(GOOD)
    assert of_headers([(b"traceparent", f" {GOOD}\t".encode())]) == parse(GOOD)
    assert of_headers([header, header]) is None
    assert of_headers([(b"traceparent", b"\xff" * 55)]) is None
    assert of_headers([]) is None
