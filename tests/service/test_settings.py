"""Every setting is documented, with its default and its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.errors import StorageError
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


# ---- secrets -----------------------------------------------------------------------------------


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMTUNE_SECRETS_DIR", str(tmp_path))
    monkeypatch.delenv("GEMMTUNE_DATABASE_URL", raising=False)
    return tmp_path


def test_a_secrets_file_gives_what_the_environment_does_not(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (secrets / "gemmtune_database_url").write_text("postgresql://one:secret@database/gemmtune\n")
    (secrets / "gemmtune_margin").write_text("0.5")
    (secrets / "password").write_text("of another program")
    monkeypatch.setenv("GEMMTUNE_MARGIN", "0.25")
    assert Settings().database_url == "postgresql://one:secret@database/gemmtune"
    assert Settings().margin == 0.25
    assert Settings(database_url="sqlite:////other").database_url == "sqlite:////other"


def test_a_folder_of_secrets_that_is_missing_is_an_error(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMTUNE_SECRETS_DIR", str(secrets / "none"))
    with pytest.raises(StorageError, match=r"GEMMTUNE_SECRETS_DIR names .*none, which is no folder"):
        Settings()


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"x" * 65_537, b"\xff"], ids=["empty", "blank", "long", "bytes"]
)
def test_a_secret_that_is_no_value_is_an_error_that_does_not_show_it(secrets: Path, content: bytes) -> None:
    (secrets / "gemmtune_database_url").write_bytes(content)
    with pytest.raises(StorageError, match=r"gemmtune_database_url (is empty|cannot be read)") as caught:
        Settings()
    assert "xxx" not in str(caught.value)


def test_a_secret_that_cannot_be_read_is_an_error(secrets: Path) -> None:
    (secrets / "gemmtune_database_url").mkdir()
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        Settings()
