"""A tuning's events: as a stream that ends and resumes, and as pages."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from db.engine import writing
from db.tunings import emit
from service import answers
from service.settings import Settings
from tests.service.http.filled import ENVIRONMENT, register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits

ONE = {"m": 16, "n": 256, "k": 512}


@pytest.fixture
def client(settings: Settings, engine: Engine) -> Iterator[httpx.Client]:
    """Its streams look often, and show often that they live."""
    register(engine, ENVIRONMENT)
    quick = {"events_poll_seconds": 0.02, "events_heartbeat_seconds": 0.1}
    with serving(settings.model_copy(update=quick)) as made:
        yield made


def submit(client: httpx.Client) -> dict[str, Any]:
    made: dict[str, Any] = client.post("/v1/tunings", json={"problems": [ONE]}).json()
    return made


def parse(text: str) -> list[tuple[int, str, Any]]:
    """The events of a stream's text; comments are left out."""
    out = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            out.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return out


def tell(engine: Engine, count: int) -> None:
    """Adds events to the first tuning."""
    with writing(engine) as connection:
        for number in range(count):
            emit(connection, 1, "measured", {"number": number})


def test_a_stream_tells_all_and_ends(client: httpx.Client, engine: Engine) -> None:
    made = submit(client)
    tell(engine, 3)
    client.delete(made["links"]["self"])
    response = client.get(made["links"]["events"])
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    found = parse(response.text)
    assert [number for number, _, _ in found] == [1, 2, 3, 4, 5]
    assert [kind for _, kind, _ in found] == ["queued", "measured", "measured", "measured", "ended"]
    assert found[0][2] == {"total": 1, "shared": 0, "known": 0}
    assert found[-1][2] == {"status": "cancelled"}


def test_a_stream_goes_on_while_things_happen(client: httpx.Client, engine: Engine) -> None:
    made = submit(client)

    def act() -> None:
        time.sleep(0.3)
        tell(engine, 2)
        with httpx.Client(base_url=client.base_url) as other:
            other.delete(made["links"]["self"])

    actor = threading.Thread(target=act)
    actor.start()
    with client.stream("GET", made["links"]["events"]) as response:
        lines = list(response.iter_lines())
    actor.join()
    assert [number for number, _, _ in parse("\n".join(lines))] == [1, 2, 3, 4]
    assert ": still here" in lines  # the silence before was bridged


@pytest.mark.parametrize("header", [True, False])
def test_a_stream_resumes_after_the_event_that_was_had(
    client: httpx.Client, engine: Engine, header: bool
) -> None:
    made = submit(client)
    tell(engine, 5)
    client.delete(made["links"]["self"])
    how: dict[str, Any] = {"headers": {"Last-Event-ID": "4"}} if header else {"params": {"after": 4}}
    found = parse(client.get(made["links"]["events"], **how).text)
    assert [number for number, _, _ in found] == [5, 6, 7]


def test_the_header_wins_and_nothing_left_is_204(client: httpx.Client) -> None:
    made = submit(client)
    client.delete(made["links"]["self"])
    url = made["links"]["events"]
    assert parse(client.get(url, params={"after": 0}, headers={"Last-Event-ID": "1"}).text)[0][0] == 2
    for last in ("2", "99"):
        assert client.get(url, headers={"Last-Event-ID": last}).status_code == 204


@pytest.mark.parametrize("bad", ["x", "-1", "1.5", "9" * 30, str(2**63), "\u00b2"])
def test_a_bad_last_event_id_is_422(client: httpx.Client, bad: str) -> None:
    url = submit(client)["links"]["events"]
    fault = fault_of(client.get(url, headers={b"Last-Event-ID": bad.encode("latin-1")}), 422)
    assert fault["errors"][0]["parameter"] == "Last-Event-ID"
    fault_of(client.get(url, params={"after": bad}), 422)


def test_as_json_events_come_in_pages(client: httpx.Client, engine: Engine) -> None:
    made = submit(client)
    tell(engine, 4)
    url, accept = made["links"]["events"], {"Accept": "application/json"}
    page = fits(answers.Paged[answers.Event], client.get(url, params={"limit": 3}, headers=accept))
    assert [event["number"] for event in page["items"]] == [1, 2, 3]
    rest = client.get(url, params={"cursor": page["next_cursor"]}, headers=accept).json()
    assert [event["number"] for event in rest["items"]] == [4, 5]
    assert rest["next_cursor"] is None
    after = client.get(url, params={"after": 4}, headers=accept).json()
    assert [event["number"] for event in after["items"]] == [5]


def test_a_stream_is_never_compressed_nor_held_back(client: httpx.Client) -> None:
    made = submit(client)
    with client.stream("GET", made["links"]["events"], headers={"Accept-Encoding": "gzip"}) as response:
        assert "content-encoding" not in response.headers
        text = ""
        for part in response.iter_text():  # the tuning goes on: what is there comes nevertheless
            text += part
            if "queued" in text:
                break
    assert parse(text)[0][1] == "queued"


def test_a_stopping_service_ends_its_streams(settings: Settings, engine: Engine) -> None:
    register(engine, ENVIRONMENT)
    with serving(settings) as client, client.stream("GET", submit(client)["links"]["events"]) as response:
        next(response.iter_text())
        begin = time.monotonic()
    assert time.monotonic() - begin < 30  # it would hang
