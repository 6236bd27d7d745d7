"""How long the pages take on a large database: 20,000 best rows, a million measurements, 200 pages open.

    python -m benchmarks.pages [--rows 20000] [--measurements 1000000] [--database FILE] [--postgres [URL]] [--no-browser]

The server is a process of its own, as `gemmtune serve --no-worker` runs it; the rows are those of benchmarks.boards.
First byte: of each address that a page asks. Interactive: from the navigation until a page shows its data, in Debian's
Chromium, with an empty cache. Both are of LOADS loads, with the answers that the server has kept, and with answers made
anew, because a best row has changed before each load. `open`: so many clients that follow a tuning's events while the
addresses are asked again. Bytes of a page are those that come over the network. --database and a URL of --postgres
keep what was filled for another run; --postgres without one starts a server.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import httpx
from sqlalchemy import text

from backends.registry import find_device
from benchmarks import report
from benchmarks.boards import H100, LISTS, fill, touch_class
from benchmarks.serving import cpu_seconds, resident, serving
from db import schema, tunings
from db.engine import open_engine, writing
from service.requests import request_content
from service.settings import Settings
from service.startup import open_database, upgrade
from tests.postgres import PostgresServer
from tests.service.formats.contract_inputs import H200
from tests.service.http.filled import problem
from tuners.budget import Budget, Search
from tuners.decide import DecisionRule
from tuners.policy import MeasurementPolicy

CLASS, OTHER = str(H200.device_class), str(H100.device_class)
POLICY = MeasurementPolicy.of("cuda")
LOADS, OPEN, POLL_SECONDS = 20, 200, 10
#: What an overview asks each time.
POLLED = ("/v1/devices", "/metrics", "/v1/tunings?status=running&limit=50", "/v1/tunings?limit=20")
DEVICE = f"device={quote(CLASS)}"


def make(url: str, rows: int, measurements: int) -> None:
    """Fills a new database, with a tuning that waits."""
    settings = Settings(database_url=url)
    upgrade(settings)
    engine = open_database(settings)
    fill(engine, rows, measurements, POLICY)
    content = request_content(Budget(), Search(), DecisionRule())
    request = tunings.Request(CLASS, POLICY.id, POLICY.to_dict(), content, 10, True)
    with writing(engine) as connection:
        tunings.create_tuning(connection, request, [(problem(), 1)])
    if engine.dialect.name == "postgresql":  # as its own daemon does within a minute
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()


@dataclass(frozen=True)
class Change:
    """Changes a class's best rows, as its server sees it."""

    url: str

    def __call__(self) -> None:
        """Once."""
        engine = open_engine(self.url)
        touch_class(engine, CLASS)
        engine.dispose()


def unchanged() -> None:
    """In place of a Change: the server may answer with what it has kept."""


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile (nearest rank) and worst of some seconds."""
    ranked = sorted(times)
    return {"median": median(ranked), "p95": ranked[ceil(0.95 * len(ranked)) - 1], "worst": ranked[-1]}


def first_bytes(
    client: httpx.Client, address: str, server: int, before: Callable[[], None] = unchanged
) -> dict[str, float]:
    """Seconds until the headers and first byte of an answer, the server's processor seconds for each, and its
    bytes."""
    times, size, used = [], 0, cpu_seconds(server)
    for _ in range(LOADS):
        before()
        begin = time.perf_counter()
        with client.stream("GET", address) as response:
            response.raise_for_status()
            parts = response.iter_raw()
            size = len(next(parts))
            times.append(time.perf_counter() - begin)
            size += sum(map(len, parts))
    return {**spread(times), "server_cpu": (cpu_seconds(server) - used) / LOADS, "bytes": size}


def addresses(client: httpx.Client) -> list[str]:
    """Pages, and what they ask for."""
    board = client.get(f"/v1/leaderboard?{DEVICE}&limit=1").json()
    problem_id = board["items"][0]["problem_id"]
    return [
        "/", "/leaderboard", "/roofline",
        f"/v1/leaderboard?{DEVICE}&limit=100", f"/v1/leaderboard?{DEVICE}&limit=100&sort=speedup",
        f"/v1/leaderboard?{DEVICE}&limit=100&by=family&by=dtype", f"/v1/leaderboard?{DEVICE}&limit=1&by=list",
        f"/v1/leaderboard?{DEVICE}&limit=100&by=family&by=dtype&dtype=bf16&family=stream-k",
        f"/v1/leaderboard?{DEVICE}&limit=100&list={LISTS[0]}", f"/v1/leaderboard?{DEVICE}&limit=1000",
        f"/v1/leaderboard?{DEVICE}&limit=100&until=2100-01-01", f"/v1/ceilings?{DEVICE}",
        f"/v1/problems/{problem_id}/measurements?view=leaderboard",
    ]  # fmt: skip


def in_browser(base: str, server: int, problem_id: str, before: Callable[[], None]) -> dict[str, Any]:
    """Page -> seconds until it shows its data, the server's processor seconds for each load, and bytes over
    the network."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (a package of the tests)

    pages = {
        "overview": "/", "leaderboard": f"/leaderboard?{DEVICE}", "problem": f"/leaderboard/{problem_id}?{DEVICE}",
        "roofline": f"/roofline?{DEVICE}", "tunings": "/tunings",
        "compare": f"/compare?a={quote(CLASS)}&b={quote(OTHER)}", "fleet": "/fleet",
    }  # fmt: skip
    found: dict[str, Any] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        _shown(browser, base + "/")  # the browser's own start
        for name, address in pages.items():
            shown, used = [], cpu_seconds(server)
            for _ in range(LOADS):
                before()
                shown.append(_shown(browser, base + address))
            found[name] = {
                **spread([seconds for seconds, _ in shown]),
                "server_cpu": (cpu_seconds(server) - used) / LOADS, "bytes": shown[-1][1],
            }  # fmt: skip
        browser.close()
    return found


def _shown(browser: Any, address: str) -> tuple[float, int]:
    """Seconds until a page shows its data, with an empty cache, and bytes over the network."""
    context = browser.new_context()
    page = context.new_page()
    sent: list[Any] = []
    page.on("requestfinished", lambda one: sent.append(one))  # noqa: PLW0108  (of a bound method it asks more)
    begin = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.locator("main table").first.wait_for()
    page.get_by_text("Loading…").first.wait_for(state="detached")
    seconds = time.perf_counter() - begin
    page.wait_for_load_state("networkidle")
    size = sum(one.sizes()["responseBodySize"] for one in sent)
    context.close()
    return seconds, size


async def _page(host: str, port: int, tuning_id: str) -> None:
    """An open page: a stream of events, and what an overview asks, again and again. By hand: a client's pool
    takes longer for hundreds of connections than the server."""

    async def connected() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(host, port)

    def ask(path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()

    async def follow() -> None:
        reader, writer = await connected()
        writer.write(ask(f"/v1/tunings/{tuning_id}/events"))
        while await reader.read(65536):
            pass

    async def poll() -> None:
        await asyncio.sleep(random.uniform(0, POLL_SECONDS))  # pages are not opened all at once
        while True:
            for path in POLLED:
                reader, writer = await connected()
                writer.write(ask(path))
                await reader.read(-1)
                writer.close()
            await asyncio.sleep(POLL_SECONDS)

    await asyncio.gather(follow(), poll())


def open_pages(base: str, tuning_id: str) -> None:
    """Keeps pages open until the process ends."""
    url = httpx.URL(base)

    async def all_pages() -> None:
        await asyncio.gather(*(_page(url.host, url.port or 80, tuning_id) for _ in range(OPEN)))

    asyncio.run(all_pages())


def with_open_pages(base: str, server: int, tuning_id: str, asked: list[str]) -> dict[str, Any]:
    """First bytes while pages are open, which another process holds."""
    process = multiprocessing.get_context("spawn").Process(target=open_pages, args=(base, tuning_id))
    process.start()
    time.sleep(2 * POLL_SECONDS)
    try:
        with httpx.Client(base_url=base, timeout=60) as client:
            streams = re.search(r"^gemmtune_event_streams (\S+)", client.get("/metrics").text, re.MULTILINE)
            found: dict[str, Any] = {address: first_bytes(client, address, server) for address in asked}
    finally:
        process.terminate()
        process.join()
    assert streams is not None
    return {"streams": float(streams.group(1)), **found}


def read_parquet(base: str) -> dict[str, float]:
    """Seconds until all measurements have come as one Parquet file, and its bytes."""
    begin, size = time.perf_counter(), 0
    with httpx.stream("GET", f"{base}/v1/measurements?format=parquet", timeout=600) as answer:
        answer.raise_for_status()
        for piece in answer.iter_raw(1 << 20):
            size += len(piece)
    return {"seconds": time.perf_counter() - begin, "bytes": size}


def timed(url: str, browser: bool) -> dict[str, Any]:
    """All figures of one database."""
    change = Change(url)
    figures: dict[str, Any] = {"load": os.getloadavg()}
    with serving(url) as (base, process):
        with httpx.Client(base_url=base, timeout=60) as client:
            client.get("/openapi.json")
            before = resident(process)
            asked = addresses(client)
            figures["first_byte"] = {
                address: {
                    "kept": first_bytes(client, address, process),
                    "anew": first_bytes(client, address, process, change),
                }
                for address in asked
            }
            problem_id = asked[-1].split("/")[3]
            tuning_id = client.get("/v1/tunings?limit=1").json()["items"][0]["id"]
        figures["server_mib"] = {"started": before, "asked": resident(process)}
        if browser:
            figures["interactive"] = {
                "kept": in_browser(base, process, problem_id, unchanged),
                "anew": in_browser(base, process, problem_id, change),
            }  # fmt: skip
            figures["server_mib"]["browsed"] = resident(process)
        figures["open"] = with_open_pages(base, process, tuning_id, [*POLLED, asked[3]])
        figures["server_mib"]["open"] = resident(process)
    with serving(url) as (base, process):
        figures["parquet"] = {**read_parquet(base), "server_mib": resident(process)}
    return {**figures, "load_after": os.getloadavg()}


def on_postgres(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """All figures of a PostgreSQL database, which is filled first if it is empty."""
    engine = open_engine(url)
    empty = schema.current(engine) is None
    engine.dispose()
    if empty:
        make(url, given.rows, given.measurements)
    return timed(url, not given.no_browser)


def main() -> None:
    """Measures and writes pages.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--measurements", type=int, default=1_000_000)
    parser.add_argument("--database", type=Path, help="a SQLite file, filled if it does not exist")
    parser.add_argument(
        "--postgres", nargs="?", const="", help="also on PostgreSQL: an empty or filled database's URL"
    )
    parser.add_argument("--no-browser", action="store_true")
    given = parser.parse_args()
    figures: dict[str, Any] = {"rows": given.rows, "measurements": given.measurements, "open_pages": OPEN}
    with tempfile.TemporaryDirectory() as folder:
        path = given.database or Path(folder) / "gemmtune.sqlite"
        url = f"sqlite:///{path.absolute()}"
        if not path.exists():
            make(url, given.rows, given.measurements)
        figures["sqlite"] = timed(url, not given.no_browser)
    if given.postgres:
        figures["postgresql"] = on_postgres(given.postgres, given)
    elif given.postgres is not None:
        server = PostgresServer()
        try:
            server.start()
            figures["postgresql"] = on_postgres(server.url(server.create()), given)
        finally:
            server.remove()
    report.write("pages", find_device("cpu").environment, figures)


if __name__ == "__main__":
    main()
