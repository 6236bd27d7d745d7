"""Tunings through the service: rounds of efforts, names of results, what sessions counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert

from benchmarks.cuda_tuned import SHAPES
from benchmarks.service_tuning import counted, main, result_name, rounds_of, spent
from db import models
from db.values import table


def test_rounds_are_for_all_efforts_or_for_each() -> None:
    assert rounds_of(["quick"], [4]) == {"quick": 4}
    assert rounds_of(["quick", "normal"], [3]) == {"quick": 3, "normal": 3}
    assert rounds_of(["normal", "quick"], [1, 4]) == {"normal": 1, "quick": 4}


@pytest.mark.parametrize(
    ("efforts", "rounds", "words"),
    [
        (["normal"], [4], "lacks quick"),
        (["quick", "quick"], [4], "names an effort twice"),
        (["quick", "normal"], [4, 1, 1], "--rounds 4 1 1: give one number"),
        (["quick", "normal"], [4, 0], "--rounds 4 0"),
    ],
)
def test_rounds_that_fit_no_efforts_are_refused(
    efforts: list[str], rounds: list[int], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--efforts", *efforts, "--rounds", *map(str, rounds)])
    assert words in capsys.readouterr().err


def test_no_problems_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--problems", "0"])
    assert "--problems 0: give a number from 1" in capsys.readouterr().err


def test_a_device_of_no_backend_is_refused() -> None:
    with pytest.raises(SystemExit, match="no backend 'tpu'; known: cpu, cuda, hip"):
        main(["--device", "tpu"])


def test_other_lists_have_a_result_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SHAPES.parent.parent)
    assert result_name(SHAPES) == result_name(Path("benchmarks/shapes.json")) == "service-tuning"
    assert result_name(Path("benchmarks/untuned.json")) == "service-tuning-untuned"


def test_sessions_that_ended_tell_their_seconds(tmp_path: Path) -> None:
    sessions = table(models.Session)
    engine = create_engine(f"sqlite:///{tmp_path / 'gemmtune.sqlite'}")  # without its checks of foreign keys
    sessions.create(engine)
    several = {
        "ended": {"space": 7, "setup_seconds": 0.1, "total_seconds": 1.5},
        "ended too": {"space": 7, "setup_seconds": 0.3, "total_seconds": 1.7},
        "imported": {},
        "running": None,
    }
    others = dict.fromkeys(
        ("problem_id", "environment_id", "device_class_id", "policy_id", "created_at"), "-"
    )
    with engine.begin() as connection:
        for name, counts in several.items():
            row = {**others, "id": name, "request": {}, "status": "succeeded", "counts": counts}
            connection.execute(insert(sessions).values(row))
    found = counted(tmp_path)
    assert found["ended"] == {"setup_seconds": 0.1, "total_seconds": 1.5}
    assert list(found) == ["ended", "ended too"]
    assert spent(found.values()) == pytest.approx({"setup_seconds": 0.2, "total_seconds": 1.6})
