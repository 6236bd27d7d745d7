"""What files are worth to a model, by its tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from backends.problem import GemmProblem
from service.formats import ReadOptions
from service.formats.core.export import ExportRow, Gain, TargetRow
from service.model.gain import ModelReport, gains_of, token_gains
from service.model.plan import ModelPlan, read_model
from tests.service.formats import made


@pytest.fixture
def plan(tmp_path: Path) -> ModelPlan:
    """Two layers (calls 3 and 1) at 1 and at 8 tokens: qkv_proj and o_proj have one problem."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
                "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
                "num_hidden_layers": 2, "vocab_size": 256, "torch_dtype": "bfloat16",
            }
        )
    )  # fmt: skip
    return read_model(path, ReadOptions("", 1, (1, 8)))


def problems(plan: ModelPlan, tokens: int) -> list[GemmProblem]:
    return [item.problem for item in plan.by_tokens()[tokens]]


def test_each_layer_is_weighted_by_its_calls_and_its_time(plan: ModelPlan) -> None:
    first, second, *others = problems(plan, 1)
    rows = [
        made.row(first, baseline_seconds=1e-3, speedup=(1.9, 2.0, 2.1)),
        made.row(second, baseline_seconds=4e-3, speedup=(1.0, 1.25, 1.3)),
    ]
    one, eight = token_gains(plan, rows, {first.id: 2.0})
    calls = plan.counts
    before = 1e-3 * calls[first.id] + 4e-3 * calls[second.id]
    after = 0.5e-3 * calls[first.id] + 4e-3 * calls[second.id]
    best = 0.5e-3 * calls[first.id] + 3.2e-3 * calls[second.id]
    assert (one.tokens, one.unknown, one.problems) == (1, len(others), len(others) + 2)
    assert one.baseline_seconds == pytest.approx(before)
    assert one.gain == pytest.approx(before / after)
    assert one.best_gain == pytest.approx(before / best)
    assert one.left == pytest.approx(after / best)
    assert (eight.unknown, eight.gain, eight.best_gain, eight.left) == (eight.problems, None, None, None)


def test_the_best_known_includes_every_target_and_no_tie(plan: ModelPlan) -> None:
    first = problems(plan, 1)[0]
    target = TargetRow(made.PACKED, "WIN", 1e-6, 3e-6, (2.5, 3.0, 3.5), 8, "s", "2026", True)
    tie = replace(target, judgement="TIE", speedup=(0.5, 9.0, 9.9))
    row = made.row(
        first, judgement="TIE", speedup=(1.0, 1.0, 1.0), targets={"bundle": target, "inductor": tie}
    )
    assert token_gains(plan, [row], {})[0].best_gain == pytest.approx(3.0)


def test_a_program_that_merges_layers_does_so_where_it_is_faster(tmp_path: Path, plan: ModelPlan) -> None:
    """As the client decides: the merged GEMM's row, unless all of the layers have rows as fast together."""
    path = tmp_path / "config.json"
    sizes = {"head_dim": 32, "num_key_value_heads": 1, "intermediate_size": 80, "vocab_size": 512}
    path.write_text(json.dumps({**json.loads(path.read_text()), **sizes}))  # no two layers alike
    both = read_model(path, ReadOptions("", 1, (1,), layers="both"))
    qkv, mlp = both.merges
    assert (qkv.names, mlp.names) == (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
    q, k, _ = qkv.parts
    gate, *_ = mlp.parts

    def known(problem: GemmProblem, baseline: float, speedup: float | None = 2.0) -> ExportRow:
        if speedup is None:
            return made.row(problem, baseline_seconds=baseline, judgement="TIE", speedup=(0.9, 1.0, 1.1))
        return made.row(problem, baseline_seconds=baseline, speedup=(speedup - 0.1, speedup, speedup + 0.1))

    rows = [
        known(q, 4e-3), known(k, 1e-3, None), known(qkv.fused, 5e-3),  # alone: 2 + 1 + 1; merged: 2.5
        known(gate, 3e-3), known(mlp.fused, 6.2e-3),  # alone: 1.5 + 1.5; merged: 3.1
    ]  # fmt: skip
    ratios = {q.id: 2.0, qkv.fused.id: 2.0, gate.id: 2.0, mlp.fused.id: 2.0}
    found = gains_of(both, rows, ratios, merging=True)
    assert list(found) == ["split", "merged"]
    (alone,), (merged,) = found["split"], found["merged"]
    assert alone.baseline_seconds == merged.baseline_seconds == pytest.approx(2 * (6e-3 + 6e-3))
    assert alone.seconds == pytest.approx(2 * (4e-3 + 3e-3))
    assert merged.seconds == pytest.approx(2 * (2.5e-3 + 3e-3))
    assert merged.best_seconds == pytest.approx(2 * (2.5e-3 + 3e-3))
    assert merged.left == pytest.approx(1.0)
    assert alone.unknown == merged.unknown > 0
    slower = {**ratios, qkv.fused.id: 1.1}  # 4.5 ms merged, but k and v have no row of their own
    (merged,) = gains_of(both, rows, slower, merging=True)["merged"]
    assert merged.seconds == pytest.approx(2 * (5e-3 / 1.1 + 3e-3))
    apart = gains_of(both, rows, ratios, merging=False)
    assert list(apart) == ["fused", "split"]
    assert apart["fused"][0].baseline_seconds == pytest.approx(2 * (5e-3 + 6.2e-3))
    assert list(gains_of(plan, rows, ratios, merging=True)) == ["fused"]


def test_a_report_knows_its_written_rows() -> None:
    report = ModelReport()
    winner, stands = made.row(), made.row(made.LINEAR, judgement="TIE")
    report.measured(winner)
    report.wrote(Gain.of(winner))
    assert report.ratios == {made.LINEAR.id: 2.0}
    assert report.workspace_bytes == made.CUBLASLT.workspace_bytes
    report.wrote(Gain.of(stands))
    assert report.ratios == {made.LINEAR.id: 1.0}
    assert report.written == 2
