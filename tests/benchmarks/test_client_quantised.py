"""The benchmark of quantised weights: its products, the bundle that it writes, a run on emulated kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.kernel_checks.candidates import environment_of
from backends.kernels.families import FAMILIES
from backends.packages.bundle import BundleBuilder, describe_row
from backends.problem import GemmProblem
from backends.solution import Solution
from benchmarks import client_quantised
from tuners.decide import Judgement, TargetVerdict, Verdict
from tuners.intervals import Interval

SMALL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 128,
}  # fmt: skip


def test_the_products_of_llama_3_8b() -> None:
    config = json.loads(client_quantised.CONFIG.read_text())
    assert client_quantised.layers(config) == [
        (4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (6144, 4096), (28672, 4096),
    ]  # fmt: skip
    found = client_quantised.problems(config, [1, 8])
    assert len({one.id for one in found}) == 12
    assert {(one.n, one.dtype_a, one.zero_a, one.scale_a) for one in found} == {
        (m, "uint4", "eight", "block_1x128") for m in (1, 8)
    }


def _tuned(problem: GemmProblem, judgement: Judgement, proven: bool = True) -> Any:
    """A tuning that one of our kernels ended as `judgement`."""
    place = replace(environment_of("gfx942"), units=304)
    ours = next(iter(FAMILIES["dequant-gemv"].solutions(problem, place)))
    default = Solution("torch-weights", 1, {"call": "dequantise"}, "2.11")
    speedup = Interval(1.4, 1.5, inf)
    target = TargetVerdict(judgement, ours.id, 1e-6, 1.5e-6, speedup, 9, "", proven)
    verdict = Verdict(
        judgement, default.id, "torch", ours.id, 1e-6, 1.5e-6, speedup, (), 9, "", {"bundle": target}
    )
    finals = {one.id: SimpleNamespace(solution=one) for one in (ours, default)}
    session = SimpleNamespace(problem=problem, runner=SimpleNamespace(environment=place))
    return SimpleNamespace(verdict=verdict, session=session, screened=[], finals=finals)


@pytest.mark.compiler
def test_a_proven_win_is_a_row_that_the_client_reads(tmp_path: Path, cache: BinaryCache) -> None:
    gemmtune = pytest.importorskip("gemmtune")
    problem = client_quantised.problems(SMALL, [1])[0]
    assert client_quantised.measured(_tuned(problem, Judgement.TIE)) is None
    assert client_quantised.measured(_tuned(problem, Judgement.WIN, proven=False)) is None
    one = client_quantised.measured(_tuned(problem, Judgement.WIN))
    assert one is not None
    with BundleBuilder(one.environment.device_class, "policy", {}) as builder:
        builder.add(describe_row(one, "gfx942", cache))
        builder.write(tmp_path / "one.gtb")
    (row,) = gemmtune.load(tmp_path / "one.gtb").rows
    assert (row.problem_id, row.verdict.baseline_family) == (problem.id, "torch-weights")
    assert row.verdict.speedup == (1.4, 1.5, inf)


@pytest.mark.torch
def test_a_run_with_packed_copies_tunes_first_where_there_is_no_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

    def tuned(options: Any) -> None:
        raise SystemExit(f"tuned batch {options.batch} for {options.device}, {options.seconds:g} s each")

    monkeypatch.setattr(client_quantised, "write_tuned", tuned)
    run = ["run", str(tmp_path / "new.gtb"), "--prepacked", "--quick", "--seconds", "2"]
    with pytest.raises(SystemExit, match=r"tuned batch \[1\] for cuda, 2 s each"):
        client_quantised.main(run)


@pytest.mark.cuda  # as the next one
@pytest.mark.torch
def test_what_a_model_records_is_what_is_tuned_for_it() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.packed_models import recorded

    model = client_quantised.build(SMALL, 1, torch.device("cpu"))
    found = recorded(model, [1, 8], torch.device("cpu"), client_quantised.GROUP)
    stored = set(client_quantised.problems(SMALL, [1, 8]))
    assert [one.prepacked for one in found] == [True, False] * len(stored)
    assert {one for one in found if not one.prepacked} == stored
    assert {replace(one, prepacked=False) for one in found if one.prepacked} == stored


@pytest.mark.cuda  # transformers is on the GPU machine, and in no extra
@pytest.mark.torch
@pytest.mark.compiler
def test_a_run_with_packed_copies_on_a_cpu(tmp_path: Path, cache: BinaryCache) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.client.torch.quantised.emulated import write

    config = tmp_path / "config.json"
    config.write_text(json.dumps(SMALL))
    stored = client_quantised.problems(SMALL, [1])
    problems = [(one, "dequant-gemv") for one in stored]
    problems += [(replace(one, prepacked=True), "packed-mma") for one in stored]
    bundle = write(tmp_path / "small.gtb", problems, cache)
    out = tmp_path / "found.json"
    client_quantised.main(
        ["run", str(bundle), "--prepacked", "--json", str(out), "--config", str(config), "--quick"]
    )
    found: dict[str, Any] = json.loads(out.read_text())
    (row,) = found["rows"]
    for way, calls in (("prepacked", 14), ("prepacked_fused", 8)):
        assert found["packing"][way]["modules"] == 14
        assert found["packing"][way]["bytes"] > 0
        assert found["packing"][way]["seconds"] > 0
        assert sum(one[3] for one in row[way]["rows"]) == calls
        assert row[way]["missed"] == []
        assert row[way]["to_dequantised"] < 0.1
        assert row["speedup"][way].keys() >= {"gemmtune", "gemmtune_fused"}
    assert sum(one[3] for one in row["gemmtune"]["rows"]) == 14


@pytest.mark.cuda  # transformers is on the GPU machine, and in no extra
@pytest.mark.torch
@pytest.mark.compiler
def test_a_run_on_a_cpu(tmp_path: Path, cache: BinaryCache, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.client.torch.quantised.emulated import write

    config = tmp_path / "config.json"
    config.write_text(json.dumps(SMALL))
    problems = [(one, "dequant-gemv") for one in client_quantised.problems(SMALL, [1])]
    bundle = write(tmp_path / "small.gtb", problems, cache)
    out = tmp_path / "found.json"
    client_quantised.main(["run", str(bundle), "--json", str(out), "--config", str(config), "--quick"])
    found: dict[str, Any] = json.loads(out.read_text())
    assert (found["layers"], found["quantized_modules"]) == (2, 14)
    (row,) = found["rows"]
    assert set(row) >= {"bf16", "gemmtune", "dequantised", "speedup"}
    assert row["gemmtune"]["modules"] == 14
    assert sum(calls for _, _, _, calls, _ in row["gemmtune"]["rows"]) == 14
    assert row["gemmtune_fused"]["fused"] == 4
    assert sum(calls for _, _, _, calls, _ in row["gemmtune_fused"]["rows"]) == 8
    for way in ("gemmtune", "gemmtune_fused"):
        assert row[way]["missed"] == []
        assert row[way]["to_dequantised"] < 0.1
    assert "tokens/s" in capsys.readouterr().err
