"""Every family computes right, as its header is: the same text as a GPU's, on the host's fibers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backends.kernels.families import FAMILIES
from backends.kernels.family import Configuration
from backends.kernels.legality import arch_of
from backends.kernels.streaming import StreamFamily
from backends.problem import GemmProblem, from_blas, from_bmm
from tests.backends.kernels.host import H200, HostDevice, HostKernel, build
from tests.backends.kernels.samples import PROBLEMS, legal_values, sizes_of_one
from tuners.inputs import Case
from tuners.verify import Verifier

#: Wide warps are AMD's.
MI300X = replace(H200, vendor="hip", arch="gfx942", product="AMD Instinct MI300X", units=304)
#: Of warps of 64 threads.
WIDE = ("one", "nt", "tt", "fp16 batch", "one column, odd", "one column across k", "three columns across k",
        "five columns, odd", "seven columns batch", "sixteen columns")  # fmt: skip


def _sample(problem: GemmProblem, warp: int, seed: int) -> list[Configuration]:
    """One configuration of each family, two of those for few columns."""
    environment = H200 if warp == 32 else MI300X
    assert arch_of(environment).warp == warp
    found = []
    for family in FAMILIES.values():
        if environment.vendor in family.vendors:
            most = 2 if isinstance(family, StreamFamily) else 1
            sample = legal_values(family, problem, environment, most, seed)
            found += [family.configuration(problem, values, warp) for values in sample]
    return found


def _check(problem: GemmProblem, sample: list[Configuration], folder: Path, warp: int) -> None:
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for built in build(sample, folder, warp):
        for other_way in (False, True):
            case = Case(problem, 3, "normal", "exact")
            finding = verifier.check(HostKernel(built, other_way), case, runs=1)
            assert finding.wrong == "", (built.found.instantiation, built.found.splits, other_way)


@pytest.mark.parametrize(("name", "warp"), [(name, 32) for name in PROBLEMS] + [(name, 64) for name in WIDE])
def test_every_family_computes_right(name: str, warp: int, tmp_path: Path) -> None:
    problem = PROBLEMS[name]
    _check(problem, _sample(problem, warp, seed=list(PROBLEMS).index(name)), tmp_path, warp)


def test_every_size_may_be_one(tmp_path: Path) -> None:
    for number, problem in enumerate(sizes_of_one()):
        folder = tmp_path / str(number)
        folder.mkdir()
        sample = [
            one
            for name in ("gemv", "skinny", "small-batch", "async-copy", "double-buffered")
            for one in [
                FAMILIES[name].configuration(problem, values)
                for values in legal_values(FAMILIES[name], problem, H200, 1, number)
            ]
        ]
        _check(problem, sample, folder, 32)


def _transposes(dtype: str, sizes: tuple[int, int, int, int]) -> list[GemmProblem]:
    """A batch in every transpose; of no whole loads where sizes are odd."""
    m, n, k, batch = sizes
    return [
        from_blas(m, n, k, dtype, trans_a=a, trans_b=b, batch=batch, dtype_d="fp32", beta=beta, bias="fp32")
        for a, b, beta in (("N", "N", 0.0), ("N", "T", 1.0), ("T", "N", 0.0), ("T", "T", 1.0))
    ]


@pytest.mark.parametrize("warp", [32, 64])
def test_a_pipeline_is_right_in_every_transpose_and_depth(warp: int, tmp_path: Path) -> None:
    """Whole loads and ragged ones, k of several tiles and of less than one; blocks of several sets of
    products and an end of the batch within one. Copies come as late as a wait allows, and at once."""
    environment = H200 if warp == 32 else MI300X
    made: dict[str, list[GemmProblem]] = {
        # Tiles within D and beyond it.
        "async-copy": [*_transposes("fp32", (260, 264, 84, 2)), *_transposes("fp32", (67, 130, 77, 1)),
                       *_transposes("fp32", (64, 128, 5, 1))[2:]],
        # Products that fill their tile and that do not.
        "small-batch": [*_transposes("fp32", (16, 32, 24, 13)), *_transposes("fp32", (33, 7, 19, 13)),
                        *_transposes("bf16", (64, 8, 48, 9)), *_transposes("bf16", (24, 40, 56, 9)),
                        *_transposes("fp16", (11, 50, 21, 9)), from_bmm(21, 8, 16, 24, "bf16", stride_a=0)],
    }  # fmt: skip
    for name, problems in made.items():
        family = FAMILIES[name]
        found = [
            (problem, family.configuration(problem, values, warp))
            for seed, problem in enumerate(problems)
            for values in legal_values(family, problem, environment, 1, seed)
        ]
        assert len(found) == len(problems)
        folder = tmp_path / name
        folder.mkdir()
        verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
        for (problem, one), built in zip(found, build([one for _, one in found], folder, warp), strict=True):
            for other_way in (False, True):
                finding = verifier.check(
                    HostKernel(built, other_way), Case(problem, 3, "normal", "exact"), runs=1
                )
                assert finding.wrong == "", (one.instantiation, problem.slug, other_way)
