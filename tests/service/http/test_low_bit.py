"""Requests about quantised weights and grouped products that are wrong: each is refused by the field at
fault, with its value and what to do."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from tests.service.http.shapes import fault_of

SCALING = {"b": "group_64", "dtype": "bf16", "zero_b": "eight"}
WEIGHTS: dict[str, Any] = {
    "m": 4, "n": 64, "k": 256, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True, "scaling": SCALING,
}  # fmt: skip
GROUPED: dict[str, Any] = {"m": 8, "n": 64, "k": 256, "dtype": "bf16", "trans_b": True, "groups": 4}

#: What is wrong -> the problem, the field that is named, and some of the message.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "groups that do not divide k": ({**WEIGHTS, "k": 250}, "k", "group of 64: pad the weights and rows to k"),
    "odd k": ({**WEIGHTS, "k": 255, "scaling": {"b": "row"}}, "k", "k 255 is odd: two elements of uint4"),
    "an unknown zero point": (
        {**WEIGHTS, "scaling": {**SCALING, "zero_b": "nine"}},
        "scaling",
        "zero_b 'nine' is unknown; known: none, eight, uint4, float, shift",
    ),
    "NVFP4": (
        {**WEIGHTS, "dtype_b": "fp4_e2m1", "scaling": {"b": "group_16", "dtype": "fp8_e4m3"}},
        "scaling",
        "NVFP4, of e4m3 scales of groups of 16 and an fp32 scale of the matrix, is not supported",
    ),
    "8-bit activations": (
        {**WEIGHTS, "dtype": "int8", "prepacked": True},
        "dtype_b",
        "a weight matrix of uint4 is multiplied by rows of bf16 or fp16, not of int8",
    ),
    "8-bit operands": (
        {"m": 4, "n": 64, "k": 256, "dtype": "int8", "prepacked": True},
        "prepacked",
        "is of quantised weights, not of int8 x int8: leave it out",
    ),
    "prepacked groups": ({**WEIGHTS, "groups": 4, "prepacked": True}, "prepacked", "leave it out"),
    "counts that do not add up": ({**GROUPED, "routing": [1, 2, 2, 2]}, "routing", "7 rows in all, and the"),
    "too few counts": ({**GROUPED, "routing": [8]}, "routing", "1 counts for 4 groups"),
    "no counts": ({**GROUPED, "routing": []}, "routing", "0 counts for 4 groups"),
    "a negative count": ({**GROUPED, "routing": [9, -1, 0, 0]}, "routing", "routing[1] must be between 0"),
    "half a row": ({**GROUPED, "routing": [2.5, 2, 2, 2]}, "routing", "routing[0] must be an integer"),
    "a count of 5000 digits": ({**GROUPED, "routing": "9" * 5000}, "routing", "is unknown; known: uniform"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_problem_is_refused_by_its_field(client: httpx.Client, case: str) -> None:
    problem, field, words = REFUSED[case]
    response = client.post("/v1/tunings", json={"problems": [problem], "device": "cpu"})
    (fault,) = fault_of(response, 422)["errors"]
    assert fault["pointer"] == f"/problems/0/{field}"
    assert words in fault["detail"]


def test_a_routing_of_many_digits_is_refused_in_a_query_too(client: httpx.Client) -> None:
    response = client.get("/v1/solutions/best", params={**GROUPED, "routing": "9" * 5000, "device": "cpu"})
    (fault,) = fault_of(response, 422)["errors"]
    assert "is unknown; known: uniform, skewed, or a list of counts" in fault["detail"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_has_no_nan(client: httpx.Client, number: float) -> None:
    body = json.dumps({"problems": [{**GROUPED, "routing": [number, 4, 2, 2]}], "device": "cpu"})
    response = client.post("/v1/tunings", content=body, headers={"Content-Type": "application/json"})
    assert "; JSON has no NaN and no Infinity" in fault_of(response, 400)["detail"]


def test_a_flag_that_is_null_is_not_given(client: httpx.Client) -> None:
    ids = set()
    for form in (WEIGHTS, {**WEIGHTS, "prepacked": None}, {**WEIGHTS, "prepacked": False}):
        answered = client.post("/v1/solutions/best", json={"problems": [form], "device": "cpu"}).json()
        ids.add(answered["results"][0]["problem_id"])
    assert len(ids) == 1
