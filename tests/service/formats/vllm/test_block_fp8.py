"""vLLM's and SGLang's block-fp8 configurations, read and written."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ReadError
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from service.formats import READERS
from service.formats.core.base import Imported, ReadOptions, Rejected
from service.formats.core.reading import read_stream
from service.formats.vllm.block_fp8 import FAMILY, BlockFp8

READER = BlockFp8()
NAME = "N=2048,K=4096,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"
H200_NAME = NAME.replace("AMD_Instinct_MI300X", "NVIDIA_H200")
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 16,
          "num_warps": 4, "num_stages": 3}  # fmt: skip
SOLUTION = Solution(FAMILY, 1, CONFIG)
BODY = json.dumps({"1": CONFIG, "16": {**CONFIG, "num_warps": 8}}, indent=4) + "\n"


def scaled(m: int = 16, n: int = 2048, k: int = 4096, dtype: str = "fp8_e4m3", **changed: Any) -> GemmProblem:
    """x[m,k] times w[n,k] transposed with scales of blocks."""
    call = {"dtype_d": "bf16", "scale_a": "block_1x128", "scale_b": "block_128x128"} | changed
    return from_linear(m, n, k, dtype, **call)


def read(text: str | bytes, name: str = H200_NAME) -> Imported:
    raw = text.encode() if isinstance(text, str) else text
    return read_stream(io.BytesIO(raw), "upload", {"block-fp8": READER}, None, ReadOptions(name))


def claims(imported: Imported) -> list[tuple[GemmProblem, Solution | None]]:
    return [(item.problem, item.claim.solution) for item in imported.claims]


def reasons(text: str | bytes, name: str = H200_NAME) -> list[tuple[int, str]]:
    return [(bad.line, bad.reason) for bad in read(text, name).rejected]


# ---- reading -------------------------------------------------------------------------------------


def test_a_file_is_claims_of_every_m() -> None:
    imported = read(BODY)
    assert imported.format == "block-fp8"
    assert claims(imported) == [
        (scaled(1), SOLUTION),
        (scaled(16), Solution(FAMILY, 1, {**CONFIG, "num_warps": 8})),
    ]
    assert [item.line for item in imported.claims] == [9, 17]
    assert imported.rejected == []
    assert imported.header == {"N": "2048", "K": "4096", "device_name": "NVIDIA_H200", "dtype": "fp8_w8a8"}
    claim = imported.claims[0].claim
    assert (claim.seconds, claim.device, claim.arch, claim.units) == (None, None, "", 0)


def test_the_problem_in_blas_terms() -> None:
    (item, _) = read(BODY).problems
    p = item.problem
    assert (p.trans_a, p.trans_b, p.m, p.n, p.k) == ("T", "N", 2048, 1, 4096)
    assert (p.scale_a, p.scale_b, p.scale_dtype) == ("block_128x128", "block_1x128", "fp32")
    assert (p.dtype_a, p.dtype_b, p.dtype_d, p.compute) == ("fp8_e4m3", "fp8_e4m3", "bf16", "fp32")


@pytest.mark.parametrize(
    ("device", "dtype", "arch"),
    [
        ("NVIDIA_H200", "fp8_e4m3", ""),
        ("NVIDIA_RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition", "fp8_e4m3", ""),
        ("Intel(R)_Arc(TM)_Pro_B70_Graphics", "fp8_e4m3", ""),
        ("AMD_Instinct_MI300X", "fp8_e4m3_fnuz", "gfx942"),
        ("AMD_Instinct_MI300XHF_OAM", "fp8_e4m3_fnuz", "gfx942"),
        ("AMD_Instinct_MI325_OAM", "fp8_e4m3_fnuz", "gfx942"),
        ("MI308X", "fp8_e4m3_fnuz", "gfx942"),
        ("AMD_Instinct_MI355X", "fp8_e4m3", "gfx950"),
        ("AMD_Radeon_8060S", "fp8_e4m3", ""),
    ],
)
def test_the_8_bit_float_is_that_of_the_device(device: str, dtype: str, arch: str) -> None:
    imported = read(BODY, NAME.replace("AMD_Instinct_MI300X", device))
    assert [item.problem for item in imported.problems] == [scaled(1, dtype=dtype), scaled(16, dtype=dtype)]
    assert {item.claim.arch for item in imported.claims} == {arch}


@pytest.mark.parametrize("device", ["AMD_Radeon_Graphics", "AMD_Instinct_MI250X", "AMD"])
def test_a_device_that_may_use_either_float_is_not_read(device: str) -> None:
    with pytest.raises(ReadError, match="may be one that computes in the FNUZ formats"):
        read(BODY, NAME.replace("AMD_Instinct_MI300X", device))


def test_sglang_writes_the_shape_with_a_blank_and_parameters_for_amd() -> None:
    body = json.dumps({"4": {**CONFIG, "waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 2}})
    imported = read(body, NAME.replace("[128,128]", "[128, 128]"))
    (found,) = claims(imported)
    assert found[0] == scaled(4, dtype="fp8_e4m3_fnuz")
    assert found[1] is not None
    assert found[1].parameters["waves_per_eu"] == 0


def test_a_whole_folder_at_once() -> None:
    other = NAME.replace("N=2048", "N=512")
    text = (
        f"==> {NAME} <==\n{BODY}\n==> E=8,N=5,device_name=X.json <==\n{BODY}\n==> notes.txt <==\nhello\n\n"
        f"==> configs/{other} <==\r\n{{\r\n\r\n==> {H200_NAME} <==\n{BODY}"
    )
    imported = read(text, "")
    assert [p.m for p, _ in claims(imported)] == [2048] * 4
    assert [p.dtype_a for p, _ in claims(imported)] == ["fp8_e4m3_fnuz"] * 2 + ["fp8_e4m3"] * 2
    assert [item.line for item in imported.claims] == [10, 18, 56, 64]
    (experts, notes, broken) = imported.rejected
    assert (experts.line, experts.text) == (21, "E=8,N=5,device_name=X.json")
    assert "E=8,N=5 names a layer of experts" in experts.reason
    assert (notes.line, notes.text) == (41, "notes.txt")
    assert "the name 'notes.txt' does not say the N, K, device" in notes.reason
    assert broken.line == 47
    assert broken.reason == 'expected ", but the document ends; nothing after it was read'


def test_the_name_of_one_file_is_not_asked_for_where_lines_name_them() -> None:
    assert claims(read(f"\n\n==> {NAME} <==\n{BODY}", "all.txt"))[0][0] == scaled(1, dtype="fp8_e4m3_fnuz")
    assert [p.n for p, _ in claims(read(READER.example, ""))] == [1, 256]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "",
            "no name says the N, K, device, type and block shape of these block-fp8 configurations; name the",
        ),
        ("config.json", "the name 'config.json' does not say the N, K, device"),
        (NAME.replace("N=2048", "N=x"), "does not say the N, K"),
        (NAME + ".bak", "does not say the N, K"),
        (NAME.replace("N=2048", "N=" + "9" * 30), "does not say the N, K"),
        (NAME.replace("N=2048", "N=2147483648"), "N must be from 1 to 2147483647"),
        (NAME.replace("K=4096", "K=0"), "K must be from 1 to 2147483647"),
        (NAME.replace("fp8_w8a8", "int8_w8a8"), "is of dtype int8_w8a8: only fp8_w8a8 is read"),
        (NAME.replace("[128,128]", "[64,64]"), "has scales for blocks of 64 x 64: only 128 x 128 can be"),
        (
            "E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json",
            "give hidden_size (--hidden-size) and top_k (--top-k)",
        ),
        ("E=8,N=14336,device_name=NVIDIA_H200.json", "give hidden_size (--hidden-size) and top_k (--top-k)"),
        ("\x1b[31m.json", "the name '\\x1b["),
    ],
)
def test_names_that_say_no_such_problem(name: str, message: str) -> None:
    with pytest.raises(ReadError) as caught:
        read(BODY, name)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_body_of_the_experts_kernel() -> None:
    with pytest.raises(ReadError, match="triton_version stands in the file: this is a configuration of the"):
        read('{"triton_version": "3.4.0", "1": {"BLOCK_SIZE_M": 16}}')
    ((line, reason),) = reasons(json.dumps({"1": {**CONFIG, "SPLIT_K": 1}}))
    assert (line, reason[:60]) == (1, "SPLIT_K is a parameter of a configuration of the fused mixtu")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ('"x": {}', "key 'x' is no M: it must be a whole number from 1 to 2147483647"),
        ('"0": {}', "key '0' is no M"),
        ('"-1": {}', "key '-1' is no M"),
        ('"2147483648": {}', "key '2147483648' is no M"),
        ('"' + "9" * 5000 + '": {}', "is no M"),
        ('"١": {}', "is no M"),
        ('"16": {"a": 1}', "M 16 stands twice; the framework takes the last, so give it once"),
        ('"016": {"a": 1}', "M 16 stands twice"),
        ('"2": 5', "an entry must be an object of the kernel's parameters"),
        ('"2": []', "an entry must be an object"),
        ('"2": {}', "BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, num_warps, num_stages is missing"),
        ('"2": {"a": 1, "a": 2}', "the name 'a' stands twice in one object"),
        (("BLOCK_SIZE_M", 48), "BLOCK_SIZE_M is 48; Triton takes powers of two"),
        (("num_warps", 3), "num_warps is 3; Triton takes powers of two"),
        (("BLOCK_SIZE_K", 256), "is 256; the kernel applies one scale a step, so it must divide 128"),
        (("BLOCK_SIZE_N", 0), "BLOCK_SIZE_N must be a whole number from 1 to 2147483647"),
        (("GROUP_SIZE_M", -1), "GROUP_SIZE_M must be a whole number from 1"),
        (("GROUP_SIZE_M", True), "GROUP_SIZE_M must be a whole number from 1"),
        (("GROUP_SIZE_M", 16.0), "GROUP_SIZE_M must be a whole number from 1"),
        (("GROUP_SIZE_M", [16]), "GROUP_SIZE_M must be a whole number from 1"),
        (("GROUP_SIZE_M", None), "GROUP_SIZE_M must be a whole number from 1"),
        (("GROUP_SIZE_M", 2**31), "GROUP_SIZE_M must be a whole number from 1"),
        (("GROUP_SIZE_M", 2**70), "does not fit 64 bits"),
        (("enable_magic", 1), "'enable_magic' is no parameter of the block-fp8 kernel; its"),
    ],
)  # fmt: skip
def test_bad_entries_have_a_reason_and_the_others_are_read(entry: str | tuple[str, object], why: str) -> None:
    text = entry if isinstance(entry, str) else f'"2": {json.dumps({**CONFIG, entry[0]: entry[1]})}'
    raw = f'{{"16": {json.dumps(CONFIG)},\n{text},\n"32": {json.dumps(CONFIG)}}}'
    imported = read(raw)
    assert [p.n for p, _ in claims(imported)] == [16, 32]
    ((line, reason),) = [(bad.line, bad.reason) for bad in imported.rejected]
    assert line == 2
    assert why in reason


def test_one_is_not_true() -> None:
    """Equal to 1, and so found where 1 was remembered."""
    config = {**CONFIG, "GROUP_SIZE_M": 1}
    imported = read(json.dumps({"1": config, "2": {**config, "GROUP_SIZE_M": True}, "3": config}))
    assert [p.n for p, _ in claims(imported)] == [1, 3]
    assert len(imported.rejected) == 1


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('{"1": ', 2, "the document is cut short"),
        ('{"1": {"BLOCK_SIZE_M": ', 1, "the document is cut short"),
        ("{\n1: {}}", 2, "expected \", but found '1'"),
        ("[1]", 1, "expected {, but found '['"),
        ("{} {}", 1, "something follows the end of the object"),
        ('{"2": {},}', 1, "expected \", but found '}'"),
        ('{"1" {}}', 1, "expected :, but found '{'"),
        (b'{"1": {}, \0}', 1, "NUL byte at byte 11: this is not text"),
        (b'{\n"\xff": {}}', 2, "byte 2 (0xff) is not UTF-8"),
        ('{"1": {"\x1b": 1}}', 1, "no JSON: Invalid control character"),
        ('{"1": ' + "[" * 100_000 + "}", 1, ""),
    ],
)
def test_what_is_no_such_object(text: str | bytes, line: int, why: str) -> None:
    imported = read_stream(
        io.BytesIO(text.encode() if isinstance(text, str) else text),
        "upload",
        {"block-fp8": READER},
        "block-fp8",
        ReadOptions(H200_NAME),
    )
    assert imported.claims == []
    assert any(bad.line == line and why in bad.reason for bad in imported.rejected)


def test_line_ends_and_a_byte_order_mark() -> None:
    raw = b"\xef\xbb\xbf" + BODY.replace("\n", "\r\n").encode()
    assert claims(read(raw)) == claims(read(BODY))


def test_lines_before_any_name_that_are_no_text_are_rejected() -> None:
    imported = read_stream(
        io.BytesIO(b"\0\n" + BODY.encode()), "x", {"b": READER}, "b", ReadOptions(H200_NAME)
    )
    assert [bad.line for bad in imported.rejected] == [1]
    assert len(imported.claims) == 2


def test_detection() -> None:
    for head in (
        BODY,
        READER.example,
        "\ufeff" + BODY,
        "\n\r\n" + BODY,
        json.dumps({"1": CONFIG}),
        f"==> a/{NAME} <==",
        '{"triton_version": "3.4.0", "1": {"BLOCK_SIZE_M": 16}}',
        '{"1":{"num_warps":4',
    ):
        assert READER.detect(head.encode())
    for head in (
        "",
        "{}",
        '{"m": 1, "n": 2, "k": 3}',
        '{"1": {"m": 3}}',
        '{"problems": [{"BLOCK_SIZE_M": 1}]}',
        "==> notes.txt <==",
        "\0" * 100,
        "[" * 1000,
        *(fmt.example for fmt in READERS.values() if fmt.name != READER.name),
    ):
        assert not READER.detect(head.encode())
    assert not READER.detect(READER.example.encode("utf-16"))
    assert not READER.detect(BODY.encode("utf-16"))


@given(st.binary(max_size=200), st.sampled_from([H200_NAME, "", NAME]))
def test_no_bytes_raise_anything_but_a_read_error(raw: bytes, name: str) -> None:
    for text in (raw, READER.example.encode() + b"\n" + raw, BODY.encode()[:40] + raw):
        with suppress(ReadError):
            found = list(READER.read_told(text.split(b"\n"), ReadOptions(name)))
            bad = [part for part in found if isinstance(part, Rejected)]
            assert all(part.reason and (part.reason + part.text).isprintable() for part in bad)
