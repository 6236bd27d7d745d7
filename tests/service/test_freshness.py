"""How often a server reads the freshness of a class: a read for each request would hold up all answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Engine

from db.engine import DatabaseUnavailable, reading
from service.freshness import Freshness, FreshnessCache
from tests.postgres import ON_SQLITE

pytestmark = ON_SQLITE

CLASS = "cuda:sm_90:A:132"


@dataclass
class Server:
    """A server's cache with a clock that is set, and its reads: counted, held while `go` is clear, failing
    where `fault` is set."""

    engine: Engine
    at: float = 100.0
    reads: int = 0
    fault: Exception | None = None
    go: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.go.set()
        self.cache = FreshnessCache(lambda: self.at)

    def read(self, query: Callable[..., Freshness], name: str) -> Freshness:
        self.reads += 1
        assert self.go.wait(30)
        if self.fault is not None:
            raise self.fault
        with reading(self.engine) as connection:
            return query(connection, name)

    async def get(self) -> Freshness:
        return await self.cache.get(CLASS, self.read)


@pytest.fixture
def server(engine: Engine) -> Server:
    return Server(engine)


async def begun(server: Server, reads: int) -> None:
    """Waits until so many reads have begun."""
    async with asyncio.timeout(30):
        while server.reads < reads:
            await asyncio.sleep(0.001)


def test_fifty_requests_at_once_wait_for_one_read(server: Server) -> None:
    async def run() -> None:
        found = await asyncio.gather(*(server.get() for _ in range(50)))
        assert server.reads == 1
        assert all(one is found[0] for one in found)

    asyncio.run(run())


def test_within_a_second_nothing_is_read_again(server: Server) -> None:
    async def run() -> None:
        first = await server.get()
        server.at += 0.99
        assert await server.get() is first
        assert server.reads == 1

    asyncio.run(run())


def test_within_two_seconds_the_old_one_is_answered_while_it_is_read_again(server: Server) -> None:
    async def run() -> None:
        first = await server.get()
        server.at += 1.5
        server.go.clear()
        assert all(one is first for one in await asyncio.gather(server.get(), server.get()))
        await begun(server, 2)
        server.go.set()
        async with asyncio.timeout(30):
            while await server.get() is first:
                await asyncio.sleep(0.001)
        assert server.reads == 2

    asyncio.run(run())


def test_after_two_seconds_requests_wait_for_what_is_read_now(server: Server) -> None:
    async def run() -> None:
        first = await server.get()
        server.at += 2.0
        assert await server.get() is not first

    asyncio.run(run())


def test_a_read_that_fails_is_told_to_all_who_wait_and_tried_again(server: Server) -> None:
    async def run() -> None:
        server.fault = DatabaseUnavailable("away")
        found = await asyncio.gather(server.get(), server.get(), return_exceptions=True)
        assert [type(one) for one in found] == [DatabaseUnavailable] * 2
        server.fault = None
        await server.get()
        assert server.reads == 2

    asyncio.run(run())


def test_a_database_that_goes_is_told_two_seconds_later(server: Server) -> None:
    async def run() -> None:
        first = await server.get()
        server.fault = DatabaseUnavailable("away")
        server.at += 1.5
        assert await server.get() is first
        server.at += 0.5
        with pytest.raises(DatabaseUnavailable):
            await server.get()

    asyncio.run(run())


def test_a_client_that_goes_does_not_end_the_read_for_others(server: Server) -> None:
    async def run() -> None:
        server.go.clear()
        gone, waits = asyncio.create_task(server.get()), asyncio.create_task(server.get())
        await begun(server, 1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        server.go.set()
        assert isinstance(await waits, Freshness)
        assert server.reads == 1

    asyncio.run(run())


def test_one_class_does_not_wait_for_another(server: Server) -> None:
    async def run() -> None:
        server.go.clear()
        waits = asyncio.create_task(server.cache.get("cuda:sm_80:B:108", server.read))
        await begun(server, 1)
        assert await server.cache.get(CLASS, lambda query, name: Freshness()) == Freshness()
        assert not waits.done()
        server.go.set()
        await waits

    asyncio.run(run())
