"""A device that differs from its class is set apart: its results are in no best row until it agrees."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, select
from typer.testing import CliRunner

from backends.environment import Environment
from backends.problem import GemmProblem
from db import models, outliers, queries, sessions, tunings, workers
from db.best import rebuild_best
from db.engine import reading, writing
from db.values import table
from service import outliers as comparing
from service import records
from service.cli import app
from service.outliers import compare_devices
from service.settings import Settings
from service.targets import derive_targets
from tests.db import samples
from tests.db.samples import BASELINE, candidate, problem
from tests.fleet import GPU_CLASS, GPUS
from tests.postgres import ON_SQLITE
from tests.service.http.serving import serving
from tests.service.http.shapes import fits

ODD = GPUS[2]
SHAPES = [problem(m) for m in (16, 32, 64, 128)]
ALONE = problem(256)


def measured(
    engine: Engine, device: Environment, problems: Sequence[GemmProblem], factor: float = 1.0, tile: int = 8
) -> None:
    """Sessions of a device on which everything takes so much longer; the candidate of this tile wins."""
    winner = candidate(tile)
    for of in problems:
        with writing(engine) as connection:
            begun = samples.start(of, f"job-{device.uuid}-{factor}-{tile}", device)
            sessions.begin_session(connection, begun)
            outcomes = [samples.raced(BASELINE, 3e-6 * factor), samples.raced(winner, 1e-6 * factor)]
            sessions.append_outcomes(connection, begun.id, outcomes, 1, Counter())
            result = samples.won(of, winner, 1e-6 * factor)
            result["verdict"]["baseline_seconds"] = 3e-6 * factor
            sessions.end_session(connection, begun, result)


def winners(engine: Engine) -> dict[int, str]:
    """Rows of the problem -> the device class's best solution."""
    best, found = table(models.Best), table(models.Verdict)
    query = select(best.c.n, found.c.winner_id).join(found, found.c.number == best.c.verdict_number)
    with reading(engine) as connection:
        return {row.n: row.winner_id for row in connection.execute(query)}


def apart(engine: Engine) -> dict[str, bool]:
    with reading(engine) as connection:
        return {row["uuid"]: row["differs"] for row in outliers.rows(connection, GPU_CLASS)}


@pytest.fixture
def fleet(engine: Engine) -> Engine:
    """Three devices of a class, the last measured last: slower by a fifth, and with another winner."""
    for number, device in enumerate(GPUS[:2]):
        measured(engine, device, SHAPES, 1.0 + 0.004 * number)
    measured(engine, ODD, [*SHAPES, ALONE], 1.2, tile=16)
    return engine


def test_its_results_are_in_no_best_row(fleet: Engine, caplog: pytest.LogCaptureFixture) -> None:
    assert set(winners(fleet).values()) == {candidate(16).id}
    with caplog.at_level(logging.WARNING):
        compare_devices(fleet, GPUS[0])
    assert apart(fleet) == {ODD.uuid: True}
    assert f"device {ODD.uuid}" in caplog.text
    assert "its results are kept apart" in caplog.text
    assert winners(fleet) == {of.n: candidate(8).id for of in SHAPES}, "what it alone measured is not known"
    measured(fleet, ODD, SHAPES, 1.2, tile=32)
    assert winners(fleet) == {of.n: candidate(8).id for of in SHAPES}
    with writing(fleet) as connection:
        assert rebuild_best(connection, derive_targets) == len(SHAPES)
    caplog.clear()
    compare_devices(fleet, ODD)
    assert not caplog.text, "it is told once"


def test_it_is_merged_again_once_it_agrees(fleet: Engine) -> None:
    compare_devices(fleet, GPUS[0])
    with reading(fleet) as connection:
        (before,) = outliers.rows(connection)
    measured(fleet, ODD, SHAPES[:2], 1.001, tile=32)
    compare_devices(fleet, ODD)
    assert apart(fleet) == {ODD.uuid: True}, "two shapes of four are not enough"
    measured(fleet, ODD, SHAPES, 1.001, tile=64)
    compare_devices(fleet, ODD)
    assert apart(fleet) == {ODD.uuid: False}
    assert winners(fleet)[SHAPES[0].n] == candidate(64).id
    assert ALONE.n in winners(fleet)
    with reading(fleet) as connection:
        (after,) = outliers.rows(connection)
    assert before["content"]["ratio"] == pytest.approx(1.2, rel=0.01)
    assert after["content"]["ratio"] == pytest.approx(1.0, rel=0.01)
    assert after["applied"]


@ON_SQLITE
def test_a_comparison_that_was_cut_short_is_completed(fleet: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Exception):
        pass

    plain = outliers.apply
    calls: list[object] = []

    def once(*arguments: object) -> object:
        if calls:
            raise Killed
        calls.append(arguments)
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(comparing, "PIECE", 2)
    with monkeypatch.context() as patch:
        patch.setattr(outliers, "apply", once)
        with pytest.raises(Killed):
            compare_devices(fleet, GPUS[0])
    assert set(winners(fleet).values()) == {candidate(8).id, candidate(16).id}
    compare_devices(fleet, GPUS[1])
    assert winners(fleet) == {of.n: candidate(8).id for of in SHAPES}


@ON_SQLITE
def test_other_software_or_too_few_shapes_compare_nothing(engine: Engine) -> None:
    updated = replace(ODD, driver="590.1")
    measured(engine, GPUS[0], SHAPES)
    measured(engine, updated, SHAPES, 1.5)
    compare_devices(engine, updated)
    measured(engine, GPUS[1], SHAPES[:2], 1.5)
    compare_devices(engine, GPUS[1])
    assert apart(engine) == {}


@ON_SQLITE
def test_what_it_measured_is_not_known_to_a_tuning(fleet: Engine) -> None:
    asked = replace(samples.request(), device_class_id=GPU_CLASS)
    job, session = table(models.Job), table(models.Session)

    def submit() -> tunings.Created:
        with writing(fleet) as connection:
            return tunings.create_tuning(connection, asked, [(ALONE, 1)])

    with writing(fleet) as connection:
        workers.register(connection, "worker-2", "host", 2, ODD)
        (session_id,) = connection.scalars(select(session.c.id).where(session.c.problem_id == ALONE.id))
    created = submit()
    with writing(fleet) as connection:
        values = {"status": "succeeded", "in_flight": None, "session_id": session_id}
        connection.execute(job.update().where(job.c.id == created.new_jobs[0]).values(values))
    assert submit().known == 1
    compare_devices(fleet, GPUS[0])
    with writing(fleet) as connection:
        workers.register(connection, "worker-0", "host", 0, GPUS[0])
    assert submit().known == 0


def test_checks_compare_devices_that_measured_different_problems(engine: Engine) -> None:
    measured(engine, GPUS[0], SHAPES)
    measured(engine, ODD, [ALONE], 1.3, tile=16)

    def due() -> outliers.Shape | None:
        with reading(engine) as connection:
            return outliers.next_shape(connection, ODD, outliers.default_times(connection, ODD))

    order = []
    for seconds in (None, 3.9e-6, 3.9e-6, 3.9e-6):
        shape = due()
        assert shape is not None
        assert (shape.policy, shape.problem["dtype_a"]) == (samples.POLICY.to_dict(), "bf16")
        order.append(shape.problem_id)
        with writing(engine) as connection:
            outliers.put_check(connection, ODD.id, shape, BASELINE.id, seconds)
    assert order == [of.id for of in reversed(SHAPES)], "the latest first, and none twice"
    assert due() is None
    compare_devices(engine, ODD)
    assert apart(engine) == {}, "of two devices three shapes are no proof"
    extra = problem(512)
    measured(engine, GPUS[0], [extra])
    shape = due()
    assert shape is not None
    assert shape.problem_id == extra.id
    with writing(engine) as connection:
        outliers.put_check(connection, ODD.id, shape, BASELINE.id, 3.9e-6)
    compare_devices(engine, ODD)
    assert apart(engine) == {ODD.uuid: True}
    assert ALONE.n not in winners(engine)
    with writing(engine) as connection:  # it is repaired: newer checks of the same shapes count
        for of in (*SHAPES[:3], extra):
            again = outliers.Shape(of.id, {}, samples.POLICY.id, {})
            outliers.put_check(connection, ODD.id, again, BASELINE.id, 3e-6)
    compare_devices(engine, ODD)
    assert apart(engine) == {ODD.uuid: False}
    assert ALONE.n in winners(engine)


@ON_SQLITE
def test_a_device_alone_is_not_checked(engine: Engine) -> None:
    measured(engine, ODD, SHAPES)
    with reading(engine) as connection:
        times = outliers.default_times(connection, ODD)
        assert times == {}
        assert outliers.next_shape(connection, ODD, times) is None


@ON_SQLITE
def test_a_service_lists_it(fleet: Engine, database_url: str) -> None:
    compare_devices(fleet, GPUS[0])
    with serving(Settings(database_url=database_url, device=GPU_CLASS)) as client:
        (listed,) = fits(records.Devices, client.get("/v1/devices"))["classes"]
        (odd,) = listed["outliers"]
        assert (odd["uuid"], odd["shapes"]) == (ODD.uuid, 4)
        assert odd["ratio"] == pytest.approx(1.2, rel=0.01)
        assert "19.8% slower" in odd["reason"]
        metric = f'gemmtune_outlier_devices{{device_class="{GPU_CLASS}"}} 1.0'
        assert metric in client.get("/metrics").text
        asked = {
            "m": "256", "n": "64", "k": "128", "dtype": "bf16", "trans_b": "true",
            "policy": samples.POLICY.id,
        }  # fmt: skip
        assert client.get("/v1/solutions/best", params=asked).json()["match"] == "default"
        measured(fleet, ODD, SHAPES, 1.0, tile=64)
        compare_devices(fleet, ODD)
        (listed,) = fits(records.Devices, client.get("/v1/devices"))["classes"]
        assert listed["outliers"] == []
        assert client.get("/v1/solutions/best", params=asked).json()["match"] == "exact"
    with reading(fleet) as connection:
        assert len(queries.device_classes(connection)) == 1


@ON_SQLITE
def test_devices_tell_it(
    fleet: Engine, database_url: str, three_gpus: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def call(*options: str) -> str:
        done = CliRunner().invoke(app, ["devices", *options])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path / "cache"))
    missing = tmp_path / "missing.sqlite"
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{missing}")
    assert "kept apart" not in call()
    assert not missing.exists()
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", database_url)
    compare_devices(fleet, GPUS[0])
    assert f"note: {ODD.uuid}: the default is 19.8% slower" in call()
    rows = json.loads(CliRunner().invoke(app, ["devices", "--json"]).stdout)["devices"]
    found = {row["environment"]["uuid"]: row["outlier"] for row in rows}
    assert found[ODD.uuid]["shapes"] == 4
    assert found[GPUS[0].uuid] is None
    (tmp_path / "text").write_text("no database, " * 100)
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{tmp_path / 'text'}")
    assert "note: whether a device differs from its class is not known: the database is damaged" in call()
