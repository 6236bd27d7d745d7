"""A device client that runs one user's kernel: it verifies the kernel fully before it races it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from backends.cache import BinaryCache
from backends.errors import GemmtuneError
from backends.outcome import Outcome, Phase, Status
from backends.registry import FoundDevice
from backends.solution import Solution
from backends.user_kernels.family import UserFamily
from backends.user_kernels.source import UserKernel
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.inputs import Case, applicable
from tuners.judge import audit, checks
from tuners.judge.checks import Cheat, Findings
from tuners.judge.limits import MOST_FILE_BYTES
from tuners.space import Space

#: Time limit of a call in which the user's code may hang, in seconds.
HANG_SECONDS = 60.0
#: Bytes of what the kernel printed that are kept.
PRINTED = 4096
_TIMED = (Status.OK, Status.UNSTABLE)


class KernelFailed(GemmtuneError):
    """The judged kernel is not right, or does not run; nothing is raced."""


@dataclass(frozen=True)
class Printed:
    """What the kernel's process printed so far: all bytes, and the first PRINTED of them."""

    bytes: int
    first: str


class JudgeClient(DeviceClient):
    """The device process with the user's kernel. Its screening of the kernel has the proof on five seeds and
    the checks for cheats as well, so that only a kernel that is right is raced."""

    def __init__(
        self,
        device: FoundDevice,
        cache: BinaryCache,
        kernel: UserKernel,
        hang_seconds: float = HANG_SECONDS,
        seeds: int = 5,
    ) -> None:
        super().__init__(device, cache, hang_seconds, kernels=(kernel,))
        family = self.backend.families()[kernel.name]
        if not isinstance(family, UserFamily):
            raise TypeError(f"{kernel.name} is no user's family")
        self.kernel, self.family, self.solution = kernel, family, family.solution
        self._seeds = seeds
        self._proof: Outcome | None = None
        self._failed: Outcome | None = None
        self._repeatable: bool | None = None

    def space(self, task: Task, families: Sequence[str] | None) -> Space:
        """The defaults, and the user's kernel as the only candidate."""
        return super().space(task, [self.kernel.name])

    def open(self, task: Task) -> Any:
        """See Runner."""
        self._proof = self._failed = self._repeatable = None
        return super().open(task)

    def printed(self) -> Printed:
        """What the device process printed since its last crash."""
        try:
            with self._pool.folder.log.open("rb") as file:
                first = file.read(PRINTED)
            return Printed(self._pool.folder.log.stat().st_size, first.decode(errors="replace"))
        except FileNotFoundError:
            return Printed(0, "")

    def screen(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome]:
        """The judged kernel is never pruned: its own time is what is asked for."""
        if self.solution.id not in {one.id for one in solutions}:
            return super().screen(solutions, best)
        return [
            self._judged(one) if one == self.solution else super(JudgeClient, self).screen([one], best)[0]
            for one in solutions
        ]

    def sample(self, solution: Solution, again: bool = True) -> Outcome:
        """See Runner. Raises KernelFailed where there is no kernel left to race."""
        if self._failed is not None:
            raise KernelFailed(failure_text(self._failed))
        return super().sample(solution, again)

    def prove(self, solution: Solution, seeds: int) -> Outcome:
        """The judged kernel's proof is the one that its screening had."""
        if solution == self.solution and self._proof is not None:
            return self._proof
        return super().prove(solution, seeds)

    def _judged(self, solution: Solution) -> Outcome:
        outcome = super().screen([solution], None)[0]
        evidence = dict(outcome.evidence)
        if outcome.status in _TIMED:
            self._proof = super().prove(solution, self._seeds)
            if self._proof.status is not Status.OK:
                outcome = replace(outcome, status=self._proof.status)
                evidence |= dict(self._proof.evidence)
            else:
                proof = self._proof.evidence
                evidence["proof"] = {"seeds": self._seeds, "checks": proof.get("checks")}
        # A wrong result may be a cheat's: the audit names it.
        found = self._audited(solution, outcome) if outcome.status in (*_TIMED, Status.WRONG_RESULT) else []
        if isinstance(found, Outcome):
            if outcome.status in _TIMED:  # else what the verifier said stands
                outcome = replace(outcome, status=found.status)
                evidence |= dict(found.evidence)
        elif found:
            wrong = evidence.get("wrong")
            outcome = replace(outcome, status=Status.WRONG_RESULT)
            evidence |= {"cheats": [cheat.name for cheat in found], "wrong": checks.joined(found)}
            evidence |= {"verifier": wrong} if wrong else {}
        if self._repeatable is not None and evidence.get("repeatable") is not False:
            evidence["repeatable"] = self._repeatable
        printed = self.printed()
        if printed.bytes:
            evidence["printed"] = {"bytes": printed.bytes, "first": printed.first}
        if printed.bytes >= MOST_FILE_BYTES and evidence.get("error"):
            evidence["error"] += f" (it printed {MOST_FILE_BYTES // 2**20} MiB, the most that it may)"
        outcome = replace(outcome, evidence=evidence)
        if outcome.status not in _TIMED:
            self._failed = outcome
        return outcome

    # ---- cheats ------------------------------------------------------------------------------------

    def _audited(self, solution: Solution, outcome: Outcome) -> list[Cheat] | Outcome:
        """The cheats that audits find, or the outcome of an audit in which the kernel failed."""
        task = self._opened()
        seconds = median(outcome.samples) if outcome.samples else 0.0
        verified = [case for case in task.screening_cases(every=True) if case.name == "exact"]
        found = self._audit(solution, seconds, verified[0])
        if isinstance(found, Outcome):
            return found
        if any(cheat.by_times for cheat in found):
            again = self._audit(solution, seconds, verified[0])
            if isinstance(again, Outcome):
                return again
            found = again
        if outcome.status not in _TIMED:
            return [cheat for cheat in found if cheat.name != checks.WRONG]
        twin = checks.packed_ragged(task.problem)
        if not found and twin != task.problem and self.family.supports(twin) and not self._ran_ragged():
            request = checks.new_request(twin, task.policy.mode, seconds, pairs=0)
            ragged = self._report(solution, request)
            if isinstance(ragged, Outcome):
                return ragged
            found = Findings(request, ragged).cheats()
        if not found:
            clock = self._clock(solution, seconds)
            if isinstance(clock, Outcome):
                return clock
            found = [clock] if clock is not None else []
        return found

    def _ran_ragged(self) -> bool:
        """Whether the verifier itself ran a ragged problem: the kernel takes padded operands."""
        here = self.environment

        def runs(case: Case) -> bool:
            twin = case.problem
            return self.family.supports(twin) and self.family.illegal(twin, self.solution, here) is None

        ran = applicable(self._opened().screening_cases(every=True), runs)
        return any(case.name != "exact" for case in ran)

    def _audit(self, solution: Solution, seconds: float, verified: Case) -> list[Cheat] | Outcome:
        task = self._opened()
        pairs = checks.PAIRS if seconds <= checks.PAIRED_SECONDS else 0
        request = checks.new_request(task.problem, task.policy.mode, seconds, pairs)
        report = self._report(solution, request)
        if isinstance(report, Outcome):
            return report
        return Findings(request, report, verified).cheats()

    def _report(self, solution: Solution, request: audit.AuditRequest) -> audit.AuditReport | Outcome:
        """The report, or the outcome of a kernel that failed in the audit."""
        outcome = self._candidate(audit.audit, Phase.SCREEN, solution, request)
        if outcome.status is Status.CRASH:  # perhaps of what an earlier launch left running
            outcome = self._candidate(audit.audit, Phase.SCREEN, solution, request)
        if outcome.status is not Status.OK:
            return outcome
        report = outcome.evidence.get(audit.REPORT)
        if not isinstance(report, audit.AuditReport) or len(report.early) != len(request.then):
            return replace(outcome, status=Status.WRONG_RESULT, evidence={"wrong": "an audit has no report"})
        if report.repeatable is not None:
            self._repeatable = report.repeatable and self._repeatable is not False
        return report

    def _clock(self, solution: Solution, seconds: float) -> Cheat | Outcome | None:
        """Times launches by this process's clock and by the device process's. A call's own cost does not grow
        with the launches; time that a clock hides does."""
        launches, before = max(1, min(16, int(checks.CLOCK_SECONDS / max(seconds, 1e-9)))), None
        while launches <= 2 * checks.MOST_LAUNCHES:
            begin = time.monotonic()
            outcome = self._candidate(audit.clocked, Phase.SCREEN, solution, launches)
            took = time.monotonic() - begin
            if outcome.status is not Status.OK:
                return outcome
            claimed = float(outcome.evidence["claimed"])
            said, hidden = checks.clock_text(claimed, took), took - claimed
            if said is not None and before is not None and hidden >= checks.GROWS * before:
                return Cheat(checks.CLOCK, said)
            if said is None and (took >= checks.CLOCK_SECONDS or launches >= checks.MOST_LAUNCHES):
                return None
            before = hidden if said is not None else None
            launches = checks.more_launches(launches, took)
        return None

    def _opened(self) -> Task:
        if self._task is None:
            raise RuntimeError("open() a task first")
        return self._task


def failure_text(outcome: Outcome) -> str:
    """A failed kernel in one line."""
    evidence = outcome.evidence
    said = next((evidence[name] for name in ("wrong", "rule", "error") if evidence.get(name)), "")
    where = f" ({evidence['problem']}, {evidence['case']})" if evidence.get("case") else ""
    log = str(evidence.get("log") or "").strip().splitlines()
    last = f": {log[-1][:200]}" if log and outcome.status is Status.CRASH else ""
    return f"{outcome.status.value.replace('_', ' ')}: {said}{where}{last}"
