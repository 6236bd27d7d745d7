"""The response models, separate from the tables. Routes return plain values; tests check them against these
models. This module has tunings, best solutions and the service's own state; service.records has stored
records and files."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel

from tuners.budget import StopReason

Item = TypeVar("Item")

SEARCH_ENDED = f"Why the search ended: {', '.join(StopReason)}. Null where it is not known."

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Judgement = Literal["WIN", "TIE", "LOSS"]


class Answer(BaseModel):
    """An answer: exactly these fields."""

    model_config = ConfigDict(extra="forbid")


# ---- tunings -------------------------------------------------------------------------------------


class TuningLinks(Answer):
    """Where a tuning is followed."""

    self: str
    events: str


class LeftOutProblems(Answer):
    """Problems that a campaign leaves out for one reason."""

    problems: int = Field(description="How many.")
    problem_ids: list[str]


class LeftOut(Answer):
    """What a campaign leaves out, and why: these problems have no job in the tuning."""

    tuned: LeftOutProblems = Field(
        description="Tuned already in a current environment of the class; `force` tunes them again."
    )
    no_share: LeftOutProblems = Field(
        description="The seconds do not suffice for them: others are expected to gain more."
    )


class TuningCreated(Answer):
    """How many of the jobs are new, in flight for another tuning already, or known from an earlier one."""

    id: str
    status: Status
    device_class: str
    policy_id: str
    total: int
    new: int
    shared: int
    known: int
    left_out: LeftOut | None = Field(description="Null without `campaign_seconds`.")
    links: TuningLinks


class TuningSummary(Answer):
    """A tuning; the counters are of its jobs."""

    id: str
    status: Status
    device_class: str
    policy_id: str
    request: dict[str, Any]
    total: int
    started: int
    succeeded: int
    failed: int
    created_at: str
    ended_at: str | None
    links: TuningLinks


class Speedup(Answer):
    """Baseline time over winner time; an open end is null."""

    low: float | None
    mid: float
    high: float | None


class TargetVerdict(Answer):
    """The judgement of an export target's best candidate against the verdict's baseline, within the rounds
    that sampled it."""

    judgement: Judgement
    solution: str
    seconds: float
    baseline_seconds: float
    speedup: Speedup
    rounds: int
    reason: str
    proven: bool = Field(description="true: verified on five seeds, as a winner is; else on one.")
    tied: int = Field(default=1, description="Candidates that tie, among which this one was chosen.")


class TriedBaseline(Answer):
    """A default of the problem, and what became of it; `seconds` a call, null where it was not timed."""

    name: str
    solution: str = Field(description='Its id; "" for a default that is not available.')
    seconds: float | None
    fate: Literal["baseline", "slower", "faster", "tied", "failed", "unavailable"]
    reason: str = Field(description="Why it failed or is unavailable, or which twin problem it got wrong.")


class Confirmation(Answer):
    """What a second process, which ran no search, found of a winner: `agrees` if it showed the WIN too. The
    figures are null where it has no samples."""

    agrees: bool
    reason: str
    rounds: int
    seconds: float | None
    baseline_seconds: float | None
    speedup: Speedup | None
    restarts: int = Field(description="How often the process had to be started again.")
    operand_bytes: int = Field(description="Memory of the operands in rotation, freed afterwards.")


class Packing(Answer):
    """What a solution's packed copy of the weights costs beside its launches: it is packed once, when the
    program loads its weights."""

    layout: str = Field(description="The layout's name: copies of one layout and the same weights are equal.")
    bytes: int = Field(description="Size of the copy.")
    us: float = Field(description="Microseconds of packing, launched by the host.")


class Verdict(Answer):
    """What a session decided; solutions by id, seconds a call."""

    judgement: Judgement
    baseline: str
    baseline_name: str
    winner: str
    seconds: float
    baseline_seconds: float
    speedup: Speedup
    tie_set: list[str]
    rounds: int
    reason: str
    targets: dict[str, TargetVerdict] = Field(
        default_factory=dict,
        description="Export target -> the verdict of its best candidate; absent where none was judged.",
    )
    fastest: str = Field(default="", description="The candidate that wins with the least median.")
    tied: int = Field(
        default=1, description="Candidates that tie with it, among which the winner was chosen."
    )
    baselines: list[TriedBaseline] = Field(
        default_factory=list,
        description="Every default that was tried; empty for earlier versions' verdicts.",
    )
    confirmation: Confirmation | None = Field(
        default=None,
        description="Of a WIN, or of one that became a TIE because the second process did not show it.",
    )
    packing: Packing | None = Field(
        default=None, description="Of a winner that reads a packed copy of the weights; else left out."
    )


class TuningJob(Answer):
    """One problem of a tuning: its verdict, or the error that says why there is none."""

    id: str
    position: int
    problem: dict[str, Any]
    problem_id: str
    count: int
    status: Status
    attempt: int
    session_id: str | None
    verdict: Verdict | None
    roofline_share: float | None
    binds: str | None
    error: str | None
    evidence: Any
    notes: list[str]
    search_ended: str | None = Field(description=SEARCH_ENDED)
    created_at: str
    started_at: str | None
    ended_at: str | None


class Paged(Answer, Generic[Item]):
    """A page; `next_cursor` is null on the last."""

    items: list[Item]
    next_cursor: str | None


class Tuning(TuningSummary):
    """A tuning with a page of its jobs."""

    jobs: Paged[TuningJob]


class Event(Answer):
    """queued, started, measured, finished, retried, ended: what happened, numbered from 1."""

    number: int
    kind: str
    content: dict[str, Any]
    created_at: str


# ---- best ----------------------------------------------------------------------------------------


class Solution(Answer):
    """One way to run a GEMM; `build` is a library's, `deterministic` null where it is not known."""

    id: str
    family: str
    version: int
    parameters: dict[str, str | int | bool | None]
    build: str | None
    workspace_bytes: int
    deterministic: bool | None


class BaselineAnswer(Answer):
    """What the verdict was judged against."""

    name: str
    solution_id: str
    seconds: float


class Roofline(Answer):
    """The share of the bound that was reached, and what binds."""

    share: float
    binds: str | None


class Provenance(Answer):
    """measured: by a worker of this service; node: by gemmtune on a bare node; pretuned: a pre-tuned table
    says so; imported: another file says so."""

    kind: Literal["measured", "node", "pretuned", "imported"]
    source: str | None
    format: str | None = None


class _Measured(Answer):
    problem_id: str
    problem: dict[str, Any]
    device_class: str
    policy_id: str
    solution: Solution
    seconds: float
    judgement: Judgement | None
    baseline: BaselineAnswer
    speedup: Speedup | None
    tie_set: list[str]
    rounds: int
    reason: str
    roofline: Roofline | None
    session_id: str
    environment_id: str
    decided_at: str
    provenance: Provenance
    stale: str = Field(
        default="",
        description="What has changed since this was measured: drivers, libraries, or the kernel's version. "
        "Left out where nothing has.",
    )
    alternative: bool = Field(
        default=False,
        description="true: the winner does not meet the filters; this is the fastest that does.",
    )
    verified: Literal["five seeds", "one seed"] = Field(
        default="five seeds", description="Only a winner is proven on five seeds."
    )
    phase: Literal["screen", "final"] = Field(default="final", description="Where an alternative was timed.")
    packing: Packing | None = Field(
        default=None, description="Of a solution that reads a packed copy of the weights; else left out."
    )


class BestExact(_Measured):
    """Measured for this very problem."""

    match: Literal["exact"]


class TransferRegret(Answer):
    """How much slower than the best the solution was on so many other near problems: the median, and the
    80th percentile."""

    median: float
    p80: float
    pairs: int


class BestNearest(_Measured):
    """Measured for a near problem, and legal for the one asked. Where `provenance.kind` is pretuned, which
    only requests with `imported` get, it was not measured here but is of the pre-tuned table that `source`
    names."""

    match: Literal["nearest"]
    distance: float = Field(description="Euclidean, in doublings of m, n, k and batch; at most 2.")
    transfer_regret: TransferRegret | None
    asked: dict[str, Any]
    asked_id: str
    notes: list[str]


class _Asked(Answer):
    problem_id: str
    asked: dict[str, Any]
    device_class: str
    policy_id: str
    reason: str
    notes: list[str]


class BestImported(_Asked):
    """What an imported file says; null is its stack's default."""

    match: Literal["imported"]
    solution: Solution | None
    seconds: float | None
    judgement: Judgement | None = Field(
        default=None, description="As the file says, like baseline and speedup; left out where it says none."
    )
    baseline: BaselineAnswer | None = None
    speedup: Speedup | None = None
    provenance: Provenance


class BestDefault(_Asked):
    """Nothing is known: the default stays."""

    match: Literal["default"]
    solution: None


BestAnswer = Annotated[BestExact | BestNearest | BestImported | BestDefault, Field(discriminator="match")]


class Best(RootModel[BestAnswer]):
    """`match` says how far the answer goes: exact, nearest, imported or default."""


class BestAnswers(Answer):
    """An answer a problem, in their order."""

    results: list[Best]


# ---- operations ----------------------------------------------------------------------------------


class Login(Answer):
    """A browser's login: the key's name, what it may do, and for how many seconds."""

    name: str
    scopes: list[str]
    seconds: int


class Health(Answer):
    """The process lives."""

    status: Literal["ok"]


class Ready(Answer):
    """The service can work."""

    status: Literal["ready"]
    schema_: str = Field(alias="schema", description="The database's revision.")
    workers: int = Field(description="Workers of all device classes that beat within half a minute.")
