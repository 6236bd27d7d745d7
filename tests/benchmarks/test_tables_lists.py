"""The table of the fixed lists: gains, the gain at the bound by a result's own ceilings or by another's."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bounds import LAUNCH_US
from benchmarks.cuda_tuned import read_shapes
from benchmarks.report import RESULTS
from benchmarks.tables_lists import lists
from tuners.ceilings import Ceilings
from tuners.roofline import bound

CEILINGS = Ceilings(3e12, 3e12, {"bf16": 8e14})
NAMES = ("decode_m1", "decode_small")
SHAPES = {name: read_shapes(lists=[name])[0] for name in NAMES}


def made(winner_over_bound_us: dict[str, float], **more: Any) -> dict[str, Any]:
    """A result with a problem of each list: its winner takes so long beyond its bound, its default twice."""
    rows, verdicts = [], []
    for name, beyond in winner_over_bound_us.items():
        problem = SHAPES[name].problem("bf16")
        us = bound(problem, CEILINGS).seconds * 1e6 + beyond
        rows.append({"problem": problem.id, "microseconds": {"ours": us, "torch": 2 * us}, "speedup": [2.0]})
        verdicts.append({"problem": problem.slug, "rounds": [{"winner": "ours"}]})
    return {
        "dtype": "bf16", "lists": dict.fromkeys(winner_over_bound_us), "rows": rows,
        "quick": {"verdicts": verdicts}, "environment": {"product": "Imagined"}, **more,
    }  # fmt: skip


def test_gains_are_beside_those_at_the_bound(tmp_path: Path) -> None:
    document = made({"decode_m1": LAUNCH_US, "decode_small": 100.0}, ceilings=asdict(CEILINGS))
    text = lists(document, tmp_path)
    assert "| Decode, one token (m = 1) | 1 | **2.000x** | 1.31x | 2.000x |" in text
    assert "Decode, one token (m = 1): the winners are at the bound." in text
    assert "| 100.0 us |" in text
    assert "(m = 4 to 16): 100.0 to 100.0 us beyond" in text
    assert "3,000 GB/s read" in text
    assert "of the same run" in text
    assert "more than these problems would gain" not in text


def test_a_bar_beyond_the_bound_is_told(tmp_path: Path) -> None:
    document = made({"decode_m1": LAUNCH_US}, ceilings=asdict(CEILINGS))
    (row,) = document["rows"]
    row["speedup"] = [1.2]
    text = lists(document, tmp_path)
    assert "The bar of 1.31x is more than these problems would gain at the bound." in text


def test_ceilings_of_another_result_are_of_the_same_product(tmp_path: Path) -> None:
    lender = json.loads((RESULTS / "lowbit-decode.json").read_text())
    (tmp_path / "lowbit-decode.json").write_text(json.dumps(lender))
    product = lender["environment"]["product"]
    text = lists(made({"decode_m1": 1.0}, environment={"product": product}), tmp_path)
    assert "`lowbit-decode.json`" in text
    assert lists(made({"decode_m1": 1.0}), tmp_path) == ""


@pytest.mark.parametrize("lacking", ["lists", "ceilings"])
def test_without_lists_or_ceilings_there_is_no_table(lacking: str, tmp_path: Path) -> None:
    document = made({"decode_m1": 1.0}, ceilings=asdict(CEILINGS))
    del document[lacking]
    assert lists(document, tmp_path) == ""


def test_a_problem_without_a_verdict_is_left_out(tmp_path: Path) -> None:
    document = made(dict.fromkeys(NAMES, 1.0), ceilings=asdict(CEILINGS))
    document["quick"]["verdicts"][1]["rounds"] = [None]
    text = lists(document, tmp_path)
    assert text.count("| 1 | **2.000x** |") == 1
