"""Shared by the CUDA benchmarks: the lists' shapes, a tuning with time stamps, and its row of figures."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from backends.cache import BinaryCache, default_cache_dir
from backends.errors import DeviceError, GemmtuneError
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem, from_linear, from_mm
from backends.registry import BACKENDS, FoundDevice, devices
from benchmarks.report import geometric_mean
from tuners.budget import Budget, Search
from tuners.ceilings import Ceilings, CeilingStore
from tuners.decide import Judgement, Verdict
from tuners.device_client import DeviceClient
from tuners.intervals import Interval, paired
from tuners.policy import MeasurementPolicy
from tuners.prior import known_of
from tuners.roofline import bound
from tuners.runner import Runner
from tuners.session import Session
from tuners.tuning_settings import TuningSettings

SHAPES = Path(__file__).parent / "shapes.json"
#: Statuses of verified and timed candidates: one pruned before its last sample was verified all the same.
TIMED = (Status.OK, Status.PRUNED)


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def kernel_cache() -> BinaryCache:
    """The cache of compiled kernels that all commands share."""
    return BinaryCache(default_cache_dir() / "kernels")


def machine(backend: str, most: int | None = None) -> list[FoundDevice]:
    """The machine's devices of a backend, at most `most`. Raises SystemExit if there is none, or no such
    backend."""
    if backend not in BACKENDS:
        raise SystemExit(f"no backend {backend!r}; known: {', '.join(BACKENDS)}")
    found, notes = devices(backend)
    if not found:
        raise SystemExit(f"no {backend} device: {'; '.join(notes) or 'none was found'}")
    return found[:most]


# ---- shapes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A row-major call of one of the published lists."""

    list: str
    name: str
    m: int
    n: int
    k: int
    trans_b: bool

    def problem(self, dtype: str) -> GemmProblem:
        """y[m,n] = x[m,k] @ w[n,k]^T, or x @ w[k,n]."""
        make = from_linear if self.trans_b else from_mm
        return make(self.m, self.n, self.k, dtype)


def read_shapes(path: Path = SHAPES, lists: Sequence[str] | None = None) -> list[Shape]:
    """The shapes of the named lists (default: all). Raises SystemExit for a list that the file lacks."""
    held = json.loads(path.read_text())
    known = [name for name, value in held.items() if isinstance(value, list)]
    for name in lists or ():
        if name not in known:
            raise SystemExit(f"no list {name!r}; lists: {', '.join(known)}")
    return [
        Shape(name, row["name"], row["m"], row["n"], row["k"], bool(row.get("trans_b")))
        for name in lists or known
        for row in held[name]
    ]


# ---- one tuning ----------------------------------------------------------------------------------


@dataclass
class Tuned:
    """A session and its outcomes. Stamps are seconds of wall clock since screening began; `finals` are the
    outcomes of the final that decided the verdict, `proof` is that verdict's proof."""

    session: Session
    screened: list[tuple[float, Outcome]] = field(default_factory=list)
    finals: dict[str, Outcome] = field(default_factory=dict)
    proof: Outcome | None = None
    final_seconds: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Raises GemmtuneError if the session was stopped before it had a verdict."""
        if self.session.verdict is None:
            raise GemmtuneError(f"{self.session.problem.slug}: stopped before its verdict")
        return self.session.verdict

    @property
    def screening_seconds(self) -> float:
        """From the beginning of the screening to its last outcome."""
        return max((stamp for stamp, _ in self.screened), default=0.0)

    def take(self, outcome: Outcome, stamp: float) -> None:
        """Records an outcome by its phase."""
        if outcome.phase is Phase.SCREEN:
            self.screened.append((stamp, outcome))
        elif outcome.phase is Phase.FINAL and outcome.status in (*TIMED, Status.UNSTABLE):
            self.finals[outcome.solution.id] = outcome
            self.final_seconds = stamp - self.screening_seconds
        elif outcome.phase is Phase.PROOF:
            self.proof = outcome
            if outcome.status is not Status.OK:
                self.finals.clear()  # the remaining finalists race again

    def timed(self, within: float = inf) -> list[Outcome]:
        """Screened candidates that were verified and timed by the stamp `within`."""
        return [o for stamp, o in self.screened if stamp <= within and o.status in TIMED]


def tune(
    runner: Runner,
    problem: GemmProblem,
    seconds: float,
    seed: int = 0,
    stop: Callable[[Tuned, float], bool] | None = None,
    families: Sequence[str] | None = None,
    policy: MeasurementPolicy | None = None,
) -> Tuned:
    """Tunes one problem by `policy`, the backend's default where there is none, with candidates from `families` (None: all);
    the shipped portfolio is known, and no history. The session stops when `stop(tuned, stamp)`, called after every outcome, returns True."""
    policy = MeasurementPolicy.of(runner.environment.vendor) if policy is None else policy
    search = Search(seed=seed, families=None if families is None else tuple(families))
    prior, notes = known_of(problem, runner, ())  # as the service does, without history
    session = Session(runner, problem, TuningSettings(policy, Budget(seconds), search), prior=prior)
    session.notes += notes
    tuned, begin = Tuned(session), time.monotonic()
    for outcome in session.run():
        stamp = time.monotonic() - begin - session.counts.setup_seconds
        tuned.take(outcome, stamp)
        if stop is not None and stop(tuned, stamp):
            session.stop()
    return tuned


def ends(interval: Interval) -> list[float | None]:
    """Both ends of the interval; None for an open end."""
    return [None if abs(end) == inf else end for end in (interval.low, interval.high)]


def against(slower: Outcome, faster: Outcome, confidence: float) -> Interval:
    """The interval of slower/faster by the paired median, over the rounds that both ran (a pruned finalist
    ran fewer)."""
    rounds = min(len(slower.samples), len(faster.samples))
    return paired(slower.samples[:rounds], faster.samples[:rounds], confidence)


def fastest_library(tuned: Tuned) -> Outcome | None:
    """Among the finalists that are neither torch's call nor the baseline: the verdict's winner, else the
    fastest by the paired median, those that were not pruned first. Own kernels are not excluded."""
    verdict, finals = tuned.verdict, tuned.finals
    others = [
        o for o in finals.values() if o.solution.family != "torch" and o.solution.id != verdict.baseline
    ]
    winner = next((o for o in others if o.solution.id == verdict.winner), None)
    if winner is not None or not others:
        return winner
    base = finals[verdict.baseline]

    def order(outcome: Outcome) -> tuple[bool, float]:
        return outcome.status is Status.PRUNED, -against(base, outcome, 0.9).mid

    return min(others, key=order)


def row(tuned: Tuned, ceilings: Ceilings | None = None) -> dict[str, Any]:
    """A tuning's figures. `ratio` is the baseline's time over the winner's, or 1 if nothing was shown to be
    faster; `raw_ratio` is the baseline's time over that of fastest_library(), whichever won. Intervals have
    the confidence that the decision rule gives each comparison."""
    session, verdict, finals = tuned.session, tuned.verdict, tuned.finals
    confidence = session.settings.rule.shared(len(finals) - 1)
    base, answer, library = finals[verdict.baseline], finals[verdict.winner], fastest_library(tuned)
    heuristic = next((o for o in finals.values() if o.solution.family == "cublaslt-heuristic"), None)
    won = verdict.judgement is Judgement.WIN
    raw = None if library is None else against(base, library, confidence)
    ratio = against(base, answer, confidence) if won else None
    over = None if heuristic is None or heuristic is answer else against(heuristic, answer, confidence)
    solution = answer.solution
    return {
        "verdict": verdict.judgement.value, "reason": verdict.reason,
        "baseline": verdict.baseline_name, "rounds": verdict.rounds, "tie_set": len(verdict.tie_set),
        "torch_us": _us(base if base.solution.family == "torch" else None), "baseline_us": _us(base),
        "heuristic_us": _us(heuristic), "best_us": _us(answer), "library_us": _us(library),
        "winner": solution.id, "family": solution.family, "parameters": dict(solution.parameters),
        "build": solution.build, "workspace_bytes": solution.workspace_bytes, "packing": None if verdict.packing is None else asdict(verdict.packing),
        "library": None if library is None else library.solution.id,
        "ratio": ratio.mid if ratio else 1.0, "interval": ends(ratio) if ratio else None,
        "raw_ratio": raw.mid if raw else None, "raw_interval": ends(raw) if raw else None,
        "heuristic_ratio": over.mid if over else (None if heuristic is None else 1.0),
        "heuristic_interval": ends(over) if over else None,
        "confidence": confidence,
        **screening_figures(tuned),
        "final_seconds": tuned.final_seconds,
        **_roofline(session.problem, verdict.seconds, ceilings),
        "proof": _proof(tuned), "condition": dict((tuned.proof.evidence if tuned.proof else {}).get("condition", {})),
        "counts": asdict(session.counts), "operands": asdict(session.rotation) if session.rotation else None,
        "notes": list(session.notes),
    }  # fmt: skip


def screening_figures(tuned: Tuned, within: float = inf) -> dict[str, Any]:
    """Counts of the candidates screened by the stamp `within`, by status and by family."""
    seen = [o for stamp, o in tuned.screened if stamp <= within]
    return {
        "configurations": len(tuned.timed(within)),
        "screened": len(seen),
        "by_status": dict(sorted(Counter(o.status.value for o in seen).items())),
        "by_family": dict(sorted(Counter(o.solution.family for o in seen).items())),
        "screening_seconds": min(tuned.screening_seconds, within),
        "space": tuned.session.counts.space,
    }


def _us(outcome: Outcome | None) -> float | None:
    return None if outcome is None else median(outcome.samples) * 1e6


def _roofline(problem: GemmProblem, seconds: float, ceilings: Ceilings | None) -> dict[str, Any]:
    if ceilings is None:
        return {"bound_us": None, "share": None, "binds": None}
    limit = bound(problem, ceilings)
    return {"bound_us": limit.seconds * 1e6, "share": limit.share(seconds), "binds": limit.binds}


def _proof(tuned: Tuned) -> dict[str, Any]:
    found = {} if tuned.proof is None else tuned.proof.evidence
    names = ("seeds", "checks", "exact_checks", "beta_checks", "cases", "repeatable", "error_over_bound")
    return {name: found[name] for name in names if name in found}


def ceilings_of(runner: DeviceClient, kinds: Sequence[str]) -> Ceilings | None:
    """The device's ceilings, measured once per environment; None, with a line that says why, if they cannot
    be measured. Raises DeviceError."""
    store = CeilingStore(default_cache_dir() / "ceilings")
    try:
        return store.obtain(runner.environment, list(kinds), runner.ceilings)
    except DeviceError:
        raise
    except GemmtuneError as error:
        say(f"no ceilings of {runner.environment.uuid}: {error}")
        return None


def in_words(values: dict[str, Any]) -> str:
    """A row as a line of progress."""
    if "error" in values:
        return str(values["error"])
    share = "" if values["share"] is None else f", {values['share']:.0%} of the {values['binds']} bound"
    return (
        f"{values['verdict']} {values['ratio']:.3f}x over {values['baseline']} ({values['baseline_us']:.1f} -> "
        f"{values['best_us']:.1f} us), {values['family']}, {values['configurations']} timed{share}"
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A list's figures: geometric means, extremes, verdicts, how much was screened."""
    good = [row for row in rows if "error" not in row]
    if not good:
        return {"shapes": 0, "errors": len(rows)}
    over = [row["heuristic_ratio"] for row in good if row["heuristic_ratio"] is not None]
    shares = [row["share"] for row in good if row["share"] is not None]
    raw = [row["raw_ratio"] for row in good if row["raw_ratio"] is not None]
    return {
        "shapes": len(good),
        "errors": len(rows) - len(good),
        "geometric_mean": geometric_mean([row["ratio"] for row in good]),
        "geometric_mean_raw": geometric_mean(raw) if raw else None,
        "geometric_mean_heuristic": geometric_mean(over) if over else None,
        "minimum": min(row["ratio"] for row in good),
        "minimum_raw": min(raw, default=None),
        "maximum": max(row["ratio"] for row in good),
        "verdicts": dict(sorted(Counter(row["verdict"] for row in good).items())),
        "families": dict(Counter(row["family"] for row in good).most_common()),
        "share_median": median(shares) if shares else None,
        "configurations_minimum": min(row["configurations"] for row in good),
        "configurations_median": median(row["configurations"] for row in good),
        "configurations": sum(row["configurations"] for row in good),
        "wrong_results": sum(row["by_status"].get("wrong_result", 0) for row in good),
    }
