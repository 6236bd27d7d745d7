"""Kept answers: one making at a time, none after a change, and no more bytes than allowed."""

from __future__ import annotations

import threading
import time

from service.board_cache import BoardCache


def test_an_answer_is_made_once_for_a_stamp() -> None:
    cache, made = BoardCache(), []

    def make() -> bytes:
        made.append(1)
        return b"%d" % len(made)

    first = cache.get("q", 1, make)
    assert cache.get("q", 1, make) is first
    second = cache.get("q", 2, make)
    assert (first.body, second.body, len(made)) == (b"1", b"2", 2)
    assert first.tag != second.tag


def test_those_that_ask_meanwhile_wait_for_it() -> None:
    cache, made, found = BoardCache(), [], []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.05)
        return b"x"

    threads = [threading.Thread(target=lambda: found.append(cache.get("q", 1, make).body)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), found) == (1, [b"x"] * 8)


def test_a_failure_is_not_kept() -> None:
    cache = BoardCache()

    def fail() -> bytes:
        raise ValueError

    for _ in range(2):
        try:
            cache.get("q", 1, fail)
        except ValueError:
            continue
        raise AssertionError("it must be raised")
    assert cache.get("q", 1, lambda: b"good").body == b"good"


def test_what_was_not_used_for_longest_leaves() -> None:
    cache = BoardCache(most_bytes=25)
    a = cache.get("a", 1, lambda: b"a" * 10)
    cache.get("b", 1, lambda: b"b" * 10)
    assert cache.get("a", 1, lambda: b"") is a
    cache.get("c", 1, lambda: b"c" * 10)
    assert cache.get("a", 1, lambda: b"") is a
    assert cache.get("b", 1, lambda: b"new").body == b"new"
    assert cache.get("d", 1, lambda: b"d" * 100).body == b"d" * 100
    assert cache.get("d", 1, lambda: b"e").body == b"e"
