"""Generated requests of every operation: none ends in a 5xx, every answer is what the document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from db.engine import open_engine, writing
from service import keys
from service.settings import Settings
from tests.postgres import PostgresServer
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import CLASS, GPU, OTHER_CPU, fill, register
from tests.service.http.serving import serving

if TYPE_CHECKING:
    from schemathesis import BaseSchema

DOCUMENT = Path("docs/openapi.json")
#: Every operation as "METHOD path", but for the stream of events, which does not end.
OPERATIONS = [
    f"{method.upper()} {path}"
    for path, methods in json.loads(DOCUMENT.read_text())["paths"].items()
    for method in methods
    if not path.endswith("events")
]


@pytest.fixture(scope="module")
def document() -> BaseSchema:
    from tests.service.http import generated

    return generated.document()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_any_request(operation: str, document: BaseSchema, filled: httpx.Client) -> None:
    from tests.service.http import generated

    generated.check_requests(operation, document, filled)


@pytest.fixture(scope="module")
def guarded(
    postgres: PostgresServer, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """An application on PostgreSQL that asks for keys, and a client with one that may do anything."""
    name = postgres.create(postgres_template)
    folder = tmp_path_factory.mktemp("guarded")
    made = Settings(database_url=postgres.url(name), cache_dir=folder / "cache", device=CLASS, keys=True)
    engine = open_engine(made.database_url)
    fill(engine, PROBLEMS)
    register(engine, GPU, OTHER_CPU)
    with writing(engine) as connection:
        key = keys.create(connection, "all", ["admin"], None)
    engine.dispose()
    with serving(made, headers={"Authorization": f"Bearer {key}"}) as client:
        yield client
    postgres.drop(name)


#: Requests of every kind that are generated with a key, and of how many operations `make test` looks at one.
_FEW, _ONE_OF = 3, 3


@pytest.mark.postgres
@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(one, marks=[pytest.mark.exhaustive] if number % _ONE_OF else [])
        for number, one in enumerate(OPERATIONS)
    ],
)
def test_any_request_with_a_key(operation: str, document: BaseSchema, guarded: httpx.Client) -> None:
    from tests.service.http import generated

    generated.check_requests(operation, document, guarded, _FEW)


@pytest.mark.postgres
@pytest.mark.parametrize("operation", [one for one in OPERATIONS if "/v1/" in one])
def test_no_request_passes_without_a_key(operation: str, guarded: httpx.Client) -> None:
    method, path = operation.split(" ", 1)
    for given in ({}, {"Authorization": "Bearer gt_unknown"}):
        answer = httpx.request(method, f"{guarded.base_url}{path}".replace("//v1", "/v1"), headers=given)
        assert answer.status_code == 401, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
