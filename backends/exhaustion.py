"""Tells a machine that gives this process no more processes, threads or memory from a problem that fails.

A limit of the machine (a control group's pids, TasksMax, RLIMIT_NPROC, memory) makes whatever runs next fail.
That says nothing about a problem or a candidate.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import BrokenExecutor
from pathlib import Path

from backends.errors import DeviceMemoryExceeded, GemmtuneError, ResourcesExhausted

#: What libraries and compilers print if a thread or a process cannot be started (EAGAIN).
_PHRASES = ("resource temporarily unavailable", "can't start new thread", "cannot fork")
_GROUP = Path("/sys/fs/cgroup")


def says_exhausted(text: str) -> bool:
    """Whether a program's output says that it could start no thread or process."""
    lowered = text.lower()
    return any(phrase in lowered for phrase in _PHRASES)


def is_exhausted(error: BaseException) -> bool:
    """Whether an exception comes from the process's own limits: an error of the operating system, of its
    memory or of a pool of processes or threads. Errors raised by gemmtune on purpose say what they are."""
    if isinstance(error, ResourcesExhausted):
        return True
    if isinstance(error, DeviceMemoryExceeded | GemmtuneError):
        return False
    if isinstance(error, OSError | MemoryError | BrokenExecutor):
        return True
    return isinstance(error, RuntimeError) and says_exhausted(str(error))


def check_resources() -> None:
    """Starts as many threads as a tuning may need at a time, and a process, and ends them again. Raises
    ResourcesExhausted, which names the limits."""
    go = threading.Event()
    threads = [threading.Thread(target=go.wait, daemon=True) for _ in range(2 * (os.cpu_count() or 1) + 4)]
    begun = []
    try:
        for thread in threads:
            thread.start()
            begun.append(thread)
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True, timeout=60)
    except (OSError, MemoryError, RuntimeError, subprocess.SubprocessError) as error:
        raise exhausted(error) from error
    finally:
        go.set()
        for thread in begun:
            thread.join()


def exhausted(reason: object) -> ResourcesExhausted:
    """The error for a reason; it names the limits of this process."""
    text = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
    return ResourcesExhausted(
        f"this process gets no more processes, threads or memory ({text}); limits: {', '.join(_limits())}; "
        "raise the limit (docker --pids-limit, systemd TasksMax, MemoryMax, ulimit -u) or stop what uses it"
    )


def _limits() -> list[str]:
    found = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    found.append(f"ulimit -u {'unlimited' if soft == resource.RLIM_INFINITY else soft}")
    for name in ("pids.max", "memory.max"):
        for path in (_own_group() / name, _GROUP / name):
            try:
                found.append(f"{name} {path.read_text().strip()}")
                break
            except OSError:  # another version of control groups, or none
                continue
    return found


def _own_group() -> Path:
    """The folder of this process's control group (version 2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return _GROUP
    names = [line[3:] for line in lines if line.startswith("0::")]
    return _GROUP / names[0].lstrip("/") if names else _GROUP
