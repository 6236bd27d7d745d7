"""A session whose outcomes and result are stored as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from backends.errors import DeviceLost, GemmtuneError, StorageError
from backends.export_targets import ExportTarget
from backends.outcome import Outcome
from backends.problem import GemmProblem
from tuners.ceilings import CeilingsOf
from tuners.device_client import DeviceClient
from tuners.measure import Rotation
from tuners.prior import known_of
from tuners.roofline import Bound, bound
from tuners.session import Session
from tuners.session_store import Result, SessionSpec, SessionStore, StoredSession
from tuners.tuning_settings import TuningSettings


class RecordedSession:
    """Tunes one problem on a device and keeps the session in `store`. `ceilings` gives the roofline for the
    result's share; without it the result has none. `targets`: as Session takes them.

    Call open(), then iterate run(). `result` is set when the session has ended with a verdict or with an
    error of its problem, but not if stop() ended it.
    """

    def __init__(
        self,
        runner: DeviceClient,
        problem: GemmProblem,
        settings: TuningSettings,
        store: SessionStore,
        ceilings: CeilingsOf | None = None,
        targets: Sequence[ExportTarget] | None = None,
        portfolio: Path | None = None,
    ) -> None:
        self._targets, self._portfolio = targets, portfolio
        self._runner, self._store, self._ceilings = runner, store, ceilings
        self._spec = SessionSpec(problem, runner.environment, settings)
        self._session: Session | None = None
        self._stopped = False
        self.result: Result | None = None

    def stop(self) -> None:
        """Ends the session after the outcomes that are known by then; safe from any thread or signal
        handler."""
        self._stopped = True
        if self._session is not None:
            self._session.stop()

    @property
    def stopped(self) -> bool:
        """Whether stop() was called."""
        return self._stopped

    @property
    def measuring(self) -> bool:
        """Whether the problem's candidates are listed and its operands laid out."""
        return self._session is not None and self._session.rotation is not None

    def open(self) -> StoredSession:
        """Starts or resumes the session in its store. Raises StorageError."""
        return self._store.start(self._spec)

    def run(self, stored: StoredSession) -> Iterator[Outcome]:
        """Yields every outcome, replayed ones first. An error of the problem becomes the result's error.
        StorageError and DeviceLost propagate, because nothing more could be stored or measured."""
        begin, compiled = time.monotonic(), self._runner.compile_seconds
        bound_seconds, notes = self._bound_seconds()
        problem = self._spec.problem
        prior, of_prior = known_of(problem, self._runner, stored.history, self._portfolio)
        session = Session(
            self._runner, problem, self._spec.settings, stored.outcomes, stored.warm_start,
            targets=self._targets, bound_seconds=bound_seconds, winners=stored.winners,
            prior=prior, incumbent=stored.incumbent,
        )  # fmt: skip
        session.notes += [*notes, *of_prior]
        self._session, error = session, None
        if self._stopped:
            session.stop()
        try:
            for number, outcome in enumerate(session.run()):
                if number >= session.counts.replayed:
                    self._store.add(outcome)
                yield outcome
        except StorageError:
            raise
        except DeviceLost:
            self._store.flush()
            raise
        except GemmtuneError as failure:
            error = str(failure)
        if session.stopped:
            self._store.flush()
            return
        compiling = self._runner.compile_seconds - compiled
        result = self._result_of(session, error, time.monotonic() - begin, compiling)
        self._store.finish(result)
        self.result = result

    def _bound_seconds(self) -> tuple[float | None, list[str]]:
        """The roofline's least seconds, if the search is to stop at a share of it, and notes."""
        if self._spec.settings.budget.stop_at_roofline is None:
            return None, []
        if self._ceilings is None:
            return None, ["no roofline was measured: the search does not stop at one"]
        try:
            return self._limit(self._ceilings).seconds, []
        except DeviceLost:
            raise
        except (GemmtuneError, KeyError) as failure:
            return None, [f"no roofline: {failure}; the search does not stop at one"]

    def _limit(self, ceilings: CeilingsOf, beaten: bool = False) -> Bound:
        """The problem's bound. Raises GemmtuneError or KeyError."""
        problem = self._spec.problem
        return bound(problem, ceilings([problem.multiplied_as], beaten))

    def _result_of(self, session: Session, error: str | None, seconds: float, compiling: float) -> Result:
        counts = {**vars(session.counts), "compiling_seconds": compiling, "total_seconds": seconds}
        rotation = session.rotation
        if rotation is not None:
            counts |= {"operand_sets": rotation.sets, "rotation_bytes": rotation.bytes}
        share = binds = None
        if session.verdict is not None and self._ceilings is not None:
            share, binds, notes = self._share(self._ceilings, session.verdict.seconds, rotation)
            session.notes += notes
        return Result(session.problem, session.verdict, error, share, binds, counts, tuple(session.notes))

    def _share(
        self, ceilings: CeilingsOf, seconds: float, rotation: Rotation | None
    ) -> tuple[float | None, str | None, list[str]]:
        """The share of the roofline that a time reaches, what binds, and notes. A share over 1 is an error of
        the ceilings, not a figure: they are measured again, and the notes say so. A share that is over 1 even
        then is left out, with its reason. Operands that stay in a cache may be faster than memory allows."""
        try:
            limit = self._limit(ceilings)
            if limit.share(seconds) <= 1:
                return limit.share(seconds), limit.binds, []
            cached = rotation is None or not rotation.cold or self._spec.settings.policy.cache == "warm"
            if limit.binds == "memory" and cached:
                return None, None, [
                    "no roofline: the operands stay in the cache, for which no ceiling is measured"
                ]  # fmt: skip
            before, limit = limit.share(seconds), self._limit(ceilings, beaten=True)
        except (GemmtuneError, KeyError) as failure:  # the verdict stands without a roofline
            return None, None, [f"no roofline: {failure}"]
        beaten = f"at {before:.1%} of the roofline its ceilings were measured again"
        if limit.share(seconds) <= 1:
            return limit.share(seconds), limit.binds, [beaten]
        return None, None, [f"no roofline: {beaten} and beaten again, by {limit.share(seconds) - 1:.1%}"]
