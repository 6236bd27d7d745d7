"""Rows of pre-tuned tables as what a search knows of near problems."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from backends.environment import Environment
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from db import models, provenance, table_history
from db.engine import open_engine, reading, writing
from db.history import OWN_PROBLEMS, SISTER_PROBLEMS, PastResult
from db.sessions import SessionStart
from db.values import table as of_model
from service import pretuned
from service.formats.core.export import ExportRow
from service.store import past_results
from tests.backends.weight_samples import weights
from tests.db import samples
from tests.service.formats.made import CUBLASLT, H200, LINEAR, MI300X, POLICY, row

H100 = replace(H200, product="NVIDIA H100")
OTHER = Solution("gemv", 1, {"rows": 2})


@pytest.fixture
def engine(tmp_path: Path, sqlite_template: Path) -> Iterator[Engine]:
    path = tmp_path / "gemmtune.sqlite"
    shutil.copyfile(sqlite_template, path)
    opened = open_engine(f"sqlite:///{path}")
    yield opened
    opened.dispose()


def installed(engine: Engine, folder: Path, environment: Environment, *rows: ExportRow) -> None:
    name = environment.arch + environment.product.split()[-1].lower()
    path = folder / f"{name}{len(rows)}.jsonl"
    mine = [replace(one, environment=environment) for one in rows]
    path.write_text("".join(pretuned.write_table(path.stem, environment.device_class, mine)))
    pretuned.install(engine, path)


def found(engine: Engine, problem: GemmProblem, policy: str = POLICY.id) -> list[PastResult]:
    with reading(engine) as connection:
        return table_history.nearest(connection, problem, H200.device_class, policy)


def test_without_tables_nothing_is_known(engine: Engine) -> None:
    assert found(engine, LINEAR) == []


def test_near_rows_of_the_class_come_before_those_of_its_sisters(engine: Engine, tmp_path: Path) -> None:
    near, far = from_linear(16, 14336, 4096, "bf16"), from_linear(16, 16384, 4096, "bf16")
    installed(engine, tmp_path, H200, row(far, solution=OTHER), row(near))
    installed(engine, tmp_path, H100, row(near, solution=OTHER))
    installed(engine, tmp_path, MI300X, row(near))
    results = found(engine, LINEAR)
    assert [(one.problem, one.solution.id, one.environment.product) for one in results] == [
        (near, CUBLASLT.id, "NVIDIA H200"), (far, OTHER.id, "NVIDIA H200"), (near, OTHER.id, "NVIDIA H100"),
    ]  # fmt: skip
    assert {(one.seconds, one.ratio) for one in results} == {(1.25e-05, 0.5)}


def test_other_types_policies_and_far_problems_are_not_near(engine: Engine, tmp_path: Path) -> None:
    installed(
        engine,
        tmp_path,
        H200,
        row(from_linear(16, 14336, 4096, "fp16")),
        row(from_linear(1, 14336, 4096, "bf16")),
    )
    assert found(engine, LINEAR) == []
    assert len(found(engine, from_linear(2, 14336, 4096, "bf16"))) == 1
    assert found(engine, from_linear(2, 14336, 4096, "bf16"), "another policy") == []


def test_as_many_rows_are_read_as_are_used(engine: Engine, tmp_path: Path) -> None:
    rows = [row(from_linear(16, 14336 + 8 * at, 4096, "bf16")) for at in range(12)]
    installed(engine, tmp_path, H200, *rows)
    installed(engine, tmp_path, H100, *rows)
    assert len(found(engine, LINEAR)) == OWN_PROBLEMS + SISTER_PROBLEMS


def test_a_table_that_comes_or_goes_is_seen(engine: Engine, tmp_path: Path) -> None:
    assert found(engine, LINEAR) == []
    installed(engine, tmp_path, H200, row())
    assert len(found(engine, LINEAR)) == 1

    def removed() -> None:
        with writing(engine) as connection:
            last = provenance.provenances(connection, 0, 100)[-1]
            assert provenance.remove(connection, last["number"])

    removed()
    other = from_linear(16, 14336, 512, "bf16")
    installed(engine, tmp_path, H200, row(other))
    assert found(engine, LINEAR) == []
    assert len(found(engine, other)) == 1
    removed()
    assert found(engine, other) == []


def test_a_row_that_does_not_say_where_or_over_what_it_was_measured_is_left_out(
    engine: Engine, tmp_path: Path
) -> None:
    installed(engine, tmp_path, H200, row())
    claim = of_model(models.Claim)
    for said in ({}, {"environment_id": "none", "baseline_seconds": 1.0}, None):
        with writing(engine) as connection:
            connection.execute(claim.update().values(content=said))
        assert found(engine, LINEAR) == []


def test_a_session_of_the_same_problem_is_believed_instead(engine: Engine, tmp_path: Path) -> None:
    mine = samples.problem()
    installed(
        engine, tmp_path, samples.HERE, row(mine, solution=OTHER, policy=samples.POLICY),
        row(samples.problem(32), solution=OTHER, policy=samples.POLICY),
    )  # fmt: skip
    start: SessionStart = samples.start(mine)
    with writing(engine) as connection:
        told = past_results(connection, start)
        assert [(one.problem, one.solution.id) for one in told] == [
            (mine, OTHER.id), (samples.problem(32), OTHER.id)
        ]  # fmt: skip
        samples.store_session(connection, start, samples.candidate(1), 1e-6)
        told = past_results(connection, start)
    assert [(one.problem, one.solution.id) for one in told] == [
        (mine, samples.candidate(1).id), (mine, samples.BASELINE.id), (samples.problem(32), OTHER.id)
    ]  # fmt: skip


def test_stored_weights_teach_prepacked_ones_and_not_the_other_way_round(
    engine: Engine, tmp_path: Path
) -> None:
    stored, packed = weights(16, 64, 256), weights(16, 64, 256, prepacked=True)
    installed(engine, tmp_path, H200, row(stored), row(packed, solution=OTHER))
    assert [one.problem for one in found(engine, packed)] == [packed, stored]
    assert [one.problem for one in found(engine, stored)] == [stored]


def test_rows_without_the_epilogue_teach_those_with_it_and_not_the_other_way_round(
    engine: Engine, tmp_path: Path
) -> None:
    """Until a row with it is as near."""
    plain = from_linear(64, 48, 64, "bf16", groups=4)
    gated = from_linear(64, 48, 64, "bf16", groups=4, activation="swiglu")
    installed(engine, tmp_path, H200, row(plain))
    assert [one.problem for one in found(engine, gated)] == [plain]
    installed(engine, tmp_path, H100, row(gated, solution=OTHER))
    assert [(one.problem, one.environment.product) for one in found(engine, gated)] == [
        (plain, "NVIDIA H200"), (gated, "NVIDIA H100"),
    ]  # fmt: skip
    assert [one.problem for one in found(engine, plain)] == [plain]
    near = from_linear(72, 48, 64, "bf16", groups=4, activation="swiglu")
    installed(engine, tmp_path, H200, row(near), row(near, solution=OTHER))
    assert plain not in {one.problem for one in found(engine, gated)}


def test_sessions_and_tables_are_compared_by_how_near_they_are(engine: Engine, tmp_path: Path) -> None:
    """A table's row with the epilogue is nearer than a session without it."""
    plain = from_linear(64, 48, 64, "bf16", groups=4)
    gated = from_linear(64, 48, 64, "bf16", groups=4, activation="swiglu")
    start: SessionStart = samples.start(gated)
    with writing(engine) as connection:
        samples.store_session(connection, samples.start(plain), samples.candidate(1), 1e-6)
        assert {one.problem for one in past_results(connection, start)} == {plain}
    installed(engine, tmp_path, samples.HERE, row(gated, solution=OTHER, policy=samples.POLICY))
    with reading(engine) as connection:
        assert [one.solution.id for one in past_results(connection, start)] == [OTHER.id]
