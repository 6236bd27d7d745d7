"""Configurations of experts from stored sessions to a file: candidates of both products, tokens by name."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine

from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.solution import Solution
from db.engine import reading
from service import exports
from service.formats import ExportRefused, ExportReport, ReadOptions
from service.formats.core.tar_text import unpack
from service.formats.vllm.experts import PRODUCTS, ExpertLayer
from service.imports import import_file
from tests.service.formats.made import H200
from tests.service.test_targets import TORCH, tuned
from tuners.tuning_settings import TuningSettings

HERE = replace(H200, libraries={**H200.libraries, "triton": "3.6.0"})
LAYER = ExpertLayer(8, 768, 2048, 2)
FEW, MANY = TritonFusedMoe().defaults(HERE)


def named(solution: Solution, name: str, **changed: int) -> Solution:
    """A configuration that the recorded device knows by a name, which is no parameter of its own."""
    made = Solution(solution.family, 1, {**solution.parameters, **changed}, solution.build)
    NAMES[made.id] = name
    return made


NAMES: dict[str, str] = {FEW.id: "few", MANY.id: "many"}
BOTH, FIRST = named(FEW, "both", BLOCK_SIZE_N=128), named(FEW, "first", num_stages=5)
#: Of the baseline's time: what is fastest for the first product alone, and what is for both together.
SPEED = {
    PRODUCTS[0]: {"few": 1.0, "many": 1.1, "both": 0.6, "first": 0.5},
    PRODUCTS[1]: {"few": 1.0, "many": 1.1, "both": 0.6, "first": 1.3},
}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded device tells configurations apart by their parameters."""
    from tests.service import test_targets

    def name_of(_: object, candidate: Solution) -> str:
        return NAMES.get(candidate.id) or str(candidate.parameters["name"])

    monkeypatch.setattr(test_targets.Recorded, "name_of", name_of)


def tune(engine: Engine, tokens: int, layer: ExpertLayer = LAYER) -> None:
    for product in PRODUCTS:
        solutions = (TORCH, FEW, MANY, BOTH, FIRST)
        tuned(engine, HERE, layer.problem(product, tokens), solutions, SPEED[product])


def written(engine: Engine, **options: Any) -> tuple[Mapping[str, Any], exports.Export]:
    chosen = exports.Selection(HERE.device_class, TuningSettings().policy.id, **options)
    made = exports.open_export(engine, "vllm-moe", chosen)
    files = unpack("".join(made.pieces))
    return {name: json.loads(text) for name, text in files.items()}, made


def test_what_sessions_measured_of_both_products_is_written(engine: Engine) -> None:
    for tokens in (8, 1024):
        tune(engine, tokens)
    files, made = written(engine, top_k=2)
    assert files == {
        "E=8,N=768,device_name=NVIDIA_H200.json": {str(t): dict(BOTH.parameters) for t in (8, 1024)}
    }
    assert made.report.to_dict() == {"written": 2, "omitted": {}}
    gain = made.report.gain()
    assert gain is not None
    # The default that is run untuned is that for few tokens for 8, and for many for 1024.
    assert gain["geometric_mean"] == pytest.approx((1.0 / 0.6 * 1.1 / 0.6) ** 0.5, rel=0.03)


def test_an_imported_name_knows_the_tokens(engine: Engine) -> None:
    for tokens in (8, 1024):
        tune(engine, tokens)
    files, made = written(engine)
    assert files == {}
    assert made.report.omitted == {"its tokens are not known: give top_k, the experts of a token": 4}
    text = json.dumps({str(tokens): dict(FEW.parameters) for tokens in (8, 1024)}).encode()
    options = ReadOptions(next(iter(written(engine, top_k=2)[0])), hidden_size=2048, top_k=2)
    import_file(engine, io.BytesIO(text), "x.json", "fused-moe", options=options)
    files, _ = written(engine)
    assert [list(of) for of in files.values()] == [["8", "1024"]]


def test_candidates_come_from_the_sessions_of_the_rows(engine: Engine) -> None:
    tune(engine, 8)
    chosen = exports.Selection(HERE.device_class, TuningSettings().policy.id)
    rows = list(exports.read_rows(engine, chosen, (), ExportReport(), families=("triton-fused-moe",)))
    assert len(rows) == 2
    for row in rows:
        assert {one.solution for one in row.candidates} == {FEW, MANY, BOTH, FIRST}
        assert row.targets["fused-moe"].judgement == "WIN"
        proven = [one for one in row.candidates if one.proven]
        assert row.solution in [one.solution for one in proven]
    assert all(row.candidates == () for row in exports.read_rows(engine, chosen, (), ExportReport()))


def test_other_formats_have_no_use_for_top_k(engine: Engine) -> None:
    chosen = exports.Selection(HERE.device_class, TuningSettings().policy.id, top_k=2)
    with pytest.raises(ExportRefused, match="json has no use for top_k"):
        exports.open_export(engine, "json", chosen)
    with reading(engine) as connection:
        tags = {
            exports.export_tag(connection, "vllm-moe", replace(chosen, top_k=top_k)) for top_k in (None, 1, 2)
        }
    assert len(tags) == 3
