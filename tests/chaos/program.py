"""The program `gemmtune` on the fleet's devices: python -m tests.chaos.program worker --device UUID"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from pathlib import Path

from service.cli import main
from tests.chaos import fleet

#: A control group's list of processes that this one joins; how many processes its user may have.
GROUP, PROCESSES = "GEMMTUNE_CHAOS_GROUP", "GEMMTUNE_CHAOS_PROCESSES"
_PR_SET_PDEATHSIG = 1


def enter() -> None:
    """Ends with its parent, however that ends, and lives under the limits that the environment names."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    group, processes = os.environ.get(GROUP), os.environ.get(PROCESSES)
    if group:
        Path(group).write_text(str(os.getpid()))
    if processes:
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (int(processes), most))


if __name__ == "__main__":
    enter()
    fleet.install()
    main()
