"""AITER's tables, read: headers, rows that share a key, what is rejected, and detection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.formats import READERS, Entry, Rejected
from service.formats.aiter.reader import Aiter, AiterUntuned
from tests.service.formats.aiter.test_reader import (
    BF16,
    BLOCKS,
    FORMATS,
    PLAIN,
    ROW,
    ROWWISE,
    TUNED,
    UNTUNED,
    changed,
    read,
    reason,
)

# ---- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (BF16.replace("splitK", "spiltK"), "column 'spiltK' is none of AITER's: it may change the problem"),
        (BF16 + ",M", "column 'M' stands twice in the header"),
        (
            BF16.replace("scaleAB,", ""),
            "column scaleAB is missing: such a table is of gradlib before 2025-03",
        ),
        ("M,N,K,bias,dtype,outdtype,libtype,solidx,soltimes", "column scaleAB is missing"),
        (BF16.replace("solidx,", ""), "column solidx or kernelId is missing"),
        (BF16.replace("libtype,", ""), "column libtype is missing"),
        (BF16.replace("gfx,", "B,"), "columns of two families stand in one header"),
        ("M,N,K,bias,outdtype,splitK,us", "columns of asm_a8w8_gemm.csv, whose types are not said"),
        ("gfx,b,m,n,k,libtype,kernelId,splitK,us,kernelName", "a table of the mxscale family"),
        ("M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle", "an untuned table, which is read as aiter-untuned"),
    ],
)
def test_headers_that_are_refused(header: str, why: str) -> None:
    imported = read(f"{header}\n{ROW}\n\n{ROW}\n{BF16}\n{ROW}\n", "aiter")
    assert [bad.line for bad in imported.rejected] == [1, 2, 4]
    assert why in imported.rejected[0].reason
    assert imported.rejected[1].reason == "nothing is read below the header of line 1, which is refused"
    assert [claim.line for claim in imported.claims] == [6]


def test_a_tuned_header_among_untuned_ones() -> None:
    imported = read(f"{BF16}\n{ROW}\n", "aiter-untuned")
    assert "the header of a tuned table, which is read as aiter" in imported.rejected[0].reason


def test_rows_without_a_header() -> None:
    assert read(f"{ROW}\n", "aiter").rejected[0].reason.startswith("no header of AITER's stands above")


def test_tables_that_were_appended_to_each_other() -> None:
    a8w8 = "gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
    blocks = PLAIN
    imported = read(
        f"{BF16}\n{ROW}\n{a8w8}\ngfx942,80,1,16,8192,torch.int8,34,0,2,{ROWWISE},1,5,0\n"
        f"{blocks}\ngfx942,80,1,16,8192,ck,8,0,6.6,{BLOCKS},1,7,0\n{BF16}\n{ROW}\n"
    )
    assert [claim.line for claim in imported.claims] == [2, 4, 6]
    assert [bad.line for bad in imported.rejected] == [8]


# ---- rows that share a key -------------------------------------------------------------------------


def test_the_first_row_of_a_key_stands() -> None:
    rows = [
        ROW,
        changed(us="1.0", solidx="7"),
        changed(M=" 64"),
        changed(gfx="gfx942", cu_num="304"),
        changed(M="65"),
    ]
    imported = read("\n".join([BF16, *rows]))
    assert [claim.line for claim in imported.claims] == [2, 5, 6]
    assert [(bad.line, bad.reason) for bad in imported.rejected] == [
        (
            line,
            "line 2 has the same key and comes first; AITER drops a row that stands twice and loads no file "
            "with two different ones",
        )
        for line in (3, 4)
    ]
    # a bad row has no key: the next one may stand
    imported = read("\n".join([BF16, changed(us="-1"), ROW]))
    assert [claim.line for claim in imported.claims] == [3]


# ---- bad rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("hello", "the row has 1 cells, its header 18"),
        (ROW + ",", "the row has 19 cells, its header 18"),
        (ROW.rpartition(",")[0], "the row has 17 cells, its header 18"),
        (changed(kernelName='"a'), "a quoted cell: AITER's tables have none"),
        (changed(M=""), "M '' is not a whole number"),
        (changed(M="0"), "M is 0; it must be at least 1"),
        (changed(M="-1"), "M '-1' is negative"),
        (changed(M="64.0"), "M '64.0' is not a whole number"),
        (changed(M="1_0"), "M '1_0' is not a whole number"),
        (changed(M="9223372036854775808"), "does not fit 64 bits"),
        (changed(M="9" * 5000), "does not fit 64 bits"),
        (changed(M="2147483648"), "m must be between 1 and 2147483647"),
        (changed(gfx=""), "gfx '' is no arch such as gfx942"),
        (changed(gfx="0"), "gfx '0' is no arch such as gfx942"),
        (changed(gfx="sm_90"), "gfx 'sm_90' is no arch such as gfx942"),
        (changed(cu_num="0"), "cu_num is 0; it must be at least 1"),
        (changed(cu_num="1000000000"), "cu_num 1000000000 is no number of compute units"),
        (changed(bias=""), "bias '' is not True or False"),
        (changed(bias="1"), "bias '1' is not True or False"),
        (changed(scaleAB="no"), "scaleAB 'no' is not True or False"),
        (changed(bpreshuffle="0"), "bpreshuffle '0' is not True or False"),
        (changed(dtype="bf16"), "dtype 'bf16' is not supported; supported: torch.bfloat16"),
        (changed(dtype="torch.float4_e2m1fn_x2"), "dtype 'torch.float4_e2m1fn_x2' is not supported"),
        (changed(outdtype="torch.int64"), "outdtype 'torch.int64' is not supported"),
        (changed(outdtype="torch.float16"), "dtype_d 'fp16' is unknown for bf16 inputs"),
        (changed(dtype="dtypes.fp8", gfx="gfx90a"), "nothing says which 8-bit float this is"),
        (changed(libtype=""), "libtype '' is no name of a library or a kind of kernel"),
        (changed(libtype="=cmd"), "libtype '=cmd' is no name of a library"),
        (changed(solidx="x"), "solidx 'x' is no whole number of 32 bits"),
        (changed(solidx="2147483648"), "solidx '2147483648' is no whole number of 32 bits"),
        (changed(solidx="9" * 5000), "is no whole number of 32 bits"),
        (changed(splitK="1.5"), "splitK '1.5' is no whole number of 32 bits"),
        (changed(libtype="hipblaslt", solidx="-1"), "solidx '-1' leaves the choice to hipblaslt"),
        (changed(libtype="rocblas", solidx=""), "solidx '' leaves the choice to rocblas"),
        (changed(us="-1"), "us '-1' is the tuner's mark of a kernel that failed"),
        (changed(us="inf"), "us 'inf' is the tuner's mark of a kernel that failed"),
        (changed(us="1e999"), "us '1e999' is no number of microseconds"),
        (changed(us="fast"), "us 'fast' is no number of microseconds"),
        (changed(kernelName="=1+1"), "kernelName '=1+1' is no kernel's name"),
        (changed(kernelName="@x"), "kernelName '@x' is no kernel's name"),
        (changed(kernelName="-x"), "kernelName '-x' is no kernel's name"),
        (changed(kernelName="+x"), "kernelName '+x' is no kernel's name"),
        (changed(kernelName="a b"), "kernelName 'a b' is no kernel's name"),
        (changed(kernelName="a;b"), "kernelName 'a;b' is no kernel's name"),
        (changed(kernelName="a\x1b[31m"), "the line holds control characters"),
        ("GemmTunableOp_Half_TN,tn_1_2_3", "the row has 2 cells, its header 18"),
    ],
)
def test_bad_rows_have_a_reason(row: str, why: str) -> None:
    assert why in reason(BF16, row)


def test_lines_that_are_no_text() -> None:
    raw = "\n".join([f"\ufeff{BF16}", ROW]).replace("\n", "\r\n").encode()
    imported = read(raw + b"\r\n\r\n" + ROW.encode() + b"\0\r\n\xff\r\n" + b"x" * 2**17 + b"\r\n")
    assert [claim.line for claim in imported.claims] == [2]
    assert [bad.line for bad in imported.rejected] == [4, 5, 6]
    assert [bad.reason.partition(" ")[0] for bad in imported.rejected] == ["NUL", "byte", "the"]


@given(st.lists(st.tuples(st.sampled_from(BF16.split(",")), st.text(max_size=12)), max_size=3))
def test_no_row_raises(cells: list[tuple[str, str]]) -> None:
    text = changed(**dict(cells))
    for found in TUNED.read([BF16.encode(), *text.encode("utf-8", "replace").split(b"\n")]):
        assert isinstance(found, Entry | Rejected)


# ---- detection -------------------------------------------------------------------------------------


def test_detection() -> None:
    for header in (BF16, PLAIN, "M,N,K,kernelId,us,kernelName", "M,N,K,bias,outdtype,splitK,us",
                   "gfx,b,m,n,k,libtype,kernelId,us"):  # fmt: skip
        for head in (header, f"\ufeff{header}\r\n{ROW}", f"\n\n  {header}"):
            assert TUNED.detect(head.encode())
            assert not UNTUNED.detect(head.encode())
    for header in (
        "M,N,K",
        "M, N, K",
        "B,M,N,K",
        "M,N,K,q_dtype_w",
        "cu_num,M,N,K",
        "M,N,K,bias,dtype,outdtype",
    ):
        assert UNTUNED.detect(header.encode())
        assert not TUNED.detect(header.encode())
    for other in (b"", b"\0" * 100, b"\x1b[31m", b"m,n,k,dtype", b"M,N,K,dtype", b"M,N", ROW.encode(),
                 BF16.encode("utf-16"), b"M,N,K," + b"x," * 2**15, b"hello\nM,N,K\n"):  # fmt: skip
        assert not TUNED.detect(other)
        assert not UNTUNED.detect(other)


@pytest.mark.parametrize("fmt", [TUNED, UNTUNED])
def test_examples(fmt: Aiter | AiterUntuned) -> None:
    raw = fmt.example.encode()
    assert [name for name, other in FORMATS.items() if other.detect(raw)] == [fmt.name]
    imported = read(raw)
    assert imported.rejected == []
    assert len(imported.problems) == 1
    for name, reader in READERS.items():
        if name not in FORMATS:
            assert not fmt.detect(reader.example.encode())
