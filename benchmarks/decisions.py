"""How reliable and how costly sessions' decisions are, on simulated devices: no GPU, no compiler.

    python -m benchmarks.decisions [--sessions 500] [--problems 24] [--tunings 6] [--recorded 5]

Noise: recorded on a CPU (tests/data/noise-cpu.json), and that of a quiet GPU (0.3% and rare outliers). A/A sessions have
clones of the baseline as candidates: a WIN is false. Repeated tunings have six candidates that are 25% faster than the
default and within 3% of one another. Samples are those that the device was asked for.

`--recorded N` tunes every problem of the recorded H200 table N times at equal budgets, with a screening that drops
by fixed factors and with one that drops by bounds of the noise: equal winners, WINs, and regret by the table's
second pass, which no session sees. History and portfolio are of other layers (benchmarks/strategies.py).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import mean, median
from typing import Any

import numpy as np

from backends.problem import from_mm
from backends.registry import find_device
from benchmarks import report
from benchmarks.strategies import TABLES, history, portfolio
from tests.tuners.recorded import RecordedRunner, recorded_noise, solution, space_of
from tuners.budget import Budget, Search
from tuners.decide import Judgement
from tuners.effort import EFFORTS
from tuners.options import ScreeningOptions, SearchOptions
from tuners.recorded import RecordedDevice, regret
from tuners.recorded_table import RecordedTable
from tuners.session import Session
from tuners.strategies import PriorKnowledge
from tuners.tuning_settings import TuningSettings

PROBLEM = from_mm(64, 64, 64)
#: Candidates of an A/A session, in turn.
CLONES = (1, 8, 30)


def quiet_noise(choose: random.Random) -> list[float]:
    """A GPU's: 10 us with 0.3% of noise, and one sample in fifty up to 5% slower."""
    return [
        1e-5 * choose.gauss(1.0, 0.003) * (1 + (choose.random() < 0.02) * choose.uniform(0, 0.05))
        for _ in range(4000)
    ]


def noises() -> Mapping[str, Sequence[Sequence[float]]]:
    """Name -> series of seconds to draw sessions from."""
    choose = random.Random(0)
    return {
        "recorded cpu": list(recorded_noise().values()),
        "quiet gpu": [[value * 100 for value in quiet_noise(choose)] for _ in range(5)],
    }


def session(
    series: Sequence[float], start: int, speed: Mapping[str, float], budget: float, seed: int
) -> tuple[Session, RecordedRunner]:
    """A session that has ended."""
    runner = RecordedRunner(series, start, speed)
    space = space_of("base", *speed)
    settings = TuningSettings(budget=Budget(budget), search=Search(seed=seed))
    run = Session(runner, PROBLEM, settings, clock=runner.clock, space=space, targets=())
    for _ in run.run():
        pass
    return run, runner


def each(
    series: Sequence[Sequence[float]], count: int, seed: int
) -> list[tuple[Sequence[float], int, float]]:
    """(series, start, budget) of so many sessions. A budget has time for some hundred samples."""
    choose = random.Random(seed)
    found = []
    for number in range(count):
        one = series[number % len(series)]
        found.append((one, choose.randrange(len(one)), 400 * median(one)))
    return found


def against_itself(series: Sequence[Sequence[float]], count: int) -> dict[str, Any]:
    """A/A sessions: false WINs, and samples."""
    wins, samples = 0, []
    for number, (one, start, budget) in enumerate(each(series, count, 1)):
        speed = {f"clone{i}": 1.0 for i in range(CLONES[number % len(CLONES)])}
        run, runner = session(one, start, speed, budget, number)
        wins += run.verdict is not None and run.verdict.judgement is Judgement.WIN
        samples.append(_samples(runner))
    return {"sessions": count, "false_wins": wins, "mean_samples": mean(samples)}


def repeated(series: Sequence[Sequence[float]], problems: int, tunings: int) -> dict[str, Any]:
    """The same problems tuned repeatedly: pairs of tunings that name one winner, WINs, true regret, and samples."""
    choose = random.Random(2)
    pairs = same = wins = 0
    regrets: list[float] = []
    samples: list[int] = []
    for problem in range(problems):
        speed = {f"c{i}": 0.75 * (1 + choose.uniform(0, 0.03)) for i in range(6)}
        speed |= {f"slow{i}": choose.uniform(0.8, 2.0) for i in range(20)}
        winners = []
        for number, (one, start, budget) in enumerate(
            each(series[problem % len(series) :][:1], tunings, problem)
        ):
            run, runner = session(one, start, speed, 3 * budget, number)
            samples.append(_samples(runner))
            assert run.verdict is not None
            wins += run.verdict.judgement is Judgement.WIN
            name = next((n for n in speed if solution(n).id == run.verdict.winner), "base")
            winners.append(name)
            regrets.append(speed.get(name, 1.0) / min(speed.values()) - 1)
        pairs += tunings * (tunings - 1) // 2
        same += sum(a == b for a, b in combinations(winners, 2))
    return {
        "tunings": problems * tunings,
        "equal_winners": same / pairs,
        "wins": wins / (problems * tunings),
        "mean_regret": mean(regrets),
        "largest_regret": max(regrets),
        "mean_samples": mean(samples),
    }


#: Effort -> its budget, as a table is replayed. Verifying takes no time there, so that a search sees more
#: candidates in its time than on a device: `sixty` sees as many as there.
BUDGETS = {
    "quick": EFFORTS["quick"].budget(1.0),
    "quick, sixty candidates": EFFORTS["quick"].budget(1.0, candidates=60),
    "normal": EFFORTS["normal"].budget(2.0),
}
#: Never known, so that the fixed factors hold.
FACTORS = SearchOptions(ScreeningOptions(noise_deviations=sys.maxsize))
SCREENINGS = {"factors": FACTORS, "bounds": SearchOptions()}


def recorded_tunings(table: RecordedTable, tunings: int) -> dict[str, Any]:
    """Every problem of a table tuned repeatedly: effort -> screening -> figures."""
    priors = {
        one.problem.id: PriorKnowledge(history(table, one.problem), portfolio(table, one.problem))
        for one in table.problems
    }
    return {
        effort: {
            name: _tuned_again(table, priors, tunings, TuningSettings(table.policy, budget, options=options))
            for name, options in SCREENINGS.items()
        }
        for effort, budget in BUDGETS.items()
    }


def _tuned_again(
    table: RecordedTable, priors: Mapping[str, PriorKnowledge], tunings: int, settings: TuningSettings
) -> dict[str, Any]:
    pairs = same = tied = wins = unconfirmed = 0
    regrets: list[float] = []
    seconds: list[float] = []
    for number, one in enumerate(table.problems):
        solutions = {row.solution.id: row.solution for row in one.rows}
        verdicts = []
        for turn in range(tunings):
            device = RecordedDevice(table, one, 1000 * number + turn)
            run = Session(
                device, one.problem, settings, clock=device.clock, targets=(), prior=priors[one.problem.id]
            )
            for _ in run.run():
                pass
            assert run.verdict is not None
            verdicts.append(run.verdict)
            regrets.append(regret(one, solutions[run.verdict.winner]))
            seconds.append(run.counts.measuring_seconds)
            wins += run.verdict.judgement is Judgement.WIN
            again = run.verdict.confirmation
            unconfirmed += again is not None and not again.agrees
        for a, b in combinations(verdicts, 2):
            pairs += 1
            same += a.winner == b.winner
            tied += a.winner == b.winner or b.winner in a.tie_set or a.winner in b.tie_set
    return {
        "tunings": len(regrets),
        "equal_winners": round(same / pairs, 4),
        "equal_or_tied": round(tied / pairs, 4),
        "wins": round(wins / len(regrets), 4),
        "unconfirmed": unconfirmed,
        "mean_regret": round(mean(regrets), 5),
        "p95_regret": round(float(np.percentile(regrets, 95)), 5),
        "median_seconds": round(median(seconds), 3),
    }


def _samples(runner: RecordedRunner) -> int:
    each_of = {"screen": 5, "final": 1, "confirm": 1}
    return sum(each_of.get(phase, 0) for phase, _ in runner.calls)


def main() -> None:
    """Measures and writes decisions.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--tunings", type=int, default=6)
    parser.add_argument("--recorded", type=int, default=5)
    given = parser.parse_args()
    figures = {
        name: {
            "a_a": against_itself(series, given.sessions),
            "repeated": repeated(series, given.problems, given.tunings),
        }
        for name, series in noises().items()
    }
    table = RecordedTable.load(TABLES / "h200-bf16.npz")
    recorded = recorded_tunings(table, given.recorded)
    report.write("decisions", find_device("cpu").environment, {"noise": figures, "h200-bf16.npz": recorded})


if __name__ == "__main__":
    main()
