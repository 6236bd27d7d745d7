"""Every setting is documented, with its default and its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import Settings

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "settings.md"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_document_has_every_setting_as_it_is(name: str) -> None:
    field = Settings.model_fields[name]
    row = next(
        (line for line in DOCUMENT.read_text().splitlines() if f"`GEMMTUNE_{name.upper()}`" in line), ""
    )
    assert field.description
    assert field.description in row
    if field.default_factory is None:
        assert f"`{field.default}`" in row


def test_the_document_has_no_setting_that_is_gone() -> None:
    named = {
        word.strip("`")
        for word in DOCUMENT.read_text().replace("|", " ").split()
        if word.startswith("`GEMMTUNE_")
    }
    assert named == {f"GEMMTUNE_{name.upper()}" for name in Settings.model_fields}


def test_the_environment_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_SECONDS_PER_PROBLEM", "3.5")
    assert Settings().seconds_per_problem == 3.5


def test_a_device_is_chosen_only_by_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMMTUNE_DEVICE", raising=False)
    assert (Settings().device, Settings().chosen_device) == ("cpu", None)
    monkeypatch.setenv("GEMMTUNE_DEVICE", "cuda:sm_90")
    assert Settings().chosen_device == "cuda:sm_90"
