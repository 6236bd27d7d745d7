"""Served applications: one with plausible contents for a whole module, one empty for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from db.engine import open_engine
from service.settings import Settings
from tests.service.http.filled import CLASS, ENVIRONMENT, GPU, OTHER_CPU, fill, problem, register
from tests.service.http.serving import serving

#: What the shared application has measured: neighbours in m and n, another kind, a batch.
PROBLEMS = [
    *(problem(m, n, 512) for m in (16, 32, 64) for n in (256, 512)),
    problem(16, 256, 512, dtype="bf16", trans_b=True, epilogue="bias_relu"),
    problem(8, 64, 64, batch=4),
]


@pytest.fixture
def settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    """Of a new, empty database."""
    path = tmp_path / "gemmtune.sqlite"
    shutil.copyfile(sqlite_template, path)
    return Settings(database_url=f"sqlite:///{path}", cache_dir=tmp_path / "cache")


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    """The test's own way into the database."""
    made = open_engine(settings.database_url)
    yield made
    made.dispose()


@pytest.fixture
def client(settings: Settings, engine: Engine) -> Iterator[httpx.Client]:
    """An application with a worker of one device and nothing measured."""
    register(engine, ENVIRONMENT)
    with serving(settings) as made:
        yield made


@pytest.fixture(scope="module")
def filled_settings(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Settings:
    """Of a database with PROBLEMS measured and three devices, for a module that only reads."""
    folder = Path(tmp_path_factory.mktemp("filled"))
    path = folder / "gemmtune.sqlite"
    shutil.copyfile(sqlite_template, path)
    made = Settings(database_url=f"sqlite:///{path}", cache_dir=folder / "cache", device=CLASS)
    engine = open_engine(made.database_url)
    fill(engine, PROBLEMS)
    register(engine, GPU, OTHER_CPU)
    engine.dispose()
    return made


@pytest.fixture(scope="module")
def filled(filled_settings: Settings) -> Iterator[httpx.Client]:
    """Its application."""
    with serving(filled_settings) as made:
        yield made
