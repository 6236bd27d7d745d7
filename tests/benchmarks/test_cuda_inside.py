"""The even products inside odd ones: which they are, and what their times say of the odd ones."""

from __future__ import annotations

from typing import Any

import pytest

from backends.cuda.padded import misaligned
from backends.problem import GemmProblem, from_linear, from_mm
from backends.registry import FoundDevice
from benchmarks import cuda_inside
from benchmarks.cuda_tuned import Shape, read_shapes
from tests.benchmarks.gpus import SPEEDS, GpuRunner, gpu
from tuners.ceilings import Ceilings
from tuners.owner import Task

CEILINGS = Ceilings(4e12, 3e12, {"fp16": 8e14})
ODD, EVEN = from_linear(17, 43, 41, "fp16"), from_linear(16, 40, 40, "fp16")


@pytest.mark.parametrize(
    ("problem", "found"),
    [
        (ODD, (16, 40, 40, True)),
        (EVEN, (16, 40, 40, True)),
        (from_linear(3, 1000, 777, "fp16"), (3, 1000, 776, True)),
        (from_mm(15, 9, 8, "bf16"), (8, 8, 8, False)),
    ],
)
def test_sizes_are_rounded_down(problem: GemmProblem, found: tuple[int, int, int, bool]) -> None:
    shape = cuda_inside.inner(problem)
    assert (shape.m, shape.n, shape.k, shape.trans_b) == found
    assert shape.name == "inside/" + "x".join(map(str, found[:3]))


def test_every_published_odd_shape_has_an_aligned_one_inside() -> None:
    for shape in read_shapes(lists=["odd"]):
        problem = shape.problem("bf16")
        within = cuda_inside.inner(problem).problem("bf16")
        assert not misaligned(within)
        assert (within.m, within.n, within.k) <= (problem.m, problem.n, problem.k)
        assert (within.trans_a, within.trans_b) == (problem.trans_a, problem.trans_b)


@pytest.mark.parametrize("problem", [from_linear(16, 16, 7, "bf16"), from_linear(16, 7, 64, "bf16")])
def test_where_there_is_none_that_is_said(problem: GemmProblem) -> None:
    said = r"has no aligned product inside: inside/16x\d+x\d+ has misaligned lines"
    with pytest.raises(ValueError, match=said):
        cuda_inside.inner(problem)


def test_the_limit_is_the_defaults_time_over_that_of_the_fastest_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[GemmProblem] = []

    class Runner(GpuRunner):
        """Where nothing is odd, "fast" takes a quarter of the default's time, not half of it."""

        def __init__(self, device: FoundDevice, cache: Any) -> None:
            super().__init__(device, SPEEDS)

        def open(self, task: Task) -> Any:
            opened.append(task.problem)
            self._speed = {**SPEEDS, "fast": 0.5 if task.problem == ODD else 0.25}
            return super().open(task)

    monkeypatch.setattr(cuda_inside, "DeviceRunner", Runner)
    monkeypatch.setattr(cuda_inside, "kernel_cache", lambda: None)
    found = cuda_inside.inside(gpu(0), [("odd/17", ODD), ("odd/even", EVEN)], CEILINGS)
    assert opened == [ODD, EVEN, EVEN], "what is even already is tuned once"
    assert [row["name"] for row in found["rows"]] == ["odd/17", "inside/16x40x40", "odd/even"]
    for row in found["rows"]:
        Shape(*(row[name] for name in ("list", "name", "m", "n", "k", "trans_b")))
        assert row["winner"]
    first, second = found["limits"]
    assert (first["name"], first["inner"], second["inner"]) == ("odd/17", "inside/16x40x40", "odd/even")
    assert (first["ratio"], first["limit"]) == pytest.approx((2.0, 4.0), rel=0.01)
    assert (second["ratio"], second["limit"]) == pytest.approx((4.0, 4.0), rel=0.01)
    assert found["limit_geometric_mean"] == pytest.approx(4.0, rel=0.01)
    assert found["ratio_geometric_mean"] == pytest.approx(8.0**0.5, rel=0.01)
