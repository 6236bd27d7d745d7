"""The report of what tuning is worth, held against figures worked out by hand; and which rows are stale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, func, insert, select

from backends.problem import GemmProblem
from backends.solution import Solution
from backends.wire import problem_from_wire
from db import environments, models, tunings, workers, worth
from db.calls import count_calls
from db.engine import now, reading, writing
from db.values import insert_new, put_problems, table
from service import exports, imports
from service.formats import ReadOptions
from service.freshness import Freshness
from service.worth import worth_report
from service.worth_text import COLUMNS, worth_text
from tests.db.samples import (
    BASELINE,
    CLASS,
    HERE,
    POLICY,
    UPDATED,
    candidate,
    problem,
    request,
    start,
    store_session,
)

MODELS = Path("tests/data/models")
#: Every sample has a default of 3 us; a win of this candidate has a speed-up of 3.
WON = candidate(4)
SCOPE = worth.Scope(CLASS, POLICY.id)


def listed(
    connection: Connection, source: str, counts: dict[GemmProblem, int], form: str = "csv", key: str = "",
    device_class: str = "",
) -> None:  # fmt: skip
    """Stores a file's problems with their call counts, as an import does."""
    put_problems(connection, list(counts))
    made = {
        "kind": "imported", "format": form, "source": source, "sha256": source + form,
        "device_class_id": device_class, "header": {}, "created_at": now(),
    }  # fmt: skip
    ((number,),) = insert_new(connection, models.Provenance, [made], "number")
    rows = [
        {"problem_id": one.id, "format": form, "key": key or one.id, "provenance_number": number, "count": n}
        for one, n in counts.items()
    ]
    insert_new(connection, models.ProblemKey, rows)


def report(engine: Engine, listed: int = 20, **scope: Any) -> dict[str, Any]:
    with reading(engine) as connection:
        return worth_report(connection, replace(SCOPE, **scope), listed)


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """Two wins called 10 and 30 times, a tie called 5 times, and two problems that were never tuned."""
    with writing(engine) as connection:
        store_session(connection, start(problem(16)), WON)
        store_session(connection, start(problem(32)), WON)
        store_session(connection, start(problem(64)))
        counts = {problem(16): 10, problem(32): 30, problem(64): 5, problem(24): 100, problem(48): 7}
        listed(connection, "app.csv", counts)
    return engine


def test_seconds_speedups_and_shares(filled: Engine) -> None:
    found = report(filled)
    assert found["problems"] == {
        "tuned": 3, "untuned": 2, "win": 2, "tie": 1, "loss": 0, "stale": 0, "uncounted": 0,
    }  # fmt: skip
    seconds = found["seconds"]
    assert seconds["baseline"] == pytest.approx(45 * 3e-6)
    assert seconds["saved"] == pytest.approx(40 * 2e-6)
    assert seconds["speedup"] == pytest.approx(135 / 55)
    assert found["geometric_mean"] == pytest.approx(3 ** (2 / 3))
    at_least = {one["p"]: (one["problems"], one["share"]) for one in found["fast_p"]}
    assert list(at_least) == [1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0]
    assert at_least[1.0] == (3, 1.0)
    assert at_least[1.05] == at_least[3.0] == (2, pytest.approx(2 / 3))
    assert {one["percent"]: one["speedup"] for one in found["percentiles"]}[50] == 3.0


def test_what_to_tune_next_is_ordered_by_the_expected_saving(filled: Engine) -> None:
    found = report(filled)
    first, second = found["next"]
    assert [first["problem_id"], second["problem_id"]] == [problem(24).id, problem(48).id]
    assert problem_from_wire(first["problem"]) == problem(24)
    assert (first["calls"], first["estimate"]["basis"], first["estimate"]["neighbours"]) == (100, "kind", 3)
    for one in (first, second):
        estimate = one["estimate"]
        saved = one["calls"] * estimate["baseline_seconds"] * (1 - 1 / estimate["speedup"])
        assert one["saving_seconds"] == pytest.approx(saved)
    rest = sum(one["calls"] * one["estimate"]["baseline_seconds"] for one in found["next"])
    assert found["seconds"]["untuned_estimate"] == pytest.approx(rest)
    assert found["seconds"]["tuned_share"] == pytest.approx(135e-6 / (135e-6 + rest))
    assert [one["problem_id"] for one in report(filled, listed=1)["next"]] == [problem(24).id]


def test_before_the_first_verdict_the_most_work_comes_first(engine: Engine) -> None:
    with writing(engine) as connection:
        listed(connection, "app.csv", {problem(16): 3, problem(64): 1})
    found = report(engine)
    assert [one["problem_id"] for one in found["next"]] == [problem(64).id, problem(16).id]
    assert {one["estimate"] for one in found["next"]} == {None}
    assert found["seconds"]["tuned_share"] is None
    assert found["fast_p"] == found["percentiles"] == []


def test_calls_of_one_format_are_added_and_of_several_the_most_count(filled: Engine) -> None:
    with writing(filled) as connection:
        listed(connection, "second.csv", {problem(16): 2}, key="second")
        listed(connection, "app.log", {problem(16): 11}, form="log")
        listed(connection, "other.log", {problem(32): 1000}, form="other", device_class="cpu:other:class:1")
        tunings.create_tuning(connection, request(), [(problem(64), 50), (problem(128), 1)])
        calls = {row.problem_id: row.calls for row in worth.tuned(connection, SCOPE)}
        others = {row.id: row.calls for row in worth.untuned(connection, SCOPE)}
    assert calls == {problem(16).id: 12, problem(32).id: 30, problem(64).id: 50}
    assert others == {problem(24).id: 100, problem(48).id: 7, problem(128).id: 1}


def test_a_list_is_a_file_or_a_tuning(filled: Engine) -> None:
    with writing(filled) as connection:
        listed(connection, "one.csv", {problem(16): 4}, key="one")
        made = tunings.create_tuning(connection, request(), [(problem(32), 6), (problem(128), 1)])
        of_file = worth.find_list(connection, "one.csv")
        of_tuning = worth.find_list(connection, made.id)
        assert worth.find_list(connection, "none.csv") is None
    found = report(filled, problems=of_file)
    assert (found["list"], found["problems"]["tuned"], found["problems"]["untuned"]) == ("one.csv", 1, 0)
    assert found["seconds"]["baseline"] == pytest.approx(4 * 3e-6)
    found = report(filled, problems=of_tuning)
    assert (found["problems"]["tuned"], found["problems"]["untuned"]) == (1, 1)
    assert found["seconds"]["baseline"] == pytest.approx(6 * 3e-6)


def test_rows_of_one_family_or_type(filled: Engine) -> None:
    found = report(filled, family=WON.family)
    assert (found["problems"]["tuned"], found["problems"]["untuned"]) == (2, 0)
    assert report(filled, family=BASELINE.family)["problems"]["tie"] == 1
    assert report(filled, dtype="fp32")["problems"]["tuned"] == 0
    assert report(filled, dtype="bf16")["problems"]["tuned"] == 3


def test_a_problem_without_a_count_is_called_once_and_it_is_said(filled: Engine) -> None:
    with writing(filled) as connection:
        store_session(connection, start(problem(128)), WON)
    found = report(filled)
    assert found["problems"]["uncounted"] == 1
    assert found["seconds"]["baseline"] == pytest.approx(46 * 3e-6)


def test_counts_of_an_imported_capture_are_found(engine: Engine) -> None:
    with open("tests/data/llama3-8b-cublaslt.log", "rb") as stream:
        done = imports.import_file(engine, stream, "llama3-8b-cublaslt.log")
    with reading(engine) as connection:
        calls = {row.id: row.calls for row in worth.untuned(connection, SCOPE)}
    assert calls == {item.problem.id: item.count for item in done.read.problems}


def test_two_models_keep_the_layers_that_they_share(engine: Engine) -> None:
    """Llama-3-8B and Mistral-7B have four layers of the same sizes: the second file takes none of the
    first's, though both are called config.json, and the calls of both add up. A file again changes nothing,
    also where an earlier version stored its keys without the model."""
    layer = problem_from_wire({"m": 1, "n": 4096, "k": 14336, "dtype": "bf16", "trans_b": True})

    def counted() -> dict[str, int]:
        with reading(engine) as connection:
            return count_calls(connection, CLASS, [layer.id])

    for name in ("llama-3-8b.json", "mistral-7b-v0.3.json"):
        for _ in range(2):
            with (MODELS / name).open("rb") as stream:
                done = imports.import_file(engine, stream, "config.json", options=ReadOptions(tokens=(1,)))
        bare = {item.problem.id: item.keys[0] for item in done.read.problems}
    assert counted() == {layer.id: 64}
    keys = table(models.ProblemKey)
    with writing(engine) as connection:
        last = connection.scalar(select(func.max(keys.c.provenance_number)))
        connection.execute(
            insert(keys).values(
                problem_id=layer.id, format="model-config", key=bare[layer.id], provenance_number=last,
                count=32,
            )
        )  # fmt: skip
    assert counted() == {layer.id: 96}
    with (MODELS / "mistral-7b-v0.3.json").open("rb") as stream:
        imports.import_file(engine, stream, "config.json", options=ReadOptions(tokens=(1,)))
    assert counted() == {layer.id: 64}


# ---- stale rows ----------------------------------------------------------------------------------


def test_rows_of_another_environment_are_stale_and_their_saving_is_told(filled: Engine) -> None:
    with writing(filled) as connection:
        store_session(connection, start(problem(32), environment=UPDATED), WON)
    found = report(filled)
    assert found["problems"]["stale"] == 2
    assert found["stale"]["reasons"] == [{"reason": "blas 1 is now 2", "problems": 2}]
    assert [one["problem_id"] for one in found["stale"]["items"]] == [problem(16).id, problem(64).id]
    assert found["stale"]["saved_seconds"] == pytest.approx(10 * 2e-6)
    assert found["present_environments"] == [UPDATED.id]


def test_an_export_tells_which_of_its_rows_are_stale(filled: Engine) -> None:
    with writing(filled) as connection:
        store_session(connection, start(problem(32), environment=UPDATED), WON)
    made = exports.open_export(filled, "csv", exports.Selection(HERE.device_class, POLICY.id))
    figures = made.whole_report().figures()
    assert (figures["written"], figures["stale"]) == (3, {"blas 1 is now 2": 2})


def test_what_is_present_is_what_live_workers_have(filled: Engine) -> None:
    other_device = replace(HERE, uuid="CPU-2")  # of the same class, with the same libraries
    with writing(filled) as connection:
        store_session(connection, start(problem(32), environment=UPDATED), WON)
        workers.register(connection, "worker-1", "host", 1, other_device)
        found = Freshness.of(connection, CLASS)
        assert found.present == (other_device.id,)
        assert found.stale(HERE.id, WON.family, WON.version) is None
        assert found.stale(UPDATED.id, WON.family, WON.version) == "blas 2 is now 1"
        workers.mark(connection, ["worker-1"], "dead")
        assert Freshness.of(connection, CLASS).present == (UPDATED.id,)


def test_a_worker_that_comes_or_goes_between_two_reads_breaks_none(
    filled: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction's rows are seen by the second read of one."""
    ask = environments.class_environments

    def between(connection: Connection, name: str) -> dict[str, dict[str, Any]]:
        found = ask(connection, name)
        workers.register(connection, "worker-2", "host", 2, replace(HERE, uuid="CPU-3"))
        return found

    with writing(filled) as connection:
        workers.register(connection, "worker-1", "host", 1, HERE)
        monkeypatch.setattr(environments, "class_environments", between)
        assert Freshness.of(connection, CLASS).present == (HERE.id,)
        monkeypatch.setattr(environments, "class_environments", lambda connection, name: {})
        assert Freshness.of(connection, CLASS).present == ()


def test_a_kernel_of_another_version_is_stale(filled: Engine) -> None:
    with writing(filled) as connection:
        old = Solution(WON.family, 7, WON.parameters)
        store_session(connection, start(problem(32), job_id="job-1"), old)
    (reason,) = report(filled)["stale"]["reasons"]
    assert reason == {"reason": "packed 7 is now packed 1", "problems": 1}


def test_reasons_name_what_appeared_and_what_is_gone() -> None:
    later = replace(HERE, driver="Linux 7", libraries={"torch": "2.11"})
    assert HERE.changes(later) == [
        "blas 1 is now absent", "driver was absent and is now Linux 7", "torch was absent and is now 2.11",
    ]  # fmt: skip
    assert HERE.changes(replace(HERE, uuid="CPU-9", memory_bytes=1)) == []


# ---- text ----------------------------------------------------------------------------------------


def test_the_text_fits_80_columns_and_says_what_is_estimated(filled: Engine) -> None:
    long = problem_from_wire(
        {"m": 100000, "n": 100000, "k": 100000, "dtype": "fp16", "batch": 100, "epilogue": "bias_relu"}
    )
    with writing(filled) as connection:
        store_session(connection, start(problem(32), environment=UPDATED), WON)
        listed(connection, "long.csv", {long: 1})
    text = worth_text(report(filled, listed=2))
    assert max(map(len, text.splitlines())) <= COLUMNS
    for words in (
        "3 problems tuned (2 WIN, 1 TIE, 0 LOSS), 3 not tuned", "geometric mean 2.080x", "and 1 more",
        "is an estimate", "stale: 2 rows", "blas 1 is now 2", "same kind",
    ):  # fmt: skip
        assert words in text, words
    assert "percentile" not in worth_text(report(filled, dtype="fp32"))
