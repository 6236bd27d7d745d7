"""GET /v1/measurements and its data card, as clients meet them."""

from __future__ import annotations

import csv
import io
import json
import socket
import sys
import time
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, delete, func, select, update

from db import jobs, models, retention
from db.engine import writing
from db.values import table
from service.imports import import_file
from service.measured import COLUMNS
from service.settings import Settings
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import CLASS, candidates, fill, measured, problem
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of

#: Of each session of tests.service.http.filled.
OUTCOMES = 4 + 1 + 4 + 1
NAMES = [column.name for column in COLUMNS]


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.fixture(scope="module")
def rows(filled: httpx.Client) -> list[dict[str, Any]]:
    return lines(filled.get("/v1/measurements"))


def test_every_outcome_is_a_row_with_what_it_is_about(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == OUTCOMES * len(PROBLEMS)
    assert all(list(row) == NAMES for row in rows)
    assert len({row["number"] for row in rows}) == len(rows)
    asked = problem(16, 256, 512, dtype="bf16", trans_b=True, epilogue="bias_relu")
    of = [row for row in rows if row["problem_id"] == asked.id]
    first = of[0]
    assert (first["m"], first["n"], first["k"], first["trans_b"]) == (16, 256, 512, "T")
    assert first["problem"] == {
        "m": 16, "n": 256, "k": 512, "dtype": "bf16", "trans_b": True, "epilogue": "bias_relu",
    }  # fmt: skip
    assert first["flops"] == 2 * 16 * 256 * 512
    winner = candidates(asked)[0]
    assert {row["solution_id"] for row in of if row["winner"]} == {winner.id}
    assert {row["family"] for row in of if row["baseline"]} == {"openblas"}
    (wrong,) = (row for row in of if row["status"] == "wrong_result")
    assert (wrong["seconds"], wrong["samples"], wrong["evidence"]) == (None, [], {"element": [0, 1]})
    assert {row["judgement"] for row in of} == {"WIN"}


def test_the_kinds_of_file_have_the_same_rows(filled: httpx.Client, rows: list[dict[str, Any]]) -> None:
    found = filled.get("/v1/measurements?format=csv")
    assert found.headers["content-type"].startswith("text/csv")
    cells = list(csv.DictReader(io.StringIO(found.text)))
    assert list(cells[0]) == NAMES
    answer = filled.get("/v1/measurements?format=parquet")
    assert answer.headers["content-disposition"] == 'attachment; filename="gemmtune-measurements.parquet"'
    assert "content-encoding" not in answer.headers, "it is compressed inside"
    read = pq.read_table(io.BytesIO(answer.content))
    assert read.column_names == NAMES
    assert read.schema.field("seconds").metadata[b"unit"] == b"s"
    last = int(answer.headers["x-last-measurement"])
    assert read.schema.metadata[b"gemmtune.measurements"] == b"%d" % last
    for row, cell, value in zip(rows, cells, read.to_pylist(), strict=True):
        for column in COLUMNS:
            name, wanted = column.name, row[column.name]
            if column.kind == "json":
                assert json.loads(cell[name]) == json.loads(value[name]) == wanted
                continue
            assert value[name] == wanted, name
            if column.kind == "floats":
                assert json.loads(cell[name]) == wanted
            elif column.kind == "bool":
                assert cell[name] == str(wanted).lower()
            elif column.kind in ("int", "float"):
                assert cell[name] == "" if wanted is None else float(cell[name]) == wanted
            else:
                assert cell[name] == wanted


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"device": "cpu:x86_64"}, lambda row: True),
        ({"device": "cuda"}, lambda row: False),
        ({"dtype": "bf16"}, lambda row: row["dtype"] == "bf16"),
        ({"problem": PROBLEMS[0].id}, lambda row: row["problem_id"] == PROBLEMS[0].id),
        ({"family": "packed"}, lambda row: row["family"] == "packed"),
        ({"since": "2020-01-01"}, lambda row: True),
        ({"since": "2999-01-01T12:00:00+02:00"}, lambda row: False),
        ({"last": "12"}, lambda row: row["number"] <= 12),
        ({"policy": "another"}, lambda row: False),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_filters_leave_rows_out(
    filled: httpx.Client, rows: list[dict[str, Any]], asked: dict[str, str], kept: Any
) -> None:
    wanted = [row for row in rows if kept(row)]
    assert lines(filled.get("/v1/measurements", params=asked)) == wanted
    read = pq.read_table(
        io.BytesIO(filled.get("/v1/measurements", params={**asked, "format": "parquet"}).content)
    )
    assert read.num_rows == len(wanted)
    card = filled.get("/v1/measurements/card", params=asked).text
    assert f"\n{len(wanted):,} measurements of " in card


def test_a_tunings_measurements(client: httpx.Client, engine: Engine) -> None:
    fill(engine, [problem(16, 256, 512)])
    body = {"problems": [{"m": 32, "n": 256, "k": 512, "count": 7}], "device": CLASS}
    made = client.post("/v1/tunings", json=body).json()
    assert lines(client.get("/v1/measurements", params={"tuning": made["id"]})) == []
    job = client.get(f"/v1/tunings/{made['id']}").json()["jobs"]["items"][0]
    with writing(engine) as connection:
        measured(connection, problem(32, 256, 512), job_id=job["id"])
    found = lines(client.get("/v1/measurements", params={"tuning": made["id"]}))
    assert len(found) == OUTCOMES
    assert {(row["problem_id"], row["count"]) for row in found} == {(problem(32, 256, 512).id, 7)}


def test_a_file_that_has_not_changed_is_not_sent_again(client: httpx.Client, engine: Engine) -> None:
    fill(engine, [problem(16, 256, 512)])
    made = client.post(
        "/v1/tunings", json={"problems": [{"m": 32, "n": 64, "k": 512}], "device": CLASS}
    ).json()
    job = client.get(f"/v1/tunings/{made['id']}").json()["jobs"]["items"][0]["id"]
    verdict, stored = table(models.Verdict), table(models.Job)
    session_id = lines(client.get("/v1/measurements"))[0]["session_id"]

    def measure() -> None:
        with writing(engine) as connection:
            measured(connection, problem(64, 256, 512))

    def lose_a_verdict() -> None:
        """As it was before the session's end."""
        with writing(engine) as connection:
            connection.execute(delete(table(models.TargetVerdict)))
            connection.execute(delete(table(models.Best)))
            last = select(func.max(verdict.c.number)).scalar_subquery()
            connection.execute(delete(verdict).where(verdict.c.number == last))

    def share_a_session() -> None:
        with writing(engine) as connection:
            jobs.start_job(connection, job, "worker")
            connection.execute(update(stored).where(stored.c.id == job).values(session_id=session_id))

    def clear_samples() -> None:
        with writing(engine) as connection:
            assert retention.clear_samples(connection, -1, 0, 1)[0] == 1

    def count_calls() -> None:
        import_file(engine, io.BytesIO(b"m,n,k,dtype,count\n16,256,512,fp32,41\n"), "app.csv")

    changes = (measure, count_calls, lose_a_verdict, clear_samples, share_a_session)
    query = {"tuning": made["id"]}
    asked: list[dict[str, Any]] = [{}, {"format": "csv"}, {"dtype": "fp32"}, query, {"last": "5"}]
    for change in changes:
        first = [client.get("/v1/measurements", params=one) for one in asked]
        tags = [answer.headers["etag"] for answer in first]
        assert len(set(tags)) == len(asked)
        for one, tag in zip(asked, tags, strict=True):
            again = client.get("/v1/measurements", params=one, headers={"If-None-Match": tag})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert "x-last-measurement" in again.headers
        change()
        now = client.get("/v1/measurements", params=query, headers={"If-None-Match": tags[3]})
        assert now.status_code == 200


def test_counts_of_imported_files_are_kept_in_every_export(client: httpx.Client, engine: Engine) -> None:
    asked = problem(16, 256, 512)
    fill(engine, [asked])
    before = client.get("/v1/exports/json")
    assert before.json()["rows"][0]["count"] == 0, "nobody counted it"
    import_file(engine, io.BytesIO(b"m,n,k,dtype,count\n16,256,512,fp32,41\n"), "app.csv")
    again = client.get("/v1/exports/json", headers={"If-None-Match": before.headers["etag"]})
    assert again.status_code == 200, "a count is part of the file"
    assert again.json()["rows"][0]["count"] == 41
    line = client.get("/v1/exports/jsonl").text.splitlines()[1]
    assert json.loads(line)["count"] == 41
    (row,) = csv.DictReader(io.StringIO(client.get("/v1/exports/csv").text))
    assert row["count"] == "41"
    assert {row["count"] for row in lines(client.get("/v1/measurements"))} == {41}


def test_the_card_says_what_the_file_is(filled: httpx.Client, rows: list[dict[str, Any]]) -> None:
    answer = filled.get("/v1/measurements/card", params={"device": "cpu:x86_64"})
    assert answer.headers["content-type"].startswith("text/markdown")
    card = answer.text
    for column in COLUMNS:
        assert f"| `{column.name}` |" in card
    assert "* device: cpu:x86_64" in card
    assert "| wrong_result | " in card
    assert "openblas 0.3.31" in card
    assert "State a licence here before you publish the file" in card
    assert "CPU-1" not in card, "no device's UUID"
    last = int(answer.headers["x-last-measurement"])
    assert last >= max(row["number"] for row in rows)


def test_what_makes_no_sense_is_refused(filled: httpx.Client) -> None:
    for path in ("/v1/measurements", "/v1/measurements/card"):
        assert "tuning" in fault_of(filled.get(path, params={"tuning": "tuning-none"}), 404)["detail"]
        assert "problem" in fault_of(filled.get(path, params={"problem": "nn_1x1x1"}), 404)["detail"]
        assert fault_of(filled.get(path, params={"device": "hip"}), 404)["available"]
        assert "since" in fault_of(filled.get(path, params={"since": "yesterday"}), 422)["detail"]
        fault_of(filled.get(path, params={"device": "cpu"}), 409)
        fault_of(filled.get(path, params={"last": "-1"}), 422)
        fault_of(filled.get(path, params={"families": "packed"}), 422)
    fault_of(filled.get("/v1/measurements?format=xml"), 422)


def test_without_pyarrow_parquet_is_answered_501(
    filled: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # as if it were not installed
    fault = fault_of(filled.get("/v1/measurements?format=parquet"), 501)
    assert "pip install 'gemmtune[parquet]'" in fault["detail"]
    assert filled.get("/v1/measurements?format=csv").status_code == 200


def test_text_is_packed_for_clients_that_take_it(filled: httpx.Client) -> None:
    plain = filled.get("/v1/measurements", headers={"Accept-Encoding": "identity"})
    packed = filled.get("/v1/measurements", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content


def test_a_client_that_stops_reading_holds_no_connection(settings: Settings, engine: Engine) -> None:
    fill(engine, [problem(m, 256, 512) for m in range(1, 41)])
    with serving(settings) as client:
        address = client.base_url
        with socket.create_connection((address.host, address.port or 0)) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.sendall(b"GET /v1/measurements HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert stalled.recv(100).startswith(b"HTTP/1.1 200")
            for _ in range(100):
                text = client.get("/metrics").text
                if "gemmtune_pool_connections_in_use 0.0" in text:
                    break
                time.sleep(0.05)
            else:
                pytest.fail(text)
            assert len(lines(client.get("/v1/measurements"))) == 40 * OUTCOMES
