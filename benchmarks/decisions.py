"""How reliable and how costly sessions' decisions are, on simulated devices: no GPU, no compiler.

    python -m benchmarks.decisions [--sessions 500] [--problems 24] [--tunings 6]

Noise: recorded on a CPU (tests/data/noise-cpu.json), and that of a quiet GPU (0.3% and rare outliers). A/A sessions have
clones of the baseline as candidates: a WIN is false. Repeated tunings have six candidates that are 25% faster than the
default and within 3% of one another. Samples are those that the device was asked for.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import mean, median
from typing import Any

from backends.problem import from_mm
from backends.registry import find_device
from benchmarks import report
from tests.tuners.recorded import RecordedRunner, recorded_noise, solution, space_of
from tuners.budget import Budget, Search
from tuners.decide import Judgement
from tuners.session import Session
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


def _samples(runner: RecordedRunner) -> int:
    each_of: Callable[[str], int] = {"screen": 5, "final": 1, "proof": 0}.__getitem__
    return sum(each_of(phase) for phase, _ in runner.calls)


def main() -> None:
    """Measures and writes decisions.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--tunings", type=int, default=6)
    given = parser.parse_args()
    figures = {
        name: {
            "a_a": against_itself(series, given.sessions),
            "repeated": repeated(series, given.problems, given.tunings),
        }
        for name, series in noises().items()
    }
    report.write("decisions", find_device("cpu").environment, {"noise": figures})


if __name__ == "__main__":
    main()
