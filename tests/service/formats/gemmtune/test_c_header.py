"""The C header: compiled as C and as C++, and every row looked up in it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.solution import Solution
from service.formats import ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.gemmtune.c_header import CHeader, problem_numbers
from service.formats.gemmtune.c_header_text import FIELDS
from tests.service.formats.made import (
    ATTRIBUTES,
    BASELINE,
    CUBLASLT,
    H200,
    HIPBLASLT,
    LINEAR,
    MI300X,
    PACKED,
    POLICY,
    ROCBLAS,
    row,
    rows,
)

WRITER = CHeader()
COMPILERS = {
    "c99": ["gcc", "-std=c99"],
    "c++11": ["g++", "-std=c++11"],
    "c++20": ["g++", "-std=c++20"],
}
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow"]
#: Reads a problem's numbers a line, and prints what the header says of it.
PROBE = """\
#include "table.h"
#include <stdio.h>

int main(void)
{
    long long v[30];
    for (;;) {
        int i;
        gemmtune_problem p = gemmtune_packed(GEMMTUNE_TRANS_N, GEMMTUNE_TRANS_N, 1, 1, 1,
            GEMMTUNE_DTYPE_FP32, GEMMTUNE_DTYPE_FP32, GEMMTUNE_COMPUTE_FP32);
        const gemmtune_row *row;
        for (i = 0; i < 30; ++i) {
            if (scanf("%lld", &v[i]) != 1) {
                return 0;
            }
        }
        p.m = v[0]; p.n = v[1]; p.k = v[2]; p.batch = v[3];
        p.lda = v[4]; p.ldb = v[5]; p.ldc = v[6]; p.ldd = v[7];
        p.stride_a = v[8]; p.stride_b = v[9]; p.stride_c = v[10]; p.stride_d = v[11];
        p.trans_a = (uint8_t)v[12]; p.trans_b = (uint8_t)v[13];
        p.dtype_a = (uint8_t)v[14]; p.dtype_b = (uint8_t)v[15];
        p.dtype_c = (uint8_t)v[16]; p.dtype_d = (uint8_t)v[17];
        p.compute = (uint8_t)v[18]; p.alpha = (uint8_t)v[19]; p.beta = (uint8_t)v[20];
        p.activation = (uint8_t)v[21]; p.bias = (uint8_t)v[22]; p.bias_axis = (uint8_t)v[23];
        p.scale_a = (uint8_t)v[24]; p.scale_b = (uint8_t)v[25]; p.scale_d = (uint8_t)v[26];
        p.scale_dtype = (uint8_t)v[27]; p.alignment = (uint8_t)v[28];
        p.fast_accumulation = (uint8_t)v[29];
        row = gemmtune_lookup(&p);
        if (row == NULL) {
            puts("miss");
        } else {
            const gemmtune_solution *s = gemmtune_solution_of(row);
            printf("%s|%s|%s|%s|%lld|%lld|%d|%d|%d|%d|%d %d %d %d %d %d %d %d %d|%d|%.17g|%.17g\\n", s->id,
                s->family, s->parameters, s->build, (long long)s->workspace_bytes,
                (long long)s->solution_index, (int)s->version, (int)s->deterministic, (int)s->has_index,
                (int)s->has_cublaslt, (int)s->algo_id, (int)s->tile, (int)s->stages, (int)s->splitk,
                (int)s->reduction, (int)s->swizzle, (int)s->custom, (int)s->inner, (int)s->cluster,
                (int)row->baseline_stands, row->seconds, row->baseline_seconds);
        }
    }
}
"""


def header(made: Sequence[ExportRow], **options: Any) -> tuple[str, ExportReport]:
    report = ExportReport()
    device = options.pop("device", H200.device_class)
    return "".join(WRITER.write(iter(made), ExportOptions(device, **options), report)), report


class Probe:
    """A program around one header."""

    def __init__(self, folder: Path, text: str, compiler: str = "c99", main: str = PROBE) -> None:
        command, *flags = COMPILERS[compiler]
        if which(command) is None:
            pytest.skip(f"{command} is not installed")
        (folder / "table.h").write_bytes(text.encode("ascii"))
        source = folder / ("probe.c" if command == "gcc" else "probe.cpp")
        source.write_text(main)
        self._program = folder / "probe"
        subprocess.run([command, *flags, *STRICT, str(source), "-o", str(self._program)], check=True)

    def ask(self, problems_: Sequence[GemmProblem]) -> list[str]:
        return self.ask_numbers([problem_numbers(problem) for problem in problems_])

    def ask_numbers(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        told = "".join(" ".join(map(str, line)) + "\n" for line in numbers)
        ran = subprocess.run([str(self._program)], input=told, capture_output=True, text=True, check=True)
        return ran.stdout.splitlines()


def said(made: ExportRow, solution: Solution, stands: bool = False) -> str:
    """What the program prints of a row."""
    index = solution.parameters.get("solution_index") if solution.family in ("rocblas", "hipblaslt") else None
    nine = solution.parameters if solution.family == "cublaslt" else {}
    attributes = " ".join(str(nine.get(name, 0)) for name in ATTRIBUTES)
    seconds = made.baseline_seconds if stands else made.seconds
    known = {None: -1, True: 1, False: 0}[solution.deterministic]
    return (
        f"{solution.id}|{solution.family}|{json.dumps(dict(solution.parameters), separators=(',', ':'))}|"
        f"{solution.build or ''}|{solution.workspace_bytes}|{index or 0}|{solution.version}|{known}|"
        f"{int(index is not None)}|{int(bool(nine))}|{attributes}|{int(stands)}|{seconds or 0:.17g}|"
        f"{made.baseline_seconds or 0:.17g}"
    )


def on_h200(problem: GemmProblem, solution: Solution = CUBLASLT, **changed: Any) -> ExportRow:
    return row(problem, solution=solution, **changed)


MADE = [
    on_h200(LINEAR),
    on_h200(from_linear(1, 1, 1, "fp32"), HIPBLASLT, seconds=None, baseline_seconds=None),
    on_h200(from_linear(16, 14336, 4096, "bf16", bias="bf16", activation="gelu"), ROCBLAS, seconds=1e-9),
    on_h200(from_bmm(7, 3, 5, 9, "fp16", ldd=8, beta=-0.5, alpha=3.0), PACKED, judgement=""),
    on_h200(from_blas(64, 64, 64, "complex64", trans_a="C", trans_b="C"), Solution("f", 3, {}, "b")),
    on_h200(from_blas(2**31 - 1, 1, 1, "fp64", lda=2**49, ldd=2**49), CUBLASLT),
    on_h200(from_linear(4, 4, 4, "fp8_e4m3", scale_a="outer", scale_b="block_32", fast_accumulation=True)),
]


# ---- lookups -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_row_is_found_and_nothing_else(compiler: str, tmp_path: Path) -> None:
    text, report = header(MADE)
    assert report.to_dict() == {"written": len(MADE), "omitted": {}}
    probe = Probe(tmp_path, text, compiler)
    assert probe.ask([made.problem for made in MADE]) == [said(made, made.solution) for made in MADE]
    others = [replace(LINEAR, m=LINEAR.m - 1), replace(LINEAR, alignment=8), from_linear(2, 2, 2, "fp32")]
    assert probe.ask(others) == ["miss"] * len(others)


def test_a_problem_that_differs_in_any_field_is_missed(tmp_path: Path) -> None:
    """Every field of the key is compared: each number, one more and one less."""
    batched = from_bmm(2, 8, 16, 32, "bf16", bias="bf16", beta=1.0, scale_a="tensor", scale_b="tensor")
    numbers = problem_numbers(batched)
    lines = [numbers]
    for at in range(len(FIELDS)):
        for step in (1, -1):
            changed = list(numbers)
            changed[at] = (changed[at] + step) % 2**63 if at < 12 else (changed[at] + step) % 256
            lines.append(changed)
    assert Probe(tmp_path, header([on_h200(batched)])[0]).ask_numbers(lines) == [
        said(on_h200(batched), CUBLASLT),
        *["miss"] * (2 * len(FIELDS)),
    ]


def test_what_no_implementation_reads_is_not_compared(tmp_path: Path) -> None:
    """As the normal form of a problem has it."""
    plain = problem_numbers(LINEAR)
    names = list(FIELDS)
    told = {"ldc": 7, "stride_a": 1, "stride_b": 2, "stride_c": 3, "stride_d": 4}
    told |= {"dtype_c": 1, "bias_axis": 2, "scale_dtype": 2, "trans_a": 2}
    assert plain[names.index("trans_a")] == 1
    lines = [[told.get(name, value) for name, value in zip(names, plain, strict=True)]]
    for name, value in told.items():
        line = list(plain)
        line[names.index(name)] = value
        lines.append(line)
    found = Probe(tmp_path, header([on_h200(LINEAR)])[0]).ask_numbers(lines)
    assert found == [said(on_h200(LINEAR), CUBLASLT)] * len(lines)


def test_many_rows_are_sorted(tmp_path: Path) -> None:
    made = [
        on_h200(from_linear(m, n, 64, "bf16"), Solution("s", 1, {"m": m, "n": n}))
        for m in (9, 1, 10, 2, 100)
        for n in range(1, 30)
    ]
    text, _ = header(made)
    numbers = [
        [int(n) for n in line.split(", ")] for line in re.findall(r"^    \{\{([0-9, ]+)\}", text, re.M)
    ]
    assert len(numbers) == len(made)
    assert numbers == sorted(numbers)
    probe = Probe(tmp_path, text)
    assert probe.ask([item.problem for item in made]) == [said(item, item.solution) for item in made]
    assert set(probe.ask([from_linear(m, 64, 64, "bf16") for m in range(1, 200)])) == {"miss"}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_empty_table(compiler: str, tmp_path: Path) -> None:
    text, report = header([])
    assert report.to_dict() == {"written": 0, "omitted": {}}
    assert Probe(tmp_path, text, compiler).ask([LINEAR, from_linear(1, 1, 1)]) == ["miss"] * 2


def test_a_packed_problem_is_made_in_c(tmp_path: Path) -> None:
    cases = {
        "GEMMTUNE_TRANS_T, GEMMTUNE_TRANS_N, 14336, 16, 4096, GEMMTUNE_DTYPE_BF16": LINEAR,
        "GEMMTUNE_TRANS_N, GEMMTUNE_TRANS_T, 3, 5, 7, GEMMTUNE_DTYPE_BF16": from_blas(
            3, 5, 7, "bf16", trans_b="T"
        ),
    }
    main = '#include "table.h"\n#include <stdio.h>\nint main(void)\n{\n'
    for arguments in cases:
        main += (
            f"    {{\n        gemmtune_problem p = gemmtune_packed({arguments}, GEMMTUNE_DTYPE_BF16, "
            "GEMMTUNE_COMPUTE_FP32);\n        puts(gemmtune_solution_of(gemmtune_lookup(&p))->id);\n    }\n"
        )
    main += "    puts(GEMMTUNE_DEVICE);\n    return 0;\n}\n"
    made = [on_h200(problem, Solution("s", 1, {"m": problem.m})) for problem in cases.values()]
    text, _ = header(made)
    assert Probe(tmp_path, text, main=main).ask([]) == [
        *(item.solution.id for item in made),
        "cuda:sm_90:NVIDIA-H200:132",
    ]


def test_two_sources_may_include_it(tmp_path: Path) -> None:
    text, _ = header(MADE[:2])
    (tmp_path / "other.c").write_text(
        '#include "table.h"\n#include "table.h"\nint other(void) { return 0; }\n'
    )
    Probe(tmp_path, text)
    command = ["gcc", "-std=c99", *STRICT, str(tmp_path / "probe.c"), str(tmp_path / "other.c")]
    subprocess.run([*command, "-o", str(tmp_path / "both")], check=True)


@settings(max_examples=15, deadline=None)
@given(st.lists(rows(), max_size=30))
def test_any_rows_make_a_header_that_compiles(
    tmp_path_factory: pytest.TempPathFactory, made: list[ExportRow]
) -> None:
    here = [replace(item, environment=H200, count=0) for item in made]
    text, report = header(here, ties="default")
    assert report.written + sum(report.omitted.values()) == len(here)
    found = Probe(tmp_path_factory.mktemp("header"), text).ask([item.problem for item in here])
    assert "miss" not in found
    for item, line in zip(here, found, strict=True):
        rivals = [other for other in here if other.problem == item.problem]
        lines = {
            said(o, o.baseline, True)
            if o.baseline is not None and o.judgement in ("TIE", "LOSS")
            else said(o, o.solution)
            for o in rivals
        }
        assert line in lines


# ---- what is written -----------------------------------------------------------------------------


def test_what_the_header_says_of_itself() -> None:
    evil = replace(H200, driver="*/ int x; /* ??/\n#error \\", libraries={"a": "\u202e*/", "b": "é"})
    text, _ = header([on_h200(LINEAR), on_h200(from_linear(1, 2, 3), environment=evil)])
    comment = text.partition("*/")[0]
    assert "The fastest known ways to run 2 GEMMs on cuda:sm_90:NVIDIA-H200:132, as tuned" in comment
    assert f" * Policy {POLICY.id}\n" in comment
    assert (
        " * Measured on NVIDIA H200, driver 580.82, runtime 13.2: cublaslt 13.2.0, torch 2.15.0+cu132\n"
        in comment
    )
    assert "driver *_ int x; /_ __/_#error _, runtime 13.2: a _*_, b _\n" in comment
    assert "has no row" in comment
    assert "has baseline_stands = 1" in header([], ties="default")[0]
    assert text.isascii()
    assert text == header([on_h200(LINEAR), on_h200(from_linear(1, 2, 3), environment=evil)])[0]


def test_a_comment_names_so_many_environments_only() -> None:
    made = [on_h200(from_linear(m, 2, 3), environment=replace(H200, driver=str(m))) for m in range(1, 41)]
    text, _ = header(made)
    assert text.count(" * Measured on NVIDIA H200, driver") == 32
    assert " * Measured on (and 8 more)\n" in text


def test_ties_and_losses(tmp_path: Path) -> None:
    made = [
        on_h200(from_linear(1, 8, 8), judgement="TIE"),
        on_h200(from_linear(2, 8, 8), judgement="LOSS"),
        on_h200(from_linear(3, 8, 8)),
    ]
    text, report = header(made)
    assert report.written == 1
    assert report.omitted == {"TIE: the default stays": 1, "LOSS: the default stays": 1}
    text, report = header(made, ties="default")
    assert (report.written, report.omitted) == (3, {})
    assert Probe(tmp_path, text).ask([item.problem for item in made]) == [
        said(made[0], BASELINE, stands=True),
        said(made[1], BASELINE, stands=True),
        said(made[2], CUBLASLT),
    ]


def test_a_problem_has_one_row() -> None:
    other = on_h200(LINEAR, HIPBLASLT, count=9, policy=replace(POLICY, mode="graph"))
    text, report = header([on_h200(LINEAR), other, on_h200(LINEAR, ROCBLAS, count=1)])
    ((reason, count),) = report.omitted.items()
    assert reason.startswith("a problem has one row in the header, whatever policy and environment it was")
    assert (count, report.written) == (2, 1)
    assert text.count("    {{") == 1


def test_solutions_are_written_once() -> None:
    made = [on_h200(from_linear(m, 8, 8), replace(CUBLASLT, workspace_bytes=m % 2)) for m in range(1, 9)]
    text, _ = header(made)
    assert text.count('    {"cublaslt-') == 2


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (on_h200(LINEAR, environment=MI300X), "measured on hip:gfx942:AMD-Instinct-MI300X:304: the"),
        (on_h200(LINEAR, judgement="DRAW"), "judgement 'DRAW' is none that an override could follow"),
        (on_h200(LINEAR, seconds=float("inf")), "one of its figures is not finite"),
        (on_h200(LINEAR, Solution("s", 1, {"a": "x" * 5000})), "its parameters or its build make no C"),
        (on_h200(LINEAR, Solution("s", 1, {}, "a\0b")), "its parameters or its build make no C"),
        (on_h200(LINEAR, Solution("s", 2**31, {})), "the version or the workspace of its solution"),
    ],
)  # fmt: skip
def test_rows_that_are_left_out(made: ExportRow, why: str) -> None:
    text, report = header([made])
    ((reason, count),) = report.omitted.items()
    assert reason.startswith(why)
    assert (count, report.written) == (1, 0)
    assert "#define GEMMTUNE_ROWS ((size_t)0)" in text


#: Weights of 8-bit floats, which every field of the struct says.
FP8_WEIGHTS = from_linear(
    4, 64, 256, "bf16", dtype_b="fp8_e4m3", scale_b="block_128x128", scale_dtype="fp32"
)  # fmt: skip
INT4_WEIGHTS = from_linear(
    4, 64, 256, "bf16", dtype_b="uint4", scale_b="block_1x64", scale_dtype="bf16", zero_b="eight"
)  # fmt: skip


def test_quantised_weights_that_the_struct_can_say_are_found(tmp_path: Path) -> None:
    mxfp4 = from_linear(
        4, 64, 256, "bf16", dtype_b="fp4_e2m1", scale_b="block_1x32", scale_dtype="fp8_e8m0"
    )  # fmt: skip
    made = [on_h200(FP8_WEIGHTS), on_h200(mxfp4), on_h200(from_linear(4, 64, 256, "bf16"), ROCBLAS)]
    text, report = header(made)
    assert report.to_dict() == {"written": 3, "omitted": {}}
    assert Probe(tmp_path, text).ask([one.problem for one in made]) == [
        said(one, one.solution) for one in made
    ]


@pytest.mark.parametrize(
    ("problem", "what"),
    [
        (INT4_WEIGHTS, "zero points"),
        (replace(FP8_WEIGHTS, prepacked=True), "prepacked weights"),
        (from_linear(4, 64, 256, "bf16", groups=2), "groups"),
    ],
)
def test_problems_without_a_field_say_where_they_have_one(problem: GemmProblem, what: str) -> None:
    """Tuning such a problem again changes nothing, so that no row is counted as one to tune again."""
    _, report = header([on_h200(problem)], target="cublaslt")
    assert report.omitted == {f"the header has no field for {what}: export json or jsonl for such rows": 1}
    assert (report.written, report.tune_again) == (0, 0)


def test_a_limit_of_workspace() -> None:
    _, report = header([on_h200(LINEAR)], workspace_limit=2**20 - 1)
    assert list(report.omitted) == ["needs more workspace than the 1048575 bytes that it may use"]


def test_parameters_that_are_no_index_or_no_algorithm(tmp_path: Path) -> None:
    """Such a solution is there by its parameters alone."""
    strange = [
        Solution("cublaslt", 1, {**ATTRIBUTES, "tile_id": 2**40}),
        Solution("cublaslt", 1, {"algo_id": 1}),
        Solution("hipblaslt", 1, {"solution_index": "7"}),
        Solution("rocblas", 1, {"solution_index": True}),
        Solution("rocblas", 1, {"solution_index": -(2**31)}),
    ]
    made = [on_h200(from_linear(m + 1, 8, 8), solution) for m, solution in enumerate(strange)]
    found = Probe(tmp_path, header(made)[0]).ask([item.problem for item in made])
    assert [line.split("|")[5:11] for line in found] == [
        ["0", "1", "-1", "0", "0", "0 0 0 0 0 0 0 0 0"] for _ in strange
    ]


def test_what_is_refused() -> None:
    wrongs: dict[str, dict[str, Any]] = {
        "c-header is for no one stack: leave out validators": {"validators": {"CU_COUNT": "132"}},
        "target 'c99' is no export target of cuda devices; known: cublaslt, ": {"target": "c99"},
        "target 'rocblas' is no export target of cuda devices": {"target": "rocblas"},
    }
    for message, wrong in wrongs.items():
        with pytest.raises(ExportRefused, match=message):
            header([], **wrong)
