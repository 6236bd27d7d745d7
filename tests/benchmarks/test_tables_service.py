"""The sections of tunings through a service say what the results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import RESULTS
from benchmarks.tables_service import section


def copied(folder: Path, name: str, **changes: Any) -> str:
    """The section of one published result with these changes."""
    made = json.loads((RESULTS / f"{name}.json").read_text()) | changes
    (folder / f"{name}.json").write_text(json.dumps(made))
    return section(folder)


def test_nothing_measured_has_no_section(tmp_path: Path) -> None:
    assert section(tmp_path) == ""


def test_a_problem_with_two_verdicts_is_not_counted_as_ended_once(tmp_path: Path) -> None:
    cold = json.loads((RESULTS / "two-devices.json").read_text())["cold"]
    text = copied(tmp_path, "two-devices", cold={**cold, "verdicts_of_a_problem": {"1": 25, "2": 2}})
    assert f"25 of {cold['jobs']}, in {cold['seconds']:.0f} s" in text


def test_a_throttled_device_that_was_not_found_is_told(tmp_path: Path) -> None:
    text = copied(tmp_path, "two-devices", throttled={"seconds": 40.2, "outliers": [], "jobs_ended": 27})
    assert "| a busy loop on one GPU: set apart after 40 s | not found |" in text


def test_what_a_run_that_was_cut_short_lacks_is_left_out(tmp_path: Path) -> None:
    text = copied(
        tmp_path, "service-tuning", quick=None, regret=None, first={"effort": "normal", "wall": [9.04, 3.0]}
    )
    assert "in order | 9.0, 3.0 s |" in text
    assert "from the second problem on | median 3.0 s of 1 problems |" in text
    assert "quick" not in text


def raced(folder: Path, **changes: Any) -> str:
    """The section of two problems tuned twice, one of which changes its winner to a tie that is 1% slower."""
    rows = [
        {"problem": "tn_1x2x3-aa", "microseconds": {"old": 10.0, "new": 10.1}, "regret": [0.0, 0.01]},
        {"problem": "tn_4x5x6-bb", "microseconds": {"old": 10.0}, "regret": [0.0, 0.0]},
    ]
    wins = [{"WIN": 2, "TIE": 0, "LOSS": 0}, {"WIN": 1, "TIE": 1, "LOSS": 0}]
    quick = json.loads((RESULTS / "service-tuning.json").read_text())["quick"]
    ties = [{"problem": "tn_1x2x3", "winners": ["old", "new"]}]
    quick |= {"judgements": wins, "agreement": {"pairs": 2, "same": 0.5, "same_or_tie": 1.0, "ties": ties}}
    regret = {"mean": 0.0025, "p95": 0.01, "most": 0.01, "thorough": {"problems": 0, "seconds": 10.0}}
    made = {"problems": 2, "rows": rows, "quick": quick, "regret": regret, "lists": {}}
    return copied(folder, "service-tuning", **(made | changes))


def test_wins_of_rounds_and_widths_of_ties_are_told(tmp_path: Path) -> None:
    text = raced(tmp_path)
    assert "| WINs of each round | 2, 1 of 2 problems |" in text
    assert "| 1; 0%; 1.0% (tn_1x2x3) |" in text


@pytest.mark.parametrize(
    ("problems", "label"),
    [
        (0, "against the fastest of the quick tunings' own winners: mean; p95; most | 0.25% (95%"),
        (2, "and a thorough tuning of 30 s: mean; p95; most | 0.20% (95%"),
        (1, "and a thorough tuning of 30 s: mean; p95; most | 0.20%; 1.0%; 1.0%, 1 problems |"),
    ],
)
def test_a_regret_says_what_it_is_against(tmp_path: Path, problems: int, label: str) -> None:
    thorough = {"problems": problems, "seconds": 30.0, "mean": 0.002, "p95": 0.01, "most": 0.01}
    regret = {"mean": 0.0025, "p95": 0.01, "most": 0.01, "thorough": thorough}
    assert label in raced(tmp_path, regret=regret)


def beyond(median: float, p95: float) -> dict[str, Any]:
    """What a round took beyond measuring: all but 1 ms of it is setting up."""
    parts = {
        "setup": {"median": median - 0.001, "p95": p95, "most": p95},
        "proving": {"median": 0.001, "p95": 0.001, "most": 0.001},
    }
    return {"problems": 2, "median": median, "p95": p95, "most": p95, "parts": parts}


def test_what_is_not_measuring_is_told_of_each_effort_and_round(tmp_path: Path) -> None:
    wall = {"median": 2.5, "p95": 3.5, "most": 9.0}
    normal = {"rounds": 1, "wall": wall, "beyond": [beyond(0.2, 0.3)]}
    quick = json.loads((RESULTS / "service-tuning.json").read_text())["quick"]
    quick |= {"beyond": [None, beyond(0.31, 1.52), beyond(0.28, 0.44)]}
    text = copied(tmp_path, "service-tuning", quick=quick, normal=normal)
    bars = "wall clock minus measuring in each round: median; p95 (bar: 0.5 s)"
    assert f"| effort quick: {bars} | 0.31; 1.52 s, 0.28; 0.44 s |" in text
    assert f"| effort normal: {bars} | 0.20; 0.30 s |" in text
    assert (
        "| effort quick: what that consists of in the last round: median; p95 | setting up 0.28; 0.44 s |"
        in text
    )
    once = "asked once: wall clock of a problem (bar: 4 s) | median 2.50 s, p95 3.5 s, most 9.0 s |"
    assert once in text
    assert "Measuring is what the budget limits" in text
    assert "regret of quick against the fastest of the quick and normal tunings' own winners" in text


def test_a_result_without_what_is_not_measuring_has_no_such_rows(tmp_path: Path) -> None:
    made = json.loads((RESULTS / "service-tuning.json").read_text())
    text = copied(tmp_path, "service-tuning", quick={k: v for k, v in made["quick"].items() if k != "beyond"})
    assert "| effort quick, 50 problems" in text
    assert "minus measuring" not in text
    assert "Measuring is" not in text


def test_layers_that_nothing_shipped_has_have_a_section_with_their_gain(tmp_path: Path) -> None:
    made = json.loads((RESULTS / "service-tuning.json").read_text())
    lists = {"untuned": {"problems": 31, "rounds": [1.0712, 1.0698], "raced": 1.0754}}
    (tmp_path / "service-tuning-untuned.json").write_text(json.dumps(made | {"lists": lists}))
    text = section(tmp_path)
    assert text.startswith("## Tunings of layers that nothing shipped has\n")
    assert "untuned, 31 problems: over the default" in text
    assert "| **1.075x**; 1.071x, 1.070x |" in text


def test_the_way_of_a_new_user_ends_with_the_speed_up(tmp_path: Path) -> None:
    figures = {"torch": 100.0, "gemmtune": 125.0, "memory_bytes": 1}
    text = copied(tmp_path, "client-path", tokens_per_second=figures, speedup=1.25)
    assert "torch 100.0, with the bundle 125.0: **1.250x**" in text


def test_problems_that_were_tuned_once_have_no_regret_and_no_pairs(tmp_path: Path) -> None:
    """A winner that has no other tuning's beside it is the fastest of one."""
    text = copied(tmp_path, "service-tuning-lists")
    assert "asked once" in text
    assert "regret" not in text
    assert "two rounds name" not in text
    assert "| Decode, one token (m = 1) | 19 |" in text
