"""Kubernetes' API as JSON Schema: the kinds that docker/kubernetes uses, and what they are made of.

The asset is cut from the PyPI package kubernetes-validate, which has every version in 17,000 files:

    pip install kubernetes-validate && python -m tests.docker.kubernetes_schema 1.37.0
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

ASSET = Path(__file__).parent.parent / "data" / "kubernetes" / "definitions.json"
KINDS = {
    "v1 Namespace": "io.k8s.api.core.v1.Namespace",
    "v1 Secret": "io.k8s.api.core.v1.Secret",
    "v1 Service": "io.k8s.api.core.v1.Service",
    "apps/v1 Deployment": "io.k8s.api.apps.v1.Deployment",
    "apps/v1 DaemonSet": "io.k8s.api.apps.v1.DaemonSet",
    "batch/v1 Job": "io.k8s.api.batch.v1.Job",
    "networking.k8s.io/v1 NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
    "policy/v1 PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
}


def problems(document: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    """What the schema says against a document, each with its place; a kind that the asset lacks is one."""
    name = KINDS.get(f"{document.get('apiVersion')} {document.get('kind')}")
    if name is None:
        return [f"kind: {document.get('apiVersion')} {document.get('kind')} is not one of {sorted(KINDS)}"]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": f"#/$defs/{name}",
        **definitions,
    }
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def cut(source: dict[str, Any]) -> dict[str, Any]:
    """The definitions of KINDS and all that they refer to, without descriptions."""
    waiting, kept = list(KINDS.values()), dict[str, Any]()
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept[name] = _plain(source[name])
            waiting += list(_references(kept[name]))
    return {"$defs": dict(sorted(kept.items()))}


def _plain(schema: Any) -> Any:
    """A schema with references within one document without texts. A property may be called description."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: _plain(value) for key, value in schema.items() if not isinstance(value, str) or key in _WORDS
    }
    if "$ref" in schema:
        plain["$ref"] = f"#/$defs/{schema['$ref'].rpartition('/')[2]}"
    return plain


#: Keywords whose values are words.
_WORDS = {"type", "format", "pattern", "$ref"}


def _references(schema: Any) -> Iterator[str]:
    return (match for match in re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema)))


def main(version: str) -> None:
    """Writes the asset from the installed package."""
    package = importlib.util.find_spec("kubernetes_validate")
    if package is None or package.origin is None:
        sys.exit("kubernetes-validate is not installed: pip install kubernetes-validate")
    folder = Path(package.origin).parent / "kubernetes-json-schema" / f"v{version}-local-strict"
    source = json.loads((folder / "_definitions.json").read_text())["$defs"]
    ASSET.write_text(json.dumps(cut(source), separators=(",", ":"), sort_keys=True) + "\n")
    print(f"{ASSET}: {ASSET.stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
