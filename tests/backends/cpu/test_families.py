"""Legality of our own families: what Python calls legal compiles, and each rule has its words."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.blas import OpenBlas, OpenBlasUpcast, thread_counts
from backends.cpu.families import PackedFamily, StreamFamily
from backends.errors import CompileError
from backends.problem import from_linear, from_mm
from backends.solution import Solution

ENVIRONMENT = CpuBackend().probe().devices[0]


def packed(**changes: int | str) -> Solution:
    first = next(iter(PackedFamily().solutions(from_mm(64, 64, 64), ENVIRONMENT)))
    return Solution("packed", 1, {**first.parameters, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threads": 0}, "threads must be between 1 and"),
        ({"threads": 10_000}, "threads must be between 1 and"),
        ({"dot": "bf16"}, "needs another input type or ISA"),
        ({"mr": 1}, "mr must be a multiple of the"),
        ({"nr": 1}, "nr must be at least 2"),
        ({"nr": 64}, "vector registers; there are"),
        ({"kc": 0}, "kc must be from 16 to 1048576, not 0"),
        ({"mc": 2**40}, "mc must be from 16 to 1048576, not 1099511627776"),
        ({"mr": "16"}, "mr must be a whole number, not '16'"),
        ({"threads": True}, "threads must be a whole number, not True"),
        ({"dot": 1}, "dot must be a text, not 1"),
        ({"dot": "upcast>; int x"}, "needs another input type or ISA"),
        ({"unroll": 4}, "a packed solution has the parameters mr, nr, threads, mc, nc, kc, dot"),
    ],
)
def test_an_illegal_tile_names_its_rule(changes: dict[str, int | str], words: str) -> None:
    reason = PackedFamily().illegal(from_mm(64, 64, 64), packed(**changes), ENVIRONMENT)
    assert reason is not None
    assert words in reason


def test_parameters_of_another_version_mean_another_kernel() -> None:
    other = Solution("packed", 2, packed().parameters)
    reason = PackedFamily().illegal(from_mm(64, 64, 64), other, ENVIRONMENT)
    assert reason == "version 2 of packed is another kernel; this is 1"


def test_stream_takes_few_rows_or_columns_only() -> None:
    stream = StreamFamily()
    assert stream.supports(from_linear(16, 4096, 4096))
    assert stream.supports(from_mm(4096, 16, 4096))
    assert not stream.supports(from_mm(65, 65, 64))


@pytest.mark.parametrize("partition", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_a_sample_of_every_level_compiles(partition: str, cache: BinaryCache) -> None:
    environment = replace(ENVIRONMENT, partition=partition)
    for family, problem in (
        (PackedFamily(), from_mm(64, 64, 64)),
        (StreamFamily(), from_linear(4, 64, 64, "fp16")),
    ):
        solution = next(iter(family.solutions(problem, environment)))
        path = family.compile(problem, solution, environment, cache)
        assert path is not None
        assert path.stat().st_size > 0


def test_what_python_calls_illegal_the_header_refuses_too(cache: BinaryCache) -> None:
    with pytest.raises(CompileError):
        PackedFamily().compile(from_mm(64, 64, 64), packed(mr=3), ENVIRONMENT, cache)


def test_thread_counts() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(2) == [2, 1]
    assert thread_counts(6) == [6, 4, 2, 1]
    assert thread_counts(64) == [64, 32, 16, 8, 4, 2, 1]


def test_baselines_are_what_a_framework_runs() -> None:
    backend = CpuBackend()
    for m, dtype in product((1, 64), ("fp32", "fp64")):
        first = backend.baselines(from_linear(m, 64, 64, dtype), ENVIRONMENT)[0]
        assert (first.name, first.solution.parameters["routine"]) == ("numpy", "matmul")
        assert first.solution.parameters["threads"] == ENVIRONMENT.units
    without = replace(ENVIRONMENT, libraries={k: v for k, v in ENVIRONMENT.libraries.items() if k != "torch"})
    first = backend.baselines(from_linear(4, 64, 64, "bf16"), without)[0]
    assert first.name == "numpy upcast"
    with_torch = replace(without, libraries={**without.libraries, "torch": "2.13.0"})
    assert [b.name for b in backend.baselines(from_linear(4, 64, 64, "bf16"), with_torch)] == [
        "torch",
        "numpy upcast",
    ]


def test_a_library_call_that_is_not_offered_is_illegal() -> None:
    problem = from_mm(8, 8, 8)
    other = Solution("openblas", 1, {"routine": "matmul", "threads": 999}, ENVIRONMENT.libraries["blas"])
    reason = OpenBlas().illegal(problem, other, ENVIRONMENT)
    assert reason is not None
    assert "not among the calls" in reason
    assert not OpenBlasUpcast().supports(problem)
