"""The images built, looked into and run: the API serves, the worker tunes, nobody is root.

Needs root, buildah and mmdebstrap, but no container engine. The images of GPUs are built in `make exhaustive`
alone, without the gigabytes: cuda with NVRTC but not the other wheels, rocm on Debian instead of AMD's image.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docker.engine import Container, Engine, Failed, Process
from tests.docker.recipe import IGNORE, ROOT, let_in
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.image, pytest.mark.timeout(1800)]

SMALL = {"m": 8, "n": 64, "k": 64, "dtype": "fp32"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    # Not under pytest's folders: they are kept after the run, and an image store is large.
    engine = Engine(Path(tempfile.mkdtemp(prefix="gemmtune-images-")))
    try:
        engine.make_base()
        yield engine
    finally:
        engine.close()


@dataclass(frozen=True)
class Images:
    """A container of each image."""

    api: Container
    worker: Container


@pytest.fixture(scope="module")
def images(engine: Engine, record_testsuite_property: Callable[[str, object], None]) -> Images:
    made = {target: engine.build(target, "--build-arg=REVISION=0123abcd") for target in ("api", "worker")}
    sizes = {target: engine.megabytes(image) for target, image in made.items()}
    print(f"\nstore: {engine.driver}; seconds:", {name: round(s, 1) for name, s in engine.seconds.items()})
    print("megabytes:", sizes)
    for target, size in sizes.items():
        record_testsuite_property(f"{target}_megabytes", size)
        record_testsuite_property(f"{target}_seconds", engine.seconds[target])
    return Images(engine.container(made["api"]), engine.container(made["worker"]))


@pytest.fixture(params=["api", "worker"])
def container(request: pytest.FixtureRequest, images: Images) -> Container:
    found: Container = getattr(images, request.param)
    return found


# ---- what is in them ---------------------------------------------------------------------------


def test_the_context_holds_the_source_and_nothing_else(engine: Engine, tmp_path: Path) -> None:
    recipe = tmp_path / "Dockerfile"
    recipe.write_text("FROM scratch\nCOPY . /\n")
    engine.call("bud", f"--file={recipe}", f"--ignorefile={IGNORE}", "--tag=localhost/context", ROOT)
    place = Path(engine.call("mount", engine.call("from", "localhost/context")))
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    tracked = {path for path in files if not path.startswith(("dev/", "etc/", "proc/", "run/", "sys/"))}
    assert "service/entry.py" in tracked
    assert "backends/cpu/kernels/abi.h" in tracked
    assert "docker/constraints.txt" in tracked
    meant = {path.partition("/")[0] for path in let_in(IGNORE.read_text())}
    assert {path.partition("/")[0] for path in tracked} == meant
    assert not [path for path in tracked if "__pycache__" in path or path.endswith(".pyc")]


def test_the_command_runs_as_a_user_who_owns_nothing_but_the_volumes(container: Container) -> None:
    assert "Usage: gemmtune" in container.run("gemmtune", "--help")
    assert container.run("id", "-u", "-n").strip() == "gemmtune"
    assert container.run("id", "-u").strip() == "10001"
    owned = container.run("sh", "-c", "find / -xdev -user gemmtune -not -path '/proc/*' 2>/dev/null; true")
    kernels = "/var/cache/gemmtune/kernels"  # of the portfolio, in the worker's image
    held = [path for path in owned.split() if path != kernels and not path.startswith(f"{kernels}/")]
    assert sorted(held) == ["/var/cache/gemmtune", "/var/lib/gemmtune"]
    assert container.run("sh", "-c", "test -w /opt/gemmtune/bin || echo no").strip() == "no"


def test_the_environment_holds_the_pinned_versions_and_cannot_install(container: Container) -> None:
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in m.distributions()}))"
    )
    installed: dict[str, str] = json.loads(container.run("python", "-c", code))
    pins = {}
    for row in (ROOT / "docker" / "constraints.txt").read_text().splitlines():
        if not row.startswith("#"):
            name, _, version = row.partition("==")
            pins[name.lower().replace("_", "-")] = version
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert installed == {name: v for name, v in pins.items() if name != "setuptools"} | {"gemmtune": version}


def test_labels_and_signals(container: Container) -> None:
    labels = container.config["Labels"]
    assert labels["org.opencontainers.image.revision"] == "0123abcd"
    assert container.config["StopSignal"] == "SIGTERM"
    assert set(container.config["Volumes"]) == {"/var/lib/gemmtune", "/var/cache/gemmtune"}


def test_only_the_worker_has_a_compiler(images: Images) -> None:
    find = ("sh", "-c", "command -v g++ c++ gcc cc; true")
    assert not images.api.run(*find)
    assert "/usr/bin/g++" in images.worker.run(*find)


@pytest.mark.exhaustive
def test_the_worker_compiles_and_tunes_without_a_server(images: Images) -> None:
    (device,) = json.loads(images.worker.run("gemmtune", "devices", "--json"))["devices"]
    assert device["environment"]["libraries"]["compiler"]
    shape = ("--m", "8", "--n", "64", "--k", "64")
    out = images.worker.run("gemmtune", "tune", *shape, "--seconds", "0.5", "--candidates", "6", "--json")
    (result,) = json.loads(out)["results"]
    assert result["verdict"]["judgement"] in ("WIN", "TIE", "LOSS")
    assert result["counts"]["compiling_seconds"] > 0


# ---- images of GPUs ----------------------------------------------------------------------------

LARGE = "torch|triton|nvidia-cublas|nvmath-python|nvidia-matmul-heuristics"


@pytest.mark.exhaustive
def test_the_cuda_image_has_kernels_that_were_compiled_without_a_gpu(engine: Engine) -> None:
    container = engine.container(engine.build("cuda", f"--build-arg=CUDA_WITHOUT={LARGE}"))
    assert container.command == ["gemmtune", "worker", "--device", "cuda"]
    kernels = container.run(
        "sh", "-c", "find /var/cache/gemmtune/kernels -name '*.cubin' -user gemmtune | wc -l"
    )
    assert int(kernels) > 50
    # Nothing is left to compile, by the user who runs the container.
    again = ("kernels", "precompile", "--portfolio", "--arch", "sm_90", "--json")
    found = json.loads(container.run("gemmtune", *again))
    assert (found["compiled"], found["failed"]) == (0, {})
    assert found["cached"] == found["members"] > 50
    worker = container.start(*container.command)
    assert worker.wait() != 0  # there is no GPU here, or none that a container sees
    assert "cuda" in worker.text


@pytest.mark.exhaustive
def test_the_rocm_image_says_what_its_base_lacks(engine: Engine) -> None:
    container = engine.container(engine.build("rocm"))
    assert container.command == ["gemmtune", "worker", "--device", "hip"]
    assert container.run("id", "-u").strip() == "10001"
    worker = container.start(*container.command)
    assert worker.wait() != 0
    assert "libamdhip64" in worker.text  # AMD's image brings it


# ---- the service -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Installation:
    """The folders and settings that the containers of one service share, as volumes and variables."""

    folder: Path
    environment: dict[str, str]

    @property
    def volumes(self) -> dict[Path, str]:
        """Folders of this machine -> where a container sees them."""
        return {self.folder / "data": "/var/lib/gemmtune", self.folder / "cache": "/var/cache/gemmtune"}

    def start(self, container: Container, *command: str) -> Process:
        """Starts a command in a container that has the volumes and variables."""
        return container.start(*command, volumes=self.volumes, environment=self.environment)


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.exhaustive])]
)
def installation(request: pytest.FixtureRequest) -> Iterator[Installation]:
    folder = Path(tempfile.mkdtemp(prefix="gemmtune-volumes-"))
    made = Installation(folder, {})
    for volume in made.volumes:
        volume.mkdir()
        os.chown(volume, 10001, 10001)
    server = None
    try:
        if request.param == "postgres":
            server = PostgresServer()
            server.start()
            made.environment["GEMMTUNE_DATABASE_URL"] = server.url(server.create())
        yield made
    finally:
        if server is not None:
            server.remove()
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ask(method: str, url: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    question = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(question, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except urllib.error.URLError:
        return 0, None


def _until(true: Callable[[], bool], wait_s: float, *processes: Process) -> None:
    deadline = time.monotonic() + wait_s
    while not true():
        texts = [process.text[-4000:] for process in processes]
        assert all(process.running for process in processes), texts
        assert time.monotonic() < deadline, texts
        time.sleep(0.1)


def _probe(container: Container, port: int) -> list[str]:
    """The image's health check, with the test's port."""
    kind, *command = container.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return [word.replace(":8080/", f":{port}/") for word in command]


def test_the_api_and_a_worker_tune_a_problem(images: Images, installation: Installation) -> None:
    port = _free_port()
    address = {"0.0.0.0": "127.0.0.1", "8080": str(port)}  # the container's network is this machine's
    serve = [address.get(word, word) for word in images.api.command]
    if installation.environment:  # PostgreSQL: nobody changes its schema unasked
        refused = installation.start(images.api, *serve)
        assert refused.wait() != 0
        assert "gemmtune db upgrade" in refused.text
        migrate = installation.start(images.api, "gemmtune", "db", "upgrade")
        assert migrate.wait() == 0, migrate.text

    api = installation.start(images.api, *serve)
    url = f"http://127.0.0.1:{port}"
    with api:
        _until(lambda: _ask("GET", f"{url}/readyz")[0] == 200, 90, api)
        images.api.run(*_probe(images.api, port))
        with pytest.raises(Failed):
            images.api.run(*_probe(images.api, _free_port()))

        worker = installation.start(images.worker, *images.worker.command)
        with worker:
            _until(lambda: "owns cpu:" in worker.text, 90, api, worker)
            budget = {"seconds_per_problem": 0.5, "candidates": 6}
            wanted = {"problems": [SMALL], "device": "cpu", "budget": budget}
            status, created = _ask("POST", f"{url}/v1/tunings", wanted)
            assert status == 202, created
            tuning = f"{url}/v1/tunings/{created['id']}"
            done = ("succeeded", "failed", "cancelled")
            _until(lambda: _ask("GET", tuning)[1]["status"] in done, 240, api, worker)
            status, found = _ask("GET", tuning)
            assert (status, found["status"]) == (200, "succeeded"), found
        assert worker.wait() == 0, worker.text
    assert api.wait() == 0, api.text
    if not installation.environment:
        assert (installation.folder / "data" / "gemmtune.sqlite").stat().st_uid == 10001
    assert list((installation.folder / "cache" / "kernels").rglob("*.so"))


@pytest.mark.exhaustive
def test_a_worker_container_that_is_killed_in_mid_job_loses_nothing(
    images: Images, installation: Installation
) -> None:
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    if installation.environment:
        assert installation.start(images.api, "gemmtune", "db", "upgrade").wait() == 0
    api = installation.start(images.api, "gemmtune", "serve", "--port", str(port), "--no-worker")
    with api:
        _until(lambda: _ask("GET", f"{url}/readyz")[0] == 200, 90, api)
        killed = installation.start(images.worker, *images.worker.command)
        _until(lambda: "owns cpu:" in killed.text, 90, api, killed)
        wanted = {
            "problems": [{**SMALL, "n": n} for n in (64, 128)], "device": "cpu",
            "budget": {"seconds_per_problem": 2, "candidates": 6},
        }  # fmt: skip
        status, created = _ask("POST", f"{url}/v1/tunings", wanted)
        assert status == 202, created
        _until(lambda: "attempt 1 starts" in killed.text, 90, api, killed)
        killed.kill()
        tuning = f"{url}/v1/tunings/{created['id']}"
        assert _ask("GET", tuning)[1]["status"] == "running"
        worker = installation.start(images.worker, *images.worker.command)
        with worker:
            _until(lambda: _ask("GET", tuning)[1]["status"] == "succeeded", 240, api, worker)
            assert "attempt 2 starts" in worker.text
