"""Pre-tuned tables: best rows that were measured elsewhere, in a file that says where, with what and when.

A table is an export as JSON lines whose header has more names:

    {"gemmtune":"export","version":1,"device":"cuda:sm_90:NVIDIA-H200:132","pretuned":"llama-3-8b-h200",
     "row_count":68,"commit":"710f03c...","release":"0.1.0","made_at":"2026-11-25T03:10:00+00:00",
     "note":"2 s a problem, every family"}

`row_count` is the number of rows: a reader reports a file that lost some. Tables of earlier versions have
none. `note` is optional: what was searched, and for how long. Each row has the problem, the winner and the
best candidate of each export target with their verdicts, the environment (without the card's UUID), the
policy, the session and its time: a bundle is built from it without a database (build_bundle). `models` has
the layers that a row is, of the models that the table is for, and `count` their calls in a forward pass of
each (pretuned_models.py). Installing a table
stores its rows as claims of provenance "pretuned": they are served only where asked for, never as
measurements, and a tuning of their problem on that device class tries them early.

Tables that are shipped are in FOLDER; users write and share their own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import orjson
from sqlalchemy import Connection, Engine, func, select

import db
from backends.canonical import slug
from backends.environment import DeviceClass
from backends.errors import InvalidProblem, ReadError
from backends.export_targets import BUNDLE
from backends.problem import GemmProblem
from db import models
from db.engine import now, reading
from db.values import table
from service.bundles import Built, Selection, Workshop, build_from, target_of
from service.formats import read_file
from service.formats.core.export import MEASURED, ExportReport, ExportRow
from service.formats.core.row_text import RowTexts, dumps, unwritten
from service.formats.gemmtune.completeness import ROW_COUNT
from service.imports import PRETUNED, ImportAnswer, import_file
from service.pretuned_models import ModelLayers
from service.products import products_of
from tuners.policy import MeasurementPolicy

_log = logging.getLogger(__name__)
#: The tables that are shipped.
FOLDER = Path(db.__file__).parent / "pretuned"
SUFFIX = ".jsonl"
_FORMAT = "jsonl"
_LONGEST_NOTE = 1000
#: Characters of a table's rows that are held in memory while it is written.
_HELD = 2**24


@dataclass(frozen=True)
class PretunedTable:
    """A table's header and its rows; `rejected` are the lines that are no rows, with their reasons."""

    name: str
    path: Path
    device: DeviceClass
    header: Mapping[str, str]
    rows: Sequence[ExportRow]
    rejected: Sequence[str]

    @property
    def wins(self) -> int:
        """The rows that beat their baseline."""
        return sum(row.judgement == "WIN" for row in self.rows)

    @property
    def models(self) -> dict[str, int]:
        """How many rows are layers of each model, by name."""
        named = [sorted({layer.model for layer in row.models}) for row in self.rows]
        return dict(sorted(Counter(name for names in named for name in names).items()))

    @property
    def libraries(self) -> str:
        """The driver and the libraries that its rows were measured with, each once."""
        found: dict[str, None] = {}
        for row in self.rows:
            e = row.environment
            parts = [f"{name} {build}" for name, build in sorted(e.libraries.items())]
            found.setdefault(", ".join([*parts, *([f"driver {e.driver}"] if e.driver else [])]))
        return "; ".join(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, without the rows."""
        return {
            "name": self.name,
            "path": str(self.path),
            "device_class": str(self.device),
            "rows": len(self.rows),
            "wins": self.wins,
            **products_of([row.problem for row in self.rows]),
            "libraries": self.libraries,
            "models": self.models,
            "commit": self.header.get("commit", ""),
            "release": self.header.get("release", ""),
            "made_at": self.header.get("made_at", ""),
            "note": self.header.get("note", ""),
        }


def shipped_files(folder: Path = FOLDER) -> list[Path]:
    """The files of the tables in a folder, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def shipped(folder: Path = FOLDER) -> list[PretunedTable]:
    """The tables in a folder, by name. Raises ReadError for a file that is none."""
    return [read_table(path) for path in shipped_files(folder)]


def read_table(path: Path) -> PretunedTable:
    """A table. Raises ReadError for a file that is none."""
    read = read_file(path, _FORMAT)
    name, device = read.header.get(PRETUNED), read.header.get("device", "")
    rows = [item.claim.row for item in read.claims if item.claim.row is not None]
    rejected = [f"line {item.line}: {item.reason}" for item in read.rejected]
    if not name or not rows:
        raise ReadError(
            f"{path} is no pre-tuned table, which `gemmtune pretuned export` writes; other files are read by "
            "`gemmtune import`" + "".join(f"; {reason}" for reason in rejected[:1])
        )
    try:
        found = DeviceClass.parse(device)
    except ValueError as error:
        raise ReadError(f"{path} names no device class: {error}") from None
    strange = sorted({str(row.environment.device_class) for row in rows} - {str(found)})
    if strange:
        raise ReadError(f"{path} is of {found}, but has rows of {', '.join(strange)}")
    return PretunedTable(name, path, found, read.header, rows, rejected)


def named(text: str, folder: Path = FOLDER) -> Path:
    """The file of a table: the shipped one of that name, or the file at that path. Raises ReadError, which
    lists the shipped ones."""
    path = folder / f"{text}{SUFFIX}"
    if path.is_file():
        return path
    if Path(text).is_file():
        return Path(text)
    known = ", ".join(file.stem for file in shipped_files(folder)) or "none"
    raise ReadError(f"{text!r} is neither a shipped table nor a file; shipped: {known}")


def tables_with(problem_ids: frozenset[str], device: DeviceClass, folder: Path = FOLDER) -> dict[str, int]:
    """The shipped tables of the device class with kernels of our own that won for some of these problems, and
    for how many, the most first. Rows are looked at, not checked: a table of a thousand takes 0.2 s."""
    found: dict[str, int] = {}
    for path in shipped_files(folder):
        with path.open("rb") as file:
            header = orjson.loads(file.readline())
            if header.get("device") != str(device):
                continue
            rows = (orjson.loads(line) for line in file)
            ids = {row["problem_id"] for row in rows if _won_by_ours(row)}
        count = len(ids & problem_ids)
        if count:
            found[header[PRETUNED]] = count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _won_by_ours(row: Mapping[str, Any]) -> bool:
    return bool((row.get("targets") or {}).get(BUNDLE.name, {}).get("judgement") == "WIN")


def install(engine: Engine, path: Path) -> ImportAnswer:
    """Stores a table's rows as claims of provenance "pretuned"; again it changes nothing. Raises ReadError,
    DatabaseUnavailable."""
    found = read_table(path)  # a file that is no table stores nothing
    with path.open("rb") as stream:
        return import_file(engine, stream, str(path), _FORMAT, source=found.name)


def install_shipped(engine: Engine, folder: Path = FOLDER) -> list[str]:
    """Installs the shipped tables that the database does not have yet, by their bytes; returns their names.
    An installation that was interrupted is completed. Raises ReadError for a file that is no table,
    DatabaseUnavailable."""
    paths = shipped_files(folder)
    if not paths:
        return []
    provenance, claim = table(models.Provenance), table(models.Claim)
    query = (
        select(provenance.c.sha256, func.count(claim.c.provenance_number))
        .join(claim, claim.c.provenance_number == provenance.c.number)
        .where(provenance.c.kind == PRETUNED)
        .group_by(provenance.c.sha256)
    )
    with reading(engine) as connection:
        there: dict[str, int] = {row[0]: row[1] for row in connection.execute(query)}
    names = []
    for path in paths:
        data = path.read_bytes()
        if max(there.get(sha256, 0) for sha256 in _hashes(data)) < data.count(b"\n") - 1:
            answer = install(engine, path)
            names.append(answer.provenance["source"])
            _log.info("installed the pre-tuned table %s: %d rows", names[-1], answer.claims.stored)
    return names


def _hashes(data: bytes) -> tuple[str, str]:
    """The hash of a table, and that of the same table as earlier versions shipped it, without the number of
    its rows: a database that has that one has these rows."""
    header, end, rows = data.partition(b"\n")
    before = re.sub(b',"%s":[0-9]+' % ROW_COUNT.encode(), b"", header) + end + rows
    return hashlib.sha256(data).hexdigest(), hashlib.sha256(before).hexdigest()


def installed(connection: Connection) -> list[dict[str, Any]]:
    """The installed tables: name, device class, sha256, when, the number of their claims, and what these
    multiply."""
    provenance, claim, problem = table(models.Provenance), table(models.Claim), table(models.Problem)
    query = select(provenance).where(provenance.c.kind == PRETUNED).order_by(provenance.c.number)
    found = []
    for row in connection.execute(query).mappings():
        of = (
            select(problem.c.content)
            .join(claim, claim.c.problem_id == problem.c.id)
            .where(claim.c.provenance_number == row["number"])
        )
        problems = [GemmProblem.from_dict(content) for content in connection.scalars(of)]
        found.append(
            {
                "name": row["source"],
                "device_class": (row["header"] or {}).get("device", ""),
                "rows": len(problems),
                **products_of(problems),
                "sha256": row["sha256"],
                "installed_at": row["created_at"],
                "commit": (row["header"] or {}).get("commit", ""),
                "made_at": (row["header"] or {}).get("made_at", ""),
                "note": (row["header"] or {}).get("note", ""),
            }
        )
    return found


# ---- a bundle of one ----------------------------------------------------------------------------


def build_bundle(
    found: PretunedTable, path: Path, workshop: Workshop, most: int, *, target: str | None = None,
    policy: str | None = None, problem_ids: frozenset[str] | None = None,
) -> Built:  # fmt: skip
    """Compiles a table's kernels of our own that won into a bundle at `path`, without a database or a device.
    `policy`: the id of the rows' measurement policy; default: the device's. `problem_ids`: only of these.
    Raises Refused where no row is left, StorageError."""
    chosen = Selection(
        found.device, policy or MeasurementPolicy.of(found.device.vendor).id,
        target_of(found.device, target), problem_ids,
    )  # fmt: skip
    rows = [row for row in found.rows if row.policy.id == chosen.policy_id]

    def why_none(report: ExportReport) -> str:
        if not report.omitted:
            return f"the table {found.name} has no such row under the policy {chosen.policy_id}"
        reason, count = max(report.omitted.items(), key=lambda item: item[1])
        return f"no row of the table {found.name} can be written; {count} of them: {reason}"

    return build_from(rows, chosen, most, path, workshop, why_none)


# ---- writing -------------------------------------------------------------------------------------


def write_table(
    name: str, device: DeviceClass, rows: Iterable[ExportRow], note: str = "",
    models: ModelLayers | None = None,
) -> Iterator[str]:  # fmt: skip
    """The text of a table in pieces: a line for the header and one for each measured row. A row loses the
    tools' own keys, the calls counted here and the card's UUID. `note`: what was searched. `models`: those
    that the table is for. Raises InvalidProblem for a name that is no file's name, and for a note that is no
    line of text; the pieces raise ReadError for a model that cannot be read."""
    if not name or name != slug(name):
        raise InvalidProblem(f"--name {name[:80]!r} may hold letters, digits, '.', '_' and '-' only")
    if len(note) > _LONGEST_NOTE or not note.isprintable():
        raise InvalidProblem(f"--note must be one line of at most {_LONGEST_NOTE} characters")
    return _pieces(name, device, rows, note, models or ModelLayers(()))


def _pieces(
    name: str, device: DeviceClass, rows: Iterable[ExportRow], note: str, models: ModelLayers
) -> Iterator[str]:
    texts, count = RowTexts(), 0
    # The header has the number of rows, so they are made first; many are not held in memory.
    with SpooledTemporaryFile(_HELD, "w+", encoding="utf-8", newline="\n") as held:
        for row in rows:
            if row.provenance == MEASURED and unwritten(row, None) is None:
                anywhere = replace(row.environment, uuid="")
                held.write(texts.text(models.told(replace(row, keys=(), environment=anywhere))) + "\n")
                count += 1
        yield dumps(_header(name, device, count, note)) + "\n"
        held.seek(0)
        yield from held


def _header(name: str, device: DeviceClass, count: int, note: str) -> dict[str, Any]:
    return {
        "gemmtune": "export",
        "version": 1,
        "device": str(device),
        PRETUNED: name,
        ROW_COUNT: count,
        "commit": commit(),
        "release": version("gemmtune"),
        "made_at": now(),
        **({"note": note} if note else {}),
    }


def rewrite_table(found: PretunedTable, models: ModelLayers) -> list[str]:
    """The lines of a table with other models; its header stays as it is. Raises ReadError for a table with
    lines that are no rows, which would be lost."""
    if found.rejected:
        raise ReadError(f"{found.path} has lines that are no rows: {found.rejected[0]}")
    with found.path.open(encoding="utf-8") as file:
        header = file.readline()
    texts = RowTexts()
    return [header, *(texts.text(models.told(row)) + "\n" for row in found.rows)]


def commit() -> str:
    """The commit of gemmtune's sources: $GEMMTUNE_COMMIT, else git's HEAD; "unknown" without either."""
    told = os.environ.get("GEMMTUNE_COMMIT")
    if told:
        return told
    home = Path(__file__).resolve().parent.parent
    if not (home / ".git").exists():  # installed, perhaps inside another project's repository
        return "unknown"
    try:
        done = subprocess.run(
            ["git", "-C", str(home), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
