"""Errors of the command line as JSON: the problem document that the service would answer with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.errors import GemmtuneError


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def error_document(error: Exception) -> dict[str, Any]:
    """{"error": {"type", "title", "status", "detail", ...}}. A service's refusal keeps the service's own
    document."""
    from service.errors import Fault, fault_of  # noqa: PLC0415  (loads the web framework)
    from service.remote import ServiceError  # noqa: PLC0415

    if isinstance(error, ServiceError) and error.document is not None:
        return {"error": error.document}
    if isinstance(error, GemmtuneError):
        fault = fault_of(error)
    else:  # of the command line's parser, or of the settings
        fault = Fault(400, "usage", "The command line is not valid", _said(error))
    return {
        "error": {
            "type": f"urn:gemmtune:{fault.name}",
            "title": fault.title,
            "status": fault.status,
            "detail": fault.detail,
            **fault.members,
        }
    }


def _said(error: Exception) -> str:
    """What a usage error says: without the usage line, which is on standard error."""
    formatted = getattr(error, "format_message", None)
    return str(error) if formatted is None else str(formatted())
