"""Logs: one line a record, with the ids of job and problem."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from service.logs import JsonLines, TextLines, about


def record(message: str, *arguments: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("service.worker", logging.WARNING, "", 0, message, arguments, exc_info)  # type: ignore[arg-type]


def test_a_line_of_json_has_the_ids_and_stays_one_line() -> None:
    with about(job_id="job-1"), about(problem_id="gemm-1"):
        line = JsonLines().format(record("two\nlines of %s", "é"))
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == (
        "WARNING",
        "service.worker",
        "two\nlines of é",
    )
    assert (found["job_id"], found["problem_id"]) == ("job-1", "gemm-1")
    assert found["time"].endswith("Z")
    assert "job_id" not in json.loads(JsonLines().format(record("after it")))


def test_an_exception_is_a_member() -> None:
    try:
        raise ZeroDivisionError("planted")
    except ZeroDivisionError:
        line = JsonLines().format(record("it failed", exc_info=sys.exc_info()))
    assert "ZeroDivisionError: planted" in json.loads(line)["exception"]


@pytest.mark.parametrize(("ids", "end"), [({}, "it ends"), ({"job_id": "job-1"}, "it ends job_id=job-1")])
def test_a_line_of_text_ends_with_the_ids(ids: dict[str, str], end: str) -> None:
    with about(**ids):
        assert TextLines().format(record("it ends")).endswith(f"WARNING service.worker {end}")
