"""The self-test's end-to-end part: tunes one small problem into a database of its own, exports the result and
reads it back."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import ClassVar

from sqlalchemy import Engine

from backends.errors import DeviceError, GemmtuneError, UnsupportedProblem
from backends.problem import GemmProblem, from_linear
from db import schema
from db.engine import open_engine
from service import exports
from service.formats import WRITERS, ExportRefused, read_stream
from service.imports import import_file
from service.store import DirectStore
from tuners.budget import Budget, Search
from tuners.campaign import Campaign, Finished, Measured
from tuners.policy import MeasurementPolicy
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.report import Section
from tuners.session_store import Result
from tuners.tuning_settings import TuningSettings

#: The first of these that a baseline runs is tuned.
PROBLEMS = (from_linear(48, 64, 96, "bf16"), from_linear(48, 64, 96, "fp16"), from_linear(48, 64, 96))
#: The measuring budget and the candidates of the tuning, at most.
SECONDS, CANDIDATES = 3.0, 16
#: The format that is written and read back: it takes every row.
FORMAT = "jsonl"


class TuningPart:
    """A whole tuning with the embedded store in a temporary folder."""

    name: ClassVar[str] = "tuning"
    title: ClassVar[str] = "End-to-end tuning"
    share: ClassVar[float] = 0.1

    def __init__(self, families: tuple[str, ...] | None = None) -> None:
        self._families = families

    def run(self, device: DeviceUnderTest, section: Section, deadline: Deadline) -> None:
        """Tunes, replays the stored result, exports it, reads it back and imports it elsewhere."""
        problem = self._problem(device, section)
        if problem is None:
            return
        if deadline.over:
            section.not_covered.append(f"the tuning of {problem.slug}")
            return
        with tempfile.TemporaryDirectory(prefix="gemmtune-selftest-") as folder:
            engines = [_database(Path(folder) / f"{name}.sqlite") for name in ("tuned", "imported")]
            try:
                self._whole(device, section, problem, engines[0], engines[1], deadline)
            finally:
                for engine in engines:
                    engine.dispose()

    def _problem(self, device: DeviceUnderTest, section: Section) -> GemmProblem | None:
        """The first problem that a baseline and one of the chosen families run."""
        known, reasons = device.backend.families(), list[str]()
        for problem in PROBLEMS:
            chosen = known if self._families is None else self._families
            if not any(known[name].supports(problem) for name in chosen):
                reasons.append(f"no chosen family runs {problem.slug}")
                continue
            try:
                device.backend.baselines(problem, device.environment)
            except UnsupportedProblem as error:
                reasons.append(str(error))
            else:
                return problem
        section.absent("tuned", f"no problem can be tuned: {'; '.join(reasons)}")
        return None

    def _whole(
        self,
        device: DeviceUnderTest,
        section: Section,
        problem: GemmProblem,
        engine: Engine,
        other: Engine,
        deadline: Deadline,
    ) -> None:
        here = device.environment
        policy = MeasurementPolicy.of(here.vendor)
        seconds = max(0.2, min(SECONDS, deadline.left / 4))
        settings = TuningSettings(policy, Budget(seconds, CANDIDATES), Search(families=self._families))
        result, replayed = _tune(device, section, problem, settings, engine)
        if result is None or result.verdict is None:
            why = "it ended without a result" if result is None else str(result.error)
            section.failed("tuned", why, problem_id=problem.id)
            return
        verdict = result.verdict
        section.figures["verdict"] = verdict.to_dict()
        section.passed(
            "tuned", f"{problem.slug}: {verdict.judgement}, {verdict.winner}", problem_id=problem.id
        )
        again, replayed = _tune(device, section, problem, settings, engine)
        if not replayed or again is None or again.verdict != verdict:
            section.failed("stored", f"the store replays {again and again.verdict}, not {verdict}")
        else:
            section.passed("stored", "the stored verdict is replayed")
        chosen = exports.Selection(here.device_class, policy.id)
        _export(section, problem, verdict.winner, chosen, engine, other)
        _formats(section, chosen, engine)


def _database(path: Path) -> Engine:
    """A new database without the job engine's tables: nothing is queued in it."""
    engine = open_engine(f"sqlite:///{path}")
    schema.upgrade(engine)
    return engine


def _tune(
    device: DeviceUnderTest, section: Section, problem: GemmProblem, settings: TuningSettings, engine: Engine
) -> tuple[Result | None, bool]:
    """The result, and whether the store had it. Counts outcomes by status in the section's figures."""
    outcomes: dict[str, int] = section.figures.setdefault("outcomes", {})
    for event in Campaign(device.client, [problem], settings, DirectStore(engine)).run():
        if isinstance(event, Measured):
            name = event.outcome.status.value
            outcomes[name] = outcomes.get(name, 0) + 1
        elif isinstance(event, Finished):
            return event.result, event.replayed
    return None, False


def _export(
    section: Section,
    problem: GemmProblem,
    winner: str,
    chosen: exports.Selection,
    engine: Engine,
    other: Engine,
) -> None:
    """Writes the row, reads the file, and imports it into the other database."""
    made = exports.open_export(engine, FORMAT, chosen)
    data = "".join(made.pieces).encode()
    if made.report.written != 1:
        why = exports.nothing_reason(engine, chosen, made.report)
        section.failed("exported", f"{made.report.written} rows written, not 1: {why}")
        return
    section.passed("exported", f"{len(data)} bytes of {FORMAT}")
    read = read_stream(io.BytesIO(data), made.name, FORMAT)
    found = [(claim.problem.id, claim.claim.solution and claim.claim.solution.id) for claim in read.claims]
    if found != [(problem.id, winner)] or read.rejected:
        said = f"{found}, rejected {[row.reason for row in read.rejected]}"
        section.failed("read back", f"the file holds {said}, not {problem.id} with {winner}")
        return
    section.passed("read back", "the file holds the problem and the winner")
    kept = import_file(other, io.BytesIO(data), made.name, FORMAT).claims
    if kept.stored == 1:
        section.passed("imported", "another database stores the claim")
    else:
        section.failed("imported", f"{kept.stored} claims are stored, not 1: {'; '.join(kept.reasons)}")


def _formats(section: Section, chosen: exports.Selection, engine: Engine) -> None:
    """Every format's answer to the row, without a target: rows written, or why none was."""
    found = section.figures["formats"] = dict[str, str]()
    for name in WRITERS:
        try:
            report = exports.open_export(engine, name, chosen).whole_report()
            found[name] = f"{report.written} written" if report.written else "; ".join(report.omitted)
        except ExportRefused as error:
            found[name] = f"refused: {error}"
        except DeviceError:
            raise
        except GemmtuneError as error:
            section.failed(f"export {name}", f"{type(error).__name__}: {error}")
