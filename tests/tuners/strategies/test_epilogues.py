"""A search of a grouped product with swiglu begins with what is known of the product without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.environment import Environment
from backends.family_space import FamilySpace
from backends.kernels.families import FAMILIES
from backends.outcome import Status
from backends.problem import GemmProblem, from_linear
from backends.solution import Parameter, Solution
from tests.backends.kernels.emulator.host import H200
from tuners.portfolio.values import Group, Member, Portfolio
from tuners.strategies import PriorResult, SearchContext
from tuners.strategies.guided import Guided

NAMES = ("grouped-wgmma", "grouped-ring", "grouped-tile")


def experts(rows: int, activation: str = "none") -> GemmProblem:
    return from_linear(rows, 1536, 2048, "bf16", groups=128, activation=activation)


def solution(name: str, **parameters: Parameter) -> Solution:
    return Solution(name, FAMILIES[name].version, parameters)


RING = solution(
    "grouped-ring", blocks_per_unit=1, columns=8, rows=32, slots=5, tile_k=128, warps_k=4, warps_m=1
)
WGMMA = solution("grouped-wgmma", blocks_per_unit=2, cluster=1, stages=4, tile_m=128, tile_n=16)
#: Legal without swiglu alone: a team of one warp copies one row at a time; and a family that has no swiglu.
UNPAIRED = solution(
    "grouped-ring", blocks_per_unit=1, columns=8, rows=32, slots=2, tile_k=256, warps_k=2, warps_m=1
)
FUSED = Solution("triton-fused-moe", 1, {"BLOCK_SIZE_M": 16})


def first(
    count: int,
    asked: GemmProblem,
    portfolio: Sequence[Solution] = (),
    history: Sequence[PriorResult] = (),
    here: Environment = H200,
) -> list[Solution]:
    """The candidates that a search asks for first."""
    spaces: Mapping[str, FamilySpace] = {name: FAMILIES[name].space(asked, here) for name in NAMES}
    lists = [iter(FAMILIES[name].solutions(asked, here)) for name in NAMES]
    listed = [next(one) for _ in range(8) for one in lists]
    context = SearchContext(listed, asked, here, spaces=spaces, portfolio=portfolio, history=history)
    return Guided(context).ask(count)


def same(found: Sequence[Solution], wanted: Sequence[Solution]) -> bool:
    return [one.id for one in found] == [one.id for one in wanted]


def test_the_planted_members_are_what_they_are_said_to_be() -> None:
    plain, gated = experts(512), experts(512, "swiglu")
    for one in (RING, WGMMA, UNPAIRED):
        assert FAMILIES[one.family].space(plain, H200).index(one) is not None, one
    space = FAMILIES["grouped-ring"].space(gated, H200)
    index = space.index(UNPAIRED)
    assert index is None or space.at(index) is None


def test_members_that_serve_the_plain_product_come_first() -> None:
    """The nearest first, as for the plain product; those that are illegal with swiglu are left out."""
    far = from_linear(512, 4096, 8192, "bf16", groups=128)
    members = [Member(one, (far,)) for one in (FUSED, WGMMA)]
    members += [Member(one, (experts(512),)) for one in (UNPAIRED, RING)]
    group = Group("cuda", "sm_90", "bf16 -> fp32 -> bf16", members, 2, 0.01, ())
    portfolio = Portfolio([group], {})
    given = portfolio.solutions(experts(512, "swiglu"), H200)
    assert given == portfolio.solutions(experts(512), H200) == [UNPAIRED, RING, FUSED, WGMMA]
    found = first(4, experts(512, "swiglu"), given)
    assert same([one for one in found if one in (RING, WGMMA, UNPAIRED, FUSED)], [RING, WGMMA])
    assert found[0].id == RING.id
    assert UNPAIRED.id in {one.id for one in first(4, experts(512), given)}


def test_winners_of_the_plain_product_come_first() -> None:
    """Those of its own kind before them, if they are as near."""

    def won(of: GemmProblem, *solutions: Solution) -> list[PriorResult]:
        return [PriorResult(of, H200, one, Status.OK, 0.5 + 0.01 * at) for at, one in enumerate(solutions)]

    gated = experts(512, "swiglu")
    plain = won(experts(512), UNPAIRED, RING, FUSED)
    assert first(1, gated, history=plain)[0].id == RING.id
    assert RING.id not in {one.id for one in first(1, gated)}
    own = won(experts(512 + 64, "swiglu"), WGMMA)
    assert first(1, gated, history=[*own, *plain])[0].id == WGMMA.id
