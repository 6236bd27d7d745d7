"""Blocks that Ctrl-C waits for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C until the block has ended: what is half done would be left behind, or left locked.
    Without effect in a thread other than the main one, which gets no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: pending.append(number))
    try:
        yield
    finally:
        # None: a handler that is not Python's, which Python cannot install again.
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)
        if pending:
            signal.raise_signal(signal.SIGINT)
