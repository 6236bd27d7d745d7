"""The OpenAPI document: committed, served, complete, and true to its own examples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from service.app import openapi_document

COMMITTED = Path(__file__).parent.parent.parent.parent / "docs" / "openapi.json"
#: The first test compares it with the application's, which takes a second to make.
DOCUMENT: Any = json.loads(COMMITTED.read_text())
ADDRESSES = {
    "/v1/tunings": {"get", "post"},
    "/v1/tunings/{tuning_id}": {"get", "delete"},
    "/v1/tunings/{tuning_id}/events": {"get"},
    "/v1/solutions/best": {"get", "post"},
    "/v1/solutions/{solution_id}": {"get"},
    "/v1/solutions/{solution_id}/binary": {"get"},
    "/v1/bundles": {"get"},
    "/v1/bundles/report": {"get"},
    "/v1/problems": {"get"},
    "/v1/problems/{problem_id}": {"get"},
    "/v1/problems/{problem_id}/measurements": {"get"},
    "/v1/imports/{format_name}": {"post"},
    "/v1/exports/{format_name}": {"get"},
    "/v1/measurements": {"get"},
    "/v1/measurements/card": {"get"},
    "/v1/reports/worth": {"get"},
    "/v1/leaderboard": {"get"},
    "/v1/ceilings": {"get"},
    "/v1/compare": {"get"},
    "/v1/diff": {"get"},
    "/v1/devices": {"get"},
    "/v1/environments": {"get"},
    "/v1/backends": {"get"},
    "/v1/workers": {"get"},
    "/v1/jobs": {"get"},
    "/v1/jobs/{job_id}": {"get"},
    "/v1/jobs/{job_id}/retry": {"post"},
    "/v1/provenance": {"get"},
    "/v1/provenance/{number}": {"delete"},
    "/login": {"post"},
    "/logout": {"post"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


def test_the_committed_document_is_the_applications() -> None:
    assert openapi_document() == DOCUMENT, (
        "docs/openapi.json is not up to date; run: python -m service.app docs/openapi.json"
    )


def test_the_served_document_is_the_same(filled: httpx.Client) -> None:
    assert filled.get("/openapi.json").json() == DOCUMENT


def test_every_address_is_there() -> None:
    assert {path: set(methods) for path, methods in DOCUMENT["paths"].items()} == ADDRESSES
    assert DOCUMENT["info"]["title"] == "gemmtune"
    assert DOCUMENT["info"]["description"]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_says_what_can_go_wrong(operation: Any) -> None:
    for status in ("422", "500", "503"):
        assert set(operation["responses"][status]["content"]) == {"application/problem+json"}
    refused = [status for status in operation["responses"] if status >= "4"]
    for status in refused:
        assert operation["responses"][status]["content"]["application/problem+json"]["example"]
    if "requestBody" in operation:
        assert {"400", "413", "415"} <= set(refused)
    assert operation["description"]
    assert operation["tags"]
    known = {tag["name"] for tag in DOCUMENT["tags"]}
    assert set(operation["tags"]) <= known
    for parameter in operation.get("parameters", ()):
        assert "description" in parameter or parameter["in"] == "path"


def examples(operation: Any) -> Iterator[tuple[Any, Any]]:
    """(schema, example) of every body that the operation takes or gives."""
    contents = [response.get("content", {}) for response in operation["responses"].values()]
    contents.append(operation.get("requestBody", {}).get("content", {}))
    for content in contents:
        for described in content.values():
            named = [one["value"] for one in described.get("examples", {}).values()]
            for example in [described["example"]] if "example" in described else named:
                yield described["schema"], example


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_example_is_what_its_schema_says(operation: Any) -> None:
    found = list(examples(operation))
    for schema, example in found:
        whole = {**schema, "components": DOCUMENT["components"]}
        jsonschema_rs.validator_for(whole).validate(example)
    good = [status for status in operation["responses"] if status < "3" and status != "204"]
    for status in good:
        for described in operation["responses"][status]["content"].values():
            assert "example" in described or "examples" in described


def test_operations_have_plain_ids() -> None:
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(ids)) == len(ids)
    assert all(name.isidentifier() and not name.endswith(("_get", "_post")) for name in ids)


def test_every_schema_is_used() -> None:
    text = json.dumps(DOCUMENT)
    for name in DOCUMENT["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text, name
