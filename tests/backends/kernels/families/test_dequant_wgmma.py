"""dequant-wgmma on the host: every storage type, group and zero point; columns to 128; rows, columns and k
that are no whole tile; planted mistakes; what the compiler makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, HostDevice, HostKernel, build, copied_headers
from tests.backends.kernels.families.test_dequant_ring import KINDS, ident
from tests.backends.kernels.matrix_cores import wrong_of
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import weights
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = FAMILIES["dequant-wgmma"]
CHOSEN: dict[str, Parameter] = {
    "rows": 16, "tile_k": 256, "slots": 2, "warps_m": 4, "warps_k": 2, "splits": 1
}  # fmt: skip


def test_every_kind_is_right(tmp_path: Path) -> None:
    """One candidate each, over several rounds of the rings; copies and products as late as may be, and at
    once."""
    found = [FAMILY.config(p, {**CHOSEN, "splits": 2 if p.m % 3 else 1}, SM_90) for p in KINDS]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one, problem in zip(build(found, tmp_path, 32), KINDS, strict=True):
        assert FAMILY.supports(problem)
        for reversed_order in (False, True):
            case = Case(problem, 3, "normal", "exact")
            finding = verifier.check(HostKernel(one, reversed_order), case, runs=1)
            assert finding.wrong == "", (ident(problem), one.found.instantiation, finding.wrong)


#: n of the call is rows of weights; k that ends inside a chunk.
SHAPES: dict[str, GemmProblem] = {
    "one column": weights(1, 40, 1280, zero_b="uint4", bias="bf16"),
    "nine": weights(9, 130, 768, zero_b="eight", beta=1.0),
    "thirty-two": weights(32, 104, 1024, zero_b="uint4", scale_dtype="fp16"),
    "forty, silu": weights(40, 64, 512, "int4", scale_b="block_1x64", bias="bf16", activation="silu"),
    "sixty of fp16": weights(60, 72, 1536, dtype_a="fp16", scale_dtype="fp16", zero_b="float"),
    "ninety": weights(90, 33, 640, "int8", scale_b="outer", scale_dtype="fp32", dtype_d="fp32"),
    "a hundred and twenty-eight": weights(128, 72, 1280, zero_b="shift", scale_b="block_1x32"),
    "a k of no whole chunk": weights(17, 48, 48, "int8", scale_b="tensor"),
    "padded rows": weights(24, 40, 512, zero_b="eight", ldb=544, lda=520),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_right(name: str, tmp_path: Path) -> None:
    problem = SHAPES[name]
    sample = legal_values(FAMILY, problem, H200, 3, len(name))
    assert sample
    found = [FAMILY.config(problem, values, SM_90) for values in sample]
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(found, tmp_path, 32):
        for other_way in (False, True):
            finding = verifier.check(HostKernel(one, other_way), Case(problem, 3, "normal", "exact"), runs=1)
            assert finding.wrong == "", (one.found.instantiation, one.found.splits, other_way)


#: What is mistaken -> the header, its text, what stands there instead, and a problem that shows it.
MISTAKES = {
    "another lane's byte": (
        "device/dequant_chunk.h", "0x4040u + static_cast<unsigned>", "0x4141u + static_cast<unsigned>",
        weights(17, 40, 512, zero_b="eight"),
    ),
    "another lane's two bytes": (
        "device/dequant_chunk.h", "0x10u + static_cast<unsigned>", "0x01u + static_cast<unsigned>",
        weights(17, 40, 512, "int8", scale_b="outer"),
    ),
    "lines that are not swizzled": (
        "families/dequant_wgmma.h", "(word % 8 ^ (column + on) % 8)", "word % 8",
        weights(17, 40, 512, zero_b="eight"),
    ),
    "the first matrix of a chunk": (
        "families/dequant_wgmma.h", "inputs + at / 4 *", "inputs + at / 8 *",
        weights(17, 40, 512, zero_b="eight"),
    ),
    "elements beyond the last": (
        "device/dequant_chunk.h", "slot + kX, b, left * 2);", "slot + kX, b, kInputBytes);",
        weights(17, 40, 384, "int4", scale_b="outer"),
    ),
    "sums that are not waited for": (
        "families/dequant_wgmma.h", "wait_products<0>();", "wait_products<1>();",
        weights(17, 40, 512, zero_b="eight"),
    ),
    "the scale of the upper rows": (
        "device/dequant_together.h", "factor[tile][i / 2] *", "factor[tile][0] *",
        weights(17, 40, 512, zero_b="eight"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, tmp_path: Path) -> None:
    header, text, mistake, problem = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    config = FAMILY.config(problem, CHOSEN, SM_90)
    (one,) = build([config], tmp_path, 32, tmp_path / "headers")
    assert wrong_of(one, problem)


def test_the_compiler_knows_the_shared_memory_that_python_derives(tmp_path: Path) -> None:
    """A ring a team, whose slots begin at multiples of 1024 bytes; a binary for sm_90a."""
    found = FAMILY.config(weights(32, 64, 1024, zero_b="uint4"), CHOSEN, SM_90)
    slot = 32 * 512 + 64 * 128 + 64 * 2 * 2 + 8 * 2 * 4
    assert found.shared_bytes == 2 * 2 * -(-slot // 1024) * 1024
    assert found.arch_specific
    cache, target = BinaryCache(tmp_path), Nvrtc().target("sm_90", found.arch_specific)
    Nvrtc().compile(CompileUnit(found.unit, target), cache)
    changed = replace(found, shared_bytes=found.shared_bytes + 16)
    with pytest.raises(CompileError, match="as derived"):
        Nvrtc().compile(CompileUnit(changed.unit, target), cache)


@pytest.mark.parametrize(
    ("problem", "change", "words"),
    [
        (weights(1, 64, 1024), {"tile_k": 128}, "1 scales of tile_k 128 are no whole 4-byte words"),
        (weights(129, 64, 1024), {}, "1 to 128 columns beside the streamed operand, not 129"),
        (weights(1, 64, 1024, ldb=1032), {}, "rows of weights must start at multiples of 16 bytes"),
        (weights(128, 64, 1024), {"tile_k": 512}, "bytes of shared memory"),
        (weights(128, 64, 1024, "int8", scale_b="outer"), {"tile_k": 64, "warps_m": 8}, "registers"),
    ],
)
def test_rules_say_what_is_wrong(problem: GemmProblem, change: dict[str, Parameter], words: str) -> None:
    assert words in (FAMILY.rule(problem, {**CHOSEN, **change}, H200) or "")
    assert "wgmma needs sm_90" in (
        FAMILY.rule(weights(1, 64, 1024), CHOSEN, replace(H200, arch="sm_80")) or ""
    )
