"""What the suites of packages share: the program of the documentation, which has nothing of ours."""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[3] / "docs" / "launch_package.py"


def program() -> Any:
    """docs/launch_package.py as a module."""
    spec = importlib.util.spec_from_file_location("launch_package", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """launch.json of a package, and its other files."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        files = {name: file.read(name) for name in file.namelist()}
    document: dict[str, Any] = json.loads(files.pop("launch.json"))
    return document, files
