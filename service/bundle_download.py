"""Downloads a bundle from a service: waits until it is built, resumes when a connection breaks, checks it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from backends.errors import StorageError
from backends.packages.bundle_file import BundleError, BundleFile
from service.remote import Remote, ServiceAway, ServiceError

PATH, DIGEST_HEADER = "/v1/bundles", "x-bundle-digest"
#: How long a service may be away before the download ends, and the pause before the next try.
_PATIENCE_SECONDS, _AGAIN_SECONDS = 60.0, 0.5
#: A proxy must not compress what is asked for in ranges.
_PLAIN = {"Accept-Encoding": "identity"}


def download(
    remote: Remote, beside: Path, building: Callable[[int, int], None], **asked: Any
) -> tuple[Path, BundleFile]:
    """Downloads a bundle into a hidden file beside `beside`, whose name has the bundle's digest: a later call
    goes on where an earlier one broke off. `building` is told (rows done, of all) while the service builds
    it. Returns the path, and the bundle, checked. Raises ServiceError, BundleError, StorageError."""
    download = _Download(remote, beside, building, asked)
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
    return download.part, _checked(download.part, download.digest)


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
                f"none of the {len(problem_ids)} problems has a row in the bundle of "
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
