"""Grouped products: rows sorted by group, each group multiplied by its own weights, as a mixture of experts
does.

A grouped product of rows x[m,k] by weights w[groups,n,k] means

    D[i] = x[i] w[g(i)]^T    where the rows of group g are those before ends[g] and after group g - 1's

Only the device knows the ends: int32 [groups], the operand `offsets`, as torch's _grouped_mm takes them. A
call may have any counts of rows, also none for some groups. Rows after the last end are not written.

In canonical terms the weights are A, transposed, `groups` of them `stride_a` elements apart; the rows are the
n columns of B and of D.

Operands of fp8_e4m3, or on gfx942 of fp8_e4m3_fnuz, have scales in fp32. A block of 128 x 128 weights has
one, [groups, n/128, k/128], and 128 elements of a row of x, [m, k/128] (block_128x128 with block_1x128, what
DeepSeek-V3 ships); or every row of weights has one, [groups, n], and every row of x, [m] (outer).

A product of 16-bit weights may have the activation `swiglu`, as the first product of an expert has. The first
half of a group's rows of weights is the gate's, the second half up's, and D has half as many columns:

    D[i, j] = silu(y[i, j]) y[i, n/2 + j]    where y[i] = x[i] w[g(i)]^T, in fp32

Weights of 4 bits beside rows of bf16 or fp16 are stored as quantisation.py says, those of one group after
those of another: scales, of 32, 64 or 128 elements of k each, are [groups, n, k / 32], and zero points
likewise. gpt-oss ships MXFP4.

What a product costs depends on the counts, so a problem states how rows are distributed (`routing`):

    uniform   every row draws its group by itself, all groups alike
    skewed    the same, but the group of rank r has the weight exp(SKEW z), z the normal quantile of
              (r + 1/2) / groups: log-normal popularity. The most popular of 128 groups has 12 times the mean
    counts    given: so many rows for each group

Draws are the same on every machine: row i of the product draws with splitmix64 of i, and of draw d with that
of 2^32 STARTS[d] + i. With these draws the rows of one token are of different groups in Mixtral (2 of 8),
Qwen3 (8 of 128), DeepSeek-V3 (8 of 256) and gpt-oss (4 of 32). A named routing identifies a problem without
its counts, so that one tuned row serves every call with as many rows. Of few rows a group a call's time
depends on the draw: the tiles of one draw may fill the device's last wave, and those of another not. So
timed launches take turns among draws, and their time is a mean (draws_of).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from backends.dtypes import shown
from backends.errors import InvalidProblem
from backends.problem_rules import SWIGLU, ProblemFields, check_size
from backends.quantisation import GROUPS, TRANSPOSED, scale_words

#: No groups; the named distributions of rows. A list of counts is written with commas between them.
NO_ROUTING, NAMED = "none", ("uniform", "skewed")
#: torch's _grouped_mm takes fewer than 1024.
MOST_GROUPS = 1023
#: Where the draws of a named routing start. Up to so many rows a group, launches take turns among them.
STARTS, FEW_ROWS = (0, 69, 95, 111), 16
#: The standard deviation of the logarithm of skewed popularities.
SKEW = 1.2
#: What families call the rows of a group that a tile has.
ROWS_OF_A_TILE = ("tile_n", "columns", "BLOCK_SIZE_M")
#: Types of operands without scales, and the type of those that have scales; with it the format of gfx942.
TYPES, SCALED_TYPE = ("bf16", "fp16"), "fp8_e4m3"
SCALED_TYPES = (SCALED_TYPE, "fp8_e4m3_fnuz")
#: Types of quantised weights, beside rows of TYPES.
QUANTISED_TYPES = ("int4", "uint4", "fp4_e2m1")
#: Scales of the weights and of the rows, in canonical terms.
SCALES = (("block_128x128", "block_1x128"), ("outer", "outer"))
#: Outputs of scaled products.
_SCALED_OUTPUTS = ("bf16", "fp16", "fp32")

#: A count as text: as JSON writes it, and of no more digits than 2^31 - 1 has.
_COUNT = re.compile("0|[1-9][0-9]{0,9}")

Fields = TypeVar("Fields", bound=ProblemFields)
Counts = npt.NDArray[np.int64]


def routing_of(value: object, groups: int) -> str:
    """The canonical routing of what a caller gives: a name, or the counts of rows of the groups. Raises
    InvalidProblem."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        if not value and groups:  # their text would be no routing
            raise InvalidProblem(f"routing has 0 counts for {groups} groups", "routing")
        for place, count in enumerate(value):
            try:
                check_size(count, f"routing[{place}]", 2**31 - 1, least=0)
            except InvalidProblem as error:
                raise InvalidProblem(str(error), "routing") from None
        return ",".join(map(str, value))
    raise InvalidProblem(
        f"routing must be one of {', '.join(NAMED)} or a list of {groups} counts, not {value!r}", "routing"
    )


def given_counts(routing: str) -> list[int] | None:
    """The counts that a canonical routing gives; None for a name."""
    parts = routing.split(",")
    return [int(part) for part in parts] if all(map(_COUNT.fullmatch, parts)) else None


def check_groups(p: ProblemFields) -> None:
    """Checks what only grouped products have, and that nothing else has it. Raises InvalidProblem."""
    check_size(p.groups, "groups", MOST_GROUPS, least=0)
    if p.groups == 0:
        if p.routing != NO_ROUTING:
            raise InvalidProblem(
                f"routing {shown(p.routing)}: only a grouped product has one; give groups", "routing"
            )
        if gated(p):
            raise InvalidProblem(
                "activation swiglu: only a grouped product has it; give groups", "activation"
            )
        return
    one_type = p.dtype_a in (*TYPES, *SCALED_TYPES) and p.dtype_b == p.dtype_a
    if not (one_type or quantised_groups(p)) or p.compute != "fp32":
        raise InvalidProblem(
            f"groups {p.groups}: grouped products are of {', '.join((*TYPES, *SCALED_TYPES))}, or of weights "
            f"of {', '.join(QUANTISED_TYPES)} by {' or '.join(TYPES)}, in fp32, not {p.dtype_a} x "
            f"{p.dtype_b} in {p.compute}",
            "groups",
        )
    for name, needed, why in (
        ("trans_a", "T", f"weights are contiguous along k {TRANSPOSED}"),
        ("trans_b", "N", "rows are contiguous along k and not transposed, as F.linear's x[m,k]"),
        ("batch", 1, "groups are one product"), ("alpha", "one", "grouped products are not scaled"),
        ("beta", "zero", "nothing is added to a grouped product"),
        ("bias", None, "grouped products have no bias: add each group's to its rows afterwards"),
        ("scale_d", "none", "outputs of grouped products have no scale"),
    ):  # fmt: skip
        if getattr(p, name) != needed:
            raise InvalidProblem(f"{name} {getattr(p, name)}: {why}", name)
    _check_activation(p)
    _check_scales(p)
    if p.stride_a < p.lda * (p.m - 1) + p.k:
        raise InvalidProblem(
            f"stride_a {p.stride_a} makes the weights of groups overlap (m={p.m}, k={p.k}, lda={p.lda})",
            "stride_a",
        )
    _check_routing(p)


def _check_activation(p: ProblemFields) -> None:
    if p.activation == "none":
        return
    if not gated(p):
        raise InvalidProblem(
            f"activation {p.activation}: grouped products have no activation but {SWIGLU}", "activation"
        )
    if p.dtype_a not in TYPES or p.dtype_b != p.dtype_a:
        raise InvalidProblem(
            f"activation {SWIGLU}: grouped products of {' or '.join(TYPES)} have it, not of {p.dtype_a} x "
            f"{p.dtype_b}: apply it afterwards",
            "activation",
        )
    if p.m % 2:
        raise InvalidProblem(
            f"activation {SWIGLU}: half of the {p.m} rows of weights are the gate's, so their number must "
            "be even",
            "activation",
        )


def _check_scales(p: ProblemFields) -> None:
    if p.dtype_a in TYPES:
        for name in ("scale_a", "scale_b"):
            if getattr(p, name) != "none":
                why = f"grouped products of {p.dtype_a} have no scales"
                raise InvalidProblem(f"{name} {getattr(p, name)}: {why}", name)
        return
    if p.weight_only:
        if p.scale_a not in GROUPS:
            raise InvalidProblem(
                f"scale_a {p.scale_a}: quantised weights of grouped products have scales of groups of k: "
                f"{', '.join(map(scale_words, GROUPS))}",
                "scale_a",
            )
        return
    if (p.scale_a, p.scale_b) not in SCALES:
        raise InvalidProblem(
            f"grouped products of {p.dtype_a} have scales of blocks (block_128x128 of the weights with "
            f"block_1x128 of the rows) or of both's rows (outer), not {p.scale_a} of the weights with "
            f"{p.scale_b} of the rows",
            "scale_a",
        )
    if p.scale_dtype != "fp32":
        raise InvalidProblem(
            f"scale_dtype {p.scale_dtype}: scales of grouped products are fp32", "scale_dtype"
        )
    if p.dtype_d not in _SCALED_OUTPUTS:
        raise InvalidProblem(
            f"dtype_d {p.dtype_d}: grouped products of {p.dtype_a} have outputs of "
            f"{', '.join(_SCALED_OUTPUTS)}",
            "dtype_d",
        )
    if p.fast_accumulation:
        raise InvalidProblem(
            "fast_accumulation true: sums of grouped products are added in fp32", "fast_accumulation"
        )


def _check_routing(p: ProblemFields) -> None:
    if not isinstance(p.routing, str):
        raise InvalidProblem(f"routing must be a string, not {p.routing!r}", "routing")
    if p.routing in NAMED:
        return
    found = given_counts(p.routing)
    if found is None:
        known = ", ".join(NAMED)
        raise InvalidProblem(
            f"routing {shown(p.routing)} is unknown; known: {known}, or a list of counts", "routing"
        )
    if len(found) != p.groups:
        raise InvalidProblem(f"routing has {len(found)} counts for {p.groups} groups", "routing")
    if sum(found) != p.n:
        raise InvalidProblem(
            f"routing has counts of {sum(found)} rows in all, and the product has {p.n}", "routing"
        )


def draws_of(p: ProblemFields) -> int:
    """How many draws of its routing a problem stands for: 1 where the counts are given, or where groups have
    so many rows that draws hardly differ."""
    return len(STARTS) if p.routing in NAMED and p.n <= FEW_ROWS * p.groups else 1


def counts_of(p: ProblemFields, draw: int = 0) -> Counts:
    """Rows of each group, int64 [groups], of which the product has p.n in all, of one of its draws;
    read-only. Results are verified with the first."""
    return _counts(p.n, p.groups, p.routing, draw)


@lru_cache(maxsize=256)
def _counts(rows: int, groups: int, routing: str, draw: int) -> Counts:
    given = given_counts(routing)
    if given is not None:
        found = np.array(given, np.int64)
    else:
        edges = np.cumsum(popularities(groups, routing))
        drawn = np.searchsorted(edges / edges[-1], _uniform(STARTS[draw] << 32, rows), side="right")
        found = np.bincount(np.minimum(drawn, groups - 1), minlength=groups).astype(np.int64)
    found.flags.writeable = False
    return found


def popularities(groups: int, routing: str) -> npt.NDArray[np.float64]:
    """The weight of each group, [groups], of a named routing."""
    if routing == "uniform":
        return np.ones(groups)
    quantile = NormalDist().inv_cdf
    by_rank = np.exp([SKEW * quantile((rank + 0.5) / groups) for rank in range(groups)])
    order = np.argsort(_mixed(np.arange(groups, dtype=np.uint64)), kind="stable")
    found = np.empty(groups)
    found[order] = by_rank  # popular groups lie anywhere
    return found


def routing_of_draw(p: ProblemFields, draw: int) -> str:
    """The routing that gives the counts of one of the problem's draws."""
    return ",".join(map(str, counts_of(p, draw).tolist()))


def ends_of(p: ProblemFields, draw: int = 0) -> npt.NDArray[np.int32]:
    """Ends of the groups' rows, int32 [groups]: the operand `offsets`."""
    return np.cumsum(counts_of(p, draw)).astype(np.int32)


def check_ends(ends: Iterable[int], rows: int) -> None:
    """Raises InvalidProblem for ends that are below 0, beyond so many rows, or before the end of the group
    before: of one that goes back two groups would have the same rows."""
    before = 0
    for group, end in enumerate(ends):
        if not before <= end <= rows:
            raise InvalidProblem(
                f"offsets[{group}] is {end}; the end of a group is at least that of the group before it, "
                f"{before}, and at most the product's rows, {rows}",
                "offsets",
            )
        before = end


def spans_of(p: ProblemFields) -> list[tuple[int, int, int]]:
    """(group, first row, end) of every group that has rows."""
    ends = ends_of(p).tolist()
    starts = [0, *ends[:-1]]
    return [(g, start, end) for g, (start, end) in enumerate(zip(starts, ends, strict=True)) if end > start]


def gated(p: ProblemFields) -> bool:
    """Whether pairs of rows of weights make one column of the call's output: the activation swiglu."""
    return p.activation == SWIGLU


def with_swiglu(p: Fields) -> Fields | None:
    """The grouped product with swiglu and a packed output; None for what has none: products of one matrix, of
    other types or of an odd number of rows of weights, and those that have it already."""
    typed = p.dtype_a in TYPES and p.dtype_b == p.dtype_a
    if not p.groups or not typed or p.m % 2 or p.activation != "none":
        return None
    return replace(p, activation=SWIGLU, ldc=p.m // 2, ldd=p.m // 2)


def quantised_groups(p: ProblemFields) -> bool:
    """Whether the weights of a grouped product are of 4 bits."""
    return p.groups > 0 and p.weight_only and p.dtype_a in QUANTISED_TYPES


def scaled_blocks(p: ProblemFields) -> bool:
    """Whether blocks of a grouped product's operands have scales; else rows, or nothing."""
    return p.groups > 0 and (p.scale_a, p.scale_b) == SCALES[0]


def active_groups(p: ProblemFields) -> float:
    """Groups that have rows: the mean of the problem's draws."""
    return fmean(int(np.count_nonzero(counts_of(p, draw))) for draw in range(draws_of(p)))


def weight_reads(p: ProblemFields, rows: int) -> float:
    """How often the weights of a group are read, in all groups together, where a tile has so many of its
    rows: the mean of the problem's draws."""
    return _tiles(p.n, p.groups, p.routing, draws_of(p), rows)


@lru_cache(maxsize=256)
def _tiles(n: int, groups: int, routing: str, draws: int, rows: int) -> float:
    """See weight_reads(). A search asks thousands of times."""
    every = (_counts(n, groups, routing, draw) for draw in range(draws))
    return fmean(int((-(-counts // rows)).sum()) for counts in every)


def rows_of_a_tile(parameters: Mapping[str, Any]) -> int | None:
    """The rows of a group that a tile of a solution has; None where its parameters do not say it, as those of
    a library's call."""
    return next((parameters[name] for name in ROWS_OF_A_TILE if name in parameters), None)


def ungrouped(p: ProblemFields) -> str | None:
    """The rule that a grouped product breaks in every family that was not made for one, or None. Every such
    family asks this first; tests ask every family of every backend."""
    return f"{p.groups} groups of rows have weights each; this is for one matrix" if p.groups else None


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64 of each number: uniform 64-bit integers."""
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return found


def _uniform(start: int, count: int) -> npt.NDArray[Any]:
    """`count` draws from [0, 1), of the numbers from `start` on."""
    numbers = np.arange(start, start + count, dtype=np.uint64)
    return (_mixed(numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53
