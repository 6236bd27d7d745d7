"""benchmarks/bounds.py: the gain at a bound, and ceilings from bounds."""

from __future__ import annotations

import pytest

from backends.problem import GemmProblem, from_linear
from benchmarks.bounds import LAUNCH_US, ceilings_of_bounds, gain_at_bound
from tuners.ceilings import Ceilings
from tuners.roofline import bound

CEILINGS = Ceilings(3.1e12, 2.8e12, {"bf16": 8e14, "fp16": 8e14})
MEMORY = [from_linear(m, 4096, k, "bf16") for m, k in ((1, 4096), (32, 1024), (8, 14336))]
COMPUTE = [from_linear(4096, n, 4096, "bf16") for n in (4096, 8192)]


def known(problems: list[GemmProblem]) -> list[tuple[GemmProblem, float]]:
    return [(one, bound(one, CEILINGS).seconds) for one in problems]


def test_a_launch_at_the_bound_takes_its_own_time_too() -> None:
    assert gain_at_bound(2 * (10 + LAUNCH_US), 10) == pytest.approx(2.0)


def test_ceilings_are_those_that_the_bounds_were_made_of() -> None:
    found = ceilings_of_bounds(known([*MEMORY, *COMPUTE]))
    assert found.read_bytes_per_second == pytest.approx(CEILINGS.read_bytes_per_second)
    assert found.copy_bytes_per_second == pytest.approx(CEILINGS.copy_bytes_per_second)
    assert found.flops_per_second == {"bf16": pytest.approx(8e14)}


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (known(MEMORY), "two or more of each"),
        (known([*MEMORY[:1], *COMPUTE]), "two or more of each"),
        (known([*MEMORY, from_linear(1, 64, 64, "fp16"), *COMPUTE]), "multiply in one type"),
        ([(MEMORY[0], 1e-4), *known([*MEMORY[1:], *COMPUTE])], "one pair of ceilings"),
        ([], "multiply in one type"),
    ],
)
def test_bounds_that_tell_no_ceilings_are_refused(bounds: list[tuple[GemmProblem, float]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ceilings_of_bounds(bounds)
