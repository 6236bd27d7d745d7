"""Every setting, in one class; a test checks that docs/settings.md documents each."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from backends.cache import default_cache_dir
from db.engine import default_url


class Settings(BaseSettings):
    """Read from the environment, prefix GEMMTUNE_."""

    model_config = SettingsConfigDict(env_prefix="GEMMTUNE_", extra="ignore", frozen=True)

    database_url: str = Field(
        default_factory=default_url,
        description="The database: sqlite:////path/to/file or postgresql://user:password@host/name.",
    )
    host: str = Field(default="127.0.0.1", description="Address that the service listens on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port of the service; 0 takes a free one.")
    cache_dir: Path = Field(
        default_factory=default_cache_dir,
        description="Folder of compiled kernels, bundles and measured ceilings.",
    )
    device: str = Field(
        default="cpu", description="Device selector used where a command or a request names none."
    )
    seconds_per_problem: float = Field(
        default=2.0, gt=0, description="Measuring budget of one problem, in seconds."
    )
    margin: float = Field(
        default=0.02, ge=0, lt=1, description="Least relative gain over the baseline that is a WIN."
    )
    max_problems: int = Field(default=10_000, ge=1, description="Problems of one request, at most.")
    max_body_bytes: int = Field(
        default=8 << 20, ge=1024, description="Bytes of a JSON body, at most; more is answered 413."
    )
    max_upload_bytes: int = Field(
        default=1 << 30, ge=1024, description="Bytes of an imported file, at most; more is answered 413."
    )
    max_page: int = Field(default=1000, ge=1, description="Rows of one page of a list, at most.")
    max_near: int = Field(
        default=1000, ge=0, description="Problems of one request for which near ones are looked up, at most."
    )
    retry_after_seconds: int = Field(
        default=2,
        ge=1,
        description="When a client may ask again while the database is away, or a bundle is being built.",
    )
    events_poll_seconds: float = Field(
        default=0.25, gt=0, description="How often a stream of events looks for new ones."
    )
    events_heartbeat_seconds: float = Field(
        default=15.0, gt=0, description="How often a silent stream of events shows that it lives."
    )
    pretuned: bool = Field(
        default=True,
        description="Whether `serve` and `db upgrade` install the shipped pre-tuned tables as claims.",
    )
    precompile: bool = Field(
        default=True,
        description="Whether an idle worker compiles the shipped portfolio for its device.",
    )
    revalidate: int = Field(
        default=100,
        ge=0,
        description="Winners of another environment that a starting worker has measured again, at most; "
        "0: none.",
    )
    max_compiles: int = Field(
        default=2, ge=1, description="Kernels compiled for requests at a time; one more is answered 503."
    )
    max_bundle_rows: int = Field(default=10_000, ge=1, description="Rows of a bundle, at most.")
    compress_bytes: int = Field(
        default=1024,
        ge=0,
        description="Answers of this many bytes are compressed where the client takes gzip.",
    )
    log_json: bool = Field(
        default=False, description="Whether servers and workers log lines of JSON instead of text."
    )
    access_log: bool = Field(default=True, description="Whether each request is logged, in one line.")
