"""Settings from files: a container's secrets are mounted as files, one a setting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from backends.errors import StorageError

VARIABLE = "GEMMTUNE_SECRETS_DIR"
_MOST_BYTES = 1 << 16


class SecretFiles(PydanticBaseSettingsSource):
    """Reads files that are named after settings (gemmtune_database_url) in the folder that
    GEMMTUNE_SECRETS_DIR names; blanks and line ends around a value are left out. Raises StorageError for a
    folder that is missing, and a file that cannot be read, is empty or has more than 64 KiB."""

    def __init__(self, settings: type[BaseSettings]) -> None:
        super().__init__(settings)
        self._folder = os.environ.get(VARIABLE)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of a field's file, or None."""
        name = f"{self.config.get('env_prefix', '')}{field_name}".lower()
        return (self._read(Path(self._folder) / name) if self._folder else None), field_name, False

    def __call__(self) -> dict[str, Any]:
        """What the folder has."""
        if not self._folder:
            return {}
        if not Path(self._folder).is_dir():
            raise StorageError(
                f"{VARIABLE} names {self._folder}, which is no folder; mount the secrets there"
            )
        fields = self.settings_cls.model_fields.items()
        found = {name: self.get_field_value(field, name)[0] for name, field in fields}
        return {name: value for name, value in found.items() if value is not None}

    def _read(self, file: Path) -> str | None:
        try:
            text = file.read_bytes()[: _MOST_BYTES + 1].decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise StorageError(f"the secret {file} cannot be read: {why}") from None
        if not 1 <= len(text.strip()) <= _MOST_BYTES:
            raise StorageError(f"the secret {file} is empty or has more than {_MOST_BYTES} bytes")
        return text.strip()
