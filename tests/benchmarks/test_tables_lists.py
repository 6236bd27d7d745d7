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


def made(winner_over_bound_us: dict[str, float], count: int = 1, **more: Any) -> dict[str, Any]:
    """A result with `count` problems of each list: their winners take so long beyond their bounds, their
    defaults twice."""
    rows, verdicts = [], []
    several = [
        (shape, beyond)
        for name, beyond in winner_over_bound_us.items()
        for shape in read_shapes(lists=[name])[:count]
    ]
    for shape, beyond in several:
        problem = shape.problem("bf16")
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
    assert "Decode, one token (m = 1): the winners are about at the bound." in text
    assert "| 100.0 us |" in text
    assert "3,000 GB/s read" in text
    assert "of the same run" in text
    assert f"{LAUNCH_US} us longer than the bound: the median of launches" in text
    assert "below the bar" not in text
    assert "faster than the bound" not in text


def test_a_list_below_its_bar_is_told_with_what_the_bound_allows(tmp_path: Path) -> None:
    document = made({"decode_m1": 2 * LAUNCH_US}, ceilings=asdict(CEILINGS))
    (row,) = document["rows"]
    row["speedup"] = [1.2]
    most = 1.2 * (us := row["microseconds"]["ours"]) / (us - LAUNCH_US)
    expected = (
        "1.200x is below the bar of 1.31x for the whole list, of which these are 1 of 19 problems; the bound "
        f"allows about {most:.2f}x."
    )
    assert expected in lists(document, tmp_path)
    whole = made({"decode_m1": 2 * LAUNCH_US}, count=19, ceilings=asdict(CEILINGS))
    for row in whole["rows"]:
        row["speedup"] = [1.2]
    assert "1.200x is below the bar of 1.31x; the bound allows about" in lists(whole, tmp_path)


def test_times_beyond_the_bound_are_called_steady_only_where_they_differ_less_than_the_bounds(
    tmp_path: Path,
) -> None:
    document = made({"decode_small": 100.0}, count=3, ceilings=asdict(CEILINGS))
    assert "(m = 4 to 16): 100.0 to 100.0 us beyond" in lists(document, tmp_path)
    for row in document["rows"]:
        row["microseconds"]["ours"] *= 3
    assert "does not shrink" not in lists(document, tmp_path), "times beyond grow with the bounds"
    alone = made({"decode_small": 100.0}, ceilings=asdict(CEILINGS))
    assert "does not shrink" not in lists(alone, tmp_path), "one problem shows nothing"


def test_winners_beyond_the_bound_are_counted_with_where_the_ceilings_are_from(tmp_path: Path) -> None:
    own = made({"decode_m1": -0.1, "decode_small": 1.0}, ceilings=asdict(CEILINGS))
    text = lists(own, tmp_path)
    assert "1 of 2 winners are faster than the bound, at up to 1" in text
    assert "the ceilings of the run are too low" in text
    lender = json.loads((RESULTS / "lowbit-decode.json").read_text())
    (tmp_path / "lowbit-decode.json").write_text(json.dumps(lender))
    environment = lender["environment"]
    borrowed = made({"decode_m1": -1.0}, environment=environment)
    assert "were measured in another run on the same card, and" in lists(borrowed, tmp_path)
    borrowed = made({"decode_m1": -1.0}, environment={**environment, "uuid": "GPU-other"})
    assert "were measured on another card of the model, in another run, and" in lists(borrowed, tmp_path)


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
