"""The proxies of docs/deployment.md before a real service: as printed but for ports, certificate and limit.

That Caddy gets a certificate by itself is not tested: it is given one.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from service.guard import COOKIE
from tests.service.certificate import make_certificate
from tests.service.http.filled import filled_database, problem

DOCUMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
HOST = "gemmtune.example.org"
#: An upload that the service takes, and one above the proxies' limit here.
UPLOAD, LIMIT = b"GemmTunableOp_Half_TN,tn_64_512_2304_ld_2304_2304_64\n", 64 << 10


def example(begin: str) -> str:
    """The indented block of the section on proxies that begins with this line."""
    section = DOCUMENT.read_text().partition("\n## TLS and proxies\n")[2].partition("\n## ")[0]
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.MULTILINE)]
    (found,) = (block for block in blocks if block.strip().startswith(begin))
    return found.strip() + "\n"


def replaced(text: str, changes: dict[str, str]) -> str:
    """The text with each of these, which it has once, replaced."""
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} is not once in\n{text}"
        text = text.replace(old, new)
    return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Service:
    port: int
    key: str
    log: Path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`gemmtune serve` with the settings that the examples ask for."""
    folder = tmp_path_factory.mktemp("service")
    settings = filled_database(folder, [problem(16, 256, 512)])
    environment = {
        **os.environ,
        "GEMMTUNE_DATABASE_URL": settings.database_url, "GEMMTUNE_CACHE_DIR": str(settings.cache_dir),
        "GEMMTUNE_PRETUNED": "0", "GEMMTUNE_KEYS": "1", "GEMMTUNE_ALLOWED_HOSTS": HOST,
    }  # fmt: skip
    gemmtune = [sys.executable, "-P", "-m", "service.entry"]
    made = subprocess.run(
        [*gemmtune, "keys", "create", "all", "--scope", "admin"],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*gemmtune, "serve", "--port", "0", "--no-worker"],
            env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            (port,) = re.findall(r"serves http://127\.0\.0\.1:(\d+) ", process.stdout.readline())
            yield Service(int(port), made.stdout.strip(), folder / "log")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@contextmanager
def unprivileged() -> Iterator[tuple[Path, str | None]]:
    """A new folder, and the user who owns it and runs a proxy there; None for our own, who is not root."""
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="gemmtune-proxy-"))
    try:
        yield folder, user
    finally:
        shutil.rmtree(folder)


def nginx(folder: Path, port: int, service: Service) -> tuple[list[str], list[str]]:
    """The commands that check and run the example, included as Debian's nginx.conf does."""
    text = replaced(
        example("limit_conn_zone"),
        {
            "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
            "/etc/ssl/gemmtune.pem": f"{folder}/certificate.pem",
            "/etc/ssl/gemmtune.key": f"{folder}/key.pem",
            "http://127.0.0.1:8080;": f"http://127.0.0.1:{service.port};",
            "client_max_body_size 1g;": f"client_max_body_size {LIMIT};",
        },
    )
    (folder / "gemmtune.conf").write_text(text)
    places = "".join(
        f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"pid nginx.pid; events {{}} http {{ access_log off; {places} include gemmtune.conf; }}"
    (folder / "nginx.conf").write_text(main)
    command = ["nginx", "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
    return [*command, "-t"], [*command, "-g", "daemon off;"]


def caddy(folder: Path, port: int, service: Service) -> tuple[list[str], list[str]]:
    """The commands that check and run the example with a certificate of ours: without it, and without the
    global options, Caddy would ask for one, and open the ports 80 and 2019."""
    text = replaced(
        example(f"{HOST} {{"),
        {
            f"{HOST} {{": f"{HOST}:{port} {{\n    tls {folder}/certificate.pem {folder}/key.pem",
            "127.0.0.1:8080": f"127.0.0.1:{service.port}",
            "max_size 1GB": f"max_size {LIMIT}",
        },
    )
    (folder / "Caddyfile").write_text("{\n    admin off\n    auto_https off\n}\n" + text)
    given = ["--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    return ["caddy", "validate", *given], ["caddy", "run", *given]


#: The address of the proxies' client, which is none of theirs.
CLIENT = "127.0.0.2"


class Here(httpx.HTTPTransport):
    """Finds every host's name on this machine."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        named = {**request.extensions, "sni_hostname": request.url.host}
        here = request.url.copy_with(host="127.0.0.1")
        return super().handle_request(
            httpx.Request(
                request.method, here, headers=request.headers, stream=request.stream, extensions=named
            )
        )


@dataclass(frozen=True)
class Proxied:
    """A proxy's name, its origin, a client who trusts its certificate, and the service's log and key."""

    name: str
    origin: str
    client: httpx.Client
    log: Path
    key: dict[str, str]


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def proxied(request: pytest.FixtureRequest, service: Service) -> Iterator[Proxied]:
    name = request.param.__name__
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed (Debian: {name})")
    port = free_port()
    with unprivileged() as (folder, user):
        certificate, _ = make_certificate(folder, HOST)
        check, run = request.param(folder, port, service)
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        if user is not None:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, user)
        done = subprocess.run(
            check, cwd=folder, env=environment, user=user, capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        log = folder / "log"
        with log.open("wb") as written:
            process = subprocess.Popen(
                run, cwd=folder, env=environment, user=user, stdout=written, stderr=written
            )
        try:
            await_port(port, process, log)
            origin = f"https://{HOST}:{port}"
            trusting = ssl.create_default_context(cafile=str(certificate))
            transport = Here(verify=trusting, local_address=CLIENT)
            with httpx.Client(transport=transport, base_url=origin, timeout=30) as client:
                yield Proxied(name, origin, client, service.log, {"Authorization": f"Bearer {service.key}"})
        finally:
            process.terminate()
            process.wait(20)


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except ConnectionRefusedError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


def submit(proxied: Proxied, m: int, **headers: str) -> httpx.Response:
    asked = {"problems": [{"m": m, "n": 8, "k": 8}]}
    return proxied.client.post("/v1/tunings", json=asked, headers=headers or proxied.key)


def test_a_read_needs_a_key(proxied: Proxied) -> None:
    refused = proxied.client.get("/v1/devices")
    assert (refused.status_code, refused.json()["type"]) == (401, "urn:gemmtune:unauthorized")
    answered = proxied.client.get("/v1/devices", headers=proxied.key)
    assert (answered.status_code, answered.headers["content-type"]) == (200, "application/json")


def test_changes_pass_with_a_key(proxied: Proxied) -> None:
    made = submit(proxied, 1)
    assert made.status_code == 202
    cancelled = proxied.client.delete(made.json()["links"]["self"], headers=proxied.key)
    assert cancelled.json()["status"] == "cancelled"
    audited = f"request_id={made.headers['x-request-id']}"
    (line,) = (line for line in proxied.log.read_text().splitlines() if "change=" in line and audited in line)
    assert f"from={CLIENT} " in line, "the proxy does not tell the client's address"
    assert upload(proxied, UPLOAD).status_code == 200
    assert upload(proxied, iter([UPLOAD])).status_code == 200


def upload(proxied: Proxied, content: bytes | Iterator[bytes]) -> httpx.Response:
    headers = {**proxied.key, "Content-Type": "text/csv"}
    return proxied.client.post("/v1/imports/tunableop-untuned", content=content, headers=headers)


def test_a_browser_logs_in(proxied: Proxied) -> None:
    """Host is passed on, or its Origin would be another's, and TLS, or the cookie would not be Secure."""
    token = proxied.key["Authorization"].partition(" ")[2]
    for origin, status in (("https://other.example.org", 403), (proxied.origin, 200)):
        answer = proxied.client.post("/login", json={"key": token}, headers={"Origin": origin})
        assert answer.status_code == status
    said = answer.headers["set-cookie"]
    assert said.startswith(f"{COOKIE}=")
    assert "Secure" in {part.strip() for part in said.split(";")}
    try:
        assert proxied.client.get("/v1/devices").status_code == 200, "the cookie is the key"
        assert submit(proxied, 2, Origin=proxied.origin).status_code == 202
        assert submit(proxied, 2, Origin="https://other.example.org").status_code == 403
    finally:
        proxied.client.cookies.clear()


def test_a_file_above_the_limit_is_refused(proxied: Proxied) -> None:
    """nginx answers 413. Caddy 2.6 does, or 502: it passes on what is below the limit until then."""
    line = UPLOAD.replace(b"64_512", b"77_512")
    half = line * (LIMIT // len(line) // 2 + 1)
    for content in (half + half, iter([half, half])):
        status = upload(proxied, content).status_code
        assert status == 413 or (proxied.name, status) == ("caddy", 502)
    known = proxied.client.get("/v1/problems?limit=1000", headers=proxied.key).json()["items"]
    assert {row["problem"]["m"] for row in known}.isdisjoint({77})


def test_events_arrive_at_once(proxied: Proxied) -> None:
    links = submit(proxied, 3).json()["links"]
    with proxied.client.stream("GET", links["events"], headers=proxied.key) as stream:
        lines = stream.iter_lines()
        assert "event: queued" in lines
        assert proxied.client.delete(links["self"], headers=proxied.key).status_code == 200
        assert "event: ended" in lines


def test_another_host_is_refused(proxied: Proxied) -> None:
    """Caddy has no site of that name, and answers nothing without asking the service."""
    answer = proxied.client.get("/v1/devices", headers={**proxied.key, "Host": "other.example.org"})
    if proxied.name == "caddy":
        assert (answer.status_code, answer.content) == (200, b"")
    else:
        assert (answer.status_code, answer.json()["type"]) == (421, "urn:gemmtune:misdirected-request")
