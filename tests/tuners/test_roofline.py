"""The bound of a problem, against figures computed by hand."""

from __future__ import annotations

import pytest

from backends.problem import GemmProblem, from_blas
from tuners.ceilings import Ceilings
from tuners.roofline import Bound, bound

#: Reads 100 GB/s. Copies 80 GB/s, so that a byte written costs 2/80 - 1/100 = 0.015 ns.
CEILINGS = Ceilings(100e9, 80e9, {"fp32": 1e12, "bf16": 4e12, "tf32": 8e12})
WRITTEN = 0.015e-9


def test_a_square_product_is_bound_by_compute() -> None:
    found = bound(from_blas(1000, 1000, 1000, "fp32"), CEILINGS)
    assert found.compute_seconds == pytest.approx(2e9 / 1e12)
    assert found.memory_seconds == pytest.approx(8e6 / 100e9 + 4e6 * WRITTEN)
    assert found.seconds == pytest.approx(2e-3)
    assert found.binds == "compute"


def test_a_matrix_times_a_vector_is_bound_by_memory() -> None:
    found = bound(from_blas(1000, 1, 1000, "fp32"), CEILINGS)
    assert found.compute_seconds == pytest.approx(2e6 / 1e12)
    assert found.memory_seconds == pytest.approx(4e3 * 1001 / 100e9 + 4e3 * WRITTEN)
    assert found.seconds == found.memory_seconds
    assert found.binds == "memory"


@pytest.mark.parametrize(("n", "binds"), [(1, "memory"), (10, "memory"), (50, "compute"), (4000, "compute")])
def test_what_binds_switches_as_the_product_widens(n: int, binds: str) -> None:
    # Square in m and k = 1000: 2e6 n / 1e12 s of compute; 4e6/1e11 s of A and 1e-7 n s of B and D.
    assert bound(from_blas(1000, n, 1000, "fp32"), CEILINGS).binds == binds


@pytest.mark.parametrize(
    ("problem", "read", "written"),
    [
        (from_blas(10, 20, 30, "bf16"), 2 * (300 + 600), 2 * 200),
        (from_blas(10, 20, 30, "bf16", beta=1.0), 2 * (300 + 600 + 200), 2 * 200),
        (from_blas(10, 20, 30, "bf16", bias="fp32"), 2 * (300 + 600) + 4 * 10, 2 * 200),
        (from_blas(10, 20, 30, "bf16", dtype_d="fp32"), 2 * (300 + 600), 4 * 200),
        (from_blas(10, 20, 30, "bf16", batch=5), 10 * (300 + 600), 10 * 200),
        (from_blas(10, 20, 30, "bf16", batch=5, stride_a=0), 2 * (300 + 5 * 600), 10 * 200),
    ],
)
def test_every_operand_is_moved_once(problem: GemmProblem, read: int, written: int) -> None:
    found = bound(problem, CEILINGS)
    assert found.memory_seconds == pytest.approx(read / 100e9 + written * WRITTEN)


def test_each_input_type_has_its_ceiling() -> None:
    plain, fast, low = (
        bound(from_blas(64, 64, 64, "fp32"), CEILINGS),
        bound(from_blas(64, 64, 64, "fp32", compute="tf32"), CEILINGS),
        bound(from_blas(64, 64, 64, "bf16"), CEILINGS),
    )
    assert plain.compute_seconds == pytest.approx(8 * fast.compute_seconds)
    assert plain.compute_seconds == pytest.approx(4 * low.compute_seconds)


@pytest.mark.parametrize("kind", ["fp64", "int8"])
def test_a_type_that_was_not_measured_has_no_bound(kind: str) -> None:
    with pytest.raises(KeyError, match=kind):
        bound(from_blas(64, 64, 64, kind), CEILINGS)


def test_writing_is_never_cheaper_than_nothing() -> None:
    # A copy that outruns twice the reading rate would make a written byte cost less than zero.
    odd = Ceilings(100e9, 300e9, {"fp32": 1e30})
    assert bound(from_blas(1000, 1000, 1, "fp32"), odd).memory_seconds == pytest.approx(8e3 / 100e9)


def test_share_of_the_bound() -> None:
    assert Bound(2.0, 1.0).share(4.0) == 0.5
    assert Bound(1.0, 3.0).share(2.0) == 1.5  # operands stayed in a cache
    assert Bound(1.0, 1.0).binds == "compute"
