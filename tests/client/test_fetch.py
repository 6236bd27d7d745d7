"""Fetching from a service: waiting, ETag, resumed downloads, the cache, and what is refused."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gemmtune
import pytest
from gemmtune import cache, fetch, transport
from gemmtune.fetch import Remote

from tests.client import bundles

pytestmark = pytest.mark.process

DEVICE = bundles.DEVICES["cuda"]
#: Answers a request, and returns whether it did; the default answer follows where it did not.
Hook = Callable[["_Handler"], bool]


class Server(ThreadingHTTPServer):
    """A service that sends one file. `hooks` are asked first, each once."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.path, self.hooks = path, list[Hook]()
        self.seen: list[dict[str, str]] = []
        self.statuses: list[int] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        """Connections that a test cuts are no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.seen.append(
            {**dict(self.headers), "device": parse_qs(parts.query).get("device", [""])[0]}
        )
        if self.server.hooks and self.server.hooks.pop(0)(self):
            return
        data = self.server.path.read_bytes()
        etag, start = f'"{bundles.digest(data)}"', 0
        if self.headers["If-None-Match"] == etag:
            self.answer(304, b"", ETag=etag)
            return
        if self.headers["Range"] and self.headers["If-Range"] == etag:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            ranged = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            self.answer(206, data[start:], None, ETag=etag, **ranged)
            return
        self.answer(200, data, ETag=etag)

    def answer(self, status: int, body: bytes, sent: int | None = None, /, **headers: str) -> None:
        """Sends an answer, of whose body only `sent` bytes arrive."""
        self.server.statuses.append(status)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:sent])

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


def _answers(status: int, body: bytes, sent: int | None = None, **headers: str) -> Hook:
    """A hook that sends this answer."""

    def hook(handler: _Handler) -> bool:
        handler.answer(status, body, sent, **headers)
        return True

    return hook


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A service whose bundle has 40 rows."""
    with Server(bundles.simple(tmp_path / "served.gtb", count=40)) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.02,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits are recorded, and take no time."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


def _load(server: Server, path: Path, **options: Any) -> gemmtune.Table:
    return gemmtune.load(server.address, device=DEVICE, cache=path / "cache", **options)


def test_a_bundle_is_fetched_and_kept(server: Server, tmp_path: Path) -> None:
    table = _load(server, tmp_path)
    assert len(table.rows) == 40
    assert server.seen[0]["device"] == DEVICE
    kept = tmp_path / "cache" / "bundles" / f"{table.digest}.gtb"
    assert kept.read_bytes() == server.path.read_bytes()
    assert (tmp_path / "cache" / "bundles").stat().st_mode & 0o077 == 0
    assert table.refresh() is False
    again = _load(server, tmp_path)
    assert again.digest == table.digest
    assert server.statuses == [200, 304, 304]


def test_a_refresh_fetches_what_is_new(server: Server, tmp_path: Path) -> None:
    table = _load(server, tmp_path)
    row = table.rows[0]
    bundles.simple(server.path, count=41)
    assert table.refresh() is True
    assert len(table.rows) == 41
    assert row.bundle.binary(row.launches[0].binary) == bundles.gemm_binary()


def test_a_service_that_is_still_making_the_bundle(
    server: Server, tmp_path: Path, quick: list[float]
) -> None:
    said = b'{"detail": "7 of 40 kernels compiled"}'
    server.hooks += [_answers(202, said, None, **{"Retry-After": "3"})] * 2
    assert len(_load(server, tmp_path).rows) == 40
    assert quick == [3.0, 3.0]
    assert server.statuses == [202, 202, 200]


def test_a_refresh_does_not_wait(server: Server, tmp_path: Path, quick: list[float]) -> None:
    table = _load(server, tmp_path)
    bundles.simple(server.path, count=41)
    server.hooks.append(_answers(202, b"{}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table.refresh() is False
    assert quick == []
    assert table.refresh() is True


def test_a_cut_download_is_resumed(server: Server, tmp_path: Path) -> None:
    data = server.path.read_bytes()
    etag = f'"{bundles.digest(data)}"'

    part = {"Content-Range": f"bytes 1000-{len(data) - 1}/{len(data)}"}
    server.hooks.append(_answers(200, data, 1000, ETag=etag))
    server.hooks.append(_answers(206, data[1000:], 500, ETag=etag, **part))
    table = _load(server, tmp_path)
    assert len(table.rows) == 40
    assert [one.get("Range") for one in server.seen] == [None, "bytes=1000-", "bytes=1500-"]
    assert [one.get("If-Range") for one in server.seen] == [None, etag, etag]


def test_a_download_is_resumed_by_a_later_process(server: Server, tmp_path: Path) -> None:
    data = server.path.read_bytes()
    etag = f'"{bundles.digest(data)}"'
    server.hooks.append(_answers(200, data, 900, ETag=etag))
    server.hooks += [_answers(503, b"{}")]
    with pytest.raises(gemmtune.BundleError, match=r"answers 503"):
        _load(server, tmp_path)
    assert len(_load(server, tmp_path).rows) == 40
    assert server.seen[-1]["Range"] == "bytes=900-"


def test_a_part_of_an_older_bundle_is_dropped(server: Server, tmp_path: Path) -> None:
    data = server.path.read_bytes()
    etag = f'"{bundles.digest(data)}"'

    def cut(handler: _Handler) -> bool:
        handler.answer(200, data, 1000, ETag=etag)
        bundles.simple(server.path, count=5)
        return True

    server.hooks.append(cut)
    assert len(_load(server, tmp_path).rows) == 5
    assert server.statuses == [200, 200]


def test_a_download_that_never_gets_further(server: Server, tmp_path: Path) -> None:
    data = server.path.read_bytes()
    server.hooks += [_answers(200, data, 0)] * 10
    with pytest.raises(gemmtune.BundleError, match=r"stops at byte 0: the connection ended"):
        _load(server, tmp_path)
    assert len(server.seen) == 4


def test_a_service_that_refuses_every_range(server: Server, tmp_path: Path, quick: list[float]) -> None:
    server.hooks += [_answers(416, b"")] * 50
    with pytest.raises(gemmtune.BundleError, match=r"stops at byte 0: the service refuses the range"):
        _load(server, tmp_path)
    assert (len(server.seen), len(quick)) == (4, 3)


def test_a_download_without_ranges_that_is_cut_here_and_there(server: Server, tmp_path: Path) -> None:
    data = server.path.read_bytes()
    server.hooks += [_answers(200, data, sent, ETag='W/"x"') for sent in (100, 110) * 25]
    with pytest.raises(gemmtune.BundleError, match=r"stops at byte 1[01]0: the connection ended"):
        _load(server, tmp_path)
    assert len(server.seen) == 6


def test_an_altered_download_is_refused_and_fetched_anew(server: Server, tmp_path: Path) -> None:
    data = bytearray(server.path.read_bytes())
    data[60] ^= 1
    etag = f'"{bundles.digest(server.path.read_bytes())}"'
    server.hooks.append(_answers(200, bytes(data), ETag=etag))
    with pytest.raises(gemmtune.BundleError, match=r"damaged"):
        _load(server, tmp_path)
    assert len(_load(server, tmp_path).rows) == 40
    assert "Range" not in server.seen[-1]


def test_a_damaged_file_of_the_cache_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    digest = _load(server, tmp_path).digest
    kept = tmp_path / "cache" / "bundles" / f"{digest}.gtb"
    for damage in (b"", bundles.simple(tmp_path / "other.gtb", count=3).read_bytes()):
        kept.write_bytes(damage)
        assert len(_load(server, tmp_path).rows) == 40
        assert kept.read_bytes() == server.path.read_bytes()
    kept.write_bytes(b"PK")
    assert _load(server, tmp_path, digest=digest).digest == digest


# ---- a service that is away ----------------------------------------------------------------------


def test_without_the_service_the_cache_serves_and_warns_once(server: Server, tmp_path: Path) -> None:
    digest = _load(server, tmp_path).digest
    server.hooks += [_answers(503, b'{"detail": "restarting"}')] * 3
    with pytest.warns(RuntimeWarning, match=f"serves the rows of bundle {digest[:12]}: .*503: restarting"):
        table = _load(server, tmp_path)
    assert table.digest == digest
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table.refresh() is False


def test_nobody_listens(server: Server, tmp_path: Path) -> None:
    digest = _load(server, tmp_path).digest
    server.shutdown()
    server.server_close()
    with pytest.warns(RuntimeWarning, match=r"does not answer: .*refused"):
        assert _load(server, tmp_path).digest == digest
    with pytest.raises(gemmtune.BundleError, match=r"does not answer: .*refused"):
        _load(server, tmp_path / "another")


def test_a_pinned_bundle_in_the_cache_needs_no_service(server: Server, tmp_path: Path) -> None:
    digest = _load(server, tmp_path).digest
    asked = len(server.seen)
    table = _load(server, tmp_path, digest=digest)
    assert table.refresh() is False
    assert (table.digest, len(server.seen)) == (digest, asked)


def test_a_pinned_bundle_that_is_nowhere(server: Server, tmp_path: Path) -> None:
    _load(server, tmp_path)
    server.hooks.append(_answers(503, b"{}"))
    with pytest.raises(gemmtune.BundleError, match=r"answers 503"):
        _load(server, tmp_path, digest="0" * 64)


def test_a_pinned_digest_that_the_service_does_not_have(server: Server, tmp_path: Path) -> None:
    with pytest.raises(gemmtune.BundleError, match=f"sent the bundle .*, not {'0' * 64}"):
        _load(server, tmp_path, digest="0" * 64)


def test_a_cache_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(gemmtune.BundleError, match=r"cache folder .* cannot be made .*: pass cache="):
        _load(server, tmp_path)


def test_a_cache_that_cannot_be_written_serves_what_it_has(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = _load(server, tmp_path).digest
    bundles.simple(server.path, count=41)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("append", "restart"):
        with monkeypatch.context() as patch:
            patch.setattr(cache.Part, name, _raising(getattr(cache.Part, name), full))
            with pytest.warns(RuntimeWarning, match=r"cannot be written: No space left"):
                assert _load(server, tmp_path).digest == digest
    (part,) = (tmp_path / "cache" / "partial").glob("*.part")
    part.unlink()
    part.mkdir()
    with pytest.warns(RuntimeWarning, match=r"\.part cannot be written: Is a directory"):
        assert _load(server, tmp_path).digest == digest


def _raising(method: Any, full: Any) -> Any:
    """A method of Part whose file cannot be written."""

    def call(self: Any, *arguments: Any) -> None:
        self.file = SimpleNamespace(seek=full, close=self.file.close)
        method(self, *arguments)

    return call


def test_a_cache_that_others_may_write_to_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _load(server, tmp_path)
    for folder in (tmp_path / "cache", tmp_path / "cache" / "sources"):
        for mode in (0o777, 0o720):
            folder.chmod(mode)
            with pytest.raises(gemmtune.BundleError, match=rf"{folder} is .*mode {mode:o}.*bundles are code"):
                _load(server, tmp_path)
        folder.chmod(0o700)
    _load(server, tmp_path)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(gemmtune.BundleError, match=r"another user's"):
        _load(server, tmp_path)


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmtune.cache import default_folder

    monkeypatch.delenv("GEMMTUNE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_folder() == Path("/x/gemmtune")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "gemmtune"
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", "/y")
    assert default_folder() == Path("/y")


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "options", "text"),
    [
        ("http://gpu.example:8000", {}, "anyone on the way can alter.*https, or pin"),
        ("http://10.0.0.1", {"key": "k"}, "anyone on the way"),
        ("http://gpu.example", {"digest": "0" * 64, "key": "k"}, "the key would be sent in the clear"),
        ("ftp://gpu.example", {}, "is no address of a service"),
        ("https://user:word@gpu.example", {}, "is no address of a service"),
        ("file:///etc/passwd", {}, "is no address of a service"),
        ("http://127.0.0.1.example.org", {}, "anyone on the way"),
    ],
)
def test_addresses(address: str, options: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(gemmtune.BundleError, match=text):
        gemmtune.load(address, device=DEVICE, cache=tmp_path, **options)


@pytest.mark.parametrize(
    "address", ["https://gpu.example", "http://localhost:1", "http://[::1]:1", "http://127.9.9.9"]
)
def test_addresses_that_are_accepted(address: str, tmp_path: Path) -> None:
    Remote(address, DEVICE, None, tmp_path, None)
    Remote("http://gpu.example", DEVICE, "0" * 64, tmp_path, None)


def test_a_redirect_to_plain_http_is_refused(server: Server, tmp_path: Path) -> None:
    for target in ("http://gpu.example/v1/bundles", "file:///etc/passwd", "ftp://gpu.example/b"):
        server.hooks.append(_answers(302, b"", Location=target))
        with pytest.raises(gemmtune.BundleError, match=f"{target}.*(refused|not allowed)"):
            _load(server, tmp_path)


def test_a_redirect_keeps_the_key_on_the_same_host_alone(server: Server, tmp_path: Path) -> None:
    there = f"/v1/bundles?device={DEVICE}"
    other = f"http://localhost:{server.server_address[1]}{there}"
    server.hooks.append(_answers(302, b"", Location=there))
    _load(server, tmp_path, key="secret")
    server.hooks.append(_answers(307, b"", Location=other))
    _load(server, tmp_path, key="secret")
    keys = [one.get("Authorization") for one in server.seen]
    assert keys == ["Bearer secret", "Bearer secret", "Bearer secret", None]


def test_loopback_passes_no_proxy(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert len(_load(server, tmp_path).rows) == 40


def test_a_key_that_is_wrong(server: Server, tmp_path: Path) -> None:
    server.hooks.append(_answers(401, b'{"detail": "unknown key"}'))
    with pytest.raises(
        gemmtune.BundleError, match=r"answers 401: unknown key; pass the service's API key as key="
    ):
        _load(server, tmp_path)


def test_a_key_that_is_refused_later(server: Server, tmp_path: Path) -> None:
    table = _load(server, tmp_path, key="old")
    server.hooks.append(_answers(401, b'{"detail": "unknown key"}'))
    with pytest.raises(gemmtune.BundleError, match=r"answers 401: unknown key"):
        table.refresh()
    assert len(table.rows) == 40


def test_what_the_service_refuses_is_passed_on(server: Server, tmp_path: Path) -> None:
    server.hooks.append(_answers(404, b'{"detail": "no WIN rows of this class"}'))
    with pytest.raises(gemmtune.BundleError, match=r"answers 404: no WIN rows of this class$"):
        _load(server, tmp_path)


def test_a_bundle_of_a_cpu_is_taken_from_no_server(server: Server, tmp_path: Path) -> None:
    with pytest.raises(gemmtune.BundleError, match=r"runs code as soon as it is opened.*load the file"):
        gemmtune.load(server.address, device="cpu:x86_64", cache=tmp_path)
    assert server.seen == []
    found = bundles.manifest("cpu:x86_64:AMD-EPYC:2", [], {})
    bundles.write(server.path, found, {})
    with pytest.raises(gemmtune.BundleError, match=r"sent a bundle of cpu:.*refused"):
        _load(server, tmp_path)


def test_a_bundle_of_another_device(server: Server, tmp_path: Path) -> None:
    bundles.simple(server.path, "hip")
    with pytest.raises(gemmtune.BundleError, match=r"sent a bundle of hip:.*refused"):
        _load(server, tmp_path)


def test_a_body_without_end(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MOST_FILE", 1000)
    with pytest.raises(gemmtune.BundleError, match=r"sends more than 1000 bytes"):
        _load(server, tmp_path)
    assert not list((tmp_path / "cache" / "bundles").iterdir())


def test_no_device_is_named_and_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gemmtune import drivers
    from gemmtune.drivers import cuda, hip

    monkeypatch.setattr(drivers, "_open", {})
    monkeypatch.setattr(cuda, "NAMES", ("libgemmtune-none.so",))
    monkeypatch.setattr(hip, "NAMES", ("libgemmtune-none.so",))
    monkeypatch.setattr(hip, "_FOLDERS", ())
    with pytest.raises(gemmtune.BundleError, match=r"no GPU: no NVIDIA driver.*no HIP runtime.*device="):
        gemmtune.load("https://gpu.example", cache=tmp_path)


@pytest.mark.compiler
def test_by_default_the_process_asks_for_its_own_device(
    server: Server, tmp_path: Path, cuda_stub: object
) -> None:
    table = gemmtune.load(server.address, cache=tmp_path / "cache")
    assert server.seen[0]["device"] == DEVICE
    assert table.open().driver.device == table.device


def test_the_timeout_of_a_silent_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(transport, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(gemmtune.BundleError, match=r"does not answer: .*timed out"):
            gemmtune.load(address, device=DEVICE, cache=tmp_path)
