"""Fetches the bundle of a device class from a service, and keeps it on disk: GET /v1/bundles?device=..."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from urllib.parse import urlencode

from gemmtune import transport
from gemmtune.bundle import MOST_FILE, Bundle
from gemmtune.cache import Cache, CacheError, Part, default_folder
from gemmtune.device import selects
from gemmtune.errors import BundleError
from gemmtune.transport import ServerAway

_log = logging.getLogger("gemmtune")
#: Seconds for which a service may compile a bundle that nobody asked for before.
PATIENCE = 1800.0
#: Bounds in seconds on what a service asks the client to wait.
_LEAST_WAIT, _MOST_WAIT = 0.2, 60.0
#: How often a download that is cut is resumed, if none of the tries gets a byte further.
_TRIES = 4
_PIECE = 2**20


class StillMaking(ServerAway):
    """The service is making the bundle, and needs longer than the client waits."""


class KeyRefused(BundleError):
    """The service does not accept the API key, or wants one."""


class Remote:
    """A service's bundle of one device class. `server` is http(s)://host:port; `device` a selector; `digest`
    the only one that is accepted; `key` the API key. Raises BundleError for an address that is refused."""

    def __init__(
        self, server: str, device: str, digest: str | None, cache: Path | None, key: str | None
    ) -> None:
        transport.check_address(server, digest is not None, key)
        if device.strip().lower().split(":")[0] == "cpu":
            raise BundleError(
                "a CPU's bundle runs code as soon as it is opened: a client takes none from a server; save "
                "it to a file (gemmtune bundle), and load the file"
            )
        self._address = f"{server.rstrip('/')}/v1/bundles?{urlencode({'device': device})}"
        self._device, self._digest = device, digest
        self._headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        self._cache = Cache(default_folder() if cache is None else cache, self._address)

    def first(self) -> tuple[Bundle, BundleError | None]:
        """The bundle to start with: the service's, or the last one that it sent where it is away or the cache
        cannot be written, with the error that says so. A pinned bundle in the cache needs no service. Raises
        BundleError."""
        if (pinned := self._pinned()) is not None:
            return pinned, None
        try:
            return self._newest(PATIENCE), None
        except (ServerAway, CacheError) as error:
            # A pinned bundle was looked for: what else was sent before is not what is asked for.
            bundle = None if self._digest is not None else self._cached()
            if bundle is None:
                raise
            return bundle, error

    def newest(self) -> Bundle:
        """The service's bundle; while it is making another one, the last that it sent. Does not wait for it.
        Raises ServerAway, or BundleError."""
        try:
            return self._newest(0.0)
        except StillMaking:
            bundle = self._cached()
            if bundle is None:
                raise
            return bundle

    def _newest(self, patience: float) -> Bundle:
        if (pinned := self._pinned()) is not None:
            return pinned
        with self._cache.part() as part:
            return self._checked(self._download(part, time.monotonic() + patience))

    def _pinned(self) -> Bundle | None:
        """The pinned bundle, if there is one and the cache has it."""
        bundle = None if self._digest is None else self._cache.open(self._digest)
        return None if bundle is None else self._checked(bundle)

    def _cached(self) -> Bundle | None:
        """The last bundle that the service sent, if the cache has it."""
        sent = self._cache.sent()
        bundle = None if sent is None else self._cache.open(sent.digest)
        return None if bundle is None else self._checked(bundle)

    def _checked(self, bundle: Bundle) -> Bundle:
        """The bundle, if it is what was asked for."""
        if self._digest is not None and bundle.digest != self._digest:
            raise BundleError(
                f"{self._address} sent the bundle {bundle.digest}, not {self._digest}: the service has "
                "measured since, or is not the one that you think; compare, then pin the new digest"
            )
        if bundle.vendor == "cpu" or not selects(self._device, bundle.device):
            raise BundleError(f"{self._address} sent a bundle of {bundle.device}: not asked for, and refused")
        return bundle

    # ---- the download

    def _download(self, part: Part, end: float) -> Bundle:
        tries, most = 0, 0
        while True:
            before = most
            try:
                found = self._ask(part, end)
                if found is not None:
                    return found
            except transport.AWAY as error:
                # Only bytes beyond the most that there ever were are progress: a download may start anew.
                most = max(before, part.have)
                tries = 0 if most > before else tries + 1
                if tries == _TRIES:
                    raise ServerAway(f"{self._address} stops at byte {part.have}: {error}") from error
                time.sleep(min(0.1 * 2**tries, 5.0))

    def _ask(self, part: Part, end: float) -> Bundle | None:
        """One request. None: to be asked again. Raises what transport.AWAY lists for a body that is cut."""
        sent = self._cache.sent()
        headers = dict(self._headers)
        if sent is not None and sent.etag is not None:
            headers["If-None-Match"] = sent.etag
        if part.have and part.etag is not None:
            headers |= {"Range": f"bytes={part.have}-", "If-Range": part.etag}
        with transport.get(self._address, headers) as answer:
            if answer.status == 202:
                self._wait(answer, end)
                return None
            if answer.status == 304 and sent is not None:
                return self._cached()  # None for a file that is damaged: the next request has no ETag
            if answer.status == 416:  # the part is of another entity, or longer than it
                part.restart(None)
                raise ConnectionError("the service refuses the range of bytes that was asked for")
            if answer.status not in (200, 206):
                raise self._refused(answer)
            self._receive(answer, part)
            return self._cache.keep(part, answer.header("ETag"))

    def _receive(self, answer: transport.Answer, part: Part) -> None:
        """Appends the body to the part. Raises ConnectionError for a body that is cut."""
        etag = answer.header("ETag")
        resumed = answer.status == 206
        if resumed and not (answer.header("Content-Range") or "").startswith(f"bytes {part.have}-"):
            part.restart(None)
            raise ConnectionError("the answer has other bytes than those asked for")
        if not resumed:
            # A weak ETag does not identify bytes, so that such a download starts anew when it is cut.
            part.restart(None if etag is None or etag.startswith("W/") else etag)
        length = answer.header("Content-Length")
        whole = part.have + int(length) if length is not None and length.isdecimal() else None
        while data := answer.read(_PIECE):
            if part.have + len(data) > MOST_FILE or (whole or 0) > MOST_FILE:
                raise BundleError(f"{self._address} sends more than {MOST_FILE} bytes: no bundle is so large")
            part.append(data)
        if whole is not None and part.have < whole:
            raise ConnectionError(f"the connection ended {whole - part.have} bytes early")

    def _wait(self, answer: transport.Answer, end: float) -> None:
        """Waits as long as a 202 asks. Raises BundleError when patience ends."""
        after = answer.header("Retry-After") or ""
        seconds = min(max(float(after) if after.isdecimal() else 1.0, _LEAST_WAIT), _MOST_WAIT)
        if time.monotonic() + seconds > end:
            raise StillMaking(f"{self._address} is still making the bundle; ask again later")
        _log.info(
            "%s is making the bundle; asking again in %.0f s. %s", self._address, seconds, answer.detail()
        )
        time.sleep(seconds)

    def _refused(self, answer: transport.Answer) -> BundleError:
        said = answer.detail()
        text = f"{self._address} answers {answer.status}{f': {said}' if said else ''}"
        if answer.status in (401, 403):
            return KeyRefused(f"{text}; pass the service's API key as key=")
        if answer.status in (408, 429) or answer.status >= 500:
            return ServerAway(text)
        return BundleError(text)
