"""AITER's tables, checked as it merges them, and merged without loss."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from service.formats.aiter.lint import Finding, Tables
from tests.service.formats.aiter.test_reader import BF16, ROW, changed

OLDER = BF16.removeprefix("gfx,").replace(",bpreshuffle", "")


def tables(*texts: str) -> Tables:
    """Files a.csv, b.csv, ... with these texts."""
    made = Tables()
    for name, text in zip("abc", texts, strict=False):
        made.add(f"{name}.csv", text.encode().split(b"\n"))
    return made


def table(*rows: str, header: str = BF16) -> str:
    return "\n".join((header, *rows, ""))


def older(row: str) -> str:
    """A row of a release without the columns gfx and bpreshuffle."""
    cells = dict(zip(BF16.split(","), row.split(","), strict=True))
    return ",".join(cells[name] for name in OLDER.split(","))


def said(found: list[Finding]) -> list[tuple[str, int, str]]:
    return [(one.file, one.line, one.kind) for one in found]


def test_a_sound_table_has_no_finding() -> None:
    assert tables(table(ROW, changed(M="128")), table(changed(M="256"))).findings() == []


@pytest.mark.parametrize("again", [ROW, changed(us="1.5", solidx="7")], ids=["equal", "different"])
def test_a_key_may_stand_once_in_all_files(again: str) -> None:
    one, two = tables(table(ROW, again)), tables(table(ROW), table("", again))
    assert said(one.findings()) == [("a.csv", 3, "duplicate")]
    assert said(two.findings()) == [("b.csv", 3, "duplicate")]
    (found,) = two.findings()
    assert found.fatal
    assert "row of this key is in a.csv, line 2: gfx=gfx950 cu_num=256 M=64 N=256 K=5120" in found.text
    assert asdict(found).items() <= found.to_dict().items()


def test_another_type_flag_or_device_is_another_key() -> None:
    others = ({"bias": "True"}, {"dtype": "torch.float16"}, {"cu_num": "128"}, {"gfx": "gfx942"})
    assert tables(table(ROW, *(changed(**cells) for cells in others))).findings() == []
    assert said(tables(table(ROW, changed(bias="FALSE"))).findings()) == [("a.csv", 3, "duplicate")]


def test_tables_of_older_releases_share_keys_with_later_ones() -> None:
    found = tables(table(ROW), table(older(ROW), header=OLDER)).findings()
    assert said(found) == [("b.csv", 1, "columns"), ("b.csv", 2, "duplicate")]
    assert "it lacks gfx, bpreshuffle, which another file has" in found[0].text
    assert not found[0].fatal


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (ROW + ",1", "the row has 19 cells, its header 18"),
        (ROW.rpartition(",")[0], "the row has 17 cells"),
        (changed(M="0"), "M '0' is not a whole number from 1"),
        (changed(K=""), "K '' is not a whole number from 1"),
        (changed(gfx="sm_90"), "gfx 'sm_90' is not an arch such as gfx942"),
        (changed(scaleAB="maybe"), "scaleAB 'maybe' is not True or False"),
        (changed(us="fast"), "us 'fast' is no number of microseconds"),
        (changed(kernelName='"x"'), "a quoted cell"),
        (BF16, "a second header"),
    ],
)
def test_a_line_that_cannot_be_read_is_malformed(line: str, words: str) -> None:
    (found,) = tables(table(line)).findings()
    assert (found.line, found.kind, found.fatal) == (2, "malformed", True)
    assert words in found.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file has no header"),
        ("M,N\n1,2\n", "it lacks K"),
        ("M,N,K,bias,dtype,outdtype,scaleAB\n16,16,16,False,fp16,fp16,False\n", "no column us"),
        ("M,N,K,M,us\n", "the header has M twice"),
    ],
)
def test_a_file_that_is_no_tuned_table_is_malformed(text: str, words: str) -> None:
    (found,) = tables(text).findings()
    assert (found.line, found.kind) == (1, "malformed")
    assert words in found.text


def test_tables_of_every_operator_are_read() -> None:
    result, cells = "kernelId,splitK,us,kernelName,errRatio,tflops,bw", "3,0,9.1,k,0.0,1.0,2.0"
    header = f"gfx,cu_num,M,N,K,q_dtype_w,libtype,{result}"
    shuffled = table(f"gfx950,256,16,512,7168,torch.float8_e4m3fn,ck,{cells}", header=header)
    batched = table(f"256,4,16,512,7168,{cells}", header=f"cu_num,B,M,N,K,{result}")
    scaled = table(f"gfx950,256,4,16,512,7168,{cells}", header=f"gfx,cu_num,b,m,n,k,{result}")
    for text in (shuffled, batched, scaled):
        found = tables(text)
        assert (found.findings(), len(found.rows)) == ([], 1)
    assert tables(shuffled, batched).operators() == ["K,M,N", "B,K,M,N"]


def test_rows_of_other_devices_and_of_failed_kernels_are_told() -> None:
    found = tables(table(ROW, changed(M="1", cu_num="128"), changed(M="2", us="-1")))
    assert said(found.findings(("gfx950", "256"))) == [("a.csv", 3, "foreign"), ("a.csv", 4, "failed")]
    assert said(found.findings(("gfx942", ""))) == [
        ("a.csv", 2, "foreign"), ("a.csv", 3, "foreign"), ("a.csv", 4, "failed"), ("a.csv", 4, "foreign"),
    ]  # fmt: skip
    assert not any(one.fatal for one in found.findings(("gfx942", "")))


def test_a_merge_keeps_the_faster_row_of_each_key_and_loses_none() -> None:
    slow, fast = changed(us="9.0", solidx="1"), changed(us="8.0", solidx="2")
    failed = changed(us="-1", solidx="3")
    other = changed(M="1", us="5.0")
    sources = tables(table(failed, slow), table(older(fast), older(other), header=OLDER))
    text = "".join(sources.merged())
    merged = tables(text)
    assert text == table(fast, other)
    assert merged.findings() == []
    assert sources.lost(merged) == []
    assert said(sources.lost(tables(table(other)))) == [
        ("a.csv", 2, "lost"), ("a.csv", 3, "lost"), ("b.csv", 2, "lost"),
    ]  # fmt: skip


def test_an_arch_that_nothing_says_is_not_invented() -> None:
    row = older(changed(cu_num="64"))
    assert [one.line for one in tables(table(ROW), table(row, header=OLDER)).without_arch()] == [2]
    assert tables(table(row, header=OLDER)).without_arch() == []


A4W4 = "gfx,cu_num,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
F4GEMM = "_ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128E"


@pytest.mark.parametrize(
    ("file", "kernel"), [("a4w4_blockscale_tuned_gemm.csv", ""), ("x.csv", F4GEMM)], ids=["file", "kernel"]
)
def test_a_size_that_no_call_of_a4w4_has(file: str, kernel: str) -> None:
    """32 elements of k share a scale. AITER loads such a row and never looks it up."""
    made = Tables()
    rows = [f"gfx950,256,2,1280,{k},20,0,6.5,{kernel},1,1,0.0" for k in (8192, 250)]
    made.add(file, [line.encode() for line in (A4W4, *rows)])
    (found,) = made.findings()
    assert (found.file, found.line, found.kind, found.fatal) == (file, 3, "impossible", False)
    assert found.text == "no call of a4w4 has it: k 250 is no multiple of the scale's group of 32"


def test_other_operators_take_any_k() -> None:
    made = Tables()
    row = "gfx950,256,2,1280,250,20,0,6.5,a8w8_rowwise_256x,1,1,0.0"
    for name in ("a8w8_tuned_gemm.csv", "x.csv"):
        made.add(name, [A4W4.encode(), row.encode()])
    assert {one.kind for one in made.findings()} == {"duplicate"}
    assert tables(table(changed(K="250"))).findings() == []
