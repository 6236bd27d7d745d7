"""Cursors: opaque, of one list, and never trusted."""

from __future__ import annotations

import base64
import json

import httpx
import pytest

from service.pages import make_cursor
from tests.service.http.shapes import fault_of

LISTS = {
    "tunings": "/v1/tunings", "problems": "/v1/problems", "environments": "/v1/environments",
    "workers": "/v1/workers", "fleet-jobs": "/v1/jobs",
}  # fmt: skip
NEWEST_FIRST = ("tunings", "workers", "fleet-jobs")


def packed(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


BAD = [
    "", "x", "abc", "====", "%00", "\ud7ff", "a b", "null", "e30", packed(None), packed([]), packed({}),
    packed(1), packed(["problems"]), packed(["problems", "1"]), packed(["problems", -1]),
    packed(["problems", 1.5]), packed(["problems", True]), packed(["problems", 2**63]),
    packed(["problems", 10**40]), packed(["other", 1]), packed([["problems"], 1]), packed(["problems", 1, 2]),
    packed("[" * 1000), "A" * 201, "A" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("cursor", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("url", LISTS.values(), ids=LISTS)
def test_what_is_no_cursor_is_422(filled: httpx.Client, url: str, cursor: str) -> None:
    fault = fault_of(filled.get(url, params={"cursor": cursor}), 422)
    assert fault["errors"][0]["parameter"] == "cursor"


@pytest.mark.parametrize("kind", LISTS)
def test_a_cursor_is_of_one_list(filled: httpx.Client, kind: str) -> None:
    for name, url in LISTS.items():
        response = filled.get(url, params={"cursor": make_cursor(kind, 5)})
        assert response.status_code == (200 if name == kind else 422)


@pytest.mark.parametrize(("kind", "url"), LISTS.items(), ids=LISTS)
def test_beyond_the_end_is_an_empty_page(filled: httpx.Client, kind: str, url: str) -> None:
    number = 0 if kind in NEWEST_FIRST else 2**63 - 1
    page = filled.get(url, params={"cursor": make_cursor(kind, number)}).json()
    assert page == {"items": [], "next_cursor": None}


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "1.5", "9" * 30])
def test_limits_are_bounded(filled: httpx.Client, limit: str) -> None:
    fault = fault_of(filled.get("/v1/problems", params={"limit": limit}), 422)
    assert fault["errors"][0]["parameter"] == "limit"
