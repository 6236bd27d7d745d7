"""One service with a worker for each of two GPUs: kills, speed against one worker, and a throttled device.

    python -m benchmarks.two_devices FILE [--device cuda] [--seconds 2.0]

FILE is of any format (llama3-8b-untuned.csv, say). In order: (1) with nothing compiled its problems are tuned by two
workers; once a quarter of the jobs has ended one worker is killed (-9), at half of them the server, which is started
again: every job must end once; (2) all are tuned again by two workers that have run before, and (3) by one: the speed
of two over one, jobs and idle share of each device; (4) the defaults of the two are compared as the service does; (5) beside a busy
loop on the second device all are tuned again: it must be set apart.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from backends.problem import GemmProblem
from benchmarks.cuda_tuned import machine, say
from benchmarks.report import RESULTS, write
from benchmarks.service_tuning import Serving, jobs_of, submit, tuned
from db import models, outliers
from db.engine import now, open_engine, reading
from db.values import table
from service.formats import read_file
from tuners.device_agreement import agreements

WORKERS = 2
PARTS = ("cold", "throttled")
#: Keeps a device busy until it is killed; its index is the argument.
_BUSY = """
import sys, torch
at = torch.device("cuda", int(sys.argv[1]))
a = torch.randn(8192, 8192, device=at, dtype=torch.bfloat16)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize(at)
"""
_best, _environment, _session, _verdict, _job, _worker = (
    table(one)
    for one in (models.Best, models.Environment, models.Session, models.Verdict, models.Job, models.Worker)
)


def killed(
    folder: Path, cache: Path, device: str, problems: Sequence[GemmProblem], budget: dict[str, Any]
) -> dict[str, Any]:
    """Tunes with nothing compiled, while a worker and then the server are killed."""
    kills: list[dict[str, Any]] = []
    start = time.monotonic()
    service = Serving(folder, cache, device, workers=WORKERS)
    address = submit(service.client, problems, budget)
    try:
        while True:
            found = service.client.get(address, params={"limit": 1}).json()
            ended = found["succeeded"] + found["failed"]
            if found["ended_at"] is not None:
                break
            if not kills and ended >= len(problems) // 4:
                worker = next(row for row in service.living() if row["status"] == "measuring")
                os.kill(worker["pid"], signal.SIGKILL)
                kills.append({"what": "worker", "device": worker["device_uuid"], "after_jobs": ended})
                say(f"killed a worker after {ended} jobs")
            elif len(kills) == 1 and ended >= len(problems) // 2:
                service.kill()
                kills.append({"what": "server", "after_jobs": ended})
                say(f"killed the server after {ended} jobs")
                service = Serving(folder, cache, device, workers=WORKERS)
            time.sleep(0.2)
        seconds = time.monotonic() - start
        jobs = jobs_of(service.client, address)
    finally:
        service.stop()
    names = [job["problem_id"] for job in jobs]
    with reading(open_engine(f"sqlite:///{folder / 'gemmtune.sqlite'}")) as connection:
        query = select(_session.c.problem_id, func.count()).join(
            _verdict, _verdict.c.session_id == _session.c.id
        )
        verdicts: dict[str, int] = dict(connection.execute(query.group_by(_session.c.problem_id)).all())
    return {
        "seconds": seconds, "kills": kills, "jobs": len(jobs),
        "ended": dict(Counter(job["status"] for job in jobs)),
        "attempts": dict(Counter(str(job["attempt"]) for job in jobs)),
        "verdicts_of_a_problem": dict(Counter(str(verdicts.get(name, 0)) for name in names)),
    }  # fmt: skip


def used(folder: Path, since: str) -> dict[str, Any]:
    """Of the jobs that started since: jobs and idle share of each device, between the first start and the last
    end of all."""
    with reading(open_engine(f"sqlite:///{folder / 'gemmtune.sqlite'}")) as connection:
        query = select(_worker.c.device_uuid, _job.c.started_at, _job.c.ended_at)
        query = query.join(_worker, _worker.c.id == _job.c.worker_id).where(_job.c.started_at >= since)
        rows = connection.execute(query).all()
    spans: dict[str, list[tuple[datetime, datetime]]] = {}
    for uuid, start, end in rows:
        spans.setdefault(uuid, []).append((datetime.fromisoformat(start), datetime.fromisoformat(end)))
    every = [span for each in spans.values() for span in each]
    whole = (max(end for _, end in every) - min(start for start, _ in every)).total_seconds()
    return {
        uuid: {
            "jobs": len(each),
            "idle_share": 1 - sum((end - start).total_seconds() for start, end in each) / whole,
        }
        for uuid, each in sorted(spans.items())
    }


def merged(folder: Path) -> dict[str, Any]:
    """The class's best rows: how many, and of which device each is; a row is a ratio to its device's default."""
    with reading(open_engine(f"sqlite:///{folder / 'gemmtune.sqlite'}")) as connection:
        query = select(_environment.c.uuid, func.count()).select_from(_best)
        query = query.join(_environment, _environment.c.id == _best.c.environment_id).group_by(
            _environment.c.uuid
        )
        found: dict[str, int] = dict(connection.execute(query).all())
    return {"best_rows": sum(found.values()), "of_device": found}


def compared(folder: Path, environment: Any) -> dict[str, Any]:
    """The two devices' defaults, as the service compares them."""
    with reading(open_engine(f"sqlite:///{folder / 'gemmtune.sqlite'}")) as connection:
        times = outliers.default_times(connection, environment)
    return {uuid: asdict(found) | {"reason": found.reason} for uuid, found in agreements(times).items()}


def throttled(
    folder: Path,
    cache: Path,
    device: str,
    problems: Sequence[GemmProblem],
    budget: dict[str, Any],
    index: int,
) -> dict[str, Any]:
    """Tunes beside a busy loop on one device until that device is set apart, or the tuning has ended."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY, str(index)])
    try:
        with Serving(folder, cache, device, workers=WORKERS) as client:
            start = time.monotonic()
            address = submit(client, problems, budget)
            while True:
                rows = [
                    row for each in client.get("/v1/devices").json()["classes"] for row in each["outliers"]
                ]
                found = client.get(address, params={"limit": 1}).json()
                if rows or found["ended_at"] is not None:
                    return {
                        "seconds": time.monotonic() - start, "outliers": rows,
                        "jobs_ended": found["succeeded"] + found["failed"],
                    }  # fmt: skip
                time.sleep(0.2)
    finally:
        busy.kill()
        busy.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring a problem")
    parser.add_argument(
        "--parts", nargs="*", choices=PARTS, default=PARTS, help="parts beside the warm rounds"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    devices = machine(options.device.split(":")[0], 2)
    if len(devices) < 2:
        sys.exit(f"two devices are needed; this machine has {len(devices)}")
    problems = [item.problem for item in read_file(options.file).problems]
    budget = {"seconds_per_problem": options.seconds}
    figures: dict[str, Any] = {
        "what": "one service, SQLite, a worker for each of two devices", "file": options.file.name,
        "problems": len(problems), "seconds": options.seconds,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as made:
        folder, cache = Path(made) / "data", Path(made) / "cache"
        if "cold" in options.parts:
            figures["cold"] = killed(folder, cache, options.device, problems, budget)
            say(f"cold: {figures['cold']}")
        with Serving(folder, cache, options.device, workers=WORKERS) as client:
            tuned(client, problems, budget)  # compiles, and the workers compare their devices' defaults
            since = now()
            figures["warm_two"] = {"seconds": tuned(client, problems, budget)["seconds"]}
        figures["warm_two"]["devices"] = used(folder, since)
        with Serving(folder, cache, options.device, "--workers", "1") as client:
            tuned(client, problems[:WORKERS], budget)  # the worker's processes start
            figures["warm_one"] = {"seconds": tuned(client, problems, budget)["seconds"]}
        figures["faster"] = figures["warm_one"]["seconds"] / figures["warm_two"]["seconds"]
        say(f"two workers: {figures['faster']:.2f} times as fast as one")
        figures["merged"] = merged(folder)
        figures["defaults"] = compared(folder, devices[0].environment)
        if "throttled" in options.parts:
            figures["throttled"] = throttled(
                folder, cache, options.device, problems, budget, devices[1].index
            )
            say(f"throttled {devices[1].environment.uuid}: {figures['throttled']}")
    write("two-devices", [device.environment for device in devices], figures, options.output)


if __name__ == "__main__":
    main()
