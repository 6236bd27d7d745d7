"""Runs a user's whole workflow once: start the service, import a captured file, tune through HTTP, ask for
the best, export, stop."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich.console import Console

from backends.counted import counted
from backends.errors import DeviceError, InvalidProblem
from backends.wire import problem_from_wire, problem_to_wire
from service import follow, report
from service.remote import Remote

_STOP_SECONDS = 40
#: The service's log, in the folder of the demo.
LOG = "service.log"
#: What the service's log says when a worker beside it ends.
_WORKER_ENDED = re.compile(r"the worker of .+ ended \((.+)\); it starts again")


@contextmanager
def running(folder: Path, device: str) -> Iterator[str]:
    """Runs a service with a worker on a free port, its database and log in `folder`; yields its address."""
    environment = {
        **os.environ,
        "GEMMTUNE_DATABASE_URL": f"sqlite:///{(folder / 'gemmtune.sqlite').absolute()}",
    }
    command = [sys.executable, "-P", "-m", "service.entry", "serve", "--port", "0", "--device", device]
    log = folder / LOG
    begun = log.stat().st_size if log.exists() else 0
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            words = [word for word in line.split() if word.startswith("http")]
            if not words:
                raise DeviceError(f"the service did not start: {_reason(log, begun)} (all of it: {log})")
            yield words[0]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def demo(
    file: Path,
    folder: Path,
    device: str,
    max_gflop: float,
    seconds: float,
    out: Console,
) -> None:
    """Runs the workflow; its files stay in `folder`. Raises ServiceError, DeviceError, InvalidProblem."""
    folder.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        out.print(text, markup=False, highlight=False, soft_wrap=True)

    log = folder / LOG
    begun = log.stat().st_size if log.exists() else 0
    with running(folder, device) as address, Remote(address) as remote:
        say(f"the service listens at {address}; its database: {folder / 'gemmtune.sqlite'}")
        answer = remote.upload("/v1/imports/auto", file, source=file.name)
        say(
            f"imported {file}: {counted(len(answer['problems']), 'problem')}, "
            f"{counted(len(answer['rejected']), 'line')} rejected"
        )
        items = [(problem_from_wire(_wire(row)), row["count"]) for row in answer["problems"]]
        kept = [item for item in items if item[0].flops <= max_gflop * 1e9]
        if not kept:
            raise InvalidProblem(f"no problem of {file} is within {max_gflop:g} GFLOP")
        say(
            f"tuning {len(kept)} of them through HTTP ({len(items) - len(kept)} are over {max_gflop:g} GFLOP)"
        )
        wait_for_worker(remote, device, log, begun)
        options = {"device": device, "budget": {"seconds_per_problem": seconds}}
        results = follow.follow(remote, follow.submit(remote, kept, options), say)
        counts = {problem.id: count for problem, count in kept}
        out.print(report.verdicts_table(results, counts))
        say(report.summary(results, counts))
        _ask(remote, address, problem_to_wire(kept[0][0]), device, say)
        for name, suffix in (("json", ".json"), ("csv", ".csv")):
            path = folder / f"best{suffix}"
            with path.open("wb") as stream:
                for piece in remote.download(f"/v1/exports/{name}", device=device):
                    stream.write(piece)
            say(f"exported {path}  (GET {address}/v1/exports/{name}?device={device})")
    say(f"stopped; everything is in {folder}/: database, exports, service.log")
    say(f"go on: {_command(folder, 'serve')}")
    say(f"copy the database, also while a service runs: {_command(folder, 'db backup copy.sqlite')}")


def _wire(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("id", "count")}


def wait_for_worker(remote: Remote, device: str, log: Path, begun: int) -> None:
    """Waits until a worker has registered its device class. `begun`: bytes of the log that were there before.
    Raises DeviceError after a minute, and at once if the worker ends."""
    for _ in range(600):
        if any(row["workers"] for row in remote.get("/v1/devices")["classes"]):
            return
        if _WORKER_ENDED.search(_written(log, begun)):
            raise DeviceError(f"the worker cannot start: {_reason(log, begun)} (all of it: {log})")
        time.sleep(0.1)
    raise DeviceError(f"no worker for {device!r} came up within a minute: {_reason(log, begun)} ({log})")


def _written(log: Path, begun: int) -> str:
    with log.open("rb") as file:
        file.seek(begun)
        return file.read().decode(errors="replace")


def _reason(log: Path, begun: int) -> str:
    """What a process that ended said last: its error, else its last line."""
    lines = [line.strip() for line in _written(log, begun).splitlines() if line.strip()]
    own = [line for line in lines if not _WORKER_ENDED.search(line)]
    errors = [line for line in own if line.startswith("error:")]
    return (errors or own or lines or ["its log is empty"])[-1].removeprefix("error:").strip()


def _ask(remote: Remote, address: str, wire: dict[str, Any], device: str, say: Callable[[str], None]) -> None:
    asked = {
        name: json.dumps(v) if isinstance(v, dict) else v for name, v in {**wire, "device": device}.items()
    }
    answer = remote.get("/v1/solutions/best", **asked)
    question = urlencode({name: str(v).lower() if isinstance(v, bool) else v for name, v in asked.items()})
    say("")
    say(f"GET {address}/v1/solutions/best?{question}")
    if answer["solution"] is None:
        say(f"  {answer['match']}: {answer['reason']}")
    else:
        took = report.time_text(answer["seconds"])
        say(f"  {answer['match']}: {answer['solution']['id']}, {took}, {answer['judgement']}")


def _command(folder: Path, command: str) -> str:
    url = f"sqlite:///{(folder / 'gemmtune.sqlite').absolute()}"
    return f"GEMMTUNE_DATABASE_URL={shlex.quote(url)} {shlex.quote(sys.argv[0])} {command}"
