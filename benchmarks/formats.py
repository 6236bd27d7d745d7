"""Time and memory of the file formats, and fuzzing of their readers. Needs no device.

    python -m benchmarks.formats read    a million lines of every input format imported into a new database
    python -m benchmarks.formats write   100,000 stored rows as a file of every output format
    python -m benchmarks.formats fuzz    100,000 files with mistakes for every reader

Each format runs in its own process, so that peak memory is its own. `fuzz` also runs coverage-guided fuzzing
if atheris is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backends.registry import find_device
from benchmarks import report, stored
from service import exports, imports
from service.formats import READERS, WRITERS
from service.settings import Settings
from service.startup import open_database, upgrade
from tests.service.formats import mutate
from tests.service.formats.contract_inputs import TORCH, written
from tuners.policy import MeasurementPolicy

LINES, ROWS, MISTAKES = 1_000_000, 100_000, 100_000
#: Distinct problems of a log, and distinct rows of a tuned file; they repeat until the file has its lines.
DISTINCT, TUNED = 2_000, 20_000

# ---- reading -------------------------------------------------------------------------------------

#: Format -> pattern of the number that varies between problems, in the last line of the format's example.
VARIED: Mapping[str, bytes] = {
    "tunableop": rb"(?<=nn_)1024(?=_)|(?<=_ld_)1024|(?<=1024_)1024(?=,)",
    "tunableop-untuned": rb"(?<=_)16(?=_)",
    "cublaslt-log": rb"(?<=cols=)16(?= )",
    "cublas-log": rb"(?<= n: type=int; val=)[0-9]+",
    "hipblaslt-log": rb"(?<=-n )16",
    "rocblas-profile": rb"(?<= N: )16",
    "hipblaslt": rb"(?<=^T,N,0,1,4096,)16(?=,)",
    "rocblas": rb"(?<=^T,N,4096,)16(?=,)",
    "aiter": rb"(?<=,304,)[0-9]+(?=,)|^[0-9]+(?=,)",
    "aiter-untuned": rb"^[0-9]+(?=,)",
    "aiter-log": rb"(?<=M:)[0-9]+",
    "block-fp8": rb"(?<=> N=)[0-9]+",
    "jsonl": rb'(?<="m":)[0-9]+',
    "csv": rb"^[0-9]+(?=,)",
}


def text_of(name: str, lines: int, distinct: int) -> Iterator[bytes]:
    """A file of `lines` lines with `distinct` problems, in pieces: the example's head, then its last line
    (the whole example, in logs where a call takes several lines) repeated with other sizes."""
    example = READERS[name].example.encode().rstrip(b"\n")
    whole = name in ("cublas-log", "block-fp8")
    head, line = (b"", example) if whole else example.rpartition(b"\n")[::2]
    if name == "hipblaslt":  # every row has its own header
        head, line = example.partition(b"\n")[::2]
    pattern = re.compile(VARIED[name], re.MULTILINE)
    if not pattern.search(line):
        raise SystemExit(f"{name}: no number to vary in {line!r}")
    several = [pattern.sub(str(512 + 8 * i).encode(), line) + b"\n" for i in range(distinct)]
    if head:
        yield head + b"\n"
    left = -(-lines // (line.count(b"\n") + 1))
    block = b"".join(several)
    while left > 0:
        yield block if left >= distinct else b"".join(several[:left])
        left -= distinct


class _Pieces(io.RawIOBase):
    """An iterator of pieces as a raw stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held = pieces, b""

    def read(self, size: int = -1, /) -> bytes:
        while self._held == b"":
            found = next(self._pieces, None)
            if found is None:
                return b""
            self._held = found
        out, self._held = self._held[:size], self._held[size:]
        return out


def read_one(name: str, lines: int) -> dict[str, Any]:
    """Imports a file of one format into a new SQLite database."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/gemmtune.sqlite")
        upgrade(settings)
        engine = open_database(settings)
        device = None if name in ("jsonl", "csv") else "hip:gfx942:AMD-Instinct-MI300X:304"
        begin = time.perf_counter()
        tuned = name in WRITERS and name not in ("jsonl", "csv")
        stream: Any = _Pieces(text_of(name, lines, TUNED if tuned else DISTINCT))
        done = imports.import_file(engine, stream, name, name, device)
        seconds = time.perf_counter() - begin
    read = done.read
    return {
        "format": name, "lines": read.lines, "seconds": seconds, "problems": len(read.problems),
        "rejected": len(read.rejected) + read.rejected_more, "claims": done.claims.stored, "peak_mib": _peak(),
    }  # fmt: skip


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---- writing -------------------------------------------------------------------------------------

POLICY = MeasurementPolicy()


def write_one(name: str, rows: int) -> dict[str, Any]:
    """Exports rows stored in a SQLite database, as a service does."""
    one = written()[name]
    environment, winner, target, problems = one.environment, one.winner, one.target, one.problems
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/gemmtune.sqlite")
        upgrade(settings)
        engine = open_database(settings)
        ties = "default" if name == "inductor-table" else "omit"
        judgement, baseline = ("WIN", stored.BASE) if ties == "omit" else ("TIE", TORCH)
        stored.fill_class(engine, environment, problems(rows), winner, POLICY, judgement, baseline)
        chosen = exports.Selection(environment.device_class, POLICY.id, target=target, ties=ties)
        begin = time.perf_counter()
        made = exports.open_export(engine, name, chosen)
        size, first = 0, 0.0
        for piece in made.pieces:
            first = first or time.perf_counter() - begin
            size += len(piece)
        seconds = time.perf_counter() - begin
    return {
        "format": name, "written": made.report.written, "omitted": made.report.to_dict()["omitted"], "bytes": size,
        "seconds": seconds, "first_piece_seconds": first, "peak_mib": _peak(),
    }  # fmt: skip


# ---- mistakes ------------------------------------------------------------------------------------


def fuzz_one(name: str, count: int) -> dict[str, Any]:
    """Random mistakes, then coverage-guided ones if atheris is installed. Raises WrongAnswer."""
    begin = time.perf_counter()
    seen = mutate.fuzz(name, count, seed=1)
    by_chance = time.perf_counter() - begin
    covered = None
    if importlib.util.find_spec("atheris") is not None:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.fuzz_coverage", name, str(count)], capture_output=True, text=True,
            check=False, timeout=3600,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(f"{name}: {done.stderr[-3000:]}{done.stdout[-2000:]}")
        executed = re.search(r"number_of_executed_units: ([0-9]+)", done.stderr)
        covered = int(executed[1]) if executed else 0
    return {"format": name, "files": count, **seen, "seconds": by_chance, "files_by_coverage": covered}


# ---- commands ------------------------------------------------------------------------------------


def _apart(which: str, name: str, count: int) -> dict[str, Any]:
    """Runs one format in its own process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.formats",
        which,
        "--only",
        name,
        "--count",
        str(count),
        "--here",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ)
    if done.returncode != 0:
        raise SystemExit(f"{which} {name} failed")
    found: dict[str, Any] = json.loads(done.stdout)
    print(found, file=sys.stderr, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=("read", "write", "fuzz"))
    parser.add_argument("--only", nargs="+", help="these formats")
    parser.add_argument("--count", type=int, help="lines, rows or files")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    run, names, count = {
        "read": (read_one, [name for name in READERS if name in VARIED], LINES),
        # (Writers that compare candidates need sessions, which these rows have not.)
        "write": (write_one, [name for name in WRITERS if not written()[name].of_candidates], ROWS),
        "fuzz": (fuzz_one, list(READERS), MISTAKES),
    }[given.which]
    names, count = given.only or names, given.count or count
    if given.here:
        print(json.dumps(run(names[0], count)))
        return
    rows = [_apart(given.which, name, count) for name in names]
    report.write(f"formats-{given.which}", find_device("cpu").environment, {"count": count, "rows": rows})


if __name__ == "__main__":
    main()
