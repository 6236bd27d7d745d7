"""Lookups while the service works: beside workers, followers and imports, and in floods of each.

    python -m benchmarks.load lookups    GET /v1/solutions/best idle, then while 8 workers measure on the null
                                         driver, 500 clients follow events, and 5 files of 6 MB are imported
    python -m benchmarks.load uploads    45 files of 6 MB at once, each until it is taken
    python -m benchmarks.load streams    2,000 streams of events at once

One server process on SQLite, with 100,000 best rows (--rows). `lookups` takes wrk's load of 16 connections before,
during and after; the floods time one client that asks a lookup every 10 ms. The GPUs of the null driver (tests/chaos)
keep their workers waiting as long as a device would. `cores`: the processors' time that each kind of process took.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from backends.dtypes import COMPUTE_FOR
from backends.registry import find_device
from backends.solution import Solution
from benchmarks import report
from benchmarks.api import POLICY, WHOLE, problems
from benchmarks.formats import text_of
from benchmarks.serving import CONNECTIONS, resident, serving, wrk
from benchmarks.stored import fill_class
from db.engine import open_engine
from service.settings import Settings
from service.startup import upgrade
from tests.chaos import fleet
from tuners.ceilings import Ceilings, CeilingStore

ROWS, SECONDS, ROUNDS = 100_000, 8, 3
WORKERS, STREAMS, IMPORTS = 8, 500, 5
FLOOD_UPLOADS, FLOOD_STREAMS = 45, 2000
FILE_BYTES, DISTINCT = 6_000_000, 2_000
#: How long a GPU of the null driver works on a graph, and what is to be tuned: for longer than any round.
LAUNCH_SECONDS, TUNINGS, JOBS = 0.02, 16, 250
_PROBE_SECONDS, _IDLE_SECONDS, _FLOOD_SECONDS = 0.01, 5.0, 20.0
_READY_SECONDS = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")


# ---- what is loaded ------------------------------------------------------------------------------


class Loaded:
    """A server with best rows, and what runs beside it."""

    def __init__(self, folder: Path, rows: int, launch_seconds: float) -> None:
        self.launch_seconds = launch_seconds
        self.url = f"sqlite:///{folder / 'gemmtune.sqlite'}"
        self.folder = folder
        upgrade(Settings(database_url=self.url))
        engine = open_engine(self.url)
        winner = Solution("packed", 1, {"mr": 6, "nr": 64, "threads": 64}, None, 4096, True)
        fill_class(engine, WHOLE, problems(rows), winner, POLICY)
        engine.dispose()
        device = str(WHOLE.device_class)
        some = random.Random(1).sample(list(problems(rows)), min(rows, 100_000))
        self.paths = [
            f"/v1/solutions/best?m={p.n}&n={p.m}&k={p.k}&dtype={p.dtype_a}&device={device}" for p in some
        ]
        self.asked = folder / "paths"
        self.asked.write_text("\n".join(self.paths) + "\n")
        self.upload = folder / "upload.jsonl"
        with self.upload.open("wb") as file:
            for part in text_of("jsonl", 10**9, DISTINCT):
                file.write(part[: FILE_BYTES - file.tell()])
                if file.tell() >= FILE_BYTES:
                    break
            file.write(b"\n")

    @contextmanager
    def workers(self, address: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        """So many workers, each with a GPU of the null driver, all at work on tunings that do not end soon."""
        environment = {
            **os.environ, "GEMMTUNE_DATABASE_URL": self.url, "GEMMTUNE_CACHE_DIR": str(self.folder / "cache"),
            "GEMMTUNE_PRECOMPILE": "0", "GEMMTUNE_DEVICE_CHECKS": "0", "GEMMTUNE_FLEET_EACH": str(-(-count // 2)),
            "GEMMTUNE_FLEET_LAUNCH_SECONDS": str(self.launch_seconds),
        }  # fmt: skip
        made = []
        store = CeilingStore(self.folder / "cache" / "ceilings")
        devices = fleet.gpus(-(-count // 2))[:count]
        for device in devices:
            store.put(device, Ceilings(1e10, 1e10, {**dict.fromkeys(COMPUTE_FOR, 1e12), "tf32": 1e12}))
            command = [sys.executable, "-m", "tests.chaos.program", "worker", "--device", device.uuid]
            made.append(subprocess.Popen(command, env=environment, stderr=(self.folder / "log").open("ab")))
        try:
            classes = {device.vendor for device in devices}
            deadline = time.monotonic() + _READY_SECONDS
            while httpx.get(f"{address}/readyz", timeout=60).json().get("workers") != count:
                self._not_later(deadline, "the workers do not come")
            for number in range(TUNINGS):
                vendor = sorted(classes)[number % len(classes)]
                self._submit(address, vendor, number)
            while len(self._at_work(address)) < count:
                self._not_later(deadline, "the workers do not begin to measure")
            yield made
        finally:
            for process in made:
                process.terminate()
            for process in made:
                process.wait()

    def _not_later(self, deadline: float, text: str) -> None:
        if time.monotonic() > deadline:
            sys.exit(f"{text}: {(self.folder / 'log').read_text()[-3000:]}")
        time.sleep(0.5)

    def _submit(self, address: str, vendor: str, number: int) -> None:
        body = {
            "problems": [{"m": 1 + number, "n": 8 + i % 50, "k": 16 + i // 50, "dtype": "fp32"} for i in range(JOBS)],
            "device": vendor, "budget": {"seconds_per_problem": 1.0, "candidates": 4},
        }  # fmt: skip
        answer = httpx.post(f"{address}/v1/tunings", json=body, timeout=60)
        if answer.status_code != 202:
            sys.exit(f"a tuning is answered with {answer.status_code}: {answer.text}")

    def _at_work(self, address: str) -> list[Any]:
        rows = httpx.get(f"{address}/v1/workers", timeout=60).json()["items"]
        return [row for row in rows if row["status"] == "measuring"]

    def tunings(self, address: str) -> list[str]:
        """Those that have not ended."""
        rows = httpx.get(f"{address}/v1/tunings?limit=100", timeout=60).json()["items"]
        return [row["id"] for row in rows if row["status"] in ("queued", "running")]


class Clients:
    """benchmarks.load_clients in a process of its own; `last` is what it said last."""

    def __init__(self, address: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load_clients", address, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid, self.last = self._process.pid, dict[str, Any]()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = json.loads(line)

    def wait(self, holds: str, least: int, seconds: float = 60.0) -> None:
        """Until a count is as large."""
        deadline = time.monotonic() + seconds
        while int(self.last.get(holds, 0)) < least:
            if self._process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the clients do not come to {least} {holds}: {self.last}")
            time.sleep(0.1)

    def close(self) -> dict[str, Any]:
        """Ends it; what it said last."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(10)
        return self.last


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for word in path.read_text().split():
            found += tree(int(word))
    return found


def spent(pids: Sequence[int]) -> float:
    """Processor seconds of processes so far; those that have ended are left out."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


# ---- lookups beside work -------------------------------------------------------------------------


def lookups(folder: Path, rows: int, launch_seconds: float) -> None:
    """Throughput and latency idle, beside workers, followers and imports, and idle again."""
    loaded = Loaded(folder, rows, launch_seconds)
    environment = {"GEMMTUNE_CACHE_DIR": str(folder / "cache")}
    os.environ.update(environment)
    with serving(loaded.url) as (address, pid):
        wrk(address, loaded.asked, 2)  # warms up
        before = [wrk(address, loaded.asked, SECONDS) for _ in range(ROUNDS)]
        with loaded.workers(address, WORKERS) as workers:
            clients = Clients(
                address, "--streams", str(STREAMS), "--tunings", *loaded.tunings(address),
                "--uploads", str(IMPORTS), "--file", str(loaded.upload),
            )  # fmt: skip
            clients.wait("open", STREAMS)
            clients.wait("importing", IMPORTS)
            groups = {"workers": [w.pid for w in workers], "server": [pid], "clients": [clients.pid]}
            busy = []
            for _ in range(ROUNDS):
                before_round = {name: _of(group, pid) for name, group in groups.items()}
                figures: dict[str, Any] = {**wrk(address, loaded.asked, SECONDS)}
                after = {name: _of(group, pid) for name, group in groups.items()}
                parsers = [one for one in tree(pid) if one != pid]
                figures["cores"] = {n: round((after[n] - before_round[n]) / SECONDS, 2) for n in groups}
                figures["parsers"] = len(parsers)
                figures["open"], figures["importing"] = clients.last["open"], clients.last["importing"]
                busy.append(figures)
                print(figures, flush=True)
            told = clients.close()
        again = [wrk(address, loaded.asked, SECONDS) for _ in range(ROUNDS)]
        memory = resident(pid)
    idle = median(one["per_second"] for one in (*before, *again))
    result = {
        "rows_stored": rows, "connections": CONNECTIONS, "seconds": SECONDS, "workers": WORKERS, "streams": STREAMS,
        "imports": IMPORTS, "import_bytes": FILE_BYTES, "load_average": os.getloadavg()[0],
        "launch_seconds": launch_seconds, "idle_per_second": idle, "loaded_per_second": median(one["per_second"] for one in busy),
        "share": median(one["per_second"] for one in busy) / idle,
        "idle_p99_ms": median(one["p99_us"] for one in (*before, *again)) / 1e3,
        "loaded_p99_ms": median(one["p99_us"] for one in busy) / 1e3, "server_mib": memory,
        "clients": told, "before": before, "loaded": busy, "after": again,
    }  # fmt: skip
    report.write("load-lookups", find_device("cpu").environment, result)


def _of(group: Sequence[int], server: int) -> float:
    """Processor seconds of a group; of the server's without its parsers."""
    pids = [server] if group == [server] else [one for pid in group for one in tree(pid)]
    return spent(pids)


# ---- floods --------------------------------------------------------------------------------------


class Prober:
    """One client that asks for a lookup again and again, and the milliseconds that each answer took."""

    def __init__(self, address: str, paths: Sequence[str]) -> None:
        self._client = httpx.Client(base_url=address, timeout=120)
        self._paths = paths
        self._next = 0

    def run(self, until: Callable[[float], Any]) -> dict[str, Any]:
        """Asks until `until(seconds)` holds."""
        taken: list[float] = []
        begin = time.monotonic()
        while not until(time.monotonic() - begin):
            path = self._paths[self._next % len(self._paths)]
            self._next += 1
            asked = time.perf_counter()
            answer = self._client.get(path)
            taken.append((time.perf_counter() - asked) * 1e3)
            if answer.status_code != 200:
                sys.exit(f"a lookup is answered with {answer.status_code}: {answer.text[:300]}")
            time.sleep(_PROBE_SECONDS)
        taken.sort()
        return {
            "lookups": len(taken), "seconds": time.monotonic() - begin, "p50_ms": taken[len(taken) // 2],
            "p99_ms": taken[len(taken) * 99 // 100], "worst_ms": taken[-1],
        }  # fmt: skip


def flood(folder: Path, rows: int, name: str) -> None:
    """Lookups of one client before a flood, and while it lasts."""
    loaded = Loaded(folder, rows, LAUNCH_SECONDS)
    os.environ["GEMMTUNE_CACHE_DIR"] = str(folder / "cache")
    with serving(loaded.url) as (address, pid):
        prober = Prober(address, loaded.paths)
        idle = prober.run(lambda seconds: seconds > _IDLE_SECONDS)
        if name == "uploads":
            clients = Clients(
                address, "--uploads", str(FLOOD_UPLOADS), "--file", str(loaded.upload), "--once"
            )
            during = prober.run(lambda seconds: clients.last.get("done") or seconds > 600)
        else:
            with loaded.workers(address, 2):
                arguments = ["--streams", str(FLOOD_STREAMS), "--tunings", *loaded.tunings(address)]
                clients = Clients(address, *arguments)
                opening = prober.run(
                    lambda seconds: clients.last.get("open", 0) >= FLOOD_STREAMS or seconds > 180
                )
                during = {**prober.run(lambda seconds: seconds > _FLOOD_SECONDS), "while_opening": opening}
        told = clients.close()
        memory = resident(pid)
    flooded: Mapping[str, Any] = {"idle": idle, "flooded": during, "clients": told}
    result = {
        "rows_stored": rows, "import_bytes": FILE_BYTES, "server_mib": memory, "load_average": os.getloadavg()[0],
        **flooded,
    }  # fmt: skip
    report.write(f"load-{name}", find_device("cpu").environment, result)


def main() -> None:
    """Runs one benchmark; the module's docstring lists them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["lookups", "uploads", "streams"])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--launch-seconds", type=float, default=LAUNCH_SECONDS)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 3 * FLOOD_STREAMS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * FLOOD_STREAMS), hard))
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "lookups":
            lookups(Path(folder), options.rows, options.launch_seconds)
        else:
            flood(Path(folder), options.rows, options.what)


if __name__ == "__main__":
    main()
