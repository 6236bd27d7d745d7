"""What a fleet runs on: programs that are started again when they end, limits of processes, small disks."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.chaos.program import GROUP, PROCESSES

ROOT = Path(__file__).parent.parent.parent
_AGAIN_SECONDS, _LONGEST_WAIT, _LIVED_SECONDS = 0.5, 4.0, 5.0
_PIDS_V1, _CGROUP = Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")
_FILLING = bytes(1 << 20)
#: When a program that was asked to end is due again.
_NEVER = float("inf")


class Unavailable(Exception):
    """This machine does not allow a kind of fault, for the reason given."""


class Program:
    """A command of gemmtune's on the fleet's devices; tend() starts it again after it has ended, as a service
    manager does, later and later if it ends soon."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: Mapping[str, str],
        folder: Path,
        limit: Limit | None,
    ) -> None:
        self.name, self.limit, self.starts = name, limit, 0
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, "-m", "tests.chaos.program", *arguments]
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._begun, self._wait, self._due = 0.0, _AGAIN_SECONDS, 0.0
        #: Exit codes of the processes that have ended, in order.
        self.ended: list[int] = []

    @property
    def pid(self) -> int | None:
        """The running process's id."""
        return None if self._process is None else self._process.pid

    def tend(self) -> None:
        """Starts it if it does not run and its time has come."""
        now = time.monotonic()
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            self.ended.append(code)
            lived = now - self._begun > _LIVED_SECONDS
            self._wait = _AGAIN_SECONDS if lived else min(2 * self._wait, _LONGEST_WAIT)
            self._due = now + self._wait
        if self._process is None and now >= self._due:
            variables = {} if self.limit is None else self.limit.variables()
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, env={**self._environment, **variables}, cwd=ROOT,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            self._begun = now
            self.starts += 1
            if self.limit is not None:
                self.limit.pid = self._process.pid

    def signal(self, number: signal.Signals) -> bool:
        """Sends it a signal; False if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.send_signal(number)
        return True

    def ask_to_end(self) -> None:
        """As a service manager does: once."""
        if self._process is not None and self._due != _NEVER:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        self._due = _NEVER

    def end(self, seconds: float) -> int | None:
        """Asks it to end: its exit code, or None if it had to be killed or did not run."""
        self.ask_to_end()
        if self._process is None:
            return None
        process, self._process = self._process, None
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

    def tail(self, size: int = 4000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""


class Limit:
    """How many processes and threads a worker may have, which is set while it runs. Made by limits()."""

    pid: int | None = None

    def variables(self) -> Mapping[str, str]:
        """What tests.chaos.program is told."""
        raise NotImplementedError

    def close(self) -> None:
        """Takes it back for good."""

    def set(self, tasks: int) -> None:
        """It may have so many tasks (processes and threads); those that it has stay."""
        raise NotImplementedError

    def lift(self) -> None:
        """As before."""
        raise NotImplementedError


class GroupLimit(Limit):
    """By a control group of its own, which binds root too."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._most = folder / "pids.max"
        self._most.read_text()

    def variables(self) -> Mapping[str, str]:
        return {GROUP: str(self._folder / "cgroup.procs")}

    def set(self, tasks: int) -> None:
        self._most.write_text(str(tasks))

    def lift(self) -> None:
        self._most.write_text("max")

    def close(self) -> None:
        self.lift()
        for _ in range(100):  # until the last process of the group is reaped
            try:
                self._folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                for word in (self._folder / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(word), signal.SIGKILL)
                time.sleep(0.05)


class UserLimit(Limit):
    """By RLIMIT_NPROC, which counts all tasks of a user: with 1 the worker can start none. It does not bind
    root."""

    def __init__(self) -> None:
        self._limited = False

    def variables(self) -> Mapping[str, str]:
        return {PROCESSES: "1"} if self._limited else {}

    def set(self, tasks: int) -> None:
        self._limited = True
        self._put(1)

    def lift(self) -> None:
        self._limited = False
        self._put(resource.getrlimit(resource.RLIMIT_NPROC)[0])

    def _put(self, soft: int) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(self.pid, resource.RLIMIT_NPROC)
                resource.prlimit(self.pid, resource.RLIMIT_NPROC, (soft, hard))


def limit_of(name: str) -> Limit:
    """A limit for one worker. Raises Unavailable."""
    if os.geteuid() != 0:
        return UserLimit()
    own = f"gemmtune-chaos-{os.getpid()}-{name}"
    try:
        controllers = _CGROUP / "cgroup.subtree_control"
        if controllers.exists():
            if "pids" not in controllers.read_text().split():
                raise Unavailable("the control groups of this machine do not limit processes (pids)")
            return GroupLimit(_CGROUP / own)
        return GroupLimit(_PIDS_V1 / own)
    except OSError as error:
        raise Unavailable(
            f"no control group can be made here ({error}), and RLIMIT_NPROC does not bind root"
        ) from error


class Disk:
    """A small file system in memory. Raises Unavailable where none can be mounted."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "none", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"no file system can be mounted here: {done.stderr.strip()}")
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leaves no room."""
        with self._ballast.open("wb", buffering=0) as file:
            with suppress(OSError):
                while file.write(_FILLING):
                    pass
            with suppress(OSError):
                while file.write(b"0"):
                    pass

    def free(self) -> None:
        """As before."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts it, with all that is on it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False, capture_output=True)
