"""Bundles of a model: compiled from the rows that kernels of our own won, and the lines that load them."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.packages.bundle_file import BundleFile
from backends.problem import from_linear
from service.bundles import Workshop
from service.errors import Refused
from service.formats import ReadOptions
from service.formats.core.base import ImportedProblem
from service.formats.core.export import ExportRefused, ExportRow, TargetRow
from service.model.outputs import OUTPUTS
from service.model.plan import ModelPlan, read_model
from service.model.request import Request
from tests.backends.packages.host_row import launched
from tests.service.formats import made
from tests.service.wins import HERE, first_candidate


@pytest.fixture
def plan(tmp_path: Path) -> ModelPlan:
    folder = tmp_path / "tiny"
    folder.mkdir()
    values = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "vocab_size": 256, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
    return read_model(folder, ReadOptions("", 1, (3,)))


def asked(plan: ModelPlan, folder: Path, cache: BinaryCache, **options: Any) -> Request:
    return Request(plan, HERE.device_class, folder, Workshop(cache), **options)


def rows(plan: ModelPlan) -> list[ExportRow]:
    """A WIN of our own at each problem but two: one is a TIE, one was never judged."""
    found = []
    for item in plan.problems:
        ours = TargetRow(
            first_candidate(item.problem), "WIN", 1e-6, 2e-6, (1.5, 2.0, 2.5), 8, "s", "2026", True
        )
        found.append(made.row(item.problem, environment=HERE, targets={"bundle": ours}, targets_judged=True))
    tie = replace(found[1].targets["bundle"], judgement="TIE")
    found[1] = replace(found[1], targets={"bundle": tie})
    found[2] = replace(found[2], targets={}, targets_judged=False)
    return found


@pytest.mark.parametrize(("name", "packs"), [("torch", True), ("bundle", False)])
def test_a_torch_program_packs_the_weights_that_were_tuned_for_it(
    plan: ModelPlan, tmp_path: Path, cache: BinaryCache, name: str, packs: bool
) -> None:
    how: dict[str, Any] = {
        "dtype_b": "uint4",
        "scale_b": "block_1x64",
        "scale_dtype": "bf16",
        "zero_b": "eight",
    }
    weights = from_linear(3, 64, 64, "bf16", prepacked=True, **how)
    items = [*plan.problems, ImportedProblem(weights, 1, ())]
    other = replace(plan, read=replace(plan.read, problems=items))
    for one, said in ((plan, False), (other, packs)):
        written = OUTPUTS[name].write(asked(one, tmp_path, cache), rows(plan))
        assert (written.lines[-1] == "gemmtune.torch.prepack_model(model)") == said


@pytest.mark.parametrize("name", ["bundle", "torch"])
def test_a_models_bundle_has_the_rows_that_our_kernels_won(
    plan: ModelPlan, tmp_path: Path, cache: BinaryCache, name: str
) -> None:
    told: list[tuple[int, int]] = []
    request = asked(plan, tmp_path, cache)
    request = replace(
        request, workshop=replace(request.workshop, progress=lambda done, of: told.append((done, of)))
    )
    output, known = OUTPUTS[name], rows(plan)
    output.check(request)
    written = output.write(request, known)
    (path,) = written.files
    assert path == tmp_path / "tiny.gtb"
    found = BundleFile(path)
    found.verify()
    won = [known[0], *known[3:]]
    assert set(found.problem_ids) == {row.problem.id for row in won}
    assert written.report.ratios == dict.fromkeys(found.problem_ids, 2.0)
    assert written.report.omitted == {
        "the best kernel of our own is a TIE": 1,
        "no kernel of our own was judged": 1,
    }
    assert written.report.tune_again == 1
    assert told == [(done, len(won)) for done in range(1, len(won) + 1)]
    out, expected = launched(found, found.manifest["rows"][0], tmp_path)
    assert abs(out - expected).max() < 1e-3
    program = ast.parse("\n".join(written.lines))
    assert str(path) in [node.value for node in ast.walk(program) if isinstance(node, ast.Constant)]
    assert "is code of cpu:" in written.notes[0]


def test_where_nothing_was_won_there_is_no_bundle(
    plan: ModelPlan, tmp_path: Path, cache: BinaryCache
) -> None:
    request, output = asked(plan, tmp_path, cache), OUTPUTS["bundle"]
    with pytest.raises(ExportRefused, match="nothing is known of tiny on cpu"):
        output.write(request, [])
    with pytest.raises(ExportRefused, match="none of 2 known rows can be; 1 of them: the best kernel of our"):
        output.write(request, rows(plan)[1:3])
    assert not list(tmp_path.glob("*.gtb"))


def test_options_that_a_bundle_has_no_use_for(plan: ModelPlan, tmp_path: Path, cache: BinaryCache) -> None:
    check = OUTPUTS["torch"].check
    with pytest.raises(ExportRefused, match="leave out --validator"):
        check(asked(plan, tmp_path, cache, validators={"PT_VERSION": "2.15.0"}))
    with pytest.raises(ExportRefused, match="leave out --max-workspace"):
        check(asked(plan, tmp_path, cache, workspace_limit=1))
    with pytest.raises(Refused, match="'sm_90' is no architecture of cpu"):
        check(asked(plan, tmp_path, cache, target="sm_90"))
