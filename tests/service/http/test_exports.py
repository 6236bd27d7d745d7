"""Files for other tools."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, delete

from db import models, queries
from db.engine import reading, writing
from db.values import put_environment, table
from service import exports, records
from service.formats import WRITERS, ExportRefused
from service.imports import import_file
from service.settings import Settings
from tests.service.http import filled as filled_module
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import (
    CLASS,
    ENVIRONMENT,
    POLICY,
    candidates,
    fill,
    measured,
    problem,
    register,
)
from tests.service.http.shapes import fault_of, fits
from tests.service.http.uploads import RESULTS, UNTUNED, stream
from tuners.policy import MeasurementPolicy

#: Formats of our own, which take every row.
OWN = ("json", "jsonl", "csv")
GPU_CLASS = "hip:gfx942:MI300X:304"


def rows_of(response: httpx.Response) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = response.json()["rows"]
    return rows


@pytest.mark.parametrize("format_name", OWN)
def test_every_best_row_is_written(filled: httpx.Client, format_name: str) -> None:
    response = filled.get(f"/v1/exports/{format_name}")
    writer = WRITERS[format_name]
    assert response.status_code == 200
    assert response.headers["content-type"].partition(";")[0] == writer.media_type
    name = f"gemmtune-{format_name}-cpu-x86_64-AMD-EPYC-9B14-2{writer.suffix}"
    assert response.headers["content-disposition"] == f'attachment; filename="{name}"'
    if format_name == "json":
        found = {row["problem_id"] for row in rows_of(response)}
    elif format_name == "jsonl":
        lines = [json.loads(line) for line in response.text.splitlines()]
        found = {line["problem_id"] for line in lines if "problem_id" in line}
    else:
        found = {row["problem_id"] for row in csv.DictReader(io.StringIO(response.text))}
    assert found == {problem.id for problem in PROBLEMS}


def test_a_row_says_what_was_measured(client: httpx.Client, engine: Engine) -> None:
    asked = problem(1, 768, 768, dtype="fp16", epilogue="bias")
    with writing(engine) as connection:
        session_id = measured(connection, asked)
    import_file(engine, stream(UNTUNED), "untuned.csv")
    (row,) = rows_of(client.get("/v1/exports/json"))
    assert row["problem"] == asked.to_dict()
    assert row["solution"]["id"] == candidates(asked)[0].id
    assert row["environment"] == ENVIRONMENT.to_dict()
    assert row["policy"] == POLICY.to_dict()
    assert (row["judgement"], row["provenance"], row["session"]) == ("WIN", "measured", session_id)
    assert row["speedup"]["mid"] == pytest.approx(2.0)
    assert row["rounds"] == 20


def test_a_file_is_tagged(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(16, 256, 512))
    first = client.get("/v1/exports/json")
    tag = {"If-None-Match": first.headers["etag"]}
    again = client.get("/v1/exports/json", headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    for other in ("/v1/exports/jsonl", "/v1/exports/json?imported=true", "/v1/exports/csv"):
        assert client.get(other, headers=tag).status_code == 200
    with writing(engine) as connection:
        measured(connection, problem(32, 256, 512))
    assert client.get("/v1/exports/json", headers=tag).status_code == 200


def test_imported_rows_are_written_where_asked_for(client: httpx.Client, engine: Engine) -> None:
    import_file(engine, stream(RESULTS), "results.csv", None, GPU_CLASS)
    fault = fault_of(client.get("/v1/exports/json", params={"device": "hip"}), 409)
    assert "nothing was measured" in fault["detail"]
    (row,) = rows_of(client.get("/v1/exports/json", params={"device": "hip", "imported": "true"}))
    assert (row["provenance"], row["judgement"], row["source"]) == ("imported", "", "results.csv")
    assert row["baseline"] is None, "the file tells nothing of one"


def test_claims_of_the_default_are_counted(client: httpx.Client, engine: Engine) -> None:
    both = RESULTS + b"GemmTunableOp_BFloat16_NN,nn_64_64_64_ld_64_64_64,Default,0.01\n"
    import_file(engine, stream(both), "results.csv", None, GPU_CLASS)
    asked = {"device": "hip", "imported": "true", "report": "true"}
    found = fits(records.ExportReport, client.get("/v1/exports/json", params=asked))
    assert found["written"] == 1
    assert found["omitted"]["the claim is the target's own default"]["count"] == 1


@pytest.mark.parametrize("format_name", OWN)
def test_workspace_is_limited_in_every_format(filled: httpx.Client, format_name: str) -> None:
    asked = {"max_workspace": "0", "report": "true"}
    found = fits(records.ExportReport, filled.get(f"/v1/exports/{format_name}", params=asked))
    (left,) = found["omitted"].items()
    assert left[0] == "needs more workspace than the 0 bytes that it may use"
    assert found["written"] + left[1]["count"] == len(PROBLEMS)


@pytest.mark.parametrize("format_name", OWN)
def test_a_rows_workspace_is_what_its_own_problem_took(
    client: httpx.Client, engine: Engine, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {16: 4096, 32: 1024, 64: 0}
    winner = candidates(problem(16, 256, 512))[0]
    with writing(engine) as connection:
        for m, size in sizes.items():
            own = [replace(winner, workspace_bytes=size), *candidates(problem(16, 256, 512))[1:]]
            monkeypatch.setattr(filled_module, "candidates", lambda *_, own=own: own)
            measured(connection, problem(m, 256, 512))
    wanted = {problem(m, 256, 512).id: size for m, size in sizes.items()}

    def found(**asked: int) -> dict[str, int]:
        text = client.get(f"/v1/exports/{format_name}", params=asked).text
        if format_name == "csv":
            rows = csv.DictReader(io.StringIO(text))
            return {row["problem_id"]: int(row["workspace_bytes"]) for row in rows}
        lines = json.loads(text)["rows"] if format_name == "json" else map(json.loads, text.splitlines())
        return {row["problem_id"]: row["solution"]["workspace_bytes"] for row in lines if "problem_id" in row}

    assert found() == wanted
    assert found(max_workspace=1024) == {name: size for name, size in wanted.items() if size <= 1024}


@pytest.mark.parametrize("format_name", OWN)
def test_a_claims_workspace_and_determinism_are_its_files(
    client: httpx.Client, engine: Engine, format_name: str
) -> None:
    """Another problem's measurement of the solution says nothing of them, nor they of it."""
    asked = problem(16, 256, 512)
    winner = candidates(asked)[0]
    with writing(engine) as connection:
        measured(connection, asked)
    file = client.get(f"/v1/exports/{format_name}").content
    file = file.replace(b"1048576,,", b"77,false,").replace(
        b'"workspace_bytes":1048576,"deterministic":null', b'"workspace_bytes":77,"deterministic":false'
    )
    with writing(engine) as connection:
        connection.execute(delete(table(models.Best)))
    import_file(engine, stream(file), "export", format_name)
    with reading(engine) as connection:
        row = queries.solution(connection, winner.id)
    assert row is not None
    assert (row["workspace_bytes"], row["deterministic"]) == (winner.workspace_bytes, None)
    (back,) = rows_of(client.get("/v1/exports/json", params={"imported": "true"}))
    assert back["solution"] == {**winner.to_dict(), "workspace_bytes": 77, "deterministic": False}
    parameters: dict[str, Any] = {"m": 16, "n": 256, "k": 512, "imported": "true"}
    answered = client.get("/v1/solutions/best", params=parameters).json()
    assert (answered["match"], answered["solution"]) == ("imported", back["solution"])


def test_a_tools_file_goes_round(client: httpx.Client, engine: Engine) -> None:
    """A row measured for the target's environment is written under the key that its tool gave it."""
    import_file(engine, stream(RESULTS), "results.csv", None, GPU_CLASS)
    validators = ["PT_VERSION:2.9.0", "ROCM_VERSION:6.4.0.0-1", "ROCBLAS_VERSION:5.2.0.dabb6df2b9",
                  "GCN_ARCH_NAME:gfx942:sramecc+:xnack-", "HIPBLASLT_VERSION:1.0.0-x"]  # fmt: skip
    asked = {"device": "hip", "target": "torch-2.9+rocm", "imported": "true", "validator": validators}
    response = client.get("/v1/exports/tunableop", params=asked)
    assert response.status_code == 200, response.text
    report = client.get("/v1/exports/tunableop", params={**asked, "report": "true"})
    assert fits(records.ExportReport, report)["written"] == 1
    key = "GemmTunableOp_BFloat16_NN,nn_1024_1024_1024_ld_1024_1024_1024"
    assert f"{key},Gemm_Rocblas_-621294427" in response.text
    assert "Validator,ROCBLAS_VERSION,5.2.0.dabb6df2b9" in response.text


def test_what_makes_no_sense_is_refused(filled: httpx.Client) -> None:
    fault = fault_of(filled.get("/v1/exports/tunableop"), 409)
    assert "target" in fault["detail"]
    fault_of(filled.get("/v1/exports/tunableop", params={"target": "torch-9.9+cuda"}), 409)
    fault = fault_of(filled.get("/v1/exports/tunableop", params={"target": "torch-2.9+cuda"}), 409)
    assert "detail" in fault
    fault_of(filled.get("/v1/exports/json", params={"target": "torch-2.9+cuda"}), 409)


def test_a_file_without_a_row_is_refused_with_its_report(filled: httpx.Client) -> None:
    fault = fault_of(filled.get("/v1/exports/json", params={"device": "cuda"}), 409)
    assert fault["report"]["written"] == 0
    assert "nothing was measured on cuda:" in fault["detail"]
    other = MeasurementPolicy(cache="warm").id
    fault = fault_of(filled.get("/v1/exports/json", params={"policy": other}), 409)
    assert f"{POLICY.id} ({len(PROBLEMS)} rows)" in fault["detail"]
    report = filled.get("/v1/exports/json", params={"policy": other, "report": "1"})
    assert fits(records.ExportReport, report)["written"] == 0


def test_the_report_alone(filled: httpx.Client) -> None:
    found = fits(records.ExportReport, filled.get("/v1/exports/csv?report=true"))
    assert (found["written"], found["omitted"]) == (len(PROBLEMS), {})
    assert (found["format"], found["device_class"], found["policy_id"]) == ("csv", CLASS, POLICY.id)
    assert found["gain"] == pytest.approx(
        {
            "rows": len(PROBLEMS),
            "geometric_mean": 2.0,
            "problems": len(PROBLEMS),
            "all_problems": 2.0,
            "with_bundle": 2.0,
        }
    )
    assert (found["tune_again"], found["one_seed"]) == (0, 0)


def test_a_bundle_beside_a_file_that_cannot_name_our_kernels(filled: httpx.Client) -> None:
    """No library's solution was judged there: the sessions say so, and the file has no row."""
    fault = fault_of(filled.get("/v1/exports/c-header", params={"target": "openblas"}), 409)
    found = fault["report"]
    assert (found["written"], found["gain"], found["tune_again"]) == (0, None, 0)
    assert sum(one["count"] for one in found["omitted"].values()) == len(PROBLEMS)
    both = fits(
        records.ExportReport, filled.get("/v1/exports/c-header", params={"target": "bundle", "report": "1"})
    )
    assert (both["written"], both["gain"]["with_bundle"]) == (len(PROBLEMS), pytest.approx(2.0))


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("json?device=hip", 404),
        ("json?device=cpu", 409),
        ("nothing", 404),
        ("JSON", 404),
        ("json%00", 404),
        ("json?policy=a%20b", 422),
        ("json?validator=novalue", 422),
        ("json?validator=a:1&validator=a:2", 422),
        ("json?validator=a:%0A", 422),
        ("json?max_workspace=-1", 422),
        ("json?imported=maybe", 422),
        ("json?ties=sometimes", 422),
        ("json?device=cpu:x86_64&device=cuda", 422),
        ("json?format=x", 422),
    ],
)
def test_bad_questions(filled: httpx.Client, query: str, status: int) -> None:
    fault_of(filled.get(f"/v1/exports/{query}"), status)


def test_many_rows_are_streamed(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        for m in range(1, 200):
            measured(connection, problem(m, 64, 64))
    with client.stream("GET", "/v1/exports/jsonl") as response:
        assert "content-length" not in response.headers
        assert sum(1 for line in response.iter_lines() if '"problem_id"' in line) == 199
    for _ in range(30):  # readers who leave take no connection with them
        with client.stream("GET", "/v1/exports/jsonl") as response:
            next(response.iter_bytes(10))
    assert client.get("/readyz").status_code == 200


# ---- as the command line does it -------------------------------------------------------------------


def test_an_export_without_a_server(settings: Settings, engine: Engine) -> None:
    asked = [problem(16, 256, 512), problem(32, 256, 512)]
    fill(engine, asked)
    chosen = exports.Selection(ENVIRONMENT.device_class, POLICY.id)
    made = exports.open_export(engine, "jsonl", chosen)
    assert len("".join(made.pieces).splitlines()) == 4
    assert made.report.written == 2
    with reading(engine) as connection:
        assert exports.export_tag(connection, "jsonl", chosen) == made.tag
    assert exports.open_export(engine, "csv", chosen).whole_report().written == 2
    with pytest.raises(ExportRefused, match="no format that can be written"):
        exports.open_export(engine, "nothing", chosen)
    other = replace(chosen, policy_id="other")
    empty = exports.open_export(engine, "csv", other)
    assert "".join(exports.until_written(empty)).count("\n") == 1
    assert "measured under" in exports.nothing_reason(engine, other, empty.report)


def test_the_header_speaks_of_where_the_rows_were_measured(settings: Settings, engine: Engine) -> None:
    """A newer driver that nothing was measured with yet is not among the environments."""
    old = problem(16, 256, 512)
    register(engine, ENVIRONMENT)
    with writing(engine) as connection:
        measured(connection, old)
        put_environment(connection, replace(ENVIRONMENT, driver="Linux 7"))
    made = exports.open_export(engine, "json", exports.Selection(ENVIRONMENT.device_class, POLICY.id))
    assert "Linux 7" not in "".join(made.pieces)
