"""Table: the rows of one device class, as a program asks for them."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gemmtune import forks, wire
from gemmtune.bundle import Bundle
from gemmtune.checked import is_digest
from gemmtune.device import DeviceClass, selects
from gemmtune.drivers import own_device
from gemmtune.errors import BundleError, LaunchError
from gemmtune.fetch import KeyRefused, Remote
from gemmtune.launch import OpenTable
from gemmtune.problem import Key, key
from gemmtune.row import Row

__all__ = ["Row", "Table", "load"]


class _Served:
    """A bundle and the index of its rows: what a table swaps at a refresh."""

    __slots__ = ("bundle", "index")

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.index: Mapping[Key, Row] = {row.key: row for row in bundle.rows}


#: Returns the newest bundle. Raises BundleError.
Source = Callable[[], Bundle]


class Table:
    """The rows of a bundle. Threads may share it. refresh() replaces all rows at once; rows and kernels that
    were found before stay valid."""

    def __init__(self, bundle: Bundle, source: Source) -> None:
        self._served, self._source = _Served(bundle), source
        self._lock = threading.Lock()
        self._warned = False
        forks.register(self)

    def after_fork(self) -> None:
        """Refreshes again in a forked process, if another thread was refreshing at the fork."""
        self._lock = threading.Lock()

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row."""
        return self._served.bundle.rows

    @property
    def device(self) -> DeviceClass:
        """The device class of the rows."""
        return self._served.bundle.device

    @property
    def digest(self) -> str:
        """The bundle's digest: it names these rows and their code."""
        return self._served.bundle.digest

    @property
    def policy(self) -> Mapping[str, Any]:
        """The measurement policy of the rows: its id and content."""
        return self._served.bundle.policy

    @property
    def environments(self) -> Mapping[str, Mapping[str, Any]]:
        """Where rows were measured, by id."""
        return self._served.bundle.environments

    def best(self, **problem: Any) -> Row | None:
        """The row of a problem in its wire form (m=, n=, k=, dtype=, ...), row-major. Raises ProblemError."""
        return self.find(key(wire.canonical(problem)))

    def find(self, key: Key) -> Row | None:
        """The row of a canonical problem's key (gemmtune.problem)."""
        return self._served.index.get(key)

    def refresh(self) -> bool:
        """Asks the source for newer rows. Returns whether other rows are served now. If the source does not
        answer, the present rows stay, and the first time a RuntimeWarning says so. Raises BundleError for a
        key that is refused, and for a source that has another device's bundle now."""
        with self._lock:
            try:
                bundle = self._source()
            except KeyRefused:
                raise
            except BundleError as error:
                self.warn(error)
                return False
            if bundle.digest == self.digest:
                return False
            if bundle.device != self.device:
                raise BundleError(f"the source now has {bundle.device}, this table serves {self.device}")
            self._served = _Served(bundle)
            return True

    def warn(self, error: BundleError) -> None:
        """Warns, once, that the source did not answer and that older rows are served."""
        if not self._warned:
            self._warned = True
            text = f"gemmtune serves the rows of bundle {self.digest[:12]}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def open(self, ordinal: int = 0) -> OpenTable:
        """The table on a device of this process. Checks the device's class and driver, and loads nothing yet.
        Raises LaunchError."""
        bundle = self._served.bundle
        return OpenTable(bundle.device, bundle.requires_driver, ordinal)


def load(
    source: str | os.PathLike[str],
    device: str | None = None,
    digest: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    key: str | None = None,
) -> Table:
    """The table of a bundle.

    source: a path, or the address of a service (http(s)://host:port). device: a selector ("cuda:sm_90"); for
    a service by default this process's first GPU. digest: the only digest that is accepted. cache: the folder
    of fetched bundles. key: the service's API key. Raises BundleError.
    """
    text = os.fspath(source)
    if "://" in text:
        return _from_server(text, device, digest, None if cache is None else Path(cache), key)
    return _from_file(text, device, digest)


def _from_server(
    server: str, device: str | None, digest: str | None, cache: Path | None, key: str | None
) -> Table:
    if device is None:
        try:
            device = str(own_device())
        except LaunchError as error:
            raise BundleError(f"{error}; name the device class whose bundle is wanted: device=") from error
    remote = Remote(server, device, None if digest is None else plain(digest), cache, key)
    bundle, away = remote.first()
    table = Table(bundle, remote.newest)
    if away is not None:
        table.warn(away)
    return table


def _from_file(path: str, device: str | None, digest: str | None) -> Table:
    def opened() -> Bundle:
        bundle = Bundle(path)
        check(bundle, device, digest)
        return bundle

    return Table(opened(), opened)


def plain(digest: str) -> str:
    """A digest as 64 hex digits; "sha256:" before them is allowed. Raises BundleError."""
    found = digest.strip().lower().removeprefix("sha256:")
    if not is_digest(found):
        raise BundleError(f"digest {digest!r} must be the 64 hex digits of a bundle's SHA-256")
    return found


def check(bundle: Bundle, device: str | None, digest: str | None) -> None:
    """Raises BundleError if a bundle is not what was asked for."""
    if digest is not None and bundle.digest != plain(digest):
        raise BundleError(
            f"{bundle.path} has the digest {bundle.digest}, not {digest}: it is another bundle, or altered"
        )
    if device is not None and not selects(device, bundle.device):
        raise BundleError(f"{bundle.path} is for {bundle.device}, not for {device!r}")
