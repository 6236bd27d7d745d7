"""The schema: what the migrations make is what the models say, and a released one never changes.

tests/data/db holds a file of each released schema, made by `python -m tests.db.asset`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, select, text

from db import exported, fleet, models, queries, schema
from db.best import rebuild_best
from db.columns import median_speedup, type_of_a
from db.engine import DatabaseBroken, open_engine, reading, writing
from db.schema import StaleSchema
from db.sessions import stored_outcomes
from db.values import table
from service.settings import Settings
from service.startup import open_database, upgrade
from tests.db import asset, samples
from tests.db.asset import FIRST, REFUSED, SECOND
from tests.postgres import ON_SQLITE

#: Every released migration, as it was released. Lines are only ever added.
RELEASED = {
    "0001_the_first_schema.py": "740a5eb6ca5382adf7d4b8a8fff443ef0ae260d643adc5c2e9c61c63aa859349",
    "0002_export_targets.py": "8c1dcde38e23a6265f7e46cfe36d136ca41ad726839fe55bbcf530b90cccc253",
    "0003_queue_from_rows.py": "b0171ced7ea4b26fed12ba53e9fdb94c9c1436814a2e3240f953afbb0313305d",
    "0004_keys_and_registered_classes.py": "3372a23ddbedafb71f0d90d3528fce2fcfc660faa53cf703e777a5f35eb5857d",
    "0005_fleet.py": "d92035c750fe2e1159263f0845d2c7c209ab65e7f08fe207b237cb835a5d8d91",
    "0006_columns_of_the_leaderboard.py": "74e297491445621807d61ddff5cec1ea7a091eb374ae19258310c243b2ff831c",
    "0007_trace_of_a_job.py": "adcae0780e02b49313c4fc815b80c74d81b232d6703ffab8416e90e097d99407",
    "0008_layers_of_problems.py": "69a58af9a8fc1566b1875bbf3acaf9743ef86aafe95c2daa2de72cc033facc9f",
    "0009_numbers_of_imported_files.py": "5a8a2f863f057a74797e272ea7ca503f84cfb94154540848424f2a951234b305",
}
MIGRATIONS = Path(schema.__file__).parent / "migrations"
_verdict = table(models.Verdict)
ASSETS = sorted(asset.FOLDER.glob("*.sqlite.gz"))


def differences(connection: Connection) -> list[object]:
    """What the models have and the database has not, or the other way round."""
    options = {"target_metadata": schema.METADATA, "include_name": schema.ours, "compare_type": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), schema.METADATA))


# ---- migrations --------------------------------------------------------------------------------


def test_the_migrations_make_what_the_models_say(engine: Engine) -> None:
    with reading(engine) as connection:
        assert differences(connection) == []
        assert set(inspect(connection).get_table_names()) >= schema.TABLES | {"alembic_version"}
    assert schema.current(engine) == schema.head()
    schema.check(engine)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE problems ADD COLUMN extra TEXT",
        "DROP INDEX ix_best_near",
        "ALTER TABLE tunings RENAME COLUMN broken TO breached",
    ],
)
def test_the_comparison_sees_a_difference(engine: Engine, change: str) -> None:
    with writing(engine) as connection:
        connection.execute(text(change))
        assert differences(connection) != []


def test_migrations_are_linear_and_numbered_without_gaps() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = list(reversed(list(ScriptDirectory.from_config(config).walk_revisions())))
    numbers = [f"{number:04}" for number in range(1, len(scripts) + 1)]
    assert [script.revision for script in scripts] == numbers == schema.revisions()
    assert [script.down_revision for script in scripts] == [None, *numbers[:-1]]
    for script in scripts:
        assert re.fullmatch(rf"{script.revision}_[a-z0-9_]+\.py", Path(script.path).name)
        assert not hasattr(script.module, "downgrade"), "there is no way down but a backup"


def test_released_migrations_are_as_they_were_released() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((MIGRATIONS / "versions").glob("0*.py"))
    }
    assert found == RELEASED


def test_every_released_schema_has_its_file() -> None:
    assert [path.name for path in ASSETS] == [f"{name[:4]}.sqlite.gz" for name in sorted(RELEASED)]


# ---- upgrading ---------------------------------------------------------------------------------


def test_upgrading_again_changes_nothing(empty_url: str) -> None:
    settings = Settings(database_url=empty_url)
    assert upgrade(settings) == schema.head()
    engine = open_engine(empty_url)
    samples.submit(engine, [samples.problem()])
    assert upgrade(settings) == schema.head()
    with reading(engine) as connection:
        assert differences(connection) == []
        assert len(queries.problems(connection, 0, 10)) == 1
    engine.dispose()


def upgrade_to(engine: Engine, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def test_rows_of_before_get_the_columns_of_0005(empty_url: str) -> None:
    engine = open_engine(empty_url)
    upgrade_to(engine, "0004")
    environment = samples.HERE
    names = ("id", "problem_id", "device_class_id", "policy_id", "request", "request_key", "priority")
    common = ", ".join(f":{name}" for name in names)
    with writing(engine) as connection:
        for statement in (
            "INSERT INTO device_classes (id, vendor, arch, product, units, revision, registered) "
            "VALUES ('c', 'cpu', 'x', 'y', 1, 0, (1 = 1))",
            "INSERT INTO policies (id, content) VALUES ('p', '{}')",
            "INSERT INTO problems (id, slug, m, n, k, batch, dtype, kind, content, created_at) "
            "VALUES ('q', 's', 1, 1, 1, 1, 'fp32', 'k', '{}', '')",
        ):
            connection.execute(text(statement))
        connection.execute(
            text(
                "INSERT INTO environments (id, device_class_id, uuid, content, created_at) "
                "VALUES (:id, 'c', :uuid, :content, '')"
            ),
            {"id": "e", "uuid": environment.uuid, "content": json.dumps(environment.to_dict())},
        )
        for job_id, status, evidence in (
            ("ours", "failed", '{"traceback": "x"}'), ("null", "failed", "null"), ("none", "failed", None),
            ("ended", "succeeded", None),
        ):  # fmt: skip
            values = dict(zip(names, (job_id, "q", "c", "p", "{}", job_id, 10), strict=True))
            connection.execute(
                text(
                    f"INSERT INTO jobs ({', '.join(names)}, status, attempt, stop_requested, evidence, "
                    f"created_at) VALUES ({common}, :status, 1, (1 = 0), :evidence, '')"
                ),
                {**values, "status": status, "evidence": evidence},
            )
    upgrade_to(engine, "head")
    with reading(engine) as connection:
        assert connection.scalars(text("SELECT software FROM environments")).all() == [
            environment.software_id
        ]
        rows = connection.execute(
            text("SELECT id, broken, retries, earlier_attempts FROM jobs ORDER BY number")
        )
        assert [(row[0], bool(row[1]), row[2], row[3]) for row in rows] == [
            ("ours", True, 0, 0), ("null", False, 0, 0), ("none", False, 0, 0), ("ended", False, 0, 0),
        ]  # fmt: skip
        assert differences(connection) == []
    engine.dispose()


def test_rows_of_before_get_the_columns_of_0006(empty_url: str) -> None:
    """Those of an earlier version that goes on writing afterwards stay empty, and are read all the same."""
    engine = open_engine(empty_url)
    settings = Settings(database_url=empty_url)
    upgrade(settings)
    asset.fill(engine)
    kept = ("speedup", "dtype_b")
    with writing(engine) as connection:
        stored = connection.scalars(text("SELECT speedup FROM verdicts ORDER BY number")).all()
        types = connection.scalars(text("SELECT dtype_b FROM problems ORDER BY number")).all()
        assert None not in (*stored, *types)
        read = (select(median_speedup()).order_by(_verdict.c.number), select(type_of_a()))
        before = [connection.scalars(query).all() for query in read]
        for name, column in zip(("verdicts", "problems"), kept, strict=True):
            connection.execute(text(f"UPDATE {name} SET {column} = NULL"))
        assert [connection.scalars(query).all() for query in read] == before == [stored, before[1]]
        for name in ("best_board", "sessions_provenance", "problem_keys_provenance", "problems_layer"):
            connection.execute(text(f"DROP INDEX ix_{name}"))
        for name, column in zip(("verdicts", "problems"), kept, strict=True):
            connection.execute(text(f"ALTER TABLE {name} DROP COLUMN {column}"))
        connection.execute(text("ALTER TABLE jobs DROP COLUMN traceparent"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0005'"))
    upgrade_to(engine, "head")
    with reading(engine) as connection:
        assert connection.scalars(text("SELECT speedup FROM verdicts ORDER BY number")).all() == stored
        assert connection.scalars(text("SELECT dtype_b FROM problems ORDER BY number")).all() == types
        assert differences(connection) == []
    assert schema.oldest() == "0005"
    engine.dispose()


def test_a_speed_up_that_is_no_number_has_no_column(empty_url: str) -> None:
    engine = open_engine(empty_url)
    upgrade(Settings(database_url=empty_url))
    asset.fill(engine)
    changes = (
        "UPDATE verdicts SET content = '{\"speedup\": {\"mid\": \"inf\"}}'", "DROP INDEX ix_best_board",
        "DROP INDEX ix_sessions_provenance", "DROP INDEX ix_problem_keys_provenance",
        "DROP INDEX ix_problems_layer",
        "ALTER TABLE verdicts DROP COLUMN speedup", "ALTER TABLE problems DROP COLUMN dtype_b",
        "ALTER TABLE jobs DROP COLUMN traceparent",
        "UPDATE alembic_version SET version_num = '0005'",
    )  # fmt: skip
    with writing(engine) as connection:
        for change in changes:
            connection.exec_driver_sql(change)
    upgrade_to(engine, "head")
    with reading(engine) as connection:
        assert set(connection.scalars(text("SELECT speedup FROM verdicts"))) == {None}
    engine.dispose()


def test_upgrades_at_once_wait_for_each_other(empty_url: str) -> None:
    settings = Settings(database_url=empty_url)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(upgrade, [settings] * 4)) == [schema.head()] * 4
    engine = open_database(settings)
    with reading(engine) as connection:
        assert differences(connection) == []
        assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar() == 1
    engine.dispose()


def test_an_upgrade_that_fails_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(empty_url)
    with writing(engine) as connection:
        connection.execute(text("CREATE TABLE workers (mine INTEGER)"))  # in the way of the last tables
    with pytest.raises(Exception, match="already exists"):
        schema.upgrade(engine)
    with reading(engine) as connection:
        assert inspect(connection).get_table_names() == ["workers"]
    engine.dispose()


# ---- refusing ----------------------------------------------------------------------------------


def test_an_empty_database_is_refused_with_the_command(empty_url: str) -> None:
    engine = open_engine(empty_url)
    assert schema.current(engine) is None
    with pytest.raises(StaleSchema, match="the database is empty; run: gemmtune db upgrade"):
        schema.check(engine)
    engine.dispose()


def test_only_a_new_file_is_made_ready_by_itself(empty_url: str) -> None:
    settings = Settings(database_url=empty_url)
    if empty_url.startswith("sqlite"):
        engine = open_database(settings)
        assert schema.current(engine) == schema.head()
        engine.dispose()
    else:
        with pytest.raises(StaleSchema, match="run: gemmtune db upgrade"):
            open_database(settings)


def test_an_old_schema_is_refused_with_the_command(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    known = schema.revisions()
    monkeypatch.setattr(schema, "revisions", lambda: [*known, "9998"])
    with pytest.raises(StaleSchema, match=rf"is '{known[-1]}', not '9998'; run: gemmtune db upgrade"):
        schema.check(engine)


def test_a_newer_schema_is_refused_and_left_alone(engine: Engine, database_url: str) -> None:
    with writing(engine) as connection:
        samples.become_later(connection, oldest="9999")
    settings = Settings(database_url=database_url)
    for action in (schema.check, schema.upgrade):
        with pytest.raises(StaleSchema, match=r"is '9999', newer than .*install the newer one"):
            action(engine)
    with pytest.raises(StaleSchema, match="newer"):
        open_database(settings)
    assert schema.current(engine) == "9999"


def test_a_newer_schema_that_keeps_this_one_is_used_and_left_alone(engine: Engine) -> None:
    with writing(engine) as connection:
        samples.become_later(connection, oldest=schema.head())
    schema.check(engine)
    schema.ready(engine)
    with pytest.raises(StaleSchema, match="newer"):
        schema.check(engine, exact=True)
    with pytest.raises(StaleSchema, match="newer"):
        schema.upgrade(engine)
    assert schema.current(engine) == "9999"


def test_a_database_says_who_may_use_it_after_its_upgrade(engine: Engine) -> None:
    with writing(engine) as connection:
        schema.set_oldest(connection, "9999")
    schema.upgrade(engine)
    with writing(engine) as connection:
        samples.become_later(connection, oldest=schema.oldest())
    schema.check(engine)


def test_a_later_schema_that_says_nothing_is_refused(engine: Engine) -> None:
    """A database of a gemmtune that did not store it."""
    with writing(engine) as connection:
        samples.become_later(connection, oldest=schema.head())
        if engine.dialect.name == "sqlite":
            connection.execute(text("PRAGMA user_version = 0"))
        else:
            connection.execute(text("COMMENT ON TABLE alembic_version IS 'anything'"))
    with pytest.raises(StaleSchema, match="newer"):
        schema.check(engine)


def test_ready_says_what_stands_in_the_way(engine: Engine) -> None:
    schema.ready(engine)
    with writing(engine) as connection:
        samples.become_later(connection, oldest="9999")
    with pytest.raises(StaleSchema, match="newer"):
        schema.ready(engine)


@ON_SQLITE
def test_a_file_that_is_gone_is_not_made_anew(engine: Engine) -> None:
    path = Path(str(engine.url.database))
    path.unlink()
    with pytest.raises(DatabaseBroken, match="bring it back"):
        schema.ready(engine)
    assert not path.exists()


# ---- released files ----------------------------------------------------------------------------


@pytest.fixture(params=ASSETS, ids=lambda path: path.name)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A user's file of a released schema, upgraded."""
    path = tmp_path / "released.sqlite"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    settings = Settings(database_url=f"sqlite:///{path}")
    before = open_engine(settings.database_url)
    assert schema.current(before) == request.param.name[:4]
    before.dispose()
    upgrade(settings)
    engine = open_database(settings)
    yield engine
    engine.dispose()


def test_a_released_file_holds_what_it_held(released: Engine) -> None:
    with reading(released) as connection:
        assert differences(connection) == []
        assert {row["id"] for row in queries.problems(connection, 0, 10)} == {FIRST.id, SECOND.id, REFUSED.id}
        (found,) = queries.device_classes(connection)
        assert (found["id"], found["workers"], found["environments"]) == (samples.CLASS, 0, 2)
        assert [row["status"] for row in fleet.workers(connection, None, 100)] == ["stopped"]
        contents = queries.environment_contents(connection, [samples.HERE.id])
        assert contents == {samples.HERE.id: samples.HERE.to_dict()}
        software = connection.scalars(text("SELECT software FROM environments")).all()
        assert set(software) == {samples.HERE.software_id}
        assert queries.policy_content(connection, samples.POLICY.id) == samples.POLICY.to_dict()

        shared, whole = queries.tunings(connection, None, 10)
        assert (whole["status"], whole["total"], whole["succeeded"], whole["failed"]) == (
            "cancelled",
            3,
            1,
            1,
        )
        assert (shared["status"], shared["total"]) == ("cancelled", 1)
        jobs = queries.tuning_jobs(connection, whole["number"], -1, 10)
        assert [job["status"] for job in jobs] == ["succeeded", "cancelled", "failed"]
        assert [job["judgement"] for job in jobs] == ["WIN", None, None]
        kinds = [row["kind"] for row in queries.events(connection, whole["number"], 0, 100)]
        assert kinds == ["queued", "started", "finished", "started", "finished", "started", "ended"]


def test_a_released_files_measurements_are_replayed_and_served(released: Engine) -> None:
    with reading(released) as connection:
        one = queries.problem(connection, FIRST.id)
        assert one is not None
        assert one["keys"] == [{"format": "tunableop", "key": asset.KEY, "count": 7}]
        (verdict,) = one["verdicts"]
        outcomes = stored_outcomes(connection, verdict["session_id"])
        assert len(outcomes) == 8
        statuses = {outcome.status.value for outcome in outcomes}
        assert statuses == {"ok", "compile_error", "wrong_result", "timeout"}
        ids = [FIRST.id, SECOND.id]
        documents = queries.best_documents(connection, ids, samples.CLASS, samples.POLICY.id)
        assert set(documents) == set(ids)
        assert '"kind":"measured"' in documents[FIRST.id]
        assert '"kind":"node","source":"node.jsonl"' in documents[SECOND.id]
        rows = list(exported.export_rows(connection, samples.CLASS, None))
        winners = {row["problem_id"]: (row["winner_id"], row["winner_family"]) for row in rows}
        assert winners == {FIRST.id: (asset.WINNER.id, "packed"), SECOND.id: (samples.BASELINE.id, "numpy")}
        numbers = {row["problem_id"]: row["targets_verdict_number"] for row in rows}
        assert numbers[SECOND.id] is None, "nothing but the baseline was in its final"
        (bundle,) = exported.target_rows(connection, [numbers[FIRST.id]])[numbers[FIRST.id]]
        names = ("target", "judgement", "solution_id", "rounds", "proven", "solution_workspace_bytes")
        assert [bundle[name] for name in names] == ["bundle", "WIN", asset.WINNER.id, 8, True, 4096]
        (claim,) = exported.claim_rows(connection, samples.CLASS)
        assert (claim["source"], claim["seconds"], claim["family"]) == ("tuned.csv", 2e-6, "tunableop")
        (alternative, *_) = queries.alternatives(connection, verdict["session_id"])
        assert alternative["solution"]["workspace_bytes"] == asset.WINNER.workspace_bytes
    with writing(released) as connection:
        rebuild_best(connection)
        assert queries.best_documents(connection, ids, samples.CLASS, samples.POLICY.id) == documents


def test_a_released_file_is_worked_on_as_a_new_one(released: Engine) -> None:
    created = samples.submit(released, [FIRST, SECOND], samples.request(priority=3))
    assert (created.known, created.shared, len(created.new_jobs)) == (1, 0, 1)
