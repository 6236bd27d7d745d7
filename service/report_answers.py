"""Response models, like those of service.answers: reports and comparisons."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.answers import Answer, Judgement


class WorthProblems(Answer):
    """Counts of problems: with and without a verdict, and the verdicts by judgement. `uncounted` have a
    verdict and no count of calls: they count as called once."""

    tuned: int
    untuned: int
    win: int
    tie: int
    loss: int
    stale: int
    uncounted: int


class WorthSeconds(Answer):
    """Call-weighted seconds of the tuned problems: with their defaults, and what the winners save of them.
    `untuned_estimate` are the defaults' seconds of the untuned problems, and `tuned_share` the share of all
    that is tuned; null where nothing is tuned to estimate them from."""

    baseline: float
    saved: float
    speedup: float | None
    untuned_estimate: float | None
    tuned_share: float | None


class FastP(Answer):
    """How many tuned problems have a speed-up of at least `p`, and their share."""

    p: float
    problems: int
    share: float


class Percentile(Answer):
    """A percentile of the tuned problems' speed-ups."""

    percent: int
    speedup: float


class GainEstimate(Answer):
    """An estimate from the nearest `neighbours` tuned problems that share the problem's kind, its type of A
    (dtype) or the device class alone (any). The nearest is `distance` doublings of the sizes away."""

    baseline_seconds: float = Field(description="Of a call with the default.")
    speedup: float
    basis: Literal["kind", "dtype", "any"]
    neighbours: int
    distance: float


class NextProblem(Answer):
    """A problem to tune: `saving_seconds` are expected of all its calls; null without an estimate."""

    problem_id: str
    problem: dict[str, Any]
    calls: int
    saving_seconds: float | None
    estimate: GainEstimate | None


class StaleReason(Answer):
    """What changed, and for how many problems."""

    reason: str
    problems: int


class StaleRow(Answer):
    """A best row that was measured with what is no longer present."""

    problem_id: str
    environment_id: str
    reason: str
    saved_seconds: float


class StaleRows(Answer):
    """The stale rows by reason, and those that save most; `saved_seconds` are part of the report's."""

    saved_seconds: float
    reasons: list[StaleReason]
    items: list[StaleRow]


class SpeedupClass(Answer):
    """Tuned problems with a speed-up from `low` to below `high`; the first class: the default stays."""

    low: float
    high: float | None
    problems: int


class CurvePoint(Answer):
    """fast_p: the share of tuned problems with a speed-up of at least `p`, each counted once, and weighted by
    the time of all its calls with the default."""

    p: float
    share: float
    time_share: float


class RooflineProblem(Answer):
    """A tuned problem in a roofline's plane: `intensity` in operations per byte."""

    problem_id: str
    dtype: str
    intensity: float
    flops_per_second: float
    baseline_flops_per_second: float
    share: float
    binds: str | None


class Roofline(Answer):
    """The ceilings that the verdicts were compared with, and the tuned problems that take most time."""

    bytes_per_second: float | None
    flops_per_second: dict[str, float]
    problems: list[RooflineProblem]


class ProblemGain(Answer):
    """What a winner saves: `saved_seconds` of all calls."""

    problem_id: str
    problem: dict[str, Any]
    calls: int
    baseline_name: str
    baseline_seconds: float
    family: str
    seconds: float
    speedup: float
    saved_seconds: float
    roofline_share: float | None


class WorthEnvironment(Answer):
    """Where verdicts were measured; `present`: a worker has it now."""

    environment_id: str
    problems: int
    present: bool
    environment: dict[str, Any]


class WorthDetail(Answer):
    """What pictures of the report need."""

    distribution: list[SpeedupClass]
    curve: list[CurvePoint]
    roofline: Roofline
    gains: list[ProblemGain]
    environments: list[WorthEnvironment]


class Worth(Answer):
    """What tuning is worth on a device class. Where the default stays, the speed-up is 1. `fast_p`,
    `percentiles` and `geometric_mean` count each tuned problem once."""

    device_class: str
    policy_id: str
    problem_list: str | None = Field(alias="list")
    family: str | None
    dtype: str | None
    present_environments: list[str]
    problems: WorthProblems
    seconds: WorthSeconds
    geometric_mean: float | None
    fast_p: list[FastP]
    percentiles: list[Percentile]
    next: list[NextProblem]
    stale: StaleRows
    detail: WorthDetail | None = Field(description="With detail=true.")


class DiffSide(Answer):
    """A verdict: its winner (for a TIE or a LOSS the default) and the default."""

    session_id: str
    judgement: Judgement
    winner_id: str
    seconds: float
    baseline_name: str
    baseline_seconds: float
    speedup: float


Fate = Literal["kept", "beaten", "broken", "retired", "pending"]


class DiffItem(Answer):
    """A winner of the earlier environment (`before`; `number` is its verdict's) and what became of it."""

    number: int
    problem_id: str
    problem: dict[str, Any]
    fate: Fate
    reason: str
    before: DiffSide
    after: DiffSide | None


class DiffCounts(Answer):
    """Winners by fate, of all pages."""

    kept: int
    beaten: int
    broken: int
    retired: int
    pending: int


class Diff(Answer):
    """`before` and `after` list the environments that were compared: all of the class with the same software
    as the one that was named."""

    device_class: str
    policy_id: str
    before: list[str]
    after: list[str]
    changes: list[str]
    counts: DiffCounts
    items: list[DiffItem]
    next_cursor: str | None
