"""Decides which candidates of a problem are compiled and screened, in what order, and for how long.

Baselines come first, then winners of earlier sessions, then the strategy's candidates as soon as they are
compiled: those that are in the cache and libraries' candidates are screened while compilers work on the
others. A share of the search is reserved for candidates that are compiled late. When nothing else is left,
the search waits for compilers: where the cache was warm within its share of the budget, else longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from backends.counted import counted
from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution
from tuners.budget import Counts, StopReason
from tuners.device_process import Task
from tuners.family_spaces import FamilySpaces, restricted
from tuners.runner import Runner
from tuners.space import Space
from tuners.strategies import STRATEGIES, NotedStrategy, PriorKnowledge, SearchContext
from tuners.tuning_settings import TuningSettings


class Screening:
    """Iterate replay(), call begin(), then iterate run(). `found` holds the outcomes by solution id."""

    def __init__(
        self,
        runner: Runner,
        task: Task,
        space: Space,
        settings: TuningSettings,
        counts: Counts,
        clock: Callable[[], float],
        stopped: Callable[[], bool],
        bound_seconds: float | None = None,
        prior: PriorKnowledge | None = None,
    ) -> None:
        """`bound_seconds`: the roofline's least seconds for the problem; None: not known. `prior`: what
        earlier tunings found, for the strategy. Raises InvalidProblem for options that the strategy does not
        have."""
        self.found: dict[str, Outcome] = {}
        self.notes: list[str] = []
        budget, search = settings.budget, settings.search
        self._runner, self._task, self._space, self._budget = runner, task, space, budget
        self._counts, self._clock, self._stopped = counts, clock, stopped
        self._options = settings.options.screening
        baselines = frozenset(one.solution.id for one in space.baselines)
        self._spaces = FamilySpaces(
            space.families,
            lambda name: restricted(runner.family_space(task, name), task.policy, baselines),
        )
        known = prior or PriorKnowledge()
        context = SearchContext(
            space.candidates, task.problem, runner.environment, self._neighbours, self._spaces,
            known.history, known.portfolio, search.options, search.seed, known.models,
        )  # fmt: skip
        self._strategy = STRATEGIES[search.strategy](context)
        self._left = budget.candidates
        #: Candidates that the strategy returned and that are not screened yet.
        self._waiting: dict[str, Solution] = {}
        self._patience = max(
            self._options.compile_wait_budgets * budget.seconds, self._options.compile_wait_seconds
        )
        self._patience_for_first = self._options.first_compile_wait_seconds
        #: Screened candidates whose binaries were in the cache; the portfolio's members; how many of these
        #: that are compiled were asked for.
        self._cached = 0
        self._portfolio = frozenset(solution.id for solution in known.portfolio)
        self._compiled_members = self._cached_members = 0
        #: Seconds that a search with a warm cache waited for compilers, which count against its share.
        self._waited = 0.0
        self._took: list[float] = []
        #: The least seconds after each timed candidate.
        self._records: list[float] = []
        share = budget.stop_at_roofline
        #: The search ends at a candidate that takes no longer than this.
        self._enough = None if share is None or bound_seconds is None else bound_seconds / share

    def replay(self, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
        """Reports the outcomes of an earlier run to the strategy, and yields them."""
        space = self._space
        given = (*space.candidates, *space.warm_start, *space.winners)
        known = {s.id for s in (*(b.solution for b in space.baselines), *given)}
        # Other members of the spaces are not in the lists. A device's own are recognized by family.
        asked = {s.family for s in space.candidates if self._runner.tells_neighbours(s.family)}
        for outcome in outcomes:
            solution = outcome.solution
            mine = solution.id in known or solution.family in asked
            if outcome.phase is Phase.SCREEN and (mine or self._is_member(solution)):
                self.found[solution.id] = outcome
                self._strategy.tell(outcome)
                self._counts.replayed += 1
                yield outcome

    def _is_member(self, solution: Solution) -> bool:
        return solution.family in self._spaces and solution in self._spaces[solution.family]

    def begin(self) -> None:
        """Requests the first candidates, so that compilers work while the operands are laid out."""
        begin = self._clock()
        self._runner.begin(self._task, self._space.winners)
        self._counts.compiling_seconds += self._clock() - begin
        self._ask()

    def baselines(self) -> Iterator[Outcome]:
        """Screens the baselines, which must run, however long they take."""
        yield from self._batch([b.solution for b in self._space.baselines if b.solution.id not in self.found])

    def run(self) -> Iterator[Outcome]:
        """Screens candidates until the search's share of the budget is used, none is left, or one reaches the
        roofline's share. The baselines' time does not reduce the search's share."""
        share = self._search_seconds()
        limit = self._counts.measuring_seconds + share
        # Earlier winners come first: in a new environment they show at once what is still true.
        winners = [solution for solution in self._space.winners if solution.id not in self.found]
        for outcome in self._batch(winners[: self._left], limit):
            self._left = None if self._left is None else self._left - 1
            self._waiting.pop(outcome.solution.id, None)
            yield outcome
        imported = [solution for solution in self._space.warm_start if solution.id not in self.found]
        ended = None
        while (ended := self._ended(limit)) is None:
            batch = self._next(limit - self._options.reserved_share * share, limit)
            if not batch and not imported:
                out = StopReason.COMPILERS if self._waiting else StopReason.SPACE
                ended = StopReason.CANCELLED if self._stopped() else out
                break
            for outcome in self._batch(batch[: self._left], limit):
                self._left = None if self._left is None else self._left - 1
                yield outcome
            # Imported solutions come after the first batch, with their own share of the search.
            for outcome in self._imported(imported[: self._left], limit):
                self._left = None if self._left is None else self._left - 1
                yield outcome
            imported = []
        self._counts.search_ended = ended.value
        begin = self._clock()
        self._runner.settle()
        self._counts.compiling_seconds += self._clock() - begin
        if isinstance(self._strategy, NotedStrategy):
            self.notes += self._strategy.notes
        if self._waiting and not self._stopped():
            waiting = counted(len(self._waiting), "candidate was", "candidates were")
            self.notes.append(f"{waiting} asked for and not compiled in time")

    def _search_seconds(self) -> float:
        """The search's share of the budget. Under a bounded one slow baselines reduce it, by half at most."""
        budget = self._budget
        left = budget.seconds
        if budget.bounded:
            left = max(left - self._counts.measuring_seconds, left / 2)
        return left * (1 - budget.final_share)

    def _ended(self, limit: float) -> StopReason | None:
        """Why the search ends now; None if it goes on."""
        if self._stopped():
            return StopReason.CANCELLED
        best = self._best()
        if self._enough is not None and best is not None and best <= self._enough:
            return StopReason.ROOFLINE
        if self._bound_reached():
            return StopReason.REGRET
        if self._left == 0:
            return StopReason.CANDIDATES
        return StopReason.BUDGET if self._spent >= limit else None

    @property
    def _spent(self) -> float:
        """Seconds that count against the search's share."""
        return self._counts.measuring_seconds + self._waited

    def _bound_reached(self) -> bool:
        """Whether the last doubling of the number of timed candidates gained no more than the regret bound.
        Later candidates are no likelier than earlier ones, so the next doubling is not expected to gain
        more."""
        bound, count = self._budget.stop_at_regret, len(self._records)
        if bound is None or count < self._options.regret_after:
            return False
        return self._records[count // 2 - 1] <= (1 + bound) * self._records[-1]

    def _ask(self) -> None:
        """Asks the strategy for more candidates and starts compiling them."""
        waiting = len(self._waiting)
        batch = self._options.batch
        count = batch if self._left is None else min(batch, self._left - waiting)
        if count <= 0:
            return
        begin = self._clock()
        asked = self._strategy.ask(count)
        while asked and not (new := [one for one in asked if one.id not in self.found]):
            asked = self._strategy.ask(count)  # earlier winners are screened already
        asked = new if asked else []
        self._counts.measuring_seconds += self._clock() - begin
        self._waiting |= {solution.id: solution for solution in asked}
        begin = self._clock()
        self._runner.begin(self._task, asked)
        self._counts.compiling_seconds += self._clock() - begin
        members = [solution for solution in asked if solution.id in self._portfolio]
        cached = sum(map(self._runner.cached, members))
        self._cached_members += cached
        self._compiled_members += cached + sum(
            not self._runner.cached(one) and not self._runner.ready(one) for one in members
        )

    def _next(self, reserved_from: float, limit: float) -> list[Solution]:
        """The candidates to screen next; empty if none is left that would be compiled in time."""
        more = True
        while not self._stopped():
            ready = [s for s in self._waiting.values() if self._runner.ready(s)][: self._options.batch]
            if ready:
                for solution in ready:
                    del self._waiting[solution.id]
                    self._cached += self._runner.cached(solution)
                self._patience_for_first = 0.0
                return ready
            open_to_all = self._spent < reserved_from or self._patience <= 0
            room = len(self._waiting) + self._options.batch <= self._options.most_waiting
            if more and ((open_to_all and room) or not self._waiting):
                before = len(self._waiting)
                self._ask()
                more = len(self._waiting) > before
            elif not self._waiting:
                break
            elif not self._wait(limit):
                self._patience = 0.0  # the rest of the search is for what is compiled
                if not (more and room):
                    break
        return []

    def _is_warm(self) -> bool:
        """Whether the cache is warm: it has enough of the screened candidates, or all of the portfolio's
        members, which may be fewer."""
        members = self._compiled_members
        return self._cached >= self._options.warm_candidates or 0 < members == self._cached_members

    def _wait(self, limit: float) -> bool:
        """Waits for a compilation to end; False if the search's patience is at its end."""
        first, warm = self._patience_for_first > 0, self._is_warm()
        beside = self._runner.backend.traits.compiles_beside
        left = self._patience_for_first if first else self._patience
        if warm:
            left = limit - self._spent
        elif not beside:
            left = inf  # nothing is measured meanwhile, and nothing would be compiled later
        if left <= 0:
            return False
        begin = self._clock()
        self._runner.await_any(list(self._waiting.values()), left)
        took = self._clock() - begin
        self._counts.compiling_seconds += took
        left = max(0.0, round(left - took, 3))
        if warm:
            self._waited += took
        elif first:
            self._patience_for_first = left
        else:
            self._patience = left
        ended = any(self._runner.ready(solution) for solution in self._waiting.values())
        return ended or (beside and (left > 0 or first))

    def _imported(self, solutions: Sequence[Solution], limit: float) -> Iterator[Outcome]:
        """Screens imported solutions within their share of the search; time lost to hangs counts as well."""
        counts = self._counts
        share = self._options.warm_start_share * self._budget.seconds * (1 - self._budget.final_share)
        waiting = [solution for solution in solutions if solution.id not in self.found]
        begin, tried = counts.measuring_seconds + counts.lost_seconds, 0
        for solution in waiting:
            spent = counts.measuring_seconds + counts.lost_seconds - begin
            if spent >= share or self._stopped():
                break
            tried += 1
            yield from self._batch([solution], limit)
        if waiting:
            left_over = "" if tried == len(waiting) else "; the others' share of the time was used"
            every = counted(len(waiting), "imported solution was", "imported solutions were")
            self.notes.append(f"{tried} of {every} tried{left_over}")

    def _batch(self, batch: Sequence[Solution], limit: float | None = None) -> Iterator[Outcome]:
        """Screens a batch until `limit` seconds have been measured. With None, for baselines, there is no
        limit and nothing is pruned. Every measured outcome is yielded, even if the session is stopped
        meanwhile."""
        counts, failed = self._counts, self._compile(batch)
        waiting = list(batch)
        while waiting and not self._stopped() and (limit is None or counts.measuring_seconds < limit):
            several, waiting = waiting[: self._together()], waiting[self._together() :]
            begin = self._clock()
            rest = [solution for solution in several if solution.id not in failed]
            outcomes = self._runner.screen(rest, None if limit is None else self._best()) if rest else []
            took = self._clock() - begin
            found = {**failed, **{s.id: outcome for s, outcome in zip(rest, outcomes, strict=True)}}
            lost = any(o.status in (Status.TIMEOUT, Status.CRASH) for o in outcomes)
            if lost:
                counts.lost_seconds += took
            else:
                counts.measuring_seconds += took
                self._took.append(took / len(several))
            for solution in several:
                outcome = found[solution.id]
                self.found[solution.id] = outcome
                self._strategy.tell(outcome)
                if limit is not None and outcome.seconds is not None:
                    self._records.append(min([outcome.seconds, *self._records[-1:]]))
                yield outcome

    def _together(self) -> int:
        """How many candidates to screen in one call: as many as take batch_seconds."""
        recent = self._took[-4:]
        if not recent:
            return 1
        each = max(sum(recent), 1e-9) / len(recent)
        return max(1, min(self._options.batch, int(self._options.batch_seconds / each)))

    def _best(self) -> float | None:
        times = [o.seconds for o in self.found.values() if o.status is Status.OK and o.seconds is not None]
        return min(times, default=None)

    def _neighbours(self, origin: Solution) -> Sequence[Solution]:
        found = self._runner.neighbours(self._task, origin)
        sure = self._task.policy.deterministic_only
        return [solution for solution in found if not sure or solution.deterministic]

    def _compile(self, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        begin = self._clock()
        failed = self._runner.compile(self._task, solutions)
        self._counts.compiling_seconds += self._clock() - begin
        return failed
