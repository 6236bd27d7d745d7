"""The command line's client of a service: plain requests, errors as ServiceError, and events across broken
connections."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from backends.environment import DeviceClass
from backends.errors import GemmtuneError
from db.classes import Classes
from service.hosts import is_loopback
from service.settings import Settings

#: How long an unreachable service is retried while a tuning is followed.
_PATIENCE_SECONDS = 60.0
#: Status codes of a service (or its proxy) that is unavailable for a moment; the pause before the next try.
_AWAY, _AGAIN_SECONDS = (502, 503, 504), 0.5


class ServiceError(GemmtuneError):
    """The service refused the request, for the reason that the message gives, or does not answer. `document`
    is the service's problem document, if it sent one."""

    def __init__(self, message: str, document: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.document = document


class ServiceRefused(ServiceError):
    """The service answered with a 4xx."""


class ServiceAway(ServiceError):
    """The service does not answer, or the connection broke: the same request may succeed later."""


class Remote:
    """A client of one service. Use as a context manager."""

    def __init__(self, server: str, transport: httpx.BaseTransport | None = None) -> None:
        self.server = server.rstrip("/")
        if not self.server.startswith(("http://", "https://")):
            raise ServiceError(f"{server!r} is no address of a service; write http://host:port")
        self._client = httpx.Client(
            base_url=self.server, timeout=httpx.Timeout(60.0, connect=5.0), transport=transport,
            headers=_credentials(self.server),
        )  # fmt: skip

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON answer. Raises ServiceError."""
        return self._json("GET", path, params=_given(parameters))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer. Raises ServiceError."""
        return self._json("POST", path, json=body)

    def delete(self, path: str) -> Any:
        """The JSON answer. Raises ServiceError."""
        return self._json("DELETE", path)

    def upload(self, path: str, file: Path, **parameters: Any) -> Any:
        """Uploads a file unchanged; the JSON answer. Raises ServiceError."""
        try:
            with file.open("rb") as stream:
                return self._json(
                    "POST", path, params=_given(parameters), content=stream,
                    headers={"Content-Type": "application/octet-stream"}, timeout=None,
                )  # fmt: skip
        except OSError as error:
            raise ServiceError(f"cannot read {file}: {error.strerror}") from error

    def download(self, path: str, **parameters: Any) -> Iterator[bytes]:
        """Yields the answer's bytes as they arrive. Raises ServiceError: a refusal before the first byte, a
        broken connection at any point."""
        try:
            with self._client.stream("GET", path, params=_given(parameters), timeout=600) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise _refused(answer)
                yield from answer.iter_bytes()
        except httpx.HTTPError as error:
            raise self._away(error) from error

    @contextmanager
    def streamed(self, path: str, headers: Mapping[str, str], **parameters: Any) -> Iterator[httpx.Response]:
        """The answer to a GET, its body not read yet. Raises ServiceError for a refusal, ServiceAway for a
        broken connection at any point."""
        try:
            with self._client.stream(
                "GET", path, params=_given(parameters), headers=headers, timeout=600
            ) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _refused(answer)
                yield answer
        except httpx.HTTPError as error:
            raise self._away(error) from error

    def pages(self, path: str, name: str, cursor: str, **parameters: Any) -> Iterator[Any]:
        """Every item of a paged list: `name` is the answer's field with a page, `cursor` the parameter for
        the next page."""
        given = dict(parameters)
        while True:
            answer = self.get(path, **given)
            page = answer[name]
            yield from page["items"] if isinstance(page, dict) else page
            following = page["next_cursor"] if isinstance(page, dict) else answer["next_cursor"]
            if following is None:
                return
            given[cursor] = following

    def events(self, tuning_id: str) -> Iterator[dict[str, Any]]:
        """Yields a tuning's events until it has ended. A broken connection is resumed after the last event,
        unless the service has been unreachable for _PATIENCE_SECONDS. Raises ServiceError."""
        last, since = 0, time.monotonic()
        path = f"/v1/tunings/{tuning_id}/events"
        while True:
            away: ServiceError | None = None
            try:
                headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
                with self._client.stream("GET", path, headers=headers, timeout=60) as answer:
                    if answer.status_code == 204:  # no more events
                        return
                    if answer.status_code != 200:
                        answer.read()
                        away = _refused(answer)
                        if answer.status_code not in _AWAY:
                            raise away
                    else:
                        for event in _events(answer.iter_lines()):
                            since = time.monotonic()
                            if event is None:
                                continue
                            last = event["number"]
                            yield event
                            if event["kind"] == "ended":
                                return
            except httpx.HTTPError as error:
                away = self._away(error)
            if away is not None and time.monotonic() - since > _PATIENCE_SECONDS:
                raise away
            time.sleep(_AGAIN_SECONDS)

    def _json(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            answer = self._client.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise self._away(error) from error
        if answer.status_code >= 400:
            raise _refused(answer)
        return answer.json()

    def _away(self, error: httpx.HTTPError) -> ServiceAway:
        what = "is `gemmtune serve` running there?"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            what = (
                "its certificate is not trusted here: name the file of it, or of its issuer, in SSL_CERT_FILE"
            )
        return ServiceAway(f"no answer from {self.server} ({error or type(error).__name__}); {what}")


def _credentials(server: str) -> dict[str, str]:
    """The header with the settings' key. Raises ServiceError if a network would carry it in the clear."""
    key = Settings().key
    if key is None:
        return {}
    address = httpx.URL(server)
    if address.scheme != "https" and not is_loopback(address.host):
        raise ServiceError(
            f"GEMMTUNE_KEY would be sent in the clear to {address.host}: use https, or unset the key"
        )
    return {"Authorization": f"Bearer {key.get_secret_value()}"}


def class_of(selector: str | None, rows: Iterable[Mapping[str, Any]]) -> DeviceClass:
    """The class that a selector names among those of /v1/devices; None: see Classes.resolve(). Raises
    UnknownDevice, AmbiguousDevice."""
    found = [(DeviceClass.parse(row["id"]), row) for row in rows]
    return Classes(
        tuple(name for name, row in found if row.get("registered", True)),
        tuple(name for name, row in found if not row.get("registered", True)),
        tuple(name for name, row in found if row.get("workers")),
        tuple(name for name, row in found if row.get("revision")),
    ).resolve(selector)


def _given(parameters: Mapping[str, Any]) -> httpx.QueryParams:
    """Query parameters without those that are None; lists are repeated."""
    every = (
        (name, each)
        for name, value in parameters.items()
        for each in (value if isinstance(value, list | tuple) else [value])
    )
    return httpx.QueryParams(
        [
            (name, str(value).lower() if isinstance(value, bool) else str(value))
            for name, value in every
            if value is not None
        ]
    )


def _refused(answer: httpx.Response) -> ServiceError:
    kind = ServiceRefused if answer.status_code < 500 else ServiceError
    try:
        problem = answer.json()
        text = str(problem["detail"])
        parts = problem.get("errors") or []
    except (ValueError, KeyError, TypeError, AttributeError):
        return kind(f"the service answered {answer.status_code}: {answer.text[:300]}")
    for part in parts[:5]:
        if str(part.get("detail", "")) not in text:
            text += f"; {part.get('pointer') or part.get('parameter', '')}: {part.get('detail', '')}"
    return kind(text, problem)


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any] | None]:
    """Server-sent events as {"number", "kind", "content"}; None for a heartbeat."""
    event: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in event and "id" in event:
                content = json.loads(event["data"])
                yield {"number": int(event["id"]), "kind": event.get("event", ""), "content": content}
            event = {}
        elif line.startswith(":"):
            yield None
        else:
            name, _, value = line.partition(":")
            event[name] = value.removeprefix(" ")
