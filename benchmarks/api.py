"""The service under load: lookups among a million best rows, batches, exports, submitting, a job's overhead.

    python -m benchmarks.api fill       a database of 1,000,000 best rows (minutes; needed by the others): of SQLite, or
                                        (--postgres URL) of PostgreSQL
    python -m benchmarks.api best       GET /v1/solutions/best against an empty async route, in one run
    python -m benchmarks.api keys       GET /v1/solutions/best with a key against the same without keys
    python -m benchmarks.api near       lookups of stored problems and of others, and workers' histories, among a million
                                        best rows; SQLite and (--postgres URL) PostgreSQL
    python -m benchmarks.api batch      POST /v1/solutions/best with 10,000 problems
    python -m benchmarks.api export     100,000 rows in every format that a CPU's results can be written in
    python -m benchmarks.api submit     10,000 problems in one tuning; SQLite and (--postgres URL) PostgreSQL
    python -m benchmarks.api overhead   a job's overhead beyond its session

`best` loads the server with wrk (Debian: apt-get install wrk) from this machine: one server process, 16
connections. No tuning runs meanwhile.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from sqlalchemy import select

from backends.environment import Environment
from backends.problem import GemmProblem, from_mm
from backends.registry import find_device
from benchmarks import lookups, report
from benchmarks.serving import CONNECTIONS, cpu_seconds, resident, serving, wrk
from benchmarks.stored import fill_class
from db import models
from db.engine import open_engine, writing
from db.values import table
from service.settings import Settings
from service.startup import upgrade
from tuners.policy import MeasurementPolicy

ROWS, EXPORTED, BATCH, JOBS = 1_000_000, 100_000, 10_000, 60
SECONDS, ROUNDS = 8, 5
POLICY = MeasurementPolicy()
#: Two device classes: WHOLE has a best row for every problem, PART for the first EXPORTED of them.
WHOLE = Environment("cpu", "x86_64", "Fleet A", 64, 1 << 38, "CPU-A", libraries={"blas": "openblas 0.3.31"})
PART = Environment("cpu", "x86_64", "Fleet B", 64, 1 << 38, "CPU-B", libraries={"blas": "openblas 0.3.31"})


def problems(count: int) -> Iterator[GemmProblem]:
    """Distinct problems like those of a fleet: many row counts for few weights, in every data type."""
    made = 0
    for dtype in ("bf16", "fp16", "fp32"):
        for n in range(512, 20481, 512):
            for k in range(512, 8193, 512):
                for m in (*range(1, 513), *range(1024, 8193, 512)):
                    yield from_mm(m, n, k, dtype)
                    made += 1
                    if made == count:
                        return


# ---- filling -------------------------------------------------------------------------------------


def fill(folder: Path, rows: int, postgres: str | None) -> None:
    """Writes the rows as sessions, verdicts and best rows, each made by the service's own code."""
    settings = Settings(database_url=postgres) if postgres else _settings(folder)
    for path in () if postgres else folder.glob("gemmtune.sqlite*"):
        path.unlink()
    upgrade(settings)
    engine = open_engine(settings.database_url)
    from backends.solution import Solution  # noqa: PLC0415

    winner = Solution("packed", 1, {"mr": 6, "nr": 64, "threads": 64}, None, 4096, True)
    number = fill_class(engine, WHOLE, problems(rows), winner, POLICY)
    fill_class(engine, PART, problems(min(rows, EXPORTED)), winner, POLICY, number=number, new_problems=False)


def _settings(folder: Path, **more: Any) -> Settings:
    return Settings(
        database_url=f"sqlite:///{folder / 'gemmtune.sqlite'}", cache_dir=folder / "cache",
        device=str(WHOLE.device_class), **more,
    )  # fmt: skip


# ---- lookups -------------------------------------------------------------------------------------


def best(folder: Path) -> None:
    """The hot path against an empty route of the same server, interleaved."""
    choose = random.Random(1)
    everything = list(problems(ROWS))
    with tempfile.TemporaryDirectory() as scratch, serving(_settings(folder).database_url) as (address, pid):
        asked, nothing = Path(scratch, "best"), Path(scratch, "empty")
        nothing.write_text("/empty\n")
        device = str(WHOLE.device_class)
        lines = [
            f"/v1/solutions/best?m={p.n}&n={p.m}&k={p.k}&dtype={p.dtype_a}&device={device}"
            for p in choose.sample(everything, 200_000)
        ]
        asked.write_text("\n".join(lines) + "\n")
        for line in lines[:200]:
            answer = httpx.get(address + line).json()
            assert answer["match"] == "exact", (line, answer)
        del everything
        rounds = []
        for _ in range(ROUNDS):
            pair = {"empty": wrk(address, nothing, SECONDS), "best": wrk(address, asked, SECONDS)}
            rounds.append(pair)
            print(pair, flush=True)
        peak = resident(pid)
    throughput = [r["best"]["per_second"] / r["empty"]["per_second"] for r in rounds]
    tails = [r["best"]["p99_us"] / r["empty"]["p99_us"] for r in rounds]
    figures = {
        "rows_stored": ROWS, "connections": CONNECTIONS, "seconds": SECONDS,
        "throughput_ratio": median(throughput), "throughput_ratios": throughput,
        "p99_ratio": median(tails), "p99_ratios": tails, "server_mib": peak,
        "best_per_second": median(r["best"]["per_second"] for r in rounds),
        "empty_per_second": median(r["empty"]["per_second"] for r in rounds),
        "best_p99_ms": median(r["best"]["p99_us"] for r in rounds) / 1e3,
        "empty_p99_ms": median(r["empty"]["p99_us"] for r in rounds) / 1e3,
        "rounds": rounds,
    }  # fmt: skip
    report.write("api-best", find_device("cpu").environment, figures)


def _with_cpu(pid: int, address: str, paths: Path, key: str | None) -> dict[str, float]:
    """As wrk(), with the server's processor time of a request: on a busy machine it is steadier than rates."""
    before = cpu_seconds(pid)
    found = wrk(address, paths, SECONDS, key)
    spent = cpu_seconds(pid) - before
    return {**found, "cpu_us": spent / (found["per_second"] * SECONDS) * 1e6}


def with_keys(folder: Path, rows: int) -> None:
    """The hot path of a server that needs keys against one that needs none, interleaved."""
    from service.keys import create  # noqa: PLC0415

    url = _settings(folder).database_url
    engine = open_engine(url)
    with writing(engine) as connection:
        key = create(connection, "benchmark", ["read"], 86400.0, {"requests_per_second": 1_000_000})
    engine.dispose()
    some = random.Random(1).sample(list(problems(rows)), min(rows, 100_000))
    device = str(WHOLE.device_class)
    rounds = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving(url) as (plain, plain_pid),
        serving(url, "--keys") as (keyed, keyed_pid),
    ):
        asked = Path(scratch, "best")
        urls = (f"/v1/solutions/best?m={p.n}&n={p.m}&k={p.k}&dtype={p.dtype_a}&device={device}" for p in some)
        asked.write_text("\n".join(urls) + "\n")
        for _ in range(ROUNDS):
            pair = {
                "without": _with_cpu(plain_pid, plain, asked, None),
                "with": _with_cpu(keyed_pid, keyed, asked, key),
            }
            rounds.append(pair)
            print(pair, flush=True)
    ratios = [r["with"]["per_second"] / r["without"]["per_second"] for r in rounds]
    spent = [r["without"]["cpu_us"] / r["with"]["cpu_us"] for r in rounds]
    figures = {
        "rows_stored": rows, "connections": CONNECTIONS, "seconds": SECONDS,
        "throughput_ratio": median(ratios), "throughput_ratios": ratios,
        "requests_per_cpu_second_ratio": median(spent), "requests_per_cpu_second_ratios": spent, "rounds": rounds,
    }  # fmt: skip
    report.write("api-keys", find_device("cpu").environment, figures)


def batch(folder: Path) -> None:
    """10,000 problems in one request; every one is stored."""
    choose = random.Random(2)
    some = choose.sample(list(problems(ROWS)), BATCH)
    wire = [{"m": p.n, "n": p.m, "k": p.k, "dtype": p.dtype_a} for p in some]
    body = {"problems": wire, "device": str(WHOLE.device_class)}
    times = []
    with serving(_settings(folder).database_url) as (address, pid), httpx.Client(timeout=60) as client:
        for _ in range(7):
            begin = time.perf_counter()
            answer = client.post(f"{address}/v1/solutions/best", json=body)
            times.append(time.perf_counter() - begin)
            results = answer.json()["results"]
            assert len(results) == BATCH
            assert {result["match"] for result in results} == {"exact"}
        peak = resident(pid)
    figures = {"problems": BATCH, "seconds": median(times), "all_seconds": times, "server_mib": peak}
    report.write("api-batch", find_device("cpu").environment, figures)


def near(folder: Path, postgres: str | None) -> None:
    """Exact lookups, those of problems that have no best row, and workers' histories, without HTTP."""
    urls = {"sqlite": _settings(folder).database_url} | ({"postgresql": postgres} if postgres else {})
    load = os.getloadavg()[0]
    found = {name: lookups.figures(url, WHOLE, POLICY, problems(ROWS)) for name, url in urls.items()}
    report.write(
        "api-near", find_device("cpu").environment, {"measured": lookups.MEASURED, "load": load, **found}
    )


def export(folder: Path) -> None:
    """Streams a class's rows as a file; times the first byte and the last."""
    rows: list[dict[str, Any]] = []
    with serving(_settings(folder).database_url) as (address, pid), httpx.Client(timeout=120) as client:
        for name in ("json", "jsonl", "csv"):
            for _ in range(3):
                begin = time.perf_counter()
                url = f"{address}/v1/exports/{name}?device={PART.device_class}"
                with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer:
                    if answer.status_code == 404:
                        break
                    size, lines, first = 0, 0, 0.0
                    for chunk in answer.iter_bytes():
                        first = first or time.perf_counter() - begin
                        size += len(chunk)
                        lines += chunk.count(b"\n")
                rows.append({"format": name, "seconds": time.perf_counter() - begin, "first_byte_seconds": first,
                             "bytes": size, "lines": lines})  # fmt: skip
                print(rows[-1], flush=True)
        peak = resident(pid)
    by_format = {
        name: median(r["seconds"] for r in rows if r["format"] == name)
        for name in {r["format"] for r in rows}
    }
    figures = {"rows_exported": EXPORTED, "seconds": by_format, "server_mib": peak, "exports": rows}
    report.write("api-export", find_device("cpu").environment, figures)


# ---- tunings -------------------------------------------------------------------------------------


def submit(postgres: str | None) -> None:
    """Submits 10,000 problems in one request; times the 202 response."""
    figures: dict[str, Any] = {"problems": BATCH}
    wire = [{"m": p.n, "n": p.m, "k": p.k, "dtype": p.dtype_a} for p in problems(BATCH)]
    with tempfile.TemporaryDirectory() as scratch:
        urls = {"sqlite": f"sqlite:///{scratch}/gemmtune.sqlite"} | (
            {"postgresql": postgres} if postgres else {}
        )
        for name, url in urls.items():
            settings = Settings(database_url=url)
            upgrade(settings)
            engine = open_engine(url)
            from db.values import put_environment  # noqa: PLC0415

            with writing(engine) as connection:
                put_environment(connection, WHOLE, registered=True)
            times = []
            with serving(url) as (address, _), httpx.Client(timeout=120) as client:
                for seed in range(3):  # another seed is another request: nothing is shared
                    body = {"problems": wire, "device": str(WHOLE.device_class), "search": {"seed": seed}}
                    begin = time.perf_counter()
                    answer = client.post(f"{address}/v1/tunings", json=body)
                    times.append(time.perf_counter() - begin)
                    assert answer.status_code == 202, answer.text
                    assert answer.json()["new"] == BATCH
            figures[name] = {"seconds": median(times), "all_seconds": times}
            print(name, times, flush=True)
    report.write("api-submit", find_device("cpu").environment, figures)


def overhead(postgres: str | None) -> None:
    """A job's overhead beyond its session on each database: the time from the first job's start to the last
    one's end, minus the sessions' own time, per job."""
    with tempfile.TemporaryDirectory() as scratch:
        figures = _overhead(f"sqlite:///{scratch}/gemmtune.sqlite")
        print("sqlite", figures, flush=True)
        if postgres:
            figures["postgresql"] = _overhead(postgres)
            print("postgresql", figures["postgresql"], flush=True)
    report.write("api-overhead", find_device("cpu").environment, figures)


def _overhead(url: str) -> dict[str, Any]:
    environment = {**os.environ, "GEMMTUNE_DATABASE_URL": url}
    upgrade(Settings(database_url=url))
    worker = subprocess.Popen([sys.executable, "-m", "service.entry", "worker"], env=environment)
    try:
        with serving(url) as (address, _), httpx.Client(timeout=60) as client:
            body = {
                "problems": [{"m": 4, "n": 64, "k": 32 + i, "dtype": "fp32"} for i in range(JOBS)],
                "device": "cpu", "budget": {"seconds_per_problem": 0.05, "candidates": 2},
            }  # fmt: skip
            while (answer := client.post(f"{address}/v1/tunings", json=body)).status_code != 202:
                time.sleep(0.5)
            name = answer.json()["id"]
            while client.get(f"{address}/v1/tunings/{name}").json()["status"] in ("queued", "running"):
                time.sleep(0.5)
    finally:
        worker.terminate()
        worker.wait()
    job, session = table(models.Job), table(models.Session)
    with writing(open_engine(url)) as connection:
        query = select(job.c.started_at, job.c.ended_at, session.c.counts).join(
            session, session.c.id == job.c.session_id
        )
        rows = connection.execute(query.order_by(job.c.started_at)).all()
    rows = rows[1:]  # the first one also measures the device's ceilings
    span = (
        datetime.fromisoformat(rows[-1].ended_at) - datetime.fromisoformat(rows[0].started_at)
    ).total_seconds()
    inside = sum(row.counts["total_seconds"] for row in rows)
    return {
        "jobs": len(rows),
        "overhead_seconds": (span - inside) / len(rows),
        "session_seconds": inside / len(rows),
    }


def main() -> None:
    """Runs one benchmark; the module's docstring lists them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", choices=["fill", "best", "keys", "near", "batch", "export", "submit", "overhead"]
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gemmtune-benchmark")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument(
        "--postgres",
        default=None,
        help="a database's URL: an empty one for fill, submit and overhead, a filled one for near",
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.what == "fill":
        fill(options.folder, options.rows, options.postgres)
    elif options.what == "near":
        near(options.folder, options.postgres)
    elif options.what == "keys":
        with_keys(options.folder, options.rows)
    elif options.what == "submit":
        submit(options.postgres)
    elif options.what == "overhead":
        overhead(options.postgres)
    else:
        {"best": best, "batch": batch, "export": export}[options.what](options.folder)


if __name__ == "__main__":
    main()
