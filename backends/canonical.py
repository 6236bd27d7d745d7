"""Canonical JSON and stable hashes of plain values. Every id is derived from these."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces. Raises ValueError for NaN and Infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def short_hash(value: Any, digits: int = 12) -> str:
    """The first `digits` hex digits of the SHA-256 of canonical_json(value)."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:digits]


def slug(text: str) -> str:
    """Keeps letters, digits, '.' and '_'; replaces every run of other characters by one '-'."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")
