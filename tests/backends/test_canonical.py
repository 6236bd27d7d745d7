"""The text and the hashes that every identity stands on."""

from __future__ import annotations

import hashlib
import math
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.canonical import canonical_json, short_hash, slug

VALUES = st.dictionaries(
    st.text(max_size=4),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(st.integers(), max_size=3) | st.dictionaries(st.text(max_size=2), st.text()),
    max_size=5,
)  # fmt: skip


def test_the_text_is_fixed() -> None:
    value = {"b": [1, 2.5, None], "a": {"y": True, "x": "é"}}
    assert canonical_json(value) == '{"a":{"x":"\\u00e9","y":true},"b":[1,2.5,null]}'
    assert short_hash(value) == "939075563d1f"
    assert canonical_json((1, 2)) == canonical_json([1, 2])


@given(VALUES, st.integers())
def test_the_order_of_keys_does_not_count(value: dict[str, Any], seed: int) -> None:
    items = list(value.items())
    random.Random(seed).shuffle(items)
    assert canonical_json(dict(items)) == canonical_json(value)
    assert short_hash(dict(items)) == short_hash(value)


def test_kinds_of_values_are_told_apart() -> None:
    values: list[Any] = [1, 1.0, True, "1", [1], None, "None", "", 0, False, 0.0, -0.0, {}, []]
    assert len({canonical_json(value) for value in values}) == len(values)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": [number]})


@given(VALUES, st.integers(1, 64))
def test_a_hash_is_the_start_of_a_sha256(value: dict[str, Any], digits: int) -> None:
    whole = hashlib.sha256(canonical_json(value).encode()).hexdigest()
    assert short_hash(value, digits) == whole[:digits]
    assert short_hash(value) == whole[:12]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA H200", "NVIDIA-H200"),
        ("Intel(R) Xeon(R) @ 2.0GHz", "Intel-R-Xeon-R-2.0GHz"),
        ("--a__b--", "a__b"),
        ("a:b/c", "a-b-c"),
        ("éè", ""),
    ],
)
def test_slugs_are_readable(text: str, expected: str) -> None:
    assert slug(text) == expected


@given(st.text())
def test_slugs_are_plain_and_stay_themselves(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]*", slug(text))
    assert "--" not in slug(text)
    assert slug(text).strip("-") == slug(text)
    assert slug(slug(text)) == slug(text)
