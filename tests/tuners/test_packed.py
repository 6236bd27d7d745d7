"""Kernels that read packed weights: right ones pass on every verifier, planted faults are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backends.errors import LaunchError
from backends.kernels.prepacked import REPLACED
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from tests.backends.weight_samples import every_kind, weights
from tests.tuners.packing import (
    PACKING_FAULTS,
    PRODUCT_FAULTS,
    FaultyKernel,
    OtherCopyKernel,
    PackingKernel,
    product,
    stored,
)
from tests.tuners.test_verify import HostDevice, case
from tests.tuners.test_verify_device import NumpyReference, ReferenceDevice
from tuners.inputs import cases
from tuners.verify import Verifier
from tuners.verify_device import DeviceVerifier

Either = Verifier | DeviceVerifier

#: Weights, scales and zero points are all stored.
PROBLEM = weights(5, 64, 256, zero_b="uint4")
FAULTS = {**PACKING_FAULTS, **PRODUCT_FAULTS}


@pytest.fixture(params=["host", "device"])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    reference: Any = NumpyReference()
    found = HostDevice() if request.param == "host" else ReferenceDevice(reference)
    yield found
    assert not found.live, "a verifier that forgot its cases holds no memory"


@pytest.fixture
def verifier(device: Any) -> Iterator[Either]:
    found = Verifier(device) if device.reference is None else DeviceVerifier(device)
    yield found
    found.forget()


# ---- verification --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem", every_kind(3, 64, 256), ids=lambda p: f"{p.dtype_a}-{p.zero_a}-{p.scale_a}"
)
def test_a_right_kernel_passes(verifier: Either, problem: GemmProblem) -> None:
    kernel = PackingKernel(problem)
    for check in cases(problem, 1, 0):
        if check.problem == problem:
            found = verifier.check(kernel, check)
            assert not found.wrong, found.wrong
            assert found.error_over_bound <= 1
    assert kernel.packs
    assert kernel.launches >= 2


def test_the_product_runs_with_poison_in_place_of_the_weights(verifier: Either) -> None:
    seen: list[set[int]] = []

    class Watching(PackingKernel):
        def multiply(self, operands: Operands) -> None:
            seen.append(set(stored(self.problem, operands).tolist()))
            super().multiply(operands)

    assert not verifier.check(Watching(PROBLEM), case(PROBLEM)).wrong
    poisons = {layouts(PROBLEM)[name].dtype.poison for name in REPLACED}
    assert seen == [poisons, poisons]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(verifier: Either, fault: str) -> None:
    for _ in range(2):  # also where a right kernel was laid out before
        found = verifier.check(FaultyKernel(PROBLEM, fault=fault), case(PROBLEM))
        assert FAULTS[fault][1] in found.wrong
        assert not verifier.check(FaultyKernel(PROBLEM), case(PROBLEM)).wrong


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8_e4m3"])
@pytest.mark.parametrize("fault", ["reads the stored weights", "reads the stored scales"])
def test_stored_weights_of_any_type_are_missed(verifier: Either, kind: str, fault: str) -> None:
    problem = weights(4, 64, 128, kind, scale_b="outer")
    assert FAULTS[fault][1] in verifier.check(FaultyKernel(problem, fault=fault), case(problem)).wrong


def test_copies_of_one_layout_are_equal_whichever_kernel_packed_them(verifier: Either) -> None:
    marked = [OtherCopyKernel(PROBLEM, mark=mark) for mark in (1, 2)]
    assert not verifier.check(marked[0], case(PROBLEM)).wrong
    assert not verifier.check(marked[0], case(PROBLEM)).wrong
    found = verifier.check(marked[1], case(PROBLEM)).wrong
    assert found == "packed other bytes than an earlier run, or another kernel, of layout flipped"
    assert not verifier.check(marked[1], case(PROBLEM)).wrong, "the case is laid out anew"
    another = OtherCopyKernel(PROBLEM, "another", mark=3)
    assert not verifier.check(another, case(PROBLEM)).wrong


def test_packing_that_differs_from_one_time_to_the_next_is_found(verifier: Either) -> None:
    kernel = OtherCopyKernel(PROBLEM)
    found = [verifier.check(kernel, case(PROBLEM)).wrong for _ in range(2)]
    assert "packed other bytes than an earlier run" in (found[0] or found[1])


def test_other_kernels_are_verified_beside_packed_ones(verifier: Either) -> None:
    """The stored weights are back in their place when the next kernel comes, without a layout too."""

    class Stored(PackingKernel):
        def multiply(self, operands: Operands) -> None:
            product(self.problem, stored(self.problem, operands), operands)

    for _ in range(2):
        assert not verifier.check(PackingKernel(PROBLEM), case(PROBLEM)).wrong
        assert not verifier.check(Stored(PROBLEM, layout=None), case(PROBLEM)).wrong


def test_a_packing_launch_that_fails_is_the_candidates(verifier: Either) -> None:
    class Failing(PackingKernel):
        def packing(self, operands: Operands) -> None:
            raise LaunchError("no such launch")

    with pytest.raises(LaunchError, match="no such launch"):
        verifier.check(Failing(PROBLEM), case(PROBLEM))
    assert not verifier.check(PackingKernel(PROBLEM), case(PROBLEM)).wrong
