"""Answers by pre-tuned rows of the same layer, for numbers of tokens that the tables lack."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from backends.outcome import Outcome
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.wire import problem_from_wire
from db import provenance, sessions, workers
from db.engine import open_engine, reading, writing
from service import answers, best, exports, pretuned
from service.formats.core.export import ExportReport, ExportRow, TargetRow
from service.formats.core.row_text import problem_wire
from service.freshness import Freshness
from service.settings import Settings
from tests.db import samples
from tests.service.http.shapes import fits

TABLE = pretuned.read_table(pretuned.named("h100-lowbit"))
#: Planted rows are made of the first.
(FP8,) = (row for row in TABLE.rows if row.problem.slug == "tn_6144x16x4096_fp8_e4m3")
(INT4,) = (row for row in TABLE.rows if row.problem.slug == "tn_1280x16x8192_uint4_bf16")
(PACKED,) = (row for row in TABLE.rows if row.problem.slug == "tn_1280x32x8192_uint4_bf16_prepacked")


@pytest.fixture
def engine(tmp_path: Path, sqlite_template: Path) -> Iterator[Engine]:
    path = tmp_path / "gemmtune.sqlite"
    shutil.copyfile(sqlite_template, path)
    opened = open_engine(Settings(database_url=f"sqlite:///{path}").database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def plant(engine: Engine, tmp_path: Path) -> Any:
    """Installs rows as a table of that name."""

    def planted(rows: Sequence[ExportRow], name: str = "planted") -> None:
        path = tmp_path / f"{name}.jsonl"
        device = rows[0].environment.device_class
        path.write_text("".join(pretuned.write_table(name, device, rows)))
        assert pretuned.install(engine, path).claims.stored == len(rows)

    return planted


def tokens(problem: GemmProblem, m: int, **words: Any) -> GemmProblem:
    return problem_from_wire({**problem_wire(problem), "m": m, **words})


def at(row: ExportRow, m: int, **changed: Any) -> ExportRow:
    return replace(row, problem=tokens(row.problem, m), **changed)


def ask(engine: Engine, problem: GemmProblem, near: bool = True, **asked: Any) -> Any:
    device, policy_id = FP8.environment.device_class, FP8.policy.id
    with reading(engine) as connection:
        known = best.Asked(device, policy_id, **{"imported": True, **asked})
        text = best.answer(connection, known, problem, None, near)
    return fits(answers.Best, httpx.Response(200, json=json.loads(text)))


# ---- a shipped table -------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [FP8, INT4, PACKED], ids=lambda row: row.problem.slug)
def test_a_shipped_row_answers_for_a_number_of_tokens_that_the_table_lacks(
    engine: Engine, of: ExportRow
) -> None:
    pretuned.install(engine, TABLE.path)
    asked = tokens(of.problem, 24)
    (row,) = (row for row in TABLE.rows if row.problem == tokens(of.problem, 32))
    found = ask(engine, asked)
    assert (found["match"], found["problem_id"], found["distance"]) == ("nearest", row.problem.id, 0.415)
    assert (found["asked"], found["asked_id"]) == (problem_wire(asked), asked.id)
    assert found["solution"] == row.solution.to_dict()
    assert found["provenance"] == {"kind": "pretuned", "source": "h100-lowbit", "format": "jsonl"}
    assert found["reason"] == (
        f"the pre-tuned table h100-lowbit says so of {row.problem.id}; it was not measured here"
    )
    assert (found["seconds"], found["judgement"], found["session_id"]) == (row.seconds, "WIN", row.session)
    assert row.baseline is not None
    assert found["baseline"]["solution_id"] == row.baseline.id
    elsewhere, *workspace = found["notes"]
    assert elsewhere.startswith(f"measured elsewhere, on another {TABLE.device} with cublas ")
    assert workspace == [f"workspace_bytes is what the solution took for {row.problem.id}"] * bool(
        row.solution.workspace_bytes
    )


def test_what_is_not_asked_for_is_named_and_not_served(engine: Engine) -> None:
    pretuned.install(engine, TABLE.path)
    asked = tokens(FP8.problem, 24)
    found = ask(engine, asked, imported=False)
    assert (found["match"], found["solution"]) == ("default", None)
    row = tokens(FP8.problem, 32)
    option = "(imported=true, or --imported on the command line)"
    assert found["notes"] == [f"known elsewhere: the pre-tuned table h100-lowbit has {row.id} {option}"]
    found = ask(engine, asked, near=False)
    assert found["match"] == "default"
    assert "GEMMTUNE_MAX_NEAR" in found["notes"][0]


def test_a_claim_of_the_very_problem_comes_first(engine: Engine) -> None:
    pretuned.install(engine, TABLE.path)
    assert ask(engine, FP8.problem)["match"] == "imported"


@pytest.mark.parametrize(("m", "near"), [(256, 128), (257, None), (100_000, None)])
def test_at_most_one_doubling_away(engine: Engine, m: int, near: int | None) -> None:
    pretuned.install(engine, TABLE.path)
    asked = tokens(FP8.problem, m)
    found = ask(engine, asked)
    if near is not None:
        assert found["problem_id"] == tokens(asked, near).id
        return
    assert found["match"] == "default"
    far = "1.01 doublings away, and with the same weights at most 1 are served"
    noted = [f"{tokens(asked, 128).id}, of the pre-tuned table h100-lowbit: {far}"]
    assert found["notes"] == (noted if m == 257 else [])


def test_exports_take_no_near_row(engine: Engine) -> None:
    pretuned.install(engine, TABLE.path)
    asked = tokens(FP8.problem, 24)
    assert ask(engine, asked)["match"] == "nearest"
    chosen = exports.Selection(TABLE.device, FP8.policy.id, imported=True)
    for wanted in ([asked.id, FP8.problem.id], None):
        rows = list(exports.read_rows(engine, chosen, (), ExportReport(), wanted))
        assert FP8.problem in [row.problem for row in rows]
        assert asked not in [row.problem for row in rows]


# ---- rows that lie ---------------------------------------------------------------------------------

UNKNOWN = Solution("no-such-family", 1, {})
ILLEGAL = replace(FP8.solution, parameters={**FP8.solution.parameters, "rows": 3})


def other(**words: Any) -> ExportRow:
    """The row as if its problem had other words."""
    return replace(FP8, problem=tokens(FP8.problem, 16, **words))


ELSEWHERE = replace(FP8.environment, product="NVIDIA H200")
BF16 = problem_from_wire({"m": 16, "n": 6144, "k": 4096, "dtype": "bf16", "trans_b": True})
LIES = {
    "another k": other(k=8192),
    "another n": other(n=2560),
    "another type": replace(FP8, problem=BF16),
    "another output": other(dtype_d="fp16"),
    "another epilogue": other(epilogue="bias"),
    "an activation": other(epilogue="gelu"),
    "other scales": other(scaling={"a": "tensor", "b": "tensor", "d": "none", "dtype": "fp32"}),
    "another transpose": other(trans_b=False),
    "padded rows": other(lda=4096 + 64),
    "unaligned rows": other(ldd=6145),
    "less aligned addresses": other(alignment=4),
    "a batch": other(batch=2),
    "quantised weights": INT4,
    "another class": replace(FP8, environment=ELSEWHERE),
    "another policy": replace(FP8, policy=replace(FP8.policy, cache="warm")),
    "too far": at(FP8, 11),
}
assert FP8.baseline is not None
REFUSED = {
    "an unknown family": (replace(FP8, solution=UNKNOWN), "the family no-such-family is not part of"),
    "an illegal solution": (replace(FP8, solution=ILLEGAL), "a triton-gemm solution has the parameters"),
    "its default": (
        replace(FP8, solution=FP8.baseline, judgement="TIE"), "its default is the fastest there"
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", LIES.values(), ids=LIES)
def test_a_row_of_another_layer_does_not_answer(engine: Engine, plant: Any, row: ExportRow) -> None:
    plant([row])
    found = ask(engine, tokens(FP8.problem, 24))
    assert (found["match"], found["solution"]) == ("default", None)


def test_the_row_that_lies_are_made_of_answers(engine: Engine, plant: Any) -> None:
    plant([FP8])
    assert ask(engine, tokens(FP8.problem, 24))["match"] == "nearest"


@pytest.mark.parametrize("packed", [True, False])
def test_stored_and_prepacked_weights_are_apart(engine: Engine, plant: Any, packed: bool) -> None:
    row = PACKED if packed else INT4
    plant([row])
    asked = tokens(row.problem, 24)
    assert ask(engine, asked)["match"] == "nearest"
    assert ask(engine, replace(asked, prepacked=not packed))["match"] == "default"


@pytest.mark.parametrize(("row", "words"), REFUSED.values(), ids=REFUSED)
def test_what_may_not_be_served_is_passed_over_with_a_note(
    engine: Engine, plant: Any, row: ExportRow, words: str
) -> None:
    plant([row, at(FP8, 46)])
    found = ask(engine, tokens(FP8.problem, 24))
    assert (found["match"], found["problem"]["m"]) == ("nearest", 46)
    note = found["notes"][0]
    assert note.startswith(f"{row.problem.id}, of the pre-tuned table planted: ")
    assert words in note
    assert words in str(ask(engine, tokens(FP8.problem, 12))["notes"])


def test_a_row_that_does_not_say_where_it_was_measured_is_left_out(engine: Engine, plant: Any) -> None:
    plant([replace(FP8, baseline=None)])
    assert ask(engine, tokens(FP8.problem, 24))["match"] == "default"


# ---- which row -------------------------------------------------------------------------------------


def test_of_equally_far_rows_that_of_fewer_tokens_answers(engine: Engine, plant: Any) -> None:
    plant([at(FP8, 32), at(FP8, 8)])
    assert ask(engine, FP8.problem)["problem"]["m"] == 8


def test_of_one_problem_the_last_table_answers_until_it_is_removed(engine: Engine, plant: Any) -> None:
    plant([FP8], "first")
    plant([replace(FP8, seconds=1e-6)], "second")
    asked = tokens(FP8.problem, 24)
    assert ask(engine, asked)["provenance"]["source"] == "second"
    with reading(engine) as connection:
        stored = provenance.provenances(connection, 0, 10)
    with writing(engine) as connection:
        assert provenance.remove(connection, stored[-1]["number"])
    assert ask(engine, asked)["provenance"]["source"] == "first"


@pytest.mark.parametrize(
    ("seconds", "said"), [(1e-5, "10.0%"), (1.1e-5 / 1.01, "1.0%"), (1.1e-5 / 1.004, None)]
)
def test_what_other_rows_say_of_a_solution_casts_doubt(
    engine: Engine, plant: Any, seconds: float, said: str | None
) -> None:
    """More of it than what was measured here: tables have times of fast ones alone."""
    target = TargetRow(
        FP8.solution, "TIE", 1.1e-5, 2.2e-5, (1.9, 2.0, 2.1), 9, "a session", "2026-11-28T00:00:00Z", False
    )
    another = replace(FP8.solution, parameters={**FP8.solution.parameters, "x": 1})
    slow = at(
        FP8, 8, solution=another, seconds=seconds, baseline_seconds=2.2e-5, targets={"bundle": target},
        targets_judged=True,
    )  # fmt: skip
    plant([FP8, slow])
    found = ask(engine, tokens(FP8.problem, 24))
    if said is None:
        assert (found["match"], found["transfer_regret"]["p80"]) == ("nearest", 0.004)
        return
    assert found["match"] == "default"
    (note,) = found["notes"]
    assert f"its solution was {said} slower than the best on other near problems" in note


def test_a_solution_that_won_twice_is_told(engine: Engine, plant: Any) -> None:
    plant([FP8, at(FP8, 8)])
    regret = {"median": 0.0, "p80": 0.0, "pairs": 1}
    assert ask(engine, tokens(FP8.problem, 24))["transfer_regret"] == regret
    assert ask(engine, tokens(FP8.problem, 30))["transfer_regret"] == regret


@pytest.mark.parametrize(
    ("filters", "served"),
    [
        ({"max_workspace": 1500}, True), ({"max_workspace": 1499}, False), ({"deterministic": True}, True),
        ({"families": frozenset({"triton-gemm"})}, True), ({"families": frozenset({"cublaslt"})}, False),
    ],
)  # fmt: skip
def test_filters_hold_and_a_workspace_grows_with_the_problem(
    engine: Engine, plant: Any, filters: dict[str, Any], served: bool
) -> None:
    plant([replace(FP8, solution=replace(FP8.solution, workspace_bytes=1000, deterministic=True))])
    found = ask(engine, tokens(FP8.problem, 24), filters=best.Filters(**filters))
    assert found["match"] == ("nearest" if served else "default")
    if not served:
        assert "nothing there meets the filters" in found["notes"][0]


# ---- beside measurements ---------------------------------------------------------------------------


def measure(engine: Engine, problem: GemmProblem, winner: Solution, *others: Outcome) -> None:
    """Stores a session on the rows' device class."""
    policy = FP8.policy
    begun = sessions.SessionStart(problem, FP8.environment, policy.id, policy.to_dict(), samples.CONTENT)
    with writing(engine) as connection:
        samples.store_session(connection, begun, winner, others=others)


def test_what_was_measured_near_outranks_a_nearer_row(engine: Engine, plant: Any) -> None:
    plant([FP8])
    near = tokens(FP8.problem, 40)
    measure(engine, near, FP8.solution)
    found = ask(engine, tokens(FP8.problem, 24))
    assert (found["problem_id"], found["provenance"]["kind"]) == (near.id, "measured")


def test_a_row_of_a_problem_that_was_measured_here_is_passed_over(engine: Engine, plant: Any) -> None:
    plant([FP8, at(FP8, 46)])
    measure(engine, FP8.problem, samples.BASELINE)
    found = ask(engine, tokens(FP8.problem, 24))
    assert (found["match"], found["problem"]["m"]) == ("nearest", 46)
    measured, passed, *_ = found["notes"]
    assert measured == f"{FP8.problem.id}: the family numpy is not part of this installation"
    assert passed == f"{FP8.problem.id}, of the pre-tuned table planted: it was measured here"


def test_sessions_here_cast_doubt_whatever_the_table_says(engine: Engine, plant: Any) -> None:
    plant([FP8, *(at(FP8, m) for m in (6, 8, 9, 10, 11))])
    asked = tokens(FP8.problem, 24)
    assert ask(engine, asked)["transfer_regret"] == {"median": 0.0, "p80": 0.0, "pairs": 5}
    measure(engine, tokens(FP8.problem, 60), samples.BASELINE, samples.screened(FP8.solution, 4e-6))
    found = ask(engine, asked)
    assert found["match"] == "default"
    assert "its solution was 33.3% slower than the best on other near problems" in found["notes"][-1]


def test_an_answer_says_what_has_changed_since(engine: Engine, plant: Any) -> None:
    plant([FP8])
    asked = tokens(FP8.problem, 24)
    assert "stale" not in ask(engine, asked)
    now = replace(FP8.environment, uuid="GPU-1", driver="999.1")
    with writing(engine) as connection:
        workers.register(connection, "worker-1", "host", 4711, now)
        fresh = Freshness.of(connection, str(now.device_class))
    stale = ask(engine, asked, freshness=fresh)["stale"]
    assert stale == f"driver {FP8.environment.driver} is now 999.1"
