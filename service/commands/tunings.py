"""The commands status, tunings and cancel, on this machine's database or through a service with --server."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from backends.counted import counted
from backends.errors import InvalidProblem
from db import fleet, queries
from db.engine import reading, shown_url
from db.gauges import gauges
from db.tunings import ACTIVE
from service import errors
from service.audit import audited
from service.commands.common import FAILED, Json, Server, out, print_json, tell
from service.pages import Page, page_of
from service.remote import Remote, ServiceAway
from service.routes.views import tuning_view, worker_view
from service.settings import Settings
from service.startup import open_database
from service.text_table import plain_table

_STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")
#: Statuses of a worker that lives.
_ALIVE = ("idle", "measuring")
#: Tunings that status lists, and the latest workers among which it looks for live ones.
_SHOWN, _WORKERS = 10, 100


def status(server: Server = None, as_json: Json = False) -> None:
    """Show the workers, the queue and the tunings that are not finished. Exit code 1: the service does not
    answer.

    Without --server this machine's database is read: whether a service runs on it is not known, but its
    workers are."""
    if server is None:
        found = _status_here(Settings())
    else:
        try:
            with Remote(server) as remote:
                found = _status_there(remote)
        except ServiceAway as error:
            if as_json:
                print_json({"service": {"address": server, "answers": False, "reason": str(error)}})
            tell(f"error: {error}", "red")
            raise typer.Exit(FAILED) from None
    if as_json:
        print_json(found)
    else:
        _show_status(found)


def _status_here(settings: Settings) -> dict[str, Any]:
    engine = open_database(settings)
    with reading(engine) as connection:
        active = [
            tuning_view(row) for name in ("running", "queued")
            for row in queries.tunings(connection, None, _SHOWN, name)
        ]  # fmt: skip
        queues = {name: count for name, (count, _) in gauges(connection)["queues"].items()}
        workers = [worker_view(row) for row in fleet.workers(connection, None, _WORKERS)]
    return _status({"database": shown_url(settings.database_url)}, workers, queues, active)


def _status_there(remote: Remote) -> dict[str, Any]:
    workers = remote.get("/v1/devices")["workers"]
    queues = _queues(b"".join(remote.download("/metrics")).decode())
    active = [
        row for name in ("running", "queued")
        for row in remote.get("/v1/tunings", status=name, limit=_SHOWN)["items"]
    ]  # fmt: skip
    service = {"service": {"address": remote.server, "answers": True}}
    return _status(service, workers, queues, active)


def _queues(metrics: str) -> dict[str, int]:
    """Device class -> queued jobs, from the service's metrics."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    return {
        sample.labels["device_class"]: int(sample.value)
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "gemmtune_queue_jobs"
    }


def _status(
    where: dict[str, Any], workers: list[dict[str, Any]], queues: dict[str, int], active: Any
) -> dict[str, Any]:
    alive = [row for row in workers if row["status"] in _ALIVE]
    working = Counter(row["device_class"] for row in alive)
    return {
        **where,
        "workers": alive,
        "queue": [
            {"device_class": name, "workers": working[name], "queued": queues.get(name, 0)}
            for name in sorted({*working, *queues})
        ],
        "tunings": active,
    }


def _show_status(found: dict[str, Any]) -> None:
    service = found.get("service")
    where = f"database {found['database']}" if service is None else f"service {service['address']}"
    out.print(where, markup=False, highlight=False, soft_wrap=True)
    workers, queue = found["workers"], found["queue"]
    if workers:
        table = plain_table("worker", "machine", "device class", "status")
        for row in workers:
            machine = f"{row['host']} ({row['pid']})"
            table.add_row(row["id"], machine, row["device_class"], row["status"])
        out.print(table, markup=False)
    else:
        out.print("no worker is alive (gemmtune worker starts one)")
    if queue:
        table = plain_table("device class", "workers", "queued jobs", right=("workers", "queued jobs"))
        for row in queue:
            idle = "" if row["workers"] or not row["queued"] else " (no worker serves it)"
            table.add_row(f"{row['device_class']}{idle}", str(row["workers"]), str(row["queued"]))
        out.print(table, markup=False)
    if found["tunings"]:
        _show_tunings(found["tunings"])
    else:
        out.print("no tuning is running")


def tunings(
    state: Annotated[
        str | None, typer.Option("--status", help=f"Only such tunings: {', '.join(_STATUSES)}.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Tunings that are listed, at most.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(help="The page after this one: next_cursor of an earlier answer.")
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List tunings, newest first."""
    if state is not None and state not in _STATUSES:
        raise InvalidProblem(f"--status {state[:40]!r} must be one of {', '.join(_STATUSES)}")
    if server is None:
        page = Page(cursor, limit)
        before = None if cursor is None else page.after("tunings")
        with reading(open_database(Settings())) as connection:
            rows = queries.tunings(connection, before, limit + 1, state)
        answer = page_of("tunings", rows, limit, lambda row: row["number"])
        answer["items"] = [tuning_view(row) for row in answer["items"]]
    else:
        with Remote(server) as remote:
            answer = remote.get("/v1/tunings", status=state, limit=limit, cursor=cursor)
    if as_json:
        print_json(answer)
        return
    if not answer["items"]:
        out.print("no tuning")
        return
    _show_tunings(answer["items"])
    if answer["next_cursor"] is not None:
        tell(f"more: --cursor {answer['next_cursor']}")


def _show_tunings(rows: list[dict[str, Any]]) -> None:
    table = plain_table("tuning", "status", "jobs", "failed", "device class", "age", right=("jobs", "failed"))
    for row in rows:
        done = f"{row['succeeded'] + row['failed']}/{row['total']}"
        table.add_row(
            row["id"], row["status"], done, str(row["failed"]), row["device_class"], _age(row["created_at"])
        )
    out.print(table, markup=False)


def _age(since: str) -> str:
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def cancel(
    tuning: Annotated[str, typer.Argument(metavar="ID", help="The tuning's id.")],
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Cancel a tuning. Jobs that another tuning waits for go on; what was measured stays."""
    if server is None:
        before, answer = _cancel_here(tuning)
    else:
        with Remote(server) as remote:
            path = f"/v1/tunings/{quote(tuning, safe='')}"
            before = remote.get(path, limit=1)["status"]
            answer = remote.delete(path)
    if as_json:
        print_json(answer)
        return
    done = answer["succeeded"] + answer["failed"]
    if before in ACTIVE:
        tell(
            f"{answer['id']} is {answer['status']}; {done} of its {counted(answer['total'], 'job')} had ended"
        )
    else:
        tell(f"{answer['id']} had ended before: {before}")


def _cancel_here(name: str) -> tuple[str, dict[str, Any]]:
    from service.tunings import open_tunings  # noqa: PLC0415  (the job engine)

    settings = Settings()
    engine = open_database(settings)
    with reading(engine) as connection:
        row = queries.tuning(connection, name)
    if row is None:
        raise errors.not_found("tuning", name[:100])
    if row["status"] in ACTIVE:
        opened = open_tunings(engine, settings)
        try:
            with audited(settings, "cancel", name):
                opened.cancel(name)
        finally:
            opened.close()
    with reading(engine) as connection:
        found = queries.tuning(connection, name)
    assert found is not None
    return str(row["status"]), tuning_view(found)


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command()(status)
    app.command()(tunings)
    app.command()(cancel)
