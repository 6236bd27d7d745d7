"""Remakes the golden records: python -m tests.golden.record [candidates|code|exports|help ...]

A record is remade only for a change that is meant to change it, and the change is listed where it is decided.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from backends.cache import BinaryCache
from tests.golden import candidates, code, texts


def main(names: list[str]) -> None:
    """Writes the records that are named, all where none is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not names or "candidates" in names:
            found = candidates.record()
            lines = [
                f"{json.dumps(arch)}: {{\n"
                + ",\n".join(
                    f" {json.dumps(one)}: {json.dumps(of, separators=(',', ':'))}" for one, of in rows.items()
                )
                + "\n}"
                for arch, rows in found.items()
            ]
            candidates.RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        if not names or "code" in names:
            cache = BinaryCache(folder / "cache")
            code.RECORD.write_text(json.dumps(code.record(cache), indent=1) + "\n")
        if not names or "exports" in names:
            texts.RECORD.write_text(json.dumps(texts.exports(folder), indent=1) + "\n")
        if not names or "help" in names:
            texts.HELP.write_text(texts.help_text())


if __name__ == "__main__":
    main(sys.argv[1:])
