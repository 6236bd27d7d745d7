"""Captured files, read and written in every way: what a program asked for reaches each stack."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from backends.problem import GemmProblem
from service.formats import ExportRow, Imported, read_file, read_stream
from tests.service.formats.contract_inputs import CUBLASLT, H200, HIPBLASLT, MI300X, ROCBLAS
from tests.service.formats.made import row, written

DATA = Path(__file__).parents[2] / "data"
#: File -> its format, its problems, lines rejected of it.
CAPTURED = {
    "tunableop/llama3-8b-untuned.csv": ("tunableop-untuned", 27, 0),
    "tunableop/gpt2-untuned.csv": ("tunableop-untuned", 35, 0),
    "llama3-8b-cublaslt.log": ("cublaslt-log", 27, 0),
    "gpt2-cublas.log": ("cublas-log", 1, 1),
    "models/llama-3-8b.json": ("model-config", 67, 0),
}
#: Format -> where its rows were measured, what won there, its target.
WAYS = {
    "tunableop": (H200, CUBLASLT, "torch-2.15+cuda"),
    "hipblaslt": (MI300X, HIPBLASLT, "rocm-7.2"),
    "rocblas": (MI300X, ROCBLAS, "rocm-7.2"),
    "aiter": (MI300X, HIPBLASLT, None),
    "json": (H200, CUBLASLT, None),
    "jsonl": (H200, CUBLASLT, None),
    "csv": (H200, CUBLASLT, None),
}


def captured(name: str) -> Imported:
    return read_file(DATA / name)


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_files_are_read_to_the_last_line(name: str) -> None:
    form, problems, rejected = CAPTURED[name]
    found = captured(name)
    assert (found.format, len(found.problems), len(found.rejected)) == (form, problems, rejected)
    assert all(item.count >= 1 for item in found.problems)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CAPTURED)
def test_what_is_written_comes_back_and_what_is_not_is_told(name: str, way: str) -> None:
    environment, winner, target = WAYS[way]
    asked = {item.problem: item.count for item in captured(name).problems}
    rows: list[ExportRow] = [
        row(problem, count=count, environment=environment, solution=winner)
        for problem, count in asked.items()
    ]
    text, report = written(way, rows, target, environments=(environment,))
    assert report.written + sum(report.omitted.values()) == len(rows)
    back = read_stream(io.BytesIO(text.encode()), "export", way)
    assert back.rejected == []
    assert len(back.problems) == report.written
    assert {item.problem for item in back.problems} <= asked.keys()
    assert {item.claim.solution for item in back.claims} <= {winner, replace(winner, build=None)}
    if way in ("json", "jsonl", "csv"):
        assert {item.problem: item.count for item in back.problems} == asked
    for reason in report.omitted:
        assert reason.isprintable()


def test_every_problem_of_a_model_reaches_every_stack_that_can_say_it() -> None:
    """A Llama's linear layers are plain products: no override file leaves one out."""
    problems: list[GemmProblem] = [item.problem for item in captured("models/llama-3-8b.json").problems]
    for way, (environment, winner, target) in WAYS.items():
        rows = [row(problem, environment=environment, solution=winner) for problem in problems]
        _, report = written(way, rows, target, environments=(environment,))
        assert (way, report.written, report.omitted) == (way, len(problems), {})


def test_a_dispatch_header_has_every_problem() -> None:
    problems = [item.problem for item in captured("tunableop/gpt2-untuned.csv").problems]
    text, report = written("c-header", [row(problem) for problem in problems])
    assert (report.written, report.omitted) == (len(problems), {})
    assert f"run {len(problems)} GEMMs" in text


@pytest.mark.parametrize("way", ["vllm-block-fp8", "sglang-block-fp8"])
def test_no_block_fp8_file_is_made_of_plain_products(way: str) -> None:
    problems = [item.problem for item in captured("models/llama-3-8b.json").problems]
    text, report = written(way, [row(problem) for problem in problems])
    assert (report.written, sum(report.omitted.values())) == (0, len(problems))
    with tarfile.open(fileobj=io.BytesIO(text.encode())) as archive:
        assert archive.getnames() == []
