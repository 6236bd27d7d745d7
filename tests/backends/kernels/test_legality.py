"""What is refused, and with which words; what is listed, and where."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from backends.archs import GPU_TARGETS
from backends.kernels.families import FAMILIES
from backends.kernels.legality import arch_of, registers_rule
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Solution
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.samples import PROBLEMS, SM_90

DECODE = from_linear(1, 4096, 4096, "bf16")
SKINNY = from_linear(8, 4096, 4096, "bf16")
SQUARE = from_mm(512, 512, 512)
GEMV = {"stream": "a", "rows": 1, "unroll": 4, "warps_m": 1, "warps_k": 4, "splits": 1, "ahead": 0}
STAY = {"stream": "a", "rows": 2, "warps": 8, "blocks_per_unit": 4, "ahead": 1}
MMA = {"stream": "a", "row_tiles": 1, "unroll": 4, "warps_m": 1, "warps_k": 4, "splits": 1}
RING = {"stream": "a", "rows": 32, "tile_k": 128, "slots": 4, "warps": 4, "splits": 1}
SHIFTED = {"stream": "a", "lines": 16, "classes": 8, "unroll": 3, "ahead": 1, "warps": 2, "splits": 4,
           "cluster": 0}  # fmt: skip
ONCE = {"stream": "a", "unroll": 2, "warps": 13}
#: Who is for few columns, and who is for 16-bit floats: what a product of many columns in fp32 has not.
NARROW = {"gemv-persistent", "gemv", "skinny-persistent", "skinny", "skinny-short", "skinny-ring",
          "skinny-shifted", "skinny-mma"}  # fmt: skip
#: Families of quantised weights, of 8-bit operands, of MXFP4 on both sides and of groups.
WEIGHTS = {"dequant-mma", "dequant-ring", "packed-mma", "packed-imma",
           "dequant-wgmma", "dequant-gemv", "bytes-ring", "grouped-wgmma", "grouped-ring",
           "grouped-dequant-wgmma", "dequant-tma-wgmma", "dequant-tile-wgmma", "dequant-tile-mma",
           "grouped-tile", "grouped-mfma", "grouped-wmma", "grouped-dequant-mfma", "grouped-dequant-wmma",
           "dequant-mfma", "dequant-wmma", "bytes-tile-mma", "mxfp4-tile-mma",
           "mxfp4-mfma"}  # fmt: skip
HALVES = {"tile-mma", "stream-k", "tile-wgmma", "short-k", "tile-mfma", "tile-wmma"}
CORES = {
    "tile_m": 128,
    "tile_n": 128,
    "tile_k": 64,
    "warp_m": 64,
    "warp_n": 64,
    "stages": 3,
    "group": 8,
    "splits": 1,
}
STREAM = {**{name: value for name, value in CORES.items() if name != "splits"}, "blocks_per_unit": 1}
BROAD = from_linear(2049, 2049, 2049, "bf16")
SHORT = from_linear(127, 8191, 129, "bf16")
WHOLE_K = {"tile_m": 64, "tile_n": 128, "warp_m": 32, "warp_n": 32, "warps": 16}
TILE = {"tile_m": 128, "tile_n": 128, "tile_k": 16, "thread_m": 8, "thread_n": 8}
WARP = {**TILE, "warp_m": 64, "warp_n": 32}
PIPE = {"tile_m": 128, "tile_n": 128, "tile_k": 16, "thread_m": 16, "thread_n": 8, "stages": 3, "group": 8,
        "splits": 1}  # fmt: skip
BATCH = from_bmm(1000, 32, 32, 32)
TEAM = {"thread_m": 8, "thread_n": 4, "threads": 64, "rounds": 4, "stages": 2}


def refusal(name: str, problem: GemmProblem, values: dict[str, Any], **environment: Any) -> str | None:
    solution = Solution(name, int(values.pop("version", FAMILIES[name].version)), values)
    return FAMILIES[name].illegal(problem, solution, replace(H200, **environment))


@pytest.mark.parametrize(
    ("name", "problem", "values"),
    [("gemv-persistent", DECODE, STAY), ("gemv", DECODE, GEMV), ("skinny", SKINNY, GEMV),
     ("skinny-mma", SKINNY, MMA), ("skinny-ring", SKINNY, RING), ("skinny-ring", DECODE, RING),
     ("skinny-ring", SKINNY, {**RING, "rows": 48}),
     ("skinny-ring", from_linear(64, 4095, 4097, "fp16"), {**RING, "slots": 2, "warps": 2}),
     ("skinny-shifted", from_linear(17, 4097, 4095, "bf16"), SHIFTED), ("skinny-shifted", DECODE, SHIFTED),
     ("skinny-short", from_linear(3, 1000, 777, "bf16"), ONCE),
     ("skinny-short", from_linear(8, 64, 831, "fp16"), {**ONCE, "unroll": 3}),
     ("skinny-shifted", SKINNY, {**SHIFTED, "cluster": 1}),
     ("skinny-shifted", SKINNY, {**SHIFTED, "lines": 32, "classes": 2}),
     ("tile-mma", BROAD, CORES), ("stream-k", BROAD, STREAM), ("short-k", SHORT, WHOLE_K),
     ("vectorized", SQUARE, TILE), ("double-buffered", SQUARE, WARP), ("async-copy", SQUARE, PIPE),
     ("small-batch", BATCH, TEAM)],
)  # fmt: skip
def test_what_the_rules_below_are_broken_from_is_legal(
    name: str, problem: GemmProblem, values: dict[str, Any]
) -> None:
    assert refusal(name, problem, dict(values)) is None


@pytest.mark.parametrize(
    ("name", "problem", "values", "words"),
    [
        ("gemv-persistent", SKINNY, STAY, "1 to 1 columns beside the streamed operand, not 8"),
        ("gemv-persistent", from_mm(1, 4096, 4096, "bf16"), STAY, "the matrix must be contiguous along k"),
        ("gemv-persistent", from_linear(1, 4096, 4095, "bf16"), STAY,
         "lines must start at multiples of 16 bytes and be whole numbers of them"),
        ("gemv-persistent", replace(DECODE, alignment=8), STAY, "lines must start at multiples of 16 bytes"),
        ("gemv-persistent", from_bmm(2, 1, 64, 64, "bf16", trans_b="T", stride_a=68), STAY,
         "columns must start at multiples of 16 bytes"),
        ("gemv-persistent", from_linear(1, 4096, 32768, "bf16"), STAY,
         "256 threads have 16 loads each of a line of k = 32768; at most 8"),
        ("gemv-persistent", from_linear(1, 4096, 8192, "bf16"), {**STAY, "rows": 8, "warps": 4},
         "operands and sums take 312 registers; 128 threads have 223 each for them"),
        ("skinny-persistent", DECODE, STAY, "2 to 4 columns beside the streamed operand, not 1"),
        ("skinny-persistent", SKINNY, STAY, "2 to 4 columns beside the streamed operand, not 8"),
        ("gemv-persistent", DECODE, {**STAY, "ahead": 2}, "ahead must be one of 0, 1, not 2"),
        ("gemv", DECODE, {**GEMV, "version": 1}, "version 1 of gemv is another kernel; this is 2"),
        ("skinny", SKINNY, {**GEMV, "version": 1}, "version 1 of skinny is another kernel; this is 2"),
        ("gemv", DECODE, {**GEMV, "extra": 1}, "a gemv solution has the parameters stream, rows"),
        ("gemv", DECODE, {}, "a gemv solution has the parameters"),
        ("gemv", DECODE, {**GEMV, "rows": True}, "rows must be one of 1, 2, 4, 8, not True"),
        ("gemv", DECODE, {**GEMV, "rows": "1"}, "rows must be one of 1, 2, 4, 8, not '1'"),
        ("gemv", DECODE, {**GEMV, "rows": None}, "rows must be one of .*, not None"),
        ("gemv", DECODE, {**GEMV, "rows": 3}, "rows must be one of .*, not 3"),
        ("gemv", DECODE, {**GEMV, "unroll": -4}, "unroll must be one of .*, not -4"),
        ("gemv", DECODE, {**GEMV, "stream": "c); evil("}, "stream must be one of a, b, not"),
        ("gemv", SKINNY, GEMV, "1 to 1 columns beside the streamed operand, not 8"),
        ("gemv", DECODE, {**GEMV, "stream": "b"}, "1 to 1 columns beside the streamed operand, not 4096"),
        ("gemv", DECODE, {**GEMV, "warps_m": 8, "warps_k": 16}, "a block has 32 to 1024 threads, not 4096"),
        ("gemv", DECODE, {**GEMV, "rows": 8, "unroll": 16},
         "operands and sums take .* registers; 128 threads"),
        ("gemv", from_mm(1, 4096, 4096, "bf16"), {**GEMV, "rows": 2},
         "rows must be 1 where the streamed operand"),
        ("gemv", DECODE, {**GEMV, "ahead": 2}, "ahead must be one of 0, 1, not 2"),
        ("gemv", DECODE, {name: value for name, value in GEMV.items() if name != "ahead"},
         "a gemv solution has the parameters .*, ahead"),
        ("gemv", from_mm(1, 4096, 4096, "bf16"), {**GEMV, "ahead": 1},
         "ahead must be 0 where the streamed operand is contiguous along m, not 1"),
        ("skinny", from_mm(4, 4096, 4096, "bf16"), {**GEMV, "ahead": 1},
         "ahead must be 0 where the streamed operand is contiguous along m, not 1"),
        ("skinny", DECODE, GEMV, "2 to 16 columns beside the streamed operand, not 1"),
        ("skinny-mma", from_linear(8, 64, 64), MMA, "tensor cores multiply 16-bit floats, not fp32"),
        ("skinny-mma", from_mm(8, 64, 64, "bf16"), MMA, "both operands must be contiguous along k"),
        ("skinny-mma", from_linear(65, 640, 64, "bf16"), MMA,
         "2 to 64 columns beside the streamed operand, not 65"),
        ("skinny-ring", SKINNY, {**RING, "version": 1}, "version 1 of skinny-ring is another kernel"),
        ("skinny-ring", SKINNY, {**RING, "ahead": 0}, "a skinny-ring solution has the parameters stream"),
        ("skinny-ring", SKINNY, {**RING, "rows": 20}, "rows must be one of 8, 16, 24, .*, not 20"),
        ("skinny-ring", SKINNY, {**RING, "slots": 1}, "slots must be one of 2, 3, 4, 6, 8, not 1"),
        ("skinny-ring", from_linear(65, 640, 64, "bf16"), RING,
         "1 to 64 columns beside the streamed operand, not 65"),
        ("skinny-ring", SKINNY, {**RING, "stream": "b"},
         "1 to 64 columns beside the streamed operand, not 4096"),
        ("skinny-ring", from_linear(8, 64, 64), RING, "tensor cores multiply 16-bit floats, not fp32"),
        ("skinny-ring", from_mm(8, 64, 64, "bf16"), RING, "both operands must be contiguous along k"),
        ("skinny-ring", SKINNY, {**RING, "rows": 128, "tile_k": 256},
         "1114112 bytes of shared memory; sm_90 has 232448 for a block"),
        # Unaligned lines take 16 bytes more.
        ("skinny-ring", from_linear(8, 4096, 4097, "bf16"), {**RING, "rows": 48},
         "243712 bytes of shared memory; sm_90 has 232448 for a block"),
        ("skinny-ring", from_linear(64, 4096, 4096, "bf16"),
         {**RING, "rows": 128, "tile_k": 64, "slots": 2}, "operands and sums take 296 registers"),
        ("skinny-shifted", SKINNY, {**SHIFTED, "rows": 8}, "a skinny-shifted solution has the parameters"),
        ("skinny-shifted", SKINNY, {**SHIFTED, "lines": 12}, "lines must be one of 8, 16, 32, not 12"),
        ("skinny-shifted", SKINNY, {**SHIFTED, "version": 1},
         "version 1 of skinny-shifted is another kernel; this is 3"),
        ("skinny-shifted", SKINNY, {**SHIFTED, "cluster": 1, "splits": 1},
         "cluster must be 0 where k is not split"),
        ("skinny-shifted", SKINNY, {**SHIFTED, "stream": "b"},
         "1 to 32 columns beside the streamed operand, not 4096"),
        ("skinny-shifted", from_linear(33, 640, 65, "bf16"), SHIFTED,
         "1 to 32 columns beside the streamed operand, not 33"),
        ("skinny-shifted", from_linear(8, 64, 65), SHIFTED, "tensor cores multiply 16-bit floats, not fp32"),
        ("skinny-shifted", from_mm(8, 64, 64, "bf16"), SHIFTED, "both operands must be contiguous along k"),
        ("skinny-short", from_linear(9, 1000, 777, "bf16"), ONCE,
         "1 to 8 columns beside the streamed operand, not 9"),
        ("skinny-short", from_linear(3, 1000, 777), ONCE, "tensor cores multiply 16-bit floats, not fp32"),
        ("skinny-short", from_mm(3, 1000, 777, "bf16"), ONCE, "both operands must be contiguous along k"),
        ("skinny-short", from_linear(3, 1000, 827, "bf16"), ONCE,
         "13 warps of 2 steps have not the 27 of k = 827"),
        ("skinny-short", from_linear(3, 1000, 777, "bf16", ldb=2**24), ONCE,
         "lines are fewer than 16777216 elements apart, not 16777216"),
        ("skinny-short", from_linear(3, 1000, 777, "bf16"), {**ONCE, "warps": 1},
         "warps must be one of 2, 3"),
        ("skinny-short", from_linear(8, 64, 4096, "bf16"), {**ONCE, "unroll": 8, "warps": 28},
         "operands and sums take 96 registers; 896 threads have"),
        ("skinny-shifted", SKINNY, {**SHIFTED, "warps": 6}, "a block has 32 to 1024 threads, not 1536"),
        ("skinny-shifted", SKINNY, {**SHIFTED, "warps": 4},
         "operands and sums take 60 registers; 1024 threads have 32 each for them"),
        # A slice of every column at once.
        ("skinny-shifted", from_linear(17, 4097, 20001, "bf16"), SHIFTED,
         "246144 bytes of shared memory; sm_90 has 232448 for a block"),
        ("tile-mma", SQUARE, CORES,
         "our kernels multiply fp16 in fp32, bf16 in fp32, fp32 in tf32, not fp32 x fp32 in fp32"),
        ("tile-mma", BROAD, {**CORES, "warp_m": 48}, "tile_m 128 is no multiple of warp_m 48"),
        ("tile-mma", BROAD, {**CORES, "warp_n": 96}, "tile_n 128 is no multiple of warp_n 96"),
        ("tile-mma", BROAD, {**CORES, "tile_k": 16}, "tile_k is 64 or 128 bytes of bf16, not 32"),
        ("tile-mma", from_mm(512, 512, 512, "tf32"), CORES, "tile_k is 64 or 128 bytes of fp32, not 256"),
        ("tile-mma", BROAD, {**CORES, "tile_m": 192}, "threads are a power of two, 64 or more, not 192"),
        ("tile-mma", BROAD, {**CORES, "tile_m": 32, "tile_n": 32, "warp_m": 32, "warp_n": 32},
         "threads are a power of two, 64 or more, not 32"),
        ("tile-mma", BROAD, {**CORES, "tile_m": 32, "tile_n": 256, "warp_m": 32, "warp_n": 32, "tile_k": 32},
         "32 rows of 64 bytes of A are no whole passes of 256 threads"),
        ("tile-mma", BROAD, {**CORES, "tile_m": 256, "tile_n": 256, "stages": 5},
         "368640 bytes of shared memory; sm_90 has"),
        ("tile-mma", BROAD, {**CORES, "tile_m": 256, "tile_n": 256, "stages": 2, "tile_k": 32},
         "operands and sums take 192 registers; 512 threads have 96"),
        ("stream-k", BROAD, {**STREAM, "splits": 1}, "a stream-k solution has the parameters tile_m, "),
        ("stream-k", BROAD, {**STREAM, "tile_k": 16}, "tile_k is 64 or 128 bytes of bf16, not 32"),
        ("stream-k", BROAD, {**STREAM, "blocks_per_unit": 3, "warp_n": 32},
         "3 blocks take 334848 bytes of shared memory; a multiprocessor of sm_90 has 233472"),
        ("stream-k", BROAD, {**STREAM, "blocks_per_unit": 3, "stages": 2},
         "operands and sums take 192 registers; 384 threads have 138 each for them"),
        ("stream-k", from_bmm(2**20, 2**10, 2**16, 64, "bf16"), {**STREAM, "tile_m": 32, "warp_m": 32},
         "blocks; a launch has 2147483647 at most"),
        ("stream-k", from_linear(1500, 1500, 2**30, "bf16"), STREAM,
         "2415919104 steps along k are shared; blocks count to 2147483647"),
        ("short-k", from_linear(127, 8191, 129), WHOLE_K,
         "our kernels multiply fp16 in fp32, bf16 in fp32, not fp32 x fp32"),
        ("short-k", from_mm(127, 8191, 129, "bf16"), WHOLE_K, "both operands must be contiguous along k"),
        ("short-k", from_linear(127, 8191, 257, "bf16"), WHOLE_K, "k is 256 at most, not 257"),
        ("short-k", from_linear(127, 8191, 129, "bf16", ldb=2**24 + 8), WHOLE_K,
         "64 lines of A lie within 2147483648 bytes, not 2147484672"),
        ("short-k", SHORT, {**WHOLE_K, "warps": 32}, "warps must be one of 4, 8, 16, not 32"),
        ("short-k", SHORT, {**WHOLE_K, "tile_m": 32, "warp_m": 64}, "tile_m 32 is no multiple of warp_m 64"),
        ("short-k", SHORT, {**WHOLE_K, "tile_n": 16}, "tile_n 16 is no multiple of warp_n 32"),
        ("short-k", SHORT, {**WHOLE_K, "warps": 4}, "a warp has one part of the tile; 4 warps have not 8"),
        ("short-k", SHORT, {**WHOLE_K, "tile_m": 128, "warp_m": 64, "warp_n": 64, "warps": 4},
         "operands and sums take 272 registers; 128 threads have 223"),
        ("vectorized", SQUARE, {**TILE, "thread_m": 16, "thread_n": 16},
         "operands and sums take .* registers"),
        ("vectorized", SQUARE, {**TILE, "thread_m": 1, "thread_n": 1}, "32 to 1024 threads, not 16384"),
        ("vectorized", SQUARE, {**TILE, "tile_m": 8, "tile_n": 8}, "32 to 1024 threads, not 1"),
        ("block-tile-2d", SQUARE, {**TILE, "tile_m": 8, "thread_m": 16},
         "rows 8 is no multiple of thread_m 16"),
        ("double-buffered", SQUARE, {**WARP, "warp_m": 32}, "is 32 threads, not 16"),
        ("double-buffered", SQUARE, {**WARP, "warp_m": 128, "tile_m": 64},
         "tile_m 64 is no multiple of warp_m 128"),
        ("async-copy", from_mm(512, 512, 512, "bf16"), PIPE, "copies do not widen: fp32, not bf16"),
        ("async-copy", SQUARE, {**PIPE, "thread_n": 16}, "operands and sums take 320 registers"),
        ("async-copy", SQUARE, {**PIPE, "tile_m": 256, "tile_n": 256},
         "operands and sums take 176 registers; 512"),
        ("async-copy", SQUARE, {**PIPE, "thread_m": 8, "tile_m": 256, "tile_n": 64, "tile_k": 8},
         "B's tile of 512 is no multiple of the copies of all threads, 1024"),
        ("async-copy", SQUARE, {**PIPE, "stages": 1}, "stages must be one of 2, 3, 4, 5, not 1"),
        ("small-batch", from_bmm(9, 32, 65, 32), TEAM, "sides of at most 64, not 65 x 32 x 32"),
        ("small-batch", BATCH, {**TEAM, "threads": 32, "thread_m": 4},
         "threads 32 is no multiple of a product's, 64"),
        ("small-batch", BATCH, {**TEAM, "stages": 1}, r"2 to 4 stages for 4 rounds \(1 for 1\), not 1"),
        ("small-batch", BATCH, {**TEAM, "rounds": 2, "stages": 3}, r"2 to 2 stages for 2 rounds .*, not 3"),
        ("small-batch", BATCH, {**TEAM, "threads": 256, "rounds": 16, "stages": 4, "thread_n": 8},
         "557056 bytes of shared memory; sm_90 has"),
        ("naive", from_mm(2**31 - 1, 2**31 - 1, 1), {"tile_m": 8, "tile_n": 8},
         "blocks; a launch has 2147483647"),
        ("naive", SQUARE, {"tile_m": 1, "tile_n": 1}, "a block has 32 to 1024 threads, not 1"),
        ("coalesced", from_mm(8, 8, 8, "fp64"), {"tile_m": 8, "tile_n": 8},
         "our kernels multiply .*, not fp64"),
        ("coalesced", from_mm(8, 8, 8, "tf32"), {"tile_m": 8, "tile_n": 8}, "not fp32 x fp32 in tf32"),
        ("coalesced", from_linear(8, 16, 16, "fp8_e4m3", scale_a="tensor", scale_b="tensor"),
         {"tile_m": 8, "tile_n": 8}, "not fp8_e4m3"),
        ("coalesced", from_linear(8, 16, 16, "bf16", scale_a="tensor"), {"tile_m": 8, "tile_n": 8},
         "no scales"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(name: str, problem: GemmProblem, values: dict[str, Any], words: str) -> None:
    found = refusal(name, problem, dict(values))
    assert found is not None
    assert re.search(words, found), found


def test_rules_of_the_architecture() -> None:
    large = {**WARP, "tile_k": 64}
    assert refusal("double-buffered", SQUARE, dict(large), arch="sm_90a") is None
    for arch, known, most in (("sm_86", "sm_86", 99), ("sm_75", "sm_75", 48)):
        words = f"135168 bytes of shared memory; {known} has {most * 1024} for a block"
        assert refusal("double-buffered", SQUARE, dict(large), arch=arch) == words
    for arch, legal in (("sm_75", False), ("sm_80", True), ("sm_100a", True)):
        assert (refusal("skinny-mma", SKINNY, dict(MMA), arch=arch) is None) == legal
        assert (refusal("tile-mma", BROAD, dict(CORES), arch=arch) is None) == legal
    assert refusal("skinny-mma", SKINNY, dict(MMA), vendor="hip", arch="gfx942") is not None
    for vendor, arch in (("cuda", "sm_75"), ("hip", "gfx942")):
        words = f"mma.sync on bf16 needs sm_80 or later, not {arch}"
        assert refusal("skinny-ring", SKINNY, dict(RING), vendor=vendor, arch=arch) == words
    for arch in ("sm_80", "sm_90", "sm_100a"):
        assert refusal("skinny-ring", SKINNY, dict(RING), arch=arch) is None
    words = "163840 bytes of shared memory; sm_86 has 101376 for a block"
    assert refusal("skinny-ring", SKINNY, dict(RING), arch="sm_86") == words
    clustered = {**SHIFTED, "cluster": 1}
    for arch in ("sm_80", "sm_89"):
        words = f"clusters of blocks need sm_90 or later, not {arch}"
        assert refusal("skinny-shifted", SKINNY, dict(clustered), arch=arch) == words
        assert refusal("skinny-shifted", SKINNY, dict(SHIFTED), arch=arch) is None
    for arch in ("sm_90", "sm_90a", "sm_100a"):
        assert refusal("skinny-shifted", SKINNY, dict(clustered), arch=arch) is None
    deep, wide = from_linear(128, 8192, 256, "bf16"), {**WHOLE_K, "tile_m": 128}
    for arch, legal in (("sm_75", False), ("sm_80", True), ("sm_90", True), ("sm_100a", True)):
        assert (refusal("short-k", deep, {**wide, "tile_n": 64}, arch=arch) is None) == legal
    words = "135168 bytes of shared memory; sm_86 has 101376 for a block"
    assert refusal("short-k", deep, dict(wide), arch="sm_86") == words
    assert arch_of(replace(H200, arch="sm_90a")).name == "sm_90"


def test_the_first_step_is_fetched_ahead_where_a_kernel_can_say_so() -> None:
    for name, problem in (("gemv", DECODE), ("skinny", from_linear(3, 4096, 4096, "bf16"))):
        values = {**GEMV, "ahead": 1}
        for arch in ("sm_75", "sm_80", "sm_90", "sm_120"):
            assert refusal(name, problem, dict(values), arch=arch) is None
        words = "ahead must be 0 where nothing is fetched ahead of its load, not 1"
        assert refusal(name, problem, dict(values), vendor="hip", arch="gfx942") == words
        assert refusal(name, problem, dict(GEMV), vendor="hip", arch="gfx942") is None
        amd = replace(H200, vendor="hip", arch="gfx942")
        listed = {
            vendor: {one.parameters["ahead"] for one in FAMILIES[name].solutions(problem, environment)}
            for vendor, environment in (("cuda", H200), ("hip", amd))
        }
        assert listed["cuda"] == {0, 1}
        assert listed["hip"] == {0}


def test_registers_are_shared_by_the_threads_of_a_block() -> None:
    assert registers_rule(200, 256, SM_90) is None
    assert registers_rule(200, 512, SM_90) is not None
    assert registers_rule(224, 32, SM_90) is not None


def test_sizes_beyond_31_bits_of_elements_are_no_matter() -> None:
    large = from_linear(1, 2**20, 2**14, "bf16")
    assert large.m * large.k > 2**33
    found = next(iter(FAMILIES["gemv"].solutions(large, H200)))
    configuration = FAMILIES["gemv"].config(large, found.parameters, SM_90)
    assert configuration.grid[0] * configuration.threads >= 2**20
    # The second launch has a thread an element of D.
    batches = from_bmm(2**21, 1, 2**20, 64, "bf16", trans_b="T")
    assert (
        refusal("gemv", batches, {**GEMV, "splits": 2})
        == "8589934592 blocks; a launch has 2147483647 at most"
    )


# ---- what is listed ----------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [*PROBLEMS.values(), DECODE, SKINNY, SQUARE], ids=lambda p: p.slug)
def test_what_is_listed_is_legal_distinct_and_not_too_much(problem: GemmProblem) -> None:
    for name, family in FAMILIES.items():
        found = list(family.solutions(problem, H200))
        assert len({one.id for one in found}) == len(found) <= 150
        for one in found:
            assert family.illegal(problem, one, H200) is None
            configuration = family.config(problem, one.parameters, SM_90)
            assert one.workspace_bytes == configuration.on(H200.units).workspace_bytes
            assert one.deterministic is True
            assert (one.family, one.build) == (name, None)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (DECODE, {"gemv-persistent", "gemv", "skinny-short", "skinny-ring"}),
        (from_mm(1, 4096, 4096, "fp32"), {"gemv"}),
        (from_blas(1, 4096, 512, "fp16", trans_a="T"),
         {"gemv-persistent", "gemv", "skinny-short", "skinny-ring"}),
        (from_linear(4, 4096, 4096, "fp32"), {"skinny-persistent", "skinny"}),
        (SKINNY, {"skinny", "skinny-short", "skinny-ring", "skinny-mma", "tile-wgmma"}),
        (from_mm(8, 4096, 4096, "bf16"), {"skinny"}),
        (from_linear(48, 4096, 4096, "bf16"),
         {"skinny-ring", "skinny-mma", "tile-mma", "tile-wgmma", "vectorized", "warp-tile",
          "double-buffered"}),
        (from_linear(4096, 4096, 4096, "bf16"), {"tile-mma", "stream-k", "tile-wgmma"}),
        (from_linear(16, 4096, 4096, "bf16"), {"skinny", "skinny-ring", "skinny-mma", "tile-wgmma"}),
        # Most of a chunk is beyond so short a k.
        (from_linear(16, 4096, 32, "bf16"), {"skinny", "skinny-mma", "short-k", "tile-wgmma"}),
        (from_linear(16, 4096, 33, "bf16"),
         {"skinny", "skinny-ring", "skinny-shifted", "skinny-mma", "short-k"}),
        (from_linear(17, 4097, 4095, "bf16"), {"skinny-ring", "skinny-shifted", "skinny-mma", "tile-mma",
          "vectorized", "warp-tile", "double-buffered"}),
        (from_linear(3, 1000, 777, "bf16"),
         {"skinny", "skinny-short", "skinny-ring", "skinny-shifted", "skinny-mma"}),
        (SQUARE, set(FAMILIES) - NARROW - HALVES - WEIGHTS - {"small-batch"}),
        (from_mm(8192, 8192, 8192), {"vectorized", "warp-tile", "double-buffered", "async-copy"}),
        (BATCH, set(FAMILIES) - NARROW - HALVES - WEIGHTS),
        (from_bmm(1000, 64, 64, 64, "bf16"),
         {"small-batch", "tile-mma", "vectorized", "warp-tile", "double-buffered"}),
        (from_bmm(1000, 16, 64, 65, "bf16"), {"skinny"}),
        (from_mm(32, 32, 32), set(FAMILIES) - NARROW - HALVES - WEIGHTS - {"small-batch"}),
        (from_mm(64, 64, 64, "fp64"), set()),
        (from_linear(64, 64, 64, "tf32"), {"tile-mma"}),
        (from_linear(8, 4096, 4096, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"),
         {"bytes-ring", "tile-wgmma"}),
        (from_linear(64, 4096, 4096, "fp8_e4m3", scale_a="block_1x128", scale_b="block_128x128"),
         {"bytes-ring", "tile-wgmma"}),
        (from_linear(65, 4096, 4096, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"),
         {"bytes-tile-mma", "tile-wgmma"}),
        (from_linear(65, 4096, 4096, "fp4_e2m1", scale_a="block_1x32", scale_b="block_1x32"),
         {"mxfp4-tile-mma"}),
    ],
)  # fmt: skip
def test_families_are_listed_where_they_make_sense(problem: GemmProblem, names: set[str]) -> None:
    assert {name for name, family in FAMILIES.items() if list(family.solutions(problem, H200))} == names


def test_copies_are_listed_where_they_are_asynchronous() -> None:
    for vendor, arch, listed in (("cuda", "sm_75", False), ("cuda", "sm_80", True), ("hip", "gfx942", False)):
        environment = replace(H200, vendor=vendor, arch=arch)
        family = FAMILIES["async-copy"]
        assert bool(list(family.solutions(from_mm(512, 512, 512), environment))) == listed


@pytest.mark.parametrize("size", [2048, 4096])
def test_the_likeliest_pipelines_leave_no_multiprocessor_idle(size: int) -> None:
    """A product of whole waves: as many tiles for each, with eight warps on it."""
    problem, family = from_mm(size, size, size), FAMILIES["async-copy"]
    for solution in list(family.solutions(problem, H200))[:8]:
        found = family.config(problem, solution.parameters, SM_90)
        each = -(-found.blocks * found.splits // H200.units)
        assert found.blocks * found.splits / (each * H200.units) > 0.9
        assert each * found.threads >= 256


def test_the_likeliest_teams_have_enough_bytes_in_flight() -> None:
    family = FAMILIES["small-batch"]
    for solution in list(family.solutions(from_bmm(12960, 32, 32, 32), H200))[:8]:
        found = family.config(from_bmm(12960, 32, 32, 32), solution.parameters, SM_90)
        stages = int(solution.parameters["stages"] or 0)
        resident = arch_of(H200).unit_shared_bytes // (found.shared_bytes + 1024)
        assert resident * found.shared_bytes * max(1, stages - 1) / stages > 42_000
        assert resident * found.threads >= 12 * 32


@pytest.mark.parametrize("arch", [*GPU_TARGETS, "sm_75", "sm_120", "gfx9999"])
def test_teams_that_take_all_of_the_shared_memory_are_listed(arch: str) -> None:
    """Nothing is left there for what a block has beside."""
    environment = replace(H200, vendor="hip" if arch.startswith("gfx") else "cuda", arch=arch)
    family = FAMILIES["small-batch"]
    for trans in ("N", "T"):
        for m, n, k in ((64, 17, 36), (64, 64, 64), (24, 45, 38), (64, 33, 64)):
            for dtype in ("fp32", "bf16"):
                problem = from_blas(m=m, n=n, k=k, batch=100, dtype_a=dtype, trans_a=trans, trans_b=trans)
                assert list(family.solutions(problem, environment))


def test_the_larger_operand_is_streamed() -> None:
    for problem, stream in ((DECODE, "a"), (from_blas(1, 4096, 512, "fp16", trans_a="T"), "b")):
        first = next(iter(FAMILIES["gemv"].solutions(problem, H200)))
        assert first.parameters["stream"] == stream


@pytest.mark.parametrize(
    "problem", [DECODE, from_linear(1, 14336, 4096, "bf16"), from_linear(1, 1280, 8192, "bf16")],
    ids=lambda p: p.slug,
)  # fmt: skip
def test_the_likeliest_have_enough_bytes_in_flight_on_every_multiprocessor(problem: GemmProblem) -> None:
    family = FAMILIES["gemv"]
    for solution in list(family.solutions(problem, H200))[:8]:
        found = family.config(problem, solution.parameters, SM_90)
        blocks = found.blocks * found.splits
        loads = int(solution.parameters["rows"] or 0) * int(solution.parameters["unroll"] or 0)
        assert blocks >= H200.units
        assert min(blocks / H200.units, 2048 / found.threads) * found.threads * loads * 16 > 30_000
