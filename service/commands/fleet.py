"""The commands workers, jobs and retry, on this machine's database or through a service with --server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import Annotated, Any

import typer
from rich.table import Table
from sqlalchemy import Connection, Engine

from backends.counted import counted
from backends.errors import InvalidProblem
from backends.wire import problem_from_wire
from db import fleet, queries
from db.classes import classes
from db.engine import reading, writing
from db.fleet import NoSuchName
from db.retries import JobNotRetried, retry_job
from service import report
from service.audit import REFUSED, audited
from service.commands.common import PARTLY, Device, Json, Server, out, print_json, tell
from service.remote import Remote, ServiceRefused
from service.routes.views import fleet_job_view, worker_view
from service.settings import Settings
from service.startup import open_database

#: Rows that are read from this machine's database at a time.
_PAGE = 500
_Query = Callable[..., list[dict[str, Any]]]


@contextmanager
def _database() -> Iterator[Engine]:
    engine = open_database(Settings())
    try:
        yield engine
    finally:
        engine.dispose()


def _rows(engine: Engine, query: _Query, *arguments: Any) -> Iterator[dict[str, Any]]:
    """Every row of a list of db.fleet."""
    before: int | None = None
    while True:
        with reading(engine) as connection:
            rows = query(connection, before, _PAGE, *arguments)
        yield from rows
        if len(rows) < _PAGE:
            return
        before = rows[-1]["number"]


def _class_id(connection: Connection, selector: str | None) -> str | None:
    return None if selector is None else str(classes(connection).resolve(selector))


def _one_of(name: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise InvalidProblem(f"--{name} {value[:40]!r} must be one of {', '.join(known)}")


def workers(
    state: Annotated[
        str | None, typer.Option(help=f"Only such workers: {', '.join(fleet.WORKER_STATES)}.")
    ] = None,
    device: Device = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also earlier workers of a device, not only its latest.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List the latest worker of each device: where it runs, whether it lives, its job, and what failed last.
    A silent worker has not beaten for half a minute."""
    _one_of("state", state, fleet.WORKER_STATES)
    found: list[dict[str, Any]]
    if server is None:
        with _database() as engine:
            with reading(engine) as connection:
                class_id = _class_id(connection, device)
            rows = _rows(engine, fleet.workers, state, class_id, not everything)
            found = [worker_view(row) for row in rows]
    else:
        with Remote(server) as remote:
            asked = {"state": state, "device": device, "latest": not everything}
            found = list(remote.pages("/v1/workers", "items", "cursor", **asked))
    if as_json:
        print_json({"workers": found})
        return
    table = Table(
        "worker", "machine", "device class, UUID", "status", "beat", "job", "version", "last failure"
    )
    for row in found:
        failure = row["last_failure"]
        said = "" if failure is None else f"{failure['at']} {failure['job_id'] or ''} {failure['reason']}"
        table.add_row(
            row["id"], f"{row['host']} ({row['pid']})", f"{row['device_class']}\n{row['device_uuid']}",
            row["status"], f"{_age(row['heartbeat_age_seconds'])} ago", row["job_id"] or "",
            row["version"] or "", " ".join(said.split())[:160],
        )  # fmt: skip
    out.print(table, markup=False)


def jobs(
    state: Annotated[str | None, typer.Option(help=f"Only such jobs: {', '.join(fleet.JOB_STATES)}.")] = None,
    device: Device = None,
    tuning: Annotated[str | None, typer.Option(help="Only jobs of the tuning with this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Jobs that are listed, at most.")] = 100,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List the jobs of all tunings, newest first, with the reason of each failure."""
    _one_of("state", state, fleet.JOB_STATES)
    found: list[dict[str, Any]]
    if server is None:
        with _database() as engine:
            with reading(engine) as connection:
                class_id = _class_id(connection, device)
            rows = _rows(engine, fleet.jobs, state, class_id, _tuning_number(engine, tuning))
            found = [fleet_job_view(row) for row in islice(rows, limit)]
    else:
        with Remote(server) as remote:
            asked = {"state": state, "device": device, "tuning": tuning}
            found = list(islice(remote.pages("/v1/jobs", "items", "cursor", **asked), limit))
    if as_json:
        print_json({"jobs": found})
        return
    table = Table("job", "state", "starts", "problem", "device class", "age", "why it failed")
    for row in found:
        table.add_row(
            row["id"], row["status"], _starts(row), report.problem_text(problem_from_wire(row["problem"])),
            row["device_class"], _age(row["age_seconds"]), " ".join((row["error"] or "").split())[:160],
        )  # fmt: skip
    out.print(table, markup=False)
    if len(found) == limit:
        tell(f"the newest {limit} are listed; --limit lists more")


def retry(
    job: Annotated[str | None, typer.Argument(help="The job's id, as gemmtune jobs lists it.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Every failed job.")] = False,
    tuning: Annotated[
        str | None, typer.Option(help="With --failed: only jobs of the tuning with this id.")
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Queue a failed job again, or every failed one. It is measured anew, and its tunings run again. Exit
    code 3: some jobs were refused."""
    if (job is None) != failed or (tuning is not None and not failed):
        raise InvalidProblem("name a job, or give --failed (with --tuning ID: those of one tuning)")
    retried: list[str] = []
    refused: list[dict[str, str]] = []
    with closing(_Remote(server) if server is not None else _Here()) as place:
        if job is not None:
            place.retry(job)
            retried.append(job)
        for name in place.failed(tuning) if failed else ():
            try:
                place.retry(name)
                retried.append(name)
            except (JobNotRetried, ServiceRefused) as error:
                refused.append({"id": name, "reason": str(error)})
    if as_json:
        print_json({"retried": retried, "refused": refused})
    else:
        for row in refused:
            tell(row["reason"], "yellow")
        every = counted(len(retried) + len(refused), "failed job is", "failed jobs are")
        tell(f"{len(retried)} of {every} queued again")
    if refused:
        raise typer.Exit(PARTLY)


class _Here:
    """This machine's database."""

    def __init__(self) -> None:
        self._settings = Settings()
        self._engine = open_database(self._settings)

    def close(self) -> None:
        self._engine.dispose()

    def failed(self, tuning: str | None) -> list[str]:
        """Ids, the oldest first. Raises NoSuchName."""
        rows = _rows(self._engine, fleet.jobs, "failed", None, _tuning_number(self._engine, tuning))
        return [row["id"] for row in rows][::-1]

    def retry(self, job_id: str) -> None:
        """Raises JobNotRetried, NoSuchName."""
        with audited(self._settings, "retry", job_id, refusals=(JobNotRetried,)) as change:
            with writing(self._engine) as connection:
                done = retry_job(connection, job_id)
            if not done:
                change.result = REFUSED
        if not done:
            raise NoSuchName(f"there is no job {job_id[:80]!r}; list them: gemmtune jobs --state failed")


class _Remote:
    """A service."""

    def __init__(self, server: str) -> None:
        self._remote = Remote(server)

    def close(self) -> None:
        self._remote.close()

    def failed(self, tuning: str | None) -> list[str]:
        """Ids, the oldest first. Raises ServiceError."""
        rows = self._remote.pages("/v1/jobs", "items", "cursor", state="failed", tuning=tuning)
        return [row["id"] for row in rows][::-1]

    def retry(self, job_id: str) -> None:
        """Raises ServiceError."""
        self._remote.post(f"/v1/jobs/{job_id}/retry", {})


def _tuning_number(engine: Engine, tuning: str | None) -> int | None:
    """Raises NoSuchName."""
    if tuning is None:
        return None
    with reading(engine) as connection:
        found = queries.tuning(connection, tuning)
    if found is None:
        raise NoSuchName(f"there is no tuning {tuning[:80]!r}")
    return int(found["number"])


def _starts(row: dict[str, Any]) -> str:
    retries = row["retries"]
    return f"{row['attempt']}" + (f", {retries} retried" if retries else "")


def _age(seconds: float) -> str:
    """Whole seconds, minutes, hours or days."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command()(workers)
    app.command()(jobs)
    app.command()(retry)
