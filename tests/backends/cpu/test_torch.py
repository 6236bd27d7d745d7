"""torch as baseline and candidate, where it is installed."""

from __future__ import annotations

import pytest

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from tuners.inputs import cases
from tuners.verify import Verifier

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "problem",
    [
        from_linear(5, 70, 90, "bf16", bias="bf16", activation="gelu"),
        from_linear(33, 70, 90, "fp16", activation="silu"),
        from_bmm(3, 20, 30, 40, "bf16", stride_b=0, beta=1.0),
        from_mm(20, 30, 40, "fp64", trans_a="T", alpha=2.0, bias="fp64", activation="relu"),
        from_linear(17, 64, 128, "int8"),
    ],
    ids=lambda p: p.slug,
)
def test_torch_computes_right_and_leads_the_baselines_of_short_types(
    problem: GemmProblem, cache: BinaryCache
) -> None:
    backend = CpuBackend()
    environment = backend.probe().devices[0]
    family = backend.families()["torch"]
    assert family.unavailable(environment) is None
    if problem.dtype_a in ("bf16", "fp16", "int8"):
        assert backend.baselines(problem, environment)[0].name == "torch"
    device = backend.open(0, cache)
    verifier = Verifier(device)
    checked = 0
    for solution in family.solutions(problem, environment):
        for case in cases(problem, 3, 5):
            if family.supports(case.problem):
                finding = verifier.check(device.load(case.problem, solution, None), case)
                assert finding.wrong == "", (solution.id, case)
                checked += 1
    assert checked >= 3


def test_a_bias_of_another_type_than_the_output_is_refused() -> None:
    """torch.addmm raises for it."""
    family = CpuBackend().families()["torch"]
    assert family.supports(from_linear(5, 70, 90, "bf16", bias="bf16"))
    assert not family.supports(from_linear(5, 70, 90, "bf16", bias="fp32"))
