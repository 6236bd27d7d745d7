"""What a worker does between two jobs: times a default that other devices of its class have timed, compares
the devices, and keeps the cache of kernels within its limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy import Engine

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import DeviceLost, ResourcesExhausted
from backends.exhaustion import exhausted, is_exhausted
from backends.problem import GemmProblem
from db import outliers
from db.engine import DatabaseUnavailable, reading, writing
from db.outliers import Shape, Times
from service.outliers import compare_later
from service.settings import Settings
from tuners.budget import Budget
from tuners.device_agreement import RECENT_SHAPES
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy
from tuners.recorded_session import RecordedSession
from tuners.session_store import MemoryStore
from tuners.tuning_settings import TuningSettings

_log = logging.getLogger(__name__)

PRUNE_SECONDS = 600.0
#: A default is timed in a final beside one candidate, as in every session, for so many seconds.
CHECK_BUDGET = Budget(1.0, candidates=1)
#: Jobs between two checks: while the device shares too few shapes with others, one; then so many, and fewer
#: while the device is set apart, which may agree again.
_OFTEN, _SELDOM = 8, 64


class BetweenJobs:
    """For the thread that runs the jobs of one worker."""

    def __init__(
        self, settings: Settings, engine: Engine, environment: Environment, cache: BinaryCache
    ) -> None:
        self._settings, self._engine, self._environment, self._cache = settings, engine, environment, cache
        self._pruned = float("-inf")
        self._jobs = 0

    def check(self, runner: DeviceClient, hold: Callable[[RecordedSession], None]) -> None:
        """Times the default of one problem that another device of the class measured, if a check is due.
        `hold` is given the session, so that it can be stopped. Raises DeviceLost, ResourcesExhausted."""
        self._jobs += 1
        if not self._settings.device_checks:
            return
        try:
            shape = self._due()
            if shape is not None:
                self._jobs = 0
                self._time(runner, shape, hold)
        except (DeviceLost, ResourcesExhausted):
            raise
        except DatabaseUnavailable as error:
            _log.warning("the device is checked after the next job: %s", error)
        except Exception as error:  # a fault of ours must not end the worker
            if is_exhausted(error):
                raise exhausted(error) from error
            _log.exception("the device is not checked")

    def _due(self) -> Shape | None:
        environment = self._environment
        with reading(self._engine) as connection:
            times = outliers.default_times(connection, environment)
            if not times:
                return None
            rows = outliers.rows(connection, str(environment.device_class))
            apart = any(row["differs"] for row in rows if row["uuid"] == environment.uuid)
            few = _shared(times, environment.uuid) < RECENT_SHAPES
            if not few and self._jobs < (_OFTEN if apart else _SELDOM):
                return None
            return outliers.next_shape(connection, environment, times)

    def _time(self, runner: DeviceClient, shape: Shape, hold: Callable[[RecordedSession], None]) -> None:
        asked = TuningSettings(MeasurementPolicy.from_dict(shape.policy), CHECK_BUDGET)
        session = RecordedSession(runner, GemmProblem.from_dict(shape.problem), asked, MemoryStore())
        hold(session)
        if not session.stopped:
            for _ in session.run(session.open()):
                pass
        result = session.result
        if result is None:  # stopped
            return
        verdict = result.verdict
        baseline, seconds = ("", None) if verdict is None else (verdict.baseline, verdict.baseline_seconds)
        with writing(self._engine) as connection:
            outliers.put_check(connection, self._environment.id, shape, baseline, seconds)
        _log.info("the default of %s is timed to compare devices: %s s", shape.problem_id, seconds)

    def tidy(self) -> None:
        """Compares the devices of the class, and removes kernels from the cache once in PRUNE_SECONDS."""
        compare_later(self._engine, self._environment)
        if time.monotonic() - self._pruned >= PRUNE_SECONDS:
            self._pruned = time.monotonic()
            removed = self._cache.prune(self._settings.kernel_cache_bytes)
            if removed:
                _log.info("%d bytes of compiled kernels that were not used for longest are removed", removed)


def _shared(times: Times, uuid: str) -> int:
    """How many shapes the device shares with others."""
    return sum(uuid in shape and len(shape) > 1 for shape in times.values())
