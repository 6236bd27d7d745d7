"""What the program prints from one stored database: every export, and the help of every command."""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from db.engine import open_engine, reading
from service import cli
from service.formats import WRITERS

DATA = Path(__file__).parent.parent / "data" / "golden"
DATABASE, RECORD, HELP = DATA / "h200.sqlite.gz", DATA / "exports.json", DATA / "help.txt"
DEVICE = "cuda:sm_90"
#: Readers that formats with targets are written for: an older and a newer one.
TARGETS = {
    "tunableop": ("torch-2.14+cuda", "torch-2.15+cuda", "torch-2.15+rocm"),
    "inductor-table": ("torch-2.11+cuda", "torch-2.15+cuda"),
    "hipblaslt": ("rocm-6.4", "rocm-7.0"),
    "rocblas": ("rocm-6.4",),
}
#: What a reader is, where the database does not say it.
VALIDATORS = {
    "torch-2.14+cuda": ("PT_VERSION:2.14.0", "CUBLASLT_VERSION:130100", "CUDA_DEVICE:9.0:NVIDIA H200"),
}
#: Bytes of a text that a record has whole.
_WHOLE = 600


def unpacked(folder: Path) -> Path:
    """A copy of the stored database."""
    path = folder / "h200.sqlite"
    path.write_bytes(gzip.decompress(DATABASE.read_bytes()))
    return path


def _settings(patch: pytest.MonkeyPatch, database: Path) -> None:
    patch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{database}")
    patch.setenv("GEMMTUNE_PRETUNED", "0")  # what is shipped changes
    patch.setenv("COLUMNS", "100")
    patch.setenv("GEMMTUNE_CACHE_DIR", str(database.parent / "cache"))
    patch.delenv("GEMMTUNE_SERVER", raising=False)


def _entry(data: bytes) -> Any:
    if len(data) <= _WHOLE:
        return data.decode(errors="backslashreplace")
    return {"bytes": len(data), "sha256": sha256(data).hexdigest()}


def exports(folder: Path) -> dict[str, dict[str, Any]]:
    """Every format and target -> exit code, the file's bytes, and what is said of them."""
    database, found = unpacked(folder), {}
    with pytest.MonkeyPatch.context() as patch:
        _settings(patch, database)
        upgraded = CliRunner().invoke(cli.app, ["db", "upgrade"])
        assert upgraded.exit_code == 0, upgraded.output
        for name in WRITERS:
            for target in TARGETS.get(name, (None,)):
                for ties in ("omit", "default"):
                    path = folder / "export"
                    path.unlink(missing_ok=True)
                    given = [] if target is None else ["--target", target]
                    for validator in VALIDATORS.get(target or "", ()):
                        given += ["--validator", validator]
                    command = ["export", name, "--device", DEVICE, "--ties", ties, "-o", str(path), *given]
                    done = CliRunner().invoke(cli.app, command)
                    said = (done.output + (str(done.exception) if done.exception else "")).replace(
                        str(folder), "FOLDER"
                    )
                    written = path.read_bytes() if path.exists() else b""
                    key = " ".join([name, target or "", ties])
                    found[key] = {
                        "exit": done.exit_code,
                        "file": _entry(written),
                        "said": _entry(said.encode()),
                    }
    return found


def help_text() -> str:
    """Of the program and of every command."""
    with pytest.MonkeyPatch.context() as patch:
        _settings(patch, Path("/tmp/none.sqlite"))
        commands: list[list[str]] = [[], *([name] for name in sorted(cli.COMMANDS))]
        texts = []
        for command in commands:
            done = CliRunner().invoke(cli.app, [*command, "--help"], prog_name="gemmtune")
            assert done.exit_code == 0
            lines = [line.rstrip() for line in done.output.splitlines()]
            texts.append("\n".join([f"$ gemmtune {' '.join([*command, '--help'])}", *lines, ""]))
    return "\n".join(texts)


def stored(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of the stored database as it was written."""
    engine = open_engine(f"sqlite:///{unpacked(folder)}")
    try:
        with reading(engine) as connection:
            return [tuple(row) for row in connection.execute(text(query))]
    finally:
        engine.dispose()
