"""The request models, which validate what comes in, and the error document. service.answers has the response
models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationInfo, field_validator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from backends.grouping import MOST_GROUPS, NAMED, NO_ROUTING
from backends.problem_rules import ALIGNMENTS, MAX_SIZE, MAX_STRIDE
from tuners.budget import Search
from tuners.campaign_shares import LEAST_SECONDS, LONGEST_SECONDS, MOST_SECONDS
from tuners.effort import EFFORTS, effort_help
from tuners.policy import CACHES, DISTRIBUTIONS, MODES
from tuners.strategies import STRATEGIES

INT64 = 2**63 - 1
#: Largest call count of a problem, and largest sum over equal problems.
MAX_COUNT = 2**31 - 1


class Strict(BaseModel):
    """A request: unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


# ---- problems ------------------------------------------------------------------------------------

_Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
_Leading = Annotated[int, Field(ge=1, le=MAX_STRIDE)]
_Stride = Annotated[int, Field(ge=0, le=MAX_STRIDE)]
_Transposed = Annotated[bool | Literal["N", "T", "C"], Field(description="Stored transposed.")]


class Strides(Strict):
    """Elements between the matrices of a batch; 0 broadcasts an input."""

    a: _Stride | None = None
    b: _Stride | None = None
    c: _Stride | None = None
    d: _Stride | None = None


class Epilogue(Strict):
    """What follows the product, spelt out."""

    activation: Literal["none", "relu", "gelu", "silu", "swiglu"] | None = None
    bias: bool | str | None = Field(default=None, description="true: of the output's type; or a type.")
    bias_axis: Literal["m", "n"] | None = None


class Scaling(Strict):
    """Scales of the operands."""

    a: str | None = None
    b: str | None = None
    d: Literal["none", "tensor"] | None = None
    dtype: str | None = None
    zero_a: str | None = None
    zero_b: str | None = Field(
        default=None, description="Zero point of quantised weights: none, eight, uint4, float, shift."
    )


class Problem(Strict):
    """Row-major C[m,n] = A[m,k] B[k,n] unless told otherwise; m, n and k are enough."""

    m: _Size
    n: _Size
    k: _Size
    dtype: str | None = Field(default=None, description="Of A, and of all that is not given. Default fp32.")
    batch: _Size | None = None
    trans_a: _Transposed | None = None
    trans_b: _Transposed | None = None
    dtype_a: str | None = None
    dtype_b: str | None = None
    dtype_c: str | None = None
    dtype_d: str | None = None
    compute: str | None = None
    epilogue: str | Epilogue | None = Field(default=None, description="none, bias, relu, bias_relu, ...")
    scaling: str | Scaling | None = Field(default=None, description="none, tensor, row, block_1x128, ...")
    groups: Annotated[int, Field(ge=0, le=MOST_GROUPS)] | None = Field(
        default=None,
        description="A grouped product: B is so many weight matrices, A's rows are sorted by group.",
    )
    routing: Literal[(*NAMED, NO_ROUTING)] | list[Annotated[int, Field(ge=0, le=MAX_SIZE)]] | None = Field(  # type: ignore[valid-type]
        default=None, description="How A's rows are distributed over the groups; or the rows of each."
    )
    alpha: float | None = None
    beta: float | None = None
    lda: _Leading | None = None
    ldb: _Leading | None = None
    ldc: _Leading | None = None
    ldd: _Leading | None = None
    strides: Strides | None = None
    layout: Literal["row", "col"] | None = None
    alignment: Annotated[int, WithJsonSchema({"type": "integer", "enum": list(ALIGNMENTS)})] | None = None
    fast_accumulation: bool | None = None
    prepacked: bool | None = Field(
        default=None,
        description="The program packs quantised weights once, at load, into the layout that the solution "
        "names; packing is not part of the time.",
    )


class CountedProblem(Problem):
    """A problem and how often it is called."""

    count: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1


class BudgetRequest(Strict):
    """Of each problem; but for `campaign_seconds`, which are all problems' together."""

    seconds_per_problem: Annotated[float, Field(ge=0.01, le=3600)] | None = Field(
        default=None, description="Of measuring. Default: the effort's."
    )
    campaign_seconds: Annotated[float, Field(ge=LEAST_SECONDS, le=LONGEST_SECONDS)] | None = Field(
        default=None,
        description="Of measuring all problems together, shared by their calls and expected gains: "
        f"{LEAST_SECONDS:g} to {MOST_SECONDS:g} s a problem, the largest expected savings first. Not beside "
        "`seconds_per_problem`.",
    )
    candidates: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    effort: Literal[tuple(EFFORTS)] | None = Field(  # type: ignore[valid-type]
        default=None,
        description=f"A named set of options ({effort_help()}); options given beside it replace its own. "
        "Default: normal, whose seconds GEMMTUNE_SECONDS_PER_PROBLEM sets.",
    )
    stop_at_roofline: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Ends the search once a candidate reaches this share of the roofline."
    )
    stop_at_regret: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None,
        description="Ends the search once the last doubling of the number of timed candidates made the best "
        "one faster by no more than this share.",
    )

    @field_validator("campaign_seconds")
    @classmethod
    def _alone(cls, value: float | None, others: ValidationInfo) -> float | None:
        if value is not None and others.data.get("seconds_per_problem") is not None:
            raise PydanticCustomError("not_both", "give campaign_seconds or seconds_per_problem, not both")
        return value


class PolicyRequest(Strict):
    """How figures are taken."""

    mode: Literal[MODES] | None = Field(  # type: ignore[valid-type]
        default=None, description="Default: the device's, graph on a GPU and eager on a CPU."
    )
    cache: Literal[CACHES] = "cold"  # type: ignore[valid-type]
    distribution: Literal[DISTRIBUTIONS] = "normal"  # type: ignore[valid-type]
    max_workspace_bytes: Annotated[int, Field(ge=0, le=INT64)] | None = None
    deterministic_only: bool = False
    memory_share: Annotated[float, Field(gt=0, le=0.9)] = 0.5


Families = Annotated[
    list[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,80}$")]], Field(min_length=1, max_length=100)
]


class SearchRequest(Strict):
    """How candidates are looked for."""

    strategy: Literal[tuple(STRATEGIES)] = Search.strategy  # type: ignore[valid-type]
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    families: Families | None = None
    options: dict[str, bool | int | float | Annotated[str, Field(max_length=80)]] = Field(
        default_factory=dict, max_length=50, description="The strategy's own options (docs/strategies.md)."
    )


class RuleRequest(Strict):
    """When a candidate wins."""

    margin: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="Least relative gain over the baseline. Default: GEMMTUNE_MARGIN."
    )


class TuningOptions(Strict):
    """What is asked of every problem of a tuning."""

    device: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="A device selector. Without it the only class that can be meant."
    )
    budget: BudgetRequest = Field(default_factory=BudgetRequest)
    policy: PolicyRequest = Field(default_factory=PolicyRequest)
    search: SearchRequest = Field(default_factory=SearchRequest)
    rule: RuleRequest = Field(default_factory=RuleRequest)
    priority: Annotated[int, Field(ge=1, le=1000)] = Field(default=10, description="1 is measured first.")
    force: bool = Field(default=False, description="Measures again what is known already.")


class TuningRequest(TuningOptions):
    """Only problems must be given. Equal problems are merged and their counts added."""

    problems: Annotated[list[SkipValidation[CountedProblem]], Field(min_length=1)]


class BestRequest(Strict):
    """Only problems must be given; the rest is as in the query of GET."""

    problems: Annotated[list[SkipValidation[Problem]], Field(min_length=1)]
    device: Annotated[str, Field(max_length=200)] | None = None
    policy: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,80}$")] | None = Field(
        default=None, description="A measurement policy's id; or give mode and cache."
    )
    mode: Literal[MODES] | None = Field(  # type: ignore[valid-type]
        default=None, description="Default: the device's, graph on a GPU and eager on a CPU."
    )
    cache: Literal[CACHES] | None = None  # type: ignore[valid-type]
    max_workspace: Annotated[int, Field(ge=0, le=INT64)] | None = None
    deterministic: bool = False
    families: Families | None = None
    imported: bool = False


class LoginRequest(Strict):
    """A key, to be exchanged for a cookie."""

    key: Annotated[str, Field(max_length=200)]


class FaultPart(BaseModel):
    """One fault: where (a JSON pointer into the body, or a parameter), and what."""

    pointer: str | None = None
    parameter: str | None = None
    detail: str


class Fault(BaseModel):
    """An error (RFC 9457, application/problem+json). `errors` lists every fault of a request; other members
    come with their type: `classes`, `available`, `limit`, `report`."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[FaultPart] | None = None
