"""The clients of benchmarks.load, in a process of their own: followers of events and importers of files.

    python -m benchmarks.load_clients ADDRESS --streams 500 --tunings ID ID ... --uploads 5 --file FILE

It prints a line of JSON a second until its standard input ends: streams that are open, events and bytes that came,
uploads that were taken, and answers by status. With --once, each importer has its file taken once, however often
it is refused before; the last line then has "done".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_AGAIN_SECONDS, _LINE_SECONDS, _ANSWER_SECONDS = 0.5, 1.0, 600.0
#: Streams that are opened at a time: more would overrun the server's listen queue.
_OPENING = 100


@dataclass
class Counts:
    """What came of it so far."""

    open: int = 0
    events: int = 0
    taken: int = 0
    importing: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    def line(self, **more: Any) -> str:
        """As JSON."""
        values = {"open": self.open, "events": self.events, "taken": self.taken, "importing": self.importing}
        return json.dumps({**values, "answers": dict(self.answers), **more})


class Clients:
    """Of one server."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self.counts = Counts()
        self._opening = asyncio.Semaphore(_OPENING)

    async def follow(self, tuning_id: str) -> None:
        """A stream of events, opened again when it ends or is refused."""
        request = (
            f"GET /v1/tunings/{tuning_id}/events HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            "Accept: text/event-stream\r\n\r\n"
        ).encode()
        while True:
            try:
                async with self._opening:
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                    writer.write(request)
                    status = (await reader.readline()).split()[1].decode()
                self.counts.answers[f"stream {status}"] += 1
                if status == "200":
                    self.counts.open += 1
                    try:
                        while data := await reader.read(65536):
                            self.counts.events += data.count(b"\nevent: ")
                    finally:
                        self.counts.open -= 1
                writer.close()
            except (OSError, IndexError) as error:
                self.counts.answers[f"stream {type(error).__name__}"] += 1
            await asyncio.sleep(_AGAIN_SECONDS)

    async def upload(self, number: int, content: bytes, once: bool) -> None:
        """A file, imported again and again; each time with another last line, so that it is a new one."""
        turn = 0
        while True:
            turn += 1
            last = json.dumps({"m": 1 + number, "n": 8 * turn, "k": 8, "dtype": "fp32"}).encode() + b"\n"
            status = await self._post(content + last)
            self.counts.answers[f"upload {status}"] += 1
            self.counts.taken += status == "200"
            if once and status == "200":
                return
            if status != "200":
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _post(self, body: bytes) -> str:
        head = (
            f"POST /v1/imports/jsonl HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.counts.importing += 1
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(head.encode() + body)
                # A refusal comes before all of the body is read.
                line = await asyncio.wait_for(reader.readline(), _ANSWER_SECONDS)
                return line.split()[1].decode()
            finally:
                writer.transport.abort()  # also what is not sent yet of a body that is refused
        except (TimeoutError, OSError, IndexError) as error:
            return type(error).__name__
        finally:
            self.counts.importing -= 1


async def _run(options: argparse.Namespace) -> None:
    clients = Clients(options.address)
    content = options.file.read_bytes() if options.file else b""
    followers = [
        asyncio.create_task(clients.follow(options.tunings[number % len(options.tunings)]))
        for number in range(options.streams)
    ]
    importers = [
        asyncio.create_task(clients.upload(number, content, options.once))
        for number in range(options.uploads)
    ]
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not ended.done():
        print(clients.counts.line(done=bool(importers) and all(one.done() for one in importers)), flush=True)
        await asyncio.sleep(_LINE_SECONDS)
    for task in (*followers, *importers):
        task.cancel()
    await asyncio.gather(*followers, *importers, return_exceptions=True)


def main() -> None:
    """Runs until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--tunings", nargs="*", default=[])
    parser.add_argument("--uploads", type=int, default=0)
    parser.add_argument("--file", type=Path, default=None)
    parser.add_argument("--once", action="store_true")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
