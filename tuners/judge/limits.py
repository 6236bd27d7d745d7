"""What a device process is denied that runs a user's code: memory without end, and output without end.

It is no sandbox: the code has the rights of the user who runs it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress

#: Bytes that a file written by the process may have, its output among them.
MOST_FILE_BYTES = 64 * 2**20
#: Share of the machine's free memory that the process may allocate.
MEMORY_SHARE = 0.8


def confine(log: int) -> None:
    """Sends standard output to the log as well, and limits files and memory. A GPU's driver reserves address
    space beyond all memory, which RLIMIT_DATA does not count."""
    sys.stdout.flush()
    os.dup2(log, 1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is an error, not the end
    _lower(resource.RLIMIT_FSIZE, MOST_FILE_BYTES)
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_AVPHYS_PAGES")
    _lower(resource.RLIMIT_DATA, int(MEMORY_SHARE * max(page * pages, _available())))


def _available() -> int:
    """Bytes that can be allocated without swapping, 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return 0


def _lower(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
