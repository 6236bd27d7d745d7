"""Grouped products end to end on the CPU: tuned by the command, known here, tuned and asked for over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.cache import BinaryCache
from service.demo import running
from tests.service.test_commands import Home

SIZES = ("--m", "12", "--n", "64", "--k", "96", "--dtype", "bf16", "--trans-b", "--groups", "4")
ONE = (*SIZES, "--routing", "skewed")
WIRE: dict[str, Any] = {
    "m": 12, "n": 64, "k": 96, "dtype": "bf16", "trans_b": True, "groups": 4, "routing": "skewed",
}  # fmt: skip
FAMILIES = ("torch-grouped", "numpy-grouped")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> Home:
    found = Home(tmp_path_factory.mktemp("grouped"), cache.root.parent)
    results = found.json("tune", *ONE, "--device", "cpu", "--seconds", "0.2")["results"]
    assert [one["wire"]["routing"] for one in results] == ["skewed"]
    return found


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMTUNE_CACHE_DIR", home.environment["GEMMTUNE_CACHE_DIR"])
        with running(home.folder, "cpu") as address:
            yield address


def test_it_is_known_here_and_over_http(home: Home, server: str) -> None:
    here = home.json("best", *ONE, "--device", "cpu")
    assert here["match"] == "exact"
    assert here["solution"]["family"] in FAMILIES
    there = home.json("best", *ONE, "--device", "cpu", "--server", server)
    assert there["solution"]["id"] == here["solution"]["id"]
    answered = httpx.get(f"{server}/v1/solutions/best", params={**WIRE, "device": "cpu"}).json()
    assert answered["solution"]["id"] == here["solution"]["id"]
    for other in ({"routing": "uniform"}, {"routing": "3,0,4,5"}, {"groups": 5}):
        found = httpx.get(f"{server}/v1/solutions/best", params={**WIRE, **other, "device": "cpu"}).json()
        assert found["match"] != "exact"
    plain = {name: value for name, value in WIRE.items() if name not in ("groups", "routing")}
    found = httpx.get(f"{server}/v1/solutions/best", params={**plain, "device": "cpu"}).json()
    assert (found.get("solution") or {}).get("family") not in FAMILIES


def test_swiglu_is_tuned_over_http_and_another_problem(home: Home, server: str) -> None:
    tuned_over_http(server, {**WIRE, "epilogue": "swiglu"})
    asked = (*ONE, "--epilogue", "swiglu", "--device", "cpu")
    here = home.json("best", *asked)
    assert here["match"] == "exact"
    assert here["solution"]["family"] in FAMILIES
    assert home.json("best", *asked, "--server", server)["solution"]["id"] == here["solution"]["id"]
    assert here["problem_id"] != home.json("best", *ONE, "--device", "cpu")["problem_id"]


def test_given_counts_are_tuned_over_http(home: Home, server: str) -> None:
    tuned_over_http(server, {**WIRE, "routing": [3, 0, 4, 5]})
    asked = (*SIZES, "--routing", "3,0,4,5", "--device", "cpu", "--server", server)
    answered = home.json("best", *asked)
    assert answered["match"] == "exact"


def tuned_over_http(server: str, problem: dict[str, Any]) -> None:
    request = {"problems": [problem], "device": "cpu", "budget": {"seconds_per_problem": 0.2}}
    made = httpx.post(f"{server}/v1/tunings", json=request)
    assert made.status_code in (200, 201, 202), made.text
    address, until = f"{server}/v1/tunings/{made.json()['id']}", time.monotonic() + 60
    while httpx.get(address).json()["status"] not in ("succeeded", "failed") and time.monotonic() < until:
        time.sleep(0.1)
    assert httpx.get(address).json()["status"] == "succeeded"


def test_what_is_refused_names_its_field(home: Home, server: str) -> None:
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"routing": "1,2,3,4"}, "counts of 10 rows in all, and the product has 12"),
        ({"epilogue": "bias"}, "grouped products have no bias"),
        ({"epilogue": "swiglu", "n": 63}, "half of the 63 rows of weights are the gate"),
        ({"groups": 5000}, "groups"),
    )
    for change, text in changes:
        answered = httpx.get(f"{server}/v1/solutions/best", params={**WIRE, **change, "device": "cpu"})
        assert answered.status_code == 422
        assert text in answered.text
    code, _, said = home.run("tune", *SIZES, "--routing", "zipf", "--device", "cpu")
    assert code == 2
    assert "routing 'zipf' is unknown; known: uniform, skewed, or a list of counts" in said


@pytest.mark.parametrize("command", [("best",), ("tune",), ("kernels", "space")], ids=" ".join)
@pytest.mark.parametrize("groups", ["0", "-1"])
def test_an_option_for_no_groups_is_refused(
    tmp_path: Path, cache: BinaryCache, command: tuple[str, ...], groups: str
) -> None:
    home = Home(tmp_path, cache.root.parent)
    code, _, err = home.run(*command, *SIZES[:-1], groups)
    assert code == 2
    assert f"--groups {groups}: a grouped product has 1 weight matrix or more, such as --groups 8" in err
    assert "leave it out for a product that is not grouped" in " ".join(err.split())
