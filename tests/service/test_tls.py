"""A service that answers by TLS: `gemmtune serve --tls-certificate --tls-key` as a user runs it."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from service.guard import COOKIE
from tests.service.certificate import make_certificate


@dataclass(frozen=True)
class Secured:
    """A service with its certificate, and an API key of it that may do anything."""

    url: str
    certificate: Path
    key: str


def command(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "service.entry", *words]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, private = make_certificate(folder)
    environment = {
        **os.environ,
        "GEMMTUNE_DATABASE_URL": f"sqlite:///{folder / 'gemmtune.sqlite'}",
        "GEMMTUNE_CACHE_DIR": str(folder / "cache"),
        "GEMMTUNE_PRETUNED": "0",
    }
    assert command(environment, "db", "upgrade").returncode == 0
    made = command(environment, "keys", "create", "all", "--scope", "admin")
    (key,) = re.findall(r"\bgt_\S+|\bgemmtune_\S+", made.stdout + made.stderr) or [made.stdout.strip()]
    options = ("--no-worker", "--keys", "--tls-certificate", str(certificate), "--tls-key", str(private))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.entry", "serve", "--port", "0", *options],
            env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            (url,) = re.findall(r"serves (https://127\.0\.0\.1:\d+) ", line)
            yield Secured(url, certificate, key)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_who_trusts_the_certificate_is_answered(secured: Secured) -> None:
    trusting = ssl.create_default_context(cafile=str(secured.certificate))
    with httpx.Client(base_url=secured.url, verify=trusting, timeout=30) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/devices").status_code == 401
        header = {"Authorization": f"Bearer {secured.key}"}
        assert client.get("/v1/devices", headers=header).status_code == 200


def test_who_does_not_trust_it_sends_nothing(secured: Secured) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{secured.url}/healthz", timeout=30)


def test_without_tls_there_is_no_answer(secured: Secured) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{secured.url.replace('https', 'http')}/healthz", timeout=30)


def test_a_login_is_for_tls_alone(secured: Secured) -> None:
    trusting = ssl.create_default_context(cafile=str(secured.certificate))
    with httpx.Client(base_url=secured.url, verify=trusting, timeout=30) as client:
        answer = client.post("/login", json={"key": secured.key}, headers={"Origin": secured.url})
        assert answer.status_code == 200
        said = answer.headers["set-cookie"]
        assert said.startswith(f"{COOKIE}=")
        assert {"Secure", "HttpOnly"} <= {part.strip() for part in said.split(";")}
        assert client.get("/v1/devices").status_code == 200, "the cookie is the key"


@pytest.mark.parametrize("trusted", [True, False])
def test_commands_through_it(secured: Secured, trusted: bool) -> None:
    environment = {**os.environ, "GEMMTUNE_KEY": secured.key}
    if trusted:
        environment["SSL_CERT_FILE"] = str(secured.certificate)
    done = command(environment, "workers", "--server", secured.url, "--json")
    if trusted:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 2
        assert "SSL_CERT_FILE" in done.stderr
