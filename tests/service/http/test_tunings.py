"""Submitting, listing, reading and cancelling tunings."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select

from backends.environment import Environment
from db import models
from db.engine import reading, writing
from db.jobs import end_job, start_job
from db.queries import policy_content
from db.values import table
from service import answers
from service.requests import read_request
from service.settings import Settings
from tests.service.http.filled import CLASS, GPU, OTHER_CPU, POLICY, measured, problem, register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits
from tuners.effort import EFFORTS
from tuners.policy import MeasurementPolicy

ONE = {"m": 16, "n": 256, "k": 512}
TWO: dict[str, Any] = {"m": 32, "n": 256, "k": 512, "dtype": "bf16"}


def submit(client: httpx.Client, *problems: Any, **fields: Any) -> httpx.Response:
    return client.post("/v1/tunings", json={"problems": list(problems), **fields})


def jobs_of(engine: Engine) -> list[Any]:
    with reading(engine) as connection:
        return list(connection.execute(select(table(models.Job)).order_by(table(models.Job).c.number)))


# ---- submitting ------------------------------------------------------------------------------------


def test_problems_are_enough(client: httpx.Client, engine: Engine) -> None:
    response = submit(client, ONE, TWO)
    assert response.status_code == 202
    made = fits(answers.TuningCreated, response)
    assert (made["total"], made["new"], made["shared"], made["known"]) == (2, 2, 0, 0)
    assert (made["status"], made["device_class"], made["policy_id"]) == ("queued", CLASS, POLICY.id)
    assert response.headers["location"] == made["links"]["self"] == f"/v1/tunings/{made['id']}"
    jobs = jobs_of(engine)
    assert {job.problem_id for job in jobs} == {problem(**ONE).id, problem(**TWO).id}
    assert {job.priority for job in jobs} == {10}
    assert jobs[0].request["budget"]["seconds"] == Settings().seconds_per_problem
    assert jobs[0].request["rule"]["margin"] == Settings().margin


def test_a_problem_that_no_device_can_hold_is_refused_with_the_limit(
    client: httpx.Client, engine: Engine
) -> None:
    huge = {"m": 1_000_000, "n": 1_000_000, "k": 1_000_000}
    faults = fault_of(submit(client, ONE, huge), 422)["errors"]
    assert [fault["pointer"] for fault in faults] == ["/problems/1"]
    assert faults[0]["detail"].endswith(
        f" MiB to run and verify; the largest device of {CLASS} has 16,384 MiB, of which 50% may be used "
        "(8,192 MiB)"
    )
    assert jobs_of(engine) == []
    share = {"policy": {"memory_share": 0.0001}}
    assert fault_of(submit(client, TWO, {"m": 4096, "n": 4096, "k": 4096}, **share), 422)["errors"]


def test_an_effort_is_stored_as_what_it_spends(client: httpx.Client, engine: Engine) -> None:
    response = submit(client, ONE, budget={"effort": "thorough", "stop_at_roofline": 0.95})
    assert response.status_code == 202
    (job,) = jobs_of(engine)
    assert job.request["budget"] == {
        "seconds": 30.0, "candidates": None, "final_share": 0.5, "stop_at_roofline": 0.95,
    }  # fmt: skip
    thorough = EFFORTS["thorough"]
    assert job.request["rule"] == vars(thorough.rule(Settings().margin))
    assert read_request(job.request)[0] == thorough.budget(2.0, stop_at_roofline=0.95)


def test_everything_else_may_be_said(client: httpx.Client, engine: Engine) -> None:
    policy = {
        "mode": "eager", "cache": "warm", "distribution": "uniform", "max_workspace_bytes": 0,
        "deterministic_only": True, "memory_share": 0.25,
    }  # fmt: skip
    response = submit(
        client, ONE, device="cpu:x86_64", budget={"seconds_per_problem": 0.5, "candidates": 7}, policy=policy,
        search={"strategy": "random", "seed": 3, "families": ["packed", "stream"]}, rule={"margin": 0.1},
        priority=1, force=True,
    )  # fmt: skip
    assert response.status_code == 202
    (job,) = jobs_of(engine)
    assert job.priority == 1
    assert (job.request["budget"]["seconds"], job.request["budget"]["candidates"]) == (0.5, 7)
    assert job.request["search"] == {"strategy": "random", "seed": 3, "families": ["packed", "stream"]}
    assert job.request["rule"]["margin"] == 0.1
    with reading(engine) as connection:
        policies = table(models.Policy)
        content = connection.execute(
            select(policies.c.content).where(policies.c.id == job.policy_id)
        ).scalar()
    assert content == policy


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [(None, "graph"), ({}, "graph"), ({"cache": "warm"}, "graph"), ({"mode": None}, "graph"),
     ({"mode": "eager"}, "eager")],
)  # fmt: skip
@pytest.mark.parametrize(
    "gpu", [GPU, replace(GPU, vendor="hip", arch="gfx942", product="MI300X")], ids=["cuda", "hip"]
)
def test_without_a_mode_it_is_the_devices_whether_its_backend_is_here_or_not(
    client: httpx.Client, engine: Engine, policy: Any, wanted: str, gpu: Environment
) -> None:
    register(engine, gpu)
    said = {} if policy is None else {"policy": policy}
    response = submit(client, ONE, device=str(gpu.device_class), **said)
    assert response.status_code == 202, response.text
    (job,) = jobs_of(engine)
    assert job.policy_id == response.json()["policy_id"]
    with reading(engine) as connection:
        content = policy_content(connection, job.policy_id)
    assert content == MeasurementPolicy(wanted, (policy or {}).get("cache", "cold")).to_dict()


def test_equal_problems_are_one_whose_counts_add_up(client: httpx.Client) -> None:
    col = {"m": 256, "n": 16, "k": 512, "layout": "col"}  # the same memory, read by columns
    made = submit(client, {**ONE, "count": 3}, TWO, {**ONE, "dtype": "fp32"}, {**col, "count": 5}).json()
    assert made["total"] == 2
    jobs = client.get(made["links"]["self"]).json()["jobs"]["items"]
    assert [(job["problem_id"], job["count"]) for job in jobs] == [
        (problem(**ONE).id, 9),
        (problem(**TWO).id, 1),
    ]


def test_jobs_in_flight_are_shared_and_results_known(client: httpx.Client, engine: Engine) -> None:
    assert submit(client, ONE).json()["new"] == 1
    again = submit(client, ONE, TWO).json()
    assert (again["new"], again["shared"], again["known"]) == (1, 1, 0)
    with writing(engine) as connection:
        job = start_job(connection, jobs_of(engine)[0].id, "worker-CPU-1")
        assert job is not None
        session_id = measured(connection, problem(**ONE), job_id=job.id)
        jobs = table(models.Job)
        connection.execute(jobs.update().where(jobs.c.id == job.id).values(session_id=session_id))
        end_job(connection, job, "succeeded", {})
    known = submit(client, ONE).json()
    assert (known["status"], known["new"], known["known"]) == ("succeeded", 0, 1)
    assert submit(client, ONE, force=True).json()["new"] == 1
    (found,) = client.get(known["links"]["self"]).json()["jobs"]["items"]
    assert found["verdict"]["judgement"] == "WIN"
    assert found["notes"] == ["a note"]
    fits(answers.Tuning, client.get(known["links"]["self"]))


def test_ten_thousand_problems_are_taken_at_once(client: httpx.Client) -> None:
    begin = time.monotonic()
    made = submit(client, *({"m": i, "n": 64, "k": 64} for i in range(1, 10_001))).json()
    assert (made["total"], made["new"]) == (10_000, 10_000)
    assert time.monotonic() - begin < 60  # a hang, not a speed


BAD_PROBLEMS = [
    ({"m": 0, "n": 1, "k": 1}, "/m"),
    ({"m": 1, "n": 1}, "/k"),
    ({"m": 1, "n": 1, "k": "1"}, "/k"),
    ({"m": 2**31, "n": 1, "k": 1}, "/m"),
    ({"m": 2**70, "n": 1, "k": 1}, "/m"),
    ({**ONE, "dtype": "fp17"}, "/dtype"),
    ({**ONE, "lda": 3}, "/lda"),
    ({**ONE, "zeal": 3}, "/zeal"),
    ({**ONE, "count": 0}, "/count"),
    ({**ONE, "count": True}, "/count"),
    ({**ONE, "count": 2**31}, "/count"),
    ({**ONE, "alpha": 0}, "/alpha"),
    ("16x16x16", ""),
    (None, ""),
    ([], ""),
]


def test_every_bad_problem_is_told_at_once(client: httpx.Client, engine: Engine) -> None:
    fault = fault_of(submit(client, ONE, *(bad for bad, _ in BAD_PROBLEMS)), 422)
    told = [part["pointer"] for part in fault["errors"]]
    assert told == [f"/problems/{index}{field}" for index, (_, field) in enumerate(BAD_PROBLEMS, 1)]
    assert all(part["detail"] for part in fault["errors"])
    assert not jobs_of(engine)


def test_bad_problems_and_bad_fields_are_told_together(client: httpx.Client) -> None:
    fault = fault_of(submit(client, {"m": 1}, priority=0, deviec="cpu"), 422)
    assert {part["pointer"] for part in fault["errors"]} == {"/problems/0/n", "/priority", "/deviec"}


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"problems": []}, "/problems"),
    ({"problems": {}}, "/problems"),
    ({"problems": None}, "/problems"),
    ({"unknown": 1}, "/unknown"),
    ({"budget": {"seconds_per_problem": 0}}, "/budget/seconds_per_problem"),
    ({"budget": {"seconds_per_problem": 3601}}, "/budget/seconds_per_problem"),
    ({"budget": {"seconds_per_problem": "2"}}, "/budget/seconds_per_problem"),
    ({"budget": {"campaign_seconds": "60"}}, "/budget/campaign_seconds"),
    ({"budget": {"candidates": 0}}, "/budget/candidates"),
    ({"budget": {"hours": 1}}, "/budget/hours"),
    ({"budget": {"effort": "lazy"}}, "/budget/effort"),
    ({"budget": {"stop_at_roofline": 0.0}}, "/budget/stop_at_roofline"),
    ({"budget": {"stop_at_roofline": 1.1}}, "/budget/stop_at_roofline"),
    ({"budget": 2}, "/budget"),
    ({"policy": {"mode": "fast"}}, "/policy/mode"),
    ({"policy": {"mode": "graph"}}, "/policy/mode"),
    ({"policy": {"cache": None}}, "/policy/cache"),
    ({"policy": {"max_workspace_bytes": -1}}, "/policy/max_workspace_bytes"),
    ({"policy": {"max_workspace_bytes": 2**63}}, "/policy/max_workspace_bytes"),
    ({"policy": {"memory_share": 1}}, "/policy/memory_share"),
    ({"policy": {"x": 1}}, "/policy/x"),
    ({"search": {"strategy": "luck"}}, "/search/strategy"),
    ({"search": {"seed": -1}}, "/search/seed"),
    ({"search": {"options": {"nonsense": 1}}}, "/search/options"),
    ({"search": {"options": {"near_turns": 0}}}, "/search/options"),
    ({"search": {"strategy": "random", "options": {"whole": 1}}}, "/search/options"),
    ({"search": {"families": []}}, "/search/families"),
    ({"search": {"families": ["packed", "nope"]}}, "/search/families/1"),
    ({"search": {"families": ["a\0b"]}}, "/search/families/0"),
    ({"rule": {"margin": 1}}, "/rule/margin"),
    ({"rule": {"confidence": 0.9}}, "/rule/confidence"),
    ({"priority": 1001}, "/priority"),
    ({"priority": 1.5}, "/priority"),
    ({"priority": True}, "/priority"),
    ({"force": 1}, "/force"),
    ({"device": 1}, "/device"),
    ({"device": "hip"}, "/device"),
    ({"device": "a\0b"}, "/device"),
]


@pytest.mark.parametrize(("fields", "pointer"), BAD_FIELDS, ids=lambda value: str(value)[:60])
def test_bad_fields_name_their_place(filled: httpx.Client, fields: dict[str, Any], pointer: str) -> None:
    fault = fault_of(filled.post("/v1/tunings", json={"problems": [ONE], **fields}), 422)
    assert [part["pointer"] for part in fault["errors"]] == [pointer]


def test_limits_are_settings(settings: Settings, engine: Engine) -> None:
    with serving(settings.model_copy(update={"max_problems": 2, "max_page": 5})) as client:
        fault = fault_of(submit(client, ONE, ONE, ONE), 422)
        assert fault["errors"][0]["pointer"] == "/problems"
        assert "GEMMTUNE_MAX_PROBLEMS" in fault["detail"]
        assert "between 1 and 5" in fault_of(client.get("/v1/tunings?limit=6"), 422)["detail"]


def test_without_a_worker_the_message_says_what_to_do(settings: Settings) -> None:
    with serving(settings) as client:
        fault = fault_of(submit(client, ONE), 422)
        assert fault["errors"][0]["pointer"] == "/device"
        assert "gemmtune worker" in fault["detail"]
        fault = fault_of(client.get("/v1/solutions/best", params=ONE), 404)
        assert "gemmtune worker" in fault["detail"]


def test_an_ambiguous_device_lists_the_classes(client: httpx.Client, engine: Engine) -> None:
    register(engine, OTHER_CPU)
    time.sleep(1.1)  # classes are looked up once a second
    fault = fault_of(submit(client, ONE, device="cpu"), 409)
    assert fault["classes"] == sorted([CLASS, str(OTHER_CPU.device_class)])
    assert submit(client, ONE, device="cpu:x86_64").status_code == 202


def test_a_device_whose_backend_is_not_here_is_its_workers_matter(
    client: httpx.Client, engine: Engine
) -> None:
    register(engine, GPU)
    time.sleep(1.1)
    made = submit(client, ONE, device="CUDA", policy={"mode": "graph"}, search={"families": ["cublaslt"]})
    assert made.json()["device_class"] == str(GPU.device_class)


# ---- reading ---------------------------------------------------------------------------------------


def test_tunings_are_listed_newest_first_by_pages(client: httpx.Client) -> None:
    ids = [submit(client, ONE).json()["id"] for _ in range(5)]
    found: list[str] = []
    cursor = None
    while True:
        page = fits(
            answers.Paged[answers.TuningSummary],
            client.get("/v1/tunings", params={"limit": 2, **({"cursor": cursor} if cursor else {})}),
        )
        found += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ids[::-1]
    client.delete(f"/v1/tunings/{ids[0]}")
    only = client.get("/v1/tunings?status=cancelled").json()["items"]
    assert [item["id"] for item in only] == [ids[0]]
    fault_of(client.get("/v1/tunings?status=gone"), 422)


def test_a_tunings_jobs_are_paged(client: httpx.Client) -> None:
    made = submit(client, *({"m": i, "n": 64, "k": 64} for i in range(1, 8))).json()
    found: list[int] = []
    cursor = None
    while True:
        params = {"limit": 3, **({"jobs_cursor": cursor} if cursor else {})}
        page = fits(answers.Tuning, client.get(made["links"]["self"], params=params))
        found += [job["problem"]["m"] for job in page["jobs"]["items"]]
        cursor = page["jobs"]["next_cursor"]
        if cursor is None:
            break
    assert found == list(range(1, 8))
    assert (page["total"], page["started"], page["succeeded"], page["failed"]) == (7, 0, 0, 0)
    assert "jobs_cursor" in fault_of(client.get(made["links"]["self"] + "?cursor=x"), 422)["detail"]
    fault = fault_of(client.get(made["links"]["self"] + "?jobs_cursor=x"), 422)
    assert fault["errors"][0]["parameter"] == "jobs_cursor"


@pytest.mark.parametrize("name", ["tuning-0", "x", "a%00b", "%F0%9F%91%8D", "a%2Fb", "..%2F..", "x" * 500])
def test_what_is_no_tuning_is_404(filled: httpx.Client, name: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        fault_of(filled.request(method, f"/v1/tunings/{name}{path}"), 404)


# ---- cancelling ------------------------------------------------------------------------------------


def test_cancelling_is_idempotent_and_frees_jobs(client: httpx.Client, engine: Engine) -> None:
    first, second = submit(client, ONE).json(), submit(client, ONE, TWO).json()
    for _ in range(2):
        response = client.delete(second["links"]["self"])
        assert response.status_code == 200
        assert fits(answers.TuningSummary, response)["status"] == "cancelled"
    statuses = {job.problem_id: job.status for job in jobs_of(engine)}
    assert statuses == {problem(**ONE).id: "queued", problem(**TWO).id: "cancelled"}
    assert client.get(first["links"]["self"]).json()["status"] == "queued"
    assert client.delete(first["links"]["self"]).json()["status"] == "cancelled"
    assert {job.status for job in jobs_of(engine)} == {"cancelled"}
