"""The bench of our own kernels, on a GPU that is only numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.problem import from_bmm, from_linear, from_mm
from benchmarks.own_kernels import (
    BATCHED,
    LADDER,
    SQUARES,
    asked,
    fastest,
    figures,
    in_words,
    measured,
    parser,
    problems,
    rows,
)
from tests.backends.kernels.emulator.host import H200
from tests.benchmarks.gpus import GpuRunner, gpu
from tuners.ceilings import Ceilings

PROBLEM = from_linear(1, 512, 256, "bf16")
CEILINGS = Ceilings(4e12, 3e12, {"bf16": 1e15})


def test_a_familys_best_over_the_frameworks_call() -> None:
    tuned = measured(GpuRunner(gpu(0)), PROBLEM, "cublaslt", 1.0, 0)
    best = fastest(tuned, "cublaslt")
    assert best is not None
    assert best.solution.parameters["name"] == "fast"
    found = figures(tuned, "cublaslt", CEILINGS)
    assert found["ratio"] == pytest.approx(2.0, rel=0.05)
    assert found["interval"][0] <= found["ratio"] <= found["interval"][1]
    assert (found["proven"], found["raced"], found["binds"]) == (True, True, "memory")
    assert found["gbytes"] == pytest.approx((512 * 256 + 256 + 512) * 2 / found["best_us"] * 1e-3, rel=1e-6)
    assert "2.0" in in_words(found)
    json.dumps(found, allow_nan=False)


def test_a_family_of_which_nothing_ran() -> None:
    tuned = measured(GpuRunner(gpu(0), wrong=["fast", "slow"]), PROBLEM, "cublaslt", 1.0, 0)
    found = figures(tuned, "cublaslt", None)
    assert (found["best_us"], found["ratio"]) == (None, None)
    assert found["by_status"]["wrong_result"] == 2
    assert "nothing ran" in in_words(found)


def test_what_is_measured() -> None:
    every = problems("all", (), None)
    assert len(every) == len(problems("decode", (), None)) + len(LADDER) + len(SQUARES) + len(BATCHED)
    assert [p.batch for p in problems("batched", (), None)] == [shape[-1] for shape in BATCHED]
    shapes = [(1, 2, 3), (4, 5, 6, 7)]
    assert problems("all", shapes, None) == [
        from_linear(1, 2, 3, "bf16"), from_linear(1, 2, 3, "bf16"), from_mm(1, 2, 3, "fp32"),
        from_bmm(7, 4, 5, 6, "fp32"),
    ]  # fmt: skip
    assert problems("batched", shapes, "bf16") == [from_bmm(7, 4, 5, 6, "bf16")]
    assert {p.dtype_a for p in problems("ladder", (), None)} == {"fp32"}
    assert problems("decode", [(1, 2, 3)], "fp16") == [from_linear(1, 2, 3, "fp16")]
    assert asked(PROBLEM, H200, ())[:4] == ["cublaslt", "gemv-persistent", "gemv", "skinny-short"]
    large = {"cublaslt", "tile-mma", "stream-k", "triton-gemm", "triton-persistent"}
    for square in problems("squares", (), None):
        assert large <= set(asked(square, H200, ()))
    assert {"short-k", "tile-mma"} <= set(asked(from_linear(127, 8191, 129, "bf16"), H200, ()))
    assert asked(from_mm(512, 512, 512), H200, ["naive", "gemv"]) == ["naive"]
    assert asked(from_bmm(100, 16, 16, 16), H200, ()) == ["cublas", "cublaslt", "skinny", "small-batch"]
    with pytest.raises(SystemExit):
        parser().parse_args(["batched", "--only", "4x5"])


def test_rows_go_on_after_a_shape_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path))
    options = parser().parse_args(["decode", "--only", "1x512x256", "8x512x256", "--seconds", "0.5"])
    runner = GpuRunner(gpu(0), wrong=["torch", "heuristic"])
    found = rows(runner, options)  # type: ignore[arg-type]
    families = [row["family"] for row in found]
    assert families[:4] == ["cublaslt", "gemv-persistent", "gemv", "skinny-short"]
    assert all("SessionFailed" in row["error"] for row in found)
    assert families.count("cublaslt") == 2
    assert {"skinny", "skinny-ring", "skinny-mma", "triton-split-k"} < set(
        families[families.index("cublaslt", 1) :]
    )
