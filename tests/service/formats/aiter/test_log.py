"""AITER's log: the misses of every family, among a server's other lines."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.problem import GemmProblem, from_bmm, from_linear
from service.formats import READERS, Entry, Imported, ReadOptions, Rejected
from service.formats.aiter.log import AiterLog
from service.formats.core import reading
from tests.backends.weight_samples import mx_product

READER = AiterLog()
WHERE = "/tmp/aiter_configs"
BF16 = (
    "[aiter] shape is M:64, N:4608, K:8192 dtype='torch.bfloat16' otype='torch.bfloat16' bias=False, "
    f"scaleAB=False, bpreshuffle=False, not found tuned config in {WHERE}/bf16_tuned_gemm.csv, "
    "will use default config! using torch solution:0"
)
END = "will use default config!"
SHAPE = "[aiter] shape is M:8192, N:1024, K:3072"
BLOCKS = f"{SHAPE}, not found tuned config in {WHERE}/a8w8_blockscale_tuned_gemm.csv, {END}"
ROWS = f"{SHAPE}, q_dtype_w:torch.int8, not found tuned config in /x/a8w8_tuned_gemm.csv, {END}"
BATCH = "[aiter] shape is B:16, M:1, N:1280, K:8192"


def read(text: str | bytes, format_name: str | None = None, **options: Any) -> Imported:
    raw = text.encode() if isinstance(text, str) else text
    return reading.read_stream(
        io.BytesIO(raw), "log", {READER.name: READER}, format_name, ReadOptions(**options)
    )


def problem(line: str, **options: Any) -> GemmProblem:
    imported = read(line, "aiter-log", **options)
    assert imported.rejected == []
    (found,) = imported.problems
    assert (found.count, found.keys) == (1, ())
    return found.problem


def reason(line: str | bytes, **options: Any) -> str:
    imported = read(line, "aiter-log", **options)
    assert imported.problems == []
    (bad,) = imported.rejected
    assert (bad.line, bad.reason.isprintable(), bad.text.isprintable()) == (1, True, True)
    return bad.reason


def changed(*pairs: tuple[str, str], line: str = BF16) -> str:
    for old, new in pairs:
        assert line.count(old) == 1
        line = line.replace(old, new)
    return line


# ---- misses ----------------------------------------------------------------------------------------


def test_a_miss_of_the_bf16_family() -> None:
    found = problem(BF16)
    assert found == from_linear(64, 4608, 8192, "bf16")
    # x[M,K] w[N,K]^T: column-major, the weight is A
    assert (found.m, found.n, found.k, found.trans_a, found.trans_b) == (4608, 64, 8192, "T", "N")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (changed((" otype='torch.bfloat16'", " otype='torch.float32'")),
         from_linear(64, 4608, 8192, "bf16", dtype_d="fp32")),
        (changed(("bias=False", "bias=True")), from_linear(64, 4608, 8192, "bf16", bias="bf16")),
        (changed(("bpreshuffle=False,", "bpreshuffle=False ,")), from_linear(64, 4608, 8192, "bf16")),
        (changed((", bpreshuffle=False", "")), from_linear(64, 4608, 8192, "bf16")),
        (changed(("bpreshuffle=False", "bpreshuffle=True")), from_linear(64, 4608, 8192, "bf16")),
        (f"{SHAPE}, q_dtype_w:torch.float8_e4m3fn, not found tuned config in a8w8_bpreshuffle.csv, {END}",
         from_linear(8192, 1024, 3072, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer")),
        (changed((" dtype='torch.bfloat16' otype='torch.bfloat16'", " dtype=torch.half otype=torch.half")),
         from_linear(64, 4608, 8192, "fp16")),
        (changed((f"{WHERE}/bf16_tuned_gemm.csv", "/my own/table.csv")), from_linear(64, 4608, 8192, "bf16")),
        (changed((" using torch solution:0", "")), from_linear(64, 4608, 8192, "bf16")),
        (f"(Worker_TP4_EP4 pid=892) {BF16}", from_linear(64, 4608, 8192, "bf16")),
        (BF16.removeprefix("[aiter] "), from_linear(64, 4608, 8192, "bf16")),
        (f"\x1b[32mok\x1b[0m the shape is good {BF16}", from_linear(64, 4608, 8192, "bf16")),
        (ROWS, from_linear(8192, 1024, 3072, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer")),
        (changed(("torch.int8", "torch.float8_e4m3fn"), line=ROWS),
         from_linear(8192, 1024, 3072, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer")),
        (changed((", q_dtype_w:torch.int8", ""), line=ROWS),
         from_linear(8192, 1024, 3072, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer")),
        (f"{SHAPE}, not found tuned config in CKGEMM or asmGEMM, {END}", mx_product(8192, 1024, 3072)),
        (f"{SHAPE}, not found tuned config in /x/a4w4_blockscale_tuned_gemm.csv, {END}",
         mx_product(8192, 1024, 3072)),
        (f"{BATCH} dtype is bf16, not found tuned config in CKGEMM, {END}",
         from_bmm(16, 1, 1280, 8192, "bf16", trans_b="T")),
    ],
)  # fmt: skip
def test_what_a_miss_asks_for(line: str, expected: GemmProblem) -> None:
    assert problem(line) == expected


def test_block_scales_take_the_8_bit_float_that_is_told() -> None:
    for told in ("fp8_e4m3", "fp8_e4m3_fnuz"):
        found = problem(BLOCKS, dtype=told)
        assert found == from_linear(
            8192, 1024, 3072, told, dtype_d="bf16", scale_a="block_1x128", scale_b="block_128x128"
        )
        # column-major, the weight is A
        assert (found.m, found.scale_a, found.scale_b) == (1024, "block_128x128", "block_1x128")
        assert problem(BLOCKS, arch="gfx942" if told == "fp8_e4m3_fnuz" else "gfx950") == found
    assert "or the dtype, fp8_e4m3_fnuz on gfx942" in reason(BLOCKS)
    assert "or the dtype" in reason(BLOCKS, dtype="fp8_e5m2")


def test_a_servers_output() -> None:
    text = "\r\n".join(
        [
            "INFO 10-09 12:00:01 [compilation.py:1183] fuse_rope_kvcache is enabled",
            "[aiter] import [module_gemm_a8w8_blockscale] under /usr/lib/module.so",
            f"(Worker_TP0 pid=1) {BF16}",
            f"(Worker_TP1 pid=2) {BF16}",
            "",
            "[aiter] shape is M:64, N:8, K:8 dtype='torch.bfloat16' otype='torch.bfloat16' bias=False, "
            "scaleAB=False, bpreshuffle=False found padded_M: 64, N:8, K:8 is tuned on cu_num = 256 in x.csv",
            "using torch solution:0 for M=64 N=4608 K=8192 dtype='torch.bfloat16' bias=False, scaleAB=False",
            BLOCKS,
            ROWS,
            BF16,
        ]
    )
    imported = read(f"\ufeff{text}\r\n")
    assert imported.format == "aiter-log"
    assert [(item.count, item.problem.dtype_a) for item in imported.problems] == [(3, "bf16"), (1, "int8")]
    assert [(bad.line, bad.text) for bad in imported.rejected] == [(8, BLOCKS.removeprefix("[aiter] ")[:200])]
    assert imported.lines == 10


def test_more_lines_than_are_remembered() -> None:
    lines = [changed(("M:64", f"M:{1 + number % 5000}")) for number in range(12_000)]
    lines += [changed(("solution:0", f"solution:0{' ' * 2000}x")), changed(("M:64", "M:0"))]
    imported = read("\n".join(lines))
    assert len(imported.problems) == 5000
    assert sum(item.count for item in imported.problems) == 12_001
    assert [bad.line for bad in imported.rejected] == [12_002]


# ---- bad lines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (changed(("bpreshuffle=False", "bpreshuffle=maybe")), "bpreshuffle 'maybe' is not True or False"),
        (changed(("scaleAB=False", "scaleAB=True")), "scaleAB: which operands are scaled"),
        (changed((" dtype='torch.bfloat16'", " dtype='torch.float8_e8m0fnu'")), "is not supported"),
        (changed(("bias=False", "bias=maybe")), "bias 'maybe' is not True or False"),
        (changed(("M:64", "M:0")), "M is 0; it must be at least 1"),
        (changed(("M:64", "M:" + "9" * 30)), "M '999999999999999999999999999999' does not fit 64 bits"),
        (changed(("M:64", "M:2147483648")), "m must be between 1 and 2147483647"),
        (changed(("M:64", "M:-4")), "no miss as AITER logs one"),
        (changed(("M:64", "M:6x")), "no miss as AITER logs one"),
        (changed(("M:64", "B:2, M:64")), "a batch stands beside the bf16 family's types"),
        (changed(("bias=False", "bias=False\x1b[31m")), "the line holds control characters"),
        (changed((", bpreshuffle", ", cpreshuffle")), "the line says no types"),
        (BF16 + BF16, "two messages stand in one line"),
        (SHAPE + BLOCKS, "or the dtype"),
        (BLOCKS.partition("scale_tuned")[0], "no miss as AITER logs one: the line is cut"),
        (f"{SHAPE}, not found tuned config in ", "no miss as AITER logs one"),
        ("not found tuned", "no miss as AITER logs one"),
        ("a song not found tuned config in a.csv", "no miss as AITER logs one"),
        (f"{SHAPE}, not found tuned config in {WHERE}/bf16_tuned_gemm.csv, {END}", "the line says no types"),
        (f"{SHAPE}, not found tuned config in /x/mine.csv, {END}", "'/x/mine.csv' does not say of which"),
        (f"{SHAPE}, not found tuned config in /x/tuned_fmoe.csv, {END}", "does not say of which operator"),
        (f"{SHAPE}, not found tuned config in CKGEMM, {END}", "several operators name their tables so"),
        (f"{SHAPE}, not found tuned config in ASMGEMM, {END}", "whether a bias is added"),
        (f"{SHAPE}, q_dtype_w:torch.int8, not found tuned config in /x/a4w4_tuned_gemm.csv, {END}",
         "is not understood: it may change the problem"),
        (f"{SHAPE}, not found tuned config in a8w8_blockscale_bpreshuffle.csv, {END}", "or the dtype"),
        (f"{SHAPE}, q_dtype_w:torch.bool, not found tuned config in a8w8_tuned.csv, {END}",
         "q_dtype_w 'torch.bool' is not supported"),
        (f"{SHAPE}, q_dtype_w:torch.int8, not found tuned config in a8w8_blockscale.csv, {END}",
         "a8w8_blockscale multiplies 8-bit floats"),
        (f"{SHAPE}, x_scale:row, not found tuned config in a8w8_tuned.csv, {END}",
         "'x_scale:row' is not understood"),
        (f"{SHAPE} dtype is bf16, not found tuned config in a8w8_tuned.csv, {END}", "is not understood"),
        (f"{BATCH}, not found tuned config in CKGEMM, {END}", "it scales every batch apart"),
        (f"{BATCH}, not found tuned/padded config in /x/y_tuned.csv, the caller will fall back!", "mxscale"),
        (f"{BATCH}, not found tuned config in a8w8_tuned_gemm.csv, {END}", "and the shape is not"),
        (f"{SHAPE}, not found tuned config in bf16_tuned_batched_gemm.csv, {END}", "and the shape is not"),
    ],
)  # fmt: skip
def test_bad_lines_have_a_reason(line: str, why: str) -> None:
    assert why in reason(line)


def test_lines_that_are_no_text() -> None:
    assert reason(BF16.encode() + b"\0").startswith("NUL byte at byte")
    assert "is not UTF-8" in reason(BF16.encode().replace(b"bias", b"b\xffas"))
    assert reason(BF16.encode() + b" " * 2**20) == "the line is longer than 65536 bytes"


@given(st.text(max_size=40), st.integers(0, len(BF16)), st.integers(0, 8))
def test_no_line_raises(text: str, at: int, cut: int) -> None:
    line = (BF16[:at] + text + BF16[at + cut :]).encode("utf-8", "replace")
    for found in READER.read(line.split(b"\n")):
        assert isinstance(found, Entry | Rejected)


# ---- detection -------------------------------------------------------------------------------------


def test_detection() -> None:
    for head in (
        BF16,
        f"\ufeff{ROWS}\r\n",
        "x\n(Worker_TP0 pid=1) [aiter] import [module_moe] under /x.so\n",
        "[aiter INFO] 2026-01-01 00:00:00.1 - MainProcess:1 - x.py:1 - f\nmerge",
        BLOCKS.removeprefix("[aiter] "),
    ):
        assert READER.detect(head.encode())
    for other in (
        b"",
        b"\0" * 99,
        b"aiter",
        b"shape is M:1, N:2, K:3",
        b"M,N,K\n1,2,3\n",
        BF16.encode("utf-16"),
    ):
        assert not READER.detect(other)


def test_the_example() -> None:
    assert problem(READER.example) == from_linear(16, 14336, 4096, "bf16")
    raw = READER.example.encode()
    assert [name for name, fmt in READERS.items() if fmt.detect(raw) and name != READER.name] == []
    for name, fmt in READERS.items():
        assert READER.detect(fmt.example.encode()) == (name == READER.name)
