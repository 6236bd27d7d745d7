"""The sections of tunings through a service say what the results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    assert "in order | 9.0, 3.0 |" in text
    assert "quick" not in text


def test_the_way_of_a_new_user_ends_with_the_speed_up(tmp_path: Path) -> None:
    figures = {"torch": 100.0, "gemmtune": 125.0, "memory_bytes": 1}
    text = copied(tmp_path, "client-path", tokens_per_second=figures, speedup=1.25)
    assert "torch 100.0, with the bundle 125.0: **1.250x**" in text
