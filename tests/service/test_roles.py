"""The roles of docs/deployment.md are enough for servers and workers, and for no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ProgrammingError

from db import jobs, outliers, provenance, queries, retention, sessions, workers
from db import keys as key_rows
from db.engine import open_engine, reading, writing
from db.retries import retry_job
from service import imports, keys
from service.jobs import JobQueue
from service.outliers import compare_devices
from service.retention import prune
from service.settings import Settings
from service.startup import open_database, upgrade
from service.tunings import open_tunings
from tests.db import samples
from tests.db.samples import HERE, candidate, problem
from tests.postgres import PostgresServer
from tests.service.http.uploads import RESULTS, stream
from tests.service.worker_program import execute, fork, wait

DOCUMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
CREATE, GRANT = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
pytestmark = [pytest.mark.postgres, pytest.mark.process]


@pytest.fixture(scope="module")
def roles(postgres: PostgresServer) -> Iterator[dict[str, str]]:
    """Role -> the URL of a database that the document's statements made."""
    with postgres.connect() as connection:
        for statement in CREATE.split(";\n"):
            connection.execute(statement.encode())
    plain = make_url(postgres.url("gemmtune"))
    made = {
        name: plain.set(username=f"gemmtune_{name}", password=f"{name}-password").render_as_string(False)
        for name in ("owner", "server", "worker")
    }
    upgrade(Settings(database_url=made["owner"]))
    engine = open_engine(made["owner"])
    with writing(engine) as connection:
        for statement in GRANT.split(";\n"):
            connection.execute(text(statement))
    engine.dispose()
    yield made
    postgres.drop("gemmtune")


@pytest.fixture
def engines(roles: dict[str, str]) -> Iterator[dict[str, Engine]]:
    made = {name: open_database(Settings(database_url=url)) for name, url in roles.items()}
    yield made
    for engine in made.values():
        engine.dispose()


def test_they_are_enough_for_a_tuning(
    roles: dict[str, str], engines: dict[str, Engine], tmp_path: Path
) -> None:
    with writing(engines["worker"]) as connection:
        workers.register(connection, "worker-1", "host", 1, HERE)
    tunings = open_tunings(engines["server"], Settings(database_url=roles["server"]))
    asked = samples.request()
    created = samples.submit(engines["server"], [problem()], asked)
    with writing(engines["server"]) as connection:
        tunings._queue.put(connection, samples.CLASS, created.new_jobs, 10)
    process = fork(execute, roles["worker"], samples.CLASS, "one", tmp_path)
    notes = tmp_path / "notes"
    wait(lambda: notes.exists() and "ends" in notes.read_text(), lambda: "the job engine did not run")
    process.kill()
    process.join(10)
    with writing(engines["worker"]) as connection:
        job = jobs.start_job(connection, created.new_jobs[0], "worker-1")
        assert job is not None
        begun = samples.start(problem(), created.new_jobs[0])
        sessions.begin_session(connection, begun)
        jobs.hold(connection, job, session_id=begun.id)
        samples.store_session(connection, begun, candidate(8), 1e-6, [])
        jobs.end_job(connection, job, "succeeded", {"session_id": begun.id, "verdict": None, "outcomes": {}})
        assert workers.beat(connection, "worker-1", "idle", None)
    for differs in (True, False):  # the device is set apart, its best row goes and comes again
        with writing(engines["worker"]) as connection:
            outliers.put(connection, samples.CLASS, HERE.uuid, differs, {})
            assert outliers.apply(connection, samples.CLASS, HERE.uuid, ("", ""), 10) is None
            found = queries.best_documents(connection, [problem().id], samples.CLASS, samples.POLICY.id)
            assert bool(found) is not differs
    with writing(engines["worker"]) as connection:
        shape = outliers.Shape(problem().id, {}, samples.POLICY.id, {})
        outliers.put_check(connection, HERE.id, shape, samples.BASELINE.id, 1e-6)
    compare_devices(engines["worker"], HERE)
    tunings.cancel(created.id)
    tunings.close()


def test_they_are_enough_for_retries_and_retention(roles: dict[str, str], engines: dict[str, Engine]) -> None:
    created = samples.submit(engines["server"], [problem(2)], samples.request())
    with writing(engines["worker"]) as connection:
        job = jobs.start_job(connection, created.new_jobs[0], "worker-1")
        assert job is not None
        jobs.end_job(connection, job, "failed", {}, "planted", broken=True)
    settings = Settings(database_url=roles["server"], retain_samples_days=1)
    prune(settings, engines["server"])
    with writing(engines["server"]) as connection:
        retention.delete_events(connection, -1, 10)
        retention.clear_samples(connection, -1, 0, 10)
        assert retry_job(connection, created.new_jobs[0])
    with closing(JobQueue(roles["server"])) as queue:
        queue.forget(created.new_jobs)


def test_they_are_enough_for_keys_and_imports(engines: dict[str, Engine]) -> None:
    imports.import_file(engines["server"], stream(RESULTS), "results.csv", None, "hip:gfx942:MI300X:304")
    with writing(engines["server"]) as connection:
        token = keys.create(connection, "ci", ["read"], None)
        assert key_rows.revoke(connection, token.split("_")[1])
        assert provenance.remove(connection, 1)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("server", "DROP TABLE claims"),
        ("server", "ALTER TABLE claims ADD COLUMN x TEXT"),
        ("server", "CREATE TABLE mine (x TEXT)"),
        ("server", "UPDATE alembic_version SET version_num = '9'"),
        ("worker", "SELECT * FROM api_keys"),
        ("worker", "DELETE FROM measurements"),
        ("worker", "UPDATE claims SET seconds = 0"),
        ("worker", "INSERT INTO provenance (kind) VALUES ('node')"),
        ("worker", "DROP TABLE dbos.workflow_status"),
        ("worker", "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
    ],
)
def test_they_are_enough_for_no_more(engines: dict[str, Engine], role: str, statement: str) -> None:
    refused = pytest.raises(ProgrammingError, match=r"permission denied|must be owner")
    with refused, reading(engines[role]) as connection:
        connection.execute(text(statement))
