"""benchmarks/untuned.json: layers that the judge meets for the first time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from backends.problem import GemmProblem
from benchmarks import transfer
from benchmarks.cuda_tuned import SHAPES, read_shapes
from service import pretuned
from service.formats.model.architectures import architecture_of
from service.formats.model.fields import Fields
from service.formats.model.layers import Parallel
from tuners.portfolio import file
from tuners.recorded_table import RecordedTable

UNTUNED = SHAPES.with_name("untuned.json")
CONFIGS = Path(__file__).parent.parent / "data" / "models"


def known() -> Iterator[GemmProblem]:
    """What portfolio and tables of NVIDIA GPUs have, whatever the types."""
    for group in file.shipped().groups:
        if group.vendor == "cuda":
            yield from (problem for member in group.members for problem in member.problems)
    for table in pretuned.shipped():
        yield from (row.problem for row in table.rows)
    for path in transfer.RECORDED.glob("h*.npz"):
        yield from (one.problem for one in RecordedTable.load(path).problems)


def test_nothing_that_is_shipped_has_these_layers() -> None:
    mine = {(shape.n, shape.k) for shape in read_shapes(UNTUNED)}
    assert len(mine) == len(read_shapes(UNTUNED)) >= 30
    assert not mine & {(problem.m, problem.k) for problem in known()}
    assert not mine & {(shape.n, shape.k) for shape in read_shapes()}


def test_they_are_layers_of_the_models_that_they_name() -> None:
    for shape in read_shapes(UNTUNED):
        model, _, devices = shape.name.split("/")[0].rpartition("-tp")
        architecture, text = architecture_of(Fields(json.loads((CONFIGS / f"{model}.json").read_text())))
        layers = architecture.layers(text, Parallel(int(devices))).linears
        assert (shape.n, shape.k) in {(one.n, one.k) for one in layers}, shape.name
