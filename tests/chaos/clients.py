"""The clients: they submit tunings until each is acknowledged, follow some, and look results up."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.remote import Remote, ServiceAway, ServiceError, ServiceRefused
from tests.chaos.plan import Submission

#: Answers that are no fault: the service cannot do it now, and says so.
_AWAY = (503,)
_PAUSE_SECONDS = 0.1
#: Every so many tunings is followed by its events.
FOLLOWED = 5


@dataclass(frozen=True)
class Acknowledgement:
    """What a client was told: the tuning's id, and whether its cancellation was acknowledged too."""

    tuning_id: str
    submission: Submission
    cancelled: bool = False


@dataclass
class Told:
    """What all clients were told: acknowledgements, events by tuning, answers by request and status, and what
    should not have been answered."""

    acknowledged: list[Acknowledgement] = field(default_factory=list)
    events: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Clients:
    """Clients in threads of their own. `may_submit` says whether more than so many jobs may be asked for by
    now, so that tunings are submitted all the time, not all at once."""

    def __init__(
        self,
        servers: Sequence[str],
        planned: Sequence[Submission],
        seed: int,
        may_submit: Callable[[int], bool],
    ) -> None:
        self.told = Told()
        self.jobs = 0
        self._servers, self._planned, self._may_submit = servers, planned, may_submit
        self._stop = threading.Event()
        self._choose = random.Random(seed)
        self._submitter = threading.Thread(target=self._guard, args=(self._submit,), daemon=True)
        self._reader = threading.Thread(target=self._guard, args=(self._look_up,), daemon=True)
        self._followers: list[threading.Thread] = []

    def start(self) -> None:
        """Starts all."""
        self._submitter.start()
        self._reader.start()

    @property
    def submitted(self) -> bool:
        """Whether every tuning has been acknowledged, or a client has failed."""
        return not self._submitter.is_alive()

    def close(self, seconds: float) -> None:
        """Waits for the followers, whose tunings must have ended, then ends the rest."""
        deadline = time.monotonic() + seconds
        for thread in self._followers:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.told.wrong.append(f"{thread.name} has ended, but its stream of events has not")
        self._stop.set()
        self._reader.join(20)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.told.wrong.append(f"a client fails: {type(error).__name__}: {error}")

    # ---- submitting ------------------------------------------------------------------------------

    def _submit(self) -> None:
        with httpx.Client(timeout=30) as client:
            for number, one in enumerate(self._planned):
                while not self._may_submit(self.jobs) and not self._stop.wait(_PAUSE_SECONDS):
                    pass
                name = self._until(client, "POST", "/v1/tunings", 202, one.body)
                if name is None:
                    return
                self.jobs += len(one.problems)
                tuning_id = str(name["id"])
                cancelled = one.cancelled
                if cancelled:
                    cancelled = self._until(client, "DELETE", f"/v1/tunings/{tuning_id}", 200) is not None
                self.told.acknowledged.append(Acknowledgement(tuning_id, one, cancelled))
                if number % FOLLOWED == 0:
                    thread = threading.Thread(
                        target=self._guard, args=(lambda name=tuning_id: self._follow(name),), daemon=True,
                        name=tuning_id,
                    )  # fmt: skip
                    thread.start()
                    self._followers.append(thread)

    def _until(
        self, client: httpx.Client, method: str, path: str, wanted: int, body: Any = None
    ) -> Mapping[str, Any] | None:
        """Asks one server or the other until it is answered as wanted: a request without an answer is not
        acknowledged. None for an answer that says something else, or once stopped."""
        while not self._stop.is_set():
            server = self._choose.choice(self._servers)
            try:
                answer = client.request(method, server + path, json=body)
            except httpx.TransportError:
                self.told.answers[f"{method} none"] += 1
                time.sleep(_PAUSE_SECONDS)
                continue
            self.told.answers[f"{method} {answer.status_code}"] += 1
            if answer.status_code == wanted:
                found: Mapping[str, Any] = answer.json()
                return found
            if answer.status_code not in _AWAY:
                self.told.wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
                return None
            time.sleep(_PAUSE_SECONDS)
        return None

    # ---- following and looking up ----------------------------------------------------------------

    def _follow(self, tuning_id: str) -> None:
        """Every event of a tuning, each once, whatever happens to the servers. Where one is away for longer
        than the command line would wait, the other is asked, from the start."""
        choose = random.Random(tuning_id)
        while not self._stop.is_set():
            try:
                with Remote(choose.choice(self._servers)) as remote:
                    self.told.events[tuning_id] = list(remote.events(tuning_id))
                    return
            except ServiceAway:
                continue

    def _look_up(self) -> None:
        choose = random.Random(0)
        with httpx.Client(timeout=30) as client:
            while not self._stop.wait(0.05):
                one = choose.choice(self._planned)
                asked = {**choose.choice(one.problems), "device": one.vendor}
                with suppress(httpx.TransportError):
                    url = f"{choose.choice(self._servers)}/v1/solutions/best"
                    answer = client.get(url, params=asked)
                    self.told.answers[f"GET {answer.status_code}"] += 1
                    if answer.status_code not in (200, *_AWAY):
                        self.told.wrong.append(f"GET {answer.url}: {answer.status_code} {answer.text[:500]}")


def ended(servers: Sequence[str], tuning_id: str) -> bool | None:
    """Whether a tuning has ended, as a server says; None where none can say. Raises ServiceRefused for one
    that is unknown."""
    for server in servers:
        try:
            with Remote(server) as remote:
                status = remote.get(f"/v1/tunings/{tuning_id}")["status"]
                return status not in ("queued", "running")
        except ServiceRefused:
            raise
        except ServiceError:
            continue
    return None
