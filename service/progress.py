"""A campaign's progress on the terminal: one bar, redrawn rarely so as not to disturb measurements."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from backends.outcome import Status
from service.report import problem_text
from tuners.campaign import Event, Finished, Measured, Skipped, Started

#: Redrawing takes a core for a moment, and on a CPU that core is being measured.
_REDRAWS_PER_SECOND = 2


class Remaining:
    """Estimates how long a tuning still takes from the problems that it has measured so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begin = clock, clock()
        self._measured = 0

    def measured(self) -> None:
        """Counts a problem that was measured; what was known takes no time."""
        self._measured += 1

    def text(self, left: int) -> str:
        """ ", about 4 min left" for `left` more problems; nothing before the first or after the last."""
        if not self._measured or left <= 0:
            return ""
        return f", about {duration_text((self._clock() - self._begin) / self._measured * left)} left"


def duration_text(seconds: float) -> str:
    """Seconds, minutes or hours, rounded to what an estimate is worth."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


class CampaignProgress:
    """Shows events on `console`: a bar on a terminal, else one line per problem; nothing if `silent`."""

    def __init__(self, console: Console, total: int, silent: bool) -> None:
        self._console, self._total, self._silent = console, total, silent
        self._bar = Progress(
            TextColumn("[bold]tuning"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=silent or not console.is_terminal,
            transient=True,
            refresh_per_second=_REDRAWS_PER_SECOND,
        )
        self._task = self._bar.add_task("compiling", total=total)
        self._seen = self._right = 0
        self._name = ""
        self._remaining = Remaining()

    def __enter__(self) -> CampaignProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def follow(self, event: Event) -> None:
        """Shows an event."""
        if isinstance(event, Started):
            self._seen = self._right = 0
            self._name = problem_text(event.problem)
        elif isinstance(event, Measured):
            self._seen += 1
            self._right += event.outcome.status in (Status.OK, Status.PRUNED)
        elif isinstance(event, Finished | Skipped):
            self._bar.advance(self._task)
            if isinstance(event, Finished) and not event.replayed:
                self._remaining.measured()
            if isinstance(event, Finished) and not (self._silent or self._console.is_terminal):
                self._console.print(self._line(event), markup=False, highlight=False)
        self._bar.update(self._task, description=f"{self._name}: {self._right}/{self._seen} right")

    def _line(self, event: Finished) -> str:
        verdict, name = event.result.verdict, problem_text(event.result.problem)
        seconds = event.result.counts.get("total_seconds", 0.0)
        said = "no verdict" if verdict is None else f"{verdict.judgement} {verdict.speedup.mid:.2f}x"
        left = self._remaining.text(self._total - event.index - 1)
        return f"[{event.index + 1}/{self._total}] {name}: {said} ({seconds:.1f} s{left})"
