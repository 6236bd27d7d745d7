"""docker/update-digests.py against a registry of the test's own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.docker.recipe import COMPOSE, DOCKERFILE, EXACT, ROOT, base_images, instructions

SCRIPT = ROOT / "docker" / "update-digests.py"
#: Those that the Dockerfile builds: they have no digest before they are built.
OURS = re.compile(r"(registry\.example\.org/)?gemmtune-(api|worker|cuda|rocm)(:[0-9.]+)?")
PINNED = re.compile(r"[^@]+:[^@:]+@sha256:[0-9a-f]{64}")
OLD, NEW = (f"sha256:{digit * 64}" for digit in "ab")


class Registry(ThreadingHTTPServer):
    """Tells every image's digest to those who have fetched a token for its name, as Docker's does."""

    digest = NEW
    lacks = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Registry

    def do_HEAD(self) -> None:
        name = self.path.removeprefix("/v2/").partition("/manifests/")[0]
        if self.headers.get("Authorization") != f"Bearer of repository:{name}:pull":
            fields = f'realm="{self.server.url}/token",service="here",scope="repository:{name}:pull"'
            self.send_response(401)
            self.send_header("WWW-Authenticate", f"Bearer {fields}")
        elif self.server.lacks and self.server.lacks in self.path:
            self.send_response(404)
        else:
            assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
            self.send_response(200)
            self.send_header("Docker-Content-Digest", self.server.digest)
        self.end_headers()

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        assert asked["service"] == ["here"]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": f"of {asked['scope'][0]}"}).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in (DOCKERFILE, COMPOSE):
        shutil.copy(file, tmp_path)
    return tmp_path


def _images() -> set[str]:
    """Every image that the Dockerfile starts from, and that a container of Compose or Kubernetes runs."""
    bases, text = base_images(DOCKERFILE.read_text()), DOCKERFILE.read_text()
    rows = [row.words for row in instructions(text) if row.name == "FROM"]
    own = {words[2] for words in rows}
    found = {bases.get(source[2:-1], source) for source, *_ in rows if source not in own}
    for file in (COMPOSE, *(ROOT / "docker" / "kubernetes").glob("*.yaml")):
        found |= set(re.findall(r"^\s*(?:- )?image: *(\S+)$", file.read_text(), re.MULTILINE))
    return found


def test_every_image_has_a_digest() -> None:
    others = {image for image in _images() if not OURS.fullmatch(image)}
    assert len(others) == 5
    assert {image for image in others if not PINNED.fullmatch(image)} == set()


def _run(folder: Path, registry: Registry, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--folder", str(folder), "--mirror", registry.url, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_image_gets_its_digest_and_later_the_new_one(folder: Path, registry: Registry) -> None:
    registry.digest = OLD
    assert _run(folder, registry).returncode == 0
    assert _run(folder, registry, "--check").returncode == 0
    registry.digest = NEW
    assert _run(folder, registry, "--check").returncode == 1
    done = _run(folder, registry)
    assert done.returncode == 0, done.stderr
    recipe, compose = ((folder / file.name).read_text() for file in (DOCKERFILE, COMPOSE))
    assert OLD not in recipe + compose
    images = base_images(recipe)
    assert images.keys() == base_images(DOCKERFILE.read_text()).keys()
    assert all(EXACT.match(image) and image.endswith(f"@{NEW}") for image in images.values())
    assert compose.count(f"@{NEW}") == 3  # PostgreSQL, Prometheus and Grafana
    assert {line.rpartition("@")[2] for line in done.stdout.splitlines()} == {NEW}


def test_one_image_that_is_not_there_leaves_the_files_alone(folder: Path, registry: Registry) -> None:
    registry.lacks = "grafana"
    before = [(folder / file.name).read_text() for file in (DOCKERFILE, COMPOSE)]
    done = _run(folder, registry)
    assert done.returncode == 2
    assert "grafana/grafana:" in done.stderr
    assert "404" in done.stderr
    assert before == [(folder / file.name).read_text() for file in (DOCKERFILE, COMPOSE)]


def test_an_answer_without_a_digest_is_an_error(folder: Path, registry: Registry) -> None:
    registry.digest = "sha256:short"
    done = _run(folder, registry)
    assert done.returncode == 2
    assert "no Docker-Content-Digest" in done.stderr
