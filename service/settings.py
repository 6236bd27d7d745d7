"""Every setting, in one class; a test checks that docs/settings.md documents each."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from backends.cache import default_cache_dir
from db.engine import default_url
from service.secret_files import SecretFiles


class Settings(BaseSettings):
    """Read from the environment, prefix GEMMTUNE_, else from files."""

    model_config = SettingsConfigDict(env_prefix="GEMMTUNE_", extra="ignore", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the files of GEMMTUNE_SECRETS_DIR."""
        return init_settings, env_settings, SecretFiles(settings_cls)

    secrets_dir: Path | None = Field(
        default=None,
        description="Folder of files that are named after settings, in lower case (gemmtune_database_url), "
        "and hold values that the environment does not give: the secrets of a container.",
    )
    database_url: str = Field(
        default_factory=default_url,
        description="The database: sqlite:////path/to/file or postgresql://user:password@host/name.",
    )
    host: str = Field(default="127.0.0.1", description="Address that the service listens on.")
    keys: bool | None = Field(
        default=None,
        description="Whether requests need an API key. Unset: only if the service listens on another address "
        "than loopback.",
    )
    allowed_hosts: str = Field(
        default="",
        description="Names in the Host header that are answered, separated by commas; `.example.org` are the "
        "names below it, `*` is any. Empty: on loopback its names, else any with keys, and without keys "
        "addresses and the machine's name.",
    )
    cors_origins: str = Field(
        default="",
        description="Origins whose pages may use the service with a key, separated by commas (CORS).",
    )
    key: SecretStr | None = Field(
        default=None, description="The API key that commands send to a service (`--server`)."
    )
    tls_certificate: Path | None = Field(
        default=None, description="Certificate chain (PEM) with which the service answers by TLS."
    )
    tls_key: Path | None = Field(default=None, description="Private key (PEM) of the certificate.")
    key_requests_per_second: int = Field(
        default=10_000, ge=1, description="Requests a second of one key, at most; more are answered 429."
    )
    key_queued_jobs: int = Field(
        default=20_000, ge=0, description="Jobs of one key that wait or run, at most; more are answered 429."
    )
    key_urgent_jobs: int = Field(
        default=100,
        ge=0,
        description="Of these the jobs with a priority before the default one, at most.",
    )
    key_upload_bytes: int = Field(
        default=1 << 30, ge=1024, description="Bytes of one file imported with a key, at most."
    )
    port: int = Field(default=8080, ge=0, le=65535, description="Port of the service; 0 takes a free one.")
    cache_dir: Path = Field(
        default_factory=default_cache_dir,
        description="Folder of compiled kernels, bundles and measured ceilings.",
    )
    kernel_cache_bytes: int = Field(
        default=20 << 30,
        ge=0,
        description="Bytes of compiled kernels in the folder; those not used for longest are removed.",
    )
    device: str = Field(
        default="cpu",
        description="Device selector of commands that measure and name none. If it is set, also of requests "
        "and of commands that read results; else these take the only class that has a worker or results.",
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
    max_uploads: int = Field(
        default=8, ge=1, description="Files imported at a time, at most; one more is answered 503."
    )
    max_parsers: int = Field(
        default=2, ge=1, description="Processes that read imported files; further files wait for one."
    )
    import_cpu_seconds: int = Field(
        default=300, ge=1, description="Processor time of reading and storing one imported file, at most."
    )
    max_exports: int = Field(
        default=4, ge=1, description="Files for download that are written at a time; more wait."
    )
    max_connections: int = Field(
        default=4000,
        ge=10,
        description="Connections at a time, at most; one more is answered 503.",
    )
    header_seconds: float = Field(
        default=15.0, gt=0, description="How long a connection may take to send a request's headers."
    )
    stall_seconds: float = Field(
        default=30.0,
        gt=0,
        description="How often the progress of a body, or of a client that reads an answer, is looked at. A "
        "client that takes nothing for so long is disconnected, also at an answer's end.",
    )
    least_bytes_per_second: int = Field(
        default=500, ge=0, description="Slower bodies, and slower readers of answers, are disconnected."
    )
    max_event_streams: int = Field(
        default=2000, ge=1, description="Streams of events at a time, at most; one more is answered 503."
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
        description="Whether an idle worker compiles the portfolio for its device, and the candidates that "
        "searches did not have time to compile.",
    )
    portfolio: Path | None = Field(
        default=None,
        description="A portfolio's file (`gemmtune portfolio build`) in place of the shipped one: searches "
        "begin with its members.",
    )
    revalidate: int = Field(
        default=100,
        ge=0,
        description="Winners of another environment that a starting worker has measured again, at most; "
        "0: none.",
    )
    device_checks: bool = Field(
        default=True,
        description="Whether workers time defaults between jobs, a second each, to compare the devices of a "
        "class.",
    )
    max_compiles: int = Field(
        default=2, ge=1, description="Kernels compiled for requests at a time; one more is answered 503."
    )
    max_bundle_rows: int = Field(default=10_000, ge=1, description="Rows of a bundle, at most.")
    retain_engine_days: int = Field(
        default=30,
        ge=0,
        le=36500,
        description="Days that calls of the job engine are kept once they ended; 0: forever.",
    )
    retain_events_days: int = Field(
        default=30,
        ge=0,
        le=36500,
        description="Days that a tuning's events are kept once it ended, the last one forever; 0: forever.",
    )
    retain_samples_days: int = Field(
        default=0,
        ge=0,
        le=36500,
        description="Days that samples are kept from which no verdict can be derived; 0: forever.",
    )
    compress_bytes: int = Field(
        default=1024,
        ge=0,
        description="Answers of this many bytes are compressed where the client takes gzip.",
    )
    log_json: bool = Field(
        default=False, description="Whether servers and workers log lines of JSON instead of text."
    )
    audit_log: Path | None = Field(
        default=None,
        description="File, by its absolute path, to which servers and commands append a line of JSON before "
        "every change of the database, and one with its result; what cannot be recorded is refused.",
    )
    otel: bool = Field(
        default=False,
        description="Whether servers and workers send traces by OpenTelemetry (extra `otel`); its own "
        "variables, `OTEL_*`, name the collector and the sampler.",
    )
    access_log: bool = Field(default=True, description="Whether each request is logged, in one line.")

    @field_validator("portfolio", mode="before")
    @classmethod
    def _is_named(cls, path: object) -> object:
        return path or None  # an empty variable names no file

    @field_validator("audit_log")
    @classmethod
    def _is_absolute(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError("write the file's absolute path: servers and commands run in different folders")
        return path

    @property
    def chosen_device(self) -> str | None:
        """The device selector, None where nobody set one."""
        return self.device if "device" in self.model_fields_set else None
