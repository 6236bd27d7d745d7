"""The parent's side of the checks for kernels that cheat: what to run, and what the bytes that come back say.

References are computed here, from seeds that the device process has not seen before the launch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.operands import layouts, operand_bytes
from backends.problem import GemmProblem
from tuners.inputs import RAGGED_K, RAGGED_M, RAGGED_N, Case
from tuners.judge.audit import AuditReport, AuditRequest, Contents
from tuners.reference import Reference, reference_of
from tuners.verify import compare

#: Operand sets of an audit; of operands over SET_BYTES one.
SETS, SET_BYTES = 3, 2**27
#: Pairs of launches on new and on unchanged contents. That all new ones are slower by chance has a
#: probability below 1 in 3,000, and a suspicion is confirmed by a second audit.
PAIRS = 7
#: Least ratio of their medians that is a suspicion.
SKIPS = 1.3
#: The window after which outputs are read again: seconds at least and at most, and in launches.
LEAST_WINDOW, MOST_WINDOW, WINDOW_LAUNCHES = 0.05, 1.0, 10
#: The clock's check: the parent's seconds that launches should take, at least; the share of them that the
#: device process may leave unexplained; and the most launches.
CLOCK_SECONDS, UNEXPLAINED, MOST_LAUNCHES = 0.3, 0.5, 2**18
#: How much more time a clock hides for at least twice as many launches.
GROWS = 1.5
#: A kernel whose repeated launches take longer than this skips nothing, and would take minutes to pair.
PAIRED_SECONDS = 0.25

DISTRIBUTION = "normal"


@dataclass(frozen=True)
class Cheat:
    """What was caught: a name for programs, and a sentence with the figures."""

    name: str
    text: str
    #: Whether times alone say so, which a second audit must confirm.
    by_times: bool = False


CACHED = "cached-result"
REPEATED = "repeated-input"
REFERENCE = "reference-memory"
LATE = "late-result"
CLOCK = "clock"
VERIFIER = "replaced-functions"
WRONG = "wrong-when-timed"


def new_request(problem: GemmProblem, mode: str, seconds: float, pairs: int = PAIRS) -> AuditRequest:
    """An audit with fresh seeds. `seconds`: how long a launch takes."""
    sets = SETS if operand_bytes(problem) <= SET_BYTES else 1

    def drawn() -> tuple[Contents, ...]:
        return tuple(Contents(secrets.randbits(31), DISTRIBUTION) for _ in range(sets))

    then = drawn()
    at = secrets.randbelow(problem.n), secrets.randbelow(problem.k)  # of the row-major A
    window = min(MOST_WINDOW, max(LEAST_WINDOW, WINDOW_LAUNCHES * seconds))
    return AuditRequest(problem, drawn(), then, replace(then[0], changed=at), window, pairs, mode)


def packed_ragged(problem: GemmProblem) -> GemmProblem:
    """A twin of small odd sizes whose operands are packed: for kernels that take no padding, which the
    verifier's own ragged problems have."""
    p = problem
    m, n, k = min(p.m, RAGGED_M), min(p.n, RAGGED_N), min(p.k, RAGGED_K)
    batched = p.batch > 1
    return replace(
        p, m=m, n=n, k=k, ldc=m, ldd=m, alignment=16,
        lda=m if p.trans_a == "N" else k, ldb=k if p.trans_b == "N" else n,
        stride_a=m * k if batched and p.stride_a else 0, stride_b=k * n if batched and p.stride_b else 0,
        stride_c=m * n if batched and p.stride_c else 0, stride_d=m * n if batched else 0,
    )  # fmt: skip


class Findings:
    """What an audit's report says. `verified`: the case that the device process verified the problem on; its
    expected output lay in that process's memory."""

    def __init__(self, request: AuditRequest, report: AuditReport, verified: Case | None = None) -> None:
        self._request, self._report, self._verified = request, report, verified
        self._problem = request.problem

    def cheats(self) -> list[Cheat]:
        """Every cheat, the surest first; empty for a kernel that passes."""
        found = list(self._wrong())
        if self._report.replaced:
            listed = ", ".join(self._report.replaced[:4])
            found.append(Cheat(VERIFIER, f"it replaced functions by which it is timed or verified: {listed}"))
        if not found and (text := self.skipping()) is not None:
            found.append(Cheat(REPEATED, text, by_times=True))
        return found

    def skipping(self) -> str | None:
        """Whether launches on contents that were never seen take longer than repeated ones, in words."""
        fresh, repeated = self._report.fresh, self._report.repeated
        if not fresh or min(fresh) <= max(repeated) or median(fresh) < SKIPS * median(repeated):
            return None
        return (
            f"it skips work on repeated inputs: a launch on new contents takes {median(fresh) * 1e6:.3g} us, "
            f"on unchanged ones {median(repeated) * 1e6:.3g} us"
        )

    def _wrong(self) -> Iterator[Cheat]:
        for number, early in enumerate(self._report.early):
            expected = self._then[number]
            if (off := self._off(expected, early)) is None:
                late = self._report.late[number]
                if late is not None:
                    yield Cheat(LATE, "it changed its output after its launches had ended")
                continue
            yield self._named(number, early, off)
            return
        changed = self._report.changed
        if changed is not None and self._request.changed is not None:
            off = self._off(self._reference(self._request.changed), changed)
            if off is not None:
                row, column = self._request.changed.changed or (0, 0)
                stale = self._off(self._then[0], changed) is None
                why = (
                    f"it returned the result of the contents before: A[{row},{column}] alone had changed, at "
                    "the same address: it caches results"
                )
                yield Cheat(CACHED, why) if stale else self._named(0, changed, off)

    def _named(self, number: int, out: npt.NDArray[np.uint8], off: str) -> Cheat:
        """Names what an output is that is not the expected one."""
        late = self._report.late[number]
        after = f"{self._request.window * 1e3:.0f} ms"
        if late is not None and self._off(self._then[number], late) is None:
            return Cheat(
                LATE, f"it returned before its work was done: its output was incomplete when the timed "
                f"launches had ended, and right {after} later (another thread or stream)",
            )  # fmt: skip
        if self._untouched(out):
            if late is not None:
                return Cheat(LATE, f"it wrote its output only after the timed launches had ended: {off}")
            return Cheat(
                REPEATED, "it skips work on repeated launches: launched again at the same addresses, it "
                "wrote nothing",
            )  # fmt: skip
        if any(self._off(one, out) is None for one in self._first):
            return Cheat(
                CACHED, "it returned the result of an earlier launch, though the contents at the same "
                "addresses had changed: it caches results",
            )  # fmt: skip
        others = [one for place, one in enumerate(self._then) if place != number]
        if any(self._off(one, out) is None for one in others):
            return Cheat(CACHED, "it returned another launch's result: it caches results")
        if self._verified is not None and self._off(reference_of_case(self._verified), out) is None:
            return Cheat(
                REFERENCE, "it returned the expected output of another input, which lay in the verifier's "
                "memory: it reads the reference",
            )  # fmt: skip
        return Cheat(
            WRONG, f"it is right where it is verified, and wrong where it is timed, in a process without the "
            f"expected output: {off}",
        )  # fmt: skip

    def _untouched(self, out: npt.NDArray[np.uint8]) -> bool:
        """Whether not one element of D was written."""
        layout = layouts(self._problem)["d"]
        view = self._view(out)
        poison = np.full(layout.dtype.bytes, layout.dtype.poison, np.uint8)
        return bool(np.all(np.ascontiguousarray(view).view(np.uint8).reshape(-1, poison.size) == poison))

    def _view(self, out: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        layout = layouts(self._problem)["d"]
        return layout.view(out.view(layout.dtype.storage))

    def _off(self, reference: Reference, out: npt.NDArray[np.uint8]) -> str | None:
        """What is off, or None."""
        return compare(reference, self._view(out)).wrong or None

    @cached_property
    def _then(self) -> list[Reference]:
        return [self._reference(one) for one in self._request.then]

    @cached_property
    def _first(self) -> list[Reference]:
        return [self._reference(one) for one in self._request.first]

    def _reference(self, contents: Contents) -> Reference:
        case = Case(self._problem, contents.seed, contents.distribution, "audit")
        return reference_of(case, contents.inputs(self._problem))


def reference_of_case(case: Case) -> Reference:
    """The reference of one of the verifier's cases."""
    return reference_of(case, Contents(case.seed, case.distribution).inputs(case.problem))


def clock_text(claimed: float, took: float) -> str | None:
    """What is wrong with a clock by which launches took `claimed` seconds in a call of `took` seconds."""
    if took < CLOCK_SECONDS or claimed >= UNEXPLAINED * took:
        return None
    return (
        f"its launches took {took:.2f} s by the parent's clock, and {max(claimed, 0.0):.3g} s by the clock "
        "of its own process: it changes the clock"
    )


def more_launches(launches: int, took: float) -> int:
    """How many launches to time next, so that they take CLOCK_SECONDS."""
    factor = 2 * CLOCK_SECONDS / max(took, 1e-3)
    return int(launches * min(16.0, max(2.0, factor)))


def joined(cheats: Sequence[Cheat]) -> str:
    """The sentences of several cheats."""
    return "; ".join(cheat.text for cheat in cheats)
