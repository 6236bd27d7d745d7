"""Exports of a database that was written on an H200, and the help of every command."""

from __future__ import annotations

import json
from pathlib import Path

from tests.golden import texts


def test_every_export_is_as_recorded(tmp_path: Path) -> None:
    recorded = json.loads(texts.RECORD.read_text())
    found = texts.exports(tmp_path)
    assert list(found) == list(recorded)
    for name, entry in found.items():
        assert entry == recorded[name], name
    written = {name.split()[0] for name, entry in found.items() if entry["exit"] == 0}
    assert written >= {"tunableop", "inductor-table", "c-header", "jsonl", "json", "csv"}


def test_the_help_of_every_command_is_as_recorded() -> None:
    """Word for word: how lines are broken is the terminal library's."""
    assert texts.help_text().split() == texts.HELP.read_text().split()
