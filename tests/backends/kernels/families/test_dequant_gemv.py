"""dequant-gemv on the host, with warps of 32 and of 64: every storage type, group and zero point."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.kernels.families import FAMILIES
from backends.kernels.few_columns import FewColumnsFamily
from backends.problem import GemmProblem
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import OF_WARP
from tests.backends.weight_samples import every_kind, weights
from tests.golden.access import environment_of
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["dequant-gemv"]
CHOSEN: dict[str, Parameter] = {"rows": 2, "unroll": 2, "warps": 2, "splits": 1}
#: Few columns and many, rows that are no whole block, a k that ends within a warp's loads.
PROBLEMS: list[GemmProblem] = [
    *every_kind(1, 40, 1152), *every_kind(3, 40, 4224, dtype_a="fp16", scale_dtype="fp32")[::3],
    weights(8, 21, 2176, zero_b="eight", bias="bf16", activation="silu"),
    weights(5, 40, 48, "int8", scale_b="outer", beta=1.0, dtype_d="fp32"),
    weights(2, 40, 512, "int4", scale_b="block_1x32", ldb=544, lda=520),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "scale", "bits"), [("uint4", "block_1x128", 4), ("int8", "outer", 8)])
def test_a_multiprocessor_costs_the_bytes_of_weights_as_they_are_stored(
    kind: str, scale: str, bits: int
) -> None:
    environment = environment_of("sm_90")
    m, k = 256 * environment.units, 8192  # the same number of full blocks for each, with enough loads
    problem = weights(1, m, k, kind, scale_b=scale)
    values: dict[str, Parameter] = {"rows": 4, "unroll": 4, "warps": 4, "splits": 1}
    assert isinstance(FAMILY, FewColumnsFamily)
    assert FAMILY.rule(problem, values, environment) is None
    cost = FAMILY.cost(FAMILY.oriented(problem, values), values, environment)
    assert cost == pytest.approx(m * k * bits / 8 / environment.units)


@pytest.mark.parametrize("warp", [32, 64])
def test_every_kind_is_right(warp: int, tmp_path: Path) -> None:
    found = [
        FAMILY.config(p, {**CHOSEN, "rows": 4 if p.n == 3 else 2, "splits": 1 + number % 2}, OF_WARP[warp])
        for number, p in enumerate(PROBLEMS)
    ]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path, warp), PROBLEMS, strict=True):
        for distribution in ("normal", "uniform"):
            case = Case(problem, 3, distribution, "exact")
            finding = verifier.check(HostKernel(one, distribution == "uniform"), case, runs=1)
            assert finding.wrong == "", (one.found.instantiation, problem.zero_a, problem.scale_a)


MISTAKES = {
    "a zero point of the next row": ("row % 8) * 4", "(row + 1) % 8) * 4", "uint4"),
    "the scale of the next group": (
        "all.scale_row + group;",
        "all.scale_row + group / 2;",
        "eight",
    ),
    "integers in another place": ("<< place * QUANT::kBits;", "<< (place ^ 1) * QUANT::kBits;", "eight"),
    "no sum of activations": ("- zero * inputs[c])", ")", "uint4"),
    "a zero point of 7": ("? 8u << place", "? 7u << place", "eight"),
    "the last ones of a word at another place": (
        "word >> (in - place)",
        "word >> (in - place + 1)",
        "eight",
    ),
    "loads of the first alone": ("if (k < last) multiply", "if (k < last && u == 0) multiply", "eight"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    text, mistake, zero = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / FAMILY.header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    problem = weights(2, 40, 2048, zero_b=zero)
    (one,) = build([FAMILY.config(problem, CHOSEN, OF_WARP[32])], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)
