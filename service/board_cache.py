"""Answers of the leaderboard, kept while nothing that they are made of has changed.

An answer is a statement over all best rows of a class. Many pages ask the same, so each is made once, by the
request that comes first; others of its kind wait for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b

#: Bytes of answers that are kept; the least recently used leave.
MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class KeptAnswer:
    """An answer's JSON and its ETag; `stamp`: of the rows that it was made of."""

    stamp: Hashable
    body: bytes
    tag: str


class BoardCache:
    """Answers by question. For threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._answers: OrderedDict[Hashable, KeptAnswer] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, question: Hashable, stamp: Hashable, make: Callable[[], bytes]) -> KeptAnswer:
        """The kept answer, or a new one if there is none of this stamp."""
        found = self._known(question, stamp)
        if found is not None:
            return found
        with self._lock:
            making = self._making.setdefault(question, threading.Lock())
        try:
            with making:
                found = self._known(question, stamp)
                return self._keep(question, stamp, make()) if found is None else found
        finally:
            with self._lock:
                self._making.pop(question, None)

    def _known(self, question: Hashable, stamp: Hashable) -> KeptAnswer | None:
        with self._lock:
            found = self._answers.get(question)
            if found is None or found.stamp != stamp:
                return None
            self._answers.move_to_end(question)
            return found

    def _keep(self, question: Hashable, stamp: Hashable, body: bytes) -> KeptAnswer:
        made = KeptAnswer(stamp, body, f'W/"{blake2b(body, digest_size=12).hexdigest()}"')
        with self._lock:
            self._answers[question] = made
            self._answers.move_to_end(question)
            while self._answers and sum(len(one.body) for one in self._answers.values()) > self._most:
                self._answers.popitem(last=False)
        return made
