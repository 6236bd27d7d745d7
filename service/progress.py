"""A campaign's progress on the terminal: one bar, redrawn rarely so as not to disturb measurements."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from backends.outcome import Status
from service.report import problem_text
from tuners.campaign import Event, Finished, Measured, Skipped, Started

#: Redrawing takes a core for a moment, and on a CPU that core is being measured.
_REDRAWS_PER_SECOND = 2


class CampaignProgress:
    """Shows events on `console`: a bar on a terminal, else one line per problem; nothing if `silent`."""

    def __init__(self, console: Console, total: int, silent: bool) -> None:
        self._console, self._total, self._silent = console, total, silent
        self._bar = Progress(
            TextColumn("[bold]tuning"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=silent or not console.is_terminal,
            transient=True,
            refresh_per_second=_REDRAWS_PER_SECOND,
        )
        self._task = self._bar.add_task("compiling", total=total)
        self._seen = self._right = 0
        self._name = ""

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
            if isinstance(event, Finished) and not (self._silent or self._console.is_terminal):
                self._console.print(self._line(event), markup=False, highlight=False)
        self._bar.update(self._task, description=f"{self._name}: {self._right}/{self._seen} right")

    def _line(self, event: Finished) -> str:
        verdict, name = event.result.verdict, problem_text(event.result.problem)
        seconds = event.result.counts.get("total_seconds", 0.0)
        said = "no verdict" if verdict is None else f"{verdict.judgement} {verdict.speedup.mid:.2f}x"
        return f"[{event.index + 1}/{self._total}] {name}: {said} ({seconds:.1f} s)"
