"""Units and what Python derives of them. That every family compiles is test_check.py's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelConfig, KernelFamily
from backends.kernels.few_columns import FewColumnsFamily
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.legality import arch_of
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Parameter
from backends.toolchains.nvrtc import Nvrtc
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import H200, source
from tests.backends.kernels.emulator.test_families import MI300X
from tests.backends.kernels.ptx import EARLY, TOUCHES, WAIT, compiled, waits_first
from tests.backends.kernels.samples import SM_90, every_value, legal_values
from tests.backends.weight_samples import fp8, mx_product, mxfp4, weights

#: Of more legal configurations some hundreds are drawn.
MANY = 10_000
SAMPLED = (
    from_linear(1, 4096, 4096, "bf16"), from_mm(4, 4096, 4096, "fp16", beta=1.0),
    from_linear(9, 4097, 4095, "bf16"),
    from_mm(512, 768, 256), from_linear(100, 99, 63, "fp32"),
    from_bmm(999, 32, 24, 40), from_bmm(50, 11, 64, 33, "bf16", trans_b="T"),
)  # fmt: skip
#: Of tensor cores' families.
BROAD = (from_linear(513, 517, 1031, "bf16"), from_mm(512, 512, 512, "tf32"))
#: Of Hopper's, whose lines start at multiples of 16 bytes.
ALIGNED = from_linear(513, 517, 1032, "bf16")
#: Of a short k: unaligned lines, and aligned ones.
SHORT = (from_linear(127, 1283, 129, "bf16"), from_linear(127, 1280, 64, "fp16"),
         from_linear(100, 99, 255, "bf16", dtype_d="fp32"), from_linear(100, 99, 5, "bf16"))  # fmt: skip
#: And of few columns.
SHORTER = (from_linear(3, 1000, 777, "bf16"), from_linear(8, 70, 640, "fp16"), from_linear(1, 99, 5, "bf16"))

#: Of quantised weights.
QUANTISED = (
    weights(4, 4096, 4096, zero_b="uint4"), weights(7, 1288, 4096, "int8", scale_b="outer"),
    mxfp4(4, 1288, 2880), fp8(4, 1288, 4096, scale_b="block_128x128", scale_dtype="fp32"),
)  # fmt: skip
#: And packed beforehand.
PACKED = tuple(replace(one, prepacked=True) for one in QUANTISED)
#: And of many columns.
MANY_COLUMNS = (weights(300, 1288, 4096, zero_b="uint4"), mxfp4(4096, 1288, 2880))


#: Of 8-bit operands: scales of rows, none, and of blocks.
BYTES = (
    from_linear(7, 1288, 4096, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"),
    from_linear(40, 4096, 4096, "fp8_e4m3"),
    from_linear(4, 4096, 4096, "fp8_e4m3", scale_a="block_1x128", scale_b="block_128x128"),
)
#: And of many columns.
MANY_BYTES = (replace(BYTES[0], n=300), replace(BYTES[1], n=300), replace(BYTES[2], n=300))
#: Both operands of MXFP4: lines of scales that are whole words, and others.
MX_PRODUCTS = (mx_product(300, 4096, 4096), mx_product(300, 1288, 2880, dtype_d="fp32"))
#: Of groups.
GROUPED = from_linear(64, 1536, 2048, "bf16", groups=8, routing="uniform")
GROUPED_BYTES = tuple(
    from_linear(64, 1536, 2048, "fp8_e4m3", groups=8, scale_a=of_x, scale_b=of_w)
    for of_x, of_w in (("block_1x128", "block_128x128"), ("outer", "outer"))
)
#: (Those of integers differ from dequant-ring's in nothing.)
GROUPED_WEIGHTS = mxfp4(64, 1536, 2080, groups=8)
GROUPED_INTEGERS = weights(64, 1536, 2048, zero_b="uint4", groups=8)
PLAIN_INTEGERS = weights(64, 1536, 2048, zero_b="shift")
DEQUANTISED = ("grouped-dequant-wgmma", "grouped-dequant-mfma", "grouped-dequant-wmma")
GROUPED_FAMILIES = ("grouped-wgmma", "grouped-ring", "grouped-tile")


def test_one_binary_serves_every_size_scalar_and_epilogue(tmp_path: Path) -> None:
    """What a candidate is verified on (with beta, other sizes) costs no second compilation where lines stay
    whole."""
    family = FAMILIES["gemv"]
    values = dict(next(iter(family.solutions(SAMPLED[0], H200))).parameters)
    units = {
        family.config(problem, values, SM_90).unit
        for problem in (SAMPLED[0], from_linear(1, 160, 64, "bf16", beta=1.0, bias="bf16", activation="gelu"))
    }
    assert len(units) == 1
    assert family.config(from_linear(1, 160, 65, "bf16"), values, SM_90).unit not in units
    split = family.config(SAMPLED[0], {**values, "splits": 8}, SM_90)
    assert split.unit in units
    assert split.grid[1] == 8


def test_a_unit_that_python_derives_wrongly_does_not_compile(tmp_path: Path) -> None:
    good = FAMILIES["vectorized"].config(
        SAMPLED[3], legal_values(FAMILIES["vectorized"], SAMPLED[3], H200, 1)[0], SM_90
    )
    for bad in (replace(good, shared_bytes=good.shared_bytes + 4), replace(good, threads=good.threads + 32)):
        with pytest.raises(CompileError, match=r"NVRTC refuses unit\.cu: .*as derived"):
            Nvrtc().compile(CompileUnit(bad.unit, "sm_90"), BinaryCache(tmp_path))


@pytest.mark.parametrize(
    ("name", "warp"),
    [
        *((name, 32) for name, family in FAMILIES.items() if "cuda" in family.vendors),
        ("grouped-mfma", 64), ("grouped-wmma", 32), ("grouped-dequant-mfma", 64),
        ("grouped-dequant-wmma", 32), ("dequant-mfma", 64), ("dequant-wmma", 32), ("tile-mfma", 64),
        ("tile-wmma", 32), ("mxfp4-mfma", 64),
        ("gemv-persistent", 64), ("gemv", 64), ("skinny", 64),
    ],
)  # fmt: skip
def test_python_and_the_header_agree_over_the_whole_legal_space(name: str, warp: int) -> None:
    """Threads and shared memory of every legal configuration, asserted by the header's own constants."""
    family = FAMILIES[name]
    environment = H200 if warp == 32 else MI300X
    if "cuda" not in family.vendors and warp == 32:
        environment = replace(MI300X, arch="gfx1201", product="AMD Radeon RX 9070 XT", units=32)
    # Types and layouts change neither in the ladder but in its last step, which pads what it transposes.
    parts: dict[str, tuple[GemmProblem, ...]]
    parts = {
        "gemv-persistent": SPANNED,
        "skinny-persistent": (from_linear(2, 75, 1160, "bf16"), from_linear(3, 75, 4096, "fp32")),
        "small-batch": SAMPLED[5:],
        "async-copy": (*SAMPLED[3:5], from_mm(99, 63, 99)),
        "tile-mma": BROAD,
        "stream-k": BROAD,
        "tile-wgmma": (ALIGNED,),
        "short-k": SHORT,
        "skinny-short": SHORTER,
        "tile-mfma": (BROAD[0], from_mm(512, 512, 512, "int8", dtype_d="int8")),
        "tile-wmma": (BROAD[0], from_mm(512, 512, 512, "fp8_e4m3")),
        **dict.fromkeys(("dequant-ring", "dequant-wgmma", "dequant-tma-wgmma", "dequant-gemv"), QUANTISED),
        "dequant-mma": (*QUANTISED[:2], PLAIN_INTEGERS),
        "packed-mma": PACKED,
        "packed-imma": (PACKED[0], weights(2, 1288, 4096, zero_b="eight", prepacked=True)),
        "dequant-tile-wgmma": MANY_COLUMNS[:1],
        "dequant-tile-mma": MANY_COLUMNS,
        **dict.fromkeys(("dequant-mfma", "dequant-wmma"), (*QUANTISED[1:], PLAIN_INTEGERS)),
        "bytes-ring": BYTES,
        "bytes-tile-mma": MANY_BYTES,
        **dict.fromkeys(("mxfp4-tile-mma", "mxfp4-mfma"), MX_PRODUCTS),
        **dict.fromkeys(DEQUANTISED, (GROUPED_WEIGHTS, GROUPED_INTEGERS)),
        **dict.fromkeys(("grouped-mfma", "grouped-wmma"), (GROUPED,)),
        **dict.fromkeys(GROUPED_FAMILIES, (GROUPED, *GROUPED_BYTES, GROUPED_WEIGHTS)),
    }
    problems = parts.get(name, SAMPLED[:3] if isinstance(family, FewColumnsFamily) else SAMPLED[3:4])
    asserted: dict[str, KernelConfig] = {}
    for problem in filter(family.supports, problems):
        for values in _legal(family, problem, environment):
            one = family.config(problem, values, arch_of(environment))
            asserted[one.instantiation] = one
    assert len(asserted) > 5
    lines = [f'#include "{family.header}"']
    for one in asserted.values():
        chosen = f"gemmtune::{one.instantiation}"
        lines.append(f'static_assert({chosen}::kThreads == {one.threads}, "threads");')
        lines.append(f'static_assert({chosen}::kSharedBytes == {one.shared_bytes}, "shared");')
    command = [
        "g++",
        "-std=c++17",
        "-fsyntax-only",
        "-DGEMMTUNE_HOST",
        f"-DGEMMTUNE_WARP={warp}",
        f"-I{HEADERS}",
    ]
    done = subprocess.run(
        [*command, "-x", "c++", "-"], input="\n".join(lines), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]


def _ptx(unit: str, arch: str) -> dict[str, str]:
    """The text of each entry point, as NVRTC hands it to the assembler."""
    return compiled(unit, arch)


#: A family, a problem and parameters with a second launch.
IN_TWO: tuple[tuple[str, GemmProblem, dict[str, Parameter]], ...] = (
    ("gemv", SAMPLED[0], {"splits": 2}), ("skinny", SAMPLED[1], {"splits": 2}),
    ("skinny-mma", SAMPLED[2], {"splits": 2}), ("skinny-ring", SAMPLED[2], {"splits": 2}),
    ("skinny-shifted", SAMPLED[2], {"splits": 2, "warps": 2, "cluster": 0}),
    ("async-copy", SAMPLED[3], {"splits": 2}),
    ("bytes-ring", BYTES[0], {"splits": 2}), ("bytes-ring", BYTES[1], {"splits": 2}),
    ("bytes-ring", BYTES[2], {"splits": 2}),
    ("bytes-tile-mma", MANY_BYTES[0], {"splits": 2}), ("bytes-tile-mma", MANY_BYTES[1], {"splits": 2}),
    ("bytes-tile-mma", MANY_BYTES[2], {"splits": 2}),
    ("mxfp4-tile-mma", MX_PRODUCTS[0], {"splits": 2}), ("mxfp4-tile-mma", MX_PRODUCTS[1], {"splits": 2}),
    ("tile-mma", BROAD[0], {"splits": 2}), ("dequant-tile-mma", MANY_COLUMNS[0], {"splits": 2}),
    ("stream-k", BROAD[0], {}), ("stream-k", BROAD[1], {}),
)  # fmt: skip


#: Matrix times vector: threads span k by as many loads each, or some by one less; elements of both sizes.
SPANNED = (SAMPLED[0], from_linear(1, 75, 1160, "bf16"), from_linear(1, 75, 4096, "fp32"))

FETCHED: tuple[dict[str, Parameter], ...] = tuple({"splits": 1, "ahead": ahead} for ahead in (0, 1))
UNSPLIT: dict[str, Parameter] = {"splits": 1}
#: skinny-shifted's. (Its windows ahead are loads, and no fetches.)
NEAR: dict[str, Parameter] = {"lines": 8, "classes": 1, "warps": 8, "ahead": 0, "splits": 1, "cluster": 0}
#: Of families in one launch, and those that fetch ahead.
IN_ONE: tuple[tuple[str, GemmProblem, dict[str, Parameter]], ...] = (
    ("small-batch", SAMPLED[5], {}), ("async-copy", SAMPLED[3], {}),
    *(("gemv", SAMPLED[0], given) for given in FETCHED),
    ("gemv-persistent", SPANNED[1], {"ahead": 0}), ("gemv-persistent", SPANNED[1], {"ahead": 1}),
    ("skinny-persistent", from_linear(4, 75, 1160, "bf16"), {"ahead": 1}),
    *(("skinny", from_linear(4, 512, 512, "bf16"), given) for given in FETCHED),
    ("gemv", from_linear(1, 4097, 4095, "bf16"), {"ahead": 1}), ("skinny", SAMPLED[2], {"ahead": 1}),
    ("gemv", from_mm(1, 512, 512), {}), ("skinny", SAMPLED[1], {}),
    ("skinny-ring", from_linear(4, 512, 512, "bf16"), {"splits": 1}),
    *(("short-k", problem, {}) for problem in SHORT),
    ("dequant-tile-mma", MANY_COLUMNS[0], {"splits": 1}),
    ("dequant-tile-mma", MANY_COLUMNS[1], {"splits": 1}),
    *(("packed-mma", problem, UNSPLIT) for problem in PACKED),
    ("packed-imma", weights(2, 4096, 4096, zero_b="uint4", prepacked=True), {}),
    ("bytes-ring", BYTES[0], {"splits": 1}), ("bytes-ring", BYTES[1], {"splits": 1}),
    ("bytes-ring", BYTES[2], {"splits": 1}),
    ("bytes-tile-mma", MANY_BYTES[0], {"splits": 1}), ("bytes-tile-mma", MANY_BYTES[1], {"splits": 1}),
    ("bytes-tile-mma", MANY_BYTES[2], {"splits": 1}),
    ("mxfp4-tile-mma", MX_PRODUCTS[0], {"splits": 1}), ("mxfp4-tile-mma", MX_PRODUCTS[1], {"splits": 1}),
    ("skinny-shifted", from_linear(3, 1000, 777, "bf16"), NEAR),
    ("skinny-short", from_linear(3, 1000, 777, "bf16"), {"unroll": 2}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "problem", "given"), IN_TWO)
def test_a_second_launch_waits_before_it_reads_and_may_come_early(
    name: str, problem: GemmProblem, given: dict[str, Parameter]
) -> None:
    """From sm_90 on: the first lets it come before its last stores, and both wait for all of the
    launch before them before they touch memory."""
    family = FAMILIES[name]
    values = legal_values(family, problem, H200, 1)[0] | given
    unit = family.config(problem, values, SM_90).unit
    entries = _ptx(unit, "sm_90")
    assert set(entries) == {"gemm", "reduce"}
    first, second = entries["gemm"], entries["reduce"]
    waits_first(first)
    waits_first(second)
    assert first.index(WAIT) < first.index(EARLY), "an early launch starts within this product"
    assert re.search(r"\bst\.global", first.rsplit(EARLY, 1)[1])
    assert EARLY not in second
    older = "".join(_ptx(unit, "sm_80").values())
    assert "griddepcontrol" not in older
    assert TOUCHES.search(older)
    assert "ld.global.nc" not in older


#: Kernels of one architecture alone: blocks for themselves, and clusters.
ON_HOPPER: tuple[tuple[str, GemmProblem, dict[str, Parameter]], ...] = tuple(
    ("tile-wgmma", ALIGNED, {"tile_m": 128, "tile_n": 48, "stages": 3, "group": 8, **given})
    for given in (
        {"share": 1, "share_b": 1, "splits": 1}, {"share": 2, "share_b": 1, "splits": 2},
        {"share": 1, "share_b": 2, "splits": 1}, {"share": 4, "share_b": 2, "splits": 1},
    )
)  # fmt: skip


#: Of families that may have clusters, which older architectures have not.
ALONE: dict[str, dict[str, Parameter]] = {
    "dequant-tma-wgmma": {"share": 1, "splits": 1}, "dequant-tile-wgmma": {"share": 1},
}  # fmt: skip


def _others() -> Iterator[tuple[str, GemmProblem, dict[str, Parameter]]]:
    """Every CUDA family that no list above names, on the first problem with a legal configuration."""
    named = {name for name, _, _ in (*IN_ONE, *IN_TWO, *ON_HOPPER)}
    problems = (SAMPLED[3], *SAMPLED, *BROAD, ALIGNED, *SHORT, *QUANTISED, *MANY_COLUMNS)
    for name, family in FAMILIES.items():
        if name not in named and "cuda" in family.vendors:
            of = (GROUPED,) if name in GROUPED_FAMILIES else (*problems, GROUPED_WEIGHTS)
            legal = (one for one in of if legal_values(family, one, H200, 1))
            yield name, next(legal, SAMPLED[3]), ALONE.get(name, {})


@pytest.mark.parametrize(("name", "problem", "given"), [*IN_ONE, *_others()])
def test_every_launch_waits_before_it_touches_memory(
    name: str, problem: GemmProblem, given: dict[str, Parameter]
) -> None:
    """What it touches it may have fetched before, which is no load: a step's loads, and nothing later."""
    family = FAMILIES[name]
    values = legal_values(family, problem, H200, 1)[0] | given
    assert family.rule(problem, values, H200) is None
    found = family.config(problem, values, SM_90)
    unit, whole_line = found.unit, -(-problem.k * 2 // (16 * found.threads))
    entries = _ptx(unit, "sm_90")
    for entry in entries.values():
        waits_first(entry)
    maps = entries["gemm"].replace("prefetch.tensormap", "")  # no launch writes them
    before, after = (part.count("prefetch") for part in maps.split(WAIT))
    step = int(values["rows"] or 0) * int(values.get("unroll") or whole_line) if values.get("ahead") else 0
    assert (before, after) == (step, 0)
    assert "prefetch" not in entries.get("reduce", "")
    older = _ptx(unit, "sm_80")
    assert "griddepcontrol" not in "".join(older.values())
    assert older["gemm"].count("prefetch.global.L2") == step


@pytest.mark.parametrize(("name", "problem", "given"), ON_HOPPER)
def test_every_launch_of_hoppers_waits_before_it_touches_memory(
    name: str, problem: GemmProblem, given: dict[str, Parameter]
) -> None:
    """The copy engine, too, of which only its maps are fetched before: no launch writes them."""
    assert FAMILIES[name].rule(problem, given, H200) is None
    found = FAMILIES[name].config(problem, given, SM_90)
    entries = _ptx(found.unit, Nvrtc().target("sm_90", found.arch_specific))
    for entry in entries.values():
        waits_first(entry)
    before, after = entries["gemm"].split(WAIT)
    assert before.count("prefetch") == before.count("prefetch.tensormap") == 1
    assert "prefetch" not in after
    assert "div.u32" in before
    assert "div.u32" not in after, "nothing that needs no memory stands between the wait and the first copy"
    assert (".multicast::cluster" in after) == ((given["share"], given["share_b"]) != (1, 1))
    for told in ("cp.async.bulk.tensor", "wgmma.mma_async"):
        assert told not in before
        assert told in after


def _legal(
    family: KernelFamily, problem: GemmProblem, environment: Environment
) -> list[dict[str, Parameter]]:
    """The whole legal space, or of a very large one some."""
    space = every_value(family)
    found = [values for values in space if family.rule(problem, values, environment) is None]
    return found if len(found) <= MANY else legal_values(family, problem, environment, MANY // 20)


def test_a_sample_is_one_unit_for_the_host() -> None:
    one = FAMILIES["naive"].config(SAMPLED[3], {"tile_m": 32, "tile_n": 8}, SM_90)
    text = source([one, one])
    assert text.count("using Chosen_") == 2
    assert "GEMMTUNE_KERNEL(gemm_1, Chosen_1)" in text
