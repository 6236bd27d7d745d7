"""Downloads a bundle from a service: waits until it is built, resumes when a connection breaks, checks it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from backends.counted import counted
from backends.environment import DeviceClass, selects
from backends.errors import StorageError
from backends.packages.bundle_file import BundleError, BundleFile
from service.remote import Remote, ServiceAway, ServiceError

PATH, DIGEST_HEADER = "/v1/bundles", "x-bundle-digest"
_DIGEST = re.compile("[0-9a-f]{64}")
#: How long a service may be away before the download ends, and the pause before the next try.
_PATIENCE_SECONDS, _AGAIN_SECONDS = 60.0, 0.5
#: A proxy must not compress what is asked for in ranges.
_PLAIN = {"Accept-Encoding": "identity"}


def download(
    remote: Remote, beside: Path, building: Callable[[int, int], None], device: str,
    digest: str | None = None, **asked: Any,
) -> tuple[Path, BundleFile]:  # fmt: skip
    """Downloads a bundle of `device` (a selector) into a hidden file beside `beside`, whose name has the
    bundle's digest: a later call goes on where an earlier one broke off. `digest` is the only one that is
    accepted. `building` is told (rows done, of all) while the service builds it. Returns the path, and the
    bundle, checked. Raises ServiceError, BundleError, StorageError."""
    pinned = None if digest is None else _plain(digest)
    _check_address(remote.server, pinned is not None)
    download = _Download(remote, beside, building, {"device": device, **asked})
    since, size = time.monotonic(), 0
    while True:
        try:
            if download.step():
                break
        except ServiceAway:
            if download.size > size:
                since, size = time.monotonic(), download.size
            if time.monotonic() - since > _PATIENCE_SECONDS:
                raise
            time.sleep(_AGAIN_SECONDS)
            continue
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot write {download.part}: {error.strerror or error}") from error
        since = time.monotonic()
    found = _checked(download.part, download.digest)
    try:
        _check_trust(found, remote.server, device, pinned)
    except BundleError:
        with suppress(OSError):
            download.part.unlink(missing_ok=True)
        raise
    return download.part, found


# ---- what a bundle may come from: it is code ----------------------------------------------------


def _plain(digest: str) -> str:
    """A digest as 64 hex digits; "sha256:" before them is allowed. Raises BundleError."""
    found = digest.strip().lower().removeprefix("sha256:")
    if not _DIGEST.fullmatch(found):
        raise BundleError(f"digest {digest[:100]!r} must be the 64 hex digits of a bundle's SHA-256")
    return found


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _check_address(address: str, pinned: bool) -> None:
    """Raises BundleError for an address that a bundle must not come from; the client has the same rule."""
    if urlsplit(address).scheme != "https" and not _is_loopback(address) and not pinned:
        raise BundleError(
            f"a bundle is code, and anyone on the way can alter what {address} sends: use https, or pin the "
            "bundle by its digest (gemmtune bundle --digest)"
        )


def _check_trust(found: BundleFile, server: str, device: str, pinned: str | None) -> None:
    """Raises BundleError for another bundle than the one that was asked for."""
    if pinned is not None and found.digest != pinned:
        raise BundleError(
            f"{server} sent the bundle {found.digest}, not {pinned}: the service has measured since, or is "
            "not the one that you think; compare, then pin the new digest"
        )
    try:
        of = found.manifest["device"]
        sent = DeviceClass(of["vendor"], of["arch"], of["product"], of["units"])
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{server} sent a bundle without a device class ({error!r}): refused") from error
    if not selects(device, sent):
        raise BundleError(f"{server} sent a bundle of {sent}, not of {device!r}: refused")
    if sent.vendor == "cpu" and pinned is None and not _is_loopback(server):
        raise BundleError(
            f"a CPU's bundle runs code as soon as it is opened: it is taken from another machine ({server}) "
            "only if it is pinned by its digest (gemmtune bundle --digest)"
        )


def fetch(
    remote: Remote, output: Path, building: Callable[[int, int], None], problem_ids: frozenset[str] | None,
    **asked: Any,
) -> str:  # fmt: skip
    """Downloads a bundle and writes its rows of these problems (None: all of it) to `output`. Returns the
    digest of the whole. Raises what download() raises, and BundleError where it has none of the problems."""
    part, whole = download(remote, output, building, **asked)
    try:
        if problem_ids is None:
            part.replace(output)
        elif not problem_ids.intersection(whole.problem_ids):
            raise BundleError(
                f"none of the {counted(len(problem_ids), 'problem')} has a row in the bundle of "
                f"{whole.manifest['device']['class']}"
            )
        else:
            whole.subset(problem_ids, output)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return whole.digest


def _checked(part: Path, digest: str) -> BundleFile:
    try:
        found = BundleFile(part)
        if found.digest != digest:
            raise BundleError(f"the service sent a bundle of digest {found.digest[:12]}, not {digest[:12]}")
        found.verify()
    except BundleError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise BundleError(f"the download is damaged ({error}); try again") from error
    return found


class _Download:
    """The state of a download: the digest and the file, once the service has named the bundle."""

    def __init__(
        self, remote: Remote, beside: Path, building: Callable[[int, int], None], asked: dict[str, Any]
    ) -> None:
        self._remote, self._beside, self._building, self._asked = remote, beside, building, asked
        self.digest, self.part = "", beside

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self.part.stat().st_size if self.digest and self.part.exists() else 0

    def step(self) -> bool:
        """One request. Returns whether the file is whole."""
        headers = dict(_PLAIN)
        if self.size:
            headers |= {"Range": f"bytes={self.size}-", "If-Range": f'"{self.digest}"'}
        with self._remote.streamed(PATH, headers, **self._asked) as response:
            if response.status_code == 202:
                response.read()
                said = response.json()
                self._building(said["done"], said["total"])
                pause = response.headers.get("retry-after", "")
            else:
                return self._received(response)
        time.sleep(float(pause) if pause.isdigit() else _AGAIN_SECONDS)
        return False

    def _received(self, response: httpx.Response) -> bool:
        digest = response.headers.get(DIGEST_HEADER, "")
        if not digest.isalnum():
            raise ServiceError(f"{self._remote.server} does not say which bundle it sends; is it a gemmtune?")
        if response.status_code == 200:
            first = digest != self.digest
            self.digest = digest
            self.part = self._beside.with_name(f".{self._beside.name}.{digest[:16]}.part")
            whole = int(response.headers.get("content-length", -1))
            if first and 0 < self.size <= whole:
                return self.size == whole  # an earlier call's: the next request asks for the rest
            self.part.unlink(missing_ok=True)
        with self.part.open("ab") as file:
            for piece in response.iter_bytes():
                file.write(piece)
        return True
