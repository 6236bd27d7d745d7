"""What every answer is held against."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import BaseModel

from service.schemas import Fault


def fits(model: type[BaseModel], response: httpx.Response) -> Any:
    """The answer's JSON, which is what the model says: nothing more, nothing less."""
    assert response.is_success, response.text
    assert response.headers["content-type"] == "application/json"
    value = response.json()
    model.model_validate(value)
    return value


def fault_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of a response with this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    value: dict[str, Any] = response.json()
    Fault.model_validate(value)
    assert value["status"] == status
    assert value["type"].startswith("urn:gemmtune:")
    assert value["title"]
    assert value["detail"]
    assert value["instance"].startswith("/")
    assert value["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    return value
