"""Estimates from tuned neighbours: which neighbours count, and how close they come on measured rows."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from statistics import median

import pytest

from backends.problem import from_linear
from backends.wire import problem_from_wire
from tuners.expected_gain import Basis, Estimator, Shape, TunedProblem

SHIPPED = Path(__file__).parent.parent.parent / "db" / "pretuned" / "h200-bf16-decode.jsonl"


def shape(m: int, n: int = 1024, k: int = 1024, dtype: str = "bf16") -> Shape:
    return Shape.of(from_linear(m, n, k, dtype))


def test_nothing_is_expected_where_nothing_is_tuned() -> None:
    assert Estimator([]).expect([shape(16)]) == [None]


def test_the_nearest_problems_of_the_kind_decide() -> None:
    tuned = [TunedProblem(shape(m), 1e-5, 1.5) for m in (8, 16, 32)]
    tuned += [TunedProblem(shape(4096), 1e-3, 1.0), TunedProblem(shape(16, dtype="fp32"), 1e-3, 9.0)]
    (found,) = Estimator(tuned).expect([shape(16)])
    assert found is not None
    assert (found.basis, found.neighbours, found.distance) == (Basis.KIND, 3, 0.0)
    assert found.speedup == pytest.approx(1.5)
    assert found.saving_seconds == pytest.approx(found.baseline_seconds / 3)


def test_seconds_grow_with_the_work_that_binds() -> None:
    # One weight matrix read at 1 TB/s, and a large problem at 100 TFLOP/s: rates that bound the others.
    read = TunedProblem(shape(1, 4096, 4096), 2 * 4096 * 4096 / 1e12, 1.0)
    computed = TunedProblem(shape(8192, 8192, 8192), 2 * 8192**3 / 1e14, 1.0)
    small, large = Estimator([read, computed]).expect([shape(1, 8192, 4096), shape(8192, 8192, 16384)])
    assert small is not None
    assert large is not None
    assert small.baseline_seconds == pytest.approx(2 * read.baseline_seconds, rel=0.02)
    assert large.baseline_seconds == pytest.approx(2 * computed.baseline_seconds, rel=0.02)


@pytest.mark.parametrize(("dtype", "basis"), [("bf16", Basis.DTYPE), ("fp16", Basis.ANY)])
def test_without_a_problem_of_the_kind_others_stand_in_and_it_is_said(dtype: str, basis: Basis) -> None:
    other = from_linear(16, 1024, 1024, "bf16", bias="bf16")
    (found,) = Estimator([TunedProblem(Shape.of(other), 1e-5, 2.0)]).expect([shape(16, dtype=dtype)])
    assert found is not None
    assert found.basis is basis
    assert found.speedup == pytest.approx(2.0)


def test_a_gain_from_far_away_shrinks() -> None:
    near, far = Estimator([TunedProblem(shape(16), 1e-5, 2.0)]).expect([shape(64), shape(256)])
    assert near is not None
    assert far is not None
    assert near.speedup == pytest.approx(2.0)
    assert far.distance == pytest.approx(4.0)
    assert far.speedup == pytest.approx(2.0**0.5)


def test_on_measured_rows_it_comes_closer_than_the_mean() -> None:
    """Each row of the shipped table is left out and estimated from the others."""
    rows = [json.loads(line) for line in SHIPPED.read_text().splitlines()[1:]]
    tuned = [
        TunedProblem(
            Shape.of(problem_from_wire(row["wire"])),
            row["baseline_seconds"],
            row["speedup"]["mid"] if row["judgement"] == "WIN" else 1.0,
        )
        for row in rows
    ]
    mean = sum(log(one.speedup) for one in tuned) / len(tuned)
    gains, times, means = [], [], []
    for place, one in enumerate(tuned):
        (found,) = Estimator(tuned[:place] + tuned[place + 1 :]).expect([one.shape])
        assert found is not None
        gains.append(abs(log(found.speedup / one.speedup)))
        times.append(abs(log(found.baseline_seconds / one.baseline_seconds)))
        means.append(abs(mean - log(one.speedup)))
    assert median(gains) < 0.06
    assert median(gains) < 0.6 * median(means)
    assert median(times) < 0.08
