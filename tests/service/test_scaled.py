"""8-bit operands with a residual, an activation and an int8 output: the words of commands and of HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from backends.cache import BinaryCache
from backends.problem import from_linear
from service.demo import running
from tests.service.test_commands import Home

ONE = (
    "--m", "5", "--n", "48", "--k", "256", "--dtype", "int8", "--dtype-c", "bf16", "--dtype-d", "int8",
    "--trans-b", "--beta", "1", "--epilogue", "relu", "--scale-a", "row", "--scale-b", "row",
    "--scale-d", "tensor",
)  # fmt: skip
WIRE: dict[str, Any] = {
    "m": 5, "n": 48, "k": 256, "dtype": "int8", "dtype_c": "bf16", "dtype_d": "int8", "trans_b": True,
    "beta": 1.0, "epilogue": "relu", "scaling": {"a": "row", "b": "row", "d": "tensor"},
}  # fmt: skip
PROBLEM = from_linear(
    5, 48, 256, "int8", dtype_c="bf16", dtype_d="int8", beta=1.0, activation="relu", scale_a="outer",
    scale_b="outer", scale_d="tensor",
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> Home:
    return Home(tmp_path_factory.mktemp("scaled"), cache.root.parent)


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMTUNE_CACHE_DIR", home.environment["GEMMTUNE_CACHE_DIR"])
        with running(home.folder, "cpu") as address:
            yield address


def test_our_kernels_have_candidates(home: Home) -> None:
    found = home.json("kernels", "space", *ONE, "--arch", "sm_90")
    listed = {row["family"] for row in found["families"] if row["listed"]}
    assert "bytes-ring" in listed


def test_it_is_one_problem_here_and_over_http(home: Home, server: str) -> None:
    here = home.json("best", *ONE, "--device", "cpu")
    there = home.json("best", *ONE, "--device", "cpu", "--server", server)
    asked = {**WIRE, "scaling": json.dumps(WIRE["scaling"]), "device": "cpu"}
    answered = httpx.get(f"{server}/v1/solutions/best", params=asked).json()
    assert [one["problem_id"] for one in (here, there, answered)] == [PROBLEM.id] * 3


def test_it_is_accepted_over_http(server: str) -> None:
    """Where the device has no default for it, the tuning says so."""
    posted = httpx.post(f"{server}/v1/tunings", json={"problems": [WIRE], "device": "cpu"})
    assert (posted.status_code, posted.json()["total"]) == (202, 1)
    wrong = {**WIRE, "scaling": {**WIRE["scaling"], "d": "row"}}
    refused = httpx.post(f"{server}/v1/tunings", json={"problems": [wrong], "device": "cpu"})
    assert refused.status_code == 422
    assert "scale_d 'outer' is unknown; known: none, tensor" in refused.text
