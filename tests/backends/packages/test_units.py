"""Whether a package is of one number of multiprocessors, as the grids of its kernels say."""

from __future__ import annotations

import pytest

from backends.kernel_checks.candidates import environment_of
from backends.kernels.families import FAMILIES
from backends.kernels.legality import arch_of
from backends.packages.package import follows_units
from backends.problem import from_linear, from_mm
from tests.backends.weight_samples import weights

NAMES = [name for name, family in FAMILIES.items() if "blocks_per_unit" in family.choices]
#: Of many tiles each.
PROBLEMS = (
    from_linear(1, 4096, 4096, "bf16"), from_linear(3, 4096, 4096, "bf16"), from_mm(4096, 4096, 4096, "bf16"),
    weights(200, 28672, 4096), weights(4096, 4096, 4096),
    weights(1, 28672, 4096, zero_b="eight", prepacked=True),
    from_linear(512, 4096, 4096, "bf16", groups=8, routing="skewed"),
    weights(512, 4096, 4096, groups=8, routing="skewed"),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_grids_depend_on_the_multiprocessors_where_it_is_said(name: str) -> None:
    """Of the first and the last candidates."""
    family = FAMILIES[name]
    arch = "sm_90" if "cuda" in family.vendors else "gfx1100" if name.endswith("wmma") else "gfx942"
    there, seen = environment_of(arch), set()
    for problem in PROBLEMS:
        listed = list(family.solutions(problem, there)) if family.supports(problem) else []
        for solution in (*listed[:4], *listed[-4:]):
            config = family.config(problem, solution.parameters, arch_of(there))
            grids = {config.on(units).grid for units in (3, 7)}
            assert (len(grids) > 1) == follows_units(solution), solution.slug
            seen.add(solution.id)
    assert seen
