"""Verifies candidates of every family on its own device. Problems and parameters are drawn to cover as much
as the time allows; families take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from backends.errors import (
    DeviceError,
    DeviceLost,
    DeviceMemoryExceeded,
    GemmtuneError,
    InvalidProblem,
    StorageError,
    UnsupportedProblem,
)
from backends.outcome import Outcome, Status
from backends.problem import GemmProblem, from_blas
from backends.protocol import DeviceListedFamily, Family, NeighbouredFamily
from backends.solution import Solution
from backends.wire import problem_to_wire
from tuners.device_process import Task
from tuners.policy import MeasurementPolicy
from tuners.selftest import calls
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.problems import TYPES, Draw, most_novel, problems
from tuners.selftest.report import Check, CheckStatus, Section

#: Problems of a family, and candidates of a problem after the family's first problem, which has one.
PROBLEMS, KERNELS, LIBRARY_SOLUTIONS = 16, 4, 8
#: Problems for which a family may list nothing before it is taken to have none.
TRIES = 150
#: Candidates of a list from which those to verify are chosen.
POOL = 256
#: m, n, k (BLAS terms) for which a library's solutions are counted.
COUNTED = (4096, 512, 4096)
#: A device that is lost this many times in a row ends the part.
LOSSES = 3
#: Seeds that a candidate is verified on.
SEEDS = 1
#: Characters of a compiler's log that the report keeps.
_LOG = 2000

#: Outcomes that say nothing against the candidate: a rule or the library refuses it for this problem.
_REFUSED = (Status.ILLEGAL,)
#: What a report says of the problems.
_COVERED: Mapping[str, Callable[[GemmProblem], str]] = {
    "types": lambda p: p.multiplied_as,
    "transposes": lambda p: p.trans_a + p.trans_b,
    "epilogues": lambda p: p.epilogue,
    "betas": lambda p: p.beta,
}
_EVIDENCE = ("case", "seed", "distribution", "checks", "error_over_bound", "relative_error", "repeatable")


@dataclass
class _Tested:
    """A family with its problems, large ones in case it lists candidates for no other, the number of turns
    that it had, and the parameter values that were verified."""

    family: Family
    draw: Draw
    large: Draw | None
    turns: int = 0
    parameters: frozenset[str] = frozenset()
    verified: list[GemmProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class CandidatesPart:
    """Families whose candidates are compiled here (kernels of our own), or those of libraries. `only`:
    restricts it to these families."""

    def __init__(self, libraries: bool, share: float, only: Sequence[str] | None = None) -> None:
        self.name = "libraries" if libraries else "kernels"
        self.title = "Libraries" if libraries else "Kernel families"
        self.share = share
        self._libraries, self._only = libraries, only

    def run(self, device: DeviceUnderTest, section: Section, deadline: Deadline) -> None:
        """Counts libraries' solutions by type and layout, then verifies candidates."""
        known = {
            name: family
            for name, family in device.backend.families().items()
            if family.compiles is not self._libraries and (self._only is None or name in self._only)
        }
        served: dict[str, Family] = {}
        for name, family in known.items():
            why = family.unavailable(device.environment)
            if why is None:
                served[name] = family
            else:
                section.absent(name, why, family=name, outcome="unavailable")
        verification = _Verification(device, section, deadline, served, self._libraries)
        try:
            if self._libraries:
                _count(device, served, section, deadline)
            verification.run()
        finally:  # an interrupted part has its figures too
            section.figures["families"] = _by_family(section)
            section.figures["coverage"] = verification.coverage()


# ---- counting ------------------------------------------------------------------------------------


def _count(
    device: DeviceUnderTest, families: Mapping[str, Family], section: Section, deadline: Deadline
) -> None:
    """Adds the number of solutions of every library by input type and layout (BLAS transposes)."""
    m, n, k = COUNTED
    counts: dict[str, dict[str, dict[str, int]]] = {}
    notes: list[str] = []
    section.figures |= {"counted_for": {"m": m, "n": n, "k": k}, "solutions": counts, "notes": notes}
    for name, family in families.items():
        check, losses = f"{name} lists its solutions", 0
        for dtype, layout, problem in _countable(family):
            if deadline.over or losses == LOSSES:
                section.not_covered.append(f"the number of {name}'s solutions from {dtype} {layout} on")
                break
            try:
                found = device.client.run(calls.enumerated, name, problem, 1)
            except DeviceError as error:
                _lost(device, section, error, name, problem)
                losses += 1
            except GemmtuneError as error:
                section.failed(check, str(error), **_problem_facts(name, problem), outcome="listing_error")
            else:
                counts.setdefault(name, {}).setdefault(dtype, {})[layout] = found.total
                notes += [note for note in found.notes if note not in notes]
        total = sum(sum(layouts.values()) for layouts in counts.get(name, {}).values())
        if total:
            section.passed(check, f"{total} over types and layouts", family=name)
        elif name in counts:
            section.absent(check, "it lists none for any type", family=name)


def _countable(family: Family) -> Iterator[tuple[str, str, GemmProblem]]:
    """(input type, layout, problem) of every problem to count for that the family supports."""
    m, n, k = COUNTED
    for dtype in TYPES:
        for layout in ("NN", "NT", "TN", "TT"):
            with suppress(InvalidProblem):
                problem = from_blas(m, n, k, dtype, trans_a=layout[0], trans_b=layout[1])
                if family.supports(problem):
                    yield dtype, layout, problem


# ---- verifying -----------------------------------------------------------------------------------


class _Verification:
    """Families in turns, until all problems are done or the deadline is over."""

    def __init__(
        self,
        device: DeviceUnderTest,
        section: Section,
        deadline: Deadline,
        families: Mapping[str, Family],
        libraries: bool,
    ) -> None:
        self._device, self._section, self._deadline = device, section, deadline
        self._most = LIBRARY_SOLUTIONS if libraries else KERNELS
        self._policy = MeasurementPolicy.of(device.environment.vendor, cache="warm")
        self._losses = 0
        #: Input types that the device's reference does not have.
        self._unreferenced: set[tuple[str, str]] = set()
        gpu = device.backend.traits.device_reference  # a host would take minutes for a large reference
        self._tested = {name: _tested(name, family, gpu) for name, family in families.items()}

    def run(self) -> None:
        """Every family has its turn in every round."""
        left = dict(self._tested)
        while left and not self._deadline.over and self._losses < LOSSES:
            for name in list(left):
                if self._deadline.over or self._losses >= LOSSES:
                    break
                try:
                    more = self._turn(name, left[name])
                except DeviceError as error:
                    _lost(self._device, self._section, error, name)
                    self._losses += 1
                    left[name].turns, more = left[name].turns + 1, True
                except DeviceMemoryExceeded as error:  # small problems: something else holds the memory
                    outcome = Status.OUT_OF_MEMORY.value
                    self._section.failed(name, str(error), family=name, outcome=outcome)
                    left[name].turns, more = left[name].turns + 1, True
                except StorageError:
                    raise
                except Exception as error:  # whatever a library raises is that family's failure
                    said = f"{type(error).__name__}: {error}"
                    self._section.failed(name, said, family=name, outcome="error")
                    left[name].turns, more = left[name].turns + 1, True
                if not more or left[name].turns >= PROBLEMS:
                    del left[name]
        for name, tested in left.items():
            left_over = f"{PROBLEMS - tested.turns} of {PROBLEMS} problems"
            self._section.not_covered.append(f"{name}: {left_over if tested.turns else 'every problem'}")
        if self._losses >= LOSSES:
            self._section.not_covered.append(f"the device was lost {LOSSES} times in a row: the part ended")

    def coverage(self) -> dict[str, dict[str, Any]]:
        """Family -> what the problems that its candidates were verified on cover."""
        found: dict[str, dict[str, Any]] = {}
        for name, tested in self._tested.items():
            if tested.verified:
                found[name] = {"problems": len(tested.verified), "parameter_values": len(tested.parameters)}
                for what, of in _COVERED.items():
                    found[name][what] = sorted({of(problem) for problem in tested.verified})
        return found

    def _turn(self, name: str, tested: _Tested) -> bool:
        """Verifies a few candidates on the family's next problem. False if it has no more."""
        found = self._next(name, tested)
        if found is None:
            if not tested.turns and not self._deadline.over:
                why = "; ".join(["it lists no candidate for any problem tried", *tested.notes])
                self._section.absent(name, why, family=name, outcome="nothing_listed")
            return self._deadline.over
        problem, solutions = found
        task = Task(problem, self._policy, 0)
        try:
            self._device.client.open(task)
        except UnsupportedProblem as error:
            self._unreferenced.add(_types(problem))
            self._section.absent(
                name, str(error), **_problem_facts(name, problem), outcome="no_reference"
            )  # fmt: skip
            return True
        tested.draw.covered(problem)
        tested.verified.append(problem)
        tested.turns += 1
        return self._verify(name, task, self._chosen(tested, solutions))

    def _verify(self, name: str, task: Task, chosen: list[Solution]) -> bool:
        """Verifies candidates in order. After a lost device the rest runs in a fresh process. False if the
        family's other candidates are better left out."""
        client, left = self._device.client, list(chosen)
        client.begin(task, left)
        while left and (len(left) == len(chosen) or not self._deadline.over):
            solution = left.pop(0)
            try:
                outcome = client.prove(solution, SEEDS)
            except DeviceError as error:
                _lost(self._device, self._section, error, name, task.problem, solution)
                self._losses += 1
                if self._losses >= LOSSES:
                    return True
                client = self._device.client
                client.open(task)
                client.begin(task, left)
                continue
            self._losses = 0
            self._section.add(check_of(outcome, task.problem))
            if outcome.status is Status.TIMEOUT:  # another one would take as long
                self._section.not_covered.append(f"{name}: the rest, after a candidate that did not answer")
                return False
        return True

    def _next(self, name: str, tested: _Tested) -> tuple[GemmProblem, Sequence[Solution]] | None:
        """The family's next problem with candidates."""
        tries = 0
        for problem in tested.draw:
            if self._deadline.over or tries >= TRIES:
                break
            if _types(problem) in self._unreferenced:
                continue
            tries += 1
            solutions = self._listed(name, tested, problem)
            if solutions:
                return problem, solutions
            tested.draw.missed(problem)
        if not tested.turns and tested.large is not None and not self._deadline.over:
            tested.draw, tested.large = tested.large, None
            return self._next(name, tested)
        return None

    def _listed(self, name: str, tested: _Tested, problem: GemmProblem) -> Sequence[Solution]:
        family, here = tested.family, self._device.environment
        if isinstance(family, DeviceListedFamily):
            found = self._device.client.run(calls.enumerated, name, problem)
            tested.notes += [note for note in found.notes if note not in tested.notes]
            return found.solutions
        listed = list(islice(family.solutions(problem, here), POOL))
        if listed and isinstance(family, NeighbouredFamily):
            listed += islice(family.neighbours(problem, listed[0], here), POOL)
        return listed

    def _chosen(self, tested: _Tested, solutions: Sequence[Solution]) -> list[Solution]:
        """The likeliest candidate, then those with the most parameter values that the family did not have."""
        pool = list({solution.id: solution for solution in solutions}.values())
        chosen: list[Solution] = []
        most = 1 if tested.turns == 1 else self._most  # so that every family is tried soon
        while pool and len(chosen) < most:
            best = pool[0] if not chosen else most_novel(pool, _values, tested.parameters)
            pool.remove(best)
            chosen.append(best)
            tested.parameters |= _values(best)
        return chosen


def _tested(name: str, family: Family, gpu: bool) -> _Tested:
    def draw(large: bool) -> Draw:
        return Draw(name, [problem for problem in problems(large) if family.supports(problem)])

    return _Tested(family, draw(large=False), draw(large=True) if gpu else None)


def _types(problem: GemmProblem) -> tuple[str, str]:
    return problem.dtype_a, problem.dtype_b


def _values(solution: Solution) -> frozenset[str]:
    return frozenset(f"{name}={value}" for name, value in solution.parameters.items())


def check_of(outcome: Outcome, problem: GemmProblem) -> Check:
    """The check of a verified candidate: its outcome, the error, and what repeats it."""
    solution, evidence = outcome.solution, outcome.evidence
    right, refused = outcome.status is Status.OK, outcome.status in _REFUSED
    status = CheckStatus.PASS if right else CheckStatus.ABSENT if refused else CheckStatus.FAIL
    detail = next((str(evidence[name]) for name in ("wrong", "rule", "error") if name in evidence), "")
    log = str(evidence.get("log") or "").strip()[-_LOG:]
    if log and outcome.status is Status.CRASH:
        detail += f": {log.splitlines()[-1]}"
    facts: dict[str, Any] = {
        **_candidate_facts(solution, problem),
        "outcome": outcome.status.value,
        **{name: evidence[name] for name in _EVIDENCE if name in evidence},
    }
    if log:
        facts["log"] = log
    return Check(solution.family, status, detail, facts)


def _problem_facts(family: str, problem: GemmProblem) -> dict[str, Any]:
    return {"family": family, "problem": problem_to_wire(problem), "problem_id": problem.id}


def _candidate_facts(solution: Solution, problem: GemmProblem) -> dict[str, Any]:
    return {
        **_problem_facts(solution.family, problem),
        "solution": solution.id,
        "parameters": dict(solution.parameters),
        "build": solution.build,
    }


def _lost(
    device: DeviceUnderTest,
    section: Section,
    error: DeviceError,
    family: str,
    problem: GemmProblem | None = None,
    solution: Solution | None = None,
) -> None:
    """Adds the failure and gives the process up, so that the rest runs in a fresh one."""
    facts: dict[str, Any] = {"family": family}
    if problem is not None:
        facts = _problem_facts(family, problem) if solution is None else _candidate_facts(solution, problem)
    outcome = "device_lost" if isinstance(error, DeviceLost) else "device_error"
    section.failed(family, f"{type(error).__name__}: {error}", **facts, outcome=outcome)
    device.restart()


def _by_family(section: Section) -> dict[str, dict[str, int]]:
    """Family -> outcome -> number of candidates."""
    found: dict[str, Counter[str]] = {}
    for check in section.checks:
        if "outcome" in check.facts:
            found.setdefault(str(check.facts["family"]), Counter())[str(check.facts["outcome"])] += 1
    return {name: dict(counts) for name, counts in found.items()}
