"""Quantised weights end to end on the CPU: tuned by the command, known here, asked for over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from backends.cache import BinaryCache
from service.demo import running
from tests.service.test_commands import Home

ONE = (
    "--m", "4", "--n", "64", "--k", "256", "--dtype", "bf16", "--trans-b", "--dtype-b", "uint4",
    "--scale-b", "group_64", "--scale-dtype", "bf16", "--zero-b", "uint4",
)  # fmt: skip
WIRE: dict[str, Any] = {
    "m": 4, "n": 64, "k": 256, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True,
    "scaling": {"b": "group_64", "dtype": "bf16", "zero_b": "uint4"},
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> Home:
    found = Home(tmp_path_factory.mktemp("weights"), cache.root.parent)
    results = found.json("tune", *ONE, "--device", "cpu", "--seconds", "0.2")["results"]
    assert len(results) == 1
    assert results[0]["wire"]["scaling"]["zero_b"] == "uint4"
    return found


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMTUNE_CACHE_DIR", home.environment["GEMMTUNE_CACHE_DIR"])
        with running(home.folder, "cpu") as address:
            yield address


def test_it_is_known_here_and_over_http(home: Home, server: str) -> None:
    here = home.json("best", *ONE, "--device", "cpu")
    assert (here["match"], here["solution"]["family"]) == ("exact", "dequantise")
    there = home.json("best", *ONE, "--device", "cpu", "--server", server)
    assert there["solution"]["id"] == here["solution"]["id"]
    asked = {**WIRE, "scaling": json.dumps(WIRE["scaling"]), "device": "cpu"}
    answered = httpx.get(f"{server}/v1/solutions/best", params=asked).json()
    assert answered["solution"]["id"] == here["solution"]["id"]
    eight = {"b": "group_64", "dtype": "bf16", "zero_b": "eight"}
    other = {**asked, "scaling": json.dumps(eight)}
    assert httpx.get(f"{server}/v1/solutions/best", params=other).json()["match"] != "exact"


def test_what_is_refused_names_its_field(home: Home, server: str) -> None:
    answered = httpx.get(
        f"{server}/v1/solutions/best",
        params={**WIRE, "k": 250, "scaling": json.dumps(WIRE["scaling"]), "device": "cpu"},
    )
    assert answered.status_code == 422
    assert "k 250 is no multiple of the scale's group of 64" in answered.text
    code, _, said = home.run("tune", *ONE[:-1], "nine", "--device", "cpu")
    assert code == 2
    assert "zero_b 'nine' is unknown; known: none, eight, uint4, float, shift" in said
    stored = [option for option in ONE if option != "--trans-b"]
    _, _, said = home.run("tune", *stored, "--device", "cpu")
    assert "transposed, as F.linear's w[n,k]: give a row-major problem trans_b (--trans-b)" in said
    plain = [*ONE[:9], "--device", "cpu"]
    for command in ("tune", "best"):
        code, _, said = home.run(command, *plain, "--scale-dtype", "bf16")
        assert (code, "--scale-dtype is the type of scales: give" in said) == (2, True), said
    code, out, _ = home.run("tune", *plain, "--scale-b", "row", "--server", server)
    assert code == 1
    assert "it has fp32, fp64, fp16, bf16 and int8 without scales" in " ".join(out.split())


def test_weights_that_may_be_packed_are_another_problem(home: Home, server: str) -> None:
    assert home.json("best", *ONE, "--prepacked", "--device", "cpu")["match"] == "default"
    # The service's worker has the device.
    done = home.json("tune", *ONE, "--prepacked", "--device", "cpu", "--seconds", "0.2", "--server", server)
    results = done["results"]
    assert [one["wire"]["prepacked"] for one in results] == [True]
    here = home.json("best", *ONE, "--prepacked", "--device", "cpu")
    assert (here["match"], here["solution"]["family"]) == ("exact", "dequantise")
    assert "_prepacked-" in here["problem_id"]
    there = home.json("best", *ONE, "--prepacked", "--device", "cpu", "--server", server)
    asked = {**WIRE, "scaling": json.dumps(WIRE["scaling"]), "device": "cpu", "prepacked": "true"}
    over_http = httpx.get(f"{server}/v1/solutions/best", params=asked).json()
    posted = {"problems": [{**WIRE, "prepacked": True}], "device": "cpu"}
    many = httpx.post(f"{server}/v1/solutions/best", json=posted).json()["results"]
    for answer in (there, over_http, *many):
        assert (answer["match"], answer["problem_id"]) == ("exact", here["problem_id"])
    stored = home.json("best", *ONE, "--device", "cpu")
    assert stored["problem_id"] != here["problem_id"]


def test_what_is_not_prepacked_names_the_field(home: Home, server: str) -> None:
    plain: dict[str, Any] = {"m": 4, "n": 64, "k": 256, "dtype": "bf16", "device": "cpu"}
    answered = httpx.get(f"{server}/v1/solutions/best", params={**plain, "prepacked": "true"})
    assert answered.status_code == 422
    assert "prepacked true is of quantised weights, not of bf16" in answered.text
    answered = httpx.get(f"{server}/v1/solutions/best", params={**plain, "prepacked": "yes"})
    assert "prepacked must be true, false, 1 or 0, not 'yes'" in answered.text
    tuning = {"problems": [{**WIRE, "prepacked": 1}], "device": "cpu"}
    refused = httpx.post(f"{server}/v1/tunings", json=tuning)
    assert refused.status_code == 422
    assert "prepacked" in refused.text
    code, _, said = home.run("tune", *ONE[:8], "--prepacked", "--device", "cpu")
    assert code == 2
    assert "prepacked true is of quantised weights, not of bf16" in said


def test_the_weights_of_a_file_are_packed(home: Home, server: str) -> None:
    plain = {"m": 4, "n": 64, "k": 256, "dtype": "bf16"}
    file = home.folder / "captured.jsonl"
    file.write_text(f"{json.dumps({**WIRE, 'n': 32, 'count': 8})}\n{json.dumps(plain)}\n")
    done = home.json("tune", str(file), "--prepacked", "--seconds", "0.2", "--server", server)
    assert [one["wire"].get("prepacked", False) for one in done["results"]] == [True, False]
    assert [(one["n"], one["count"]) for one in done["problems"]] == [(32, 8), (64, 1)]
    file.write_text(json.dumps(plain))
    code, _, said = home.run("tune", str(file), "--prepacked", "--device", "cpu")
    assert code == 2
    assert "none of the 1 problem of" in said


def test_the_weights_of_an_imported_file_are_packed(home: Home, server: str) -> None:
    plain = {"m": 4, "n": 64, "k": 256, "dtype": "bf16"}
    problems = {**WIRE, "n": 40, "count": 8}, plain, {**WIRE, "m": 8, "groups": 2}
    file = home.folder / "imported.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in problems))
    for where in ((), ("--server", server)):
        done = home.json("import", str(file), "--prepacked", *where)
        assert [one.get("prepacked", False) for one in done["problems"]] == [True, False, False]
        assert [one["count"] for one in done["problems"]] == [8, 1, 1]
    file.write_text(json.dumps(plain))
    for where in ((), ("--server", server)):
        code, _, said = home.run("import", str(file), "--prepacked", *where)
        assert code == 2
        assert "prepacked packs quantised weights, and none of the 1 problem of" in " ".join(said.split())
    file.write_text("[]")
    for where in ((), ("--server", server)):
        code, _, said = home.run("import", str(file), "--prepacked", *where)
        assert code == 2
        assert "imported.jsonl holds no problem: leave it out" in " ".join(said.split())


def test_a_model_without_such_weights_is_not_packed(home: Home) -> None:
    model = "tests/data/models/qwen3-0.6b.json", "--prepacked", "--no-tune", "--device", "cpu"
    why = {"torch": "has such weights: leave it out", "c-header": "there works: bundle, torch"}
    for output, words in why.items():
        code, _, said = home.run("model", *model, "--for", output)
        assert (code, words in " ".join(said.split())) == (2, True), said
