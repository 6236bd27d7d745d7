"""Generated requests of every operation: none ends in a 5xx, every answer is what the document says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

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
