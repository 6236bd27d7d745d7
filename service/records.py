"""Response models, like those of service.answers: stored records, and files."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.answers import SEARCH_ENDED, Answer, Packing, Solution, Status, TuningLinks, Verdict
from service.schemas import CountedProblem
from service.standing import Standing

# ---- what is stored ------------------------------------------------------------------------------


class SolutionAnswer(Solution):
    """A solution, and how often it was measured and won."""

    verdicts_won: int
    measurements: int
    created_at: str


class ProblemSummary(Answer):
    """`problem` is the row-major form that people write, `canonical` the stored column-major one."""

    id: str
    problem: dict[str, Any]
    canonical: dict[str, Any]
    created_at: str


class ProblemVerdict(Answer):
    """One session's verdict."""

    session_id: str
    device_class: str
    policy_id: str
    verdict: Verdict
    roofline_share: float | None
    binds: str | None
    decided_at: str


class ProblemKey(Answer):
    """A tool's own words for the problem, and its calls there."""

    format: str
    key: str
    count: int


class ProblemAnswer(ProblemSummary):
    """A problem with its latest verdicts first."""

    verdicts: list[ProblemVerdict]
    keys: list[ProblemKey]


OutcomeStatus = Literal[
    "ok", "pruned", "unstable", "illegal", "compile_error", "launch_error", "crash", "timeout",
    "out_of_memory", "wrong_result",
]  # fmt: skip
Phase = Literal["screen", "final", "proof"]


class Measurement(Answer):
    """What became of one candidate; `samples` are seconds a call, empty once retention cleared them."""

    number: int
    session_id: str
    device_class: str
    environment_id: str
    policy_id: str
    solution: Solution
    phase: Phase
    take: int
    status: OutcomeStatus
    seconds: float | None
    samples: list[float]
    evidence: dict[str, Any]
    created_at: str


class Session(Answer):
    """One problem measured in one environment under one policy."""

    id: str
    job_id: str | None
    device_class: str
    environment_id: str
    policy_id: str
    status: Literal["running", "succeeded", "failed", "stopped"]
    error: str | None
    notes: list[str]
    search_ended: str | None = Field(description=SEARCH_ENDED)
    created_at: str
    ended_at: str | None


class PhaseResult(Answer):
    """A candidate's last outcome in one phase."""

    status: OutcomeStatus
    seconds: float | None
    take: int


class SampleInterval(Answer):
    """The median of a candidate's samples with its interval; an end that they do not bound is null."""

    low: float | None
    mid: float
    high: float | None


class Ranked(Answer):
    """A candidate's place by `seconds`, the fastest first, failures last. `phase` says where they were
    taken: only times of finals are of interleaved rounds. `reason` says why it did not win. `resources` are
    the compiled kernel's."""

    rank: int
    solution: Solution
    standing: Literal[tuple(Standing)]  # type: ignore[valid-type]
    reason: str
    phase: Phase
    status: OutcomeStatus
    seconds: float | None
    interval: SampleInterval | None = Field(description="At the session's confidence.")
    samples: list[float]
    resources: dict[str, Any] | None
    packing: Packing | None = Field(description="Of a candidate that reads a packed copy of the weights.")
    evidence: dict[str, Any]
    phases: dict[str, PhaseResult]


class Leaderboard(Answer):
    """Every candidate of a session once; the session is null where the problem was never measured."""

    session: Session | None
    verdict: Verdict | None
    items: list[Ranked]


class Outlier(Answer):
    """A device on which the default takes another time than on the others of its class: the median `ratio`
    over `shapes`, and the `p_value` of a rank test. Its results are in no best row until it agrees."""

    uuid: str
    ratio: float
    shapes: int
    p_value: float
    reason: str
    since: str


class DeviceClass(Answer):
    """Results move only within a class; `workers` are those that live, `outliers` the devices that differ
    from their class."""

    id: str
    vendor: str
    arch: str
    product: str
    units: int
    registered: bool
    revision: int
    workers: int
    environments: int
    outliers: list[Outlier]


class ProvenanceRow(Answer):
    """An imported file, and how many sessions, claims and names of problems it brought."""

    number: int
    kind: str
    format: str
    source: str
    sha256: str
    device_class: str | None = Field(
        description="That the request named, or that a pre-tuned table is of; else null: rows name theirs."
    )
    sessions: int
    claims: int
    keys: int
    created_at: str


class Failure(Answer):
    """What a worker failed: a job, or (`job_id` null) to go on."""

    at: str
    job_id: str | None
    reason: str


WorkerState = Literal["idle", "measuring", "silent", "stopped", "dead"]


class Worker(Answer):
    """A process that owns a device. `silent`: it has not beaten for half a minute."""

    id: str
    host: str
    pid: int
    device_class: str
    environment_id: str
    device_uuid: str
    status: WorkerState
    job_id: str | None
    heartbeat_age_seconds: float = Field(description="By the database's clock.")
    last_failure: Failure | None
    version: str | None = Field(description="gemmtune's; null for a worker of an earlier version.")
    started_at: str
    seen_at: str


class Job(Answer):
    """One problem to be measured for every tuning that asked for it. `error` and `evidence` say why it
    failed; `attempt` counts its starts, `retries` how often it was queued again after a failure."""

    id: str
    status: Status
    attempt: int
    retries: int
    priority: int
    problem: dict[str, Any]
    problem_id: str
    device_class: str
    policy_id: str
    worker_id: str | None
    session_id: str | None
    error: str | None
    evidence: Any
    tunings: list[str]
    age_seconds: float = Field(description="Since it was submitted.")
    created_at: str
    started_at: str | None
    ended_at: str | None


class Devices(Answer):
    """Device classes and the latest workers."""

    classes: list[DeviceClass]
    workers: list[Worker]


class Environment(Answer):
    """What results are true of."""

    id: str
    device_class: str
    environment: dict[str, Any]
    created_at: str


class Backend(Answer):
    """A vendor's part of this installation; `devices` are this machine's."""

    name: str
    available: bool
    devices: list[str]
    families: list[str]
    modes: list[str]
    notes: list[str]


class Backends(Answer):
    """All of them."""

    backends: list[Backend]


# ---- files ---------------------------------------------------------------------------------------


class ImportedProblem(CountedProblem):
    """A problem of the file."""

    id: str


class RejectedLine(Answer):
    """A line that says nothing, and why."""

    line: int
    reason: str


class Kept(Answer):
    """How many were stored, were there already, and were left out."""

    stored: int
    known: int
    skipped: int
    reasons: list[str]


class ImportProvenance(Answer):
    """node: gemmtune's own measurements; pretuned: a pre-tuned table's; imported: what another says. `new` is
    false for a known file."""

    kind: Literal["node", "pretuned", "imported"]
    format: str
    source: str
    sha256: str
    device_class: str | None
    new: bool


class ImportTuning(Answer):
    """The tuning of the file's problems, or the reason why there is none."""

    id: str | None
    total: int
    reason: str | None
    links: TuningLinks | None


class ImportAnswer(Answer):
    """What was read and what was kept; `rejected_more` counts lines beyond those listed."""

    format: str
    problems: list[ImportedProblem]
    rejected: list[RejectedLine]
    rejected_more: int
    claims: Kept
    sessions: Kept
    provenance: ImportProvenance
    tuning: ImportTuning | None


class Omitted(Answer):
    """Rows left out for one reason, with a few problems."""

    count: int
    examples: list[str]


class ExportGain(Answer):
    """Geometric means of baseline time over time, from the stored verdicts: of the `rows` written ones, of
    all measured `problems` (1 where the default stays), and of these with a bundle of our own kernels beside
    the file."""

    rows: int
    geometric_mean: float
    problems: int
    all_problems: float
    with_bundle: float


class ExportReport(Answer):
    """What a file holds, and what it does not, by reason. `gain` is null for a file without a measured row.
    `tune_again` counts omitted rows whose winner the file cannot name, and for which no session judged what
    it can name; `one_seed` counts written rows whose solution was verified on one seed only. `rests_on`:
    where the writer derived a judgement from several rows, the problems of these by what shows it. `stale`
    counts written rows by what has changed since they were measured: a library, a driver, a kernel."""

    format: str
    device_class: str
    policy_id: str
    target: str | None
    written: int
    omitted: dict[str, Omitted]
    gain: ExportGain | None
    tune_again: int
    one_seed: int
    rests_on: dict[str, list[str]]
    stale: dict[str, int]


class BundleReport(ExportReport):
    """What a bundle holds, and what it does not; `gain.geometric_mean` is that of its rows. `target` is the
    architecture that its binaries are for."""

    digest: str
    bytes: int


class BundleProgress(Answer):
    """A bundle that is being built: `done` of `total` rows; both 0 until the rows were read."""

    status: Literal["building"]
    device_class: str
    policy_id: str
    target: str
    done: int
    total: int
