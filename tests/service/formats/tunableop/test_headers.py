"""Keys and solution names against the format strings of PyTorch's own headers.

FORMS holds the strings that `Signature()` and the names of solutions are made with. Those of a release are
checked against its wheel by

    python -m tests.service.formats.tunableop.test_headers torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from backends.problem import GemmProblem
from service.formats.tunableop.key import Grammar, NoKeyError, build_key
from service.formats.tunableop.solution import solution_name
from service.formats.tunableop.target import parse_target
from tests.service.formats.made import CUBLASLT, HIPBLASLT, LINEAR, ROCBLAS, problems

_PLAIN = "%c%c_%ld_%ld_%ld_ld_%ld_%ld_%ld"
_BATCHED = "%c%c_%ld_%ld_%ld_B_%ld_ld_%ld_%ld_%ld"
_SHORT = "%c%c_%ld_%ld_%ld_ld_%ld_%ld_%ld_rw_%d_bias_%s"
_LONG = "%c%c_%ld_%ld_%ld_ld_%ld_%ld_%ld_a_%s_b_%s_c_%s_as_%s_bs_%s_ast_%d_bst_%d_dscale_%d_fast_%d_bias_%s"
#: release -> the strings of its GemmCommon.h (aten/src/ATen/cuda/tunable). In 2.15 what the last %s of the
#: first two stands for is nothing, or _compute_bf16x9_r.
FORMS = {
    "2.13": (_PLAIN, _BATCHED, _SHORT),
    "2.14": (_PLAIN, _BATCHED, _SHORT),
    "2.15": (_PLAIN + "%s", _BATCHED + "%s", _SHORT, _LONG),
}
#: Operators, and the name of a cuBLASLt algorithm, from 2.14 on.
OPERATORS = (
    "GemmTunableOp_%s_%c%c", "GemmAndBiasTunableOp_%s_%c%c", "GemmStridedBatchedTunableOp_%s_%c%c",
    "ScaledGemmTunableOp_%s_%s_%s_%c%c",
)  # fmt: skip
NAMES = (
    "Gemm_Cublaslt_id_%d_tile_%u_stages_%u_splitk_%d_red_%u_swizzle_%u_custom_%u",
    "_inner_%hu_cluster_%hu",
)
_FIELDS = {
    "%c": "[a-zA-Z]", "%ld": "[0-9]+", "%d": "-?[0-9]+", "%u": "[0-9]+", "%hu": "[0-9]+",
    "%s": "[A-Za-z0-9_:<>]*",
}  # fmt: skip


def pattern(form: str) -> re.Pattern[str]:
    """What a format string prints."""
    parts = re.split("(%ld|%hu|%[cdus])", form)
    return re.compile("".join(_FIELDS.get(part) or re.escape(part) for part in parts))


@pytest.mark.parametrize(
    "target", ["torch-2.13+cuda", "torch-2.14+cuda", "torch-2.15+cuda", "torch-2.15+rocm"]
)
@settings(max_examples=120)
@given(problem=problems())
def test_every_key_is_one_that_torch_prints(target: str, problem: GemmProblem) -> None:
    found = parse_target(target)
    try:
        operator, parameters = build_key(problem, found.grammar).split(",")
    except NoKeyError:
        return
    forms = FORMS[f"{found.major}.{found.minor}"]
    assert any(pattern(form).fullmatch(operator) for form in OPERATORS)
    matching = [form for form in forms if pattern(form).fullmatch(parameters)]
    assert matching
    if operator.startswith("ScaledGemm"):
        assert (_LONG if found.grammar.scaled == "long" else _SHORT) in matching


def test_older_keys_are_none_of_these() -> None:
    old = Grammar(leading_dimensions=False, scaled="none")
    _, parameters = build_key(LINEAR, old).split(",")
    assert not any(pattern(form).fullmatch(parameters) for form in FORMS["2.15"])


def test_a_solutions_name_is_one_that_torch_scans() -> None:
    assert pattern("".join(NAMES)).fullmatch(solution_name(CUBLASLT, None) or "")
    for solution in (HIPBLASLT, ROCBLAS):
        assert not pattern("".join(NAMES)).fullmatch(solution_name(solution, None) or "")


def texts(wheel: Path, name: str) -> str:
    """A header of a wheel, adjacent string literals joined."""
    with zipfile.ZipFile(wheel) as archive:
        raw = archive.read(f"torch/include/ATen/cuda/tunable/{name}").decode()
    return re.sub(r'"\s*"', "", raw)


def main(wheel: Path) -> None:
    """Raises SystemExit for a string that the wheel's headers lack."""
    release = re.search(r"torch-([0-9]+\.[0-9]+)", wheel.name)
    if release is None or release[1] not in FORMS:
        raise SystemExit(f"{wheel.name} is no wheel of torch {', '.join(FORMS)}")
    wanted = [("GemmCommon.h", form) for form in FORMS[release[1]]]
    wanted += [("TunableGemm.h", form) for form in OPERATORS]
    wanted += [("GemmCublaslt.h", form) for form in NAMES] if release[1] != "2.13" else []
    for header, form in wanted:
        found = f'"{form}"' in texts(wheel, header)
        print(f"{'ok  ' if found else 'LACK'} {header}: {form}")
        if not found:
            raise SystemExit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
