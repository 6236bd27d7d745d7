"""vLLM's and SGLang's block-fp8 configurations, written, and the archives that hold them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from backends.environment import DeviceClass, Environment
from backends.kernels.triton.framework_families import TritonBlockFp8
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats import ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core.tar_text import closing, member, unpack
from service.formats.vllm.block_fp8 import FAMILY
from service.formats.vllm.block_fp8_writer import SglangBlockFp8, VllmBlockFp8
from tests.service.formats.made import CPU, H200, LINEAR, MI300X, POLICY, problems, row
from tests.service.formats.vllm.test_block_fp8 import CONFIG, H200_NAME, NAME, SOLUTION, claims, read, scaled

VLLM, SGLANG = VllmBlockFp8(), SglangBlockFp8()
Writer = VllmBlockFp8 | SglangBlockFp8
VLLM_FOLDER = "vllm/model_executor/layers/quantization/utils/configs/"
SGLANG_FOLDER = "sglang/srt/layers/quantization/configs/"
DEFAULTS = {**CONFIG, "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "GROUP_SIZE_M": 32}
DEFAULT = Solution(FAMILY, 1, DEFAULTS)


def written(
    writer: Writer, rows: Sequence[ExportRow], device: DeviceClass | None = None, **options: Any
) -> tuple[dict[str, str], ExportReport]:
    """The archive's files, and the report."""
    report = ExportReport()
    asked = ExportOptions(device or rows[0].environment.device_class, **options)
    archive = "".join(writer.write(iter(rows), asked, report))
    assert len(archive.encode()) % 10240 == 0
    return unpack(archive), report


def tuned(m: int = 16, problem: GemmProblem | None = None, **changed: Any) -> ExportRow:
    """A WIN of a configuration on an H200."""
    p = scaled(m) if problem is None else problem
    return row(p, **{"solution": SOLUTION, "baseline": DEFAULT, **changed})


@pytest.mark.parametrize(("environment", "kind"), [(H200, "fp8_e4m3"), (MI300X, "fp8_e4m3_fnuz")])
@pytest.mark.parametrize("writer", [VLLM, SGLANG], ids=lambda one: one.stack)
def test_both_frameworks_can_name_every_candidate(
    writer: Writer, environment: Environment, kind: str
) -> None:
    """Of the family that runs their kernel, and read back it is a candidate again."""
    family = TritonBlockFp8()
    here = replace(environment, libraries={**environment.libraries, "triton": "3.6.0"})
    for m in (1, 300):
        p = replace(scaled(m), dtype_a=kind, dtype_b=kind)
        for solution in family.solutions(p, here):
            made = tuned(problem=p, environment=here, solution=solution)
            files, report = written(writer, [made], environments=(here,))
            assert report.to_dict() == {"written": 1, "omitted": {}}
            ((name, text),) = files.items()
            ((problem, claimed),) = claims(read(text, name))
            assert problem == p
            assert claimed is not None
            assert replace(claimed, build="3.6.0") == solution
            assert family.illegal(p, replace(claimed, build="3.6.0"), here) is None


def only_reason(writer: Writer, made: ExportRow, **options: Any) -> str:
    files, report = written(writer, [made], H200.device_class, environments=(H200,), **options)
    assert files == {}
    ((reason, count),) = report.omitted.items()
    assert (count, report.written) == (1, 0)
    return reason


@pytest.mark.parametrize(
    ("writer", "path"),
    [
        (VLLM, VLLM_FOLDER + H200_NAME),
        (SGLANG, SGLANG_FOLDER + H200_NAME.replace("[128,128]", "[128, 128]")),
    ],
)
def test_files_are_named_as_the_stack_looks_them_up(writer: Writer, path: str) -> None:
    files, report = written(writer, [tuned(16), tuned(1, solution=DEFAULT)])
    assert report.to_dict() == {"written": 2, "omitted": {}}
    assert list(files) == [path]
    assert files[path] == json.dumps({"1": DEFAULTS, "16": CONFIG}, indent=4) + "\n"


@pytest.mark.parametrize("writer", [VLLM, SGLANG])
def test_what_is_written_is_read_back(writer: Writer) -> None:
    rows = [
        tuned(
            problem=scaled(m, 64 * n, 128 * k),
            solution=Solution(FAMILY, 1, {**CONFIG, "GROUP_SIZE_M": m, "num_stages": n}),
        )
        for n in (3, 1, 2)
        for k in (2, 1)
        for m in (4096, 16, 1)
    ]
    files, _ = written(writer, rows)
    assert len(files) == 6
    found = {found for path, text in files.items() for found in claims(read(text, path.rsplit("/", 1)[1]))}
    assert found == {(made.problem, made.solution) for made in rows}


def test_a_gfx942_takes_the_fnuz_format_and_parameters_for_amd() -> None:
    made = tuned(
        problem=scaled(dtype="fp8_e4m3_fnuz"),
        environment=MI300X,
        solution=Solution(FAMILY, 1, {**CONFIG, "waves_per_eu": 2}),
    )
    files, report = written(SGLANG, [made])
    assert report.omitted == {}
    ((path, text),) = files.items()
    assert path == SGLANG_FOLDER + NAME.replace("[128,128]", "[128, 128]")
    assert claims(read(text, NAME)) == [(made.problem, made.solution)]
    _, report = written(SGLANG, [replace(made, problem=scaled())])
    assert list(report.omitted) == ["its 8-bit float is not the fp8_e4m3_fnuz that SGLang uses there"]


def test_ties_and_losses() -> None:
    rows = [tuned(1), tuned(2, judgement="TIE"), tuned(4, judgement="LOSS"), tuned(8, judgement="")]
    files, report = written(VLLM, rows)
    assert list(json.loads(files[VLLM_FOLDER + H200_NAME])) == ["1", "8"]
    assert {reason.partition(":")[0]: n for reason, n in report.omitted.items()} == {"TIE": 1, "LOSS": 1}
    assert all("takes the nearest entry of its file" in reason for reason in report.omitted)
    files, report = written(VLLM, rows, ties="default")
    found = json.loads(files[VLLM_FOLDER + H200_NAME])
    assert found == {"1": CONFIG, "2": DEFAULTS, "4": DEFAULTS, "8": CONFIG}
    assert report.to_dict() == {"written": 4, "omitted": {}}
    torch = row().baseline
    assert "solutions of family torch have no name in vLLM's files; known: triton-block-fp8" in only_reason(
        VLLM, tuned(judgement="TIE", baseline=torch), ties="default"
    )


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (row(), "solutions of family cublaslt have no name in vLLM's files; known: triton-block-fp8"),
        (
            tuned(problem=LINEAR),
            "its problem is none of the kernel's: x[M,K] times w[N,K] transposed, packed,",
        ),
        (tuned(problem=scaled(dtype_d="fp16")), "its problem is none of the kernel's"),
        (tuned(problem=scaled(alignment=8)), "its problem is none of the kernel's"),
        (tuned(problem=scaled(lda=8192)), "its problem is none of the kernel's"),
        (tuned(problem=scaled(scale_b="tensor")), "its problem is none of the kernel's"),
        (tuned(problem=scaled(dtype="fp8_e5m2")), "its problem is none of the kernel's"),
        (tuned(problem=scaled(dtype="fp8_e4m3_fnuz")), "its 8-bit float is not the fp8_e4m3 that vLLM uses"),
        (tuned(judgement="DRAW"), "judgement 'DRAW' is none that a configuration could follow"),
        (tuned(environment=MI300X), "measured on hip:gfx942:AMD-Instinct-MI300X:304: the file is for cuda:"),
        (
            tuned(environment=replace(H200, units=66)),
            "measured on cuda:sm_90:NVIDIA-H200:66: the file is for cuda:sm_90:NVIDIA-H200:132",
        ),
        (
            tuned(solution=Solution(FAMILY, 1, {"num_warps": 4})),
            "the kernel does not take its parameters: BLOCK",
        ),
        (
            tuned(solution=Solution(FAMILY, 1, {**CONFIG, "kpack": 2})),
            "waves_per_eu and matrix_instr_nonkdim and kpack are parameters for AMD devices only",
        ),
        (
            tuned(solution=Solution(FAMILY, 1, {**CONFIG, "BLOCK_SIZE_K": 8})),
            "vLLM does not run BLOCK_SIZE_K 8 as it is, only 16, 32, 64, 128",
        ),
    ],
)
def test_rows_that_are_left_out(made: ExportRow, why: str) -> None:
    assert only_reason(VLLM, made).startswith(why)


def test_sglang_would_raise_a_smaller_step() -> None:
    made = tuned(solution=Solution(FAMILY, 1, {**CONFIG, "BLOCK_SIZE_K": 64}))
    assert only_reason(SGLANG, made) == "SGLang does not run BLOCK_SIZE_K 64 as it is, only 128"
    assert len(written(VLLM, [made])[0]) == 1


@given(problems())
def test_no_other_problem_is_written(p: GemmProblem) -> None:
    """None of these has scales of both forms of blocks."""
    _, report = written(VLLM, [tuned(problem=p)], H200.device_class, environments=(H200,))
    assert (report.written, sum(report.omitted.values())) == (0, 1)


def test_of_rows_that_share_a_key_the_one_with_most_calls_stands() -> None:
    other = Solution(FAMILY, 1, {**CONFIG, "num_stages": 5})
    rows = [tuned(), tuned(count=9, solution=other, policy=replace(POLICY, mode="graph")), tuned(count=1)]
    files, report = written(VLLM, rows)
    assert [s for _, s in claims(read(files[VLLM_FOLDER + H200_NAME]))] == [other]
    assert report.written == 1
    assert list(report.omitted.values()) == [2]


def refusal(**options: Any) -> str:
    device = options.pop("device", H200.device_class)
    with pytest.raises(ExportRefused) as caught:
        VLLM.write(iter([]), ExportOptions(device, **options), ExportReport())
    return str(caught.value)


def test_what_is_refused() -> None:
    nameless = replace(H200, product="NVIDIA-H200")
    assert "vllm-block-fp8 takes no target" in refusal(target="vllm-0.11")
    assert "runs on GPUs, and these rows are of cpu:" in refusal(device=CPU.device_class)
    assert "CU_COUNT is no validator of vllm-block-fp8; its validators: DEVICE_NAME" in refusal(
        validators={"CU_COUNT": "132"}
    )
    assert (
        "no environment of the rows says it: give it as a validator (such as DEVICE_NAME:NVIDIA" in refusal()
    )
    assert "no environment of the rows says it" in refusal(environments=(nameless,))
    for wrong in ("NVIDIA H20", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"):
        assert f"the target's DEVICE_NAME is {wrong}, but the rows are of cuda" in refusal(
            validators={"DEVICE_NAME": wrong}
        )
    for wrong in ("../NVIDIA H200", "NVIDIA H200,x", "NVIDIA/H200", "NVIDIA\nH200", " " * 3):
        assert "cannot stand in a file's name" in refusal(validators={"DEVICE_NAME": wrong})


@pytest.mark.parametrize("spelt", ["NVIDIA H200", "NVIDIA_H200"])
def test_the_device_may_be_named(spelt: str) -> None:
    nameless = replace(H200, product="NVIDIA-H200")
    files, _ = written(VLLM, [tuned(environment=nameless)], validators={"DEVICE_NAME": spelt})
    assert list(files) == [VLLM_FOLDER + H200_NAME]


def test_a_name_that_the_runtime_shortens() -> None:
    """vLLM has names of its own for AMD's devices."""
    virtual = replace(MI300X, product="AMD Instinct MI300X VF")
    made = tuned(problem=scaled(dtype="fp8_e4m3_fnuz"), environment=virtual)
    files, _ = written(VLLM, [made], validators={"DEVICE_NAME": "AMD_Instinct_MI300X"})
    assert list(files) == [VLLM_FOLDER + NAME]


def test_options_are_checked_before_a_row_is_asked_for_and_rows_come_one_by_one() -> None:
    taken = 0

    def rows() -> Iterator[ExportRow]:
        nonlocal taken
        for taken in range(1, 101):
            yield tuned(problem=scaled(taken % 10 + 1, 64 * (taken // 10 + 1)))

    pieces = VLLM.write(rows(), ExportOptions(H200.device_class, environments=(H200,)), ExportReport())
    assert taken == 0
    assert len(next(pieces)) < 10_000
    assert taken == 100
    assert len(list(pieces)) == 11  # a piece a file, and the end


def test_no_rows_make_an_empty_archive() -> None:
    assert written(VLLM, [], H200.device_class, environments=(H200,))[0] == {}


def test_the_examples_are_what_is_written() -> None:
    for writer in (VLLM, SGLANG):
        path, _, text = writer.example.partition("\n")
        assert written(writer, [tuned(16)])[0] == {path: text}
        assert (writer.suffix, writer.media_type, writer.targets) == (".tar", "application/x-tar", ())


# ---- archives ------------------------------------------------------------------------------------


def test_an_archive_is_plain_and_always_the_same() -> None:
    archive = member("a/b.json", "{}\n") + member("c", "")
    archive += closing(len(archive))
    assert unpack(archive) == {"a/b.json": "{}\n", "c": ""}
    assert len(archive) == 10240
    with tarfile.open(fileobj=io.BytesIO(archive.encode())) as opened:
        for info in opened:
            assert (info.mtime, info.uid, info.gid, info.uname, info.mode) == (0, 0, 0, "", 0o644)
            assert info.isfile()
    assert archive[257:263] == "ustar\0"


def test_names_beyond_what_ustar_holds() -> None:
    long = VLLM.path(2048, 4096, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
    assert len(long.rsplit("/", 1)[1]) > 100
    archive = member(long, "x" * 512)
    assert unpack(archive + closing(len(archive))) == {long: "x" * 512}


@pytest.mark.parametrize("path", ["", "/etc/x", "a/../b", "./a", "a//b", "é", "a\nb", "a/"])
def test_paths_that_leave_the_folder_or_are_no_ascii(path: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in an archive"):
        member(path, "x")
