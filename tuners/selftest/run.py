"""Runs the parts of a self-test, one after another. A part that fails does not stop the others."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from backends.errors import DeviceError, GemmtuneError
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.report import Report, Section

#: Default budget in seconds.
SECONDS = 600.0


class Part(Protocol):
    """One part of the self-test: fills one section."""

    @property
    def name(self) -> str:
        """The section's name in the report; it does not change between versions."""

    @property
    def title(self) -> str:
        """The section's title, for people."""

    @property
    def share(self) -> float:
        """The part's share of the whole budget, in (0, 1]. The last part gets all that is left."""

    def run(self, device: DeviceUnderTest, section: Section, deadline: Deadline) -> None:
        """Adds checks and figures. Finishes by the deadline what it has begun, and lists the rest in
        section.not_covered. Exceptions become a failed check."""


def run_parts(
    report: Report,
    parts: Sequence[Part],
    device: DeviceUnderTest,
    save: Callable[[Report], None],
    watch: Callable[[Section], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Runs the parts within report.budget_seconds and calls `save` after each. If the device is lost in a
    part, the next one has a fresh process. KeyboardInterrupt ends the run: the report keeps what there is, is
    not `complete`, and has a section for every part."""
    begin = clock()
    end = begin + report.budget_seconds
    for number, part in enumerate(parts):
        section = Section(part.name, part.title, watch=watch)
        report.sections.append(section)
        started = clock()
        share = 1.0 if number == len(parts) - 1 else part.share
        deadline = Deadline(min(end, started + share * report.budget_seconds), clock)
        try:
            _run_part(part, device, section, deadline)
            section.seconds, report.seconds = clock() - started, clock() - begin
            save(report)
        except KeyboardInterrupt:
            report.interrupted = True
            section.seconds, report.seconds = clock() - started, clock() - begin
            section.not_covered.append("the rest of this part: interrupted")
            for rest in parts[number + 1 :]:
                skipped = Section(rest.name, rest.title)
                skipped.absent(rest.name, "not run: interrupted")
                report.sections.append(skipped)
            break
    report.complete = not report.interrupted
    save(report)


def _run_part(part: Part, device: DeviceUnderTest, section: Section, deadline: Deadline) -> None:
    try:
        part.run(device, section, deadline)
        section.complete = True
    except DeviceError as error:
        section.failed("device", f"{type(error).__name__}: {error}", outcome="device_lost")
        device.restart()
    except GemmtuneError as error:
        section.failed(part.name, f"{type(error).__name__}: {error}")
    except Exception as error:  # the report shows it, and the other parts run
        section.failed(
            part.name, f"{type(error).__name__}: {error}", traceback=traceback.format_exc(limit=-6)
        )
