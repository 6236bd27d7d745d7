"""Response models, like those of service.answers: the leaderboard of problems, and measured ceilings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.answers import Answer, Judgement
from service.report_answers import FastP


class BoardProblems(Answer):
    """Counts of problems by judgement."""

    all: int
    win: int
    tie: int
    loss: int


class BoardSeconds(Answer):
    """Call-weighted seconds: with the defaults, and what the winners save of them; the speed-up of all calls
    together, null where no problem is counted."""

    baseline: float
    saved: float
    speedup: float | None


class BoardRoofline(Answer):
    """The mean share of the roofline of the problems where it is known."""

    mean: float | None
    problems: int


class _Sums(Answer):
    problems: BoardProblems
    geometric_mean: float | None = Field(description="Of speed-ups, 1 where the default stays.")
    seconds: BoardSeconds
    roofline: BoardRoofline


class BoardGroup(_Sums):
    """Aggregates of the problems of one family, type, judgement or list, as `by` says."""

    by: Literal["family", "dtype", "judgement", "list"]
    name: str


class BoardBinds(Answer):
    """Problems by the ceiling that binds them."""

    compute: int
    memory: int


class BoardSpeedup(Answer):
    """Baseline time over the winner's time as the final measured it; an open end is null."""

    low: float | None
    mid: float | None
    high: float | None


class BoardItem(Answer):
    """A problem's verdict. `calls` is null where none were counted: they count as one. `flops` and `bytes`
    are those of a call."""

    problem_id: str
    problem: dict[str, Any]
    calls: int | None
    judgement: Judgement
    winner_id: str
    family: str
    seconds: float
    baseline_name: str
    baseline_seconds: float
    speedup: BoardSpeedup
    tied: int
    rounds: int
    saved_seconds: float
    roofline_share: float | None
    binds: str | None
    flops: int
    bytes: int
    session_id: str
    environment_id: str
    decided_at: str


Sort = Literal["saved", "speedup", "seconds", "roofline", "decided", "problem"]


class Board(_Sums):
    """A page of the leaderboard; everything but `items` is about all problems of the filters."""

    device_class: str
    policy_id: str
    problem_list: str | None = Field(alias="list")
    judged: str | None = Field(description="The judged kernel whose verdicts these are.")
    sort: Sort
    order: Literal["asc", "desc"]
    uncounted: int
    binds: BoardBinds
    fast_p: list[FastP]
    groups: list[BoardGroup]
    items: list[BoardItem]
    next_cursor: str | None


class Ceilings(Answer):
    """Measured ceilings of a device class in the environment of its newest best row: the rate of memory
    traffic, and of arithmetic by input type. Null or left out where no verdict knows them."""

    device_class: str
    policy_id: str
    environment_id: str | None
    bytes_per_second: float | None
    flops_per_second: dict[str, float]


Change = Literal["better", "worse", "same", "lost", "new"]


class ComparedProblems(Answer):
    """Counts of problems: on each side, on both, and by what became of them. lost: only in A; new: only in
    B."""

    a: int
    b: int
    both: int
    better: int
    worse: int
    same: int
    lost: int
    new: int


class ComparedBoard(Answer):
    """One of the two boards."""

    device_class: str
    policy_id: str


class ComparedVerdict(Answer):
    """A problem's verdict on one side."""

    judgement: Judgement
    seconds: float
    baseline_seconds: float
    speedup: BoardSpeedup
    winner_id: str
    family: str
    session_id: str
    environment_id: str
    decided_at: str


class ComparedItem(Answer):
    """A problem of either board. `ratio`: A's time over B's, or B's speed-up over A's; null without both."""

    problem_id: str
    problem: dict[str, Any]
    change: Change
    ratio: float | None
    a: ComparedVerdict | None
    b: ComparedVerdict | None


class Comparison(Answer):
    """A page of a comparison; everything but `items` is about all problems of both boards."""

    a: ComparedBoard
    b: ComparedBoard
    by: Literal["time", "speedup"]
    problem_list: str | None = Field(alias="list")
    margin: float = Field(description="Ratios that differ from 1 by less are the same.")
    problems: ComparedProblems
    geometric_mean: float | None = Field(description="Of the ratios.")
    curve: list[FastP] = Field(description="How many problems have a ratio of at least p.")
    order: Literal["asc", "desc"]
    items: list[ComparedItem]
    next_cursor: str | None
