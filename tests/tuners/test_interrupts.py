"""Blocks that Ctrl-C waits for, and where the pool of a device needs them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.registry import FoundDevice
from tuners import device_pool
from tuners.device_pool import DevicePool
from tuners.interrupts import uninterrupted


@pytest.fixture(autouse=True)
def pythons_own_handler() -> Iterator[None]:
    """Whatever started the tests may ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_a_block_that_must_not_be_left_half_done() -> None:
    done = []

    def half() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest of the block")

    with pytest.raises(KeyboardInterrupt):
        half()
    assert done == ["the rest of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_has_no_signals_to_delay() -> None:
    handlers: list[Any] = []

    def block() -> None:
        with uninterrupted():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_a_call_is_queued_as_a_whole(
    planted: FoundDevice, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception between the release of a waiting thread and the end of the queue's notification makes the
    next notification wake nobody."""
    queued = []

    class Pool:
        def __init__(self, **_: object) -> None:
            pass

        def schedule(self, *_: object, **__: object) -> None:
            signal.raise_signal(signal.SIGINT)
            queued.append("whole")

        def stop(self) -> None:
            pass

        def join(self) -> None:
            pass

    monkeypatch.setattr(device_pool, "ProcessPool", Pool)
    pool = DevicePool(planted, cache, 1.0)
    with pytest.raises(KeyboardInterrupt):
        pool.start()
    assert queued == ["whole"]
    pool.close()
