"""Processor priorities below other programs'."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

#: By how much niceness rises: work of this niceness gets a fortieth of a processor that another program uses.
#: Eight workers at 10 kept a server on two processors at half of its lookups.
NICENESS = 17
_MOST = 19


def be_nice() -> None:
    """Lowers the priority of the calling thread by one step. On Linux the threads and processes that it
    starts from then on inherit it; elsewhere nothing happens."""
    with suppress(OSError):
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, min(_MOST, niceness))
