"""Fixtures that several suites share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from backends import registry
from backends.cache import BinaryCache
from service.settings import Settings
from service.startup import open_database, upgrade
from tests.postgres import DATABASES, PostgresServer


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> BinaryCache:
    """Compiled kernels of this test run: its processes share them, but not the folder around them, where
    locks lie."""
    own = tmp_path_factory.getbasetemp()
    compiled = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    compiled.mkdir(exist_ok=True)
    link = Path(tmp_path_factory.mktemp("cache")) / "kernels"
    link.symlink_to(compiled)
    return BinaryCache(link)


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs of one class, and a backend that finds nothing."""
    monkeypatch.setitem(registry.BACKENDS, "cuda", "tests.fleet:ThreeGpus")
    monkeypatch.setitem(registry.BACKENDS, "hip", "tests.fleet:NoDriver")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test run. Whoever stops it starts it again."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A database whose schema is current, to be copied."""
    name = postgres.create()
    upgrade(Settings(database_url=postgres.url(name)))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose schema is current, to be copied."""
    path = Path(tmp_path_factory.mktemp("template")) / "template.sqlite"
    upgrade(Settings(database_url=f"sqlite:///{path}"))
    return path


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without a schema, of every kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'gemmtune.sqlite'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create()
    yield server.url(name)
    server.drop(name)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database whose schema is current, the job engine's too; of every kind in turn."""
    if request.param == "sqlite":
        path = tmp_path / "gemmtune.sqlite"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create(request.getfixturevalue("postgres_template"))
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine on that database."""
    opened = open_database(Settings(database_url=database_url))
    yield opened
    opened.dispose()
