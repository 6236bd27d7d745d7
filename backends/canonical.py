"""Stable text and hashes of plain values: the ground that every identity stands on."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces; NaN and Infinity are refused (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def short_hash(value: Any, digits: int = 12) -> str:
    """The first hex digits of the SHA-256 of canonical_json(value)."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:digits]


def slug(text: str) -> str:
    """Letters, digits, '.' and '_' kept; every run of anything else becomes one '-'."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")
