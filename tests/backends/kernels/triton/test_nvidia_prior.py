"""Candidates in the order of NVIDIA's heuristics: what they are asked, what becomes of what they propose, and
what happens where they fail. A module of our own stands in for the library; the last tests ask it itself."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.cuda.backend import CudaBackend
from backends.environment import Environment
from backends.kernels.triton import nvidia_prior, nvidia_process
from backends.kernels.triton.families import FAMILIES
from backends.kernels.triton.family import MOST_CANDIDATES
from backends.kernels.triton.oriented_gemm import TritonOrientedGemm
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.protocol import NotedFamily
from tests.backends.kernels.triton.test_legality import A100, GENERAL, H200

SQUARE = from_linear(4096, 4096, 4096, "bf16")
#: A product of few tiles, whose split and persistent candidates are listed too.
FEW = from_linear(100, 512, 4096, "bf16")
NAME = "nvMatmulHeuristics 0.1.0.99"
FIRST = f"{NAME} and our own model propose Triton's candidates in turn"
OURS = "our own model orders Triton's candidates"
Script = Callable[..., None]


def kernel(block: tuple[int, int, int], warps: tuple[int, int] = (2, 2), **changed: Any) -> dict[str, Any]:
    """A configuration by the library's names, its tile cut into rows and columns of warps."""
    names = ("m", "n", "k")
    warp = (block[0] // warps[0], block[1] // warps[1], block[2])
    return {
        **{f"cta_tile_{name}": size for name, size in zip(names, block, strict=True)},
        **{f"warp_tile_{name}": size for name, size in zip(names, warp, strict=True)},
        "cluster_m": 1, "cluster_n": 1, "stages": 3, "split_k": 1, "swizzle_factor": 4, "cta_order": 0,
        **changed,
    }  # fmt: skip


def forget() -> None:
    nvidia_prior.build.cache_clear()
    nvidia_prior._answers.cache_clear()
    nvidia_process.HEURISTICS.close()


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Installs the stand-in, and says what it answers (of the row-major and of the column-major reading)."""
    shutil.copy(Path(__file__).with_name("fake_heuristics.py"), tmp_path / f"{nvidia_prior.MODULE}.py")

    def says(row: Any = (), column: Any = (), fault: str | None = None, version: str = "0.1.0.99") -> None:
        text = json.dumps({"row": row, "column": column, "fault": fault})
        (tmp_path / "script.json").write_text(text)
        info = tmp_path / "nvidia_matmul_heuristics-0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {nvidia_prior.DISTRIBUTION}\nVersion: {version}\n"
        )
        forget()

    says()
    monkeypatch.syspath_prepend(str(tmp_path))
    return says


def asked(folder: Path) -> list[dict[str, Any]]:
    file = folder / "asked.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def parameters(name: str, problem: GemmProblem, environment: Environment = H200) -> list[Any]:
    return [one.parameters for one in FAMILIES[name].solutions(problem, environment)]


#: Lists without the library, each made once.
_OWN: dict[tuple[str, str, str], list[Any]] = {}


def own(name: str, problem: GemmProblem, environment: Environment = H200) -> list[Any]:
    """The list without the library."""
    key = (name, problem.id, environment.id)
    if key not in _OWN:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nvidia_prior, "build", lambda: None)
            _OWN[key] = parameters(name, problem, environment)
    return _OWN[key]


def notes(problem: GemmProblem, environment: Environment = H200) -> set[tuple[str, ...]]:
    return {family.notes(problem, environment) for family in GENERAL.values()}


# ---- what is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize("trans_a", ["N", "T"])
@pytest.mark.parametrize("trans_b", ["N", "T"])
def test_both_readings_are_asked_in_their_own_layouts(
    trans_a: str, trans_b: str, script: Script, tmp_path: Path
) -> None:
    problem = from_blas(72, 40, 56, "bf16", trans_a=trans_a, trans_b=trans_b)
    nvidia_prior.proposals(problem, H200)
    common = {
        "target": "TRITON", "flags": "PERF_MODEL_BASED_AUTO_TUNING", "gpu": "H200_SXM", "visible": "",
        "k": 56, "batch": 1, "precision": "TST",
    }  # fmt: skip
    assert asked(tmp_path) == [
        {**common, "m": 40, "n": 72, "layout": f"{trans_b}{trans_a}_ROW_MAJOR"},
        {**common, "m": 72, "n": 40, "layout": f"{trans_a}{trans_b}_COL_MAJOR"},
    ]
    # The same in the kernels' words: A is contiguous along k if it is row-major as it is.
    row, column = (TritonOrientedGemm(problem, swapped) for swapped in (False, True))
    assert (row.a_along_k, row.b_along_k) == (trans_b == "N", trans_a == "T")
    assert (column.a_along_k, column.b_along_k) == (trans_a == "T", trans_b == "N")


def test_a_batch_is_asked_as_one(script: Script, tmp_path: Path) -> None:
    nvidia_prior.proposals(from_bmm(7, 24, 16, 8, "fp16"), H200)
    assert {(one["batch"], one["k"], one["precision"]) for one in asked(tmp_path)} == {(7, 8, "HSH")}


def test_another_gpu_is_another_question(script: Script, tmp_path: Path) -> None:
    for product in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        nvidia_prior.proposals(SQUARE, replace(H200, product=product))
    assert [one["gpu"] for one in asked(tmp_path)] == ["H200_SXM", "H200_SXM", "H100_SXM", "H100_SXM"]


@pytest.mark.parametrize(
    ("problem", "plain", "swapped"),
    [
        (from_linear(64, 64, 64, "bf16"), "TST", "TST"),
        (from_linear(64, 64, 64, "bf16", dtype_d="fp32", dtype_c="fp32"), "TSS", "TSS"),
        (from_linear(64, 64, 64, "fp16"), "HSH", "HSH"),
        (from_linear(64, 64, 64, "tf32"), "SFS", "SFS"),
        (from_linear(64, 64, 64, "int8"), "BII", "BII"),
        (from_linear(64, 64, 64, "int8", dtype_d="fp32", dtype_c="fp32"), None, None),
        (from_blas(64, 64, 64, "fp8_e4m3", dtype_b="fp8_e5m2", dtype_d="bf16", dtype_c="bf16"),
         "RQTST", "QRTST"),
        (from_blas(64, 64, 64, "fp8_e4m3", dtype_d="fp8_e4m3"), "QQTSQ", "QQTSQ"),
        (from_blas(64, 64, 64, "fp8_e4m3", dtype_d="fp8_e4m3", dtype_c="fp16", beta=1.0), "QQHSQ", "QQHSQ"),
        (from_blas(64, 64, 64, "fp8_e5m2", dtype_d="bf16"), None, None),
        (from_blas(64, 64, 64, "bf16", dtype_d="bf16", dtype_c="fp32", beta=1.0), None, None),
    ],
    ids=lambda value: value.slug if isinstance(value, GemmProblem) else str(value),
)  # fmt: skip
def test_types_are_in_the_librarys_letters(
    problem: GemmProblem, plain: str | None, swapped: str | None
) -> None:
    assert nvidia_prior.precision(TritonOrientedGemm(problem)) == plain
    assert nvidia_prior.precision(TritonOrientedGemm(problem, True)) == swapped


def test_families_and_notes_share_one_question(script: Script, tmp_path: Path) -> None:
    script([kernel((128, 64, 64))])
    for name in GENERAL:
        parameters(name, SQUARE)
    assert notes(SQUARE) == {(FIRST,)}
    assert len(asked(tmp_path)) == 2
    parameters("triton-gemm", FEW)
    assert len(asked(tmp_path)) == 4


# ---- what becomes of it --------------------------------------------------------------------------


def test_what_is_proposed_and_our_own_list_take_turns(script: Script) -> None:
    first, second = kernel((64, 32, 128), (4, 1), stages=5), kernel((16, 256, 32), (1, 8), swizzle_factor=1)
    script([first, second], [kernel((256, 32, 32), (2, 1))])
    found = parameters("triton-gemm", SQUARE)
    tile = {"group_m": 4, "num_stages": 3}
    assert found[0:6:2] == [
        {
            **tile,
            "block_m": 64,
            "block_n": 32,
            "block_k": 128,
            "num_warps": 4,
            "num_stages": 5,
            "swap": False,
        },
        {**tile, "block_m": 256, "block_n": 32, "block_k": 32, "num_warps": 2, "swap": True},
        {**tile, "block_m": 16, "block_n": 256, "block_k": 32, "num_warps": 8, "group_m": 1, "swap": False},
    ]
    assert len(found) == MOST_CANDIDATES
    ours = own("triton-gemm", SQUARE)[: MOST_CANDIDATES - 3]
    assert [*found[1:6:2], *found[6:]] == ours
    assert parameters("triton-gemm", SQUARE) == found


def test_what_is_on_both_lists_or_twice_on_one_is_listed_once(script: Script) -> None:
    ours = own("triton-gemm", SQUARE)
    late = next(one for one in reversed(ours) if not one["swap"] and one["num_warps"] == 4)
    block = (late["block_m"], late["block_n"], late["block_k"])
    more = {"stages": late["num_stages"], "swizzle_factor": late["group_m"]}
    script([kernel(block, (2, 2), **more), kernel(block, (4, 1), **more)])
    assert nvidia_prior.proposals(SQUARE, H200).values[0] == {**late, "split_k": 1}
    assert len(nvidia_prior.proposals(SQUARE, H200).values) == 2
    assert parameters("triton-gemm", SQUARE) == [late, *(one for one in ours if one != late)]


def test_each_family_takes_what_it_can_do(script: Script) -> None:
    script([kernel((64, 64, 64)), kernel((32, 64, 128), split_k=4)], [kernel((128, 32, 64))])
    tiles = {
        name: [(one["block_m"], one["swap"]) for one in parameters(name, FEW) if one not in own(name, FEW)]
        for name in GENERAL
    }
    assert tiles == {
        "triton-gemm": [(64, False), (128, True)],
        "triton-split-k": [(32, False)],
        "triton-persistent": [(64, False), (128, True)],
    }
    assert parameters("triton-split-k", FEW)[0]["split_k"] == 4
    persistent = parameters("triton-persistent", FEW)[0]
    assert (persistent["loads"], persistent["programs_per_unit"], persistent["flatten"]) == ("tma", 1, True)
    # One variant of a proposal, though all of them are legal here.
    found = parameters("triton-persistent", SQUARE)
    assert [found[1], *found[3:]] == own("triton-persistent", SQUARE)[:-2]
    # Descriptors cannot describe lines of 250 bytes: the next variant, where every program has tiles enough.
    ragged = from_linear(4096, 4096, 125, "bf16")
    assert parameters("triton-persistent", ragged)[0]["loads"] == "pointer"


#: What the kernels have no terms for, and what no family may do on an H200.
NO_TERMS = [
    kernel((128, 128, 64), cluster_n=2),
    kernel((128, 128, 64), cluster_m=2),
    kernel((128, 128, 64), warp_tile_k=32),
    kernel((128, 128, 64), warp_tile_m=48),
    kernel((128, 128, 64), warp_tile_n=0),
]
ILLEGAL = [
    kernel((96, 128, 64)),
    kernel((128, 128, 512)),
    kernel((128, 128, 64), (3, 1), warp_tile_m=32, warp_tile_n=128, cta_tile_m=96),
    kernel((128, 128, 64), stages=9),
    kernel((128, 128, 64), swizzle_factor=3),
    kernel((128, 128, 64), swizzle_factor=0),
    kernel((128, 128, 64), split_k=9),
    kernel((128, 128, 64), split_k=0),
    kernel((256, 256, 64)),
    kernel((128, 256, 128), (2, 4), stages=4),
    kernel((128, 128, 64), stages=8),  # legal, but for its last stage there is no shared memory
]


def test_what_cannot_be_expressed_is_dropped_and_counted(script: Script) -> None:
    script([*NO_TERMS, kernel((64, 128, 32), swizzle_factor=2)])
    found = nvidia_prior.proposals(SQUARE, H200)
    assert (len(found.values), found.dropped) == (1, len(NO_TERMS))
    assert parameters("triton-gemm", SQUARE)[0]["group_m"] == 2


def test_what_breaks_a_rule_is_left_out(script: Script) -> None:
    script(ILLEGAL)
    assert len(nvidia_prior.proposals(FEW, H200).values) == len(ILLEGAL)
    for name in GENERAL:
        assert parameters(name, FEW) == own(name, FEW)


@pytest.mark.parametrize(
    ("units", "swizzle", "rows"), [(132, 8, 16), (132, 1, 32), (108, 4, 16), (132, 255, 1)]
)
def test_columns_that_are_walked_together_are_as_many_rows(
    units: int, swizzle: int, rows: int, script: Script
) -> None:
    script([kernel((128, 128, 64), cta_order=1, swizzle_factor=swizzle)])
    found = FAMILIES["triton-gemm"].solutions(SQUARE, replace(H200, units=units))
    assert next(iter(found)).parameters["group_m"] == rows


# ---- where it does not answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", r"RuntimeError: Failed to set predefined GPU, status: 4"),
        ("die", r"status -6"),
        ("hang", r"no answer within 2 s"),
    ],
)
def test_a_failure_is_told_and_our_model_orders(
    fault: str, words: str, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_prior, "_TIMEOUT_SECONDS", 2.0 if fault == "hang" else 60.0)
    script([kernel((64, 64, 64))], fault=fault)
    for name in GENERAL:
        assert parameters(name, FEW) == own(name, FEW)
    assert notes(FEW) == {(f"{NAME} failed ({words}): {OURS}",)}
    assert len(asked(tmp_path)) <= 1  # not again for every family


def test_an_answer_that_is_none(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert notes(FEW) == {(f"{NAME} proposes nothing: {OURS}",)}
    assert parameters("triton-gemm", FEW) == own("triton-gemm", FEW)
    forget()
    monkeypatch.setattr(nvidia_process, "PROGRAM", tmp_path / "talks.py")
    (tmp_path / "talks.py").write_text("print('{')")
    assert "its answer cannot be read" in str(notes(FEW))
    forget()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "failed ([Errno 2]" in str(notes(FEW))


@pytest.mark.parametrize(
    ("problem", "environment", "version", "why"),
    [
        (SQUARE, A100, "0.1.0.99", "describes no NVIDIA A100"),
        (SQUARE, replace(H200, product="NVIDIA H200 MIG 3g.71gb"), "0.1.0.99",
         "describes no NVIDIA H200 MIG 3g.71gb"),
        (SQUARE, H200, "0.2.0.1", "is not of the line 0.1.x that is known here"),
        (from_linear(64, 64, 64, "int8", dtype_d="bf16"), H200, "0.1.0.99",
         "knows no int8 x int8 in int32 to bf16"),
        (from_linear(16, 2**18 + 1, 64, "bf16"), H200, "0.1.0.99", "takes long for sizes over 262144"),
        (from_bmm(2**18 + 1, 16, 16, 16, "bf16"), H200, "0.1.0.99", "takes long for sizes over 262144"),
    ],
    ids=["gpu", "mig", "version", "types", "size", "batch"],
)  # fmt: skip
def test_what_it_does_not_know_is_not_asked(
    problem: GemmProblem, environment: Environment, version: str, why: str, script: Script, tmp_path: Path
) -> None:
    script([kernel((64, 64, 64))], version=version)
    assert notes(problem, environment) == {(f"nvMatmulHeuristics {version} {why}: {OURS}",)}
    assert parameters("triton-gemm", problem, environment) == own("triton-gemm", problem, environment)
    assert asked(tmp_path) == []


def test_without_the_library_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_prior, "MODULE", "a_module_that_nobody_has")
    assert nvidia_prior.build() is None
    assert notes(SQUARE) == {()}
    monkeypatch.setattr(nvidia_prior, "MODULE", "json")
    monkeypatch.setattr(nvidia_prior, "DISTRIBUTION", "a-distribution-that-nobody-has")
    nvidia_prior.build.cache_clear()
    assert nvidia_prior.build() is None


def test_problems_without_a_kernel_have_no_notes(script: Script, tmp_path: Path) -> None:
    assert notes(from_linear(8, 8, 8, "fp64")) == {()}
    assert notes(from_linear(8, 8, 8, "fp8_e4m3"), A100) == {()}
    assert asked(tmp_path) == []


def test_the_backends_families_hand_the_notes_on(script: Script) -> None:
    script([kernel((64, 64, 64))])
    for name in GENERAL:
        family = CudaBackend().families()[name]
        assert isinstance(family, NotedFamily)
        assert family.notes(SQUARE, H200) == (FIRST,)


# ---- the library itself --------------------------------------------------------------------------

nvidia_prior.build.cache_clear()
real = pytest.mark.skipif(
    nvidia_prior.build() is None,
    reason="nvMatmulHeuristics is not installed; pip install 'gemmtune[heuristics]'",
)


@real
@pytest.mark.parametrize(
    "problem",
    [
        SQUARE, FEW, from_linear(16, 4096, 4096, "bf16"), from_linear(1000, 1000, 1000, "fp16"),
        from_linear(1, 1, 1, "tf32"), from_linear(512, 6144, 4096, "fp8_e4m3", dtype_d="bf16"),
        from_blas(300, 500, 700, "int8"), from_bmm(500, 32, 32, 32, "fp16"),
    ],
    ids=lambda p: p.slug,
)  # fmt: skip
def test_the_library_answers_without_a_gpu(problem: GemmProblem) -> None:
    found = nvidia_prior.proposals(problem, H200)
    assert (
        found.note
        == f"nvMatmulHeuristics {nvidia_prior.build()} and our own model propose Triton's candidates in turn"
    )
    assert found.values
    first = {name: list(family._proposed(problem, H200)) for name, family in GENERAL.items()}
    assert any(first.values())
    for name, family in GENERAL.items():
        solutions = list(family.solutions(problem, H200))
        assert len({one.id for one in solutions}) == len(solutions) <= MOST_CANDIDATES
        assert not [one.id for one in solutions if family.illegal(problem, one, H200)]
        listed = [one.parameters for one in solutions]
        assert all(listed.index(one) <= 2 * number for number, one in enumerate(first[name]))
    nvidia_prior._answers.cache_clear()
    assert nvidia_prior.proposals(problem, H200) == found


@real
def test_every_gpu_that_is_named_is_one_of_the_librarys() -> None:
    library: Any = pytest.importorskip(nvidia_prior.MODULE)
    assert set(nvidia_prior._GPUS.values()) <= set(library.NvMatmulHeuristicsNvidiaGpu.__members__)
