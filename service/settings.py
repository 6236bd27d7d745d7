"""Every setting, in one class; docs/settings.md documents each and a test holds the two together."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from backends.cache import default_cache_dir


class Settings(BaseSettings):
    """Read from the environment, prefix GEMMTUNE_."""

    model_config = SettingsConfigDict(env_prefix="GEMMTUNE_", extra="ignore", frozen=True)

    cache_dir: Path = Field(
        default_factory=default_cache_dir,
        description="Folder of compiled kernels and measured ceilings.",
    )
    device: str = Field(default="cpu", description="Device selector used where a command names none.")
    seconds_per_problem: float = Field(
        default=2.0, gt=0, description="Measuring budget of one problem, in seconds."
    )
    margin: float = Field(
        default=0.02, ge=0, lt=1, description="Least relative gain over the baseline that is a WIN."
    )
