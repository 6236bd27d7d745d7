"""How long a million stored measurements take as a file, and how much memory of the server.

    python -m benchmarks.measurements [--rows 1000000] [--folder DIR] [--keep]

A service without workers runs in a process of its own; a client on the same machine reads every kind of file to its
end. Then a client reads the beginning of a file and stops: the service's open database connections are counted
meanwhile. Needs about 1 GB of disk for a million rows; with --keep the database stays in DIR and is used again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, insert, select

from backends.registry import find_device
from backends.solution import Solution
from benchmarks import report, stored
from benchmarks.rebuild import POLICY, WINNER, problems
from db import models
from db.engine import now, open_engine, writing
from db.values import put_solutions, table
from service.measured_files import KINDS
from service.settings import Settings
from service.startup import upgrade
from tests.service.formats.contract_inputs import H200, TORCH

#: Measurements of a session, and solutions that they are of.
EACH, SOLUTIONS = 50, 2000
_HEAD = 1 << 20


def fill(engine: Engine, rows: int) -> None:
    """Sessions of EACH measurements, with as many samples and as much evidence as tunings on an H200 leave."""
    choose, at = random.Random(0), now()
    solutions = [
        Solution("tile-wgmma", 4, {"tile_m": 64, "tile_n": 128, "stages": 4, "variant": number})
        for number in range(SOLUTIONS)
    ]
    with writing(engine) as connection:
        put_solutions(connection, [TORCH, WINNER, *solutions])
    stored.fill_class(engine, H200, list(islice(problems(), rows // EACH)), WINNER, POLICY, baseline=TORCH)
    with writing(engine) as connection:
        session = table(models.Session)
        sessions = connection.scalars(select(session.c.id).where(session.c.status == "succeeded")).all()
    for start in range(0, len(sessions), 400):
        values: list[dict[str, Any]] = [
            _measurement(name, choose.choice(solutions) if take else WINNER, take, choose, at)
            for name in sessions[start : start + 400]
            for take in range(EACH)
        ]
        with writing(engine) as connection:
            connection.execute(insert(table(models.Measurement)), values)


def _measurement(name: str, solution: Solution, take: int, choose: random.Random, at: str) -> dict[str, Any]:
    seconds = choose.uniform(1e-5, 1e-3)
    evidence = {
        "checks": 2, "exact_checks": 1, "beta_checks": 0, "error_over_bound": choose.random(), "repeatable": True,
        "relative_error": choose.random() / 1000, "coverage": 1.0, "cases": ["exact", "ragged, own scalars"],
        "resources": {"registers": 64, "local_bytes": 0, "shared_bytes": 0, "threads": 32, "blocks_per_unit": 32},
        "disturbed": 0,
    }  # fmt: skip
    return {
        "session_id": name, "solution_id": solution.id, "phase": "screen", "take": take,
        "status": "ok" if take % 2 else "pruned", "seconds": seconds,
        "samples": [seconds * choose.uniform(0.9, 1.1) for _ in range(3 if take % 10 else 20)],
        "evidence": evidence, "workspace_bytes": 0, "created_at": at,
    }  # fmt: skip


@contextmanager
def served(url: str) -> Iterator[tuple[str, int]]:
    """A service's address and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "service.entry", "serve", "--no-worker", "--port", str(port)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "GEMMTUNE_DATABASE_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                httpx.get(f"{address}/healthz")
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def _peak(pid: int) -> int:
    """Largest resident bytes of a process so far."""
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _cpu(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(address: str, pid: int, kind: str) -> dict[str, Any]:
    """Seconds until the first byte and the last, the server's processor seconds and peak, and bytes."""
    begin, first, size, cpu = time.perf_counter(), 0.0, 0, _cpu(pid)
    with httpx.stream("GET", f"{address}/v1/measurements?format={kind}", timeout=600) as answer:
        answer.raise_for_status()
        for piece in answer.iter_raw(1 << 20):
            first = first or time.perf_counter() - begin
            size += len(piece)
    return {
        "seconds": time.perf_counter() - begin,
        "first_byte_seconds": first,
        "server_cpu_seconds": _cpu(pid) - cpu,
        "bytes": size,
        "server_peak_bytes": _peak(pid),
    }


def stalled(address: str) -> int:
    """Database connections that the service holds while a client has stopped reading."""
    with httpx.stream("GET", f"{address}/v1/measurements", timeout=60) as answer:
        next(answer.iter_raw(_HEAD))
        time.sleep(3)  # sockets are full, and the service waits
        text = httpx.get(f"{address}/metrics").text
    line = next(line for line in text.splitlines() if line.startswith("gemmtune_pool_connections_in_use"))
    return int(float(line.split()[-1]))


def main() -> None:
    """Measures and writes measurements.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where the database is made (a temporary folder)")
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        path = Path(given.folder if given.keep else temporary) / "measurements.sqlite"
        url = f"sqlite:///{path.absolute()}"
        if not path.exists():
            upgrade(Settings(database_url=url))
            engine = open_engine(url)
            fill(engine, given.rows)
            engine.dispose()
        figures: dict[str, Any] = {"rows": given.rows, "database_bytes": path.stat().st_size, "files": {}}
        for kind in KINDS:  # each of a service of its own, whose peak is this file's
            with served(url) as (address, pid):
                before = _peak(pid)
                figures["files"][kind] = {"server_start_bytes": before, **read(address, pid, kind)}
                print(json.dumps({kind: figures["files"][kind]}), flush=True)
        with served(url) as (address, _):
            figures["connections_while_stalled"] = stalled(address)
    report.write("measurements", find_device("cpu").environment, figures)


if __name__ == "__main__":
    main()
