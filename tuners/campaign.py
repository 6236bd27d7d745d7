"""Tunes many problems on one device: one stored session after another; a failure affects only its problem."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backends.errors import InvalidProblem, UnsupportedProblem
from backends.outcome import Outcome
from backends.problem import GemmProblem
from backends.protocol import Backend
from tuners.budget import Budget
from tuners.campaign_shares import REASONS, CampaignShares
from tuners.ceilings import CeilingsOf
from tuners.device_client import DeviceClient
from tuners.recorded_session import RecordedSession
from tuners.session_store import MemoryStore, Result, SessionStore
from tuners.strategies import STRATEGIES
from tuners.tuning_settings import TuningSettings


@dataclass(frozen=True)
class CampaignLimits:
    """The caller's limits on a campaign: its total wall-clock seconds, and the FLOPs of a problem; None: no
    limit. Raises InvalidProblem for a limit that is not above 0."""

    total_seconds: float | None = None
    max_flops: float | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit > 0:
                raise InvalidProblem(f"{name} must be above 0, not {limit}", name)

    def exceeded(self, problem: GemmProblem, spent: float, budget: Budget) -> str | None:
        """The limit that excludes the problem after `spent` seconds, or None."""
        if self.max_flops is not None and problem.flops > self.max_flops:
            return f"over the limit of {self.max_flops / 1e9:g} GFLOP"
        if self.total_seconds is not None and spent + budget.seconds > self.total_seconds:
            return f"no room left in the total budget of {self.total_seconds:g} s"
        return None


@dataclass(frozen=True)
class Started:
    """A problem's session starts."""

    index: int
    problem: GemmProblem


@dataclass(frozen=True)
class Measured:
    """An outcome of the current problem."""

    index: int
    outcome: Outcome


@dataclass(frozen=True)
class Finished:
    """A problem has a result; `replayed`: the store already had it."""

    index: int
    result: Result
    replayed: bool = False


@dataclass(frozen=True)
class Skipped:
    """A problem that the caller's limits or a campaign's shares exclude; `reason` says which."""

    index: int
    problem: GemmProblem
    reason: str


Event = Started | Measured | Finished | Skipped


class Campaign:
    """Iterate run() for events. stop() ends the campaign after the next outcome, which is still stored.
    `shares`: seconds of measuring each problem, in place of the budget's. The largest expected savings come
    first, and problems without a share are skipped. `portfolio`: a file in place of the shipped one."""

    def __init__(
        self,
        runner: DeviceClient,
        problems: Sequence[GemmProblem],
        settings: TuningSettings,
        store: SessionStore | None = None,
        ceilings: CeilingsOf | None = None,
        limits: CampaignLimits | None = None,
        shares: CampaignShares | None = None,
        portfolio: Path | None = None,
    ) -> None:
        check_known(settings, runner.backend)
        self._portfolio = portfolio
        self.runner, self.problems, self.settings = runner, list(problems), settings
        self._limits, self._shares = limits or CampaignLimits(), shares
        self._store: SessionStore = store or MemoryStore()
        self._ceilings = ceilings
        self._session: RecordedSession | None = None
        self._stopped = False

    def stop(self) -> None:
        """Requests the end of the campaign."""
        self._stopped = True
        if self._session is not None:
            self._session.stop()

    @property
    def stopped(self) -> bool:
        """Whether stop() was called."""
        return self._stopped

    def settings_of(self, problem: GemmProblem) -> TuningSettings:
        """The settings of a problem, with its share of the campaign as its budget."""
        seconds = None if self._shares is None else self._shares.seconds.get(problem.id)
        if seconds is None:
            return self.settings
        return replace(self.settings, budget=replace(self.settings.budget, seconds=seconds))

    def _ordered(self) -> list[tuple[int, GemmProblem]]:
        places = {} if self._shares is None else {name: i for i, name in enumerate(self._shares.seconds)}
        return sorted(enumerate(self.problems), key=lambda item: places.get(item[1].id, len(places)))

    def run(self) -> Iterator[Event]:
        """Yields the events of every problem in order, or in that of the shares. A problem that cannot run
        ends with a Finished whose result holds the error. StorageError and DeviceLost propagate: the
        interrupted problem has no result, and the next run resumes from its outcomes."""
        begin = time.monotonic()
        order = self._ordered()
        for place, (index, problem) in enumerate(order):
            if self._stopped:
                return
            settings = self.settings_of(problem)
            reason = self._limits.exceeded(problem, time.monotonic() - begin, settings.budget)
            if self._shares is not None and problem.id in self._shares.left_out:
                reason = REASONS[self._shares.left_out[problem.id]]
            if reason is not None:
                yield Skipped(index, problem, reason)
                continue
            session = RecordedSession(
                self.runner, problem, settings, self._store, self._ceilings, portfolio=self._portfolio
            )
            stored = session.open()
            if stored.result is not None:
                yield Finished(index, stored.result, replayed=True)
                continue
            yield Started(index, problem)
            self._session = session
            ahead = order[place + 1 : place + 2]
            for outcome in session.run(stored):
                for _, other in ahead:  # this problem's candidates are listed by now
                    self.runner.list_ahead(other, settings.policy, settings.search.families)
                ahead = []
                yield Measured(index, outcome)
                if self._stopped:
                    session.stop()
            if session.result is not None:
                yield Finished(index, session.result)


def check_known(settings: TuningSettings, backend: Backend) -> None:
    """Raises UnsupportedProblem for a strategy, mode or family that this backend does not have,
    InvalidProblem for an option that the strategy does not have."""
    for what, names, known in (
        ("strategy", [settings.search.strategy], tuple(STRATEGIES)),
        ("mode", [settings.policy.mode], backend.traits.modes),
        ("family", settings.search.families or (), tuple(backend.families())),
    ):
        for name in names:
            if name not in known:
                raise UnsupportedProblem(f"{what} {name!r} is unknown here; known: {', '.join(known)}")
    STRATEGIES[settings.search.strategy].options.of(settings.search.options)
