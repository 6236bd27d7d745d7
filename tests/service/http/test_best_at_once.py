"""Many lookups at once: what they read once in a second, one of them reads for all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from db.classes import Classes
from service.app import create_app
from service.settings import Settings
from tests.service.http.filled import CLASS

PATH = "/v1/solutions/best?m=16&n=256&k=512"


def test_fifty_lookups_read_classes_and_freshness_once(filled_settings: Settings) -> None:
    reads = Counter[str]()

    async def run() -> list[httpx.Response]:
        app = create_app(filled_settings)
        async with app.router.lifespan_context(app):
            service = app.state.service
            classes, read = service.lookup.classes, service.read

            async def slow_classes() -> Classes:
                reads["classes"] += 1
                await asyncio.sleep(0.05)
                found: Classes = await classes()
                return found

            def counted(query: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
                reads[query.__qualname__] += 1
                return read(query, *arguments, **named)

            service.lookup.classes, service.read = slow_classes, counted
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await asyncio.gather(*(client.get(PATH) for _ in range(50)))

    answers = asyncio.run(run())
    assert {one.status_code for one in answers} == {200}
    assert {one.json()["device_class"] for one in answers} == {CLASS}
    assert reads == {"classes": 1, "FreshnessCache.read": 1}
