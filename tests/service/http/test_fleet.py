"""Workers and jobs over HTTP and by commands, and failed jobs queued again."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update
from typer.testing import CliRunner
from typer.testing import Result as Done

from backends.errors import GemmtuneError, InvalidProblem
from db import jobs as job_rows
from db import models, workers
from db.engine import writing
from db.fleet import NoSuchName
from db.retries import JobNotRetried
from db.values import table
from service import answers, keys, records
from service.cli import app
from service.remote import ServiceError
from service.settings import Settings
from tests.service.http.filled import CLASS, ENVIRONMENT, GPU, register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits

PROBLEMS = [{"m": m, "n": 64, "k": 64} for m in (1, 2, 3)]
WORKERS, JOBS = answers.Paged[records.Worker], answers.Paged[records.Job]


def submitted(client: httpx.Client, problems: list[dict[str, Any]] = PROBLEMS) -> str:
    body = {"problems": problems, "device": "cpu"}
    return str(fits(answers.TuningCreated, client.post("/v1/tunings", json=body))["id"])


def fail(engine: Engine, job_id: str, error: str = "no default computes it") -> None:
    """Ends a job as a worker does that found the problem at fault."""
    with writing(engine) as connection:
        job = job_rows.start_job(connection, job_id, f"worker-{ENVIRONMENT.uuid}")
        assert job is not None
        job_rows.end_job(connection, job, "failed", {}, error, {"log": "planted"})


def listed(client: httpx.Client, **asked: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = fits(JOBS, client.get("/v1/jobs", params=asked))["items"]
    return items


@pytest.fixture
def failed(client: httpx.Client, engine: Engine) -> tuple[str, list[str]]:
    """A tuning of three jobs, of which the two newest failed; their ids, newest first."""
    tuning = submitted(client)
    ids = [job["id"] for job in listed(client)][:2]
    for job_id in ids:
        fail(engine, job_id)
    return tuning, ids


# ---- workers -----------------------------------------------------------------------------------


def test_workers_tell_where_they_run_and_what_failed(client: httpx.Client, engine: Engine) -> None:
    register(engine, GPU)
    name = f"worker-{ENVIRONMENT.uuid}"
    failure = {"at": "2026-01-02T03:04:05.678Z", "job_id": "job-1", "reason": "a\0b"}
    with writing(engine) as connection:
        workers.register(connection, "next", "node-2", 7, ENVIRONMENT, version="9.9")
        workers.beat(connection, "next", "measuring", "job-2", {"jobs": {}}, failure)
    page = fits(WORKERS, client.get("/v1/workers"))
    assert [row["id"] for row in page["items"]] == ["next", "worker-GPU-1", name]
    newest, gpu, earlier = page["items"]
    assert (newest["host"], newest["pid"], newest["device_uuid"]) == ("node-2", 7, ENVIRONMENT.uuid)
    assert (newest["status"], newest["job_id"], newest["version"]) == ("measuring", "job-2", "9.9")
    assert newest["last_failure"] == {**failure, "reason": "a\ufffdb"}
    assert 0 <= newest["heartbeat_age_seconds"] < 30
    assert (gpu["last_failure"], gpu["version"], earlier["status"]) == (None, None, "dead")
    latest = fits(WORKERS, client.get("/v1/workers?latest=true"))["items"]
    assert [row["id"] for row in latest] == ["next", "worker-GPU-1"]
    with writing(engine) as connection:
        silent = table(models.Worker)
        long_ago = "2020-01-01T00:00:00.000Z"
        connection.execute(update(silent).where(silent.c.id == "next").values(seen_at=long_ago))
    for state, found in (
        ("silent", ["next"]), ("idle", ["worker-GPU-1"]), ("dead", [name]), ("measuring", []),
        ("stopped", []),
    ):  # fmt: skip
        rows = fits(WORKERS, client.get("/v1/workers", params={"state": state}))["items"]
        assert [row["id"] for row in rows] == found
        assert all(row["status"] == state for row in rows)
    (silent_row,) = client.get("/v1/workers?state=silent").json()["items"]
    assert silent_row["heartbeat_age_seconds"] > 86400
    only = client.get("/v1/workers?device=cuda").json()["items"]
    assert [row["id"] for row in only] == ["worker-GPU-1"]


def test_workers_are_paged(client: httpx.Client, engine: Engine) -> None:
    register(engine, *(replace(ENVIRONMENT, uuid=f"CPU-{n}") for n in range(2, 5)))
    first = fits(WORKERS, client.get("/v1/workers?limit=3"))
    rest = fits(WORKERS, client.get("/v1/workers", params={"cursor": first["next_cursor"]}))
    ids = [row["id"] for row in (*first["items"], *rest["items"])]
    assert ids == ["worker-CPU-4", "worker-CPU-3", "worker-CPU-2", "worker-CPU-1"]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize("query", ["state=alive", "latest=maybe", "status=idle", "cursor=x", "limit=0"])
def test_bad_questions_for_workers(filled: httpx.Client, query: str) -> None:
    fault_of(filled.get(f"/v1/workers?{query}"), 422)
    fault_of(filled.get("/v1/workers?device=hip"), 404)


# ---- jobs --------------------------------------------------------------------------------------


def test_jobs_tell_why_they_failed(client: httpx.Client, failed: tuple[str, list[str]]) -> None:
    tuning, ids = failed
    rows = listed(client, state="failed")
    assert [row["id"] for row in rows] == ids
    row = rows[0]
    assert (row["error"], row["evidence"]) == ("no default computes it", {"log": "planted"})
    assert (row["attempt"], row["retries"], row["tunings"]) == (1, 0, [tuning])
    assert (row["problem"]["m"], row["device_class"], row["worker_id"]) == (3, CLASS, "worker-CPU-1")
    assert 0 <= row["age_seconds"] < 60
    assert fits(records.Job, client.get(f"/v1/jobs/{ids[0]}"))["id"] == ids[0]
    assert [row["status"] for row in listed(client, state="queued", device="cpu")] == ["queued"]
    assert listed(client, state="running") == []


def test_jobs_of_one_tuning_and_pages(client: httpx.Client, failed: tuple[str, list[str]]) -> None:
    other = submitted(client, [PROBLEMS[0], {"m": 9, "n": 9, "k": 9}])
    both = listed(client, tuning=other)
    assert {row["problem"]["m"] for row in both} == {1, 9}
    assert [row["tunings"] for row in both] == [[other], [failed[0], other]], "one job is shared"
    page = fits(JOBS, client.get("/v1/jobs?limit=3"))
    rest = fits(JOBS, client.get("/v1/jobs", params={"cursor": page["next_cursor"]}))
    assert [row["problem"]["m"] for row in (*page["items"], *rest["items"])] == [9, 3, 2, 1]
    fault_of(client.get("/v1/jobs?tuning=tuning-0"), 404)
    fault_of(client.get("/v1/jobs?tuning=%00"), 404)
    fault_of(client.get("/v1/jobs?state=broken"), 422)
    fault_of(client.get("/v1/jobs?device=hip"), 404)
    fault_of(client.get("/v1/jobs/job-0"), 404)


def test_a_failed_job_is_retried_once(client: httpx.Client, failed: tuple[str, list[str]]) -> None:
    tuning, (job_id, _) = failed
    response = client.post(f"/v1/jobs/{job_id}/retry")
    assert response.status_code == 202
    row = fits(records.Job, response)
    assert (row["status"], row["retries"], row["error"]) == ("queued", 1, None)
    fault = fault_of(client.post(f"/v1/jobs/{job_id}/retry"), 409)
    assert fault["job_status"] == "queued"
    assert f"job {job_id} is queued" in fault["detail"]
    fault_of(client.post("/v1/jobs/job-0/retry"), 404)
    fault_of(client.post("/v1/jobs/%00/retry"), 404)
    assert client.get(f"/v1/tunings/{tuning}").json()["failed"] == 1


def test_a_follower_of_a_retried_tuning_hears_its_end(client: httpx.Client, engine: Engine) -> None:
    tuning = submitted(client, PROBLEMS[:1])
    (job_id,) = (job["id"] for job in listed(client))
    fail(engine, job_id)
    events = f"/v1/tunings/{tuning}/events"
    assert client.get(events).text.count("event: ended") == 1
    client.post(f"/v1/jobs/{job_id}/retry")
    fail(engine, job_id)
    text = client.get(events).text
    assert text.count("event: ended") == 1
    assert text.index("event: retried") < text.rindex("event: started") < text.index("event: ended")


def test_reading_and_retrying_need_their_scopes(
    settings: Settings, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    register(engine, ENVIRONMENT)
    with writing(engine) as connection:
        made = {scope: keys.create(connection, scope, [scope], None) for scope in ("read", "tune", "import")}
        made["full"] = keys.create(connection, "full", ["tune"], None, {"queued_jobs": 0})
    caplog.set_level(logging.INFO, "gemmtune.audit")
    with serving(settings.model_copy(update={"keys": True})) as client:

        def headers(scope: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {made[scope]}"}

        body = {"problems": PROBLEMS[:1], "device": "cpu"}
        client.post("/v1/tunings", json=body, headers=headers("tune"))
        for path in ("/v1/jobs", "/v1/workers"):
            fault_of(client.get(path), 401)
            assert client.get(path, headers=headers("read")).status_code == 200
        (job,) = client.get("/v1/jobs", headers=headers("read")).json()["items"]
        fail(engine, job["id"])
        path = f"/v1/jobs/{job['id']}/retry"
        for scope in ("read", "import"):
            assert fault_of(client.post(path, headers=headers(scope)), 403)["scope"] == "tune"
        fault = fault_of(client.post(path, headers=headers("full")), 429)
        assert "may have 0, not 1 more" in fault["detail"]
        assert client.post(path, headers=headers("tune")).status_code == 202
    lines = [record.getMessage() for record in caplog.records if path in record.getMessage()]
    assert [line.split("status=")[1][:3] for line in lines] == ["403", "403", "429", "202"]
    assert " name=tune " in lines[-1]


# ---- commands ----------------------------------------------------------------------------------


@pytest.fixture(params=["here", "there"])
def place(
    request: pytest.FixtureRequest, client: httpx.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...]:
    """The options for the database of `client`: through it, or directly."""
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", settings.database_url)
    return ("--server", str(client.base_url)) if request.param == "there" else ()


def call(*arguments: str) -> Done:
    return CliRunner().invoke(app, list(arguments))


def test_commands_list_and_retry(
    place: tuple[str, ...], failed: tuple[str, list[str]], client: httpx.Client
) -> None:
    tuning, ids = failed
    (row,) = json.loads(call("workers", "--json", *place).stdout)["workers"]
    records.Worker.model_validate(row)
    shown = call("workers", *place).output
    assert "worker-CPU-1" in shown
    assert "idle" in shown
    found = json.loads(call("jobs", "--state", "failed", "--device", "cpu", "--json", *place).stdout)["jobs"]
    assert [records.Job.model_validate(one).id for one in found] == ids
    two = call("jobs", "--tuning", tuning, "--limit", "2", *place)
    assert "no default computes it" in two.stdout
    assert "the newest 2 are listed" in two.stderr
    done = call("retry", ids[0], *place)
    assert (done.exit_code, done.stderr) == (0, "1 of 1 failed job is queued again\n")
    again = call("retry", ids[0], *place).exception
    assert isinstance(again, JobNotRetried | ServiceError)
    assert "is queued: only a failed job" in str(again)
    answer = json.loads(call("retry", "--failed", "--tuning", tuning, "--json", *place).stdout)
    assert answer == {"retried": [ids[1]], "refused": []}
    assert call("retry", "--failed", *place).stderr == "0 of 0 failed jobs are queued again\n"
    assert listed(client, state="failed") == []
    gone = call("retry", "job-0", *place).exception
    assert isinstance(gone, NoSuchName | ServiceError)
    gone = call("jobs", "--tuning", "tuning-0", *place).exception
    assert isinstance(gone, NoSuchName | ServiceError)


def test_what_cannot_be_retried_is_told(
    place: tuple[str, ...], failed: tuple[str, list[str]], client: httpx.Client
) -> None:
    tuning, _ = failed
    client.delete(f"/v1/tunings/{tuning}")
    done = call("retry", "--failed", *place)
    assert done.exit_code == 3
    assert done.stderr.count("every tuning that asked for it was cancelled") == 2
    assert "0 of 2 failed jobs" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("retry",), ("retry", "job-1", "--failed"), ("retry", "job-1", "--tuning", "tuning-1"),
        ("jobs", "--state", "broken"), ("workers", "--state", "alive"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(arguments: tuple[str, ...]) -> None:
    assert isinstance(call(*arguments).exception, InvalidProblem)


@pytest.mark.parametrize(
    ("options", "environment", "sent"),
    [((), {}, None), (("--device", "cpu"), {}, "cpu"), ((), {"GEMMTUNE_DEVICE": "cuda:sm_90"}, "cuda:sm_90")],
)
def test_a_service_is_asked_for_no_device_that_nobody_named(
    options: tuple[str, ...],
    environment: dict[str, str],
    sent: str | None,
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's own default is a CPU, which a service of GPUs does not have."""
    seen = []

    def submit(remote: object, items: object, asked: dict[str, object]) -> None:
        seen.append(asked["device"])
        raise GemmtuneError("seen")

    monkeypatch.delenv("GEMMTUNE_DEVICE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("service.follow.submit", submit)
    command = ("tune", "--m", "1", "--n", "64", "--k", "64", "--server", str(client.base_url))
    assert str(call(*command, *options).exception) == "seen"
    assert seen == [sent]


def test_a_model_is_tuned_on_the_only_class_of_a_service(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def chosen(selector: str | None, rows: object) -> None:
        seen.append(selector)
        raise GemmtuneError("seen")

    monkeypatch.delenv("GEMMTUNE_DEVICE", raising=False)
    monkeypatch.setattr("service.commands.model.class_of", chosen)
    config = str(Path(__file__).parents[2] / "data" / "models" / "llama-3-8b.json")
    command = ("model", config, "--for", "c-header", "--tokens", "1", "--server", str(client.base_url))
    assert str(call(*command).exception) == "seen"
    assert seen == [None]
