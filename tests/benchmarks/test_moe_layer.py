"""The benchmark of whole layers of experts: its cases, the bundles that it writes, a run on emulated
kernels."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.errors import GemmtuneError
from backends.grouping import counts_of
from backends.kernel_checks.candidates import environment_of
from backends.packages.bundle import BundleBuilder, describe_row
from backends.toolchains.triton import missing
from benchmarks import grouped, moe_layer
from benchmarks.graph_time import interleaved
from benchmarks.moe_layer import FUSED, Case
from tuners.decide import Judgement

#: Experts, of a token, hidden, intermediate.
TINY = (4, 2, 64, 32)


def test_cases_have_few_tokens_first() -> None:
    found = list(moe_layer.cases(moe_layer.MODELS, (1, 8), ("uniform", "skewed")))
    assert len(found) == len(set(found)) == 8
    assert [one.tokens for one in found] == sorted(one.tokens for one in found)
    first, last = Case("qwen3-30b-a3b", 8, "uniform").products
    assert [(p.groups, p.n, p.m, p.k) for p in (first, last)] == [(128, 64, 1536, 2048), (128, 64, 2048, 768)]


@pytest.mark.parametrize("routing", ["uniform", "skewed"])
@pytest.mark.parametrize("tokens", [1, 8, 64, 512])
def test_tokens_have_the_experts_of_the_routing(tokens: int, routing: str) -> None:
    case = Case("qwen3-30b-a3b", tokens, routing)
    ids = moe_layer.ids_of(case)
    assert [len(one) for one in ids] == [8] * tokens
    counts = counts_of(case.products[0])
    assert Counter(expert for one in ids for expert in one) == {
        expert: int(count) for expert, count in enumerate(counts) if count
    }
    if counts.max() <= tokens:
        assert all(len(set(one)) == 8 for one in ids)


def test_what_a_graph_reads_fits_no_cache() -> None:
    for model in moe_layer.MODELS:
        for tokens in moe_layer.TOKENS:
            case = Case(model, tokens, "uniform")
            active = sum(2 * int((counts_of(p) > 0).sum()) * p.m * p.k for p in case.products)
            assert moe_layer.copies(case) * active >= 2**29
            held = sum(2 * p.groups * p.m * p.k for p in case.products)
            assert moe_layer.copies(case) * held < 2**34, "16 GiB"


def test_rounds_begin_with_each_way_in_turn() -> None:
    called: list[str] = []

    def timer(name: str, us: float) -> Any:
        def once() -> float:
            called.append(name)
            return us

        return once

    times = interleaved({"ours": timer("ours", 2.0), "torch": timer("torch", 3.0)}, 3)
    assert times == {"ours": [2.0] * 3, "torch": [3.0] * 3}
    assert called == ["ours", "torch", "torch", "ours", "ours", "torch"]


def test_ratios_are_of_the_same_round() -> None:
    found = moe_layer.figures(
        {
            "ours": [1.0, 2.0, 4.0],
            "torch": [2.0, 4.0, 8.0],
            FUSED[0]: [3.0, 3.0, 3.0],
            FUSED[1]: [2.0, 2.0, 2.0],
        }
    )
    assert found["us"] == {"ours": 2.0, "torch": 4.0, FUSED[0]: 3.0, FUSED[1]: 2.0}
    assert found["over"] == {"torch": 2.0, FUSED[0]: 1.5, FUSED[1]: 1.0}
    assert found["over_fused_moe"] == 1.0
    assert moe_layer.figures({"ours": [1.0], "torch": [1.0]})["over_fused_moe"] is None


def test_means_are_of_each_number_of_tokens() -> None:
    def row(tokens: int, fused: float | None) -> dict[str, Any]:
        return {"tokens": tokens, "over_fused_moe": fused, "over": {"torch": 2.0, "torch_glue": 1.0}}

    rows = [row(8, 1.0), row(8, 4.0), row(1, None), {"tokens": 8, "error_type": "Broken", "message": ""}]
    few, many = moe_layer.summary(rows)
    assert (few["tokens"], few["rows"], few["over_fused_moe"], few["least_over_fused_moe"]) == (
        1,
        1,
        None,
        None,
    )
    assert (many["tokens"], many["rows"], many["least_over_fused_moe"]) == (8, 2, 1.0)
    assert (many["over_fused_moe"], many["over_torch"]) == (pytest.approx(2.0), pytest.approx(2.0))


@pytest.mark.parametrize(
    ("error", "hits", "rows", "words"),
    [(0.02, 2, 2, "off by 0.02"), (float("nan"), 2, 2, "off by nan"), (0.004, 1, 2, "1 of the bundle's 2")],
)
def test_what_is_wrong_or_not_used_is_not_timed(error: float, hits: int, rows: int, words: str) -> None:
    with pytest.raises(GemmtuneError, match=words):
        moe_layer._refuse("ours", error, hits, rows)
    moe_layer._refuse("ours", 0.004, 2, 2)
    moe_layer._refuse("torch", 0.004, 0, None)


@pytest.mark.compiler
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_vllms_configurations_are_rows_that_the_client_reads(tmp_path: Path, cache: BinaryCache) -> None:
    gemmtune = pytest.importorskip("gemmtune")
    place = replace(environment_of("sm_90"), libraries={"triton": "3.6.0", "torch": "2.11.0"})
    case = Case("qwen3-30b-a3b", 8, "uniform")
    verdict = SimpleNamespace(
        judgement=Judgement.TIE, seconds=1e-5, baseline_seconds=1.1e-5, rounds=9, speedup=(1.0, 1.1, inf)
    )
    session = SimpleNamespace(problem=case.products[0], runner=SimpleNamespace(environment=place))
    tuned: Any = SimpleNamespace(verdict=verdict, session=session)
    rows = moe_layer.fused_rows(tuned, case)
    assert list(rows) == list(FUSED)
    assert [one.solution.parameters["BLOCK_SIZE_N"] for one in rows.values()] == [32, 64]
    with BundleBuilder(place.device_class, "policy", {}) as builder:
        builder.add(describe_row(rows["fused_moe"], "sm_90", cache))
        builder.write(tmp_path / "one.gtb")
    (row,) = gemmtune.load(tmp_path / "one.gtb").rows
    assert (row.problem_id, row.verdict.baseline_family) == (case.products[0].id, "torch-grouped")


@pytest.mark.torch
@pytest.mark.compiler
def test_a_run_on_a_cpu(
    tmp_path: Path, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By rows of emulated kernels. The second call has other sizes than its bundle's rows."""
    pytest.importorskip("torch")
    from tests.client.torch.quantised.emulated import write

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(grouped.MODELS, "tiny", TINY)
    products = Case("tiny", 3, "uniform").products
    rows = [(p, "grouped-ring") for p in products]
    bundles = dict.fromkeys(
        ("ours", "fused_moe"), write(tmp_path / "rows.gtb", rows, cache, default="torch-grouped")
    )
    told = {"gate_up": {"verdict": "WIN"}, "down": {"verdict": "WIN"}}
    monkeypatch.setattr(moe_layer, "write_bundles", lambda *_: (bundles, told))
    out = tmp_path / "found.json"
    given = ["--json", str(out), "--device", "cpu", "--models", "tiny", "--routings", "uniform", "--tokens"]
    assert moe_layer.main([*given, "3"]) == 0
    found = json.loads(out.read_text())
    (row,) = found["rows"]
    assert (found["complete"], row["copies"], row["products"]) == (True, 16, told)
    assert row["hits"] == {"ours": 2, "torch_glue": 2, "torch": 0, "fused_moe": 2}
    assert set(row["us"]) == set(row["hits"])
    assert set(row["over"]) == {"torch_glue", "torch", "fused_moe"}
    assert max(row["error"].values()) < 0.01
    assert "tiny 3 uniform: us ours" in capsys.readouterr().err

    assert moe_layer.main([*given, "200"]) == 1
    (row,) = json.loads(out.read_text())["rows"]
    assert row["message"] == "ours: 0 of the bundle's 2 products ran by its rows"
    assert moe_layer.main([*given, "3", "--minutes", "-1"]) == 0
    assert "stopped after -1.0 minutes with 0 of 1 cases" in capsys.readouterr().err
