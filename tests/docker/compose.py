"""The Compose file as data: variables filled in, and the services of some profiles."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml

_VARIABLE = re.compile(r"\$\{([A-Z_0-9]+)(?::-([^}]*))?\}")


def variables(text: str) -> set[str]:
    """Every variable that the file reads."""
    return {match.group(1) for match in _VARIABLE.finditer(text)}


def interpolated(value: Any, environment: Mapping[str, str]) -> Any:
    """A value with `${NAME:-default}` replaced in all its strings; KeyError for a variable without either."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda m: environment.get(m.group(1)) or _default(m), value)
    if isinstance(value, list):
        return [interpolated(one, environment) for one in value]
    if isinstance(value, dict):
        return {key: interpolated(one, environment) for key, one in value.items()}
    return value


def _default(match: re.Match[str]) -> str:
    default = match.group(2)
    if default is None:
        raise KeyError(match.group(1))
    return str(default)


def config(
    text: str, profiles: Collection[str], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What `docker compose config` resolves: anchors merged, variables filled in, the services without a
    profile and those of `profiles`, and of secrets and volumes those that they use."""
    found: dict[str, Any] = interpolated(yaml.safe_load(text), environment or {})
    services: dict[str, dict[str, Any]] = {
        name: {key: value for key, value in service.items() if key != "profiles"}
        for name, service in found["services"].items()
        if not service.get("profiles") or set(service["profiles"]) & set(profiles)
    }
    secrets = {one for service in services.values() for one in service.get("secrets", [])}
    volumes = {one.partition(":")[0] for service in services.values() for one in service.get("volumes", [])}
    return {
        "name": found["name"],
        "services": services,
        "secrets": {name: value for name, value in found["secrets"].items() if name in secrets},
        "volumes": {name: value for name, value in found["volumes"].items() if name in volumes},
    }
