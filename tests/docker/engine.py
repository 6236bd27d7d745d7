"""Images without an engine: built and run by buildah, which changes the root and nothing else.

The base image stands in for those that the Dockerfile names, Python's and AMD's: a small Debian with Python,
made by mmdebstrap. Processes of a container are processes of this machine: its network, its process ids.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.docker.recipe import DOCKERFILE, ROOT

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUNDLE = "/run/certificates.crt"
_BASE = "localhost/gemmtune-base:test"


class Failed(Exception):
    """A command that did not end well, with what it said."""


class Process:
    """The command of a container. As a context it is asked to end when the context is left.

    What it prints goes to files of a mounted folder: on a busy machine buildah itself lost a short command's
    output.
    """

    def __init__(self, popen: subprocess.Popen[bytes], folder: Path) -> None:
        self._popen = popen
        self._folder = folder

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self._read("out")

    @property
    def text(self) -> str:
        """What it has printed and complained of so far, and buildah with it."""
        return self._read("out") + self._read("err") + self._read("buildah")

    def _read(self, name: str) -> str:
        file = self._folder / name
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def _signal(self, number: signal.Signals) -> None:
        """Its process is one of this machine's. buildah, told to end, would kill it."""
        with suppress(ValueError, ProcessLookupError):
            os.kill(int(self._read("pid")), number)

    def kill(self) -> None:
        """Ends it at once, as the kernel does when memory is short."""
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def wait(self, wait_s: float = 60) -> int:
        """The exit code; one that does not end in time is killed, and Failed is raised."""
        try:
            return self._popen.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._popen.wait()
            raise Failed(f"it did not end within {wait_s:g} s:\n{self.text[-4000:]}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Asks it to end as an engine would, and waits."""
        if self.running:
            self._signal(signal.SIGTERM)
        self.wait()


class Container:
    """A container made from an image; commands run in it as the image's user, with its environment."""

    def __init__(self, engine: Engine, name: str, config: Mapping[str, Any]) -> None:
        self._engine = engine
        self.name = name
        self.config = config

    @property
    def command(self) -> list[str]:
        """What the image starts: entry point and arguments."""
        return [*(self.config.get("Entrypoint") or []), *(self.config.get("Cmd") or [])]

    def run(self, *command: str) -> str:
        """Runs a command to its end; its standard output. Raises Failed where it fails."""
        process = self.start(*command)
        code = process.wait(120)
        if code:
            raise Failed(f"{command} ended with {code}:\n{process.text}")
        return process.out

    def start(
        self,
        *command: str,
        volumes: Mapping[Path, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts a command in the background, with folders of this machine mounted."""
        folder = self._engine.new_folder()
        places = {folder: "/mnt", **(volumes or {})}
        options = [f"--volume={source}:{place}" for source, place in places.items()]
        options += [f"--env={name}={value}" for name, value in (environment or {}).items()]
        script = 'echo $$ >/mnt/pid; exec "$@" >/mnt/out 2>/mnt/err'
        with (folder / "buildah").open("wb") as said:
            popen = subprocess.Popen(
                ["buildah", "run", *options, self.name, "--", "sh", "-c", script, "sh", *command],
                env=self._engine.env, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip
        return Process(popen, folder)


class Engine:
    """A store of images in a folder of its own; `seconds` tells how long each step took."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds: dict[str, float] = {}
        self.env = {**os.environ, "BUILDAH_ISOLATION": "chroot", "LC_ALL": "C.UTF-8"}
        for name in ("STORAGE_DRIVER", "STORAGE_OPTS"):
            self.env.pop(name, None)
        config = folder / "storage.conf"
        self.env["CONTAINERS_STORAGE_CONF"] = str(config)
        for driver in ("overlay", "vfs"):  # overlay cannot lie on every file system
            places = f'runroot = "{folder / driver}-run"\ngraphroot = "{folder / driver}"\n'
            config.write_text(f'[storage]\ndriver = "{driver}"\n{places}')
            done = subprocess.run(["buildah", "info"], env=self.env, capture_output=True, check=False)
            if done.returncode == 0:
                self.driver = driver
                break
        else:
            raise Failed(f"buildah can keep no images in {folder}")

    def new_folder(self) -> Path:
        """A folder that a container's user may write to."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        folder.chmod(0o777)
        return folder

    def call(self, *arguments: str | Path) -> str:
        """Runs buildah; its standard output. Raises Failed with all it said where it fails."""
        command = ["buildah", *map(str, arguments)]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        if done.returncode:
            said = f"{done.stdout}\n{done.stderr}"
            raise Failed(f"buildah {arguments[0]} ended with {done.returncode}:\n{said}")
        return done.stdout.strip()

    def make_base(self) -> None:
        """A small Debian with Python, from which build() starts every image."""
        started = time.monotonic()
        container = self.call("from", "scratch")
        place = self.call("mount", container)
        include = "--include=python3,python3-venv,ca-certificates"
        fast = "--dpkgopt=force-unsafe-io"  # nobody keeps it
        # What nobody reads here would be written, summed and copied once more as the layer is committed.
        unread = 'rm -rf "$1"/usr/share/doc "$1"/usr/share/locale "$1"/usr/share/man'
        command = [
            "mmdebstrap", "--quiet", "--variant=apt", fast, include, f"--customize-hook={unread}", "bookworm",
            place,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"mmdebstrap ended with {done.returncode}:\n{done.stderr}")
        self.call("umount", container)
        self.call("config", "--env", f"PATH={_PATH}", container)
        self.call("commit", container, _BASE)
        self.call("rm", container)
        self.seconds["base"] = time.monotonic() - started

    def build(self, target: str, *options: str) -> str:
        """Builds a target of the Dockerfile; the image's name."""
        started = time.monotonic()
        name = f"localhost/gemmtune-{target}:test"
        self.call(
            "bud", "--pull-never", "--layers", "--format=docker", f"--file={DOCKERFILE}",
            f"--build-arg=PYTHON_IMAGE={_BASE}", f"--build-arg=ROCM_IMAGE={_BASE}",
            f"--target={target}", f"--tag={name}", *self._certificates(), *options, ROOT,
        )  # fmt: skip
        self.seconds[target] = time.monotonic() - started
        return name

    def _certificates(self) -> list[str]:
        """Where pip is told of certificates of this machine's own, the pip of the build sees them too."""
        asked = [sys.executable, "-m", "pip", "config", "get"]
        for key in (":env:.cert", "global.cert"):
            done = subprocess.run([*asked, key], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                config = self._folder / "pip.conf"
                config.write_text(f"[global]\ncert = {_BUNDLE}\n")
                return [f"--volume={config}:/etc/pip.conf:ro", f"--volume={done.stdout.strip()}:{_BUNDLE}:ro"]
        return []

    def config(self, image: str) -> dict[str, Any]:
        """What the image says of itself: user, entry point, labels."""
        found: dict[str, Any] = json.loads(self.call("inspect", "--type=image", image))["Docker"]["config"]
        return found

    def megabytes(self, image: str) -> float:
        """The size of an image with all its layers."""
        rows = json.loads(self.call("images", "--json"))
        (size,) = [row["size"] for row in rows if image in (row["names"] or [])]
        number, unit = size.split()
        return float(number) * {"KB": 1e-3, "MB": 1.0, "GB": 1e3}[unit]

    def container(self, image: str) -> Container:
        """A container of the image. Its volumes are plain folders, so that ours can be mounted there:
        buildah would lay a volume of its own over them."""
        name, config = self.call("from", "--pull-never", image), self.config(image)
        for place in config["Volumes"]:
            self.call("config", f"--volume={place}-", name)
        return Container(self, name, config)

    def close(self) -> None:
        """Takes everything away."""
        # Containers are unmounted; then the folder is all that is left. Removing images takes a minute.
        subprocess.run(["buildah", "rm", "--all"], env=self.env, capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)
