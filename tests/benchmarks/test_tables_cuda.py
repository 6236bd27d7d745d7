"""The generated page, from small result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, tables, tables_cuda
from benchmarks.cuda import Lists, lists_document
from benchmarks.cuda_jobs import Partial
from benchmarks.cuda_tuned import Shape, row, tune
from benchmarks.cuda_types import combinations
from tests.benchmarks.gpus import GpuRunner, gpu


def _write(folder: Path, name: str, **figures: Any) -> None:
    report.write(name, [gpu(0).environment, gpu(1).environment], figures, folder)


def test_without_results_there_is_no_cuda_part(tmp_path: Path) -> None:
    assert tables_cuda.sections(tmp_path) == []


def test_the_kept_page_is_what_the_results_give() -> None:
    assert tables.document() == tables.DOCUMENT.read_text()


def test_lists_become_a_summary_and_a_table_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tables_cuda, "BARS", {"serving": 1.25})
    shapes = [Shape("decode_m1", "a", 1, 64, 64, True), Shape("square", "b", 256, 256, 256, False)]
    run = Lists([gpu(0)], shapes, "bf16", 1.0, Partial(tmp_path / "part"), start=GpuRunner)
    rows = [*run.run(), {**vars(shapes[1]), "commit": "x", "error": "a|b\nc"}]
    environments, figures = lists_document(run, rows)
    report.write("cuda-lists-bf16", environments, figures, tmp_path)
    page = "\n".join(tables_cuda.sections(tmp_path))
    assert "## Linear layers of served models, bf16: tuned over torch 1" in page
    assert "| **Decode and prefill together** | 1 | **2.000x** | 1.25x |" in page
    assert "### Decode, one token (m = 1), bf16" in page
    assert "| 1 x 64 x 64 | 20.00 | 18.00 | 10.00 | 2.00x | " in page
    assert "| a/b c |" in page
    assert "reading 4.00 TB/s, multiplying 1,000.00 TFLOP/s bf16" in page
    assert "Imagined (sm_90, 132 SMs)" in page
    assert "Rows are of the commits" in page

    report.write("cuda-lists-bf16-libraries", environments, {**figures, "commits": ["y"]}, tmp_path)
    both = tables_cuda.sections(tmp_path)
    assert "\n".join(both[: len(both) - 1]) == page, "what every candidate gives goes first"
    assert ", by libraries alone" in both[-1]
    assert "| **Decode and prefill together** | 1 | **2.000x** | 1.03x |" in both[-1]
    assert "Rows are of the commits" not in both[-1]


def test_every_other_result_becomes_a_section(tmp_path: Path) -> None:
    size = {"m": 1, "n": 64, "k": 32}
    by_status = {"ok": 40, "wrong_result": 2}
    screened = {"run_us": 9.5, "configurations": 321, "screening_seconds": 3.0, "by_status": by_status}
    least = {"short_shapes": 1, "short_minimum": 321, "short_median": 321}
    _write(tmp_path, "cuda-screening", dtype="bf16", seconds=3.0, **least, rows=[{**size, **screened}])
    twice = {"problem": "p", "first_verdict": "WIN", "second_verdict": "TIE", "first_us": 1.0}
    twice |= {"second_us": 2.0, "ties": 3, "same": False, "in_tie_set": True}
    _write(tmp_path, "cuda-repeat", problems=1, in_tie_set=1, same=0, rows=[twice])
    _write(
        tmp_path, "cuda-launch", dtype="bf16", calls=2000, repetitions=5,
        rows=[{**size, "call": "cublaslt", "median_us": 1.75, "worst_us": 2.0}],
    )  # fmt: skip
    tuned = tune(GpuRunner(gpu(0)), combinations()["bf16"](), 1.0)
    done, refused = {"name": "bf16", **row(tuned)}, {"name": "int8", "error": "no call"}
    _write(tmp_path, "cuda-types", seconds=1.5, combinations=2, tuned=1, rows=[done, refused])
    wrong = {"problem": "tn_256x48x259_bf16", "k": 259, "tried": 3, "wrong": 1, "wrong_splits": [4]}
    _write(tmp_path, "cuda-trap", algorithm=66, tried=3, wrong=1, unforetold=0, undetected=2, rows=[wrong])
    page = "\n".join(tables_cuda.sections(tmp_path))
    assert "| 1 x 64 x 32 | 9.50 | **321** | 3.00 | 40 ok, 2 wrong result |" in page
    assert "**1 of 1** problems" in page
    assert "| cublaslt | 1 x 64 x 32 | **1.75** | 2.00 |" in page
    assert "| bf16 | WIN | 2.00x | torch 1 |" in page
    assert "| int8 | not run | - | - | - | no call |" in page
    assert "**1 give wrong results**" in page
    assert "| tn_256x48x259_bf16 | 3 | **1** | 4 |" in page
    assert "each is foretold by the rule; 2 that the rule foretells passed" in page
    assert page.count("2 x Imagined") == 5
    (tmp_path / "cuda-trap.json").unlink()
    assert "algorithm 66" not in "\n".join(tables_cuda.sections(tmp_path))
    assert json.loads((tmp_path / "cuda-launch.json").read_text())["calls"] == 2000
